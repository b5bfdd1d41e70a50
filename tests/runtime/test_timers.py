"""Timers of a whole job without Spark: what functions see, phases, restores, idle sources, ticks, refusals."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stateflow import (
    Context,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    OnTimerContext,
    OutputTag,
    RuntimeContext,
    StateTtlConfig,
    StreamExecutionEnvironment,
    Time,
    TimeDomain,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from stateflow.api.dead_letters import DeadLetters
from stateflow.checkpoint.log.documents import Origin, Request, RequestKind
from stateflow.checkpoint.requests.mailbox import post, read_answer
from stateflow.clock import ManualClock
from stateflow.environment import declare
from stateflow.errors import StateError, UserCodeError
from stateflow.runtime.driver.job_run import JobRun
from stateflow.runtime.job.job import BatchResult
from stateflow.runtime.job.loader import create_or_open_job
from stateflow.runtime.local.executor import LocalExecutor
from stateflow.runtime.local.run_loop import run_local
from stateflow.runtime.task import store_cache
from stateflow.storage import open_storage
from stateflow.testing.sinks import FolderSink
from stateflow.types.key_groups import key_hash, subtask_of
from tests.support.errors import raises
from tests.support.local_jobs import Growing

STRATEGY = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("at")
START = 1_767_225_600_000
"""Where a manual clock begins, in milliseconds."""


class Event(msgspec.Struct):
    key: str
    at: int


class Note(msgspec.Struct):
    what: str
    key: str
    at: int
    time: int
    watermark: int
    domain: str = ""


SIDE = OutputTag("side", Note)


class TimerJobs:
    """A job root on a clock of its own, and runs of jobs on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.results: list[BatchResult] = []

    def run(self, build: Any, **settings: Any) -> JobRun:
        given = {"local_dir": str(self.folder / "local"), "source.max_rows_per_batch": 2, "max_parallelism": 8}
        given |= {name.replace("__", "."): value for name, value in settings.items()}
        env, resolved = declare(build, "job", (given,))
        env.graph.check()
        job = create_or_open_job(env.graph, resolved, open_storage(str(self.folder / "root")), self.clock)
        run = JobRun(job, LocalExecutor())
        self.results = []
        try:
            run.start()
            run_local(run, {n.uid: n.source for n in env.graph.sources}, self.results.append)  # type: ignore[misc]
        finally:
            store_cache.close_all()
        return run

    def events(self, function: Any, *rows: Sequence[Event], **settings: Any) -> JobRun:
        """A run of a function over one source for each argument, the next batch of each at a time."""

        def build(env: StreamExecutionEnvironment) -> None:
            first, *others = [
                env.from_source(Growing(each, Event), uid=f"s{at}").assign_timestamps_and_watermarks(STRATEGY)
                for at, each in enumerate(rows)
            ]
            stream = first.union(*others) if others else first
            made = stream.key_by("key").process(function, output=Note, uid="op")
            made.sink_to(FolderSink(self.folder / "out"), uid="out")
            made.get_side_output(SIDE).sink_to(FolderSink(self.folder / "side"), uid="side")

        return self.run(build, **settings)

    def notes(self, table: str = "out") -> list[Note]:
        return [msgspec.convert(row, Note) for row in FolderSink(self.folder / table).rows()]


@pytest.fixture
def box(tmp_path: Path) -> TimerJobs:
    return TimerJobs(tmp_path)


class Alarm(KeyedProcessFunction[Event, Note]):
    """Sets a timer for a moment after each row, in event time and in processing time."""

    event: int | None = None
    processing: int | None = None

    def __init__(self, event: int | None = None, processing: int | None = None) -> None:
        self.event, self.processing = event, processing

    def process_element(self, row: Event, ctx: Context) -> Iterator[Note]:
        timers = ctx.timer_service()
        if self.event is not None:
            timers.register_event_time_timer(row.at + self.event)
        if self.processing is not None:
            timers.register_processing_time_timer(timers.current_processing_time() + self.processing)
        assert ctx.timestamp() == row.at
        yield Note("row", row.key, row.at, timers.current_processing_time(), timers.current_watermark())

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Note]:
        timers = ctx.timer_service()
        assert ctx.timestamp() == timestamp
        note = Note(
            "timer",
            ctx.get_current_key(),
            timestamp,
            timers.current_processing_time(),
            timers.current_watermark(),
            ctx.time_domain().value,
        )
        ctx.output(SIDE, note)
        yield note


