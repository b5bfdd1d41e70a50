"""The explanation of a job's plan, as text."""

from __future__ import annotations

from datetime import timedelta

from syrupy.assertion import SnapshotAssertion

from stateflow import (
    Context,
    KeyedProcessFunction,
    MapStateDescriptor,
    OutputTag,
    RuntimeContext,
    StateTtlConfig,
    ValueStateDescriptor,
)
from stateflow.config.sources import resolve
from stateflow.environment import StreamExecutionEnvironment
from stateflow.runtime.planning.explain import JobExplanation, explain_job, to_lines
from tests.support.graphs import Nothing, Nowhere, Pass, Row, environment

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


def _explanation(env: StreamExecutionEnvironment) -> JobExplanation:
    return explain_job(env.graph, resolve({"name": "job", "parallelism": 2}), on_spark=False)


def _shown(explanation: JobExplanation) -> str:
    return "".join(f"{line}\n" for line in to_lines(explanation))


def test_a_job_is_explained_with_keys_types_states_shuffles_and_sinks(golden: SnapshotAssertion) -> None:
    env = environment()
    rows = env.from_source(Nothing(), uid="rows")
    first = rows.filter(is_good).key_by("key", order_by=["number"]).process(Declares(), output=Row, uid="first")
    first.get_side_output(LATE).sink_to(Nowhere(), uid="late")
    first.key_by("number").process(Pass(), output=Row, uid="second").sink_to(Nowhere(), uid="out")
    assert _shown(_explanation(env)) == golden


class Lives(KeyedProcessFunction[Row, Row]):
    """Has a state for ever, and two that expire."""

    def open(self, ctx: RuntimeContext) -> None:
        day = StateTtlConfig.new_builder(timedelta(days=1, minutes=30)).build()
        second = StateTtlConfig.new_builder(timedelta(seconds=1)).update_ttl_on_read_and_write().use_event_time()
        self.seen = ctx.get_map_state(MapStateDescriptor("seen", str, int, ttl=day))
        self.last = ctx.get_state(ValueStateDescriptor("last", int, ttl=second.build()))
        self.ever = ctx.get_state(ValueStateDescriptor("ever", int))

    def process_element(self, row: Row, ctx: Context) -> None:
        """Nothing runs."""


def test_times_to_live_are_explained(golden: SnapshotAssertion) -> None:
    env = environment()
    env.from_source(Nothing(), uid="rows").key_by("key").process(Lives(), output=Row, uid="op")
    assert _shown(_explanation(env)) == golden


def test_unions_and_relays_are_explained(golden: SnapshotAssertion) -> None:
    env = environment()
    rows, more = env.from_source(Nothing(), uid="rows"), env.from_source(Nothing(), uid="more")
    first = rows.union(more).key_by("key").process(Pass(), output=Row, uid="first")
    first.union(rows).sink_to(Nowhere(), uid="out")
    assert _shown(_explanation(env)) == golden


def test_states_that_only_a_task_can_declare_are_unknown(golden: SnapshotAssertion) -> None:
    env = environment()
    env.from_source(Nothing(), uid="rows").key_by("key").process(WantsATask(), output=Row, uid="op")
    explanation = _explanation(env)
    assert explanation.levels[0].chains[0].states is None
    assert _shown(explanation) == golden
