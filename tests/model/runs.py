"""Runs of the job: the real `JobRun` with an executor that only writes files, and a freer one that does what the
protocol allows beyond it: giving checkpoints up, publishing later, adopting an older checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from stateflow.checkpoint.barrier.pending_barrier import Participant
from stateflow.checkpoint.barrier.task_report import TaskReport
from stateflow.checkpoint.log.checkpoint_log import Appended, Head
from stateflow.checkpoint.log.documents import EntryRef, Manifest, OperatorState, PendingOutput, SourcePosition
from stateflow.checkpoint.log.fencing import FenceGuard
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import check_hashes, files_of, write_manifest
from stateflow.checkpoint.log.retained import Retention
from stateflow.checkpoint.log.transitions import Commit
from stateflow.config.settings import CheckpointSettings, Settings
from stateflow.errors import (
    BatchFailed,
    ConfigError,
    DataError,
    Fenced,
    ForeignRows,
    MissingFile,
    SinkDiverged,
    StorageError,
)
from stateflow.runtime.driver import job_restore as runtime
from stateflow.runtime.driver.job_run import JobRun
from stateflow.runtime.executor import BatchWork, Executor
from stateflow.runtime.job.job import Job, Positions
from stateflow.runtime.publisher import Publisher
from stateflow.runtime.restore.rewind import recover_pending_output
from stateflow.state.handles import Committable, FileHandle, StateFile, SubtaskState
from stateflow.storage.paths import data_folder, probe, spark_location
from tests.model.fixture_world import JOB, Site
from tests.model.rules import Violation, is_not_retained, misses_output

_OPERATOR, _KEY_TYPES = "op", ["bigint"]
_DESCRIPTION = "simulated"


class GaveUp(Exception):
    """A run ended for a reason that is not a violation; Airflow would start another."""


class Run:
    """A run from its start to its end, however it ends; what it does is `start` and `batch`."""

    def __init__(self, site: Site, name: str, batches: int) -> None:
        self.site = site
        self.name = name
        self.batches = batches
        self.needs_person = False

    def __call__(self) -> None:
        site = self.site
        try:
            self.start()
            for _ in range(self.batches):
                if self.stopped:
                    break
                self.batch()
            self.finish()
        except Fenced:
            site.count("fenced")
            if self.generation:
                site.checker.fenced(self.generation)
        except (StorageError, GaveUp):
            site.count("runs that gave up")
        except BatchFailed as e:
            if not site.plan.asynchronous or e.facts.get("setting") != "checkpoints.timeout":
                raise
            site.count("runs that waited in vain")
        except DataError as e:
            self._judge(e)
        self.abandon()

    def abandon(self) -> None:
        """Stops the background threads after a failure."""

    @property
    def generation(self) -> int:
        """The run's generation, 0 before its claim is acknowledged."""
        raise NotImplementedError

    @property
    def stopped(self) -> bool:
        """Whether somebody asked it to stop."""
        return False

    def start(self) -> None:
        """Takes the job over and makes ready for the first batch."""
        raise NotImplementedError

    def batch(self) -> None:
        """One micro-batch, up to its barrier, its commit, and the publishing of its output."""
        raise NotImplementedError

    def finish(self) -> None:
        """Ends the run in good order."""

    def open(self) -> JobRoot:
        """The job root, after what a run leaves of its race probe when it dies in between (the real one needs
        threads)."""
        site = self.site
        try:
            root = site.watch(JobRoot.create_or_open(site.storage, site.clock, JOB, self.name))
        except ConfigError as e:
            # FORMAT's put was lost, or is still on its way.
            site.count("no FORMAT")
            raise GaveUp from e
        if site.chance(0.1):
            head = root.log.read_head()
            key = probe(head.entry.seq + 1 if head else 1, site.clock.new_id())
            site.storage.put_data(key, b"racer")
            site.storage.delete([key])
        return root

    def _judge(self, error: DataError) -> None:
        """A file may be missing only for a run that is fenced, or when somebody removed it by hand."""
        if isinstance(error, SinkDiverged):
            raise Violation("S1", f"{self.name}: {error}") from error
        if isinstance(error, ForeignRows):
            self._stopped_by_others(error)
        elif self.site.plan.vacuum and is_not_retained(error):
            # A command shortened the retention while the run was going back.
            self.site.count("runs that gave up")
        elif self.site.plan.vacuum and misses_output(error):
            self.site.count("runs that miss output")
            self.needs_person = True
        elif not self.generation or self.site.checker.is_newest(self.generation):
            raise Violation("I3", f"{self.name}: {error}") from error
        else:
            self.site.count("fenced")

    def _stopped_by_others(self, error: ForeignRows) -> None:
        if not self.site.plan.appenders:
            raise Violation("S4", f"{self.name}: {error}") from error
        # Nothing is undone: a person approves another plan.
        self.site.count("runs stopped by others' rows")
        self.needs_person = True


