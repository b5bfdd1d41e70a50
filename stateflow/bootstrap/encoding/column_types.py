"""Casts of given columns, which change no value and no kind of value: Arrow would also cast texts to numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from stateflow.errors import SchemaMismatch
from stateflow.types.columns.conversion import with_scalars

_Test = Callable[[pa.DataType], bool]
types = pa.types
Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)


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
    if not is_same_kind(given, wanted):
        raise _mismatch(name, given, wanted)


def check_fields(given: pa.DataType, wanted: pa.DataType, name: str) -> None:
    """Raises SchemaMismatch for a column with a field that the values do not have: conversion would drop it.

    Args:
        given: type of the column.
        wanted: type of a column of the values; parts of another kind are not compared.
        name: name of the column, for the error.
    """
    path = _unknown_field(given, wanted)
    if path:
        raise SchemaMismatch(
            "a column has a field that the values of the state do not have",
            hint="rename or drop it",
            column=name,
            field=path,
            wanted=str(wanted),
        )


def _unknown_field(given: pa.DataType, wanted: pa.DataType) -> str:
    """Returns the path of a field that the wanted type does not have, such as ``items.price``; empty without one."""
    if types.is_struct(given) and types.is_struct(wanted):
        for field in given:
            if wanted.get_field_index(field.name) < 0:
                return str(field.name)
            if inner := _unknown_field(field.type, wanted.field(field.name).type):
                return f"{field.name}.{inner}"
    if types.is_map(given) and types.is_map(wanted):
        return _unknown_field(given.item_type, wanted.item_type)
    return _unknown_field(given.value_type, wanted.value_type) if _is_list(given) and _is_list(wanted) else ""


def has_repeated_keys(column: pa.Array) -> bool:
    """Returns whether a map in a value has a key twice: a dict has one of both entries only."""
    kind = column.type
    if not _has_map(kind):
        return False
    if types.is_map(kind):
        entries = column.cast(pa.list_(pa.struct([("key", kind.key_type), ("item", kind.item_type)])))
        rows, items = pc.list_parent_indices(entries), entries.flatten()
        keys, values = items.flatten()
        if types.is_floating(kind.key_type):
            keys = pc.add(keys, pa.scalar(0, kind.key_type))  # -0.0 equals 0.0
        if not types.is_nested(kind.key_type):
            distinct = pa.table({"row": rows, "key": keys}).group_by(["row", "key"]).aggregate([]).num_rows
            if distinct < len(rows):
                return True
        return has_repeated_keys(values)
    # Parts of a null value are null.
    if types.is_struct(kind):
        return any(map(has_repeated_keys, column.flatten()))
    return _is_list(kind) and has_repeated_keys(column.flatten())


def _has_map(kind: pa.DataType) -> bool:
    return types.is_map(kind) or any(_has_map(kind.field(at).type) for at in range(kind.num_fields))


def plain_values(column: pa.Array, name: str) -> list[object]:
    """Returns the values of a column as plain objects.

    Raises:
        SchemaMismatch: Python has no such object, as for a time in nanoseconds, or a date after the year 9999.
    """
    try:
        column = column.cast(with_scalars(column.type, _in_microseconds), safe=True)
        return list(column.to_pylist(maps_as_pydicts="strict"))
    except (pa.ArrowException, ValueError, TypeError, KeyError, OverflowError) as e:
        raise SchemaMismatch(
            "a column has a value that Python's types do not have",
            hint="round times to microseconds, and keep dates within the years 1 to 9999",
            column=name,
            type=str(column.type),
            reason=str(e)[:200],
        ) from e


def _in_microseconds(kind: pa.DataType) -> pa.DataType:
    if types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if types.is_duration(kind) and kind.unit == "ns":
        return pa.duration("us")
    return pa.time64("us") if types.is_time64(kind) and kind.unit == "ns" else kind


def without_dictionaries(rows: Rows) -> Rows:
    """Returns rows whose columns have no dictionaries, such as the categories of pandas, which may have a null."""
    fields = [pa.field(field.name, plain_type(field.type)) for field in rows.schema]
    if all(field.type.equals(plain.type) for field, plain in zip(rows.schema, fields, strict=True)):
        return rows
    columns = [column.cast(field.type) for column, field in zip(rows.columns, fields, strict=True)]
    return type(rows).from_arrays(columns, schema=pa.schema(fields))


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Returns a type without dictionaries, in any depth."""
    if types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if types.is_struct(kind):
        return pa.struct([field.with_type(plain_type(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), kind.item_field.with_type(plain_type(kind.item_type)))
    if _is_list(kind):
        plain = plain_type(kind.value_type)
        return kind if plain.equals(kind.value_type) else pa.list_(kind.value_field.with_type(plain))
    return kind


def is_text(kind: pa.DataType) -> bool:
    """Returns whether values are texts."""
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def is_binary(kind: pa.DataType) -> bool:
    """Returns whether values are bytes."""
    found = types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
    return bool(found or types.is_fixed_size_binary(kind))


def _is_list(kind: pa.DataType) -> bool:
    views = types.is_list_view(kind) or types.is_large_list_view(kind)
    return bool(views or types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


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


def is_same_kind(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Returns whether values of a type can be cast to another one without another meaning."""
    given = plain_type(given)
    # Columns of nulls only have no other type.
    if given.equals(wanted) or types.is_null(given):
        return True
    if types.is_timestamp(wanted):
        return bool(types.is_timestamp(given) and (given.tz is None) == (wanted.tz is None))
    if types.is_struct(wanted):
        # The encoder reports missing fields; a cast would drop others.
        return bool(types.is_struct(given)) and all(
            wanted.get_field_index(field.name) >= 0 and is_same_kind(field.type, wanted.field(field.name).type)
            for field in given
        )
    if types.is_map(wanted):
        return bool(types.is_map(given)) and all(
            is_same_kind(part, of)
            for part, of in ((given.key_type, wanted.key_type), (given.item_type, wanted.item_type))
        )
    if _is_list(wanted):
        return _is_list(given) and is_same_kind(given.value_type, wanted.value_type)
    if types.is_floating(wanted) and types.is_floating(given):
        # A cast would round, or make a large number infinite.
        return bool(given.bit_width <= wanted.bit_width)
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
