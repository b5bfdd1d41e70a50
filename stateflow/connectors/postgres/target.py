"""The table that a PostgreSQL sink declares: how the driver connects, and the types of columns. Imports no psycopg.

Secrets stay on the driver. Nested values are ``jsonb``, an UUID is ``uuid``, and a duration is an ``interval``; tasks
convert rows to what COPY reads.
"""

from __future__ import annotations

import io
import math
import os
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from stateflow.api.datasets import Dataset
from stateflow.api.schema import Column
from stateflow.connectors.store_assignment import LENGTH
from stateflow.connectors.upserts import UpsertSettings
from stateflow.errors import EnvironmentUnsupported, JobDefinitionError
from stateflow.types.columns.conversion import with_nullable_parts
from stateflow.types.columns.shapes import Leaf, Shape
from stateflow.types.declared_types import special_float

TOKENS, UNDO = "stateflow_tokens", "stateflow_undo"
"""Tables of the sink, in the schema of the table that it writes to."""
LONGEST_NAME = 63
_SHADOW = "_shadow"


@dataclass(frozen=True)
class TableName:
    """A table and its schema, exactly as PostgreSQL stores their names."""

    schema: str
    table: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Returns the name that ``table`` or ``schema.table`` has. Raises JobDefinitionError."""
        schema, _, table = text.rpartition(".")
        name = cls(schema or "public", table)
        if name.table in (TOKENS, UNDO) or not all(_is_name(part) for part in (name.schema, name.table)):
            raise JobDefinitionError(
                "the name of a table in PostgreSQL is not valid",
                hint=f"use table or schema.table, of at most {LONGEST_NAME} bytes each, and not the sink's own tables",
                table=text,
            )
        return name

    @property
    def shadow(self) -> TableName:
        """The table for the output of a dry run."""
        return TableName.parse(f"{self.schema}.{self.table}{_SHADOW}")

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"


def _is_name(text: str) -> bool:
    return bool(text) and text.isprintable() and "." not in text and len(text.encode()) <= LONGEST_NAME


@dataclass(frozen=True)
class PostgresSettings:
    """Settings of a sink.

    Attributes:
        name: the table.
        location: address of the table, for display: neither user nor password.
        upsert: how rows are matched; None for appends.
        undo: how long rows are kept that were replaced or deleted; None if a rewind is refused.
        timeout: the longest time of a transaction.
        conninfo: how to connect, without a password. Tasks have none.
        password: of the user; by default from the environment or the password file.
    """

    name: TableName
    location: str
    upsert: UpsertSettings | None
    undo: timedelta | None
    timeout: timedelta
    conninfo: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    @property
    def dataset(self) -> Dataset:
        """The table as lineage events name it; what the address lacks is in the environment, as for libpq."""
        server, _, path = self.location.removeprefix("postgresql://").partition("/")
        host, _, port = server.partition(":")
        host = host.split(",")[0] or os.environ.get("PGHOST", "localhost")
        port = port.split(",")[0] or os.environ.get("PGPORT", "5432")
        database = path.removesuffix(f"/{self.name}") if path != f"/{self.name}" else ""
        database = database or os.environ.get("PGDATABASE", "")
        return Dataset(f"postgres://{host}:{port}", f"{database}.{self.name}".lstrip("."), kind="TABLE")

    def for_tasks(self) -> PostgresSettings:
        """Returns the settings without everything that connects: tasks only stage rows."""
        return replace(self, conninfo="", password="")

    def shadow(self) -> PostgresSettings:
        """Returns the settings for the shadow table."""
        return replace(self, name=self.name.shadow, location=f"{self.location}{_SHADOW}")


def split_conninfo(conninfo: str, password: str) -> tuple[str, str, str]:
    """Returns a connection string without its password, the password, and the address for display.

    Raises:
        EnvironmentUnsupported: psycopg is not installed.
        JobDefinitionError: the string is malformed, or there are two passwords.
    """
    if find_spec("psycopg") is None:
        raise EnvironmentUnsupported(
            "a package for PostgreSQL is not installed",
            hint="install it on the driver: pip install 'stateflow[postgres]'",
            package="psycopg",
        )
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    try:
        options = conninfo_to_dict(conninfo)
    except ProgrammingError:
        # Without the reason, which may quote the password.
        raise JobDefinitionError(
            "the connection string is malformed", hint="use 'host=db dbname=flights user=etl' or a postgresql:// URL"
        ) from None
    found = str(options.pop("password", ""))
    if found and password:
        raise JobDefinitionError("the password is given twice", hint="give it as password=… or in the string")
    host, port, database = (str(options.get(name) or "") for name in ("host", "port", "dbname"))
    address = f"postgresql://{host}{f':{port}' if port else ''}/{database}"
    return make_conninfo("", **options), found or password, address


_JSON = "jsonb"
_NAMES = {
    "double": "double precision",
    "string": "text",
    "binary": "bytea",
    "timestamp": "timestamp with time zone",
    "timestamp_ntz": "timestamp without time zone",
    "time(6)": "time without time zone",
    "interval day to second": "interval",
}
"""PostgreSQL's names of types that have another name in Spark."""
_ALSO = {"bigint": {"numeric"}, "string": {"character varying"}}
"""Further types of existing columns that have all values, by Spark's names."""
_NARROWER = {
    ("bigint", "integer"): pa.int32(),
    ("bigint", "smallint"): pa.int16(),
    ("double", "real"): pa.float32(),
    ("date", "timestamp without time zone"): pa.timestamp("us"),
    ("timestamp_ntz", "date"): pa.date32(),
}
"""Types of existing columns that have some values, by Spark's name and theirs."""
_NUMERIC = re.compile(r"numeric\((\d+),(\d+)\)")
_LENGTH = re.compile(r"character varying\((\d+)\)")
_MOST_DIGITS = 38
_WRITTEN = pa_csv.WriteOptions(include_header=False)
_MICROSECONDS_PER_SECOND = 1_000_000
_to_json = msgspec.json.Encoder(decimal_format="number").encode


