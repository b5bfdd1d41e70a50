"""Two weeks of a job whose times and data are always the same: what pictures of the pages show."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec

from stateflow import Context, KeyedProcessFunction, RuntimeContext, ValueStateDescriptor, operations
from stateflow.api.graph import JobFile
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.clock import ManualClock
from stateflow.environment import StreamExecutionEnvironment
from stateflow.errors import InputLost, StateflowError
from stateflow.runtime.executor import BatchWork, Executed
from stateflow.runtime.local_run import LocalExecutor
from stateflow.runtime.restore.plan_execution import RestoreRequest, execute_plan
from stateflow.storage import PosixStorage, Storage
from stateflow.testing.sinks import FolderSink
from stateflow.ui.catalog import RootCatalog
from stateflow.ui.roots import CatalogJob
from tests.support.local_jobs import Growing, LocalJobs, plan_restore, prepared_job

UMA, OSCAR, AIRFLOW = "airflow-user:uma", "airflow-user:oscar", "airflow-user:airflow"
BEGIN = datetime(2026, 1, 12, 3, 0, tzinfo=UTC)
LAKE = "s3://lake"
_ROWS_PER_BATCH = 40
_CARRIERS, _ORIGINS = ("AA", "B6", "DL", "EV", "UA", "WN"), ("EWR", "JFK", "LGA")
_RIGHT = b"""\
def build(env):
    flights = env.from_source(FileSource("/data/flights", schema=Flight), uid="flights")
    delays = flights.key_by("tailnum").process(RunningDelay(), output=Delay, uid="running-delay")
    delays.sink_to(DeltaSink("s3://lake/delays"), uid="delays")
