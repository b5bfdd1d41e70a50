"""A job root: the directory with a job's FORMAT, log and data, and the steps by which runs change its log."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from stateflow import failpoints
from stateflow.checkpoint.log import transitions
from stateflow.checkpoint.log.admin_entries import AdminEntries
from stateflow.checkpoint.log.checkpoint_log import Appended, CheckpointLog, Head, Overtaken
from stateflow.checkpoint.log.completed_checkpoints import CompletedCheckpoints
from stateflow.checkpoint.log.documents import FORMAT_VERSION, ClaimedSavepoint, EntryRef, JobFormat, LogEntry
from stateflow.checkpoint.log.fencing import FENCED_HINT, FenceGuard
from stateflow.checkpoint.log.job_format import NewJob, check_same_job, read_format, write_format
from stateflow.checkpoint.log.outputs import OutputLists
from stateflow.checkpoint.log.retained import RetentionLimits
from stateflow.checkpoint.log.transitions import Adoption, Author, Commit, Settlement
from stateflow.clock import Clock
from stateflow.errors import CorruptFile, DataError, Fenced, MissingFile, StateflowError, StorageError
from stateflow.requesters import by_process
from stateflow.storage import Storage
from stateflow.storage.paths import DATA, FORMAT
from stateflow.types.key_groups import DEFAULT_MAX_PARALLELISM

T = TypeVar("T")
_TRIES = 50


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
            adopted = self.checkpoints.resolve(ref)
            assert adopted.manifest is not None
            sources = self.checkpoints.read_manifest(adopted.manifest).sources
        except MissingFile:
            # A command may have released it since `head`, and a collection removed it.
            self.checkpoints.check_restorable(self.log.newest_on(head) if head else None, ref)
            raise
        return Adoption(
            upto=ref.id, manifest=adopted.manifest, sources=sources, checkpoint=adopted, savepoint=adopted.savepoint
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
