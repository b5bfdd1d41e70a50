"""The schema of a stream's rows, and the content of a row that identifies it to operators which retract rows."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, cast
from urllib.parse import unquote

import msgspec
import pyarrow as pa

from stateflow.errors import CorruptInput, JobDefinitionError, cut
from stateflow.helpers import closest_first
from stateflow.types.columns.conversion import with_nullable_parts
from stateflow.types.columns.shapes import (
    Entries,
    Items,
    Leaf,
    Record,
    Shape,
    UnsupportedType,
    parts_of,
    shape_of,
    without_classes,
)
from stateflow.types.decoders import json_decoder

_SUPPORTED = (
    "int, float, str, bool, bytes, date, time, datetime, timedelta, UUID, Annotated[Decimal, precision(12, scale=2)], "
    "an Enum of texts or of integers, another such class, lists and dicts of these, and each of these | None"
)


@dataclass(frozen=True)
class Column:
    """A column of a row class: its name, and the shape of its values."""

    name: str
    shape: Shape

    @property
    def nullable(self) -> bool:
        """Whether it may be null."""
        return self.shape.nullable

    @property
    def spark_type(self) -> str:
        """Spark's name of its type, with quoted names of the fields of nested types."""
        return self.shape.spark

    @property
    def dtype(self) -> str:
        """Spark's name of its type in `DataFrame.dtypes`."""
        return self.shape.spark.replace("`", "")

    def check_sortable(self) -> None:
        """Raises JobDefinitionError if rows cannot be ordered by the column, which is not a scalar."""
        if not isinstance(self.shape, Leaf):
            raise JobDefinitionError(
                "rows cannot be ordered by a column of this type",
                hint="add a column with a part of it in a transform or map",
                column=self.name,
                type=self.dtype,
            )

    @cached_property
    def arrow_type(self) -> pa.DataType:
        """Its Arrow type. All parts of a nested type are nullable, as in the rows that Spark reads."""
        return with_nullable_parts(self.shape.arrow)


@dataclass(frozen=True)
class RowSchema:
    """A row class and its columns, in order."""

    row_class: type[Any]
    columns: tuple[Column, ...]

    @classmethod
    def of(cls, row_class: type[object]) -> RowSchema:
        """Returns the columns of a `msgspec.Struct` or dataclass.

        A datetime is a timestamp without time zone; ``Annotated[datetime, msgspec.Meta(tz=True)]`` is a timestamp in
        UTC.

        Raises:
            JobDefinitionError: the class or the type of a field is not supported.
        """
        names = _field_names(row_class)
        _check_names(row_class, names)
        hints = typing.get_type_hints(row_class, include_extras=True)
        return cls(row_class, tuple(_column(row_class, name, hints[name]) for name in names))

    def __deepcopy__(self, memo: object) -> RowSchema:
        """Returns the object itself, which is immutable: tasks without Spark deep-copy operators and their schemas."""
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in order."""
        return tuple(c.name for c in self.columns)

    @property
    def shape(self) -> Record:
        """The shape of the row class."""
        return Record(self.row_class, self.names, tuple(c.shape for c in self.columns), self.names)

    @cached_property
    def arrow(self) -> pa.Schema:
        """The columns as an Arrow schema."""
        return pa.schema([pa.field(c.name, c.arrow_type, nullable=c.nullable) for c in self.columns])

    def without_classes(self) -> RowSchema:
        """Returns the same columns, without classes of the user: who unpickles them need not import these."""
        return RowSchema(object, tuple(Column(c.name, without_classes(c.shape)) for c in self.columns))

    @property
    def ddl(self) -> str:
        """The columns in Spark's DDL syntax."""
        return ", ".join(f"`{c.name}` {c.spark_type}" for c in self.columns)

    def possible_renames(self, existing: Sequence[str]) -> Iterator[tuple[int, Column]]:
        """Yields position and column for each column that is new, at the position of one that is not declared.

        If the types are equal, it is more likely that a column was renamed than that one was added and one removed.

        Args:
            existing: the columns of a table or of files, in order.
        """
        known, declared = ({name.lower() for name in names} for names in (existing, self.names))
        for at, (name, column) in enumerate(zip(existing, self.columns, strict=False)):
            if name.lower() not in declared and column.name.lower() not in known:
                yield at, column

    def column(self, name: str) -> Column:
        """Returns the column `name`. Raises JobDefinitionError with the existing names, the most similar first."""
        for column in self.columns:
            if column.name == name:
                return column
        raise JobDefinitionError(
            "the column does not exist",
            hint=f"columns are {', '.join(closest_first(str(name), self.names))}",
            column=name,
            row_class=self.row_class.__name__,
        )


def check_nullable(made: Mapping[str, bool], output: RowSchema) -> None:
    """Checks that an output class can hold the nulls of its rows.

    Args:
        made: for each column, whether its values may be null.
        output: the columns of the class.

    Raises:
        JobDefinitionError: a column of the class is never null, and its values may be.
    """
    for column in output.columns:
        if made.get(column.name) and not column.nullable:
            raise JobDefinitionError(
                "a column of the output class is declared without None, and its values may be null",
                hint="declare the column with | None, or the input column without, after a filter or map",
                column=column.name,
                output=output.row_class.__name__,
            )


