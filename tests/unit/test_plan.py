"""From a graph to levels of tasks, and who must report on a barrier."""

from __future__ import annotations

from stateflow.api.streams import DataStream
from stateflow.checkpoint.coordinator import Participant
from stateflow.environment import StreamExecutionEnvironment
from stateflow.runtime.plan import JobPlan, plan_job
from tests.unit.kit import Nothing, Nowhere, Pass, Row, environment


def _keyed(stream: DataStream, uid: str) -> DataStream:
    return stream.key_by("key").process(Pass(), output=Row, uid=uid)


def _rows(env: StreamExecutionEnvironment) -> DataStream:
    return env.from_source(Nothing(), uid="rows")


def _shape(plan: JobPlan) -> list[list[tuple[str, int, bool, list[str]]]]:
    """Per level and unit: uid, first target, whether it feeds another unit, its sinks."""
    return [
        [
            (
                u.uid,
                u.first_target,
                any(o.feeds for o in u.outlets),
                [s.uid for o in u.outlets for s in o.sinks],
            )
            for u in level.units
        ]
        for level in plan.levels
    ]


def test_an_operator_and_its_sinks_run_in_one_task() -> None:
    env = environment()
    stream = _keyed(_rows(env), "op")
    stream.sink_to(Nowhere(), uid="a")
    stream.sink_to(Nowhere(), uid="b")
    plan = plan_job(env.graph, 2)
    assert _shape(plan) == [[("op", 0, False, ["a", "b"])]]
    assert plan.levels[0].targets == 2
    assert plan.key_types == {"op": ["string"]}


def test_two_operators_on_one_stream_share_a_level() -> None:
    env = environment()
    rows = _rows(env)
    _keyed(rows, "first").sink_to(Nowhere(), uid="a")
    _keyed(rows, "second")
    plan = plan_job(env.graph, 3)
    assert _shape(plan) == [[("first", 0, False, ["a"]), ("second", 3, False, [])]]
    assert plan.levels[0].targets == 6
    assert len(plan.levels[0].inputs) == 1


def test_what_an_operator_emits_is_the_next_level_s_input() -> None:
    env = environment()
    first = _keyed(_rows(env), "first")
    first.sink_to(Nowhere(), uid="a")
    _keyed(first.transform(lambda df: df), "second").sink_to(Nowhere(), uid="b")
    plan = plan_job(env.graph, 2)
    assert _shape(plan) == [[("first", 0, True, ["a"])], [("second", 0, False, ["b"])]]
    (outlet,) = plan.levels[0].fed
    assert outlet.node is env.graph.operators[0]
    assert [level.number for level in plan.levels] == [1, 2]


def test_a_sink_that_is_not_behind_an_operator_is_a_unit_of_its_own() -> None:
    env = environment()
    rows = _rows(env)
    rows.sink_to(Nowhere(), uid="raw")
    keyed = _keyed(rows.transform(lambda df: df), "op")
    keyed.transform(lambda df: df).sink_to(Nowhere(), uid="late")
    plan = plan_job(env.graph, 2)
    assert _shape(plan) == [[("op", 0, True, []), ("raw", 2, False, ["raw"])], [("late", 0, False, ["late"])]]
    assert plan.key_types == {"op": ["string"]}
    assert len(plan.levels[0].inputs) == 2


def test_targets_of_a_level_are_counted_through_without_gaps() -> None:
    env = environment()
    rows = _rows(env)
    for number in range(4):
        _keyed(rows, f"op{number}")
    plan = plan_job(env.graph, 3)
    (level,) = plan.levels
    taken = [unit.first_target + subtask for unit in level.units for subtask in range(level.parallelism)]
    assert taken == list(range(level.targets))


def test_every_subtask_reports_and_has_heard_every_task_before() -> None:
    env = environment()
    rows = _rows(env)
    _keyed(_keyed(rows, "a"), "c")
    rows.sink_to(Nowhere(), uid="b")
    before = frozenset({("a", 0), ("a", 1), ("b", 0), ("b", 1)})
    assert plan_job(env.graph, 2).participants() == [
        Participant("a", 0), Participant("a", 1), Participant("b", 0), Participant("b", 1),
        Participant("c", 0, before), Participant("c", 1, before),
    ]  # fmt: skip
