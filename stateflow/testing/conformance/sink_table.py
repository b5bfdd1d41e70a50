"""A table under test, and a job without operators that publishes rows to its sink: the job's log is a real one."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from stateflow import failpoints
from stateflow.api.schema import RowSchema
from stateflow.api.sink import Sink, SinkContext, SinkRewind, SinkTable, Writing
from stateflow.checkpoint.garbage_collector import is_past
from stateflow.checkpoint.log.checkpoint_log import Appended, Head, Overtaken
from stateflow.checkpoint.log.completed_checkpoints import RetentionLimits
from stateflow.checkpoint.log.documents import PendingOutput
from stateflow.checkpoint.log.fencing import FENCED_HINT
from stateflow.checkpoint.log.job_root import JobRoot, NewJob
from stateflow.checkpoint.log.transitions import Commit, Settlement
from stateflow.clock import SystemClock
from stateflow.errors import Fenced
from stateflow.runtime.publisher import BoundSink, Publisher
from stateflow.runtime.task.row_conversion import to_batch
from stateflow.state.handles import Committable, FileHandle
from stateflow.storage import open_storage
from stateflow.storage.paths import DataKey

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


SinkFactory = Callable[[str], Sink]
"""Returns the sink whose table has an address; the same table for the same address, in every process."""


ROWS_PER_CHECKPOINT = 2
UID = "out"


class SinkRow(msgspec.Struct, frozen=True):
    """A row of the suite's tables; `id` is unique."""

    id: int
    text: str | None = None


def rows_of(number: int) -> list[SinkRow]:
    """Returns the rows of the job's checkpoint `number`, counted from 1."""
    first = number * ROWS_PER_CHECKPOINT
    return [SinkRow(n, f"row {n}" if n % 3 else None) for n in range(first, first + ROWS_PER_CHECKPOINT)]


def write_rows(sink: Sink, context: SinkContext, rows: Iterable[SinkRow], writing: Writing) -> list[Committable]:
    """Writes rows as one attempt of one subtask."""
    writer = sink.writer(context, writing)
    writer.write(to_batch(list(rows), context.schema))
    return writer.close()


class PublishingJob:
    """A job whose checkpoint n has the rows `rows_of(n)`.

    Args:
        sink: the sink that it publishes to.
        root: folder of the job root, which is created if it does not exist.
    """

    def __init__(self, sink: Sink, root: Path) -> None:
        storage = open_storage(str(root))
        new = NewJob("conformance", 128, {})
        self.root = JobRoot.create_or_open(storage, _clock, new, f"pid {os.getpid()}")
        self.sink = sink
        self.context = SinkContext(self.root.job.job_uuid, UID, RowSchema.of(SinkRow), storage)
        self.publisher = Publisher(self.root, {UID: BoundSink(sink, self.context)})

    def run(self, upto: int) -> None:
        """Makes and publishes checkpoints up to number `upto`, as one run. Raises Fenced if another run is newer."""
        head = self.root.claim()
        if UID not in head.entry.published:
            self.sink.prepare(self.context)
        self.publisher.publish_pending(head)
        self.publisher.check_tables(head)
        self.sink.sweep(self.context, lambda generation, ordinal, path: is_past_output(head, generation, ordinal, path))
        current = head
        for number in range(newest_ordinal(head) + 1, upto + 1):
            current = self.commit(current, number)
            self.publisher.publish_pending(current)
            self.publisher.discard_settled(current)
        done = Settlement(self.publisher.published, self.publisher.settled)
        _check_acknowledged(self.root.settle(current, done))

    def commit(self, head: Head, number: int) -> Head:
        """Writes the rows of checkpoint `number`, by two subtasks, and commits them without publishing them."""
        entry, files = head.entry, list[Committable]()
        for subtask, row in enumerate(rows_of(number)):
            writing = Writing(entry.generation, entry.ordinal + 1, subtask, _clock.new_id())
            files += write_rows(self.sink, self.context, [row], writing)
        failpoints.hit("task.sink-closed")
        output = PendingOutput(checkpoint_id=0, sink=UID, committables=files)
        done = (self.publisher.published, self.publisher.settled)
        manifest = FileHandle(key=f"data/rows-{number}", size=0, sha256="")
        new = Commit(entry.ordinal + 1, manifest, [], [output], *done)
        appended = self.root.commit(head, new, RetentionLimits(3))
        committed_head = _check_acknowledged(appended)
        failpoints.hit("commit.after")
        return committed_head


def newest_ordinal(head: Head) -> int:
    """Returns the number of the job's newest checkpoint; 0 if there is none."""
    manifest = head.entry.manifest
    return int(manifest.key.rpartition("-")[2]) if manifest else 0


def is_past_output(head: Head, generation: int, ordinal: int, path: str) -> bool:
    """Returns whether a file that no version of the table has is a leftover, as a run with newest entry `head` does."""
    return is_past(DataKey(generation, ordinal, "", path), head.entry)


def _check_acknowledged(outcome: Appended | Overtaken) -> Head:
    if isinstance(outcome, Overtaken):
        raise Fenced("another run claimed the job", hint=FENCED_HINT)
    return outcome.head