def _timers(notes: list[Note]) -> list[tuple[str, int]]:
    return [(note.key, note.at) for note in notes if note.what == "timer"]


def test_a_batch_s_watermark_comes_from_the_batches_before_it_and_from_the_key_s_rows(box: TimerJobs) -> None:
    box.events(Alarm(), [Event("a", at) for at in (10, 30, 20, 40, 50)], parallelism=1)
    assert [(n.at, n.watermark) for n in box.notes()] == [(10, 9), (30, 29), (20, 29), (40, 39), (50, 49)]


def test_the_last_timers_fire_in_a_batch_without_rows_at_the_same_positions(box: TimerJobs) -> None:
    run = box.events(Alarm(5), [Event("a", 10), Event("b", 20), Event("a", 30)], parallelism=1)
    assert [r.rows_in for r in box.results] == [2, 1, 0]
    assert _timers(box.notes()) == [("a", 15), ("b", 25)]
    assert _timers(box.notes("side")) == [("a", 15), ("b", 25)]
    assert [p.offset for p in run.positions] == ['{"row": 3}']
    box.events(Alarm(5), [Event("a", 10), Event("b", 20), Event("a", 30)], parallelism=1)
    assert box.results == []


def test_ticks_are_bounded_in_number_and_go_on_in_the_next_run(box: TimerJobs) -> None:
    class Forever(Alarm):
        def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Note]:
            # As a clock that moves on while the job works.
            box.clock.sleep(datetime.timedelta(seconds=1))
            ctx.timer_service().register_processing_time_timer(timestamp + 1000)
            yield from super().on_timer(timestamp, ctx)

    Forever.__deepcopy__ = lambda self, memo: self  # type: ignore[attr-defined]
    forever = Forever(processing=0)
    box.events(forever, [Event("a", 1)], run__max_tick_batches=3, parallelism=1)
    assert [r.rows_in for r in box.results] == [1, 0, 0, 0]
    fired = [START + 1000 * n for n in range(3)]
    assert [at for _, at in _timers(box.notes())] == fired
    box.events(forever, [Event("a", 1)], run__max_tick_batches=1, parallelism=1)
    assert [at for _, at in _timers(box.notes())] == [*fired, START + 3000]


def test_a_timer_that_became_due_while_no_run_was_there_fires_in_the_next_one(box: TimerJobs) -> None:
    rows = [Event("a", 1), Event("b", 2)]
    box.events(Alarm(processing=60_000), rows)
    assert _timers(box.notes()) == []
    box.clock.sleep(datetime.timedelta(seconds=59))
    box.events(Alarm(processing=60_000), rows)
    assert (_timers(box.notes()), box.results) == ([], [])
    box.clock.sleep(datetime.timedelta(seconds=10))
    box.events(Alarm(processing=60_000), rows)
    assert {(n.key, n.at, n.time, n.domain) for n in box.notes() if n.what == "timer"} == {
        (key, START + 60_000, START + 69_000, "processing") for key in "ab"
    }
    assert [r.rows_in for r in box.results] == [0]


def test_timers_move_to_another_parallelism_without_rows(box: TimerJobs) -> None:
    keys = [f"k{n}" for n in range(10)]
    for parallelism, minutes in ((1, 0), (3, 1), (2, 2)):
        box.clock.sleep(datetime.timedelta(minutes=minutes))
        box.events(Alarm(processing=60_000), [Event(k, 1) for k in keys], parallelism=parallelism)
    assert sorted(_timers(box.notes())) == [(k, START + 60_000) for k in sorted(keys)]


def test_of_two_sources_the_one_behind_decides_until_it_has_nothing_more(box: TimerJobs) -> None:
    fast, slow = ([Event("f", at) for at in (100, 200, 300, 400, 500, 600)], [Event("s", at) for at in (10, 20)])
    box.events(Alarm(), fast, slow, parallelism=1)
    assert [(n.at, n.watermark) for n in box.notes() if n.key == "f"] == [
        (100, -(1 << 63)),
        (200, -(1 << 63)),
        (300, 19),
        (400, 19),
        (500, 399),
        (600, 399),
    ]


