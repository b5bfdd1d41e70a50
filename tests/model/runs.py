"""The runs of a history. `RealRun` is `JobRun` with an executor that only writes files. `FreeRun` does what the
protocol allows beyond it: it aborts checkpoints, publishes later, adopts older checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
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
_JOB_PLAN: Any = SimpleNamespace(
    parallelism=1,
    key_types={_OPERATOR: _KEY_TYPES},
    levels=(SimpleNamespace(chains=(SimpleNamespace(uid=_OPERATOR),)),),
    sources=(),
    chains=(),
    strategies={},
    row_counting_chains=frozenset({_OPERATOR}),
    participants=lambda: [Participant(_OPERATOR, 0)],
)
"""Replaces a `JobPlan`: one operator with one subtask."""


class GaveUp(Exception):
    """A run ended for a reason that is no violation; Airflow would start another."""


class Run:
    """A run from its start to its end; subclasses have `start`, `batch` and `finish`."""

    stopped = False

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

    @property
    def generation(self) -> int:
        """The run's generation; 0 before its claim is acknowledged."""
        raise NotImplementedError

    def start(self) -> None:
        """Claims the job and prepares the first batch."""
        raise NotImplementedError

    def batch(self) -> None:
        """One micro-batch with its barrier, its commit, and the publication of its output."""
        raise NotImplementedError

    def finish(self) -> None:
        """Ends a run that succeeded."""

    def abandon(self) -> None:
        """Stops the background threads after a failure."""

    def open(self) -> JobRoot:
        """Opens the job root, and may leave an object of the race probe (the real probe needs threads)."""
        site = self.site
        try:
            root = site.watch(JobRoot.create_or_open(site.storage, site.clock, JOB, self.name))
        except ConfigError as e:
            # The put of FORMAT was lost, or is late.
            site.count("no FORMAT")
            raise GaveUp from e
        if site.chance(0.1):
            head = root.log.read_head()
            key = probe(head.entry.seq + 1 if head else 1, site.clock.new_id())
            site.storage.put_data(key, b"racer")
            site.storage.delete([key])
        return root

    def _judge(self, error: DataError) -> None:
        """A file may be missing only for a run that is fenced, or when it was deleted by hand."""
        site = self.site
        if isinstance(error, SinkDiverged):
            raise Violation("S1", f"{self.name}: {error}") from error
        if isinstance(error, ForeignRows):
            if not site.plan.appenders:
                raise Violation("S4", f"{self.name}: {error}") from error
            # Nothing is undone: a user has to approve another plan.
            site.count("runs stopped by others' rows")
            self.needs_person = True
        elif site.plan.vacuum and is_not_retained(error):
            # A command shortened the retention while the run went back.
            site.count("runs that gave up")
        elif site.plan.vacuum and misses_output(error):
            site.count("runs that miss output")
            self.needs_person = True
        elif self.generation in (0, site.checker.generation):
            raise Violation("I3", f"{self.name}: {error}") from error
        else:
            site.count("fenced")


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
        self.head = self._commit(self.head)
        if site.chance(site.plan.publish):
            self._publish(self.head)

    def _claim(self) -> Head:
        site = self.site
        target, since = self._older_checkpoint()
        try:
            # With a target the CLAIM itself goes back, as the protocol allows; commands restore with a plan.
            head = self._adopt(target) if target else self.root.claim()
        except DataError as e:
            if target is None or site.checker.adoptable_since(target.id, since):
                raise Violation("I3", f"{self.name} adopting {target}: {e}") from e
            site.count("adoptions refused")
            raise GaveUp from e
        site.count("adoptions" if target else "claims")
        return head

    def _adopt(self, target: EntryRef) -> Head:
        head = self.root.log.read_head()
        return self.root.adopt(head, self.root.adoption(head, target))

    def _older_checkpoint(self) -> tuple[EntryRef | None, int]:
        """A checkpoint to adopt, and the entry that it was found in."""
        site = self.site
        if site.chance(site.plan.adopts):
            try:
                head = self.root.head()
            except MissingFile:
                raise
            except DataError:
                # The log is empty.
                return None, 0
            if retained := self.root.checkpoints.retained.read(head.entry):
                return site.rng.choice(retained), head.entry.seq
        return None, 0

    def _commit(self, parent: Head) -> Head:
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
        written = write_manifest(site.storage, folder, manifest)
        published, settled = self.publisher.published, self.publisher.settled
        new = Commit(self.ordinal, written, manifest.sources, output, published, settled)
        outcome = self.root.commit(parent, new, Retention(site.plan.retain))
        if not isinstance(outcome, Appended):
            raise Fenced("overtaken")
        site.count("commits")
        self.publisher.discard_settled(outcome.head)
        self.base, self.files, self.output = files, [], {}
        return outcome.head

    def _publish(self, head: Head) -> None:
        """A run whose sink does not answer ends, or publishes the output later."""
        try:
            self.publisher.publish_pending(head)
        except StorageError:
            if self.site.chance(0.5):
                raise


