"""A job root: the directory with a job's FORMAT, log and data, and the steps by which runs change its log.

`write_format` begins a job root; `hold_lease` keeps a checkpoint for a reader outside of a run; `probe_storage` checks
that a storage's put-if-absent is atomic, as the log requires.

A clock decides only when an entry of the log drops a pin, never whether a file is garbage: that follows from the
newest entry alone. So a lease that ends too early, because the reader was suspended or the clocks of two hosts differ,
leads to a missing file and its error. It cannot lead to wrong data: files are immutable, and verified by their hashes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from stateflow import failpoints
from stateflow.checkpoint.log import transitions
from stateflow.checkpoint.log.checkpoint_log import Appended, CheckpointLog, Head, Overtaken
from stateflow.checkpoint.log.completed_checkpoints import AdminEntries, CompletedCheckpoints, RetentionLimits
from stateflow.checkpoint.log.documents import FORMAT_VERSION, ClaimedSavepoint, EntryRef, JobFormat, LogEntry, Pin
from stateflow.checkpoint.log.entry_lists import OutputLists
from stateflow.checkpoint.log.fencing import FENCED_HINT, FenceGuard
from stateflow.checkpoint.log.manifest_files import LIMIT, seal, unseal
from stateflow.checkpoint.log.transitions import Adoption, Author, Commit, Settlement
from stateflow.clock import Clock, to_milliseconds
from stateflow.errors import (
    ConfigError,
    CorruptFile,
    DataError,
    EnvironmentUnsupported,
    Fenced,
    MissingFile,
    StateflowError,
    StorageError,
    WrongJobRoot,
)
from stateflow.helpers import call_periodically, check_name
from stateflow.requesters import by_process
from stateflow.storage import Storage
from stateflow.storage.mounts import check_root_mount
from stateflow.storage.paths import DATA, FORMAT, LAUNCHES, PROBE, probe_key
from stateflow.storage.race_probe import check_put_if_absent
from stateflow.types.key_groups import DEFAULT_MAX_PARALLELISM

log = logging.getLogger(__name__)

T = TypeVar("T")
_TRIES, _FORMAT_TRIES = 50, 4


@dataclass(frozen=True)
class NewJob:
    """The job that a job root is created for; an existing root must match it.

    Attributes:
        name: name of the job.
        max_parallelism: number of key groups. None accepts the number of an existing root, and means the default for
            a new one.
        key_types: Spark type names of the key columns, by operator uid; written into the FORMAT of a new root.
    """

    name: str
    max_parallelism: int | None
    key_types: dict[str, list[str]]


class JobRoot:
    """A job's root directory. Create one with `create_or_open` (a run) or `open` (a command).

    Args:
        job_log: the job's log, in the storage that is the root.
        clock: gives ids and timestamps.
        writer: names this process in the entries that it writes, for display.
    """

    def __init__(self, job_log: CheckpointLog, clock: Clock, writer: str = "") -> None:
        self.storage = job_log.storage
        self.clock = clock
        self.job = job_log.job
        self.writer = writer
        self.log = job_log
        self.checkpoints = CompletedCheckpoints(job_log)
        self.admin = AdminEntries(job_log, self.checkpoints, clock, writer)
        self.outputs = OutputLists(self.storage)

    @property
    def requester(self) -> str:
        """This process as the requester of what no user has requested; stored in the field ``by`` of records."""
        return by_process(self.writer)

    @classmethod
    def create_or_open(cls, storage: Storage, clock: Clock, new: NewJob, writer: str) -> JobRoot:
        """Returns the job root in `storage`, created when it does not exist.

        Raises WrongJobRoot when it belongs to another job, or has another format, max parallelism or key types.
        """
        if storage.size(FORMAT) is None:
            document = JobFormat(
                version=FORMAT_VERSION,
                job=new.name,
                job_uuid=clock.new_id(),
                max_parallelism=new.max_parallelism or DEFAULT_MAX_PARALLELISM,
                key_types=new.key_types,
                shadow=False,
            )
            write_format(storage, document)
        root = cls.open(storage, clock, writer)
        check_same_job(root.job, new, storage.uri)
        return root

    @classmethod
    def create_fork(cls, storage: Storage, source: JobRoot, origin: str, shadow: bool) -> JobRoot:
        """Returns the root of a new job that starts with state of `source`; an existing root is returned unchanged.

        Args:
            storage: the new job root.
            source: the job to fork.
            origin: savepoint or checkpoint that the fork starts with, as stored in FORMAT.
            shadow: whether the fork's runs publish to shadow tables.
        """
        parent = source.job
        document = JobFormat(
            version=FORMAT_VERSION,
            job=parent.job,
            job_uuid=source.clock.new_id(),
            max_parallelism=parent.max_parallelism,
            key_types=parent.key_types,
            forked_from=origin,
            shadow=shadow,
        )
        return cls.create_from(storage, source.clock, document, source.writer)

    @classmethod
    def create_from(cls, storage: Storage, clock: Clock, document: JobFormat, writer: str) -> JobRoot:
        """Returns the root of a new job with this FORMAT; an existing root is returned unchanged."""
        if storage.size(FORMAT) is None:
            write_format(storage, document)
        return cls.open(storage, clock, writer)

    @classmethod
    def open(cls, storage: Storage, clock: Clock, writer: str = "") -> JobRoot:
        """Returns the root of an existing job.

        Raises ConfigError when the job does not exist, WrongJobRoot for an unknown format.
        """
        return cls(CheckpointLog(storage, read_format(storage)), clock, writer)

    def head(self) -> Head:
        """Returns the newest entry, verified. Raises DataError when the job never ran."""
        return self.checkpoints.head()

    def read_kept(self, read: Callable[[Head], T]) -> T:
        """Calls `read` with the newest entry; with a newer one if what it read was released and deleted meanwhile.

        A command that chooses a checkpoint, and pins it or reads its manifest, does both in `read`: a run may commit,
        and collect garbage, in between.

        Raises:
            StorageError: that happened each time. Otherwise what `read` raises: damage, if the newest entry still
                refers to what it read.
        """
        failed = None
        for _ in range(_TRIES):
            head = self.head()
            try:
                return read(head)
            except DataError as e:
                # A deleted file is missing, not damaged; what two entries refer to was not released in between.
                is_same = failed is not None and (failed.code, failed.facts) == (e.code, e.facts)
                if isinstance(e, CorruptFile) or is_same or self.head() == head:
                    raise
                failed = e
        raise StorageError(
            "the job releases its checkpoints faster than they can be read",
            hint="try again; or retain more of them: checkpoints.retained",
            tries=_TRIES,
        )

    def is_released(self, head: Head, error: StateflowError) -> bool:
        """Returns whether an error of a reader of `head` can come from a newer entry, which has released what it read.

        A reader that tolerates damage raises such an error again, so that `read_kept` reads the newer entry.
        """
        return isinstance(error, MissingFile) and self.head() != head

    def claim(self, note: str = "") -> Head:
        """Claims the job for a run, which fences every older run; returns the newest entry.

        Raises:
            Fenced: another run claimed the job concurrently, and later.
            DataError: the job root has data but no log.
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
            raise DataError(
                "the job root has data, but its log is empty",
                hint="restore the newest file of log/ from a copy, or start in a new job root",
                storage=self.storage.uri,
            )

    def claim_on(self, head: Head, request: str, note: str, announced: ClaimedSavepoint | None = None) -> Head | None:
        """Claims the job if only ADMIN entries were appended after `head`; returns None otherwise.

        Args:
            head: the newest entry that the caller knows.
            request: id of the restore request that the claim is for.
            note: text of the entry, for display.
            announced: the savepoint that the caller will claim; see `transitions.claim`.
        """
        outcome = self.log.append(
            head, lambda base: transitions.claim(self.job, base, self._author(note, request), None, announced)
        )
        return outcome.head if isinstance(outcome, Appended) else None

    def adoption(self, head: Head | None, ref: EntryRef) -> Adoption:
        """Returns the `Adoption` of a restorable checkpoint, for a CLAIM that continues from it.

        Raises DataError when it is no longer retained.
        """
        self.checkpoints.check_restorable(head, ref)
        try:
            manifest = self.checkpoints.manifest_of(ref)
        except MissingFile:
            # A command may have released it since `head`, and a collection removed it.
            self.checkpoints.check_restorable(self.log.newest_on(head) if head else None, ref)
            raise
        return Adoption(
            upto=ref.id,
            manifest=ref.manifest,
            sources=manifest.sources,
            checkpoint=ref,
            savepoint=ref.savepoint,
            watermark=manifest.output_watermark,
        )

    def adopt(self, head: Head | None, adoption: Adoption, note: str = "") -> Head:
        """Continues from `adoption`, as the run whose newest entry is `head`; returns the new newest entry.

        Raises Fenced when another run has claimed the job.
        """
        outcome = self._append_claim(head, note, adoption)
        if isinstance(outcome, Overtaken):
            raise self._overtaken(head.entry.generation if head else 0)
        return outcome.head

    def _append_claim(self, parent: Head | None, note: str, adopt: Adoption | None) -> Appended | Overtaken:
        return self.log.append(parent, lambda base: self._claim_entry(base, note, adopt))

    def _claim_entry(self, base: Head | None, note: str, adopt: Adoption | None) -> LogEntry:
        # Checked for each entry that the CLAIM may follow: an ADMIN in between can have released the checkpoint.
        self.checkpoints.check_restorable(base, adopt.checkpoint if adopt else None)
        return transitions.claim(self.job, base, self._author(note), adopt)

    def _overtaken(self, generation: int) -> Fenced:
        """Returns the error of a run that another run has fenced, with the facts of that run where the log has them."""
        found = FenceGuard(self.log, generation).find()
        return found or Fenced("another run claimed the job after this one", hint=FENCED_HINT)

    def commit(self, parent: Head, new: Commit, retention: RetentionLimits) -> Appended | Overtaken:
        """Appends the COMMIT by which a checkpoint exists. Overtaken means that this run is fenced.

        Args:
            parent: this run's newest entry.
            new: the checkpoint.
            retention: which older checkpoints it keeps.

        Raises TooLarge for an entry that could not be read again; nothing has changed then.
        """
        folder = new.manifest.key.rpartition("/")[0] + "/"
        # Only ADMIN entries can come between `parent` and the COMMIT, and those add no checkpoint.
        parent, kept = self.checkpoints.apply_retention(parent, retention, folder, self.clock.now())
        return self.log.append(parent, lambda base: transitions.commit(self.job, base, self._author(), new, kept))

    def settle(self, head: Head, done: Settlement) -> Appended | Overtaken:
        """Appends the ADMIN that ends a run, with what the run has published since its last commit, `head`."""
        return self.log.append(head, lambda base: transitions.settle(self.job, base, self._author("published"), done))

    def finish_rewind(self, head: Head, published: transitions.Published) -> Head:
        """Appends the ADMIN that completes the pending restore; returns the newest entry.

        Args:
            head: this run's newest entry.
            published: position of each rewound table, by uid of the sink.

        Raises Fenced when a newer run has claimed the job.
        """
        outcome = self.log.append(
            head, lambda base: transitions.finish_rewind(self.job, base, self._author("rewound"), published)
        )
        if isinstance(outcome, Overtaken):
            raise self._overtaken(head.entry.generation)
        return outcome.head

    def _author(self, note: str = "", request: str = "") -> Author:
        return Author.now(self.clock, self.writer, note, request)