def test_a_late_row_can_be_told(box: TimerJobs) -> None:
    box.events(Alarm(), [Event("a", at) for at in (100, 100, 99, 100, 30, 200)], parallelism=1)
    assert [n.at for n in box.notes() if n.at <= n.watermark] == [99, 30]


class Relay(KeyedProcessFunction[Note, Note]):
    """Behind `Alarm`: tells what it sees of rows of both phases, and sets timers of its own."""

    def open(self, ctx: RuntimeContext) -> None:
        self.seen = ctx.get_state(ValueStateDescriptor("seen", int, default=0))

    def process_element(self, row: Note, ctx: Context) -> Iterator[Note]:
        self.seen.update((self.seen.value() or 0) + 1)
        service = ctx.timer_service()
        service.register_event_time_timer(row.at)
        yield Note(f"{row.what} seen", row.key, row.at, 0, service.current_watermark())

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Note]:
        watermark = ctx.timer_service().current_watermark()
        yield Note("second timer", ctx.get_current_key(), timestamp, 0, watermark)

    def on_batch_end(self, ctx: Context) -> Iterator[Note]:
        assert ctx.timestamp() is None
        watermark = ctx.timer_service().current_watermark()
        yield Note("end", ctx.get_current_key(), self.seen.value() or 0, 0, watermark)


def test_what_timers_emit_comes_before_time_advances_and_rows_after_it_and_a_key_ends_once(box: TimerJobs) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        rows = [Event("a", 10), Event("b", 20), Event("a", 31), Event("b", 40)]
        events = env.from_source(Growing(rows, Event), uid="s").assign_timestamps_and_watermarks(STRATEGY)
        alarms = events.key_by("key").process(Alarm(5), output=Note, uid="first")
        alarms.key_by("key").process(Relay(), output=Note, uid="second").sink_to(
            FolderSink(box.folder / "out"), uid="out"
        )

    box.run(build, parallelism=1)
    low = -(1 << 63)
    seen = {key: [(n.what, n.at, n.watermark) for n in box.notes() if n.key == key] for key in "ab"}
    assert seen["a"] == [
        ("row seen", 10, low),
        ("end", 1, low),
        # Watermark 19: the first level's timer 15, then the second level's 10 and 15, then rows.
        ("timer seen", 15, low),
        ("second timer", 10, 19),
        ("second timer", 15, 19),
        ("row seen", 31, 19),
        ("end", 3, 19),
        # Watermark 39, without rows.
        ("timer seen", 36, 19),
        ("second timer", 31, 39),
        ("second timer", 36, 39),
        ("end", 4, 39),
    ]
    assert seen["b"] == [
        ("row seen", 20, low),
        ("end", 1, low),
        # Watermark 19: the first level's timer 25 fires before its row 40, and comes with the rows.
        ("timer seen", 25, 19),
        ("row seen", 40, 19),
        ("end", 3, 19),
        ("second timer", 20, 39),
        ("second timer", 25, 39),
    ]


class Broadcasting(KeyedBroadcastProcessFunction[Event, Event, Note]):
    """Timers of keyed rows only."""

    def process_element(self, row: Event, ctx: Context) -> Iterator[Note]:
        ctx.timer_service().register_event_time_timer(row.at)
        yield from ()

    def process_broadcast_element(self, row: Event, ctx: Context) -> Iterator[Note]:
        yield Note("broadcast", "", row.at, ctx.timestamp() or -1, 0)
        if row.key == "wrong":
            ctx.timer_service().register_event_time_timer(row.at)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Note]:
        yield Note("timer", ctx.get_current_key(), timestamp, 0, 0)


