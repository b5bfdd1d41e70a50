"""Columns of the rows of a Kafka source: from the record's value, or from its metadata. SQL expressions; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from stateflow.api.hidden_columns import REJECTED, SPLIT
from stateflow.api.schema import Column, RowSchema
from stateflow.errors import JobDefinitionError
from stateflow.types.columns.shapes import Entries, Items, Leaf, Record, Shape
from stateflow.types.spark_sql import literal, quoted

VALUE = "_sf_value"
"""Column with the decoded value, a struct of the columns that come from the value; null if it cannot be decoded."""
VALUE_ERROR = "_sf_value_error"
"""Column with the reason for which the value cannot be decoded; null for all others."""
GUARD = "_sf_partition"
"""Column with the number of Spark's partition. An expression that uses it cannot be moved below the decoding."""


class KafkaHeader(msgspec.Struct, frozen=True):
    """A header of a record; declare ``list[KafkaHeader]`` for all of them."""

    key: str
    value: bytes | None


_RAW_VALUE = "_sf_raw_value"
_HEADERS = "array<struct<`key`:string,`value`:binary>>"
_METADATA: Mapping[str, Mapping[str, str]] = {
    "topic": {"string": "topic"},
    "partition": {"bigint": "CAST(partition AS BIGINT)"},
    "offset": {"bigint": "offset"},
    "timestamp": {
        "timestamp": "timestamp",
        # Not a cast, which would depend on the time zone of the session.
        "timestamp_ntz": "timestampadd(MICROSECOND, unix_micros(timestamp), TIMESTAMP_NTZ '1970-01-01')",
        "bigint": "unix_millis(timestamp)",
    },
    "key": {"binary": "key", "string": "CAST(key AS STRING)"},
    "headers": {_HEADERS: "coalesce(headers, array())"},
}
"""Expression of each metadata column, by the Spark type of the field that takes it."""
_DECLARED_TYPES = {
    "topic": "str",
    "partition": "int",
    "offset": "int",
    "timestamp": "datetime, or int for milliseconds since 1970",
    "key": "bytes or str, … | None if records have no key",
    "headers": "list[KafkaHeader]",
}


@dataclass(frozen=True)
class RecordColumns:
    """How the columns of a row class are read from a record.

    Attributes:
        schema: the row class.
        metadata: names of metadata columns, by the name of the field that takes them.
    """

    schema: RowSchema
    metadata: Mapping[str, str]

    def check(self) -> None:
        """Raises JobDefinitionError for metadata that Kafka does not have, or a field of another type."""
        for field, name in self.metadata.items():
            column = self.schema.column(field)
            if name not in _METADATA:
                raise JobDefinitionError(
                    "Kafka's records have no such metadata",
                    hint=f"use one of {', '.join(_METADATA)}",
                    field=field,
                    metadata=name,
                )
            if column.spark_type not in _METADATA[name]:
                raise JobDefinitionError(
                    "a field cannot take a record's metadata",
                    hint=f"declare it as {_DECLARED_TYPES[name]}",
                    field=field,
                    metadata=name,
                    type=column.spark_type,
                )

    @property
    def needs_headers(self) -> bool:
        """Whether a column takes the record's headers."""
        return "headers" in self.metadata.values()

    @property
    def of_value(self) -> tuple[Column, ...]:
        """The columns that come from the record's value."""
        return tuple(c for c in self.schema.columns if c.name not in self.metadata)

    def decoded(self) -> list[str]:
        """Returns the expressions of all columns, and of those that describe the record, over the decoded frame."""
        columns = [f"{self._expression(c)} AS {quoted(c.name)}" for c in self.schema.columns]
        return [
            *columns,
            *(f"{name} AS _sf_{name}" for name in ("topic", "offset", "key")),
            f"value AS {_RAW_VALUE}",
            "CAST(partition AS BIGINT) AS _sf_number",
            f"concat(topic, '-', partition) AS {SPLIT}",
            VALUE_ERROR,
            f"spark_partition_id() AS {GUARD}",
        ]

    def checked(self) -> list[str]:
        """Returns the expressions of all columns, `SPLIT` and `REJECTED`, over the frame of `decoded`."""
        record = ", ".join(
            f"'{name}', {text}"
            for name, text in {
                "topic": "_sf_topic",
                "partition": "_sf_number",
                "offset": "_sf_offset",
                "key": _text("_sf_key"),
                "value": _text(_RAW_VALUE),
                "reason": "_sf_reason",
            }.items()
        )
        names = [quoted(name) for name in self.schema.names]
        return [*names, SPLIT, GUARD, f"CASE WHEN _sf_reason IS NOT NULL THEN named_struct({record}) END AS {REJECTED}"]

    def reason(self) -> str:
        """Returns the expression of the reason for which a record is rejected; null for a row, over `decoded`."""
        problems = [f"WHEN {VALUE_ERROR} IS NOT NULL THEN {VALUE_ERROR}"]
        for column in self.schema.columns:
            problems += self._problems(column)
        return f"CASE {' '.join(problems)} END"

    def _expression(self, column: Column) -> str:
        metadata = self.metadata.get(column.name)
        return _METADATA[metadata][column.spark_type] if metadata else f"{VALUE}.{quoted(column.name)}"

    def _problems(self, column: Column) -> Iterator[str]:
        name = quoted(column.name)
        if self.metadata.get(column.name) == "key" and column.spark_type == "string":
            yield f"WHEN NOT is_valid_utf8({name}) THEN 'the key is not UTF-8'"
        what = f"the metadata {self.metadata[column.name]}" if column.name in self.metadata else "the value"
        for condition, path in _nulls(column.shape, name, column.name):
            yield f"WHEN {condition} THEN {literal(f'{path} is null, or is missing in {what}')}"


def _nulls(shape: Shape, expression: str, path: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yields a condition for each part of a value that must not be null, with its path in words."""
    if not shape.nullable:
        yield f"{expression} IS NULL", path
    if isinstance(shape, Leaf):
        return
    item = f"_sf_item{depth}"
    parts: list[tuple[Shape, str, str]] = []
    if isinstance(shape, Record):
        for name, field in zip(shape.names, shape.fields, strict=True):
            for condition, inner in _nulls(field, f"{expression}.{quoted(name)}", f"{path}.{name}", depth):
                yield f"({expression} IS NOT NULL AND {condition})", inner
    elif isinstance(shape, Items):
        parts = [(shape.item, expression, f"{path}[]")]
    elif isinstance(shape, Entries):
        parts = [(shape.value, f"map_values({expression})", f"{path}[]")]
    for part, values, inner_path in parts:
        for condition, inner in _nulls(part, item, inner_path, depth + 1):
            yield f"coalesce(exists({values}, {item} -> {condition}), FALSE)", inner


def _text(column: str) -> str:
    """Returns the expression of bytes as text, or in Base64 if they are not UTF-8."""
    text = f"CAST({column} AS STRING)"
    # Spark breaks Base64 into lines.
    encoded = f"replace(base64({column}), '\\r\\n', '')"
    return f"CASE WHEN is_valid_utf8({text}) THEN {text} ELSE concat('base64:', {encoded}) END"
