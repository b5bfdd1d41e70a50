"""A state's values as an Arrow column: the same bytes as `ValueSerializer` has, for many values at once."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.errors import JobDefinitionError, SchemaMismatch, StateError
from stateflow.serializers import VALUE_FORMAT, Codec, ValueSerializer, payload_start
from stateflow.state.msgpack_columns import read_columns, write_columns
from stateflow.state.shapes import Items, Leaf, Record, Shape, shape_of


class ColumnSerializer:
    """Encodes and decodes columns of one declared type.

    Args:
        value_type: as for `ValueSerializer`.

    Raises:
        JobDefinitionError: the type has no columns.
    """

    def __init__(self, value_type: Any) -> None:
        self._serializer: ValueSerializer[Any] = ValueSerializer(value_type)
        self._shape = shape_of(value_type)

    @property
    def type(self) -> pa.DataType:
        """The Arrow type of a column."""
        return self._shape.arrow

    def decode(self, stored: Sequence[bytes | None]) -> pa.Array:
        """A column of stored values, null where there is none. Raises CorruptFile when one is not of the declared
        type, StateError when Arrow has no place for it."""
        present = [data for data in stored if data is not None]
        values = self._decode(present)
        if len(present) == len(stored):
            return values
        there = np.fromiter((data is not None for data in stored), bool, len(stored))
        return values.take(pa.array(np.cumsum(there) - 1, mask=~there))

    def encode(self, values: pa.Array) -> list[bytes | None]:
        """The bytes of each value, None where it is null. Raises SchemaMismatch for another Arrow type, and for a null
        where the declared type has none."""
        values = self._checked(values)
        shape = self._shape
        if shape.by_columns and not isinstance(shape, Items):
            encoded: list[bytes | None] = list(write_columns(shape, values, VALUE_FORMAT))
            if values.null_count:
                nulls = values.is_null().to_pylist()
                encoded = [None if null else data for null, data in zip(nulls, encoded, strict=True)]
            return encoded
        objects = _objects(self._shape, values)
        return [None if value is None else self._serializer.encode(value) for value in objects]

    def _decode(self, stored: list[bytes]) -> pa.Array:
        shape = self._shape
        if not shape.by_columns or isinstance(shape, Items):
            return self._decode_each(stored)
        ends = np.cumsum(np.fromiter(map(len, stored), np.int64, len(stored)))
        starts = ends - np.diff(ends, prepend=0)
        data = b"".join(stored)
        behind = _payload_starts(data, starts, stored)
        values, understood = read_columns(shape, data, behind, ends)
        if understood.all():
            return values
        odd = np.flatnonzero(~understood)
        each = self._decode_each([stored[i] for i in odd.tolist()])
        order = np.argsort(np.concatenate([np.flatnonzero(understood), odd]))
        return pa.concat_arrays([values.filter(pa.array(understood)), each]).take(pa.array(order))

    def _decode_each(self, stored: Sequence[bytes]) -> pa.Array:
        values = [self._serializer.decode(data) for data in stored]
        try:
            return _column(self._shape, values)
        except (pa.ArrowException, OverflowError, ValueError, TypeError) as e:
            raise StateError("a stored value has no place in a column", hint="use the row API for this state",
                             declared=self._serializer.type_name, reason=str(e)[:200]) from e  # fmt: skip

    def _checked(self, values: pa.Array) -> pa.Array:
        declared = self._serializer.type_name
        try:
            fitting = values if values.type.equals(self.type) else _cast(values, self.type)
        except (pa.ArrowException, ValueError, TypeError) as e:
            raise SchemaMismatch("a column is not of the state's type", hint="cast it before it is written",
                                 declared=declared, wanted=str(self.type), given=str(values.type),
                                 reason=str(e)[:200]) from e  # fmt: skip
        _refuse_inner_nulls(self._shape, fitting, declared, "")
        return fitting


def columns_of(codec: Codec) -> ColumnSerializer:
    """Columns for values that `codec` writes. Raises JobDefinitionError when there are none."""
    if not isinstance(codec, ValueSerializer):
        raise JobDefinitionError("a state with a serializer of its own has no columns", hint="read it row by row, in a "
                                 "KeyedProcessFunction")  # fmt: skip
    return ColumnSerializer(codec.value_type)


def _cast(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Casts without loss; fields of a struct are told by name."""
    if pa.types.is_struct(wanted) and pa.types.is_struct(values.type):
        names = {field.name for field in wanted}
        found = [values.type.field(i).name for i in range(values.type.num_fields)]
        if set(found) != names or len(found) != len(names):
            raise TypeError(f"fields are {', '.join(found)}")
        children = [_cast(values.field(f.name), f.type) for f in wanted]
        nulls = values.is_null() if values.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(wanted), mask=nulls)
    return values if values.type.equals(wanted) else values.cast(wanted, safe=True)