@pytest.mark.parametrize("key", ["right", "wrong"])
def test_functions_of_connected_streams_have_timers_and_broadcast_rows_have_none(box: TimerJobs, key: str) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        events = env.from_source(Growing([Event("a", 5), Event("b", 9)], Event), uid="s")
        rules = env.from_source(Growing([Event(key, 7)], Event), uid="r")
        timed = [each.assign_timestamps_and_watermarks(STRATEGY) for each in (events, rules)]
        made = timed[0].key_by("key").connect(timed[1].broadcast())
        made.process(Broadcasting(), output=Note, uid="op").sink_to(FolderSink(box.folder / "out"), uid="out")

    if key == "wrong":
        with raises(StateError, operator="op") as raised:
            box.run(build, parallelism=1)
        assert "key" not in raised.value.facts
        return
    box.run(build, parallelism=1)
    assert [(n.what, n.at, n.time) for n in box.notes()] == [("broadcast", 7, 7), ("timer", 5, 0)]


class NoOnTimer(KeyedProcessFunction[Event, Note]):
    """Forgot on_timer."""

    def process_element(self, row: Event, ctx: Context) -> None:
        ctx.timer_service().register_event_time_timer(row.at)


class Failing(Alarm):
    """Fails in on_timer."""

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Note]:
        raise ValueError("Broken")


def test_a_timer_of_a_function_without_on_timer_is_refused(box: TimerJobs) -> None:
    with raises(StateError, operator="op", key="{'key': 'a'}", row=repr(Event("a", 1))):
        box.events(NoOnTimer(), [Event("a", 1)])


def test_an_error_in_on_timer_names_the_key_and_leaves_nothing_behind(box: TimerJobs) -> None:
    rows = [Event("a", 1), Event("b", 2), Event("c", 3)]
    with raises(UserCodeError, operator="op", key="{'key': 'a'}") as raised:
        box.events(Failing(0), rows, parallelism=1)
    assert all(word in raised.value.message for word in ("on_timer", "ValueError", "Broken"))
    box.events(Alarm(0), rows, parallelism=1)
    assert _timers(box.notes()) == [("a", 1), ("b", 2)]


class Keeping(Alarm):
    """Has a value that lives for a moment of event time; tells it when the timer fires."""

    def open(self, ctx: RuntimeContext) -> None:
        ttl = StateTtlConfig.new_builder(Time.milliseconds(1000)).set_ttl_time_characteristic(
            StateTtlConfig.TtlTimeCharacteristic.EventTime
        )
        self.kept = ctx.get_state(ValueStateDescriptor("kept", int, ttl=ttl.build()))

    def process_element(self, row: Event, ctx: Context) -> Iterator[Note]:
        self.kept.update(row.at)
        yield from super().process_element(row, ctx)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Note]:
        yield Note("timer", ctx.get_current_key(), timestamp, self.kept.value() or 0, 0)


class Picky(KeyedProcessFunction[Event, Note]):
    """Sets a timer with each row, and then fails on some."""

    def process_element(self, row: Event, ctx: Context) -> Iterator[Note]:
        ctx.timer_service().register_event_time_timer(row.at)
        assert ctx.timestamp() == row.at
        if row.at % 2:
            raise ValueError("odd")
        yield Note("row", row.key, row.at, 0, 0)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Note]:
        yield Note("timer", ctx.get_current_key(), timestamp, 0, 0)


def test_a_row_that_becomes_a_dead_letter_knew_its_time_and_sets_no_timer(box: TimerJobs) -> None:
    rows = [Event("a", at) for at in (2, 3, 4, 5, 6)]

    def build(env: StreamExecutionEnvironment) -> None:
        stream = env.from_source(Growing(rows, Event), uid="s").assign_timestamps_and_watermarks(STRATEGY)
        made = stream.key_by("key").process(Picky(), output=Note, uid="op", on_error=DeadLetters(budget=10))
        made.sink_to(FolderSink(box.folder / "out"), uid="out")
        made.get_dead_letters().sink_to(FolderSink(box.folder / "letters"), uid="letters")

    box.run(build)
    assert [row["error"] for row in FolderSink(box.folder / "letters").rows()] == ["ValueError: odd"] * 2
    fired = sorted(note.at for note in box.notes() if note.what == "timer")
    assert fired and set(fired) <= {2, 4, 6}
    assert sorted(note.at for note in box.notes() if note.what == "row") == [2, 4, 6]


