"""The append-only log of create-only entries, which commits a job's checkpoints and fences its older runs.

It needs no lease, lock or clock. A run appends a CLAIM; each checkpoint is a COMMIT; commands append ADMIN entries. An
entry is acknowledged only when a LIST after it returns nothing, or only ADMIN entries of the same generation that are
linked to it; or, where later entries were already collected, when the newest entry proves it. ``docs/design/0001`` and
``0022`` describe the algorithm, and the histories that break each simplification of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import TypeVar

from stateflow import failpoints
from stateflow.checkpoint.log.documents import EntryKind, EntryRef, JobFormat, LogEntry
from stateflow.checkpoint.log.manifest_files import LIMIT, seal, unseal
from stateflow.clock import is_timestamp
from stateflow.errors import CorruptFile, DataError, MissingFile, StorageError
from stateflow.storage import PutResult, Storage
from stateflow.storage.paths import LOG, entry_seq, log_entry

_PUT_TRIES = 4
_HEAD_TRIES = 50
"""Attempts to read the newest entry. A listed entry may have been collected, or followed by another one, before it is
read, but not that often in a row, unless the storage lists an entry that it cannot return."""


@dataclass(frozen=True)
class Head:
    """A verified newest entry: at some time after it was read, no later entry existed."""

    entry: LogEntry
    sha256: str

    @property
    def checkpoint(self) -> EntryRef | None:
        """The current checkpoint as of this entry; None in a job without checkpoints."""
        entry = self.entry
        if entry.is_checkpoint:
            assert entry.manifest is not None
            return EntryRef(
                id=entry.seq, sha256=self.sha256, manifest=entry.manifest, at=entry.at, savepoint=entry.savepoint
            )
        return entry.checkpoint

    @property
    def checkpoint_id(self) -> int:
        """Id of the checkpoint that a start continues from; 0 when there is none."""
        return self.checkpoint.id if self.checkpoint else 0

    @property
    def checkpoint_label(self) -> str:
        """The checkpoint or savepoint that a start continues from, for display."""
        known = f"checkpoint {self.checkpoint.id}" if self.checkpoint else "the beginning"
        return self.entry.savepoint or known


@dataclass(frozen=True)
class Appended:
    """The result for an entry that is part of the job's history; `head` is the newest entry (`own` or an ADMIN)."""

    own: Head
    head: Head


@dataclass(frozen=True)
class Overtaken:
    """The result for an entry that is not acknowledged, because another run's entry took its place or followed it."""

    created: bool
    """Whether the entry was written nevertheless; the next start finds out whether it counts."""


Base = TypeVar("Base", Head, Head | None)
"""The entry before an appended one; None for an empty log, where an entry may be the first."""


