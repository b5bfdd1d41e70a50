"""The runs of a history.

`JobRunProcess` is `JobRun` with an executor that only writes files. `ProtocolRun` does what the protocol allows beyond
it: it aborts checkpoints, publishes later, adopts older checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from stateflow.checkpoint.barriers import Participant, TaskReport
from stateflow.checkpoint.log.checkpoint_log import Appended, Head
from stateflow.checkpoint.log.completed_checkpoints import RetentionLimits
from stateflow.checkpoint.log.documents import EntryRef, Manifest, OperatorState, PendingOutput, SourcePosition
from stateflow.checkpoint.log.fencing import FenceGuard
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import check_hashes, files_of, write_manifest
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
from stateflow.runtime.driver import job_restore
from stateflow.runtime.driver.job_run import JobRun
from stateflow.runtime.executor import BatchWork, Executed, Executor
from stateflow.runtime.job import Job, Positions
from stateflow.runtime.publisher import Publisher
from stateflow.runtime.restore.plan_execution import recover_pending_output
from stateflow.state.handles import CANONICAL, Committable, FileHandle, StateFile, SubtaskState
from stateflow.storage.paths import data_folder, probe_key, spark_location
from tests.model.invariants.violation import Violation
from tests.model.simulation.job import JOB, SimJob

_RUNTIME: Any = job_restore
"""The module whose functions the runs call, because mutants replace them there."""
_OPERATOR, _KEY_TYPES = "op", ["bigint"]
_DESCRIPTION = "simulated"
_JOB_PLAN: Any = SimpleNamespace(
    parallelism=1,
    key_types={_OPERATOR: _KEY_TYPES},
    bounded=False,
    levels=(SimpleNamespace(chains=(SimpleNamespace(uid=_OPERATOR),)),),
    sources=(),
    chains=(),
    strategies={},
    participants=lambda: [Participant(_OPERATOR, 0)],
)
"""Replaces a `JobPlan`: one operator with one subtask."""


def misses_output(error: DataError) -> bool:
    """Whether output was deleted before it was published."""
    return isinstance(error, MissingFile) and "checkpoint_id" in error.facts


def _is_not_retained(error: DataError) -> bool:
    """Whether the job has released a checkpoint that was needed."""
    return type(error) is DataError and {"checkpoint_id", "oldest_checkpoint_id"} <= error.facts.keys()


class GaveUp(Exception):
    """A run ended for a reason that is not a violation; Airflow would start another."""


class Run:
    """A run from its start to its end; subclasses have `start`, `batch` and `finish`."""

    def __init__(self, job: SimJob, name: str, batches: int) -> None:
        self.job = job
        self.name = name
        self.batches = batches
        self.needs_user = False

    def __call__(self) -> None:
        job = self.job
        try:
            self.start()
            for _ in range(self.batches):
                if self.stopped:
                    break
                self.batch()
            self.finish()
        except Fenced:
            job.count("fenced")
            if self.generation:
                job.checker.fenced(self.generation)
        except (StorageError, GaveUp):
            job.count("runs that gave up")
        except BatchFailed as e:
            if not job.plan.asynchronous or e.facts.get("setting") != "checkpoints.timeout":
                raise
            job.count("runs that timed out")
        except DataError as e:
            self._judge(e)
        self.abandon()

    @property
    def generation(self) -> int:
        """The run's generation; 0 before its claim is acknowledged."""
        raise NotImplementedError

    @property
    def stopped(self) -> bool:
        return False

    def start(self) -> None:
        raise NotImplementedError

    def batch(self) -> None:
        raise NotImplementedError

    def finish(self) -> None: ...

    def abandon(self) -> None: ...

    def open(self) -> JobRoot:
        """Opens the job root, and may leave an object of the race probe (the real probe needs threads)."""
        job = self.job
        try:
            root = job.watch(JobRoot.create_or_open(job.storage, job.clock, JOB, self.name))
        except ConfigError as e:
            # The put of FORMAT was lost, or is late.
            job.count("no FORMAT")
            raise GaveUp from e
        if job.chance(0.1):
            head = root.log.read_head()
            key = probe_key(head.entry.seq + 1 if head else 1, job.clock.new_id())
            job.storage.put_data(key, b"racer")
            job.storage.delete([key])
        return root

    def _judge(self, error: DataError) -> None:
        """A file may be missing only for a run that is fenced, or when it was deleted by hand."""
        job = self.job
        if isinstance(error, SinkDiverged):
            raise Violation("S1", f"{self.name}: {error}") from error
        if isinstance(error, ForeignRows):
            if not job.plan.appenders:
                raise Violation("S4", f"{self.name}: {error}") from error
            # Nothing is undone: a user has to approve another plan.
            job.count("runs stopped by others' rows")
            self.needs_user = True
        elif job.plan.vacuum and _is_not_retained(error):
            # A command shortened the retention while the run went back.
            job.count("runs that gave up")
        elif job.plan.vacuum and misses_output(error):
            job.count("runs that miss output")
            self.needs_user = True
        elif self.generation in (0, job.checker.generation):
            raise Violation("I3", f"{self.name}: {error}") from error
        else:
            job.count("fenced")


