"""Records of Kafka as rows, rows as records, and the formats of values.

A source reads columns from a record's value, or from its metadata, in SQL expressions. A sink makes a record of each
row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from stateflow.api.schema import REJECTED, SPLIT, Column, RejectedRecord, RowSchema
from stateflow.checkpoint.barriers import message_with
from stateflow.connectors.json_rows import encode, json_objects
from stateflow.connectors.json_values import JsonObjects
from stateflow.connectors.text_values import FORM_OPTIONS, TextForms
from stateflow.errors import DataError, JobDefinitionError, StateflowError
from stateflow.types.columns.conversion import NULL, misfit_of
from stateflow.types.columns.row_kind import RETRACTIONS
from stateflow.types.columns.shapes import Entries, Items, Leaf, Record, Shape, without_classes
from stateflow.types.declared_types import literal, quote_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
        for field_name, name in self.metadata.items():
            column = self.schema.column(field_name)
            if name not in _METADATA:
                raise JobDefinitionError(
                    "Kafka's records have no such metadata",
                    hint=f"use one of {', '.join(_METADATA)}",
                    field=field_name,
                    metadata=name,
                )
            if column.spark_type not in _METADATA[name]:
                raise JobDefinitionError(
                    "a field cannot take a record's metadata",
                    hint=f"declare it as {_DECLARED_TYPES[name]}",
                    field=field_name,
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

    def select_decoded(self) -> list[str]:
        """Returns the expressions of all columns, and of those that describe the record, over the decoded frame."""
        columns = [f"{self._expression(c)} AS {quote_name(c.name)}" for c in self.schema.columns]
        return [
            *columns,
            *(f"{name} AS _sf_{name}" for name in ("topic", "offset", "key")),
            f"value AS {_RAW_VALUE}",
            "CAST(partition AS BIGINT) AS _sf_number",
            f"concat(topic, '-', partition) AS {SPLIT}",
            VALUE_ERROR,
            f"spark_partition_id() AS {GUARD}",
        ]

    def select_checked(self) -> list[str]:
        """Returns the expressions of all columns, `SPLIT` and `REJECTED`, over the frame of `decode_answer`."""
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
        names = [quote_name(name) for name in self.schema.names]
        return [*names, SPLIT, GUARD, f"CASE WHEN _sf_reason IS NOT NULL THEN named_struct({record}) END AS {REJECTED}"]

    def reason(self) -> str:
        """Returns the expression of the reason for which a record is rejected; null for a row, over `decode_answer`."""
        problems = [f"WHEN {VALUE_ERROR} IS NOT NULL THEN {VALUE_ERROR}"]
        for column in self.schema.columns:
            problems += self._problems(column)
        return f"CASE {' '.join(problems)} END"

    def _expression(self, column: Column) -> str:
        metadata = self.metadata.get(column.name)
        return _METADATA[metadata][column.spark_type] if metadata else f"{VALUE}.{quote_name(column.name)}"

    def _problems(self, column: Column) -> Iterator[str]:
        name = quote_name(column.name)
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
        for name, part in zip(shape.names, shape.fields, strict=True):
            for condition, inner in _nulls(part, f"{expression}.{quote_name(name)}", f"{path}.{name}", depth):
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


Value = Literal["json", "raw"]
JSON: Value = "json"
RAW: Value = "raw"
_TEXT = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


Headers = list[tuple[str, str | bytes | None]]


class KafkaRecord(msgspec.Struct, frozen=True):
    """A record to write.

    Attributes:
        timestamp: milliseconds since 1970; 0 for the time when it is sent.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers | None
    timestamp: int

    @property
    def size(self) -> int:
        """Size of key and value in bytes."""
        return len(self.key or b"") + len(self.value or b"")


