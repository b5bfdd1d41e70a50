"""What all actors of one history share."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from stateflow.api.schema import RowSchema
from stateflow.api.sink import SinkContext
from stateflow.checkpoint.log.checkpoint_log import Appended, Base, CheckpointLog, Overtaken
from stateflow.checkpoint.log.documents import LogEntry
from stateflow.checkpoint.log.entry_lists import OutputSizes, SegmentSizes
from stateflow.checkpoint.log.job_root import JobRoot, NewJob
from stateflow.errors import StorageError
from stateflow.runtime.publisher import BoundSink
from stateflow.state.handles import Committable, FileHandle
from stateflow.storage.paths import data_folder
from tests.model.invariants.log import Checker
from tests.model.simulation.plan import Plan
from tests.model.simulation.scheduler import Scheduler, SimClock
from tests.model.simulation.sink import SimSink
from tests.model.simulation.storage import SimStorage

JOB = NewJob(name="job", max_parallelism=4, key_types={})


class CheckedLog(CheckpointLog):
    """The real log; it reports every entry that a caller receives as part of the history."""

    def __init__(self, log: CheckpointLog, checker: Checker) -> None:
        super().__init__(log.storage, log.job)
        self._checker = checker

    def append(self, parent: Base, build: Callable[[Base], LogEntry]) -> Appended | Overtaken:
        outcome = super().append(parent, build)
        if isinstance(outcome, Appended):
            for head in (outcome.own, outcome.head):
                self._checker.acknowledged(head.entry.seq, head.sha256)
        return outcome


@dataclass
class SimJob:
    """A simulated job: its storage, its sinks, and the checker of both.

    Attributes:
        name_by_seq: a planted bug: files are named after the sequence number that their COMMIT is expected to get.
    """

    scheduler: Scheduler
    storage: SimStorage
    checker: Checker
    clock: SimClock
    plan: Plan
    rng: random.Random
    name_by_seq: bool = False
    sinks: list[SimSink] = field(init=False)

    def __post_init__(self) -> None:
        self.sinks = [SimSink(self.scheduler, self.checker.table(f"sink{i}")) for i in range(self.plan.sinks)]

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def count(self, what: str, times: int = 1) -> None:
        self.scheduler.stats[what] += times

    def open(self, writer: str) -> JobRoot:
        return self.watch(JobRoot.open(self.storage, self.clock, writer))

    def watch(self, root: JobRoot) -> JobRoot:
        """Returns the root with a log that reports to the checker, and with the plan's sizes."""
        root = JobRoot(CheckedLog(root.log, self.checker), root.clock, root.writer)
        root.checkpoints.retained.sizes = SegmentSizes(self.plan.inline, self.plan.segment)
        root.outputs.sizes = OutputSizes(self.plan.inline_output, 1)
        return root

    def bind(self, root: JobRoot) -> dict[str, BoundSink]:
        schema = RowSchema(object, ())
        return {s.uid: BoundSink(s, SinkContext(root.job.job_uuid, s.uid, schema)) for s in self.sinks}

    def write_attempt(self, generation: int, ordinal: int) -> tuple[list[FileHandle], dict[str, list[Committable]]]:
        """Writes state files and output as the tasks of a batch do, with files of an attempt that fails."""
        folder = data_folder(generation, ordinal, self.clock.new_id())
        if self.chance(0.1):
            lost = data_folder(generation, ordinal, self.clock.new_id())
            self.storage.put_data(f"{lost}0.sst", b"never reported")
        files = [self._state_file(f"{folder}{i}.sst") for i in range(self.rng.randint(1, 2))]
        output = {s.uid: [self._output(s, folder)] for s in self.sinks if self.chance(0.8)}
        return files, output

    def _state_file(self, key: str) -> FileHandle:
        content = key.encode()
        if self.plan.asynchronous and not self.scheduler.is_unscheduled:
            self.scheduler.spawn_thread(lambda: self._store_late(key, content))
        else:
            self.storage.put_data(key, content)
        return FileHandle(key=key, size=len(content), sha256=hashlib.sha256(content).hexdigest())

    def _store_late(self, key: str, content: bytes) -> None:
        """The thread of a worker: it retries until it succeeds, unless its host is lost before."""
        if not self.scheduler.faults_stopped and self.chance(self.plan.lost_uploads):
            self.count("uploads lost")
            return
        self.scheduler.sleep(self.rng.randint(0, 40))
        while True:
            try:
                self.storage.put_data(key, content)
            except StorageError:
                self.scheduler.sleep(5)
            else:
                self.count("late uploads")
                return

    def _output(self, sink: SimSink, folder: str) -> Committable:
        committable = Committable(path=f"{folder}{sink.uid}.parquet", size=1, rows=1)
        sink.write(committable)
        return committable