class ProtocolRun(Run):
    """A run that uses the log, the manifests and the publisher directly."""

    def __init__(self, job: SimJob, name: str, batches: int) -> None:
        super().__init__(job, name, batches)
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
        job = self.job
        self.root = self.open()
        sinks = job.bind(self.root)
        self.publisher = Publisher(self.root, sinks)
        self.head = self._claim()
        self.head = _RUNTIME.complete_rewind(self.root, sinks, self.head)
        self.head = recover_pending_output(
            self.publisher, self.root, sinks, self.head, FenceGuard(self.root.log, self.generation)
        )
        manifest = self.root.checkpoints.manifest_at(self.head)
        if manifest is not None:
            self.base = files_of(manifest)
            check_hashes(job.storage, job.rng.sample(self.base, min(2, len(self.base))))
        job.storage.put_data(f"{spark_location(self.generation)}/metadata", b"{}")

    def batch(self) -> None:
        job = self.job
        assert self.head is not None
        self.ordinal = self.head.entry.seq + 1 if job.name_by_seq else self.ordinal + 1
        files, output = job.write_attempt(self.generation, self.ordinal)
        self.files += files
        for sink, committables in output.items():
            self.output.setdefault(sink, []).extend(committables)
        if job.chance(job.plan.abort):
            # Its files and its output pass to the next checkpoint.
            job.count("checkpoints given up")
            return
        if self.base:
            check_hashes(job.storage, [job.rng.choice(self.base)])
        self.head = self._commit(self.head)
        if job.chance(job.plan.publish):
            self._publish(self.head)

    def _claim(self) -> Head:
        job = self.job
        target, since = self._older_checkpoint()
        try:
            # With a target the CLAIM itself goes back, as the protocol allows; commands restore with a plan.
            head = self._adopt(target) if target else self.root.claim()
        except DataError as e:
            if target is None or job.checker.adoptable_since(target.id, since):
                raise Violation("I3", f"{self.name} adopting {target}: {e}") from e
            job.count("adoptions refused")
            raise GaveUp from e
        job.count("adoptions" if target else "claims")
        return head

    def _adopt(self, target: EntryRef) -> Head:
        head = self.root.log.read_head()
        return self.root.adopt(head, self.root.adoption(head, target))

    def _older_checkpoint(self) -> tuple[EntryRef | None, int]:
        """A checkpoint to adopt, and the entry that it was found in."""
        job = self.job
        if job.chance(job.plan.adopts):
            try:
                head = self.root.head()
            except MissingFile:
                raise
            except DataError:
                # The log is empty.
                return None, 0
            if retained := self.root.checkpoints.retained.read(head.entry):
                return job.rng.choice(retained), head.entry.seq
        return None, 0

    def _commit(self, parent: Head) -> Head:
        job = self.job
        files = [f for f in self.base if job.chance(0.6)] + self.files
        folder = data_folder(self.generation, self.ordinal, job.clock.new_id())
        manifest = Manifest(
            job_uuid=self.root.job.job_uuid, generation=self.generation, ordinal=self.ordinal,
            operators=[_operator(folder, files)], sources=[_position(folder)],
        )  # fmt: skip
        output = [PendingOutput(checkpoint_id=0, sink=s, committables=c) for s, c in self.output.items()]
        output = self.root.outputs.store(folder, "output", output)
        written = write_manifest(job.storage, folder, manifest)
        published, settled = self.publisher.published, self.publisher.settled
        new = Commit(self.ordinal, written, manifest.sources, output, published, settled)
        outcome = self.root.commit(parent, new, RetentionLimits(job.plan.retain))
        if not isinstance(outcome, Appended):
            raise Fenced("overtaken")
        job.count("commits")
        self.publisher.discard_settled(outcome.head)
        self.base, self.files, self.output = files, [], {}
        return outcome.head

    def _publish(self, head: Head) -> None:
        """A run whose sink does not answer ends, or publishes the output later."""
        try:
            self.publisher.publish_pending(head)
        except StorageError:
            if self.job.chance(0.5):
                raise


