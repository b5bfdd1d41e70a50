"""Runs earlier batches again, from the state before them and with their original processing times."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from stateflow.checkpoint.log.documents import NOT_BEGUN, SourcePosition
from stateflow.replay.input.local import SplitTimes
from stateflow.replay.target import PlannedBatch
from stateflow.runtime.driver.barrier import CompletedBarrier
from stateflow.runtime.driver.batch_runner import Batch, BatchRunner, StartingPoint
from stateflow.runtime.executor import Executor
from stateflow.runtime.job.job import Job, Positions
from stateflow.runtime.task_spec import BatchInfo


@dataclass(frozen=True)
class Scratch:
    """Where a replay writes.

    Attributes:
        uri: storage for state files and rows.
        local_folder: folder for working stores and cached files.
    """

    uri: str
    local_folder: Path


class ReplayedBatches(BatchRunner):
    """Runs planned batches one after the other; their files go to scratch storage.

    Args:
        job: the job, whose sinks collect rows.
        executor: runs the tasks.
        start: the state before the first batch.
        scratch: where the tasks write.

    Attributes:
        barriers: the results of the batches.
    """

    def __init__(self, job: Job, executor: Executor, start: StartingPoint, scratch: Scratch) -> None:
        super().__init__(job, executor, start)
        self._scratch = scratch
        self._planned: PlannedBatch | None = None
        self.barriers: list[CompletedBarrier] = []

    def replay(self, planned: PlannedBatch, rows: object, times: SplitTimes) -> None:
        """Runs a batch; the next one starts from its state.

        Args:
            planned: the batch, with its positions, watermarks and processing time.
            rows: its input rows, as the executor takes them.
            times: the latest event times of splits, as `Positions.split_times`.
        """
        self._planned = planned
        sources = [
            SourcePosition(uid=uid, description=description, offset=planned.end.get(uid, NOT_BEGUN))
            for uid, description in self._job.sources
        ]
        positions = Positions(sources, split_times=times)
        watermarks = dict(planned.watermarks) or self.watermarks()
        barrier = self.run(Batch(rows, lambda _: positions, watermarks), planned.checkpoint_id)
        self.barriers.append(barrier)
        self.advance(barrier)

    def info(self, ordinal: int, checkpoint_id: int, full_snapshot: bool = False) -> BatchInfo:
        """See `BatchRunner.info`; with the processing time of the original batch, and scratch storage."""
        found = super().info(ordinal, checkpoint_id, full_snapshot)
        assert self._planned is not None
        environment = replace(found.environment, scratch_uri=self._scratch.uri, local_folder=self._scratch.local_folder)
        batch = replace(found.id, processing_time=self._planned.processing_time)
        return replace(found, id=batch, environment=environment)
