"""Commands of users and scheduled tasks: savepoints, stops, restores, forks. A process dies or pauses at any call."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from stateflow import operations
from stateflow.checkpoint.log.documents import SinkMode
from stateflow.checkpoint.restore.plan_document import RestorePlan
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
from stateflow.runtime.restore.executor import RestoreRequest
from stateflow.runtime.restore.planner import RestoreOptions
from tests.model.command_env import JOB_URI, Office
from tests.model.rules import Violation, misses_output
from tests.model.runs import RealRun

_CODE = JobCode(Path("job.py"))


class Person:
    """A process that gives the command `command` a few times."""

    times = 3

    def __init__(self, office: Office, name: str) -> None:
        self.office = office
        self.name = name
        self.site = office.site
        self.rng = office.site.rng

    def __call__(self) -> None:
        for _ in range(self.times):
            try:
                self.command()
            except StorageError:
                self.site.count("commands that failed")
            except RequestTimeout:
                self.site.count("commands without an answer")
            except (ConfigError, Fenced, PlanOutdated):
                self.site.count("commands refused")
            except DataError as e:
                self.judge(e)
            self.site.world.sleep(self.rng.randint(10, 60))

    def command(self) -> None:
        """Gives one command."""
        raise NotImplementedError

    def judge(self, error: DataError) -> None:
        """Files under a pin cannot be missing, and only the job changes its output in a table."""
        if self.site.plan.vacuum and misses_output(error):
            self.site.count("commands that miss output")
            return
        if isinstance(error, ForeignRows):
            self.site.count("commands stopped by others' rows")
            return
        if isinstance(error, MissingFile | CorruptFile) and not self.site.checker.savepoints.pins_dropped:
            raise Violation("I3", f"{self.name}: {error}") from error
        if isinstance(error, SinkDiverged):
            raise Violation("S1", f"{self.name}: {error}") from error
        self.site.count("commands refused")

    def create_savepoint(self, request: SavepointRequest) -> None:
        """Creates a savepoint and reports it."""
        made = operations.create_savepoint(JOB_URI, request)
        self.site.checker.savepoints.returned(self.name, made.id)
        self.site.count(f"savepoints taken by the {made.taken_by}")


class Saver(Person):
    """Creates savepoints, mostly without a run."""

    def command(self) -> None:
        site = self.site
        request = SavepointRequest(
            name=self.office.name("s") if site.chance(0.8) else "same",
            from_head=site.chance(0.6),
            code=_CODE if site.chance(0.7) else None,
            request_id=self.office.name("h"),
            acknowledge_timeout=timedelta(seconds=self.rng.randint(5, 40)),
            timeout=timedelta(seconds=200),
        )
        for _ in range(2):
            try:
                self.create_savepoint(request)
            except StorageError:
                # The same request id gives the same savepoint.
                site.count("commands tried again")
                continue
            return


class Asker(Person):
    """Requests savepoints from the run, times out, and repeats the request with its id, as a retried task does."""

    def command(self) -> None:
        site = self.site
        request = SavepointRequest(
            name=self.office.name("r"),
            request_id=self.office.name("q"),
            code=_CODE,
            acknowledge_timeout=timedelta(seconds=self.rng.choice((40, 200))),
            timeout=timedelta(seconds=self.rng.choice((30, 100, 300))),
        )
        try:
            self.create_savepoint(request)
        except (RequestTimeout, StorageError, DataError):
            if site.chance(0.5):
                raise
            site.count("savepoints asked for again")
            self.create_savepoint(replace(request, from_head=site.chance(0.3)))


class Stopper(Person):
    """Stops the run."""

    times = 1

    def command(self) -> None:
        request = SavepointRequest(
            name=self.office.name("stop"),
            request_id=self.office.name("t"),
            code=_CODE,
            acknowledge_timeout=timedelta(seconds=200),
            timeout=timedelta(seconds=self.rng.choice((50, 300))),
        )
        made = operations.stop(JOB_URI, request, savepoint=self.site.chance(0.7))
        if made is not None:
            self.site.checker.savepoints.returned(self.name, made.id)


class Disposer(Person):
    """Disposes of savepoints."""

    def command(self) -> None:
        names = [s.name for s in operations.list_all(JOB_URI)]
        if names:
            operations.dispose(JOB_URI, self.rng.choice(names))


class Dropper(Person):
    """Drops the pins of processes that seem dead while they make a savepoint."""

    def command(self) -> None:
        root = self.site.open(self.name)
        pins = [p for p in root.head().entry.pinned if p.reason.startswith(("savepoint", "fork"))]
        if pins:
            self.site.checker.savepoints.pins_dropped = True
            root.admin.unpin(self.rng.choice(pins).id)
            self.site.count("abandoned pins dropped")


class Restorer(Person):
    """Restores the job from a checkpoint or a savepoint, with the tables or without; repeats restores that failed."""

    times = 4

    def command(self) -> None:
        site, office = self.site, self.office
        for _ in range(self.rng.randint(5, 30)):
            if not site.world.awake("run"):
                break
            site.world.sleep(10)
        office.busy_until = site.world.now + 250
        if office.restores and site.chance(0.4):
            site.count("restores begun again")
            planned = self.rng.choice(office.restores)
            if not self._execute(planned):
                office.restores = [other for other in office.restores if other is not planned]
            return
        for _ in range(3):
            if self._execute(self._plan()):
                return

    def _plan(self) -> tuple[RestorePlan, RestoreRequest]:
        options = RestoreOptions(sinks=SinkMode.KEEP if self.site.chance(self.site.plan.keep) else SinkMode.RESTORE)
        plan = operations.plan_restore(JOB_URI, _CODE, self._target(), options)
        planned = plan, RestoreRequest(self.office.name("restore"), self.name, "model")
        self.office.restores.append(planned)
        self.site.count("restores planned")
        return planned

    def _execute(self, planned: tuple[RestorePlan, RestoreRequest]) -> bool:
        """Returns false for a plan that is outdated."""
        site = self.site
        site.checker.approved.update(path for sink in planned[0].sinks for path in sink.others)
        for _ in range(3):
            try:
                operations.restore(JOB_URI, _CODE, *planned)
            except (StorageError, Fenced):
                continue
            except PlanOutdated:
                site.count("plans outdated")
                return False
            site.count(f"restores to {'a savepoint' if planned[0].savepoint else 'a checkpoint'}")
            return True
        return True

    def _target(self) -> str:
        site = self.site
        names = [s.name for s in operations.list_all(JOB_URI)]
        if names and site.chance(0.9 if site.plan.vacuum else 0.5):
            return self.rng.choice(names)
        root = site.open(self.name)
        ids = sorted({ref.id for ref in root.checkpoints.kept(root.head())})
        return str(self.rng.choice(ids)) if ids else "latest"

    def judge(self, error: DataError) -> None:
        # Since the plan, the target may have been released or disposed of.
        if isinstance(error, SinkDiverged):
            super().judge(error)
        self.site.count("restores refused")


class Forker(Person):
    """Forks the job, and runs the fork."""

    times = 1

    def command(self) -> None:
        site = self.site
        fork = self.office.new_site()
        root = site.open(self.name)
        head = root.head()
        names = [s.name for s in operations.list_all(JOB_URI)]
        ids = [str(ref.id) for ref in root.checkpoints.kept(head)]
        if not ids + names:
            return
        operations.fork(JOB_URI, ForkRequest(self.rng.choice(ids + names), fork.storage.uri, shadow=True))
        site.count("forks")
        RealRun(fork, self.name, 2)()

    def judge(self, error: DataError) -> None:
        self.site.count("forks refused")


PEOPLE: dict[str, type[Person]] = {
    "saver": Saver,
    "asker": Asker,
    "stopper": Stopper,
    "disposer": Disposer,
    "dropper": Dropper,
    "restorer": Restorer,
    "forker": Forker,
}