def write_format(storage: Storage, document: JobFormat) -> None:
    """Writes FORMAT unless it exists. A process that loses the race, or gets no answer, reads the stored document.

    Raises StorageError when the storage does not confirm it.
    """
    for _ in range(_FORMAT_TRIES):
        storage.put_new(FORMAT, seal(document)[0])
        if storage.size(FORMAT) is not None:
            return
    raise StorageError(
        "the storage does not confirm that the job root exists", hint="try again", key=FORMAT, tries=_FORMAT_TRIES
    )


def read_format(storage: Storage) -> JobFormat:
    """Returns FORMAT of an existing job root. Raises ConfigError, WrongJobRoot or CorruptFile."""
    try:
        document, _ = unseal(storage.get(FORMAT, LIMIT), JobFormat, FORMAT)
    except MissingFile as e:
        raise ConfigError("no job exists here", hint="check --job-root", storage=storage.uri) from e
    if document.version != FORMAT_VERSION:
        raise WrongJobRoot(
            "the job root has a format that this version does not know",
            hint="use the version of stateflow that wrote it",
            found=document.version,
            known=FORMAT_VERSION,
        )
    check_name("a job's uuid", document.job_uuid)
    return document


def check_vacant(storage: Storage) -> None:
    """Raises ConfigError unless the storage is empty, apart from storage probes, and results of starts that failed."""
    others = [blob.key for blob in storage.list("") if not blob.key.startswith((PROBE, LAUNCHES))]
    if others:
        raise ConfigError(
            "the folder of the new job root is not empty", hint="choose another one", root=storage.uri, found=others[0]
        )