def postgres_type(shape: Shape) -> str:
    """Returns the type of a column for values of a shape."""
    if not isinstance(shape, Leaf):
        return _JSON
    if shape.kind is uuid.UUID:
        return "uuid"
    if pa.types.is_decimal(shape.arrow):
        return f"numeric({shape.arrow.precision},{shape.arrow.scale})"
    return _NAMES.get(shape.spark, shape.spark)


def target_field(column: Column, found: str, is_required: bool) -> pa.Field | None:
    """Returns a column of rows as an existing column stores it, for `assign_rows`; None if that has another type.

    Args:
        column: of the rows.
        found: the type of the existing column, as ``format_type`` names it.
        is_required: whether that is never null.
    """
    kind, metadata = _target(column.shape, found), None
    if kind is None and (length := _LENGTH.fullmatch(found)) and column.spark_type == "string":
        kind, metadata = pa.string(), {LENGTH: length[1].encode()}
    return None if kind is None else pa.field(column.name, kind, nullable=not is_required, metadata=metadata)


def _target(shape: Shape, found: str) -> pa.DataType | None:
    own = with_nullable_parts(shape.arrow)
    if not isinstance(shape, Leaf):
        return own if found in (_JSON, "json") else None
    if found == postgres_type(shape) or found in _ALSO.get(shape.spark, ()) or (_is_text(shape) and found == "text"):
        return own
    digits = _NUMERIC.fullmatch(found) if pa.types.is_decimal(own) else None
    if digits is None:
        return own if found == "numeric" and pa.types.is_decimal(own) else _NARROWER.get((shape.spark, found))
    precision, scale = int(digits[1]), int(digits[2])
    if precision <= _MOST_DIGITS:
        return pa.decimal128(precision, scale)
    return own if scale >= own.scale and precision - scale >= own.precision - own.scale else None


def _is_text(shape: Leaf) -> bool:
    """Returns whether values of a shape, such as a UUID, are texts in columns."""
    return shape.spark == "string"


def to_csv(rows: pa.Table) -> Iterable[bytes]:
    """Yields the rows as ``COPY … (FORMAT csv)`` reads them: texts are quoted, and null is nothing."""
    for batch in rows.to_batches():
        if len(batch):
            texts = pa.record_batch([_texts(column) for column in batch.columns], names=batch.schema.names)
            written = io.BytesIO()
            pa_csv.write_csv(texts, written, _WRITTEN)
            yield written.getvalue()


def first_unstorable(rows: pa.RecordBatch) -> str | None:
    """Returns the first column with a text that has the character U+0000, which PostgreSQL cannot store."""
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if _has_zero(column):
            return str(name)
    return None


def _has_zero(column: pa.Array) -> bool:
    kind = column.type
    if pa.types.is_string(kind):
        return bool(pc.any(pc.match_substring(column, "\0")).as_py())
    if pa.types.is_struct(kind):
        return any(map(_has_zero, column.flatten()))
    if pa.types.is_map(kind):
        return _has_zero(column.keys) or _has_zero(column.items)
    return bool(pa.types.is_list(kind)) and _has_zero(pc.list_flatten(column))


def _texts(column: pa.Array) -> pa.Array:
    """Returns the values of a column as PostgreSQL reads them."""
    kind = column.type
    if pa.types.is_nested(kind):
        return pa.array([None if v is None else _json_text(v, kind) for v in column.to_pylist()], pa.string())
    if pa.types.is_binary(kind):
        return pa.array([None if v is None else f"\\x{v.hex()}" for v in column.to_pylist()], pa.string())
    if pa.types.is_duration(kind):
        micros = column.cast(pa.duration("us")).cast(pa.int64()).to_pylist()
        return pa.array([None if v is None else _interval(v) for v in micros], pa.string())
    if pa.types.is_timestamp(kind):
        # The session's time zone is UTC.
        column = column.cast(pa.timestamp("us"))
    if pa.types.is_time(kind):
        column = column.cast(pa.time64("us"), safe=False)
    return column.cast(pa.string())


def _interval(microseconds: int) -> str:
    seconds, rest = divmod(abs(microseconds), _MICROSECONDS_PER_SECOND)
    sign = "-" if microseconds < 0 else ""
    return f"{sign}{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}.{rest:06}"


def _json_text(value: object, kind: pa.DataType) -> str:
    return _to_json(_json_value(value, kind)).decode()


def _json_value(value: Any, kind: pa.DataType) -> object:
    """Returns a value as JSON has it; numbers that JSON lacks are texts, and so are keys of maps."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: _json_value(value[field.name], field.type) for field in kind}
    if pa.types.is_map(kind):
        return {_json_key(key): _json_value(item, kind.item_type) for key, item in value}
    if pa.types.is_list(kind):
        return [_json_value(item, kind.value_type) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return special_float(value)
    return value


def _json_key(key: object) -> str:
    return key if isinstance(key, str) else _to_json(key).decode().strip('"')
