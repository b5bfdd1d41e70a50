"""The completed checkpoints of a job: which ones retention keeps, their manifests, and ADMIN entries that pin them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from stateflow.checkpoint.log import transitions
from stateflow.checkpoint.log.checkpoint_log import Appended, CheckpointLog, Head, is_old_entry
from stateflow.checkpoint.log.documents import ClaimedSavepoint, EntryRef, LogEntry, Manifest, Pin
from stateflow.checkpoint.log.entry_lists import RetainedCheckpoints
from stateflow.checkpoint.log.fencing import FENCED_HINT
from stateflow.checkpoint.log.manifest_files import read_manifest
from stateflow.checkpoint.log.transitions import Author, Kept, drop_expired
from stateflow.clock import Clock
from stateflow.errors import ConfigError, CorruptFile, DataError, Fenced, MissingFile, StateflowError, StorageError
from stateflow.state.handles import FileHandle
from stateflow.storage.paths import log_entry

log = logging.getLogger(__name__)


T = TypeVar("T")


@dataclass(frozen=True)
class RetentionLimits:
    """The number and age of checkpoints that stay restorable.

    Attributes:
        number: maximum number of restorable checkpoints, including the newest.
        max_age: maximum age of every checkpoint but the newest, by the clocks of the runs that committed them.
    """

    number: int
    max_age: timedelta | None = None


def find_oldest_kept(refs: list[EntryRef], limits: RetentionLimits, now: str, before: str) -> int | None:
    """Returns the id of the oldest checkpoint that a COMMIT keeps in addition to its own; None when it keeps none.

    A clock that jumps forward would make all of them too old at once. So the earlier of the timestamps of this entry
    and the one before counts, and one COMMIT releases at most half of them for their age, the oldest ones.

    Args:
        refs: the restorable checkpoints, oldest first.
        limits: the configured retention.
        now: timestamp of the COMMIT, ISO 8601, by the committer's clock.
        before: timestamp of the entry that the COMMIT follows.
    """
    remaining = refs[max(0, len(refs) - limits.number + 1) :]
    if limits.max_age is not None:
        earliest = min(datetime.fromisoformat(now), datetime.fromisoformat(before)) - limits.max_age
        recent = (i for i, ref in enumerate(remaining) if datetime.fromisoformat(ref.at) >= earliest)
        remaining = remaining[min(next(recent, len(remaining)), (len(remaining) + 1) // 2) :]
    return remaining[0].id if remaining else None


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

    def list_kept(self, head: Head) -> list[EntryRef]:
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
                checkpoint_id=ref.id,
                oldest_checkpoint_id=self.oldest_restorable(head),
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
        oldest = find_oldest_kept(refs, limits, now.isoformat(), parent.entry.at) or parent.entry.seq + 1
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


_TRIES = 100


class AdminEntries:
    """Appends ADMIN entries after the newest entry, whatever run or command appended it.

    Args:
        job_log: the job's log.
        checkpoints: the checkpoints that its entries keep.
        clock: gives ids and timestamps.
        writer: names this process in the entries, for display.
    """

    def __init__(self, job_log: CheckpointLog, checkpoints: CompletedCheckpoints, clock: Clock, writer: str) -> None:
        self._log = job_log
        self._job = job_log.job
        self._checkpoints = checkpoints
        self._clock = clock
        self._writer = writer

    def pin(self, ref: EntryRef, owner: str, reason: str, generation: int = 0, lease: timedelta | None = None) -> Pin:
        """Keeps a checkpoint that the newest entry still keeps, until `unpin` or the end of the lease.

        Args:
            ref: the checkpoint.
            owner: name of the reader, for display.
            reason: reason of the pin, for display.
            generation: generation of a run that reads for itself; the next CLAIM ends its pin. 0 for other readers.
            lease: time after which the pin ends unless it is renewed; None for a pin without an end.

        Raises:
            DataError: the checkpoint is no longer kept.
            Fenced: a newer run than that of `generation` has claimed the job.
        """
        pin = Pin(
            id=self._clock.new_id(),
            checkpoint=ref,
            owner=owner,
            reason=reason,
            since=self._clock.now().isoformat(),
            generation=generation,
            until=self._end_of(lease) if lease else "",
        )
        self.append_admin(lambda head: _has_pin(head, pin.id), lambda base: self._pin_entry(base, pin))
        return pin

    def renew(self, pin_id: str, lease: timedelta) -> bool:
        """Gives a leased pin another end, `lease` from now; returns False if the pin no longer exists.

        The entries decide: a pin whose end is over, and that the newest entry still has, is renewed.
        """
        until = self._end_of(lease)
        head = self.append_admin(
            lambda head: all(p.until == until for p in head.entry.pinned if p.id == pin_id),
            lambda base: transitions.renew(self._job, base, self._author(), pin_id, until),
        )
        return _has_pin(head, pin_id)

    def has_pin(self, pin_id: str) -> bool:
        """Returns whether the newest entry has a pin."""
        return _has_pin(self._checkpoints.head(), pin_id)

    def end_leases(self) -> None:
        """Drops the pins whose lease is over; appends nothing when there are none.

        Runs do not call this: each of their entries drops these pins anyway.
        """
        self.append_admin(
            lambda head: drop_expired(head.entry.pinned, self._clock.now().isoformat()) == head.entry.pinned,
            lambda base: transitions.end_leases(self._job, base, self._author("end of leases")),
        )

    def _end_of(self, lease: timedelta) -> str:
        return (self._clock.now() + lease).isoformat()

    def _pin_entry(self, base: Head, pin: Pin) -> LogEntry:
        # Checked for each entry that the ADMIN may follow: another ADMIN in between can have released the checkpoint.
        if pin.checkpoint not in self._checkpoints.list_kept(base):
            raise DataError(
                "the checkpoint is no longer retained",
                checkpoint_id=pin.checkpoint.id,
                oldest_checkpoint_id=self._checkpoints.oldest_restorable(base),
            )
        if pin.generation and base.entry.generation != pin.generation:
            raise Fenced(
                "a newer run has claimed the job",
                hint=FENCED_HINT,
                generation=pin.generation,
                newer=base.entry.generation,
            )
        return transitions.pin(self._job, base, self._author(pin.reason), pin)

    @contextmanager
    def hold_pin(self, ref: EntryRef, owner: str, reason: str, generation: int = 0) -> Iterator[Pin]:
        """Keeps a checkpoint within a ``with`` block. Arguments and errors are those of `pin`."""
        pin = self.pin(ref, owner, reason, generation)
        try:
            yield pin
        finally:
            self.unpin(pin.id)

    def unpin(self, pin_id: str) -> None:
        """Removes a pin; does nothing when it does not exist."""
        self.append_admin(
            lambda head: all(p.id != pin_id for p in head.entry.pinned),
            lambda base: transitions.unpin(self._job, base, self._author(), pin_id),
        )

    def end_claim(self, ended: ClaimedSavepoint) -> None:
        """Removes a claimed savepoint from the log after it was deleted, or its claim undone."""
        self.append_admin(
            lambda head: ended not in head.entry.claimed_savepoints,
            lambda base: transitions.end_claim(self._job, base, self._author(f"savepoint {ended.name}"), ended),
        )

    def retain(self, keep: int, upto: int | None = None) -> Head:
        """Releases all but the newest `keep` restorable checkpoints; returns the newest entry.

        Args:
            keep: number of checkpoints.
            upto: id of the newest checkpoint that may be released; None for any.

        Raises ConfigError for less than 1.
        """
        if keep < 1:
            raise ConfigError("at least one checkpoint must be retained", value=keep)
        return self.append_admin(
            lambda head: not self.released(head, keep, upto), lambda base: self._retain_entry(base, keep, upto)
        )

    def _retain_entry(self, base: Head, keep: int, upto: int | None) -> LogEntry:
        # None is left to release if another process did so since the head was read.
        oldest = self._checkpoints.restorable(base)[len(self.released(base, keep, upto))].id
        return transitions.retain(self._job, base, self._author(f"retain {keep}"), oldest)

    def released(self, head: Head, keep: int, upto: int | None) -> list[EntryRef]:
        """Returns the checkpoints that `retain` releases, oldest first."""
        beyond = self._checkpoints.restorable(head)[:-keep]
        return [ref for ref in beyond if upto is None or ref.id <= upto]

    def append_admin(self, is_done: Callable[[Head], bool], build: Callable[[Head], LogEntry]) -> Head:
        """Appends an ADMIN entry, again each time that another writer was first; returns the newest entry.

        Args:
            is_done: whether the newest entry needs no ADMIN entry, or already contains this one.
            build: makes the entry from the one before it. It is called for each entry that the ADMIN may follow.

        Raises StorageError when other writers are first each time.
        """
        for _ in range(_TRIES):
            head = self._checkpoints.head()
            if is_done(head):
                return head
            outcome = self._log.append(head, build)
            if isinstance(outcome, Appended):
                self._delete_replaced(outcome.own.entry.seq - 1, outcome.head)
                return outcome.head
        raise StorageError("other writers append to the job's log too fast to add an entry", hint="try again")

    def _delete_replaced(self, seq: int, head: Head) -> None:
        """Deletes the entry that an ADMIN replaces: without runs, no collection would for a long time."""
        try:
            if is_old_entry(head.entry, seq):
                self._log.storage.delete([log_entry(seq)])
        except StateflowError as e:
            # The new entry counts, and a failed deletion must not fail the operation that it was appended for; a list
            # that is missing belongs to a head that is no longer the newest.
            log.warning("a log entry is left for the next collection: %s", e)

    def _author(self, note: str = "") -> Author:
        return Author.now(self._clock, self._writer, note)


def is_released(error: DataError, ref: EntryRef) -> bool:
    """Returns whether `AdminEntries.pin` has raised an error because a checkpoint was released."""
    return error.facts.get("checkpoint_id") == ref.id and "oldest_checkpoint_id" in error.facts


def _has_pin(head: Head, pin_id: str) -> bool:
    return any(pin.id == pin_id for pin in head.entry.pinned)
