"""A table under test: rows written, committed and read in this process, without a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from stateflow.api.sink import Sink, SinkContext, SinkRewind, SinkTable, Writing
from stateflow.clock import SystemClock
from stateflow.state.handles import Committable
from stateflow.testing.conformance.publishing_job import SinkFactory, SinkRow, write_rows

_clock = SystemClock()


@dataclass(frozen=True)
class TableUnderTest:
    """One sink of one job, and the table that it writes.

    Attributes:
        factory: returns the sink for an address.
        address: the table's address.
        context: the sink's context.
        reader: returns the visible rows of the table of a sink.
    """

    factory: SinkFactory
    address: str
    context: SinkContext
    reader: Callable[[Sink], Iterable[Mapping[str, Any]]]

    @property
    def sink(self) -> Sink:
        """A new object each time, as each process has one of its own."""
        return self.factory(self.address)

    def open(self) -> SinkTable:
        """Returns a handle of the current version, of a new sink object."""
        return self.sink.open_table(self.context)

    def with_uid(self, uid: str) -> TableUnderTest:
        """Returns the same table, as another sink of the job writes it."""
        return replace(self, context=replace(self.context, uid=uid))

    def write(self, ids: Iterable[int], ordinal: int = 1) -> list[Committable]:
        """Writes rows with these ids as one attempt of a subtask, without publishing them."""
        writing = Writing(1, ordinal, 0, _clock.new_id())
        return write_rows(self.sink, self.context, [SinkRow(n, f"row {n}") for n in ids], writing)

    def put(self, token: int, ids: Iterable[int]) -> list[Committable]:
        """Writes rows, and publishes them as checkpoint `token`."""
        files = self.write(ids, token)
        assert self.open().commit(token, files) is not None
        return files

    def ids(self) -> list[int]:
        """Returns the sorted ids of the visible rows, and checks their other column."""
        return sorted(row_id(row) for row in self.reader(self.sink))

    def rewind(self, checkpoint_id: int, token: int) -> SinkRewind:
        """Rewinds the table, and compares the plan with the rows before and after."""
        handle, before = self.open(), Counter(self.ids())
        plan = handle.plan_rewind(checkpoint_id)
        assert Counter(self.ids()) == before, "a plan changes nothing"
        version = handle.rewind(plan.to_version, token)
        after, opened = Counter(self.ids()), self.open()
        assert version is not None
        assert (opened.token, opened.version) == (token, version)
        assert plan.from_version == handle.version
        check_counts(plan, before, after)
        return plan


def row_id(row: Mapping[str, Any]) -> int:
    """Returns the id of a row, after checking its other column: ``row <id>``, or null."""
    number = int(row["id"])
    assert row["text"] in (None, f"row {number}"), row
    return number


def check_counts(plan: SinkRewind, before: Counter[int], after: Counter[int]) -> None:
    """Checks the numbers of rows of a plan: a table whose files are rewritten counts rows that only move twice."""
    if plan.rows_removed is not None:
        assert plan.rows_removed >= (before - after).total()
    if plan.rows_removed is not None and plan.rows_returned is not None:
        assert plan.rows_returned - plan.rows_removed == after.total() - before.total()
