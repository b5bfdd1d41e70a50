"""The result of a replay."""

from __future__ import annotations

from dataclasses import dataclass

from stateflow.replay.key_trace import TracedCall
from stateflow.replay.state_diff import EntryChange, StateChanges


@dataclass(frozen=True)
class EmittedRows:
    """Rows that a sink would have published.

    Attributes:
        sink: uid of the sink.
        count: number of rows.
        rows: the first of them, by column.
    """

    sink: str
    count: int
    rows: list[dict[str, object]]


@dataclass(frozen=True)
class BatchReport:
    """A batch that ran again.

    Attributes:
        processing_time: its processing time, in ISO 8601.
        rows_in: rows that the sources had.
        start, end: the positions of the sources before and after it, by uid.
    """

    processing_time: str
    rows_in: int
    start: dict[str, str]
    end: dict[str, str]


@dataclass(frozen=True)
class KeyReport:
    """Calls and state of one key of an operator.

    Attributes:
        operator: uid of the operator.
        key: the values of its key columns.
        calls: the first calls of its function for the key, in order.
        state: the first entries of the key's state that the batches have changed, and the first that they have not.
        call_count: number of calls.
        entry_count: number of entries of the key's state.
    """

    operator: str
    key: tuple[object, ...]
    calls: tuple[TracedCall, ...]
    state: tuple[EntryChange, ...]
    call_count: int
    entry_count: int


@dataclass(frozen=True)
class ReplayReport:
    """The result of a replay.

    Attributes:
        batch: id of the checkpoint whose batches ran again.
        base: id of the checkpoint that they started from; 0 for none.
        batches: the batches, oldest first.
        deviation: what differs from the original run, in words; empty for nothing that is known.
        emitted: the rows for each sink, by uid of the sink in order.
        state: the changes of the state by the batches.
        difference: the differences of the resulting state from the checkpoint's; empty if they are equal.
        keys: what the operators did for the key of the request; empty without one.
    """

    batch: int
    base: int
    batches: tuple[BatchReport, ...]
    deviation: str
    emitted: tuple[EmittedRows, ...]
    state: StateChanges
    difference: StateChanges
    keys: tuple[KeyReport, ...] = ()

    @property
    def is_same(self) -> bool:
        """Whether the replay led to the state that the checkpoint has."""
        return not self.difference.counts
