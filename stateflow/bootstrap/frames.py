"""The frames that state is written from, and casts of their columns.

A frame is a DataFrame of Spark, or an Arrow table or reader. A cast changes no value and no kind of value: Arrow would
also cast texts to numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeGuard, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from stateflow.errors import ConfigError, SchemaMismatch
from stateflow.types.columns.conversion import arrow_types_within, with_scalars
from stateflow.types.declared_types import python_type_of
from stateflow.types.descriptors import ListStateDescriptor, MapStateDescriptor, StateDescriptor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


types = pa.types
Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)


def cast_column(column: pa.Array, wanted: pa.DataType, name: str) -> pa.Array:
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
    if not any(map(types.is_map, arrow_types_within(kind))):
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


def _is_list(kind: pa.DataType) -> bool:
    views = types.is_list_view(kind) or types.is_large_list_view(kind)
    return bool(views or types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


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
    return bool(is_number) or python_type_of(given) is python_type_of(wanted) is not None


def _mismatch(name: str, given: pa.DataType, wanted: pa.DataType, **facts: str) -> SchemaMismatch:
    return SchemaMismatch(
        "the type of a column differs from the state's",
        hint="cast the column before it is written",
        column=name,
        wanted=str(wanted),
        given=str(given),
        **facts,
    )


ArrowFrame: TypeAlias = pa.Table | pa.RecordBatch | pa.RecordBatchReader
Frame: TypeAlias = "ArrowFrame | DataFrame"


VALUE, MAP_KEY, WRITTEN_AT, NAMESPACE, POSITION = "value", "map_key", "written_at", "namespace", "position"
TIME, DOMAIN, KEY_GROUP = "time", "domain", "key_group"
READ_ONLY = frozenset((KEY_GROUP, "subtask", "kind"))
"""Columns of `stateflow.read_state` that follow from others; keyed state has only the first one."""
_ROWS, _BYTES = 64 << 10, 16 << 20


@dataclass(frozen=True)
class KeyedStateFrame:
    """The rows of one keyed state: the entries of all keys.

    A value or an accumulator is a row, and so is each element of a list and each entry of a map. Frames of
    `stateflow.read_state` have the default names.

    Attributes:
        descriptor: the state, as the job declares it. Rows of a reducing state have the reduced values, rows of an
            aggregating state the accumulators.
        frame: a DataFrame of Spark, or an Arrow table, record batch or reader, which is read once.
        value: column of the values. By default ``value``; in a frame without that column, all columns without another
            meaning are the fields of the values.
        map_key: column of the keys of a map; if they have several types, it may have structs as for `namespace`.
        order_by: columns by which the elements of a list are ordered; those with equal values are in any order. By
            default ``position``; without it, the order of the rows of an Arrow frame. A DataFrame has no order.
        written_at: column of the times from which on the time to live counts, as timestamps or in milliseconds since
            1970. By default ``written_at``, next to the column ``value``; without it, the time of the writer.
        namespace: column of the namespaces, of one type or structs of ``type`` and ``value`` as in
            `stateflow.read_state`; null is the void one. By default ``namespace``, next to ``value``; without it, all
            are void.
    """

    descriptor: StateDescriptor
    frame: Frame
    value: str = ""
    map_key: str = MAP_KEY
    order_by: str | Sequence[str] = ()
    written_at: str = ""
    namespace: str = ""


@dataclass(frozen=True)
class StateColumns:
    """The columns of a frame by their meaning; empty for those that it does not have.

    Attributes:
        value: the column of the values.
        fields: without it, the columns that are the fields of the values.
        map_key: the keys of a map.
        order_by: the columns that order a list.
        written_at: the times of the entries.
        namespace: the namespaces.
        index: numbers of the elements of each list, which are in order.
    """

    value: str
    fields: tuple[str, ...] = ()
    map_key: str = ""
    order_by: tuple[str, ...] = ()
    written_at: str = ""
    namespace: str = ""
    index: str = ""


def is_spark(frame: Frame) -> TypeGuard[DataFrame]:
    """Returns whether a frame is a DataFrame of Spark; imports nothing."""
    return type(frame).__module__.startswith("pyspark.")


def check_frame(frame: Frame, what: str) -> None:
    """Raises ConfigError for an object that is not a frame; `what` names its state."""
    if not is_spark(frame) and not isinstance(frame, pa.Table | pa.RecordBatch | pa.RecordBatchReader):
        raise ConfigError(
            "state cannot be read from an object of this type",
            hint="pass a DataFrame of Spark, or an Arrow table, record batch or reader; pa.Table.from_pandas converts "
            "a DataFrame of pandas",
            of=what,
            type=type(frame).__name__,
        )


def column_names(frame: Frame) -> list[str]:
    """Returns the names of a frame's columns; raises ConfigError if one occurs twice."""
    names = list(frame.columns) if is_spark(frame) else list(frame.schema.names)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError("a frame has several columns of one name", hint="rename them", columns=twice)
    return names


