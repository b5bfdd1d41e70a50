"""Writes keyed state from Arrow frames, without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
from msgspec.structs import replace

from stateflow.bootstrap.encoding.column_types import without_dictionaries
from stateflow.bootstrap.encoding.frames import ArrowFrame, Frame, batches_of, is_spark
from stateflow.bootstrap.keyed_files.sorting import EntrySorter
from stateflow.bootstrap.layout import KeyedOperator, Layout, StateRows, Target
from stateflow.scratch_folder import ScratchFolder
from stateflow.state.backends.entry_columns import EntryColumns
from stateflow.state.handles import SubtaskState
from stateflow.state.kinds.timer_index import TimeDomain

BUCKET_BYTES = 8 << 20
MOST_BUCKETS = 256


def write_local(
    operator: KeyedOperator, layout: Layout, target: Target, kept: Iterable[EntryColumns] = ()
) -> list[SubtaskState]:
    """Writes the keyed state of an operator in canonical files; returns the state of each subtask that has entries.

    Local disk has all entries, and memory a part of them.

    Args:
        operator: the operator.
        layout: its subtasks.
        target: where it is written.
        kept: stored entries, which are written as they are.

    Raises:
        DataError: a key occurs twice, or a value is null.
        SchemaMismatch, StateError, EntryTooLarge: a value cannot be stored.
    """
    with ScratchFolder() as scratch:
        sorter = EntrySorter(operator, layout, range(layout.parallelism), _buckets(operator), scratch.path)
        sorter.add(kept)
        for rows in operator.states:
            states = operator.state_encoder(rows, layout)
            sorter.add(states.encode(batch) for batch in batches_of(_ordered(rows)))
        earliest = _add_timers(operator, sorter)
        return [with_timers(state, earliest) for state in sorter.write_with_workers(target)]


def with_timers(state: SubtaskState, earliest: Mapping[TimeDomain, int]) -> SubtaskState:
    """Returns the state of a subtask with lower bounds of the times of its timers, by domain."""
    event, processing = (earliest.get(domain) for domain in (TimeDomain.EVENT_TIME, TimeDomain.PROCESSING_TIME))
    return replace(state, event_timer=event, processing_timer=processing)


def _add_timers(operator: KeyedOperator, sorter: EntrySorter) -> dict[TimeDomain, int]:
    if operator.timers is None:
        return {}
    timers = operator.timer_encoder()
    parts: Iterator[EntryColumns] = (timers.encode(batch) for batch in batches_of(_arrow(operator.timers)))
    sorter.add(parts)
    return timers.earliest


def _buckets(operator: KeyedOperator) -> int:
    """Returns the number of buckets: of about 8 MiB each, if the size of the frames is known."""
    frames = operator.frames
    if any(isinstance(frame, pa.RecordBatchReader) for frame in frames):
        return MOST_BUCKETS
    size: int = sum(_arrow(frame).nbytes for frame in frames)
    return min(MOST_BUCKETS, size // BUCKET_BYTES + 1)


def _ordered(rows: StateRows) -> ArrowFrame:
    """Returns a state's frame in the order of its elements, which needs all of it in memory if columns order them."""
    frame = _arrow(rows.frame)
    if not rows.columns.order_by:
        return frame
    if isinstance(frame, pa.RecordBatch):
        frame = pa.Table.from_batches([frame])
    table = frame if isinstance(frame, pa.Table) else frame.read_all()
    table = without_dictionaries(table)
    # A stable sort: rows with equal values stay in their order.
    return table.sort_by([(name, "ascending") for name in rows.columns.order_by])


def _arrow(frame: Frame) -> ArrowFrame:
    assert not is_spark(frame)
    return frame
