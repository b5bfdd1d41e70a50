"""One job's root: its FORMAT, its log, and the steps that a run or an outsider takes in it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from stateflow import failpoints
from stateflow.checkpoint import entries
from stateflow.checkpoint.documents import (
    FORMAT_VERSION,
    EntryRef,
    JobFormat,
    LogEntry,
    Manifest,
    Pin,
)
from stateflow.checkpoint.entries import Adoption, Author, Commit, Kept, Settlement
from stateflow.checkpoint.fencing import fenced_by
from stateflow.checkpoint.files import read_manifest
from stateflow.checkpoint.garbage import is_old_entry
from stateflow.checkpoint.job_format import NewJob, check_same_job, read_format, write_format
from stateflow.checkpoint.log import Appended, CheckpointLog, Head, Overtaken
from stateflow.checkpoint.output import OutputLists
from stateflow.checkpoint.retained import RetainedCheckpoints, Retention, oldest_kept
from stateflow.clock import Clock
from stateflow.errors import (
    ConfigError,
    CorruptFile,
    DataError,
    Fenced,
    MissingFile,
    StateflowError,
    StorageError,
)
from stateflow.keygroups import DEFAULT_MAX_PARALLELISM
from stateflow.state.handles import FileHandle
from stateflow.storage import Storage
from stateflow.storage.paths import DATA, FORMAT, log_entry

log = logging.getLogger(__name__)

T = TypeVar("T")

_ADMIN_TRIES = 20


class JobRoot:
    """A job's directory. Make one with `create_or_open` (a run) or `open` (anybody else).

    Args:
        writer: names this process in the entries that it writes, for people.
    """

    def __init__(self, storage: Storage, clock: Clock, job: JobFormat, writer: str = "") -> None:
        self.storage = storage
        self.clock = clock
        self.job = job
        self.writer = writer
        self.log = CheckpointLog(storage, job)
        self.retained = RetainedCheckpoints(storage)
        self.output = OutputLists(storage)

    @classmethod
    def create_or_open(cls, storage: Storage, clock: Clock, new: NewJob, writer: str) -> JobRoot:
        """The root, created when there is none.

        Raises WrongJobRoot when it is another job's, or of another format, max parallelism or key type.
        """
        if storage.size(FORMAT) is None:
            write_format(storage, JobFormat(version=FORMAT_VERSION, job=new.name, job_uuid=clock.new_id(),
                                            max_parallelism=new.max_parallelism or DEFAULT_MAX_PARALLELISM,
                                            key_types=new.key_types))  # fmt: skip
        root = cls.open(storage, clock, writer)
        check_same_job(root.job, new, storage.uri)
        return root

    @classmethod
    def create_fork(cls, storage: Storage, source: JobRoot, origin: str, shadow: bool) -> JobRoot:
        """The root of a new job that begins with state of `source`; an existing one is returned as it is.

        Args:
            origin: what it is a fork of.
        """
        parent = source.job
        document = JobFormat(version=FORMAT_VERSION, job=parent.job, job_uuid=source.clock.new_id(),
                             max_parallelism=parent.max_parallelism, key_types=parent.key_types,
                             forked_from=origin, shadow=shadow)  # fmt: skip
        return cls.begin(storage, source.clock, document, source.writer)

    @classmethod
    def begin(cls, storage: Storage, clock: Clock, document: JobFormat, writer: str) -> JobRoot:
        """The root of a new job with this FORMAT; an existing one is returned as it is."""
        if storage.size(FORMAT) is None:
            write_format(storage, document)
        return cls.open(storage, clock, writer)

    @classmethod
    def open(cls, storage: Storage, clock: Clock, writer: str = "") -> JobRoot:
        """The root of an existing job. Raises ConfigError when there is none, WrongJobRoot for a foreign format."""
        return cls(storage, clock, read_format(storage), writer)

    def claim(self, note: str = "") -> Head:
        """Takes the job over: every older run is fenced from here on.

        Raises:
            Fenced: another run claimed the job at the same moment, and later.
            DataError: the log is gone.
        """
        failpoints.hit("claim.before")
        while True:
            head = self.log.read_head()
            if head is None:
                self._check_new()
            outcome = self._append_claim(head, note, None)
            if isinstance(outcome, Appended):
                failpoints.hit("claim.after")
                return outcome.head
            if outcome.created:
                raise self._overtaken(0)

    def _check_new(self) -> None:
        """A run stores data after its CLAIM only, and the newest entry is never deleted."""
        if self.storage.list(DATA) and self.log.read_head() is None:
            raise DataError("the job root has data, and its log is empty", hint="put the newest file of log/ back from "
                            "a copy, or begin in a new job root", storage=self.storage.uri)  # fmt: skip

    def claim_on(self, head: Head, request: str, note: str) -> Head | None:
        """Takes the job over if it still stands at `head`, but for ADMIN entries; None when it has moved on.

        Args:
            request: the restore that it is for.
        """
        outcome = self.log.append(
            head, lambda base: entries.claim(self.job, base, self._author(note, request), None)
        )
        return outcome.head if isinstance(outcome, Appended) else None

    def adoption(self, head: Head | None, ref: EntryRef) -> Adoption:
        """A checkpoint of the line as something to continue from. Raises DataError when it is not there any more."""
        self._check_adoptable(head, ref)
        try:
            adopted = self.resolved(ref)
            assert adopted.manifest is not None
            sources = self.read_manifest(adopted.manifest).sources
        except MissingFile:
            # A command may have released it since `head`, and a collection removed it.
            self._check_adoptable(self.log.newest_on(head) if head else None, ref)
            raise
        return Adoption(
            upto=ref.id, manifest=adopted.manifest, sources=sources, checkpoint=adopted, savepoint=adopted.savepoint
        )  # fmt: skip

    def adopt(self, head: Head | None, adoption: Adoption, note: str = "") -> Head:
        """Continues from `adoption`, as the run whose `head` is the newest entry.

        Raises Fenced when another run claimed the job meanwhile.
        """
        outcome = self._append_claim(head, note, adoption)
        if isinstance(outcome, Overtaken):
            raise self._overtaken(head.entry.generation if head else 0)
        return outcome.head

    def _append_claim(self, base: Head | None, note: str, adopt: Adoption | None) -> Appended | Overtaken:
        def draft(base: Head | None) -> LogEntry:
            # For each entry that the CLAIM may come to stand on: an ADMIN in between can have let the checkpoint go.
            self._check_adoptable(base, adopt.checkpoint if adopt else None)
            return entries.claim(self.job, base, self._author(note), adopt)

        return self.log.append(base, draft)

    def _overtaken(self, generation: int) -> Fenced:
        """The error of a run that another one has overtaken: with who it is, where the log can be read."""
        found = fenced_by(self.log, generation)
        return found or Fenced("another run claimed the job after this one", hint="let the other run work")

    def commit(self, parent: Head, new: Commit, kept: Retention) -> Appended | Overtaken:
        """Makes a checkpoint exist. Overtaken means that this run is fenced.

        Raises TooLarge for an entry that could not be read again; nothing has changed then.
        """
        # Only ADMIN entries can come between `parent` and the COMMIT, and those bring no checkpoint.
        parent, keeps = self._with_list(parent, lambda head: self._kept_by(head, new, kept))

        def draft(base: Head | None) -> LogEntry:
            assert base is not None
            return entries.commit(self.job, base, self._author(), new, keeps)

        return self.log.append(parent, draft)

    def _kept_by(self, parent: Head, new: Commit, kept: Retention) -> Kept:
        now = self.clock.now().isoformat()
        oldest = oldest_kept(self.line(parent), kept, now, parent.entry.at) or parent.entry.seq + 1
        folder = new.manifest.key.rpartition("/")[0] + "/"
        try:
            moved = self.retained.moved(parent.entry, parent.checkpoint, folder, oldest)
        except (StorageError, MissingFile) as e:
            # The entry is a little longer then; the next COMMIT tries again, in a folder of its own. A list is gone
            # when a command has shortened it since `parent`, and its objects were collected.
            log.warning("retained checkpoints stay in the log entry: %s", e)
            moved = None
        return Kept(oldest, moved)

    def settle(self, head: Head, done: Settlement) -> Appended | Overtaken:
        """Says what the run whose `head` is the newest entry has published since its last commit, and that it ends."""

        def draft(base: Head | None) -> LogEntry:
            assert base is not None
            return entries.settle(self.job, base, self._author("published"), done)

        return self.log.append(head, draft)

    def rewound(self, head: Head, published: entries.Published) -> Head:
        """Tells that every table of the pending restore has gone back. Raises Fenced when a newer run has claimed."""

        def draft(base: Head | None) -> LogEntry:
            assert base is not None
            return entries.rewound(self.job, base, self._author("went back"), published)

        outcome = self.log.append(head, draft)
        if isinstance(outcome, Overtaken):
            raise self._overtaken(head.entry.generation)
        return outcome.head

    def pin(self, ref: EntryRef, owner: str, reason: str, generation: int = 0) -> Pin:
        """Keeps a checkpoint that the newest entry still has, until `unpin`; works beside a run.

        Args:
            generation: of the run that reads it itself; its pin ends with the next CLAIM.

        Raises DataError when it is not kept any more.
        """
        new = Pin(
            id=self.clock.new_id(),
            checkpoint=ref,
            owner=owner,
            reason=reason,
            since=self.clock.now().isoformat(),
            generation=generation,
        )

        def draft(base: Head) -> LogEntry:
            # For each entry that the ADMIN may come to stand on: another ADMIN in between can have let `ref` go.
            if ref not in self.kept(base):
                raise DataError("the checkpoint is not retained any more", checkpoint=ref.id)
            if generation and base.entry.generation != generation:
                raise Fenced("a newer run has claimed the job", hint="let the other run work", generation=generation,
                             newer=base.entry.generation)  # fmt: skip
            return entries.pin(self.job, base, self._author(reason), new)

        for _ in range(_ADMIN_TRIES):
            head = self.head()
            if new in head.entry.pinned:
                return new
            if self._admin(head, draft):
                return new
        raise _busy()

    @contextmanager
    def pinned(self, ref: EntryRef, owner: str, reason: str, generation: int = 0) -> Iterator[Pin]:
        """Keeps a checkpoint while somebody reads it. Arguments and errors are those of `pin`."""
        pin = self.pin(ref, owner, reason, generation)
        try:
            yield pin
        finally:
            self.unpin(pin.id)

    def unpin(self, pin_id: str) -> None:
        """Lets a pinned checkpoint go; nothing happens when there is no such pin."""
        for _ in range(_ADMIN_TRIES):
            head = self.head()
            if all(p.id != pin_id for p in head.entry.pinned):
                return
            self._admin(head, lambda b: entries.unpin(self.job, b, self._author(), pin_id))
        raise _busy()

    def retain(self, keep: int) -> Head:
        """Drops all but the newest `keep` checkpoints; works beside a run. Returns the newest entry."""
        if keep < 1:
            raise ConfigError("at least one checkpoint must be retained", value=keep)
        for _ in range(_ADMIN_TRIES):
            head = self.head()
            line = self.line(head)
            if len(line) <= keep:
                return head
            author, oldest = self._author(f"retain {keep}"), line[-keep].id
            self._admin(head, partial(entries.retain, self.job, author=author, oldest=oldest))
        raise _busy()

    def head(self) -> Head:
        """The newest entry, verified. Raises DataError when the job never ran."""
        head = self.log.read_head()
        while head is not None:
            try:
                # Here, so that who asks for its checkpoints later gets them, whatever was collected meanwhile.
                self.retained.of(head.entry)
                return head
            except MissingFile:
                newer = self.log.read_head()
                if newer == head:
                    raise
                head = newer
        raise DataError("the job has no log entry yet", hint="run it first", storage=self.storage.uri)

    def line(self, head: Head) -> list[EntryRef]:
        """The checkpoints that the job can continue from, oldest first, the present one last.

        Not those that only a pin keeps: a restore may have left them on a branch whose output was never published.
        Without those that were released after `head`, where the list of `head` is gone. Raises MissingFile or
        CorruptFile.
        """
        retained = self._with_list(head, lambda head: self.retained.of(head.entry))[1]
        return [*retained, *([head.checkpoint] if head.checkpoint else [])]

    def _with_list(self, head: Head, ask: Callable[[Head], T]) -> tuple[Head, T]:
        """What `ask` says of `head`, or of a newer entry with the same checkpoint, when a command has shortened the
        list of retained checkpoints since then and its objects were collected."""
        while True:
            try:
                return head, ask(head)
            except MissingFile:
                newer = self.log.newest_on(head)
                if newer is None or newer == head:
                    raise
                head = newer

    def kept(self, head: Head) -> list[EntryRef]:
        """Every checkpoint that the entry keeps, the present one last. Raises MissingFile or CorruptFile."""
        pins = [p.checkpoint for p in head.entry.pinned]
        return [*pins, *self.line(head)]

    def resolved(self, ref: EntryRef) -> EntryRef:
        """The same checkpoint with its manifest and time, which an older version keeps in the log entry only.

        Raises MissingFile or CorruptFile.
        """
        if ref.manifest is not None:
            return ref
        entry = self.log.read_checkpoint(ref)
        if entry.manifest is None:
            raise CorruptFile("a checkpoint's log entry names no manifest", file=log_entry(ref.id))
        return replace(ref, manifest=entry.manifest, at=entry.at, savepoint=entry.savepoint)

    def manifest_of(self, ref: EntryRef) -> Manifest:
        """What a checkpoint consists of. Raises MissingFile or CorruptFile."""
        handle = self.resolved(ref).manifest
        assert handle is not None
        return self.read_manifest(handle)

    def manifest(self, head: Head) -> Manifest | None:
        """What the checkpoint of `head` consists of; None when there is none.

        Raises MissingFile or CorruptFile, also for the checkpoint's own entry: the next COMMIT will retain it.
        """
        if head.entry.manifest is None:
            return None
        if head.checkpoint and not head.entry.is_checkpoint:
            self._check_checkpoint_entry(head.checkpoint, head.entry.manifest)
        return self.read_manifest(head.entry.manifest)

    def _check_checkpoint_entry(self, ref: EntryRef, manifest: FileHandle) -> None:
        if self.resolved(ref).manifest != manifest:
            raise CorruptFile("the newest log entry names another manifest than its checkpoint's own entry",
                              file=log_entry(ref.id), expected=manifest.key)  # fmt: skip

    def read_manifest(self, handle: FileHandle) -> Manifest:
        """A manifest of this job. Raises MissingFile or CorruptFile."""
        manifest = read_manifest(self.storage, handle)
        if manifest.job_uuid != self.job.job_uuid:
            raise DataError("a manifest belongs to another job", file=handle.key, job_uuid=manifest.job_uuid)
        return manifest

    def _admin(self, head: Head, draft: entries.Admin) -> bool:
        def checked(base: Head | None) -> LogEntry:
            assert base is not None
            return draft(base)

        outcome = self.log.append(head, checked)
        if isinstance(outcome, Appended):
            self._forget_entry(outcome.own.entry.seq - 1, outcome.head)
            return True
        return False

    def _forget_entry(self, seq: int, head: Head) -> None:
        """Deletes the entry that an ADMIN replaces: without runs, no collection would for a long time."""
        try:
            needed = {ref.id for ref in self.kept(head) if ref.manifest is None}
            if is_old_entry(head.entry, seq) and seq not in needed:
                self.storage.delete([log_entry(seq)])
        except StateflowError as e:
            # The new entry counts, and a deletion that is refused must not fail what it was appended for; a list that
            # is gone belongs to a head that is not the newest any more.
            log.warning("a log entry is left for the next collection: %s", e)

    def _check_adoptable(self, base: Head | None, ref: EntryRef | None) -> None:
        if ref and (base is None or ref not in self.line(base)):
            raise DataError("the checkpoint to go back to is not retained any more", checkpoint=ref.id)

    def _author(self, note: str = "", request: str = "") -> Author:
        at = self.clock.now().isoformat(timespec="milliseconds")
        return Author(self.writer, self.clock.new_id(), at, note, request)


def _busy() -> DataError:
    return DataError("the job's log moves too fast to add an entry", hint="try again")