def _field_names(row_class: type[object]) -> list[str]:
    if isinstance(row_class, type) and issubclass(row_class, msgspec.Struct):
        return list(row_class.__struct_fields__)
    if dataclasses.is_dataclass(row_class):
        return [f.name for f in dataclasses.fields(row_class)]
    raise JobDefinitionError(
        "a row class must be a msgspec.Struct or a dataclass",
        hint="declare one field per column",
        given=repr(row_class),
    )


def _check_names(row_class: type[object], names: list[str]) -> None:
    """Raises JobDefinitionError for names that differ only in case, as Spark ignores it, or that the runtime uses."""
    folded = [name.lower() for name in names]
    twice = sorted(n for n in names if folded.count(n.lower()) > 1)
    taken = [n for n in names if n.lower().startswith("_sf_")]
    if twice or taken:
        raise JobDefinitionError(
            "a row class has field names that cannot be column names",
            hint="use names that differ in more than case and do not begin with _sf_",
            row_class=row_class.__name__,
            fields=twice or taken,
        )


def _column(row_class: type[object], name: str, hint: object) -> Column:
    try:
        shape = shape_of(_none_outside(hint))
    except TypeError as e:
        own = e.hint if isinstance(e, UnsupportedType) else ""
        raise JobDefinitionError(
            "a field's type is not supported",
            hint=own or f"use {_SUPPORTED}",
            field=f"{row_class.__name__}.{name}",
            type=str(hint),
            reason=str(e)[:200],
        ) from e
    _check_filled(row_class, name, shape)
    return Column(name, shape)


def _check_filled(row_class: type[object], name: str, shape: Shape) -> None:
    """Raises JobDefinitionError for a class without fields, for which files have no column."""
    if isinstance(shape, Record):
        try:
            _check_names(shape.row_class, list(shape.names))
        except JobDefinitionError as e:
            e.add_facts(field=f"{row_class.__name__}.{name}", type=shape.row_class.__name__)
            raise
        if not shape.names:
            raise JobDefinitionError(
                "a class without fields cannot be a column",
                hint="declare a field",
                field=f"{row_class.__name__}.{name}",
                type=shape.row_class.__name__,
            )
    for part in parts_of(shape):
        _check_filled(row_class, name, part)


def _none_outside(hint: object) -> object:
    """Returns ``Annotated[T, …] | None`` for ``Annotated[T | None, …]``, which msgspec does not support."""
    if typing.get_origin(hint) is not Annotated:
        return hint
    bare, *extras = typing.get_args(hint)
    if typing.get_origin(bare) not in (typing.Union, types.UnionType):
        return hint
    others = tuple(a for a in typing.get_args(bare) if a is not type(None))
    if len(others) != 1:
        return hint
    return Annotated[(others[0], *extras)] | None


_DIGEST_BYTES = 20
_NAN = float("nan")
_ENCODER = msgspec.msgpack.Encoder()


@dataclass(frozen=True)
class RowIdentity:
    """The values that equal rows have in common, whatever the order of their fields and of the entries of their dicts.

    NaN equals NaN; null equals null, and nothing else. As in Flink, 0.0 and -0.0 are different.

    Attributes:
        columns: the columns that are compared, by name.
    """

    columns: tuple[Column, ...]

    @classmethod
    def of(cls, columns: Iterable[Column]) -> RowIdentity:
        """Returns the identity by some columns, in any order."""
        return cls(tuple(sorted(columns, key=lambda column: column.name)))

    @property
    def text(self) -> str:
        """Names and types of the columns, on which the digests depend, but not whether a column may be null."""
        return ", ".join(f"{column.name} {_type_text(column.shape)}" for column in self.columns)

    def content(self, row: object) -> bytes:
        """Returns the values of the columns as bytes."""
        return _ENCODER.encode([_plain(column.shape, getattr(row, column.name)) for column in self.columns])

    def digest(self, row: object) -> bytes:
        """Returns 20 bytes that equal rows have in common, and no others."""
        return hashlib.blake2b(self.content(row), digest_size=_DIGEST_BYTES).digest()


def _plain(shape: Shape, value: object) -> object:
    """Returns a value whose msgpack depends on neither an order nor the bits of NaN."""
    if isinstance(shape, Leaf):
        return value if value == value else _NAN
    if value is None:
        return None
    if isinstance(shape, Items):
        return [_plain(shape.item, item) for item in cast("list[object]", value)]
    if isinstance(shape, Entries):
        entries = cast("dict[object, object]", value).items()
        # No two keys have the same bytes, so that values are not compared.
        return sorted([_ENCODER.encode(_plain(shape.key, key)), _plain(shape.value, each)] for key, each in entries)
    return [_plain(field, getattr(value, name)) for _, name, field in _fields(shape)]