"""
_WRONG = _RIGHT.replace(b"RunningDelay()", b"RunningDelay(in_seconds=True)")


class Flight(msgspec.Struct, frozen=True):
    tailnum: str
    carrier: str
    origin: str
    delay: int


class Statistics(msgspec.Struct, frozen=True):
    key: str
    flights: int
    total: int


class RunningDelay(KeyedProcessFunction[Flight, Statistics]):
    """Counts flights of a key, and adds up their delays."""

    def open(self, ctx: RuntimeContext) -> None:
        self.flights = ctx.get_state(ValueStateDescriptor("flights", int))
        self.total = ctx.get_state(ValueStateDescriptor("total", int))

    def process_element(self, row: Flight, ctx: Context) -> Iterator[Statistics]:
        flights, total = (self.flights.value() or 0) + 1, (self.total.value() or 0) + row.delay
        self.flights.update(flights)
        self.total.update(total)
        yield Statistics(str(ctx.get_current_key()), flights, total)


class RouteDelay(RunningDelay):
    """The same of routes."""


class _TimedExecutor(LocalExecutor):
    """Runs a batch at once, but lets the clock show that it took a while.

    Args:
        clock: of the job.
        error: what each batch fails with.
    """

    def __init__(self, clock: ManualClock, error: StateflowError | None) -> None:
        super().__init__()
        self._clock = clock
        self._error = error

    def execute(self, rows: Mapping[str, Sequence[object]], work: BatchWork) -> Executed:
        if self._error is not None:
            raise self._error
        self._clock.sleep(timedelta(milliseconds=900 + sum(70 * len(each) for each in rows.values())))
        return super().execute(rows, work)


class DeltaTable(FolderSink):
    """A table whose address is the same wherever it is."""

    @property
    def location(self) -> str:
        return f"{LAKE}/{self.folder.name}"


class FlightsStory(LocalJobs):
    """A job with a run each night. Its name is that of the folder."""

    def __init__(self, folder: Path) -> None:
        self._manual = ManualClock(start=BEGIN)
        settings: dict[str, Any] = {
            "name": folder.name,
            "parallelism": 3,
            "max_parallelism": 64,
            "checkpoints__retained": 12,
        }
        settings |= {"state__backend": "filesystem"}
        super().__init__(
            folder, self._manual, checkpoints__asynchronous="no", source__max_rows_per_batch=_ROWS_PER_BATCH, **settings
        )
        self.file = JobFile("flights.py", _RIGHT, BEGIN - timedelta(days=3))
        self._dice = random.Random(7)
        self._flights: list[Flight] = []
        self._nights = 0

    @property
    def ended_at(self) -> datetime:
        """A while after all that has happened."""
        return self._manual.now() + timedelta(minutes=29)

    def build(self, env: StreamExecutionEnvironment) -> None:
        flights = env.from_source(Growing(self._flights, Flight), uid="flights")
        delays = flights.key_by("tailnum").process(RunningDelay(), output=Statistics, uid="running-delay")
        delays.sink_to(DeltaTable(self.folder / "delays"), uid="delays")
        routes = flights.key_by("carrier", "origin").process(RouteDelay(), output=Statistics, uid="route-delay")
        routes.sink_to(DeltaTable(self.folder / "routes"), uid="routes")

    def play(self) -> None:
        """Plays savepoints, a wrong version, and a restore that another person has approved."""
        self.play_nights(2, 3, 2)
        self._save("before-v2", "before the deployment of version 2")
        base = self._newest
        self.file = JobFile("flights.py", _WRONG, self._manual.now())
        self.play_nights(3, 2)
        self._restore(base, "version 2 counts seconds as minutes")
        self.file = JobFile("flights.py", _RIGHT, self._manual.now())
        self.play_nights(3, 4, 2)
        self._save("monday", "end of the month")
        self.play_nights(4)

    def play_nights(self, *batches: int) -> None:
        """Plays a night for each number of batches."""
        for number in batches:
            self._night(number)

    def play_failure(self) -> None:
        """Plays two nights, and a third whose run fails."""
        self.play_nights(2, 3)
        lost = InputLost("input files of the source are gone", hint="deliver them again", source="flights", files=2)
        self._night(1, lost)

    @property
    def _newest(self) -> int:
        return JobRoot.open(self.storage, self.clock).head().checkpoint_id

    def _night(self, batches: int, error: StateflowError | None = None) -> None:
        self._manual.sleep(timedelta(hours=23, minutes=self._dice.randrange(40, 60)))
        self._nights += 1
        for _ in range(batches * _ROWS_PER_BATCH - self._dice.randrange(12)):
            tailnum = f"N{self._dice.randrange(100, 100 + 30 * self._nights)}"
            carrier, origin = self._dice.choice(_CARRIERS), self._dice.choice(_ORIGINS)
            self._flights.append(Flight(tailnum, carrier, origin, self._dice.randrange(-20, 90)))
        run = self.prepare(self.build, _TimedExecutor(self._manual, error))
        try:
            self.execute(run)
        except StateflowError as e:
            run.record_failure(e)

    def _save(self, name: str, reason: str) -> None:
        self._manual.sleep(timedelta(hours=5, minutes=17))
        with (
            mock.patch("stateflow.operations.job_root.SystemClock", lambda: self.clock),
            mock.patch("stateflow.operations.job_root.open_storage", lambda _: lake_storage(self.folder / "root")),
        ):
            request = operations.SavepointRequest(name=name, by=UMA, reason=reason)
            operations.create_savepoint(str(self.folder / "root"), request)

    def _restore(self, checkpoint_id: int, reason: str) -> None:
        self._manual.sleep(timedelta(hours=6, minutes=4))
        plan = plan_restore(self, self.build, target=str(checkpoint_id))
        request = RestoreRequest("scheduled__restore", OSCAR, reason, UMA, "checked with the airline")
        execute_plan(prepared_job(self, self.build), plan, request)


class _LakeStorage(PosixStorage):
    """A folder with an address that is the same wherever the folder is."""

    def __init__(self, folder: Path, uri: str) -> None:
        super().__init__(folder)
        self.uri = uri


def lake_storage(root: Path) -> Storage:
    """Returns the storage of a story's job root."""
    return _LakeStorage(root, f"{LAKE}/jobs/{root.parent.name}")


class StoryCatalog(RootCatalog):
    """The job roots of stories, under addresses that are always the same."""

    def __init__(self, *stories: FlightsStory) -> None:
        super().__init__(())
        folders = [story.folder for story in stories]
        self._jobs = {each.name: _catalog_job(each / "root") for each in folders}

    def jobs(self) -> dict[str, CatalogJob]:
        return self._jobs


def play_stories(folder: Path) -> tuple[FlightsStory, ...]:
    """Plays the stories of three jobs; the first one is the longest."""
    flights, aircraft, bookings = (FlightsStory(folder / name) for name in ("flights", "aircraft", "bookings"))
    for story in (flights, aircraft, bookings):
        story.folder.mkdir()
    flights.play()
    aircraft.play_nights(2, 3)
    bookings.play_failure()
    return flights, aircraft, bookings


def _catalog_job(root: Path) -> CatalogJob:
    return CatalogJob(root.parent.name, lake_storage(root).uri, lambda: lake_storage(root))
