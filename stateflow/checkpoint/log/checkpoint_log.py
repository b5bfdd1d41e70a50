"""The append-only log of create-only entries: the commit point and the fence of a job in one.

No lease, no lock, no clock. A run appends a CLAIM; each checkpoint is a COMMIT; outsiders append ADMIN entries. An
entry is acknowledged only after a LIST behind it shows nothing, or nothing but ADMIN entries of the same generation
that are linked to it; or, where entries after it were collected already, when the newest entry says so. The algorithm
and the histories that break every simplification of it: ``docs/design/0001`` and ``0022``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stateflow import failpoints
from stateflow.checkpoint.documents import EntryKind, EntryRef, JobFormat, LogEntry
from stateflow.checkpoint.envelope import LIMIT, seal, unseal
from stateflow.errors import CorruptFile, DataError, MissingFile, StorageError
from stateflow.storage import PutResult, Storage
from stateflow.storage.paths import LOG, entry_seq, log_entry

_PUT_TRIES = 4


@dataclass(frozen=True)
class Head:
    """A verified newest entry: at some moment after it was read, nothing was behind it."""

    entry: LogEntry
    sha256: str

    @property
    def checkpoint(self) -> EntryRef | None:
        """The checkpoint that this entry stands for; None in a job without one."""
        entry = self.entry
        if entry.is_checkpoint:
            return EntryRef(
                id=entry.seq, sha256=self.sha256, manifest=entry.manifest, at=entry.at, savepoint=entry.savepoint
            )  # fmt: skip
        return entry.checkpoint

    @property
    def checkpoint_id(self) -> int:
        """Id of the checkpoint that a start continues from; 0 when there is none."""
        return self.checkpoint.id if self.checkpoint else 0

    @property
    def stand(self) -> str:
        """What a start continues from, for people."""
        known = f"checkpoint {self.checkpoint.id}" if self.checkpoint else "the beginning"
        return self.entry.savepoint or known


@dataclass(frozen=True)
class Appended:
    """The entry is part of the job's history for ever; `head` is the newest entry now (its own, or an ADMIN)."""

    own: Head
    head: Head


@dataclass(frozen=True)
class Overtaken:
    """The entry is not acknowledged: another one stands, or came, where it should be the newest."""

    created: bool
    """Whether the entry was written all the same; the log decides on the next start whether it counts."""


Draft = Callable[[Head | None], LogEntry]
"""Makes the entry to append from the entry before it (None: the log is empty)."""


