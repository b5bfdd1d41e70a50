"""The completed checkpoints that a job keeps, and their manifests."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

from stateflow.checkpoint.log.checkpoint_log import CheckpointLog, Head
from stateflow.checkpoint.log.documents import EntryRef, Manifest
from stateflow.checkpoint.log.entry_lists import RetainedCheckpoints, RetentionLimits, oldest_kept
from stateflow.checkpoint.log.manifest_files import read_manifest
from stateflow.checkpoint.log.transitions import Kept
from stateflow.errors import CorruptFile, DataError, MissingFile, StorageError
from stateflow.state.handles import FileHandle
from stateflow.storage.paths import log_entry

log = logging.getLogger(__name__)

T = TypeVar("T")


class CompletedCheckpoints:
    """Reads which checkpoints a log entry keeps, and what they consist of.

    Args:
        job_log: the job's log, in the storage that also has its manifests.
    """

    def __init__(self, job_log: CheckpointLog) -> None:
        self.retained = RetainedCheckpoints(job_log.storage)
        self._log = job_log
        self._storage = job_log.storage
        self._job_uuid = job_log.job.job_uuid

    def head(self) -> Head:
        """Returns the newest entry, verified, after reading its list of retained checkpoints.

        Raises DataError when the job never ran.
        """
        head = self._log.read_head()
        while head is not None:
            try:
                # Read here, so that a later request for its checkpoints succeeds, whatever was collected meanwhile.
                self.retained.read(head.entry)
                return head
            except MissingFile:
                newer = self._log.read_head()
                if newer == head:
                    raise
                head = newer
        raise DataError("the job has no log entry yet", hint="run it first", storage=self._storage.uri)

    def restorable(self, head: Head) -> list[EntryRef]:
        """Returns the checkpoints that the job can continue from, oldest first, the current one last.

        Excludes checkpoints that only a pin keeps: a restore may have left them on a branch whose output was never
        published. Where the list of `head` was collected, also excludes those that were released after `head`.

        Raises MissingFile or CorruptFile.
        """
        _, retained = self._with_list(head, lambda head: self.retained.read(head.entry))
        return [*retained, *([head.checkpoint] if head.checkpoint else [])]

    def kept(self, head: Head) -> list[EntryRef]:
        """Returns every checkpoint that the entry keeps, pinned ones first, the current one last.

        Raises MissingFile or CorruptFile.
        """
        pins = [p.checkpoint for p in head.entry.pinned]
        return [*pins, *self.restorable(head)]

    def oldest_restorable(self, head: Head | None) -> int | None:
        """Returns the id of the oldest checkpoint that the job can continue from; None when there is none."""
        refs = self.restorable(head) if head else []
        return refs[0].id if refs else None

    def check_restorable(self, head: Head | None, ref: EntryRef | None) -> None:
        """Raises DataError unless `ref` is None, or a checkpoint that the job can continue from at `head`."""
        if ref and (head is None or ref not in self.restorable(head)):
            raise DataError(
                "the checkpoint to restore is no longer retained",
                checkpoint=ref.id,
                oldest=self.oldest_restorable(head),
            )

    def apply_retention(self, parent: Head, limits: RetentionLimits, folder: str, now: datetime) -> tuple[Head, Kept]:
        """Determines which checkpoints a COMMIT after `parent` keeps, and stores a list that is too long for an entry.

        Args:
            parent: the entry that the COMMIT follows.
            limits: the configured retention.
            folder: folder of the COMMIT's own data files.
            now: the committer's clock.

        Returns the entry to append to, which is `parent` or a newer one with the same checkpoint, and the result.
        """
        return self._with_list(parent, lambda head: self._kept_after(head, limits, folder, now))

    def _kept_after(self, parent: Head, limits: RetentionLimits, folder: str, now: datetime) -> Kept:
        refs = self.restorable(parent)
        oldest = oldest_kept(refs, limits, now.isoformat(), parent.entry.at) or parent.entry.seq + 1
        try:
            segment = self.retained.store_segments(parent.entry, parent.checkpoint, folder, oldest)
        except (StorageError, MissingFile) as e:
            # The entry is a little longer then; the next COMMIT tries again, in a folder of its own. A list is missing
            # when a command has shortened it since `parent`, and its objects were collected.
            log.warning("retained checkpoints stay in the log entry: %s", e)
            segment = None
        return Kept(oldest, segment)

    def _with_list(self, head: Head, read: Callable[[Head], T]) -> tuple[Head, T]:
        """Calls `read` with `head`, or with a newer entry that has the same checkpoint.

        A newer entry is needed when a command has shortened the list of retained checkpoints since `head` and the
        list's objects were collected.
        """
        while True:
            try:
                return head, read(head)
            except MissingFile:
                newer = self._log.newest_on(head)
                if newer is None or newer == head:
                    raise
                head = newer

    def manifest_of(self, ref: EntryRef) -> Manifest:
        """Returns the manifest of a checkpoint. Raises MissingFile or CorruptFile."""
        return self.read_manifest(ref.manifest)

    def manifest_at(self, head: Head) -> Manifest | None:
        """Returns the manifest of the current checkpoint of `head`; None when there is none.

        Raises MissingFile or CorruptFile.
        """
        if head.entry.manifest is None:
            return None
        if head.checkpoint and head.checkpoint.manifest != head.entry.manifest:
            raise CorruptFile(
                "the newest log entry names a different manifest than its reference to the checkpoint",
                file=log_entry(head.entry.seq),
                expected=head.entry.manifest.key,
            )
        return self.read_manifest(head.entry.manifest)

    def read_manifest(self, handle: FileHandle) -> Manifest:
        """Returns a manifest of this job. Raises MissingFile, CorruptFile, or DataError for another job's manifest."""
        manifest = read_manifest(self._storage, handle)
        if manifest.job_uuid != self._job_uuid:
            raise DataError("a manifest belongs to another job", file=handle.key, job_uuid=manifest.job_uuid)
        return manifest
