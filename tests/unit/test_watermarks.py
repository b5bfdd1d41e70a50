"""How far event time has come: per source, per operator, and what a job may declare."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pyarrow as pa
import pytest

from stateflow import KeyedProcessFunction, OnTimerContext, StreamExecutionEnvironment, WatermarkStrategy
from stateflow.api.graph.event_time import event_time_of
from stateflow.api.streams.data_stream import DataStream
from stateflow.checkpoint.log.documents import SourceWatermark
from stateflow.errors import JobDefinitionError
from stateflow.runtime.planning.physical_plan import Level, plan_job
from stateflow.runtime.task.row_conversion import latest_time
from stateflow.runtime.watermarks import advance_source_watermarks, combine_watermarks, epoch_milliseconds
from tests.support.errors import raises
from tests.support.graphs import Nowhere

STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(milliseconds=5)).with_timestamp_column("at")


class Row(msgspec.Struct):
    key: str
    at: int


class When(msgspec.Struct):
    key: str
    at: datetime


class Timeless(msgspec.Struct):
    key: str


class Echo(KeyedProcessFunction[Row, Row]):
    """Does nothing."""


class Alarm(Echo):
    """Has timers."""

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> None:
        return None


def _of(uid: str, watermark: int | None, active_at: int = 0, idle: bool = False) -> SourceWatermark:
    return SourceWatermark(uid=uid, watermark=watermark, active_at=active_at, idle=idle)


def test_a_source_s_watermark_stays_behind_its_latest_row_and_never_goes_back() -> None:
    first = advance_source_watermarks([], {"s": STRATEGY}, {"s": 100}, 1)
    assert first == [_of("s", 94, 1)]
    assert advance_source_watermarks(first, {"s": STRATEGY}, {"s": 90}, 2) == [_of("s", 94, 2)]
    assert advance_source_watermarks(first, {"s": STRATEGY}, {"s": 110}, 2) == [_of("s", 104, 2)]


def test_a_source_without_new_rows_is_idle_at_once_or_after_the_time_that_was_declared() -> None:
    patient = STRATEGY.with_idleness(timedelta(milliseconds=10))
    before = [_of("p", 50, 100), _of("s", 50, 100)]
    found = advance_source_watermarks(before, {"p": patient, "s": STRATEGY}, {}, 109)
    assert found == [_of("p", 50, 100), _of("s", 50, 100, idle=True)]
    assert advance_source_watermarks(found, {"p": patient}, {}, 110) == [_of("p", 50, 100, idle=True)]
    assert advance_source_watermarks(found, {"p": patient}, {"p": 60}, 111) == [_of("p", 54, 111)]


def test_a_source_that_never_had_a_row_waits_from_the_first_batch_on() -> None:
    patient = {"p": STRATEGY.with_idleness(timedelta(milliseconds=10))}
    first = advance_source_watermarks([], patient, {}, 100)
    assert first == [_of("p", None, 100)]
    assert advance_source_watermarks(first, patient, {}, 110) == [_of("p", None, 100, idle=True)]


@pytest.mark.parametrize(
    ("before", "sources", "wanted"),
    [
        (None, [], None),
        (None, [_of("a", 10), _of("b", 7)], 7),
        (None, [_of("a", 10), _of("b", 7, idle=True)], 10),
        (8, [_of("a", 10), _of("b", 7)], 8),
        (8, [_of("a", 10), _of("b", None)], 8),
        (None, [_of("a", 10), _of("b", None)], None),
        (8, [_of("a", 10, idle=True), _of("b", 9, idle=True)], 8),
    ],
    ids=["none", "smallest", "idle-has-no-say", "never-back", "unknown-waits", "unknown-from-the-start", "all-idle"],
)
def test_an_operator_s_watermark_is_the_smallest_of_the_sources_that_are_not_idle(
    before: int | None, sources: list[SourceWatermark], wanted: int | None
) -> None:
    assert combine_watermarks(before, sources) == wanted


def test_event_time_is_read_in_milliseconds() -> None:
    moment = datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=UTC)
    assert epoch_milliseconds(moment) == epoch_milliseconds(moment.replace(tzinfo=None)) == -1
    for kind in (pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.timestamp("ns")):
        zone = UTC if kind.tz else None
        assert latest_time(pa.array([moment.replace(tzinfo=zone), None], kind)) == -1
    assert latest_time(pa.array([3, None, 7], pa.int64())) == 7
    assert latest_time(pa.array([None], pa.int64())) is None


# -- what a job may declare ----------------------------------------------------------------------------------------


def _stream(env: StreamExecutionEnvironment, uid: str, row_class: type = Row) -> DataStream:
    return env.from_collection([], row_class, uid=uid)


@pytest.fixture
def env() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment()


@pytest.mark.parametrize("row_class", [Row, When])
def test_event_time_is_a_datetime_or_a_number(env: StreamExecutionEnvironment, row_class: type) -> None:
    _stream(env, "s", row_class).assign_timestamps_and_watermarks(STRATEGY).sink_to(Nowhere(), uid="out")
    assert event_time_of(env.graph.sinks[0].parent) == "at"


def test_a_strategy_without_a_column_or_with_one_that_is_no_time_is_refused(env: StreamExecutionEnvironment) -> None:
    stream = _stream(env, "s")
    with raises(JobDefinitionError) as refused:
        stream.assign_timestamps_and_watermarks(WatermarkStrategy.for_monotonous_timestamps())
    assert "with_timestamp_column" in refused.value.hint
    with raises(JobDefinitionError, column="key", type="string"):
        stream.assign_timestamps_and_watermarks(STRATEGY.with_timestamp_column("key"))
    with raises(JobDefinitionError, given="'at'"):
        stream.assign_timestamps_and_watermarks("at")  # type: ignore[arg-type]
    for wrong in (timedelta(-1), 5):
        with raises(JobDefinitionError, given=repr(wrong)):
            WatermarkStrategy.for_bounded_out_of_orderness(wrong)  # type: ignore[arg-type]


def test_a_column_of_event_time_that_is_lost_before_the_first_key_by_is_refused(
    env: StreamExecutionEnvironment,
) -> None:
    rows = _stream(env, "s").assign_timestamps_and_watermarks(STRATEGY)
    rows.map(lambda row: Timeless(row.key), output=Timeless).key_by("key").process(Echo(), output=Row, uid="op")
    with raises(JobDefinitionError, column="at", columns=["key"]):
        env.graph.check()


def test_behind_an_operator_event_time_may_be_lost(env: StreamExecutionEnvironment) -> None:
    rows = _stream(env, "s").assign_timestamps_and_watermarks(STRATEGY)
    kept = rows.key_by("key").process(Echo(), output=Row, uid="first")
    lost = kept.key_by("key").process(Echo(), output=Timeless, uid="second")
    lost.key_by("key").process(Echo(), output=Row, uid="third").sink_to(Nowhere(), uid="out")
    env.graph.check()
    assert [(o.uid, event_time_of(o)) for o in env.graph.operators[:2]] == [("first", "at"), ("second", "")]
    assert {u.uid: u.watermark_sources for u in plan_job(env.graph, 1).chains} == dict.fromkeys(
        ("first", "second", "third"), frozenset({"s"})
    )


def test_a_source_has_one_strategy_and_it_is_declared_before_union_and_key_by(env: StreamExecutionEnvironment) -> None:
    first, second = _stream(env, "a"), _stream(env, "b")
    with raises(JobDefinitionError, sources=["a", "b"]):
        first.union(second).assign_timestamps_and_watermarks(STRATEGY)
    behind = first.key_by("key").process(Echo(), output=Row, uid="op")
    with raises(JobDefinitionError, sources=["a"]):
        behind.assign_timestamps_and_watermarks(STRATEGY)
    other = first.assign_timestamps_and_watermarks(STRATEGY.with_idleness(timedelta(1)))
    union = first.assign_timestamps_and_watermarks(STRATEGY).union(other, second)
    union.key_by("key").process(Echo(), output=Row, uid="both")
    with raises(JobDefinitionError, uid="a"):
        env.graph.check()


def test_only_rows_behind_timers_and_an_expression_go_through_a_shuffle_phase_by_phase(
    env: StreamExecutionEnvironment,
) -> None:
    def levels(function: Echo, uid: str) -> tuple[Level, ...]:
        env = StreamExecutionEnvironment()
        counts = _stream(env, "s").key_by("key").process(function, output=Row, uid=uid)
        counts.key_by("key").process(Echo(), output=Row, uid="direct")
        counts.transform(lambda f: f).key_by("key").process(Echo(), output=Row, uid="behind")
        return plan_job(env.graph, 1).levels

    phases = [
        [share.phase for share in shares]
        for function in (Echo(), Alarm())
        for shares in levels(function, "op")[1].shares.values()
    ]
    assert phases == [[None], [None], [None], [0, 1]]


def test_rows_of_a_union_go_through_a_shuffle_source_by_source_when_one_has_event_time(
    env: StreamExecutionEnvironment,
) -> None:
    a = _stream(env, "a").assign_timestamps_and_watermarks(STRATEGY)
    united = _stream(env, "b").union(a).map(lambda row: row)
    united.key_by("key").process(Echo(), output=Row, uid="op")
    ((level,), (shares,)) = (levels := plan_job(env.graph, 1).levels), levels[0].shares.values()
    assert level.has_origins
    assert [(share.number, share.leaf.uid, share.origin) for share in shares] == [(0, "b", -1), (1, "a", 0)]  # type: ignore[union-attr]
