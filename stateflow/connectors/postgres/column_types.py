"""Types of columns in PostgreSQL, and rows as COPY reads them.

Nested values are ``jsonb``, an UUID is ``uuid``, and a duration is an ``interval``.
"""

from __future__ import annotations

import io
import math
import re
import uuid
from collections.abc import Iterable
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from stateflow.types.columns.shapes import Leaf, Shape

_JSON = "jsonb"
_NAMES = {
    "bigint": "bigint",
    "double": "double precision",
    "boolean": "boolean",
    "string": "text",
    "binary": "bytea",
    "date": "date",
    "timestamp": "timestamp with time zone",
    "timestamp_ntz": "timestamp without time zone",
    "time(6)": "time without time zone",
    "interval day to second": "interval",
}
"""PostgreSQL's names of types, by Spark's."""
_ALSO = {"bigint": {"numeric"}, "string": {"character varying"}}
"""Further types of existing columns that have all values, by Spark's names."""
_NUMERIC = re.compile(r"numeric\((\d+),(\d+)\)")
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
    return _NAMES[shape.spark]


def can_store(found: str, shape: Shape) -> bool:
    """Returns whether an existing column has every value of a shape.

    Args:
        found: its type, as ``format_type`` names it.
    """
    if found == postgres_type(shape):
        return True
    if not isinstance(shape, Leaf):
        return found == "json"
    if pa.types.is_decimal(shape.arrow):
        digits = _NUMERIC.fullmatch(found)
        if digits is None:
            return found == "numeric"
        precision, scale = int(digits[1]), int(digits[2])
        needed: int = shape.arrow.precision - shape.arrow.scale
        return scale - int(shape.arrow.scale) >= 0 and precision - scale >= needed
    return found in _ALSO.get(shape.spark, ()) or (shape.kind is uuid.UUID and found == "text")


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
        return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
    return value


def _json_key(key: object) -> str:
    return key if isinstance(key, str) else _to_json(key).decode().strip('"')
