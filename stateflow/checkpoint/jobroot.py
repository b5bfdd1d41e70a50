"""One job's root: its FORMAT, its log, and the steps that a run or an outsider takes in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

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
from stateflow.checkpoint.entries import Adoption, Author, Commit, Retention
from stateflow.checkpoint.envelope import LIMIT, seal, unseal
from stateflow.checkpoint.fencing import fenced_by
from stateflow.checkpoint.files import read_manifest
from stateflow.checkpoint.log import Appended, CheckpointLog, Head, Overtaken
from stateflow.clock import Clock
from stateflow.errors import (
    ConfigError,
    CorruptFile,
    DataError,
    Fenced,
    MissingFile,
    StorageError,
    WrongJobRoot,
)
from stateflow.ids import check_name
from stateflow.keygroups import DEFAULT_MAX_PARALLELISM
from stateflow.state.handles import FileHandle
from stateflow.storage import Storage
from stateflow.storage.paths import FORMAT, PROBE, log_entry

_ADMIN_TRIES = 20
_FORMAT_TRIES = 4


@dataclass(frozen=True)
class NewJob:
    """What a job root is created with; an existing root must agree.

    Attributes:
        max_parallelism: number of key groups. None takes what an existing root has, and the default for a new one.
        key_types: Spark type names of the key columns, by operator uid.
    """

    name: str
    max_parallelism: int | None
    key_types: dict[str, list[str]]


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

    @classmethod
    def create_or_open(cls, storage: Storage, clock: Clock, new: NewJob, writer: str) -> JobRoot:
        """The root, created when there is none.

        Raises WrongJobRoot when it is another job's, or of another format, max parallelism or key type.
        """
        if storage.size(FORMAT) is None:
            _write_format(storage, JobFormat(version=FORMAT_VERSION, job=new.name, job_uuid=clock.new_id(),
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
            _write_format(storage, document)
        return cls.open(storage, clock, writer)

    @classmethod
    def open(cls, storage: Storage, clock: Clock, writer: str = "") -> JobRoot:
        """The root of an existing job. Raises ConfigError when there is none, WrongJobRoot for a foreign format."""
        return cls(storage, clock, read_format(storage), writer)

    def claim(self, note: str = "") -> Head:
        """Takes the job over: every older run is fenced from here on.

        Raises:
            Fenced: another run claimed the job at the same moment, and later.
        """
        failpoints.hit("claim.before")
        while True:
            outcome = self._append_claim(self.log.read_head(), note, None)
            if isinstance(outcome, Appended):
                failpoints.hit("claim.after")
                return outcome.head
            if outcome.created:
                raise self._overtaken(0)

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
        _check_adoptable(head, ref)
        adopted = self.log.read_checkpoint(ref)
        assert adopted.manifest is not None
        return Adoption(
            upto=ref.id, manifest=adopted.manifest, sources=adopted.sources, checkpoint=ref, savepoint=adopted.savepoint
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
            _check_adoptable(base, adopt.checkpoint if adopt else None)
            return entries.claim(self.job, base, self._author(note), adopt)

        return self.log.append(base, draft)

    def _overtaken(self, generation: int) -> Fenced:
        """The error of a run that another one has overtaken: with who it is, where the log can be read."""
        found = fenced_by(self.log, generation)
        return found or Fenced("another run claimed the job after this one", hint="let the other run work")

    def commit(self, parent: Head, new: Commit, kept: Retention) -> Appended | Overtaken:
        """Makes a checkpoint exist. Overtaken means that this run is fenced."""

        def draft(base: Head | None) -> LogEntry:
            assert base is not None
            return entries.commit(self.job, base, self._author(), new, kept)

        return self.log.append(parent, draft)

    def settle(
        self, head: Head, published: entries.Published, settled: entries.Settled
    ) -> Appended | Overtaken:
        """Tells what the run whose `head` is the newest entry has published since its last commit."""

        def draft(base: Head | None) -> LogEntry:
            assert base is not None
            return entries.settle(self.job, base, self._author("published"), published, settled)

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
            if ref not in kept(base):
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
            if len(head.entry.retained) <= keep - 1:
                return head
            self._admin(head, lambda b: entries.retain(self.job, b, self._author(f"retain {keep}"), keep))
        raise _busy()

    def head(self) -> Head:
        """The newest entry, verified. Raises DataError when the job never ran."""
        head = self.log.read_head()
        if head is None:
            raise DataError("the job has no log entry yet", hint="run it first", storage=self.storage.uri)
        return head

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
        if self.log.read_checkpoint(ref).manifest != manifest:
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

        return isinstance(self.log.append(head, checked), Appended)

    def _author(self, note: str = "", request: str = "") -> Author:
        at = self.clock.now().isoformat(timespec="milliseconds")
        return Author(self.writer, self.clock.new_id(), at, note, request)


def kept(head: Head) -> list[EntryRef]:
    """Every checkpoint that the entry keeps, the present one last."""
    pins = [p.checkpoint for p in head.entry.pinned]
    return [*pins, *line(head)]


def line(head: Head) -> list[EntryRef]:
    """The checkpoints that the job can continue from, the present one last.

    Not those that only a pin keeps: a restore may have left them on a branch whose output was never published.
    """
    return [*head.entry.retained, *([head.checkpoint] if head.checkpoint else [])]


def _check_adoptable(base: Head | None, ref: EntryRef | None) -> None:
    if ref and (base is None or ref not in line(base)):
        raise DataError("the checkpoint to go back to is not retained any more", checkpoint=ref.id)


def _write_format(storage: Storage, document: JobFormat) -> None:
    """Writes FORMAT unless there is one. Whoever loses this race, or does not hear its answer, reads what is there."""
    for _ in range(_FORMAT_TRIES):
        storage.put_new(FORMAT, seal(document)[0])
        if storage.size(FORMAT) is not None:
            return
    raise StorageError("the storage does not say whether it made the job root", hint="try again", key=FORMAT,
                       tries=_FORMAT_TRIES)  # fmt: skip


def read_format(storage: Storage) -> JobFormat:
    """FORMAT of an existing job root. Raises ConfigError, WrongJobRoot or CorruptFile."""
    try:
        document, _ = unseal(storage.get(FORMAT, LIMIT), JobFormat, FORMAT)
    except MissingFile as e:
        raise ConfigError("there is no job here", hint="check --job-root", storage=storage.uri) from e
    if document.version != FORMAT_VERSION:
        raise WrongJobRoot("the job root has a format that this version does not know", hint="use the version of "
                           "stateflow that wrote it", found=document.version, known=FORMAT_VERSION)  # fmt: skip
    check_name("a job's uuid", document.job_uuid)
    return document


def check_vacant(storage: Storage) -> None:
    """Raises ConfigError for a place that holds anything but what a probe has left."""
    others = [blob.key for blob in storage.list("") if not blob.key.startswith(PROBE)]
    if others:
        raise ConfigError("the place for the new job root is not empty", hint="choose another one", root=storage.uri,
                          found=others[0])  # fmt: skip


def check_same_job(found: JobFormat, wanted: NewJob, uri: str) -> None:
    """Raises WrongJobRoot unless an existing root is the wanted job's."""
    if found.job != wanted.name:
        raise WrongJobRoot("the job root belongs to another job", hint="give each job a root of its own",
                           root=uri, found=found.job, wanted=wanted.name)  # fmt: skip
    if wanted.max_parallelism not in (None, found.max_parallelism):
        raise WrongJobRoot(
            "the job root was made with another max parallelism",
            hint="set max_parallelism to what the root has, or do not set it",
            found=found.max_parallelism,
            wanted=wanted.max_parallelism,
        )
    for uid, types in wanted.key_types.items():
        if found.key_types.get(uid, types) != types:
            raise WrongJobRoot("the key columns of an operator have other types than its state was written with",
                               hint="cast the columns back, or give the operator a new uid", uid=uid,
                               found=found.key_types[uid], wanted=types)  # fmt: skip


def _busy() -> DataError:
    return DataError("the job's log moves too fast to add an entry", hint="try again")