def batches_of(frame: ArrowFrame) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a frame in batches of bounded size, without dictionaries."""
    if isinstance(frame, pa.RecordBatch):
        frame = pa.Table.from_batches([frame])
    batches = frame.to_batches(max_chunksize=_ROWS) if isinstance(frame, pa.Table) else frame
    for batch in batches:
        yield from map(without_dictionaries, slice_batch(batch))


def slice_batch(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a batch in batches of at most 64 Ki rows, and of about 16 MiB if rows have equal sizes."""
    if not batch.num_rows:
        return
    rows = max(1, min(_ROWS, _BYTES * batch.num_rows // (batch.nbytes or 1)))
    for first in range(0, batch.num_rows, rows):
        yield batch.slice(first, rows)


def columns_of(given: KeyedStateFrame, key: Sequence[str], declared: Set[str]) -> StateColumns:
    """Returns the columns of a state's frame by their meaning.

    Args:
        given: the frame.
        key: names of the key columns.
        declared: names of the fields of the state's values.

    Raises:
        ConfigError: the frame lacks a column, or has one without a meaning or with two of them.
    """
    names, state = column_names(given.frame), given.descriptor
    others = [name for name in names if name not in key]
    value = given.value or (VALUE if VALUE in others else "")
    order_by = (given.order_by,) if isinstance(given.order_by, str) else tuple(given.order_by)
    is_list = isinstance(state, ListStateDescriptor)
    if value:
        present = [name for name in (POSITION,) if name in others]
        order_by = order_by or tuple(present if is_list else ())
    found = StateColumns(
        value=value,
        map_key=given.map_key if isinstance(state, MapStateDescriptor) else "",
        order_by=order_by,
        written_at=given.written_at or (WRITTEN_AT if value and WRITTEN_AT in others else ""),
        namespace=given.namespace or (NAMESPACE if value and NAMESPACE in others else ""),
    )
    _check_present(state.name, names, [*key, *_used(found)])
    ignored = {KEY_GROUP} if value else {KEY_GROUP} - declared
    left = [name for name in others if name not in _used(found) and name not in ignored]
    if not value:
        _check_fields(state.name, left, sorted(declared & {*key, *_used(found)}))
        return StateColumns(**{**vars(found), "fields": tuple(left)})
    # What a state of another kind has in `stateflow.read_state`.
    unknown = [name for name in left if name not in (MAP_KEY, POSITION)]
    if unknown:
        raise ConfigError(
            "a state's frame has columns without a meaning",
            hint="drop them; or name the column of the values with value=…, and the others with order_by=…, …",
            state=state.name,
            columns=unknown,
        )
    return found


def _used(columns: StateColumns) -> list[str]:
    names = (columns.value, columns.map_key, *columns.order_by, columns.written_at, columns.namespace)
    return [name for name in names if name]


def _check_present(state: str, names: Sequence[str], wanted: Sequence[str]) -> None:
    missing = [name for name in wanted if name not in names]
    if missing:
        raise ConfigError(
            "a state's frame lacks columns",
            hint="rename columns of the frame, or name them in KeyedStateFrame",
            state=state,
            missing=missing,
            columns=list(names),
        )


def _check_fields(state: str, fields: Sequence[str], ambiguous: Sequence[str]) -> None:
    if ambiguous:
        raise ConfigError(
            "a column of a state's frame is a field of the values, and has another meaning",
            hint="pass the values as one column of structs, with value=…; or copy the column under another name",
            state=state,
            columns=list(ambiguous),
        )
    if not fields:
        raise ConfigError(
            "a state's frame has no column for its values",
            hint="name the column value, or pass value=…; or add a column for each field of the values",
            state=state,
        )