class CheckpointLog:
    """Reads and appends entries of one job.

    Args:
        storage: the job root.
        job: whose entries these must be.
        limit: size of the largest entry that is written, and that is read, in bytes.
    """

    def __init__(self, storage: Storage, job: JobFormat, limit: int = LIMIT) -> None:
        self.storage = storage
        self.job = job
        self._limit = limit

    def read_head(self) -> Head | None:
        """The newest entry, verified; None when the log is empty."""
        while True:
            found = self._sequence_numbers(0)
            if not found:
                return None
            head = self._read(found[-1])
            # Between LIST and GET a driver may have appended: what we hold would be the past.
            if head is not None and not self._sequence_numbers(head.entry.seq):
                return head

    def newest_on(self, head: Head) -> Head | None:
        """The newest entry, verified, if nothing but ADMIN entries came after `head`, which was acknowledged; else
        None."""
        newest = self.read_head()
        return newest if newest == head or _is_only_admin_between(head, newest) else None

    def read_checkpoint(self, ref: EntryRef) -> LogEntry:
        """The entry of a checkpoint that a verified entry names.

        Raises MissingFile or CorruptFile. The hash is compared because a slot below the head can be written again: a
        driver that slept while its slot's entry was collected creates it anew, with other content.
        """
        found = self._read(ref.id)
        if found is None:
            raise MissingFile("a retained checkpoint's log entry is gone", file=log_entry(ref.id))
        self._check_retained(found, ref)
        return found.entry

    def read_entry(self, seq: int) -> LogEntry | None:
        """An entry below the head, unverified, for people; None when it is collected."""
        found = self._read(seq)
        return found.entry if found else None

    def append(self, parent: Head | None, draft: Draft) -> Appended | Overtaken:
        """Appends the entry that `draft` makes, directly after `parent` or after ADMIN entries on top of it.

        Returns Overtaken when a CLAIM or COMMIT of somebody else is there: the caller is fenced.
        """
        base = parent
        while True:
            entry = draft(base)
            own = self._create(entry)
            failpoints.hit("log.created")
            head = self._follow(own or base)
            if head is None:
                # Another writer was faster, or entries in between were collected: the newest entry shows which.
                head = self.read_head()
                if head is not None and _has_counted(entry, head):
                    return Appended(own or Head(entry, seal(entry)[1]), head)
                if not _is_only_admin_between(base, head):
                    return Overtaken(created=own is not None)
                # An ADMIN of ours may count or not: once more does no harm.
                base = head
                continue
            if own is not None:
                return Appended(own, head)
            if head == base:
                # The slot is taken, yet nothing that counts is behind our parent: a late write of a dead driver.
                return Overtaken(created=False)
            base = head

    def _create(self, entry: LogEntry) -> Head | None:
        """Writes the entry into its slot; None when another one is there."""
        key = log_entry(entry.seq)
        data, digest = seal(entry, self._limit)
        for _ in range(_PUT_TRIES):
            result = self.storage.put_new(key, data)
            if result is PutResult.CREATED:
                return Head(entry, digest)
            # One read decides. Between two, our own late write could arrive, and be taken for somebody else's.
            found = self._bytes_of(key)
            if found == data and self._is_durable(key):
                return Head(entry, digest)
            if result is PutResult.EXISTS or found is not None:
                return None
            # Unknown, and nothing is there: the request was lost, or its write is still on the way. Writing the same
            # bytes again is safe in both cases.
        raise StorageError(
            "the storage does not say whether a log entry was written", key=key, tries=_PUT_TRIES
        )

    def _is_durable(self, key: str) -> bool:
        """Raises StorageError when that cannot be said: a folder that could not be synced has the name all the same,
        and loses it when power fails, behind an acknowledgement."""
        return self.storage.durable_size(key) is not None

    def _bytes_of(self, key: str) -> bytes | None:
        """What is in the slot: a put whose answer was lost, or was taken for a conflict, left our very bytes there."""
        try:
            return self.storage.get(key, self._limit)
        except MissingFile:
            return None

    def _follow(self, start: Head | None) -> Head | None:
        """The newest entry, when everything between `start` and it is ADMIN of the same generation and linked."""
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
        """Numbers of the entries behind `after`, in order."""
        found = []
        for blob in self.storage.list(LOG, log_entry(after)):
            seq = entry_seq(blob.key)
            if seq is None:
                raise DataError("the log holds a file that is no entry", hint="move it away", file=blob.key)
            found.append(seq)
        return found

    def _read(self, seq: int) -> Head | None:
        key = log_entry(seq)
        try:
            entry, digest = unseal(self.storage.get(key, self._limit), LogEntry, key)
        except MissingFile:
            return None
        if entry.seq != seq or entry.job_uuid != self.job.job_uuid:
            raise CorruptFile("a log entry belongs to another place or job", file=key, seq=entry.seq,
                              job_uuid=entry.job_uuid)  # fmt: skip
        return Head(entry, digest)

    @staticmethod
    def _check_retained(found: Head, ref: EntryRef) -> None:
        if found.sha256 != ref.sha256:
            raise CorruptFile("a retained checkpoint's log entry is not the one that was retained",
                              file=log_entry(ref.id), expected=ref.sha256, found=found.sha256)  # fmt: skip


def _has_counted(entry: LogEntry, head: Head) -> bool:
    """Whether a CLAIM or COMMIT is known to be in the log's history, by what a later entry says.

    The nonce of its CLAIM identifies a run, also where a CLAIM has the same number in a slot that was written again.
    Only the run itself commits, and each barrier once.
    """
    newest = head.entry
    if not entry.run or newest.run != entry.run or newest.seq < entry.seq:
        return False
    return entry.kind is EntryKind.CLAIM or (
        entry.kind is EntryKind.COMMIT and newest.ordinal == entry.ordinal
    )


def _is_only_admin_between(base: Head | None, head: Head | None) -> bool:
    """Whether `head`, a later entry, stands on `base` with nothing but ADMIN entries in between: those carry the run
    and the ordinal on, a CLAIM changes the one and a COMMIT the other."""
    if base is None or head is None or not base.entry.run:
        return False
    return (head.entry.run, head.entry.ordinal) == (base.entry.run, base.entry.ordinal)


def _is_admin_on_top(entry: LogEntry, below: Head) -> bool:
    return (
        entry.kind is EntryKind.ADMIN
        and entry.seq == below.entry.seq + 1
        and entry.generation == below.entry.generation
        and entry.parent == below.sha256
    )
