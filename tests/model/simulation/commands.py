"""Commands of users and scheduled tasks: savepoints, stops, restores, forks. A process dies or pauses at any call."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from stateflow import operations
from stateflow.checkpoint.log.documents import SavepointFormat, SinkMode
from stateflow.checkpoint.restore.plan_document import RestorePlan
from stateflow.checkpoint.savepoints.claim_slots import ClaimMode
from stateflow.checkpoint.savepoints.names import LATEST
from stateflow.errors import (
    ConfigError,
    CorruptFile,
    DataError,
    Fenced,
    ForeignRows,
    MissingFile,
    PlanOutdated,
    RequestTimeout,
    SinkDiverged,
    StorageError,
)
from stateflow.operations import ForkRequest, JobCode, SavepointRequest
from stateflow.runtime.restore.plan_execution import RestoreRequest
from stateflow.runtime.restore.planner import RestoreOptions
from tests.model.invariants.violation import Violation
from tests.model.simulation.command_env import JOB_URI, CommandEnv
from tests.model.simulation.runs import JobRunProcess, misses_output

_CODE = JobCode(Path("job.py"))


class Command:
    """A process that gives the command `command` a few times."""

    times = 3

    def __init__(self, env: CommandEnv, name: str) -> None:
        self.env = env
        self.name = name
        self.job = env.job
        self.rng = env.job.rng

    def __call__(self) -> None:
        for _ in range(self.times):
            try:
                self.command()
            except StorageError:
                self.job.count("commands that failed")
            except RequestTimeout:
                self.job.count("commands without an answer")
            except (ConfigError, Fenced, PlanOutdated):
                self.job.count("commands refused")
            except DataError as e:
                self.judge(e)
            self.job.scheduler.sleep(self.rng.randint(10, 60))

    def command(self) -> None:
        raise NotImplementedError

    def judge(self, error: DataError) -> None:
        """Files under a pin cannot be missing, and only the job changes its output in a table."""
        if self.job.plan.vacuum and misses_output(error):
            self.job.count("commands that miss output")
            return
        if isinstance(error, ForeignRows):
            self.job.count("commands stopped by others' rows")
            return
        if isinstance(error, MissingFile | CorruptFile) and not self.job.checker.savepoints.pins_dropped:
            raise Violation("I3", f"{self.name}: {error}") from error
        if isinstance(error, SinkDiverged):
            raise Violation("S1", f"{self.name}: {error}") from error
        self.job.count("commands refused")

    def create_savepoint(self, request: SavepointRequest) -> None:
        made = operations.create_savepoint(JOB_URI, request)
        self.job.checker.savepoints.returned(self.name, made.id)
        self.job.count(f"savepoints taken by the {made.made_from}")


class CreateSavepoint(Command):
    """Creates savepoints, mostly without a run."""

    def command(self) -> None:
        job = self.job
        request = SavepointRequest(
            name=self.env.name("s") if job.chance(0.8) else "same",
            from_head=job.chance(0.6),
            code=_CODE if job.chance(0.7) else None,
            request_id=self.env.name("h"),
            acknowledge_timeout=timedelta(seconds=self.rng.randint(5, 40)),
            timeout=timedelta(seconds=200),
        )
        for _ in range(2):
            try:
                self.create_savepoint(request)
            except StorageError:
                # The same request id gives the same savepoint.
                job.count("commands repeated")
                continue
            return


class RequestSavepoint(Command):
    """Requests savepoints from the run, times out, and repeats the request with its id, as a retried task does."""

    def command(self) -> None:
        job = self.job
        request = SavepointRequest(
            name=self.env.name("r"), request_id=self.env.name("q"), code=_CODE,
            acknowledge_timeout=timedelta(seconds=self.rng.choice((40, 200))),
            timeout=timedelta(seconds=self.rng.choice((30, 100, 300))),
        )  # fmt: skip
        try:
            self.create_savepoint(request)
        except (RequestTimeout, StorageError, DataError):
            if job.chance(0.5):
                raise
            job.count("requests repeated")
            self.create_savepoint(replace(request, from_head=job.chance(0.3)))


class Stop(Command):
    times = 1

    def command(self) -> None:
        request = SavepointRequest(
            name=self.env.name("stop"),
            request_id=self.env.name("t"),
            code=_CODE,
            # The simulated state has no entries that could be written in another format.
            format=SavepointFormat.NATIVE,
            acknowledge_timeout=timedelta(seconds=200),
            timeout=timedelta(seconds=self.rng.choice((50, 300))),
        )
        made = operations.stop(JOB_URI, request, savepoint=self.job.chance(0.7))
        if made is not None:
            self.job.checker.savepoints.returned(self.name, made.id)


class Dispose(Command):
    def command(self) -> None:
        names = [s.name for s in operations.list_all(JOB_URI)]
        if names:
            operations.dispose(JOB_URI, self.rng.choice(names), claimed=self.job.chance(self.job.plan.claim / 2))


class DropPin(Command):
    """Drops the pins of processes that seem dead while they make a savepoint."""

    def command(self) -> None:
        root = self.job.open(self.name)
        pins = [p for p in root.head().entry.pinned if p.reason.startswith(("savepoint", "fork"))]
        if pins:
            self.job.checker.savepoints.pins_dropped = True
            root.admin.unpin(self.rng.choice(pins).id)
            self.job.count("abandoned pins dropped")


class Restore(Command):
    """Restores the job from a checkpoint or a savepoint, with the tables or without; repeats restores that failed."""

    times = 4

    def command(self) -> None:
        job, env = self.job, self.env
        for _ in range(self.rng.randint(5, 30)):
            if not job.scheduler.awake("run"):
                break
            job.scheduler.sleep(10)
        env.busy_until = job.scheduler.now + 250
        if env.restores and job.chance(0.4):
            job.count("restores repeated")
            planned = self.rng.choice(env.restores)
            if not self._execute(planned):
                env.restores = [other for other in env.restores if other is not planned]
            return
        for _ in range(3):
            if self._execute(self._plan()):
                return

    def _plan(self) -> tuple[RestorePlan, RestoreRequest]:
        options = RestoreOptions(sinks=SinkMode.KEEP if self.job.chance(self.job.plan.keep) else SinkMode.RESTORE)
        if self.job.plan.keep_one and self.job.chance(self.job.plan.keep_one):
            options = replace(options, keep_tables=frozenset({self.rng.choice(self.job.sinks).uid}))
        target = self._target()
        if not target.isdigit() and target != LATEST and self.job.chance(self.job.plan.claim):
            options = replace(options, claim_mode=ClaimMode.CLAIM)
        plan = operations.plan_restore(JOB_URI, _CODE, target, options)
        planned = plan, RestoreRequest(self.env.name("restore"), self.name, "model")
        self.env.restores.append(planned)
        self.job.count("restores planned")
        self.job.count("restores planned that keep one table", len({s.mode for s in plan.sinks}) > 1)
        return planned

    def _execute(self, planned: tuple[RestorePlan, RestoreRequest]) -> bool:
        """Returns false for a plan that is outdated."""
        job = self.job
        job.checker.approved.update(path for sink in planned[0].sinks for path in sink.others)
        for _ in range(3):
            try:
                operations.restore(JOB_URI, _CODE, *planned)
            except (StorageError, Fenced):
                continue
            except PlanOutdated:
                job.count("plans outdated")
                return False
            job.count(f"restores to {'a savepoint' if planned[0].savepoint_path else 'a checkpoint'}")
            return True
        return True

    def _target(self) -> str:
        job = self.job
        names = [s.name for s in operations.list_all(JOB_URI)]
        if names and job.chance(0.9 if job.plan.vacuum or job.plan.claim else 0.5):
            return self.rng.choice(names)
        root = job.open(self.name)
        ids = sorted({ref.id for ref in root.checkpoints.list_kept(root.head())})
        return str(self.rng.choice(ids)) if ids else "latest"

    def judge(self, error: DataError) -> None:
        # Since the plan, the target may have been released or disposed of.
        if isinstance(error, SinkDiverged):
            super().judge(error)
        self.job.count("restores refused")


class Fork(Command):
    """Forks the job, and runs the fork."""

    times = 1

    def command(self) -> None:
        job = self.job
        fork = self.env.new_job()
        root = job.open(self.name)
        head = root.head()
        names = [s.name for s in operations.list_all(JOB_URI)]
        ids = [str(ref.id) for ref in root.checkpoints.list_kept(head)]
        if not ids + names:
            return
        operations.fork(JOB_URI, ForkRequest(self.rng.choice(ids + names), fork.storage.uri, shadow=True))
        job.count("forks")
        JobRunProcess(fork, self.name, 2)()

    def judge(self, error: DataError) -> None:
        self.job.count("forks refused")


COMMANDS: dict[str, type[Command]] = {
    "savepoint": CreateSavepoint, "request": RequestSavepoint, "stop": Stop, "dispose": Dispose, "unpin": DropPin,
    "restore": Restore, "fork": Fork,
}  # fmt: skip
