"""Serializer for columns of state values, with the same bytes as `ValueSerializer`."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stateflow.errors import JobDefinitionError, SchemaMismatch, StateError
from stateflow.state.columnar.binary_columns import from_list, is_valid, largest_of
from stateflow.state.columnar.iso_times import MAX_MICROS, MIN_MICROS
from stateflow.state.columnar.msgpack import read_columns, write_columns
from stateflow.types.columns.conversion import path_of_null, to_column, to_objects
from stateflow.types.columns.shapes import Items, Leaf, Record, Shape, UnsupportedType, leaves_of, shape_of
from stateflow.types.declared_types import describe_type
from stateflow.types.serializers import VALUE_FORMAT, Codec, ValueSerializer, payload_start

_LARGEST_DATA = (1 << 31) - 1_000
"""Size of values that are read together: a column of texts has offsets of 32 bits."""


class ColumnSerializer:
    """Encoder and decoder for columns of one declared type.

    Args:
        value_type: type of the values, as for `ValueSerializer`.

    Raises:
        JobDefinitionError: the type cannot be converted to an Arrow column.
    """

    def __init__(self, value_type: object) -> None:
        self._serializer: ValueSerializer[Any] = ValueSerializer(value_type)
        self._shape = _shape_of(value_type)

    @property
    def type(self) -> pa.DataType:
        """The Arrow type of a column."""
        return self._shape.arrow

    def decode(self, stored: Sequence[bytes | None]) -> pa.Array:
        """Returns a column of n stored values, null for None.

        Raises:
            CorruptFile: a value is not of the declared type.
            StateError: Arrow cannot represent a value.
        """
        present = [data for data in stored if data is not None]
        values = decode_column(self._shape, present, self._decode_each, self._serializer.unchecked_bytes)
        if len(present) == len(stored):
            return values
        is_present = np.fromiter((data is not None for data in stored), bool, len(stored))
        return values.take(pa.array(np.cumsum(is_present) - 1, mask=~is_present))

    def encode(self, values: pa.Array) -> list[bytes | None]:
        """Returns the bytes of each value, None for null.

        Raises:
            SchemaMismatch: the column has another Arrow type, or a null that the declared type does not allow.
        """
        values = self._checked(values)
        together = self._encode_together(values)
        if together is None:
            return self._encode_each(values)
        encoded: list[bytes | None] = together.to_pylist()
        if values.null_count:
            nulls = values.is_null().to_pylist()
            encoded = [None if null else data for null, data in zip(nulls, encoded, strict=True)]
        return encoded

    def encode_column(self, values: pa.Array) -> pa.LargeBinaryArray:
        """Returns the bytes of each value of a column without nulls, as a column; raises as `encode`."""
        values = self._checked(values)
        together = self._encode_together(values)
        if together is not None:
            return together
        return from_list([data for data in self._encode_each(values) if data is not None])

    def _encode_together(self, values: pa.Array) -> pa.LargeBinaryArray | None:
        """Returns encoded values, arbitrary for null; None for values that have to be checked one by one."""
        shape = self._shape
        if not (shape.by_columns and isinstance(shape, Leaf | Record)) or not _is_storable(shape, values):
            return None
        encoded = write_columns(shape, values, VALUE_FORMAT)
        return encoded if largest_of(encoded) <= self._serializer.unchecked_bytes else None

    def _encode_each(self, values: pa.Array) -> list[bytes | None]:
        objects = to_objects(self._shape, values)
        return [None if value is None else self._serializer.encode(value) for value in objects]

    def _decode_each(self, stored: Sequence[bytes]) -> pa.Array:
        values = [self._serializer.decode(data) for data in stored]
        try:
            _check_zones(self._shape, values)
            return to_column(self._shape, values)
        except (pa.ArrowException, OverflowError, ValueError, TypeError) as e:
            raise StateError(
                "a stored value cannot be represented in an Arrow column",
                hint="read this state row by row, in a KeyedProcessFunction",
                declared=self._serializer.type_name,
                reason=str(e)[:200],
            ) from e

    def _checked(self, values: pa.Array) -> pa.Array:
        declared = self._serializer.type_name
        try:
            fitting = values if values.type.equals(self.type) else _cast(values, self.type)
        except (pa.ArrowException, ValueError, TypeError) as e:
            raise SchemaMismatch(
                "a column does not have the type of the state",
                hint="cast the column before writing it",
                declared=declared,
                wanted=str(self.type),
                given=str(values.type),
                reason=str(e)[:200],
            ) from e
        path = path_of_null(self._shape, fitting)
        if path is not None:
            raise SchemaMismatch(
                "a field of a state is null but not declared as nullable",
                hint="fill the nulls, or declare the field as … | None",
                declared=declared,
                field=path.lstrip("."),
            )
        return fitting


def decode_column(
    shape: Shape,
    stored: list[bytes],
    decode_each: Callable[[Sequence[bytes]], pa.Array],
    unchecked_bytes: int = _LARGEST_DATA,
) -> pa.Array:
    """Returns a column of stored values; those with the expected layout are decoded without Python objects.

    Args:
        shape: shape of the values.
        stored: the stored values.
        decode_each: decodes values one by one; its errors are raised.
        unchecked_bytes: size of values up to which decoding them takes neither too much memory nor too much time.
    """
    if not (shape.by_columns and isinstance(shape, Leaf | Record)):
        return decode_each(stored)
    sizes = np.fromiter(map(len, stored), np.int64, len(stored))
    ends = np.cumsum(sizes)
    if sizes.max(initial=0) > unchecked_bytes or sizes.sum() > _LARGEST_DATA:
        return decode_each(stored)
    data = b"".join(stored)
    payloads = _payload_starts(data, ends - sizes, stored)
    try:
        values, understood = read_columns(shape, data, payloads, ends)
    except pa.ArrowInvalid:
        # A text is not valid UTF-8: the error names it.
        return decode_each(stored)
    if understood.all():
        return values
    odd = np.flatnonzero(~understood)
    each = decode_each([stored[i] for i in odd.tolist()])
    order = np.argsort(np.concatenate([np.flatnonzero(understood), odd]))
    return pa.concat_arrays([values.filter(pa.array(understood)), each]).take(pa.array(order))


def _is_storable(shape: Leaf | Record, values: pa.Array) -> bool:
    """Returns whether texts are valid, and times are such that Python can represent."""
    if isinstance(shape, Record):
        parts = ((field, values.field(at)) for at, field in enumerate(shape.fields))
        return all(_is_storable(field, part) for field, part in parts if isinstance(field, Leaf | Record))
    if shape.kind is str:
        return is_valid(values)
    if shape.kind is not datetime.datetime or values.null_count == len(values):
        return True
    bounds = pc.min_max(values.cast(pa.int64()))
    return bool(bounds["min"].as_py() >= MIN_MICROS and bounds["max"].as_py() <= MAX_MICROS)


def _shape_of(value_type: object) -> Shape:
    try:
        return shape_of(value_type)
    except UnsupportedType as e:
        raise JobDefinitionError(
            "a state's type cannot be converted to an Arrow column",
            hint=e.hint
            or "for a vectorized function, declare numbers, strings, bytes, dates, times, Decimals with "
            "precision, Enums, UUIDs, lists or dicts of them, or a class with such fields",
            type=describe_type(value_type),
            part=e.part,
        ) from e


def columns_of(codec: Codec) -> ColumnSerializer:
    """Returns the column serializer for the values of `codec`; raises JobDefinitionError if there is none."""
    if not isinstance(codec, ValueSerializer):
        raise JobDefinitionError(
            "a state with a custom serializer cannot be converted to an Arrow column",
            hint="read this state row by row, in a KeyedProcessFunction",
        )
    return ColumnSerializer(codec.value_type)


def _cast(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Casts without loss; matches fields of a struct by name."""
    if pa.types.is_struct(wanted) and pa.types.is_struct(values.type):
        names = {field.name for field in wanted}
        found = [values.type.field(i).name for i in range(values.type.num_fields)]
        if set(found) != names or len(found) != len(names):
            raise TypeError(f"fields are {', '.join(found)}")
        children = [_cast(values.field(f.name), f.type) for f in wanted]
        nulls = values.is_null() if values.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(wanted), mask=nulls)
    return values if values.type.equals(wanted) else values.cast(wanted, safe=True)


