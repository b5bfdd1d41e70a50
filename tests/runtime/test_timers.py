"""Timers of a job without Spark: watermarks, phases, restores, idle sources, batches without rows, refusals."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

import pytest

from stateflow import (
    Context,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    OnTimerContext,
    RuntimeContext,
    StateTtlConfig,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from stateflow.api.dead_letters import DeadLetters
from stateflow.api.source import CollectionSource
from stateflow.api.streams.data_stream import DataStream
from stateflow.checkpoint.job_requests import post, read_answer
from stateflow.checkpoint.log.documents import Origin, Request, RequestKind
from stateflow.errors import StateError, UserCodeError
from stateflow.types.key_groups import key_hash, subtask_of
from tests.runtime.timer_jobs import LOW, START, Alarm, Event, Note, TimerJobs, timed
from tests.support.errors import raises
from tests.support.local_jobs import Growing


@pytest.fixture
def jobs(tmp_path: Path) -> TimerJobs:
    return TimerJobs(tmp_path)


def test_the_watermark_comes_from_the_batches_before_and_from_the_rows_of_the_key(jobs: TimerJobs) -> None:
    rows = [*(Event("a", at) for at in (10, 30, 40, 20)), Event("b", 5)]
    jobs.events(Alarm(), rows, parallelism=1)
    assert [(n.at, n.watermark) for n in jobs.notes()] == [(10, 9), (30, 29), (20, 29), (40, 39), (5, 39)]


def test_the_last_timers_fire_in_a_batch_without_rows_at_the_same_positions(jobs: TimerJobs) -> None:
    rows = [Event("a", 10), Event("b", 20), Event("a", 30)]
    run = jobs.events(Alarm(5), rows, parallelism=1)
    assert [r.rows_in for r in jobs.results] == [2, 1, 0]
    assert jobs.timers() == [("a", 15), ("b", 25)]
    assert jobs.notes(table="side") == jobs.notes("timer")
    assert [p.offset for p in run.positions] == ['{"row": 3}']
    jobs.events(Alarm(5), rows, parallelism=1)
    assert jobs.results == []


def test_batches_without_rows_are_limited_and_continue_in_the_next_run(jobs: TimerJobs) -> None:
    class Forever(Alarm):
        def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Note]:
            # As a clock that advances while the job works.
            jobs.clock.sleep(datetime.timedelta(seconds=1))
            ctx.timer_service().register_processing_time_timer(timestamp + 1000)
            yield from super().on_timer(timestamp, ctx)

        def __deepcopy__(self, memo: object) -> Forever:
            return self

    forever = Forever(processing=0)
    jobs.events(forever, [Event("a", 1)], parallelism=1)
    assert [r.rows_in for r in jobs.results] == [1, *[0] * 10]
    fired = [("a", START + 1000 * n) for n in range(20)]
    assert jobs.timers() == fired[:10]
    jobs.events(forever, [Event("a", 1)], parallelism=1)
    assert jobs.timers() == fired


def test_a_timer_that_is_due_between_runs_fires_in_the_next_one_at_any_parallelism(jobs: TimerJobs) -> None:
    rows = [Event(f"k{n}", n) for n in range(10)]
    for seconds, parallelism in ((0, 1), (59, 3)):
        jobs.clock.sleep(datetime.timedelta(seconds=seconds))
        jobs.events(Alarm(processing=60_000), rows, parallelism=parallelism)
        assert jobs.timers() == []
    assert jobs.results == []
    jobs.clock.sleep(datetime.timedelta(seconds=10))
    jobs.events(Alarm(processing=60_000), rows, parallelism=2)
    assert sorted((n.key, n.at, n.time, n.domain) for n in jobs.notes("timer")) == [
        (row.key, START + 60_000, START + 69_000, "processing") for row in rows
    ]
    assert [r.rows_in for r in jobs.results] == [0]


@pytest.mark.parametrize(("kind", "last"), [(Growing, 19), (CollectionSource, 399)], ids=["growing", "at-its-end"])
def test_the_slower_of_two_sources_holds_the_watermark_back_until_its_end(
    jobs: TimerJobs, kind: type[CollectionSource], last: int
) -> None:
    fast, slow = ([Event("f", at) for at in (100, 200, 300, 400, 500, 600)], [Event("s", at) for at in (10, 20)])

    def streams(env: StreamExecutionEnvironment) -> DataStream:
        return timed(env, "fast", fast).union(timed(env, "slow", slow, kind))

    jobs.process(streams, Alarm(), parallelism=1)
    assert [n.watermark for n in jobs.notes() if n.key == "f"] == [LOW, LOW, 19, 19, last, last]


class Counted(KeyedProcessFunction[Note, Note]):
    """Follows `Alarm`: reports the rows of both phases, and sets timers of its own."""

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


def test_output_of_timers_precedes_the_advance_of_time_and_rows_follow_and_a_key_ends_once(jobs: TimerJobs) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        rows = [Event("a", 10), Event("b", 20), Event("a", 31), Event("b", 40)]
        alarms = timed(env, "s", rows).key_by("key").process(Alarm(5), output=Note, uid="first")
        second = alarms.key_by("key").process(Counted(), output=Note, uid="second")
        second.sink_to(jobs.sink("out"), uid="out")

    jobs.run(build, parallelism=1)
    seen = {key: [(n.what, n.at, n.watermark) for n in jobs.notes() if n.key == key] for key in "ab"}
    assert seen["a"] == [
        ("row seen", 10, LOW),
        ("end", 1, LOW),
        # Watermark 19: the first level's timer 15, then the second level's 10 and 15, then rows.
        ("timer seen", 15, LOW),
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
        ("row seen", 20, LOW),
        ("end", 1, LOW),
        # Watermark 19: the first level's timer 25 fires before its row 40, and arrives with the rows.
        ("timer seen", 25, 19),
        ("row seen", 40, 19),
        ("end", 3, 19),
        ("second timer", 20, 39),
        ("second timer", 25, 39),
    ]


class Watermarks(KeyedProcessFunction[Note, Note]):
    def process_element(self, row: Note, ctx: Context) -> Iterator[Note]:
        yield Note(row.what, row.key, row.at, row.time, ctx.timer_service().current_watermark())


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


def test_functions_of_connected_streams_have_timers_but_for_broadcast_rows(jobs: TimerJobs) -> None:
    def run(key: str) -> None:
        def build(env: StreamExecutionEnvironment) -> None:
            rules = timed(env, "r", [Event(key, at) for at in (7, 8, 50)]).broadcast()
            events = timed(env, "s", [Event("a", at) for at in (5, 9, 40)]).key_by("key")
            made = events.connect(rules).process(Broadcasting(), output=Note, uid="op")
            down = made.key_by("key").process(Watermarks(), output=Note, uid="down")
            down.sink_to(jobs.sink("out"), uid="out")

        jobs.run(build, parallelism=1)

    with raises(StateError, operator="op") as raised:
        run("wrong")
    assert "key" not in raised.value.facts
    run("right")
    # Output for broadcast rows arrives after time advances, as that for other rows does; that of timers before.
    assert [(n.at, n.time, n.watermark) for n in jobs.notes("broadcast")] == [(7, 7, LOW), (8, 8, LOW), (50, 50, 7)]
    assert [(n.at, n.watermark) for n in jobs.notes("timer")] == [(5, LOW), (9, 7)]


class NoOnTimer(KeyedProcessFunction[Event, Note]):
    def process_element(self, row: Event, ctx: Context) -> None:
        ctx.timer_service().register_event_time_timer(row.at)


class Failing(Alarm):
    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Note]:
        raise ValueError("Broken")


def test_a_timer_of_a_function_without_on_timer_is_refused(jobs: TimerJobs) -> None:
    with raises(StateError, operator="op", key="{'key': 'a'}", row=repr(Event("a", 1))):
        jobs.events(NoOnTimer(), [Event("a", 1)])


def test_an_error_in_on_timer_names_the_key_and_leaves_nothing(jobs: TimerJobs) -> None:
    rows = [Event("a", 1), Event("b", 2), Event("c", 3)]
    with raises(UserCodeError, operator="op", key="{'key': 'a'}") as raised:
        jobs.events(Failing(0), rows, parallelism=1)
    assert all(word in raised.value.message for word in ("on_timer", "ValueError", "Broken"))
    jobs.events(Alarm(0), rows, parallelism=1)
    assert jobs.timers() == [("a", 1), ("b", 2)]


class Remembers(KeyedProcessFunction[Note, Note]):
    def open(self, ctx: RuntimeContext) -> None:
        event_time = StateTtlConfig.TtlTimeCharacteristic.EventTime
        ttl = StateTtlConfig.new_builder(datetime.timedelta(seconds=1)).set_ttl_time_characteristic(event_time)
        self.last = ctx.get_state(ValueStateDescriptor("last", int, default=0, ttl=ttl.build()))

    def process_element(self, row: Note, ctx: Context) -> Iterator[Note]:
        yield Note(row.what, row.key, self.last.value() or 0, 0, 0)
        self.last.update(row.at)


def test_no_state_expires_by_a_drain(jobs: TimerJobs) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        alarms = timed(env, "s", [Event("a", 1)]).key_by("key").process(Alarm(5), output=Note, uid="first")
        last = alarms.key_by("key").process(Remembers(), output=Note, uid="second")
        last.sink_to(jobs.sink("out"), uid="out")

    jobs.run(build, run__drain=True)
    assert [(note.what, note.at) for note in jobs.notes()] == [("row", 0), ("timer", 1)]


def test_a_failed_drain_is_reported_and_the_job_continues(jobs: TimerJobs) -> None:
    rows = [Event("a", 1), Event("b", 2)]
    jobs.events(Alarm(5), rows)
    _request_drain(jobs)
    jobs.events(Failing(5), [*rows, Event("c", 3)], run__max_batches=1)
    assert [r.rows_in for r in jobs.results] == [1]
    answer = read_answer(jobs.storage, "r1")
    assert answer is not None
    assert (answer.status, answer.code) == ("failed", UserCodeError("").code)
    assert jobs.timers() == []


def _request_drain(jobs: TimerJobs) -> None:
    request = Request(
        id="r1", kind=RequestKind.STOP, savepoint="last", origin=Origin.STOP, by="ada", drain=True,
        at="2026-01-01T00:00:00Z",
    )  # fmt: skip
    post(jobs.storage, request)


class FailsOnOdd(Alarm):
    def process_element(self, row: Event, ctx: Context) -> Iterator[Note]:
        yield from super().process_element(row, ctx)
        if row.at % 2:
            raise ValueError("odd")


def test_a_row_that_becomes_a_dead_letter_sets_no_timer(jobs: TimerJobs) -> None:
    # Two to a batch: the timer of 5 would be due at the row of 6.
    rows = [Event("a", at) for at in (2, 3, 5, 6, 8)]
    jobs.events(FailsOnOdd(0), rows, on_error=DeadLetters(budget=10))
    assert [letter.error for letter in jobs.letters()] == ["ValueError: odd"] * 2
    assert jobs.timers() == [("a", 2), ("a", 6)]
    assert sorted(note.at for note in jobs.notes("row")) == [2, 6, 8]


def test_a_subtask_with_neither_rows_nor_due_timers_does_not_open_its_store(jobs: TimerJobs) -> None:
    many = [Event(f"k{n}", n) for n in range(16)]
    first = jobs.events(Alarm(100), many, parallelism=4)
    second = jobs.events(Alarm(100), [*many, Event("k0", 99), Event("k0", 102)], parallelism=4)
    snapshots = [
        {s.subtask: s.snapshot for s in run.manifest.operators[0].subtasks} for run in (first, second) if run.manifest
    ]
    changed = {at for at in range(4) if snapshots[0][at] != snapshots[1][at]}
    # The subtasks of the rows' key and, in the batch without rows, of the due timers.
    assert sorted(jobs.timers()) == [("k0", 100), ("k1", 101)]
    assert changed == {subtask_of(key_hash((key,), ("string",)) % 8, 4, 8) for key in ("k0", "k1")}