class _FileWriter(Executor):
    """Runs a batch by writing files to the simulated storage and sinks."""

    def __init__(self, job: SimJob) -> None:
        self._job = job

    def empty_rows(self, plan: object) -> Any:
        return None

    def keep_workers_alive(self, plan: object, info: object) -> None:
        """Files are stored by simulated threads."""

    def execute(self, rows: Any, work: BatchWork) -> Executed:
        job, (generation, ordinal) = self._job, (work.info.id.generation, work.info.id.ordinal)
        files, output = job.write_attempt(generation, ordinal)
        base = [f.handle for o in work.base.values() for s in o.subtasks for f in s.files]
        attempt = job.clock.new_id()
        state = _operator(attempt, [f for f in base if job.chance(0.6)] + files).subtasks[0]
        report = TaskReport(
            generation=generation, ordinal=ordinal, uid=_OPERATOR, subtask=0, attempt=attempt, key_types=_KEY_TYPES,
            key_names=["key"], state=state, output=output,
        )  # fmt: skip
        return Executed([report])


class JobRunProcess(Run):
    run: JobRun | None = None

    @property
    def generation(self) -> int:
        return self.run.head.entry.generation if self.run and hasattr(self.run, "head") else 0

    @property
    def stopped(self) -> bool:
        return self.run is not None and bool(self.run.stopped)

    def start(self) -> None:
        self.run = JobRun(job_of(self.job, self.open()), _FileWriter(self.job))
        self.run.start()
        self.job.count("claims")

    def batch(self) -> None:
        assert self.run is not None
        self.run.run_batch(None, lambda folder: Positions([_position(folder)]))
        self.job.count("commits")

    def abandon(self) -> None:
        if self.run is not None:
            self.run.abandon()

    def finish(self) -> None:
        assert self.run is not None
        self.run.finish()
        self.job.count("runs that finished")


def job_of(job: SimJob, root: JobRoot) -> Job:
    # Seconds are steps.
    checkpoints = CheckpointSettings(
        retained=job.plan.retain, collect_every=3, asynchronous=job.plan.asynchronous, max_in_flight=2,
        tolerable_failures=1, timeout=timedelta(seconds=80),
    )  # fmt: skip
    settings = Settings(parallelism=1, max_parallelism=4, checkpoints=checkpoints)
    return Job(root, _JOB_PLAN, settings, job.bind(root), (("source", _DESCRIPTION),))


def _operator(snapshot: str, files: list[FileHandle]) -> OperatorState:
    stored = [StateFile(handle=f, local_name="x") for f in files]
    # Any number of files is a snapshot of this format, and no backend opens them here.
    state = SubtaskState(subtask=0, first_group=0, last_group=3, snapshot=snapshot, files=stored, backend=CANONICAL)
    return OperatorState(
        uid=_OPERATOR, parallelism=1, key_types=_KEY_TYPES, key_names=["key"] * len(_KEY_TYPES), states=[],
        subtasks=[state],
    )  # fmt: skip


def _position(offset: str) -> SourcePosition:
    return SourcePosition(uid="source", description=_DESCRIPTION, offset=offset)


def make_run(job: SimJob, name: str, batches: int) -> Callable[[], None]:
    return (JobRunProcess if job.plan.uses_job_run and not job.name_by_seq else ProtocolRun)(job, name, batches)