class CheckpointLog:
    """Reads and appends entries of one job.

    Args:
        storage: the job root.
        job: the job; entries of other jobs are refused.
        limit: size of the largest entry that is written or read, in bytes.
    """

    def __init__(self, storage: Storage, job: JobFormat, limit: int = LIMIT) -> None:
        self.storage = storage
        self.job = job
        self._limit = limit

    def read_head(self) -> Head | None:
        """Returns the newest entry, verified; None when the log is empty.

        Raises StorageError when the storage lists entries that it does not have.
        """
        newest = 0
        for _ in range(_HEAD_TRIES):
            found = self._sequence_numbers(0)
            if not found:
                return None
            newest = found[-1]
            head = self._read(newest)
            # Between LIST and GET a driver may have appended another entry.
            if head is not None and not self._sequence_numbers(head.entry.seq):
                return head
        raise StorageError(
            "the newest log entry cannot be read: each listed one is missing, or no longer the newest",
            hint="check that the storage lists what it stores; then retry",
            file=log_entry(newest),
            storage=self.storage.uri,
            tries=_HEAD_TRIES,
        )

    def newest_on(self, head: Head) -> Head | None:
        """Returns the newest entry, verified, or None if an entry other than ADMIN was appended after `head`."""
        newest = self.read_head()
        return newest if newest == head or _is_only_admin_between(head, newest) else None

    def read_entry(self, seq: int) -> LogEntry | None:
        """Returns an entry below the head, unverified, for display; None when it was collected."""
        found = self._read(seq)
        return found.entry if found else None

    def append(self, parent: Base, build: Callable[[Base], LogEntry]) -> Appended | Overtaken:
        """Appends an entry directly after `parent`, or after ADMIN entries that follow it.

        Args:
            parent: the newest entry that the caller knows; None for an empty log.
            build: makes the entry from the entry before it. It is called again when an ADMIN entry comes in between.

        Returns Overtaken when another run's CLAIM or COMMIT follows `parent`: the caller is fenced.

        Raises:
            StorageError: the storage does not confirm whether the entry was written.
            TooLarge: the entry could not be read again; it was not written.
        """
        base = parent
        while True:
            entry = build(base)
            own = self._create(entry)
            failpoints.hit("log.created")
            head = self._follow(own or base)
            if head is None:
                # Another writer was faster, or entries in between were collected: the newest entry shows which.
                newest = self.read_head()
                if newest is not None and _has_counted(entry, newest):
                    return Appended(own or Head(entry, seal(entry)[1]), newest)
                if newest is None or not _is_only_admin_between(base, newest):
                    return Overtaken(created=own is not None)
                # Whether our own ADMIN counts is not known; appending it again is harmless.
                base = newest
                continue
            if own is not None:
                return Appended(own, head)
            if head == base:
                # The slot is taken, but no entry that counts follows our parent: a late write of a dead driver.
                return Overtaken(created=False)
            base = head

    def _create(self, entry: LogEntry) -> Head | None:
        """Writes the entry into its slot; returns None when the slot has another entry."""
        key = log_entry(entry.seq)
        data, digest = seal(entry, self._limit)
        for _ in range(_PUT_TRIES):
            result = self.storage.put_new(key, data)
            if result is PutResult.CREATED:
                return Head(entry, digest)
            # One read decides. Between two reads, our own late write could arrive and look like another writer's.
            found = self._bytes_of(key)
            if found == data and self._is_durable(key):
                return Head(entry, digest)
            if result is PutResult.EXISTS or found is not None:
                return None
            # Unknown, and the slot is empty: the request was lost, or its write is still in progress. Writing the same
            # bytes again is safe in both cases.
        raise StorageError("the storage does not confirm whether a log entry was written", key=key, tries=_PUT_TRIES)

    def _is_durable(self, key: str) -> bool:
        """Raises StorageError when the storage cannot confirm that the entry is durable.

        A directory that could not be synced lists the name, but loses it in a power failure, after an acknowledgement.
        """
        return self.storage.durable_size(key) is not None

    def _bytes_of(self, key: str) -> bytes | None:
        """Returns the slot's content: a put whose answer was lost, or that reported a conflict, may have stored it."""
        try:
            return self.storage.get(key, self._limit)
        except MissingFile:
            return None

    def _follow(self, start: Head | None) -> Head | None:
        """Returns the newest entry if all entries after `start` are linked ADMIN entries of the same generation."""
        current = start
        while True:
            later = self._sequence_numbers(current.entry.seq if current else 0)
            if not later:
                return current
            if current is None:
                return None
            following = self._link_forward(current, later)
            if following is None:
                return None
            current = following

    def _link_forward(self, current: Head, later: list[int]) -> Head | None:
        for seq in later:
            following = self._read(seq)
            if following is None or not _is_admin_on_top(following.entry, current):
                return None
            current = following
        return current

    def _sequence_numbers(self, after: int) -> list[int]:
        """Returns the numbers of the entries after `after`, in order."""
        found = []
        for blob in self.storage.list(LOG, log_entry(after)):
            seq = entry_seq(blob.key)
            if seq is None:
                raise DataError(
                    "the log contains a file that is not an entry", hint="move it to another folder", file=blob.key
                )
            found.append(seq)
        return found

    def _read(self, seq: int) -> Head | None:
        key = log_entry(seq)
        try:
            entry, digest = unseal(self.storage.get(key, self._limit), LogEntry, key)
        except MissingFile:
            return None
        if entry.seq != seq or entry.job_uuid != self.job.job_uuid:
            raise CorruptFile(
                "a log entry belongs to another position or job", file=key, seq=entry.seq, job_uuid=entry.job_uuid
            )
        if entry.is_checkpoint and entry.manifest is None:
            raise CorruptFile("a checkpoint's log entry names no manifest", file=key)
        current = [entry.checkpoint] if entry.checkpoint else []
        ends = (pin.until for pin in entry.pinned if pin.until)
        for at in (entry.at, *ends, *(ref.at for ref in (*current, *entry.retained))):
            if not is_timestamp(at):
                raise CorruptFile("a log entry contains a time that is not valid", file=key, time=at[:100])
        return Head(entry, digest)