@dataclass(frozen=True)
class RecordLayout:
    """Which columns of a row become which part of a record.

    Attributes:
        topic: the topic, also of rows whose topic column is null.
        value: `JSON` or `RAW`.
        key: columns of the key.
        topic_column: column with the topic; empty for one topic.
        headers: column with the headers; empty without.
        timestamp: column with the timestamp; empty for the time when a record is sent.
        suffix: appended to each topic of `topic_column`.
        row_kind: column of type `RowKind` of a changelog; a retraction becomes a record without a value. Empty without.
    """

    topic: str
    value: Value = JSON
    key: tuple[str, ...] = ()
    topic_column: str = ""
    headers: str = ""
    timestamp: str = ""
    suffix: str = ""
    row_kind: str = ""

    def check(self, schema: RowSchema) -> None:
        """Raises JobDefinitionError if the rows do not have these columns, of these types."""
        for name in self.key:
            column = schema.column(name)
            if name == self.row_kind:
                raise JobDefinitionError(
                    "a column cannot be part of the key of a changelog's records",
                    hint="leave out the row kind: a delete has the key of its row",
                    column=name,
                    row_kind=self.row_kind,
                )
        if self.topic_column:
            _check_type(schema.column(self.topic_column), ("string",), "str")
        if self.headers and (column := schema.column(self.headers)).arrow_type != _HEADERS_COLUMN.arrow_type:
            raise _misfit(column, "list[KafkaHeader]")
        if self.timestamp:
            _check_type(schema.column(self.timestamp), ("timestamp", "timestamp_ntz", "bigint"), "datetime or int")
        if self.value == RAW:
            values = self._value_columns(schema.names)
            if len(values) != 1:
                raise JobDefinitionError(
                    "a raw value needs exactly one column that is not key, topic, headers or timestamp",
                    hint='declare one of type bytes or str, or use value="json"',
                    columns=list(values),
                )
            _check_type(schema.column(values[0]), ("binary", "string"), "bytes or str")

    def records(self, rows: pa.RecordBatch) -> Iterator[KafkaRecord]:
        """Yields the record of each row.

        Raises:
            DataError: an earlier version of the job staged the rows, without a column of the layout.
        """
        self._check_staged(rows.schema.names)
        names = self._value_columns(rows.schema.names)
        values = self._values(rows.select(list(names)))
        keys = self._keys(rows)
        topics = self._topics(rows)
        headers = self._headers(rows)
        deleted = self._deleted(rows)
        for number, timestamp in enumerate(self._timestamps(rows)):
            value = None if number in deleted else values(number)
            yield KafkaRecord(topics(number), keys(number), value, headers(number), timestamp)

    def _value_columns(self, names: Sequence[str]) -> tuple[str, ...]:
        metadata = {self.topic_column, self.headers, self.row_kind}
        if self.value == RAW:
            metadata |= {*self.key, self.timestamp}
        return tuple(name for name in names if name not in metadata)

    def _values(self, rows: pa.RecordBatch) -> Callable[[int], bytes | None]:
        if self.value == RAW:
            return _texts(rows.column(0))
        objects = json_objects(rows)
        return lambda number: encode(objects[number])

    def _keys(self, rows: pa.RecordBatch) -> Callable[[int], bytes | None]:
        if not self.key:
            return _nothing
        if len(self.key) == 1 and (column := rows.column(self.key[0])).type in _TEXT:
            return _texts(column)
        objects = json_objects(rows.select(list(self.key)))
        if len(self.key) == 1:
            name = self.key[0]
            return lambda number: None if objects[number][name] is None else encode(objects[number][name])
        return lambda number: encode(objects[number])

    def _topics(self, rows: pa.RecordBatch) -> Callable[[int], str]:
        if not self.topic_column:
            return lambda _: self.topic
        named = rows.column(self.topic_column).to_pylist()
        return lambda number: self.topic if named[number] is None else named[number] + self.suffix

    def _headers(self, rows: pa.RecordBatch) -> Callable[[int], Headers | None]:
        if not self.headers:
            return _nothing
        listed = rows.column(self.headers).to_pylist()
        return lambda number: [(header["key"], header["value"]) for header in listed[number] or []]

    def _deleted(self, rows: pa.RecordBatch) -> set[int]:
        """Returns the numbers of the rows that delete their key."""
        if not self.row_kind:
            return set()
        return {number for number, kind in enumerate(rows.column(self.row_kind).to_pylist()) if kind in RETRACTIONS}

    def _timestamps(self, rows: pa.RecordBatch) -> Sequence[int]:
        if not self.timestamp:
            return [0] * len(rows)
        column = rows.column(self.timestamp)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
        return [0 if time is None else time for time in column.to_pylist()]

    def _check_staged(self, names: Sequence[str]) -> None:
        used = {*self.key, self.topic_column, self.headers, self.timestamp, self.row_kind} - {""}
        missing = sorted(used - set(names))
        if missing or (self.value == RAW and len(self._value_columns(names)) != 1):
            raise DataError(
                "output that an earlier version of the job staged does not have the columns of the sink",
                hint="run the earlier version of the job once, which publishes it",
                topic=self.topic,
                missing=missing,
            )