class FreeRun(Run):
    """A run that uses the log, the manifests and the publisher directly."""

    def __init__(self, site: Site, name: str, batches: int) -> None:
        super().__init__(site, name, batches)
        self.head: Head | None = None
        self.root: JobRoot
        self.publisher: Publisher
        self.base: list[FileHandle] = []
        self.ordinal = 0
        self.files: list[FileHandle] = []
        self.output: dict[str, list[Committable]] = {}

    @property
    def generation(self) -> int:
        return self.head.entry.generation if self.head else 0

    def start(self) -> None:
        site = self.site
        self.root = self.open()
        sinks = site.bind(self.root)
        self.publisher = Publisher(self.root, sinks)
        self.head = self._claim()
        self.head = runtime.complete_rewind(self.root, sinks, self.head)
        self.head = recover_pending_output(
            self.publisher, self.root, sinks, self.head, FenceGuard(self.root.log, self.generation)
        )
        manifest = self.root.checkpoints.manifest_at(self.head)
        if manifest is not None:
            self.base = files_of(manifest)
            check_hashes(site.storage, site.rng.sample(self.base, min(2, len(self.base))))
        site.storage.put_data(f"{spark_location(self.generation)}/metadata", b"{}")

    def batch(self) -> None:
        site = self.site
        assert self.head is not None
        self.ordinal = self.head.entry.seq + 1 if site.name_by_seq else self.ordinal + 1
        files, output = site.write_attempt(self.generation, self.ordinal)
        self.files += files
        for sink, committables in output.items():
            self.output.setdefault(sink, []).extend(committables)
        if site.chance(site.plan.abort):
            # Its files and its output pass to the next checkpoint.
            site.count("checkpoints given up")
            return
        if self.base:
            check_hashes(site.storage, [site.rng.choice(self.base)])
        self._commit(self.head)
        if site.chance(site.plan.publish):
            self._publish(self.head)

    def _claim(self) -> Head:
        adopt, since = self._older_checkpoint()
        try:
            head = self._adopt(adopt) if adopt else self.root.claim()
        except DataError as e:
            if adopt is None or self.site.checker.adoptable_since(adopt.id, since):
                raise Violation("I3", f"{self.name} adopting {adopt}: {e}") from e
            self.site.count("adoptions refused")
            raise GaveUp from e
        self.site.count("claims" if adopt is None else "adoptions")
        return head

    def _adopt(self, ref: EntryRef) -> Head:
        """Goes back while it claims, as the protocol allows; people restore with a plan and an intent."""
        head = self.root.log.read_head()
        return self.root.adopt(head, self.root.adoption(head, ref))

    def _older_checkpoint(self) -> tuple[EntryRef | None, int]:
        """A checkpoint to go back to, and the entry that it was found in."""
        if self.site.chance(self.site.plan.adopts):
            try:
                head = self.root.head()
            except MissingFile:
                raise
            except DataError:
                # The log is empty.
                return None, 0
            if retained := self.root.checkpoints.retained.read(head.entry):
                return self.site.rng.choice(retained), head.entry.seq
        return None, 0

    def _commit(self, parent: Head) -> None:
        site = self.site
        files = [f for f in self.base if site.chance(0.6)] + self.files
        folder = data_folder(self.generation, self.ordinal, site.clock.new_id())
        manifest = Manifest(
            job_uuid=self.root.job.job_uuid,
            generation=self.generation,
            ordinal=self.ordinal,
            operators=[_operator(folder, files)],
            sources=[_position(folder)],
        )
        output = [PendingOutput(checkpoint_id=0, sink=s, committables=c) for s, c in self.output.items()]
        output = self.root.outputs.store(folder, "output", output)
        new = Commit(
            self.ordinal,
            write_manifest(site.storage, folder, manifest),
            manifest.sources,
            output,
            self.publisher.published,
            self.publisher.settled,
        )
        outcome = self.root.commit(parent, new, Retention(site.plan.retain))
        if not isinstance(outcome, Appended):
            raise Fenced("overtaken")
        site.count("commits")
        self.publisher.discard_settled(outcome.head)
        self.head, self.base, self.files, self.output = outcome.head, files, [], {}

    def _publish(self, head: Head) -> None:
        """A run whose sink does not answer gives up, or carries the output on."""
        try:
            self.publisher.publish_pending(head)
        except StorageError:
            if self.site.chance(0.5):
                raise


