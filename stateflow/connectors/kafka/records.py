"""Rows as records of Kafka: topic, key, value, headers and timestamp of each row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import pyarrow as pa

from stateflow.api.schema import Column, RowSchema
from stateflow.connectors.json_rows import encode, json_objects
from stateflow.connectors.kafka.columns import KafkaHeader
from stateflow.errors import DataError, JobDefinitionError
from stateflow.types.columns.row_kind import RETRACTIONS

Value = Literal["json", "raw"]
JSON: Value = "json"
RAW: Value = "raw"
_TEXT = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())

Headers = list[tuple[str, str | bytes | None]]


class Record(msgspec.Struct, frozen=True):
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
        topic: the topic, or that of rows whose topic column is null.
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
        if self.headers and (column := schema.column(self.headers)).arrow_type != _HEADERS.arrow_type:
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

    def records(self, rows: pa.RecordBatch) -> Iterator[Record]:
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
            yield Record(topics(number), keys(number), value, headers(number), timestamp)

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


(_HEADERS,) = RowSchema.of(_HeadersRow).columns


def _check_type(column: Column, types: tuple[str, ...], declared: str) -> None:
    if column.spark_type not in types:
        raise _misfit(column, declared)


def _misfit(column: Column, declared: str) -> JobDefinitionError:
    return JobDefinitionError(
        "a column does not have the type of the part of a record that it becomes",
        hint=f"declare it as {declared}",
        column=column.name,
        type=column.spark_type,
    )


def _texts(column: pa.Array) -> Callable[[int], bytes | None]:
    values: list[str | bytes | None] = column.to_pylist()
    return lambda number: value.encode() if isinstance(value := values[number], str) else value


def _nothing(number: int) -> None:
    return None