class _HeadersRow(msgspec.Struct):
    headers: list[KafkaHeader]


(_HEADERS_COLUMN,) = RowSchema.of(_HeadersRow).columns


def _check_type(column: Column, types: tuple[str, ...], declared: str) -> None:
    if column.spark_type not in types:
        raise _misfit(column, declared)


def _misfit(column: Column, declared: str) -> JobDefinitionError:
    return JobDefinitionError(
        "the type of a column does not match its part of the record",
        hint=f"declare it as {declared}",
        column=column.name,
        type=column.spark_type,
    )


def _texts(column: pa.Array) -> Callable[[int], bytes | None]:
    values: list[str | bytes | None] = column.to_pylist()
    return lambda number: value.encode() if isinstance(value := values[number], str) else value


def _nothing(number: int) -> None:
    return None


class ValueFormat(ABC):
    """A format of the values of records."""

    @abstractmethod
    def check(self, columns: Sequence[Column]) -> None:
        """Raises JobDefinitionError if the format cannot have these columns."""

    @abstractmethod
    def decode(self, records: DataFrame, columns: Sequence[Column]) -> DataFrame:
        """Returns the records with two further columns: `VALUE` and `VALUE_ERROR`.

        Args:
            records: the columns of Spark's Kafka source.
            columns: the columns that the value consists of.
        """

    def reason(self, record: RejectedRecord) -> str:
        """Returns why a value cannot be decoded, more precisely than `VALUE_ERROR`; empty if that says all."""
        return ""


class ValueColumns(Protocol):
    """Decodes the values of one task."""

    def columns_of(self, values: Sequence[bytes | None]) -> tuple[pa.Array, pa.Array]:
        """Returns the structs of decoded values, and the reasons for which others cannot be decoded.

        Raises:
            StateflowError: an error that is not one of a value.
        """
        ...


def decode_in_tasks(records: DataFrame, columns: Sequence[Column], decoder: Callable[[], ValueColumns]) -> DataFrame:
    """Returns records with `VALUE` and `VALUE_ERROR`, which tasks decode in Python.

    Args:
        decoder: creates what decodes the values of a task.
    """
    given = [f"{quote_name(f.name)} {f.dataType.simpleString()}" for f in records.schema.fields]
    value = ", ".join(f"{quote_name(c.name)}: {c.spark_type}" for c in columns)
    ddl = ", ".join([*given, f"{VALUE} struct<{value}>", f"{VALUE_ERROR} string"])
    # Not a function of columns, which Spark might call twice for a record.
    return records.mapInArrow(partial(_with_values, decoder, _without_user_classes(columns)), ddl)


def _without_user_classes(columns: Sequence[Column]) -> tuple[Column, ...]:
    """Returns columns whose unpickling imports no module of the job."""
    return tuple(Column(column.name, without_classes(column.shape)) for column in columns)


