"""The values of a frame, encoded as a state's serializer encodes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TypeVar

import pyarrow as pa

from stateflow.bootstrap.encoding.column_types import (
    cast,
    check_fields,
    check_kind,
    has_repeated_keys,
    is_same_kind,
    plain_values,
)
from stateflow.bootstrap.encoding.conversion import converted
from stateflow.bootstrap.encoding.frames import StateColumns
from stateflow.bootstrap.encoding.plain_values import Restoration, restoration_of, serialized_bytes
from stateflow.config.state_settings import EntryLimits
from stateflow.errors import DataError, JobDefinitionError, StateflowError
from stateflow.query.columns.value_types import value_type
from stateflow.state.columnar.binary_columns import from_list, largest_of
from stateflow.state.columnar.column_serializer import ColumnSerializer, columns_of
from stateflow.state.columnar.key_encoding import encode_key_columns
from stateflow.state.columnar.key_parts import parts_of_column
from stateflow.state.entry_limits import value_too_large
from stateflow.state.kinds.maps.map_keys import MapKeys
from stateflow.state.schema.describe import type_schema
from stateflow.types.serializers import Codec, CustomValueSerializer, ValueSerializer

T = TypeVar("T")


@contextmanager
def state_named(name: str) -> Iterator[None]:
    """Adds the name of a state to errors."""
    try:
        yield
    except StateflowError as e:
        e.add_facts(state=name)
        raise


def field_names(codec: Codec) -> frozenset[str]:
    """Returns the names of the columns that values have if their fields are columns; none for values without fields."""
    kind = value_type(type_schema(codec.value_type)).arrow if isinstance(codec, ValueSerializer) else None
    return frozenset(field.name for field in kind) if kind is not None and pa.types.is_struct(kind) else frozenset()


class Values:
    """Encoder of the values of one state.

    Args:
        codec: the state's serializer.
        columns: the columns of the frame.
        limits: the largest values that may be written.
        name: name of the state, for errors.
    """

    def __init__(self, codec: Codec, columns: StateColumns, limits: EntryLimits, name: str) -> None:
        self._codec = codec
        self._columns = columns
        self._limits = limits
        self._name = name

    @cached_property
    def _by_columns(self) -> ColumnSerializer | None:
        try:
            return columns_of(self._codec)
        except JobDefinitionError:
            # The type, such as a set, has no Arrow column: its values are converted one by one.
            return None

    @cached_property
    def _restoration(self) -> Restoration | None:
        return restoration_of(self._codec) if isinstance(self._codec, ValueSerializer) else None

    def encode(self, batch: pa.RecordBatch) -> pa.LargeBinaryArray:
        """Returns the encoded value of each row.

        Raises:
            DataError: a value is null.
            SchemaMismatch, StateError: a value is not of the declared type, or cannot be stored.
            EntryTooLarge: a value is larger than its limit.
        """
        column = self._column(batch)
        if column.null_count:
            raise DataError("a value of state is null", hint="filter these rows: a key without a row has no value")
        if has_repeated_keys(column):
            raise DataError("a map in a value has a key twice", hint="drop one of the entries")
        if self._by_columns is None or self._is_converted(column.type, self._by_columns.type):
            encoded = from_list(self._encode_each(column))
        else:
            check_kind(column.type, self._by_columns.type, self._columns.value or "the fields of the values")
            encoded = self._by_columns.encode_column(column)
        if (size := largest_of(encoded)) > self._limits.value_bytes:
            raise value_too_large(self._name, size, self._limits)
        return encoded

    def _is_converted(self, given: pa.DataType, wanted: pa.DataType) -> bool:
        """Returns whether values are converted one by one, although their type has columns of type `wanted`."""
        restoration = self._restoration
        if restoration is None or restoration.removes_nulls:
            return restoration is not None
        return not is_same_kind(given, wanted) and is_same_kind(given, restoration.type)

    def _column(self, batch: pa.RecordBatch) -> pa.Array:
        names = self._columns.fields
        if not names:
            return batch.column(self._columns.value)
        columns = [batch.column(name) for name in names]
        fields = [pa.field(name, column.type) for name, column in zip(names, columns, strict=True)]
        return pa.StructArray.from_arrays(columns, fields=fields)

    def _encode_each(self, column: pa.Array) -> list[bytes]:
        codec = self._codec
        if isinstance(codec, CustomValueSerializer) and (stored := serialized_bytes(column, codec)) is not None:
            return stored
        name = self._columns.value or "the fields of the values"
        values = plain_values(column, name)
        restoration = self._restoration
        if restoration is None or not isinstance(codec, ValueSerializer):
            return [codec.encode(value) for value in values]
        check_fields(column.type, restoration.type, name)
        if (restore := restoration.function) is not None:
            values = [restore(value) for value in values]
        return [codec.encode(converted(value, codec)) for value in values]


def encode_map_keys(
    keys: MapKeys[T], wanted: ColumnSerializer | None, column: pa.Array, name: str
) -> pa.LargeBinaryArray:
    """Returns the encoded keys of the entries of a map.

    Args:
        keys: the map's encoder of one key.
        wanted: the column serializer of the map's keys; None if they may have several types.
        column: the keys; null is the key None of several types.
        name: name of the column, for errors.

    Raises:
        DataError: a key is null.
        SchemaMismatch, StateError: a key is not of the declared type.
    """
    if wanted is None or pa.types.is_struct(column.type):
        return from_list([keys.encode(key) for key in parts_of_column(column, name)])
    if column.null_count:
        raise DataError("a key of a map is null", hint="filter these rows", column=name)
    column = cast(column, wanted.type, name)
    keys.check_column(column)
    return encode_key_columns([column])