@pytest.mark.parametrize(("after", "lives"), [(900, True), (5000, False)])
def test_a_timer_that_draining_fires_sees_the_state_of_its_own_time(box: TimerJobs, after: int, lives: bool) -> None:
    """Draining takes event time to its end: state expires no sooner for that."""
    rows = [Event("a", 1), Event("b", 2), Event("c", 3)]
    box.events(Keeping(after), rows)
    _ask_to_drain(box)
    box.events(Keeping(after), rows)
    assert {(n.key, n.at, n.time) for n in box.notes() if n.what == "timer"} == {
        (row.key, row.at + after, row.at if lives else 0) for row in rows
    }


class Both(KeyedCoProcessFunction[Note, Event, Note]):
    """Sets a timer for each row of either stream."""

    def process_element1(self, row: Note, ctx: Context) -> None:
        ctx.timer_service().register_event_time_timer(row.at)

    def process_element2(self, row: Event, ctx: Context) -> None:
        assert ctx.timestamp() == row.at
        ctx.timer_service().register_event_time_timer(row.at)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Note]:
        yield Note("timer", ctx.get_current_key(), timestamp, 0, ctx.timer_service().current_watermark())


def test_a_source_that_is_first_taken_behind_an_operator_has_a_say_there_only(box: TimerJobs) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        given = ([Event("a", 10), Event("a", 50)], [Event("a", 20), Event("a", 30)])
        ahead, behind = [
            env.from_source(Growing(rows, Event), uid=f"s{at}").assign_timestamps_and_watermarks(STRATEGY)
            for at, rows in enumerate(given)
        ]
        first = ahead.key_by("key").process(Alarm(), output=Note, uid="first")
        both = first.key_by("key").connect(behind.key_by("key")).process(Both(), output=Note, uid="second")
        both.sink_to(FolderSink(box.folder / "out"), uid="out")

    run = box.run(build, parallelism=2)
    assert run.manifest is not None
    assert [(s.uid, s.watermark) for s in run.manifest.watermarks] == [("s0", 49), ("s1", 29)]
    assert {o.uid: o.watermark for o in run.manifest.operators} == {"first": 49, "second": 29}
    assert [(n.at, n.watermark) for n in box.notes()] == [(10, 29), (20, 29)]


def test_a_job_that_cannot_be_drained_says_so_and_goes_on(box: TimerJobs) -> None:
    rows = [Event("a", 1), Event("b", 2)]
    box.events(Alarm(5), rows)
    _ask_to_drain(box)
    box.events(Failing(5), [*rows, Event("c", 3)], run__max_batches=1)
    assert [r.rows_in for r in box.results] == [1]
    answer = read_answer(open_storage(str(box.folder / "root")), "r1")
    assert answer is not None
    assert (answer.status, answer.code) == ("failed", UserCodeError("").code)
    assert _timers(box.notes()) == []


def test_a_subtask_with_neither_rows_nor_due_timers_does_not_open_its_store(box: TimerJobs) -> None:
    many = [Event(f"k{n}", n) for n in range(16)]
    first = box.events(Alarm(100), many, parallelism=4)
    second = box.events(Alarm(100), [*many, Event("k0", 99), Event("k0", 102)], parallelism=4)
    snapshots = [
        {s.subtask: s.snapshot for s in run.manifest.operators[0].subtasks} for run in (first, second) if run.manifest
    ]
    changed = {at for at in range(4) if snapshots[0][at] != snapshots[1][at]}
    # Of the rows' key, and in the tick batch those of the timers that were due.
    assert sorted(_timers(box.notes())) == [("k0", 100), ("k1", 101)]
    assert changed == {_subtask("k0"), _subtask("k1")}


def _ask_to_drain(box: TimerJobs) -> None:
    asked = Request(
        id="r1", kind=RequestKind.STOP, savepoint="last", origin=Origin.STOP, by="ada", drain=True, at="2026-01-01"
    )
    post(open_storage(str(box.folder / "root")), asked)


def _subtask(key: str) -> int:
    return subtask_of(key_hash((key,), ("string",)) % 8, 4, 8)


def test_a_function_sees_both_domains_by_their_names() -> None:
    assert [domain.value for domain in TimeDomain] == ["event", "processing"]