def _with_values(
    decoder: Callable[[], ValueColumns], columns: Sequence[Column], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yields the batches of a Spark partition with `VALUE` and `VALUE_ERROR`.

    Raises:
        RuntimeError: an error that is not one of a record. Its message contains the encoded error.
    """
    found = decoder()
    try:
        for batch in batches:
            values, errors = found.columns_of(batch.column("value").to_pylist())
            errors = _with_misfits(values, errors, columns)
            names = [*batch.schema.names, VALUE, VALUE_ERROR]
            yield pa.RecordBatch.from_arrays([*batch.columns, values, errors], names=names)
    except StateflowError as e:
        raise RuntimeError(message_with(e)) from e


def _with_misfits(values: pa.StructArray, errors: pa.Array, columns: Sequence[Column]) -> pa.Array:
    """Returns the reasons, with one for each value that has a part of another type than declared.

    Not for nulls, whose reasons `RecordColumns.reason` has.
    """
    present = values.drop_null()
    parts = [present.field(at) for at in range(len(columns))]
    if all(misfit_of(column.shape, part) is None for column, part in zip(columns, parts, strict=True)):
        return errors
    reasons: list[str | None] = errors.to_pylist()
    for at, row in enumerate(np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False)).tolist()):
        for column, part in zip(columns, parts, strict=True):
            found = misfit_of(column.shape, part.slice(at, 1))
            if found is not None and found[1] != NULL and reasons[row] is None:
                path, why = found
                reasons[row] = f"the value is not of the declared type: {column.name}{path}: {why}"
    return pa.array(reasons, pa.string())


@dataclass(frozen=True)
class Json(ValueFormat):
    """Values that are JSON objects, with a field per column. Further fields are ignored; missing ones are null.

    They are decoded as strictly as JSON files.

    Args:
        options: patterns of times, as for JSON files: ``dateFormat``, ``timestampFormat``, ``timestampNTZFormat`` and
            ``timeFormat``.
    """

    options: Mapping[str, str] = field(default_factory=dict)

    def check(self, columns: Sequence[Column]) -> None:
        given = sorted(o for o in self.options if o.lower() not in FORM_OPTIONS)
        if given:
            raise JobDefinitionError(
                "an option of the JSON format is not supported",
                hint="values are decoded strictly, as RFC 8259; on_error of the source determines what happens to "
                "records that cannot be decoded",
                options=given,
            )
        self.forms()

    def forms(self) -> TextForms:
        """Returns the forms of times. Raises ConfigError."""
        return TextForms.of({name.lower(): value for name, value in self.options.items()})

    def decode(self, records: DataFrame, columns: Sequence[Column]) -> DataFrame:
        plain = _without_user_classes(columns)
        return decode_in_tasks(records, columns, partial(_JsonValues, plain, self.forms()))


class _JsonValues:
    """`ValueColumns` of JSON."""

    def __init__(self, columns: Sequence[Column], forms: TextForms) -> None:
        self._objects = JsonObjects(columns, forms)
        self._fields = [pa.field(column.name, column.arrow_type) for column in columns]

    def columns_of(self, values: Sequence[bytes | None]) -> tuple[pa.Array, pa.Array]:
        columns, errors = self._objects.decode([b"{}" if value is None else value for value in values])
        is_null = [value is None or at in errors for at, value in enumerate(values)]
        structs = pa.StructArray.from_arrays(columns, fields=self._fields, mask=pa.array(is_null, pa.bool_()))
        reasons = {at: f"the value is not a JSON object of the declared columns: {why}" for at, why in errors.items()}
        return structs, pa.array([reasons.get(at) for at in range(len(values))], pa.string())


@dataclass(frozen=True)
class Raw(ValueFormat):
    """Values that are not decoded: one column, declared as bytes, or as str for text in UTF-8."""

    def check(self, columns: Sequence[Column]) -> None:
        if len(columns) != 1 or columns[0].spark_type not in ("binary", "string"):
            raise JobDefinitionError(
                "a raw value needs exactly one field that takes no metadata, of type bytes or str",
                hint="declare it, with … | None if records have no value",
                fields=[f"{c.name}: {c.spark_type}" for c in columns],
            )

    def decode(self, records: DataFrame, columns: Sequence[Column]) -> DataFrame:
        (column,) = columns
        is_text = column.spark_type == "string"
        value = "CAST(value AS STRING)" if is_text else "value"
        wrong = f"NOT is_valid_utf8({value})" if is_text else "FALSE"
        error = f"CASE WHEN {wrong} THEN 'the value is not UTF-8' END"
        struct = f"named_struct({literal(column.name)}, {value})"
        return records.selectExpr("*", f"{struct} AS {VALUE}", f"{error} AS {VALUE_ERROR}")