class _FileWriter(Executor):
    """Runs a batch by writing files to the simulated storage and sinks."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def empty_rows(self, plan: object) -> Any:
        return None

    def keep_workers_alive(self, plan: object, info: object) -> None:
        """Files are stored by simulated threads."""

    def execute(self, rows: Any, work: BatchWork) -> list[TaskReport]:
        site, (generation, ordinal) = self._site, (work.info.id.generation, work.info.id.ordinal)
        files, output = site.write_attempt(generation, ordinal)
        base = [f.handle for o in work.base.values() for s in o.subtasks for f in s.files]
        attempt = site.clock.new_id()
        state = _operator(attempt, [f for f in base if site.chance(0.6)] + files).subtasks[0]
        report = TaskReport(
            generation=generation,
            ordinal=ordinal,
            uid=_OPERATOR,
            subtask=0,
            attempt=attempt,
            key_types=_KEY_TYPES,
            state=state,
            output=output,
        )
        return [report]


class RealRun(Run):
    """A run as users have it."""

    run: JobRun | None = None

    @property
    def generation(self) -> int:
        return self.run.head.entry.generation if self.run and hasattr(self.run, "head") else 0

    @property
    def stopped(self) -> bool:
        return self.run is not None and self.run.stopped

    def start(self) -> None:
        self.run = JobRun(job_of(self.site, self.open()), _FileWriter(self.site))
        self.run.start()
        self.site.count("claims")

    def batch(self) -> None:
        assert self.run is not None
        self.run.run_batch(None, lambda folder: Positions([_position(folder)]))
        self.site.count("commits")

    def abandon(self) -> None:
        if self.run is not None:
            self.run.abandon()

    def finish(self) -> None:
        assert self.run is not None
        self.run.finish()
        self.site.count("runs that finished")


def job_of(site: Site, root: JobRoot) -> Job:
    """Returns the job at this root, as its job file declares it."""
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
    return Job(root, _JOB_PLAN, settings, site.bind(root), (("source", _DESCRIPTION),))


def _operator(snapshot: str, files: list[FileHandle]) -> OperatorState:
    stored = [StateFile(handle=f, local_name="x") for f in files]
    state = SubtaskState(subtask=0, first_group=0, last_group=3, snapshot=snapshot, files=stored)
    return OperatorState(uid=_OPERATOR, parallelism=1, key_types=_KEY_TYPES, states=[], subtasks=[state])


def _position(offset: str) -> SourcePosition:
    return SourcePosition(uid="source", description=_DESCRIPTION, offset=offset)


def make_run(site: Site, name: str, batches: int) -> Callable[[], None]:
    """Returns a run of the kind that the history's plan has."""
    return (RealRun if site.plan.real and not site.name_by_seq else FreeRun)(site, name, batches)