def check_same_job(found: JobFormat, wanted: NewJob, uri: str) -> None:
    """Raises WrongJobRoot unless an existing root belongs to the wanted job.

    Key types are compared with those of each checkpoint, which has them by operator: a restore may have given the uid
    of an operator to another one, with other keys.
    """
    if found.job != wanted.name:
        raise WrongJobRoot(
            "the job root belongs to another job",
            hint="give each job a root of its own; for a job file with a new name, keep the job's name: --set name=…",
            root=uri,
            found=found.job,
            wanted=wanted.name,
        )
    if wanted.max_parallelism not in (None, found.max_parallelism):
        raise WrongJobRoot(
            "the job root was created with another max parallelism",
            hint="set max_parallelism to the number of the job root, or leave it unset",
            found=found.max_parallelism,
            wanted=wanted.max_parallelism,
        )


LEASE = timedelta(minutes=10)
_RENEWALS = 3
"""Renewals within a lease: two may fail."""


@contextmanager
def hold_lease(root: JobRoot, pin: Pin, lease: timedelta = LEASE) -> Iterator[None]:
    """Renews a leased pin in a thread within a ``with`` block, and removes it at the end.

    Args:
        root: the job root.
        pin: the pin, from `AdminEntries.pin`.
        lease: time from a renewal to the end of the pin; that which the pin was made with.

    Raises:
        MissingFile: as the block does; when the pin has ended before, the error says so.
    """
    # Not the root's: its cache of retained checkpoints is for one thread.
    admin = JobRoot(root.log, root.clock, root.writer).admin
    failpoints.hit("read.pinned")
    try:
        with call_periodically(lease / _RENEWALS, lambda: _renew(admin, pin, lease)):
            yield
        failpoints.hit("read.finished")
    except MissingFile as e:
        # A comparison holds two pins: the inner one has reported the error already.
        if "lease_ms" in e.facts or root.admin.has_pin(pin.id):
            raise
        raise MissingFile(
            "a file of the checkpoint was deleted, because the reader's pin has ended",
            hint="read again; if that fails as well, compare the clocks of the hosts: a pin ends by the clock of the "
            "process that writes the next log entry",
            checkpoint_id=pin.checkpoint.id,
            lease_ms=to_milliseconds(lease.total_seconds()),
            **e.facts,
        ) from e
    finally:
        _unpin(root.admin, pin)
        failpoints.hit("read.unpinned")


