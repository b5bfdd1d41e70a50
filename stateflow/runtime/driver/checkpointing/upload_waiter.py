"""Waits until the files that tasks upload in the background are stored."""

from __future__ import annotations

import threading
from collections.abc import Callable

from stateflow.checkpoint.log.documents import Manifest
from stateflow.checkpoint.log.manifest_files import files_of
from stateflow.errors import BatchFailed
from stateflow.runtime.driver.checkpointing.pending_checkpoint import PendingCheckpoint
from stateflow.runtime.driver.run_context import RunContext
from stateflow.state.files.host_cache import check_content
from stateflow.state.handles import FileHandle

_POLL_SECONDS = (0.002, 0.25)
"""First and longest pause between two reads of the storage; the pause doubles in between."""
_NAMED = 3
"""Missing files that an error names."""


class UploadsCancelled(Exception):
    """The run ends with an error, so its uncommitted checkpoints are no longer needed."""


class UploadWaiter:
    """Waits for the files of one checkpoint after the other.

    Args:
        run: the run that this is part of.
        restored: manifest of the checkpoint that the run started from; the start has checked its files.
        is_overdue: returns whether the checkpoint of a barrier has taken longer than it may; takes the barrier's
            ordinal and the time in seconds of the monotonic clock.
    """

    def __init__(self, run: RunContext, restored: Manifest | None, is_overdue: Callable[[int, float], bool]) -> None:
        self._run = run
        self._is_overdue = is_overdue
        self._cancelled = threading.Event()
        self._stored = {handle.key for handle in files_of(restored)} if restored else set()

    def cancel(self) -> None:
        """Ends `wait` in the other thread."""
        self._cancelled.set()

    def wait(self, pending: PendingCheckpoint) -> None:
        """Returns when each file of a checkpoint is stored.

        Raises:
            BatchFailed: a file was not stored within ``checkpoints.timeout``.
            Fenced: a newer run has claimed the job.
            CorruptFile: a stored file has another size or hash.
            UploadsCancelled: `cancel` was called.
        """
        handles = files_of(pending.document)
        missing = [handle for handle in handles if handle.key not in self._stored]
        delay, longest = _POLL_SECONDS
        checked_at = self._run.now
        check_every = self._run.job.settings.requests.fence_interval.total_seconds()
        while missing := [handle for handle in missing if not self._is_stored(handle)]:
            if self._is_overdue(pending.ordinal, self._run.now):
                raise _overdue(pending, missing)
            if self._run.now - checked_at >= check_every:
                checked_at = self._run.now
                # A newer run collects files that this one has stored and not committed; they would never be complete.
                self._run.guard.check()
            if self._cancelled.wait(delay):
                raise UploadsCancelled
            delay = min(longest, 2 * delay)
        self._stored = {handle.key for handle in handles}

    def _is_stored(self, handle: FileHandle) -> bool:
        size = self._run.job.root.storage.durable_size(handle.key)
        if size is not None:
            check_content(handle, size, handle.sha256)
        return size is not None


def _overdue(pending: PendingCheckpoint, missing: list[FileHandle]) -> BatchFailed:
    return BatchFailed(
        "the files of a checkpoint were not stored within checkpoints.timeout",
        hint="check for lost hosts and a slow storage: the logs of the task processes name failed uploads; "
        "raise checkpoints.timeout if uploads need longer",
        setting="checkpoints.timeout",
        barrier=pending.ordinal,
        missing=[handle.key for handle in missing[:_NAMED]],
    )
