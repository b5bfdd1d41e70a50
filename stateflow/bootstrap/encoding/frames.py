"""The frames that state is written from: DataFrames of Spark, or Arrow tables and readers without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeGuard

import pyarrow as pa

from stateflow.bootstrap.encoding.column_types import without_dictionaries
from stateflow.errors import ConfigError
from stateflow.types.descriptors import ListStateDescriptor, MapStateDescriptor, StateDescriptor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
        descriptor: the state, as the job declares it. Rows of a reducing state have the reduced values, those of an
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
    """Raises ConfigError for an object that is no frame; `what` names its state."""
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
        yield from map(without_dictionaries, sliced(batch))


def sliced(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
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