def _renew(admin: AdminEntries, pin: Pin, lease: timedelta) -> None:
    try:
        if not admin.renew(pin.id, lease):
            log.warning(
                "the pin of checkpoint %d has ended: a collection may delete files that are read", pin.checkpoint.id
            )
    except StateflowError as e:
        log.warning("could not renew the pin of checkpoint %d, trying again: %s", pin.checkpoint.id, e)


def _unpin(admin: AdminEntries, pin: Pin) -> None:
    try:
        admin.unpin(pin.id)
    except StateflowError as e:
        # What was read is right, and the pin ends with its lease.
        log.warning("could not remove the pin of checkpoint %d, which ends by itself: %s", pin.checkpoint.id, e)


def next_generation(storage: Storage, clock: Clock) -> int:
    """Returns the generation that the next run will claim, according to the log; 1 when the job does not exist."""
    if storage.size(FORMAT) is None:
        return 1
    head = JobRoot.open(storage, clock).log.read_head()
    return head.entry.seq + 1 if head else 1


def probe_job_root(storage: Storage, clock: Clock) -> None:
    """Probes the storage of a job root that other processes may use concurrently. Raises as `probe_storage`."""
    while True:
        generation = next_generation(storage, clock)
        try:
            probe_storage(storage, clock, generation)
        except EnvironmentUnsupported:
            # A run with this generation may have ended meanwhile: then the probe's object was garbage, and a collector
            # that deleted it between two racers let both win.
            if next_generation(storage, clock) == generation:
                raise
        else:
            return


def probe_storage(storage: Storage, clock: Clock, generation: int) -> None:
    """Probes whether the storage lets exactly one of several writers create an object.

    Args:
        storage: the storage to probe.
        clock: gives unique names.
        generation: the generation that the caller is about to claim, so that a collector deletes the objects of an
            interrupted probe.

    Raises:
        EnvironmentUnsupported, StorageError: as `check_put_if_absent`.
    """
    check_root_mount(storage)
    check_put_if_absent(storage, lambda: probe_key(generation, clock.new_id()))
