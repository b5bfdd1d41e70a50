"""A job without operators that publishes rows to one sink: its log is that of a real job."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from stateflow import failpoints
from stateflow.api.schema import RowSchema
from stateflow.api.sink import Sink, SinkContext, Writing
from stateflow.checkpoint.gc.reachability import is_past
from stateflow.checkpoint.log.checkpoint_log import Appended, Head, Overtaken
from stateflow.checkpoint.log.documents import PendingOutput
from stateflow.checkpoint.log.fencing import FENCED_HINT
from stateflow.checkpoint.log.job_format import NewJob
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.retained import RetentionLimits
from stateflow.checkpoint.log.transitions import Commit, Settlement
from stateflow.clock import SystemClock
from stateflow.errors import Fenced
from stateflow.runtime.publisher import BoundSink, Publisher
from stateflow.runtime.task.row_conversion import to_batch
from stateflow.state.handles import Committable, FileHandle
from stateflow.storage import open_storage
from stateflow.storage.paths import DataKey

SinkFactory = Callable[[str], Sink]
"""Returns the sink whose table has an address; the same table for the same address, in every process."""

ROWS_PER_CHECKPOINT = 2
UID = "out"
_clock = SystemClock()


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
        for number in range(committed(head) + 1, upto + 1):
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


def committed(head: Head) -> int:
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
