"""Turns completed barriers into checkpoints in order, synchronously or in the background."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from stateflow.checkpoint.barrier.coordinator import CheckpointCoordinator, Due
from stateflow.runtime.driver.barrier import CompletedBarrier
from stateflow.runtime.driver.checkpointing.committer import CheckpointCommitter, FinishedCheckpoint
from stateflow.runtime.driver.checkpointing.pending_checkpoint import PendingCheckpoint
from stateflow.runtime.driver.checkpointing.upload_waiter import UploadWaiter
from stateflow.runtime.driver.job_restore import RestoredJob
from stateflow.runtime.driver.maintenance import Maintenance
from stateflow.runtime.driver.run_context import RunContext
from stateflow.state.handles import Committable

_KEEP_ALIVE_SECONDS = 20


class CheckpointPipeline:
    """Decides which barriers become checkpoints, and passes these to a `CheckpointCommitter`.

    All methods are called in the batch thread. Asynchronously, the committer runs in the checkpoint thread while the
    next batch runs. The output of an aborted checkpoint passes to the next one.

    Args:
        run: the run that this is part of.
        restored: the restored job that the run starts from.
        maintenance: gets the records of the checkpoints.
        keep_workers_alive: called every 20 seconds while the batch thread waits for checkpoints.

    Attributes:
        committer: does the work on each checkpoint.
    """

    def __init__(
        self, run: RunContext, restored: RestoredJob, maintenance: Maintenance, keep_workers_alive: Callable[[], None]
    ) -> None:
        settings = run.job.settings.checkpoints
        self._run = run
        self._keep_workers_alive = keep_workers_alive
        self._coordinator = CheckpointCoordinator(settings, run.now)
        self._uploads = UploadWaiter(run, restored.manifest, self._coordinator.is_overdue)
        self._pool = ThreadPoolExecutor(1, "stateflow-checkpoints") if settings.asynchronous else None
        self._submitted: deque[Future[None]] = deque()
        self._pending = PendingCheckpoint()
        self._kept_alive_at = run.now
        self.committer = CheckpointCommitter(run, restored.head, maintenance, self._uploads)

    def add(self, barrier: CompletedBarrier, output: dict[str, list[Committable]], seconds: float) -> None:
        """Adds a barrier to the next checkpoint; arguments as for `PendingCheckpoint.add`."""
        self._pending.add(barrier, output, seconds)

    def checkpoint_if_due(self, requested: bool) -> None:
        """Starts a checkpoint of the barrier that was added last, if one is due.

        Args:
            requested: whether a request waits for a checkpoint. It gets one that is committed and published, so this
                then returns when no checkpoint is pending.

        Raises as `check` does.
        """
        self.check()
        verdict = self._coordinator.at_barrier(self._pending.ordinal, self._run.now, requested)
        if isinstance(verdict, Due):
            self._submit()
        if requested:
            self.commit_pending()
        else:
            self.check()

    def checkpoint_if_idle(self) -> None:
        """Starts a checkpoint of the newest barrier if one is due although no batch follows.

        Raises as `check` does.
        """
        self.check()
        now = self._run.now
        if self._pending.manifest is not None:
            if self._coordinator.is_due_when_idle(now):
                self._submit()
        elif not self._submitted and self.committer.has_aborted and self._coordinator.may_retry(now):
            self._submit()
        if (self._submitted or self._pending.manifest is not None) and now - self._kept_alive_at >= _KEEP_ALIVE_SECONDS:
            self._kept_alive_at = now
            self._keep_workers_alive()

    def commit_pending(self) -> None:
        """Makes the newest barrier a checkpoint unless it is one, and waits until none is pending.

        Raises as `check` does.
        """
        self._wait()
        while self._pending.manifest is not None or self.committer.has_aborted:
            self._submit()
            self._wait()

    def check(self) -> None:
        """Takes over the results of the checkpoints that ended.

        Raises a fatal error of the checkpoint thread, or the last checkpoint's error once more checkpoints in a row
        have failed than ``checkpoints.tolerable_failures``.
        """
        while self._submitted and self._submitted[0].done():
            self._submitted.popleft()
        if self.committer.failure is not None:
            raise self.committer.failure
        while self.committer.finished:
            self._on_finished(self.committer.finished.popleft())
        self._gauge_pending()

    def abandon(self) -> None:
        """Ends the checkpoint thread: a checkpoint that is being committed is completed, others are not."""
        self._coordinator.shut_down()
        self._uploads.cancel()
        if self._pool is not None:
            # A restart in this process must not run concurrently with this thread.
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _submit(self) -> None:
        """Makes the accumulated barriers a checkpoint; without any, retries the aborted one."""
        pending, self._pending = self._pending, PendingCheckpoint()
        if pending.manifest is None:
            # Here, not in the checkpoint thread: the coordinator must know the ordinal of the retried
            # barrier, or that checkpoint would neither end nor be overdue. Nothing is pending at this point.
            pending = self.committer.take_aborted(pending)
        pending.triggered_at = self._run.now
        self._coordinator.triggered(pending.ordinal, pending.triggered_at)
        if self._pool is None:
            self.committer.complete(pending)
        else:
            self._submitted.append(self._pool.submit(self.committer.run_in_background, pending))
        self._gauge_pending()

    def _wait(self) -> None:
        while self._submitted:
            try:
                self._submitted[0].result(_KEEP_ALIVE_SECONDS)
            except TimeoutError:
                self._keep_workers_alive()
            else:
                self._submitted.popleft()
        self.check()

    def _on_finished(self, finished: FinishedCheckpoint) -> None:
        if finished.error is None:
            self._coordinator.completed(finished.ordinal, finished.at)
            return
        self._coordinator.aborted(finished.ordinal)
        if self._coordinator.has_failed_too_often:
            raise finished.error

    def _gauge_pending(self) -> None:
        self._run.job.recorder.gauge("number_of_in_progress_checkpoints", len(self._coordinator.pending))