def _has_counted(entry: LogEntry, head: Head) -> bool:
    """Returns whether a later entry proves that a CLAIM or COMMIT is in the log's history.

    The nonce of its CLAIM identifies a run, even if a CLAIM in a slot that was written again has the same number.
    Only the run itself commits, and each barrier once.
    """
    newest = head.entry
    if newest.run != entry.run or newest.seq < entry.seq:
        return False
    return entry.kind is EntryKind.CLAIM or (entry.kind is EntryKind.COMMIT and newest.ordinal == entry.ordinal)


def _is_only_admin_between(base: Head | None, head: Head | None) -> bool:
    """Returns whether only ADMIN entries lead from `base` to `head`, a later entry.

    ADMIN entries copy run and ordinal; a CLAIM changes the run and a COMMIT the ordinal.
    """
    if base is None or head is None:
        return False
    return (head.entry.run, head.entry.ordinal) == (base.entry.run, base.entry.ordinal)


def _is_admin_on_top(entry: LogEntry, below: Head) -> bool:
    return (
        entry.kind is EntryKind.ADMIN
        and entry.seq == below.entry.seq + 1
        and entry.generation == below.entry.generation
        and entry.parent == below.sha256
    )


def is_old_entry(head: LogEntry, seq: int) -> bool:
    """Returns whether a log entry is not needed.

    The newest entry is the complete state of the log, and a writer whose newest known entry is an older one of the same
    run recognizes the run by its nonce. The current checkpoint's own entry is kept in case the newest entry gets lost.
    """
    return seq < head.seq and (head.checkpoint is None or seq != head.checkpoint.id)


def is_ancestor(head: Head, checkpoint_id: int, retained: Set[int]) -> bool:
    """Returns whether the job's current state descends from a checkpoint; False for one that a restore has undone.

    Args:
        head: the newest entry.
        checkpoint_id: id of the checkpoint.
        retained: ids of the checkpoints that the job can continue from.
    """
    return checkpoint_id in retained or any(checkpoint_id in part for part in lineage_of(head))


def lineage_of(head: Head) -> list[range]:
    """Returns the ranges of entry numbers that the job's current state descends from, newest first."""
    return lineage_ranges({r.seq: r.base for r in head.entry.ancestry.restores}, head.entry.seq)


def lineage_ranges(restores: Mapping[int, int], newest: int) -> list[range]:
    """Returns the ranges of entry numbers that no restore has undone, newest first.

    Args:
        restores: number of the restored checkpoint, by number of the restore's own entry.
        newest: number of the newest entry.
    """
    parts = []
    for restored_at in sorted(restores, reverse=True):
        if 0 < restored_at <= newest:
            parts.append(range(restored_at, newest + 1))
            # Before the restore, the lineage is that of the restored checkpoint.
            newest = min(restores[restored_at], restored_at - 1)
    return [*parts, range(1, newest + 1)]