@dataclass(frozen=True)
class OneOperator:
    """Stands for a `JobPlan`: one operator with one subtask."""

    parallelism: int = 1
    key_types: dict[str, list[str]] = field(default_factory=lambda: {_OPERATOR: _KEY_TYPES})
    levels: tuple[Any, ...] = field(default_factory=lambda: (_Level((_Chain(_OPERATOR),)),))

    sources: tuple[Any, ...] = ()
    chains: tuple[Any, ...] = ()
    strategies: dict[str, Any] = field(default_factory=dict)
    row_counting_chains: frozenset[str] = frozenset({_OPERATOR})

    def participants(self) -> list[Participant]:
        """Who must report on a barrier."""
        return [Participant(_OPERATOR, 0)]


@dataclass(frozen=True)
class _Chain:
    uid: str


@dataclass(frozen=True)
class _Level:
    chains: tuple[_Chain, ...]


class _Writer(Executor):
    """Runs a batch by writing files to the simulated storage and sinks."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def empty_rows(self, plan: object) -> Any:
        return None

    def keep_workers_alive(self, plan: object, info: object) -> None:
        """Files are stored by actors that live."""

    def execute(self, rows: Any, work: BatchWork) -> list[TaskReport]:
        site, info = self._site, work.info
        files, output = site.write_attempt(info.id.generation, info.id.ordinal)
        base = [f.handle for o in work.base.values() for s in o.subtasks for f in s.files]
        attempt = site.clock.new_id()
        state = _operator(attempt, [f for f in base if site.chance(0.6)] + files).subtasks[0]
        return [
            TaskReport(
                generation=info.id.generation,
                ordinal=info.id.ordinal,
                uid=_OPERATOR,
                subtask=0,
                attempt=attempt,
                key_types=_KEY_TYPES,
                state=state,
                output=output,
            )
        ]


class RealRun(Run):
    """The run as users have it."""

    def __init__(self, site: Site, name: str, batches: int) -> None:
        super().__init__(site, name, batches)
        self.run: JobRun | None = None

    @property
    def generation(self) -> int:
        return self.run.head.entry.generation if self.run and hasattr(self.run, "head") else 0

    def start(self) -> None:
        site = self.site
        self.run = JobRun(job_of(site, self.open()), _Writer(site))
        self.run.start()
        site.count("claims")

    def batch(self) -> None:
        assert self.run is not None
        self.run.run_batch(None, lambda folder: Positions([_position(folder)]))
        self.site.count("commits")

    @property
    def stopped(self) -> bool:
        return self.run is not None and self.run.stopped

    def abandon(self) -> None:
        if self.run is not None:
            self.run.abandon()

    def finish(self) -> None:
        assert self.run is not None
        self.run.finish()
        self.site.count("runs that finished")


def job_of(site: Site, root: JobRoot) -> Job:
    """The job on this root, as its job file declares it."""
    # Seconds are steps.
    checkpoints = CheckpointSettings(
        retained=site.plan.retain,
        collect_every=3,
        asynchronous=site.plan.asynchronous,
        max_in_flight=2,
        tolerable_failures=1,
        timeout=timedelta(seconds=80),
    )
    settings = Settings(parallelism=1, max_parallelism=4, checkpoints=checkpoints)
    plan: Any = OneOperator()
    return Job(root, plan, settings, site.bind(root), (("source", _DESCRIPTION),))


def _operator(snapshot: str, files: list[FileHandle]) -> OperatorState:
    state = SubtaskState(
        subtask=0,
        first_group=0,
        last_group=3,
        snapshot=snapshot,
        files=[StateFile(handle=f, local_name="x") for f in files],
    )
    return OperatorState(uid=_OPERATOR, parallelism=1, key_types=_KEY_TYPES, states=[], subtasks=[state])


def _position(offset: str) -> SourcePosition:
    return SourcePosition(uid="source", description=_DESCRIPTION, offset=offset)


def make_run(site: Site, name: str, batches: int) -> Callable[[], None]:
    """A run of the kind that the history's plan asks for."""
    return (RealRun if site.plan.real and not site.name_by_seq else FreeRun)(site, name, batches)
