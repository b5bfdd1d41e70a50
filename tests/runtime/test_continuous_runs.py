"""Runs that wait for more input: timers, checkpoints and requests while none arrives, and how they end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from stateflow import StreamExecutionEnvironment
from stateflow.api.source import LocalSource, Slice
from stateflow.checkpoint.job_requests import post, read_answer
from stateflow.checkpoint.log.documents import Origin, Request, RequestKind
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.clock import ManualClock
from stateflow.config.settings import FixedDelay, SourceSettings
from stateflow.errors import BatchFailed, Fenced, StorageError
from stateflow.operations import describe
from stateflow.runtime.driver.job_run import JobRun
from stateflow.runtime.driver.request_server import STOPPED
from stateflow.runtime.driver.termination import RunBounds, StopSignal
from stateflow.runtime.local_run import run_local
from stateflow.runtime.restart_strategy import FixedDelayRestart, with_restarts
from stateflow.runtime.task import store_cache
from stateflow.storage.base import PutResult
from stateflow.storage.memory import MemoryStorage
from tests.runtime.timer_jobs import START, STRATEGY, Alarm, Event, Note, TimerJobs
from tests.support import root_files
from tests.support.errors import raises
from tests.support.local_jobs import Growing

MINUTE, HOUR = 60_000, 3_600_000


class ActingClock(ManualClock):
    """A clock that calls functions at times that a test sets, in seconds since its start."""

    def __init__(self) -> None:
        super().__init__()
        self._actions: list[tuple[float, Callable[[], object]]] = []

    def at(self, seconds: float, action: Callable[[], object]) -> None:
        self._actions = sorted([*self._actions, (seconds, action)], key=lambda each: each[0])

    def sleep(self, duration: timedelta) -> None:
        super().sleep(duration)
        while self._actions and self._actions[0][0] <= self.monotonic():
            self._actions.pop(0)[1]()


class Arriving(Growing):
    """A source whose list of rows grows while a run reads it."""

    def __init__(self, rows: list[Event]) -> None:
        super().__init__([], Event)
        self._rows = cast("list[object]", rows)

    def __deepcopy__(self, memo: object) -> Arriving:
        return self


class ContinuousJobs(TimerJobs):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.clock = self.acting = ActingClock()
        # Threads that store files are slow by this clock.
        self.settings["checkpoints__timeout"] = "1000d"
        self.arrived: list[Event] = []
        self.polls: list[float] = []

    def add(self, seconds: float, *rows: Event) -> None:
        self.acting.at(seconds, lambda: self.arrived.extend(rows))

    def build(self, function: Any, env: StreamExecutionEnvironment) -> None:
        rows = env.from_source(Polled(self.arrived, self), uid="rows").assign_timestamps_and_watermarks(STRATEGY)
        made = rows.key_by("key").process(function, output=Note, uid="op")
        made.sink_to(self.sink("out"), uid="out")

    def stay_up(self, function: Any, **settings: Any) -> JobRun:
        run = self.prepare(partial(self.build, function), **{"run__until": "stopped", **settings})
        self.execute(run)
        return run


class Polled(Arriving):
    def __init__(self, rows: list[Event], jobs: ContinuousJobs) -> None:
        super().__init__(rows)
        self._jobs = jobs

    def read(self, position: str | None, limits: SourceSettings) -> Slice | None:
        self._jobs.polls.append(self._jobs.clock.monotonic())
        return super().read(position, limits)


@pytest.fixture
def jobs(tmp_path: Path) -> ContinuousJobs:
    return ContinuousJobs(tmp_path)


def _published(jobs: ContinuousJobs) -> int:
    return len(jobs.notes())


def _sampled(jobs: ContinuousJobs, seconds: tuple[float, ...], sample: Callable[[], Any]) -> list[Any]:
    """Returns a list that the next run fills with samples at these times."""
    samples: list[Any] = []
    for at in seconds:
        jobs.acting.at(at, lambda: samples.append(sample()))
    return samples


def test_timers_fire_on_time_while_no_input_arrives(jobs: ContinuousJobs) -> None:
    jobs.add(0, Event("a", 1), Event("b", 2))
    jobs.stay_up(Alarm(processing=HOUR), run__until="2h")
    assert jobs.reason == "until" and jobs.clock.monotonic() == pytest.approx(2 * 3600, abs=1)
    fired = [(note.key, note.time - note.at) for note in jobs.notes("timer")]
    assert sorted(key for key, _ in fired) == ["a", "b"]
    assert all(0 <= late <= 500 for _, late in fired)
    assert [result.rows_in for result in jobs.results] == [2, 0]


def test_an_idle_run_appends_nothing_to_the_log_and_polls_twice_a_second(jobs: ContinuousJobs) -> None:
    seqs = _sampled(jobs, (60, 3000), lambda: root_files.newest_seq(jobs.folder / "root"))
    jobs.add(10, Event("a", 1))
    jobs.stay_up(Alarm(), run__until="1h", checkpoints__asynchronous=False)
    assert seqs[0] == seqs[1] > 1
    between = [later - earlier for earlier, later in zip(jobs.polls, jobs.polls[1:], strict=False)]
    assert min(between) == pytest.approx(0, abs=0.001) and max(between) == pytest.approx(0.5)
    assert between.count(0) <= 1


def test_rows_that_arrive_later_are_processed_at_the_next_poll(jobs: ContinuousJobs) -> None:
    jobs.add(100.2, Event("a", 1))
    jobs.add(3000, Event("a", 2), Event("b", 3), Event("c", 4))
    jobs.stay_up(Alarm(), run__until="1h")
    notes = sorted(jobs.notes("row"), key=lambda note: note.at)
    assert [note.at for note in notes] == [1, 2, 3, 4]
    assert [note.time - START for note in notes] == pytest.approx([100_500, *[3_000_000] * 3], abs=501)
    # At most two rows in a batch: the second one follows at once.
    assert [result.rows_in for result in jobs.results] == [1, 2, 1]


def test_an_interval_is_the_time_between_two_polls_but_timers_fire_on_time(jobs: ContinuousJobs) -> None:
    jobs.add(5, *[Event("a", at) for at in range(4)])
    jobs.stay_up(Alarm(processing=15_000), run__until="1h", run__interval="10 min")
    assert jobs.polls == pytest.approx([600 * n for n in range(6)], abs=0.01)
    assert {note.time - note.at for note in jobs.notes("timer")} <= set(range(501))


@pytest.mark.parametrize("until", ["01:30", "02:30 Europe/Berlin"])
def test_a_run_ends_at_the_next_occurrence_of_a_time_of_day(jobs: ContinuousJobs, until: str) -> None:
    jobs.stay_up(Alarm(), run__until=until)
    assert jobs.reason == "until" and jobs.clock.monotonic() == pytest.approx(5400, abs=0.5)


@pytest.mark.parametrize(
    ("settings", "published"),
    [({"checkpoints__interval": "10 min"}, [0, 2]), ({"checkpoints__interval_batches": 5}, [2, 2]), ({}, [2, 2])],
)
@pytest.mark.parametrize("asynchronous", [True, False])
def test_the_last_batches_become_a_checkpoint_although_no_batch_follows(
    jobs: ContinuousJobs, settings: dict[str, Any], published: list[int], asynchronous: bool
) -> None:
    jobs.add(0, Event("a", 1), Event("b", 2))
    run = jobs.prepare(
        partial(jobs.build, Alarm()), run__until="15 min", checkpoints__asynchronous=asynchronous, **settings
    )

    def sample() -> int:
        for submitted in run._pipeline._submitted:
            submitted.result()
        return _published(jobs)

    found = _sampled(jobs, (60, 650), sample)
    jobs.execute(run)
    assert found == published


class RefusingStorage(MemoryStorage):
    """Refuses manifests until a test lets it store them.

    Attributes:
        refused: when it has refused one, in seconds of the clock.
    """

    def __init__(self, clock: ManualClock) -> None:
        super().__init__("memory://x")
        self.is_down = True
        self.refused: list[float] = []
        self._clock = clock

    def put_new(self, key: str, data: bytes) -> PutResult:
        if self.is_down and "manifest" in key:
            self.refused.append(self._clock.monotonic())
            raise StorageError("the storage does not answer", key=key)
        return super().put_new(key, data)

    def recover(self) -> None:
        self.is_down = False


@pytest.mark.parametrize(("settings", "attempts"), [({}, [0, 10, 20, 30]), ({"checkpoints__interval": "25s"}, [25])])
def test_an_aborted_checkpoint_is_attempted_again_although_no_batch_follows(
    jobs: ContinuousJobs, settings: dict[str, str], attempts: list[float]
) -> None:
    jobs.storage = storage = RefusingStorage(jobs.acting)
    jobs.add(0, Event("a", 1))
    jobs.acting.at(35, storage.recover)
    common = {"checkpoints__asynchronous": False, "checkpoints__tolerable_failures": 5}
    found = _sampled(jobs, (34, 52), lambda: _published(jobs))
    jobs.stay_up(Alarm(), run__until="1 min", **common, **settings)
    assert storage.refused == pytest.approx(attempts, abs=1)
    assert found == [0, 1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_run_with_a_published_checkpoint(jobs: ContinuousJobs, number: signal.Signals) -> None:
    before = signal.signal(number, signal.default_int_handler)
    try:
        jobs.add(0, Event("a", 1))
        jobs.acting.at(60, lambda: os.kill(os.getpid(), number))
        jobs.stay_up(Alarm(), checkpoints__interval="1h")
        assert jobs.reason == "signal" and jobs.clock.monotonic() < 62
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)
    assert _published(jobs) == 1 and not describe(str(jobs.folder / "root")).run_open


def test_a_second_signal_does_not_wait() -> None:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    stop = StopSignal()
    try:
        with pytest.raises(KeyboardInterrupt), stop.handle_signals():
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.received == "SIGTERM"
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_savepoints_and_stops_are_served_while_no_input_arrives(jobs: ContinuousJobs) -> None:
    run = jobs.prepare(partial(jobs.build, Alarm()), run__until="stopped", checkpoints__interval="5h")

    def ask(**fields: Any) -> None:
        root = run.job.root
        at = root.clock.now().isoformat()
        post(root.storage, Request(origin=Origin.MANUAL, by="test", at=at, **fields))
        run._requests._poller.poll()

    jobs.add(0, Event("a", 1))
    jobs.acting.at(60, lambda: ask(id="a" * 32, kind=RequestKind.SAVEPOINT, savepoint="noon"))
    jobs.acting.at(120, lambda: ask(id="b" * 32, kind=RequestKind.STOP, savepoint=""))
    jobs.execute(run)
    assert jobs.reason == STOPPED and jobs.clock.monotonic() < 122
    answers = [read_answer(run.job.root.storage, letter * 32) for letter in "ab"]
    assert [(answer.status, answer.checkpoint_id) for answer in answers if answer] == [("done", 2), ("done", 2)]
    assert root_files.savepoints(jobs.folder / "root").keys() == {"noon"}
    assert _published(jobs) == 1


def test_a_run_that_was_fenced_while_no_input_arrives_ends(jobs: ContinuousJobs) -> None:
    run = jobs.prepare(partial(jobs.build, Alarm()), run__until="stopped")

    def claim() -> None:
        JobRoot.open(run.job.root.storage, run.job.root.clock, "two:2").claim("theirs")
        assert run._fence_watch.is_fenced()

    jobs.add(0, Event("a", 1))
    jobs.acting.at(60, claim)
    with raises(Fenced, by="theirs"):
        jobs.execute(run)
    assert jobs.clock.monotonic() < 62


def test_a_restart_continues_the_rest_of_the_time(jobs: ContinuousJobs) -> None:
    def fail() -> None:
        raise BatchFailed("the source does not answer")

    jobs.add(0, Event("a", 1))
    jobs.acting.at(1800, fail)
    bounds: list[RunBounds] = []

    def attempt(number: int) -> str:
        run = jobs.prepare(partial(jobs.build, Alarm(processing=2700_000)), run__until="1h")
        bounds[:] = bounds or [RunBounds(run.job.settings.run, jobs.clock)]
        run.start()
        sources = {node.uid: cast(LocalSource, node.source) for node in run.job.plan.sources}
        return run_local(run, sources, jobs.results.append, bounds[0])

    try:
        assert with_restarts(attempt, FixedDelayRestart(FixedDelay(1, timedelta(minutes=1))), jobs.clock) == "until"
    finally:
        store_cache.close_all()
    assert jobs.clock.monotonic() == pytest.approx(3600, abs=1)
    assert len(jobs.notes("timer")) == 1


def test_a_source_that_becomes_idle_releases_event_time_timers_although_no_row_arrives(jobs: ContinuousJobs) -> None:
    strategy = STRATEGY.with_idleness(timedelta(minutes=10))
    busy, silent = [Event("a", 1)], [Event("b", 5)]

    def build(env: StreamExecutionEnvironment) -> None:
        first, second = (
            env.from_source(Arriving(rows), uid=uid).assign_timestamps_and_watermarks(strategy)
            for uid, rows in (("busy", busy), ("silent", silent))
        )
        made = first.union(second).key_by("key").process(Alarm(event=MINUTE), output=Note, uid="op")
        made.sink_to(jobs.sink("out"), uid="out")

    jobs.acting.at(300, lambda: busy.append(Event("a", 2 * HOUR)))
    jobs.execute(jobs.prepare(build, run__until="12 min"))
    fired = jobs.notes("timer")
    assert sorted((note.key, note.at) for note in fired) == [("a", MINUTE + 1), ("b", MINUTE + 5)]
    assert all(10 * MINUTE <= note.time - START <= 10 * MINUTE + 1000 for note in fired)
    assert [result.rows_in for result in jobs.results] == [2, 1, 0, 0]
