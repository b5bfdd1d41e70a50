"""People, and scheduled tasks in their place: savepoints, stops, restores, forks; each dies or sleeps at any call."""

from __future__ import annotations

from collections.abc import Callable
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
from tests.model.fixture_world import Site
from tests.model.rules import Violation, misses_output
from tests.model.runs import RealRun

_CODE = JobCode(Path("job.py"))


class Person:
    """Somebody who comes a few times; what is done then is `command`."""

    times = 3

    def __init__(self, office: Office, name: str) -> None:
        self.office = office
        self.name = name

    @property
    def site(self) -> Site:
        """Where the job is."""
        return self.office.site

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
            self.site.world.sleep(self.site.rng.randint(10, 60))

    def command(self) -> None:
        """One command."""
        raise NotImplementedError

    def judge(self, error: DataError) -> None:
        """What a pin keeps cannot be missing; a table can have gone only where a job took it."""
        if self.site.plan.vacuum and misses_output(error):
            self.site.count("commands that miss output")
            return
        if isinstance(error, ForeignRows):
            self.site.count("commands stopped by others' rows")
            return
        if isinstance(error, MissingFile | CorruptFile) and not self.site.checker.keeping.pins_dropped:
            raise Violation("I3", f"{self.name}: {error}") from error
        if isinstance(error, SinkDiverged):
            raise Violation("S1", f"{self.name}: {error}") from error
        self.site.count("commands refused")


class Saver(Person):
    """Makes savepoints without a run."""

    def command(self) -> None:
        site, rng = self.site, self.site.rng
        ask = SavepointRequest(
            name=self.office.name("s") if site.chance(0.8) else "same",
            from_head=site.chance(0.6),
            code=_CODE if site.chance(0.7) else None,
            request_id=self.office.name("h"),
            acknowledge_timeout=timedelta(seconds=rng.randint(5, 40)),
            timeout=timedelta(seconds=200),
        )
        for _ in range(2):
            try:
                made = operations.create_savepoint(JOB_URI, ask)
            except StorageError:
                # Asking again with the same id gives the same savepoint.
                site.count("commands tried again")
                continue
            site.checker.keeping.told(self.name, made.id)
            site.count(f"savepoints taken by the {made.taken_by}")
            return


class Asker(Saver):
    """Asks the run for savepoints, loses patience, and asks again with the same id, as a retried task does."""

    def command(self) -> None:
        site, rng = self.site, self.site.rng
        ask = SavepointRequest(
            name=self.office.name("r"),
            request_id=self.office.name("q"),
            code=_CODE,
            acknowledge_timeout=timedelta(seconds=rng.choice((40, 200))),
            timeout=timedelta(seconds=rng.choice((30, 100, 300))),
        )
        try:
            made = operations.create_savepoint(JOB_URI, ask)
        except (RequestTimeout, StorageError, DataError):
            if site.chance(0.5):
                raise
            site.count("savepoints asked for again")
            made = operations.create_savepoint(JOB_URI, replace(ask, from_head=site.chance(0.3)))
        site.checker.keeping.told(self.name, made.id)
        site.count(f"savepoints taken by the {made.taken_by}")


class Stopper(Person):
    """Stops the run."""

    times = 1

    def command(self) -> None:
        rng = self.site.rng
        ask = SavepointRequest(
            name=self.office.name("stop"),
            request_id=self.office.name("t"),
            code=_CODE,
            acknowledge_timeout=timedelta(seconds=200),
            timeout=timedelta(seconds=rng.choice((50, 300))),
        )
        made = operations.stop(JOB_URI, ask, savepoint=self.site.chance(0.7))
        if made is not None:
            self.site.checker.keeping.told(self.name, made.id)


class Disposer(Person):
    """Takes savepoints away."""

    def command(self) -> None:
        names = [s.name for s in operations.list_all(JOB_URI)]
        if names:
            operations.dispose(JOB_URI, self.site.rng.choice(names))


class Dropper(Person):
    """Drops the pins of makers that it takes for dead."""

    def command(self) -> None:
        root = self.site.open(self.name)
        pins = [p for p in root.head().entry.pinned if p.reason.startswith(("savepoint", "fork"))]
        if pins:
            self.site.checker.keeping.pins_dropped = True
            root.admin.unpin(self.site.rng.choice(pins).id)
            self.site.count("abandoned pins dropped")


class Restorer(Person):
    """Takes the job back: to a checkpoint or a savepoint, with the tables or without; begins again what failed."""

    times = 4

    def command(self) -> None:
        site, office = self.site, self.office
        for _ in range(site.rng.randint(5, 30)):
            if not site.world.awake("run"):
                break
            site.world.sleep(10)
        office.busy_until = site.world.now + 250
        if office.restores and site.chance(0.4):
            site.count("restores begun again")
            self._execute(site.rng.choice(office.restores))
            return
        for _ in range(3):
            if self._execute(self._plan()):
                return

    def _plan(self) -> tuple[RestorePlan, RestoreRequest]:
        site, office = self.site, self.office
        options = RestoreOptions(sinks=SinkMode.KEEP if site.chance(site.plan.keep) else SinkMode.RESTORE)
        plan = operations.plan_restore(JOB_URI, _CODE, self._target(), options)
        request = RestoreRequest(office.name("restore"), self.name, "model")
        office.restores.append((plan, request))
        site.count("restores planned")
        return plan, request

    def _execute(self, planned: tuple[RestorePlan, RestoreRequest]) -> bool:
        """Whether the plan is carried out; it may have been before. One that is outdated is never tried again."""
        site, office = self.site, self.office
        site.checker.approved |= {path for sink in planned[0].sinks for path in sink.others}
        for _ in range(3):
            try:
                operations.restore(JOB_URI, _CODE, *planned)
            except (StorageError, Fenced):
                continue
            except PlanOutdated:
                site.count("plans outdated")
                office.restores = [request for request in office.restores if request is not planned]
                return False
            site.count(f"restores to {'a savepoint' if planned[0].savepoint else 'a checkpoint'}")
            return True
        return True

    def _target(self) -> str:
        site = self.site
        names = [s.name for s in operations.list_all(JOB_URI)]
        if names and site.chance(0.9 if site.plan.vacuum else 0.5):
            return site.rng.choice(names)
        root = site.open(self.name)
        ids = sorted({ref.id for ref in root.checkpoints.kept(root.head())})
        return str(site.rng.choice(ids)) if ids else "latest"

    def judge(self, error: DataError) -> None:
        # A target that is no longer kept is planned anew; a file of one that is kept cannot be missing, but it may
        # have been let go, or disposed of, since the plan.
        if isinstance(error, SinkDiverged):
            super().judge(error)
        self.site.count("restores refused")


class Forker(Person):
    """Makes another job of this one's state, and runs it."""

    times = 1

    def command(self) -> None:
        site = self.site
        into = self.office.new_site()
        root = site.open(self.name)
        head = root.head()
        names = [s.name for s in operations.list_all(JOB_URI)]
        ids = [str(ref.id) for ref in root.checkpoints.kept(head)]
        if not ids + names:
            return
        operations.fork(JOB_URI, ForkRequest(site.rng.choice(ids + names), into.storage.uri, shadow=True))
        site.count("forks")
        RealRun(into, self.name, 2)()

    def judge(self, error: DataError) -> None:
        self.site.count("forks refused")


PEOPLE: dict[str, Callable[[Office, str], Callable[[], None]]] = {
    "saver": Saver,
    "asker": Asker,
    "stopper": Stopper,
    "disposer": Disposer,
    "dropper": Dropper,
    "restorer": Restorer,
    "forker": Forker,
}
