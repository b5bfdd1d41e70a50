"""The plan of a job as it is shown to people."""

from __future__ import annotations

from datetime import timedelta

from stateflow import (
    Context,
    KeyedProcessFunction,
    MapStateDescriptor,
    OutputTag,
    RuntimeContext,
    StateTtlConfig,
    ValueStateDescriptor,
)
from stateflow.config import resolve
from stateflow.environment import StreamExecutionEnvironment
from stateflow.runtime.drawing import Drawing, as_text, draw
from tests.unit.kit import Nothing, Nowhere, Pass, Row, environment

LATE = OutputTag("late", Row)


class Declares(KeyedProcessFunction[Row, Row]):
    """Has a map, and looks at where it runs."""

    def open(self, ctx: RuntimeContext) -> None:
        self.seen = ctx.get_map_state(MapStateDescriptor("seen", str, int))
        self.part = ctx.info.subtask / ctx.info.parallelism

    def process_element(self, row: Row, ctx: Context) -> None:
        ctx.output(LATE, row)


class WantsATask(KeyedProcessFunction[Row, Row]):
    """Cannot be opened outside a task."""

    def open(self, ctx: RuntimeContext) -> None:
        raise FileNotFoundError("model.bin")


def is_good(row: Row) -> bool:
    """A filter."""
    return row.number > 0


def _drawing(env: StreamExecutionEnvironment) -> Drawing:
    return draw(env.graph, resolve({"name": "job", "parallelism": 2}), on_spark=False)


def test_a_job_is_drawn_with_keys_types_states_shuffles_and_sinks() -> None:
    env = environment()
    rows = env.from_source(Nothing(), uid="rows")
    first = (
        rows.filter(is_good).key_by("key", order_by=["number"]).process(Declares(), output=Row, uid="first")
    )
    first.get_side_output(LATE).sink_to(Nowhere(), uid="late")
    first.key_by("number").process(Pass(), output=Row, uid="second").sink_to(Nowhere(), uid="out")
    assert list(as_text(_drawing(env))) == [
        "job job: without Spark, parallelism 2, 4096 key groups",
        "source rows: nothing",
        "  rows: Row(key string, number bigint, other double)",
        "shuffle 1, to 2 tasks",
        "  operator first: Declares",
        "    takes rows > filter is_good, keyed by key string, ordered by number",
        "    map state seen: str -> int",
        "    emits Row(key string, number bigint, other double)",
        "    side output late: Row(key string, number bigint, other double)",
        "    sink late: Nowhere of first's late",
        "shuffle 2, to 2 tasks",
        "  operator second: Pass",
        "    takes first, keyed by number bigint",
        "    emits Row(key string, number bigint, other double)",
        "    sink out: Nowhere of second",
    ]


class Lives(KeyedProcessFunction[Row, Row]):
    """Has a state for ever, and two that expire."""

    def open(self, ctx: RuntimeContext) -> None:
        day = StateTtlConfig.new_builder(timedelta(days=1, minutes=30)).build()
        second = (
            StateTtlConfig.new_builder(timedelta(seconds=1)).update_ttl_on_read_and_write().use_event_time()
        )
        self.seen = ctx.get_map_state(MapStateDescriptor("seen", str, int, ttl=day))
        self.last = ctx.get_state(ValueStateDescriptor("last", int, ttl=second.build()))
        self.ever = ctx.get_state(ValueStateDescriptor("ever", int))

    def process_element(self, row: Row, ctx: Context) -> None:
        """Nothing runs."""


def test_times_to_live_are_drawn() -> None:
    env = environment()
    env.from_source(Nothing(), uid="rows").key_by("key").process(Lives(), output=Row, uid="op")
    text = [line.strip() for line in as_text(_drawing(env))]
    assert "value state ever: int" in text
    assert "value state last: int, lives 1 s after each read and write, in event time" in text
    assert "map state seen: str -> int, lives 1 d 30 min after each write, in processing time" in text


def test_unions_and_relays_are_drawn() -> None:
    env = environment()
    rows, more = env.from_source(Nothing(), uid="rows"), env.from_source(Nothing(), uid="more")
    first = rows.union(more).key_by("key").process(Pass(), output=Row, uid="first")
    first.union(rows).sink_to(Nowhere(), uid="out")
    text = list(as_text(_drawing(env)))
    assert "    takes (rows + more), keyed by key string" in text
    assert "  relay of rows" in text
    assert "  sink out: Nowhere of (first + rows)" in text


def test_states_that_only_a_task_can_tell_are_said_to_be_unknown() -> None:
    env = environment()
    env.from_source(Nothing(), uid="rows").key_by("key").process(WantsATask(), output=Row, uid="op")
    drawing = _drawing(env)
    assert drawing.levels[0].units[0].states is None
    assert "    states unknown: open failed outside a run: FileNotFoundError: model.bin" in as_text(drawing)