def _type_text(shape: Shape) -> str:
    """Returns Spark's name of a type, with the fields of classes by name."""
    if isinstance(shape, Items):
        return f"array<{_type_text(shape.item)}>"
    if isinstance(shape, Entries):
        return f"map<{_type_text(shape.key)},{_type_text(shape.value)}>"
    if isinstance(shape, Record):
        return f"struct<{','.join(f'{key}:{_type_text(field)}' for key, _, field in _fields(shape))}>"
    return shape.spark


def _fields(shape: Record) -> Iterator[tuple[str, str, Shape]]:
    """Yields stored name, name and shape of each field, by stored name, or by position if that is how it is stored."""
    fields = zip(shape.keys or shape.names, shape.names, shape.fields, strict=True)
    yield from sorted(fields, key=lambda field: field[0]) if shape.keys else fields


SPLIT = "_sf_split"
"""The name of the part of the source that the row comes from, such as a partition of Kafka."""
REJECTED = "_sf_rejected"
"""The record that cannot be decoded, as a struct; null for all other rows."""
ARRIVED = "_sf_arrived"
"""Where a row that Spark reads comes from; see `ARRIVAL`. Only in frames that are not in the order of arrival."""
_MARK = "stateflow-rejected"
_MARKED = re.compile(rf"\[{_MARK}:([A-F0-9]+)\]")
_SHOWN = 500
"""Characters of a record's key and value that an error shows."""


class RejectedRecord(msgspec.Struct, frozen=True):
    """A record of a source that cannot be decoded.

    Attributes:
        topic: its topic; the name of its partition, in a source without topics.
        partition: number of its partition; 0 in a source without topics.
        offset: its offset in the partition.
        key: its key, in the form of `value`; None without one.
        value: its value as text, or ``base64:`` and the encoded bytes if it is not UTF-8; None without one.
        reason: why it cannot be decoded.
    """

    topic: str
    partition: int
    offset: int
    key: str | None
    value: str | None
    reason: str


class UndecodableRecord(ValueError):
    """A record cannot be decoded; the text is the reason."""


def with_hidden_columns(schema: RowSchema, *, rejects: bool) -> RowSchema:
    """Returns the columns of a source's frame: those of its rows, `SPLIT`, and `REJECTED` if it rejects records."""
    hidden = [Column(SPLIT, shape_of(str))]
    if rejects:
        hidden.append(Column(REJECTED, shape_of(RejectedRecord | None)))
    return replace(schema, columns=(*schema.columns, *hidden))


def without_hidden_columns(schema: RowSchema) -> RowSchema:
    """Returns the columns of a source's rows, without the columns that `with_hidden_columns` adds."""
    return replace(schema, columns=tuple(c for c in schema.columns if c.name not in (SPLIT, REJECTED)))


ARRIVAL = f"named_struct('file', input_file_name(), 'block', input_file_block_start()) AS {ARRIVED}"
"""SQL expression of `ARRIVED` for a frame that reads files."""


def arrival_place(uri: str) -> str:
    """Returns the name of a file in an order of arrival, whatever Spark percent-encodes."""
    return re.sub("^file:/+", "file:/", unquote(uri))


PLACE = f"url_decode(replace(regexp_replace({ARRIVED}.file, '^file:/+', 'file:/'), '+', '%2B'))"
"""SQL expression of the `arrival_place` of a row."""


def failing_filter(guard: str) -> str:
    """Returns the SQL condition of a filter that fails for a rejected record, and keeps all other rows.

    Args:
        guard: a condition that is always true, on a column that is not deterministic for Spark. Without it, Spark
            would move the filter below the decoding, and decode each record twice.
    """
    fields = (f"'{name}', {_field(name)}" for name in RejectedRecord.__struct_fields__)
    json = f"to_json(named_struct({', '.join(fields)}), map('ignoreNullFields', 'false'))"
    text = f"concat('[{_MARK}:', hex(encode({json}, 'UTF-8')), ']')"
    return f"CASE WHEN {REJECTED} IS NOT NULL AND {guard} THEN raise_error({text}) ELSE TRUE END"


def _field(name: str) -> str:
    # An error with a record of many megabytes would pass through every log.
    return f"left({REJECTED}.{name}, {_SHOWN})" if name in ("key", "value") else f"{REJECTED}.{name}"


def parse_rejection(text: str) -> CorruptInput | None:
    """Returns the error about the record that `failing_filter` found; None without one.

    Args:
        text: Spark's error.
    """
    found = _MARKED.search(text)
    if found is None:
        return None
    try:
        record = json_decoder(RejectedRecord).decode(bytes.fromhex(found[1]))
    except (msgspec.DecodeError, ValueError):
        return None
    return rejection_error(record)


def rejection_error(record: RejectedRecord) -> CorruptInput:
    """Returns the error that ends a run for a rejected record."""
    return CorruptInput(
        "a record of a source cannot be decoded",
        hint="correct the declared columns or the format; to continue without such records, declare "
        "on_error=DeadLetters(budget=…) on the source",
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        reason=record.reason,
        value=record.value if record.value is None else cut(record.value, _SHOWN),
    )
