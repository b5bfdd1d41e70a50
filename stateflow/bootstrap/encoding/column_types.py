"""Casts of given columns, which change no value and no kind of value: Arrow would also cast texts to numbers."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from stateflow.errors import SchemaMismatch

_Test = Callable[[pa.DataType], bool]
types = pa.types


def cast(column: pa.Array, wanted: pa.DataType, name: str) -> pa.Array:
    """Returns a column as another type; raises SchemaMismatch if that would change a value, or its kind.

    Args:
        column: the column.
        wanted: the type.
        name: name of the column, for the error.
    """
    if column.type.equals(wanted):
        return column
    check_kind(column.type, wanted, name)
    try:
        return column.cast(wanted, safe=True)
    except (pa.ArrowException, ValueError, TypeError) as e:
        raise _mismatch(name, column.type, wanted, reason=str(e)[:200]) from e


def check_kind(given: pa.DataType, wanted: pa.DataType, name: str) -> None:
    """Raises SchemaMismatch unless both types have values of the same kind, such as integers of different sizes."""
    if not _is_same_kind(given, wanted):
        raise _mismatch(name, given, wanted)


def value_type(kind: pa.DataType) -> pa.DataType:
    """Returns the type of the values of a column, which may be encoded with a dictionary."""
    return kind.value_type if types.is_dictionary(kind) else kind


def is_text(kind: pa.DataType) -> bool:
    """Returns whether values are texts."""
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def is_binary(kind: pa.DataType) -> bool:
    """Returns whether values are bytes."""
    found = types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
    return bool(found or types.is_fixed_size_binary(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


_SCALARS: tuple[_Test, ...] = (
    is_text,
    is_binary,
    types.is_integer,
    types.is_floating,
    types.is_date,
    types.is_decimal,
    types.is_boolean,
    types.is_time,
    types.is_duration,
)


def _is_same_kind(given: pa.DataType, wanted: pa.DataType) -> bool:
    given = value_type(given)
    # Columns of nulls only have no other type.
    if given.equals(wanted) or types.is_null(given):
        return True
    if types.is_timestamp(wanted):
        return bool(types.is_timestamp(given) and (given.tz is None) == (wanted.tz is None))
    if types.is_struct(wanted):
        return bool(types.is_struct(given)) and all(
            _is_same_kind(given.field(field.name).type, field.type)
            for field in wanted
            # The encoder reports missing fields.
            if given.get_field_index(field.name) >= 0
        )
    if types.is_map(wanted):
        return bool(types.is_map(given)) and all(
            _is_same_kind(part, of)
            for part, of in ((given.key_type, wanted.key_type), (given.item_type, wanted.item_type))
        )
    if _is_list(wanted):
        return _is_list(given) and _is_same_kind(given.value_type, wanted.value_type)
    is_number = types.is_floating(wanted) and types.is_integer(given)
    return bool(is_number) or any(is_kind(given) and is_kind(wanted) for is_kind in _SCALARS)


def _mismatch(name: str, given: pa.DataType, wanted: pa.DataType, **facts: str) -> SchemaMismatch:
    return SchemaMismatch(
        "a column has another type than the state",
        hint="cast the column before it is written",
        column=name,
        wanted=str(wanted),
        given=str(given),
        **facts,
    )