def _check_zones(shape: Shape, values: Sequence[Any]) -> None:
    """Raises ValueError for a datetime with a time zone in a column without one, or the reverse."""
    if not any(leaf.kind is datetime.datetime for leaf in leaves_of(shape)):
        return
    present = [value for value in values if value is not None]
    if isinstance(shape, Leaf):
        zoned = shape.arrow.tz is not None
        if any((value.tzinfo is not None) != zoned for value in present):
            raise ValueError("datetimes with and without time zone are mixed: declare Annotated[datetime, Meta(tz=…)]")
    elif isinstance(shape, Record):
        for name, field in zip(shape.names, shape.fields, strict=True):
            _check_zones(field, [getattr(value, name) for value in present])
    elif isinstance(shape, Items):
        _check_zones(shape.item, [item for value in present for item in value])
    else:
        _check_zones(shape.key, [key for value in present for key in value])
        _check_zones(shape.value, [item for value in present for item in value.values()])


def _payload_starts(data: bytes, starts: NDArray[np.int64], stored: Sequence[bytes]) -> NDArray[np.int64]:
    """Returns the offset of each value's msgpack."""
    # One more byte, so that an empty value has a first byte too, of an unknown format.
    first = np.frombuffer(data + b"\0", np.uint8)[starts]
    if all(stored) and (first == VALUE_FORMAT[0]).all():
        return starts + 1
    return starts + np.fromiter(map(payload_start, stored), np.int64, len(stored))
