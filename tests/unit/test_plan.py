"""From a graph to levels of tasks, and who must report on a barrier."""

from __future__ import annotations

from stateflow import OutputTag
from stateflow.api.graph.traversal import producer_of
from stateflow.api.streams.data_stream import DataStream
from stateflow.checkpoint.barrier.pending_barrier import Participant
from stateflow.environment import StreamExecutionEnvironment
from stateflow.runtime.planning.physical_plan import JobPlan, plan_job
from stateflow.runtime.spark.shuffle import reads_once
from tests.support.graphs import Nothing, Nowhere, Pass, Row, environment


def _keyed(stream: DataStream, uid: str) -> DataStream:
    return stream.key_by("key").process(Pass(), output=Row, uid=uid)


def _rows(env: StreamExecutionEnvironment) -> DataStream:
    return env.from_source(Nothing(), uid="rows")


def _shape(plan: JobPlan) -> list[list[tuple[str, int, bool, list[str]]]]:
    """Per level and chain: uid, first target, whether it forwards rows, its sinks."""
    return [
        [
            (u.uid, u.first_target, any(o.is_forwarded for o in u.outputs), [s.uid for o in u.outputs for s in o.sinks])
            for u in level.chains
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
    (output,) = plan.levels[0].forwarded
    assert output.node is env.graph.operators[0]
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
    taken = [chain.first_target + subtask for chain in level.chains for subtask in range(level.parallelism)]
    assert taken == list(range(level.targets))


def test_every_subtask_reports_and_has_heard_every_task_before() -> None:
    env = environment()
    rows = _rows(env)
    _keyed(_keyed(rows, "a"), "c")
    rows.sink_to(Nowhere(), uid="b")
    before = frozenset({("a", 0), ("a", 1), ("b", 0), ("b", 1)})
    assert plan_job(env.graph, 2).participants() == [
        Participant("a", 0),
        Participant("a", 1),
        Participant("b", 0),
        Participant("b", 1),
        Participant("c", 0, before),
        Participant("c", 1, before),
    ]


def test_a_side_output_and_row_functions_behind_an_operator_run_in_its_task() -> None:
    env = environment()
    stream = _keyed(_rows(env), "op")
    side = stream.get_side_output(OutputTag("late", Row))
    side.sink_to(Nowhere(), uid="late")
    stream.filter(len).map(len).sink_to(Nowhere(), uid="out")
    _keyed(side, "second")
    plan = plan_job(env.graph, 2)
    assert _shape(plan) == [[("op", 0, True, ["late", "out"])], [("second", 0, False, [])]]
    assert [producer_of(o.node)[1] for o in plan.levels[0].chains[0].outputs] == ["late", ""]
    assert [o.is_forwarded for o in plan.levels[0].chains[0].outputs] == [True, False]


def test_rows_are_relayed_over_every_level_that_they_have_no_work_in() -> None:
    """Once for all who wait for them: only then do the barriers that a task hears tell of all that it reads."""
    env = environment()
    rows = _rows(env)
    second = _keyed(_keyed(rows, "first"), "second")
    _keyed(second.union(rows), "third")
    rows.union(second).sink_to(Nowhere(), uid="out")
    plan = plan_job(env.graph, 2)
    assert [[(u.uid, u.is_relay) for u in level.chains] for level in plan.levels] == [
        [("first", False), ("~relay-1-0", True)],
        [("second", False), ("~relay-2-1", True)],
        [("third", False), ("out", False)],
    ]
    assert [len(p.upstream) for p in plan.participants()] == [0] * 4 + [4] * 4 + [4] * 4
    assert plan.row_counting_chains == {"first"}


def test_rows_of_each_source_are_counted_once() -> None:
    env = environment()
    rows, more = _rows(env), env.from_source(Nothing(), uid="more")
    _keyed(rows, "a")
    _keyed(rows.union(more), "b")
    more.sink_to(Nowhere(), uid="c")
    assert plan_job(env.graph, 2).row_counting_chains == {"a", "c"}


def test_sources_are_in_order_of_uids_whatever_the_order_in_the_job_file_is() -> None:
    env = environment()
    z, a = env.from_source(Nothing(), uid="z"), env.from_source(Nothing(), uid="a")
    z.union(a).sink_to(Nowhere(), uid="out")
    assert [s.uid for s in plan_job(env.graph, 1).sources] == ["a", "z"]


def test_a_level_reads_what_was_emitted_once_unless_expressions_are_in_between() -> None:
    env = environment()
    first = _keyed(_rows(env), "first")
    _keyed(first, "second")
    _keyed(first, "third")
    assert reads_once(plan_job(env.graph, 2).levels[1])

    env = environment()
    first = _keyed(_rows(env), "first")
    _keyed(first, "second")
    _keyed(first.transform(lambda frame: frame), "third")
    assert not reads_once(plan_job(env.graph, 2).levels[1])