def _refuse_inner_nulls(shape: Shape, values: pa.Array, declared: str, name: str) -> None:
    """Raises SchemaMismatch for a null in a field that has none; of the value itself it says that there is none."""
    if not isinstance(shape, Record):
        return
    rows = values.drop_null() if values.null_count else values
    for field, part in zip(shape.fields, shape.names, strict=True):
        inner, path = rows.field(part), f"{name}{part}"
        if inner.null_count and not field.nullable:
            raise SchemaMismatch("a field of a state is null that is declared without it", hint="fill it, or declare "
                                 "it as … | None", declared=declared, field=path)  # fmt: skip
        _refuse_inner_nulls(field, inner, declared, f"{path}.")


def _payload_starts(
    data: bytes, starts: np.ndarray[Any, Any], stored: Sequence[bytes]
) -> np.ndarray[Any, Any]:
    """Where the msgpack of each value begins."""
    # A byte more, so that an empty value has a first byte too: an unknown format.
    first = np.frombuffer(data + b"\0", np.uint8)[starts]
    if all(stored) and (first == VALUE_FORMAT[0]).all():
        return starts + 1
    return starts + np.fromiter(map(payload_start, stored), np.int64, len(stored))


# -- one value at a time --------------------------------------------------------------------------------------------


def _column(shape: Shape, values: Sequence[Any]) -> pa.Array:
    if isinstance(shape, Record):
        children = [
            _column(field, [None if v is None else getattr(v, name) for v in values])
            for name, field in zip(shape.names, shape.fields, strict=True)
        ]
        nulls = pa.array([v is None for v in values], pa.bool_()) if None in values else None
        return pa.StructArray.from_arrays(children, fields=list(shape.arrow), mask=nulls)
    if isinstance(shape, Items):
        flat = _column(shape.item, [item for value in values for item in value or ()])
        ends = np.cumsum([0, *(len(value or ()) for value in values)])
        nulls = pa.array([v is None for v in values], pa.bool_()) if None in values else None
        return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), flat, type=shape.arrow, mask=nulls)
    if shape.kind is datetime.datetime:
        _refuse_other_zone(shape, values)
    return pa.array(values, shape.arrow)


def _refuse_other_zone(shape: Leaf, values: Sequence[Any]) -> None:
    zoned = shape.arrow.tz is not None
    if any(v is not None and (v.tzinfo is not None) != zoned for v in values):
        raise ValueError(
            "moments with and without a zone are different: declare Annotated[datetime, Meta(tz=…)]"
        )


def _objects(shape: Shape, values: pa.Array) -> list[Any]:
    if isinstance(shape, Record):
        columns = [_objects(f, values.field(n)) for n, f in zip(shape.names, shape.fields, strict=True)]
        nulls = values.is_null().to_pylist()
        return [
            None if null else shape.row_class(**dict(zip(shape.names, row, strict=True)))
            for null, *row in zip(nulls, *columns, strict=True)
        ]
    if isinstance(shape, Items):
        items = _objects(shape.item, values.values)
        offsets, nulls = values.offsets.to_pylist(), values.is_null().to_pylist()
        cuts = pairwise(offsets) if nulls else ()
        return [None if null else items[a:b] for null, (a, b) in zip(nulls, cuts, strict=True)]
    return values.to_pylist()  # type: ignore[no-any-return]
