"""From a graph to levels of tasks, and who must report at a barrier."""

from __future__ import annotations

from datetime import timedelta

import pytest

from stateflow import OnTimerContext, WatermarkStrategy
from stateflow.api.functions.process import KeyedProcessFunction
from stateflow.checkpoint.barriers import Participant
from stateflow.runtime.planning.physical_plan import JobPlan, plan_job
from stateflow.runtime.spark.shuffle import reads_once
from tests.support.graphs import DeclaredJob, Nowhere, Pass, Row, process

STRATEGY = WatermarkStrategy.for_bounded_out_of_orderness(timedelta()).with_timestamp_column("number")


class Alarm(KeyedProcessFunction[Row, Row]):
    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> None:
        return None


@pytest.fixture
def job() -> DeclaredJob:
    return DeclaredJob()


def _shape(plan: JobPlan) -> list[list[tuple[str, int, bool, list[str]]]]:
    """Per level and chain: uid, first target, whether it forwards rows, its sinks."""
    return [
        [
            (c.uid, c.first_target, any(o.is_forwarded for o in c.outputs), [s.uid for o in c.outputs for s in o.sinks])
            for c in level.chains
        ]
        for level in plan.levels
    ]


def test_operators_on_one_stream_share_a_level_and_run_with_their_sinks(job: DeclaredJob) -> None:
    stream = process(job.rows, "first")
    stream.sink_to(Nowhere(), uid="a")
    stream.sink_to(Nowhere(), uid="b")
    process(job.rows, "second")
    plan = plan_job(job.env.graph, 3)
    assert _shape(plan) == [[("first", 0, False, ["a", "b"]), ("second", 3, False, [])]]
    assert (plan.levels[0].targets, len(plan.levels[0].inputs)) == (6, 1)
    assert plan.key_types == {"first": ["string"], "second": ["string"]}


def test_a_sink_that_does_not_follow_an_operator_is_a_chain_of_its_own(job: DeclaredJob) -> None:
    job.rows.sink_to(Nowhere(), uid="raw")
    keyed = process(job.rows.transform(lambda df: df), "op")
    keyed.transform(lambda df: df).sink_to(Nowhere(), uid="late")
    plan = plan_job(job.env.graph, 2)
    assert _shape(plan) == [[("op", 0, True, []), ("raw", 2, False, ["raw"])], [("late", 0, False, ["late"])]]
    assert plan.key_types == {"op": ["string"]}
    assert len(plan.levels[0].inputs) == 2


def test_every_subtask_reports_and_consumes_from_every_task_before(job: DeclaredJob) -> None:
    process(process(job.rows, "a"), "c")
    job.rows.sink_to(Nowhere(), uid="b")
    first = [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    wanted = [Participant(*each) for each in first] + [Participant("c", n, frozenset(first)) for n in (0, 1)]
    assert plan_job(job.env.graph, 2).participants() == wanted


def test_rows_are_relayed_once_over_each_level_that_does_not_use_them(job: DeclaredJob) -> None:
    """So the barriers that a task consumes cover everything that it reads."""
    second = process(process(job.rows, "first"), "second")
    process(second.union(job.rows), "third")
    job.rows.union(second).sink_to(Nowhere(), uid="out")
    plan = plan_job(job.env.graph, 2)
    assert [[(c.uid, c.is_relay) for c in level.chains] for level in plan.levels] == [
        [("first", False), ("~relay-1-0", True)],
        [("second", False), ("~relay-2-1", True)],
        [("third", False), ("out", False)],
    ]
    assert [len(p.upstream) for p in plan.participants()] == [0] * 4 + [4] * 8


@pytest.mark.parametrize("has_expressions", [False, True])
def test_a_level_reads_its_input_once_unless_expressions_are_in_between(
    job: DeclaredJob, has_expressions: bool
) -> None:
    first = process(job.rows, "first")
    process(first, "second")
    process(first.transform(lambda frame: frame) if has_expressions else first, "third")
    assert reads_once(plan_job(job.env.graph, 2).levels[1]) != has_expressions


@pytest.mark.parametrize(("function", "phases"), [(Pass(), [[None], [None]]), (Alarm(), [[None], [0, 1]])])
def test_only_rows_after_timers_and_an_expression_are_shuffled_phase_by_phase(
    job: DeclaredJob, function: KeyedProcessFunction[Row, Row], phases: list[list[int | None]]
) -> None:
    counts = process(job.rows, "op", function)
    process(counts, "direct")
    process(counts.transform(lambda df: df), "after-expression")
    level = plan_job(job.env.graph, 1).levels[1]
    assert [[share.phase for share in shares] for shares in level.shares.values()] == phases


def test_rows_of_a_union_with_event_time_are_shuffled_source_by_source(job: DeclaredJob) -> None:
    timed = job.source("a").assign_timestamps_and_watermarks(STRATEGY)
    process(process(job.rows.union(timed).map(lambda row: row), "op"), "next")
    plan = plan_job(job.env.graph, 1)
    (shares,) = plan.levels[0].shares.values()
    assert plan.levels[0].has_origins
    leaves = [(share.number, getattr(share.leaf, "uid", None), share.origin) for share in shares]
    assert leaves == [(0, "rows", -1), (1, "a", 0)]
    assert {c.uid: c.watermark_sources for c in plan.chains} == dict.fromkeys(("op", "next"), frozenset({"a"}))
