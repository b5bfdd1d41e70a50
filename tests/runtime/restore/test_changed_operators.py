"""Jobs that are restored with another graph: operators and states under other names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from stateflow import (
    CheckpointedFunction,
    Context,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OnTimerContext,
    RuntimeContext,
    StateTtlConfig,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from stateflow.checkpoint.log.documents import OperatorState
from stateflow.checkpoint.restore.graph_map import Rewrite, StateKind, StateMove
from stateflow.checkpoint.restore.plan_document import RestorePlan, StateAction
from stateflow.clock import ManualClock
from stateflow.errors import ConfigError, CorruptFile, IncompatibleState, PlanOutdated
from stateflow.operations import SavepointRequest, create_savepoint
from stateflow.runtime.restore.plan_execution import RestoreRequest, execute_plan
from stateflow.runtime.restore.state_import import ImportTarget, StateLocation, rewrite_operator
from stateflow.state.operator_content import read_parts
from stateflow.storage import MemoryStorage
from tests.support.errors import raises
from tests.support.graphs import Row
from tests.support.local_jobs import Build, Growing, LocalJobs, plan_restore, prepared_job, restore

HOUR = timedelta(hours=1)


class Keep(KeyedProcessFunction[Row, Row], CheckpointedFunction):
    """Adds each row's number to every state, and emits the state's name, the key and the sum.

    Args:
        sums: names of value states.
        maps: names of map states with a TTL.
        lists: names of operator lists.
        timers: whether each row sets a timer an hour later.
        raw: whether it keeps raw operator state.
        value: type of the sums.
    """

    def __init__(
        self,
        *sums: str,
        maps: Sequence[str] = (),
        lists: Sequence[str] = (),
        timers: bool = False,
        raw: bool = False,
        value: type[Any] = int,
    ) -> None:
        self.names, self.map_names, self.list_names = sums, maps, lists
        self.timers, self.has_raw, self.value = timers, raw, value

    def initialize_state(self, ctx: FunctionInitializationContext) -> None:
        store = ctx.get_operator_state_store()
        self.lists = {n: store.get_list_state(ListStateDescriptor(n, int)) for n in self.list_names}
        self.raw = [int(piece.read()) for piece in ctx.get_raw_operator_state_inputs()] if self.has_raw else []

    def snapshot_state(self, ctx: FunctionSnapshotContext) -> None:
        for number in self.raw:
            out = ctx.get_raw_operator_state_output()
            out.start_new_partition()
            out.write(str(number).encode())

    def open(self, ctx: RuntimeContext) -> None:
        ttl = StateTtlConfig.new_builder(HOUR).build()
        self.sums = {n: ctx.get_state(ValueStateDescriptor(n, self.value)) for n in self.names}
        self.maps = {n: ctx.get_map_state(MapStateDescriptor(n, str, int, ttl=ttl)) for n in self.map_names}

    def process_element(self, row: Row, ctx: Context) -> Iterator[Row]:
        for name, state in self.sums.items():
            state.update((state.value() or 0) + row.number)
            yield Row(f"{name}:{row.key}", int(state.value() or 0))
        for name, entries in self.maps.items():
            entries.put("sum", (entries.get("sum") or 0) + row.number)
            yield Row(f"{name}:{row.key}", entries.get("sum") or 0)
        for name, elements in self.lists.items():
            elements.add(row.number)
            yield Row(f"{name}:all", sum(elements.get()))
        if self.has_raw:
            self.raw.append(row.number)
            yield Row("raw:all", sum(self.raw))
        if self.timers:
            now = ctx.current_processing_time()
            ctx.timer_service().register_processing_time_timer(int((now + HOUR).timestamp() * 1000))

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Row]:
        yield Row(f"timer:{ctx.get_current_key()}", 0)


Operators = Mapping[str, tuple[str, Keep]]
"""Uid and function of each operator, by the uid of its sink."""


def _job(jobs: LocalJobs, operators: Operators, *numbers: int, source: Any = None) -> Build:
    def build(env: StreamExecutionEnvironment) -> None:
        env.configure(max_parallelism=8)
        rows = env.from_source(source or Growing([Row("k", n) for n in numbers], Row), uid="rows")
        for sink, (uid, function) in operators.items():
            kept = rows.key_by("key", order_by=("number",)).process(function, output=Row, uid=uid)
            kept.sink_to(jobs.sink(sink), uid=sink)

    return build


def _wait(jobs: LocalJobs, time: timedelta) -> None:
    assert isinstance(jobs.clock, ManualClock)
    jobs.clock.sleep(time)


def _moves(plan: RestorePlan) -> set[tuple[str, str]]:
    return {(f"{m.old}.{m.old_state}", f"{m.new}.{m.new_state}") for m in plan.graph.moves}


@pytest.fixture
def jobs(tmp_path: Path, request: pytest.FixtureRequest) -> LocalJobs:
    return LocalJobs(tmp_path, ManualClock(), state__backend=getattr(request, "param", "rocksdb"), parallelism=2)


def test_a_renamed_operator_continues_with_all_its_state_and_its_sink_with_its_table(jobs: LocalJobs) -> None:
    everything: dict[str, Any] = {"maps": ("m",), "lists": ("l",), "timers": True}
    jobs.run(_job(jobs, {"out": ("old", Keep("s", **everything))}, 1, 2))
    new = _job(jobs, {"out": ("new", Keep("s", **everything))}, 1, 2, 4)
    plan = restore(jobs, new, "old=new")
    assert _moves(plan) == {(f"old.{n}", f"new.{n}") for n in ("s", "m", "l", "@timers")}
    assert [(s.uid, s.action, s.olds) for s in plan.states] == [("new", StateAction.MATCHED, ["old"])]
    assert [row for row in jobs.rows() if row[1] == 7] == [("s:k", 7, None), ("m:k", 7, None), ("l:all", 7, None)]
    _wait(jobs, HOUR)
    jobs.run(new)
    assert [row[0] for row in jobs.rows() if row[0].startswith("timer")] == ["timer:k"]


def test_raw_state_comes_along_when_operators_are_joined(jobs: LocalJobs) -> None:
    """Only the files of an operator show whether it has raw state; nothing in the options names it."""
    jobs.run(_job(jobs, {"x": ("a", Keep("s", raw=True)), "y": ("b", Keep("t"))}, 1, 2))
    joined = _job(jobs, {"x": ("a", Keep("s", "t", raw=True))}, 1, 2, 4)
    plan = restore(jobs, joined, "b.t=a")
    assert _moves(plan) == {("b.t", "a.t")}
    assert {row[0] for row in jobs.rows("x") if row[1] == 7} == {"s:k", "t:k", "raw:all"}


@pytest.mark.parametrize("jobs", ["rocksdb", "filesystem", "memory"], indirect=True)
def test_a_split_operator_s_states_are_divided_and_no_entry_stays_in_the_wrong_place(jobs: LocalJobs) -> None:
    whole = Keep("s", "t", maps=("m",), lists=("l", "k"), timers=True)
    jobs.run(_job(jobs, {"x": ("old", whole)}, 1, 2))
    operators = {"x": ("old", Keep("s", lists=("l",))), "y": ("new", Keep("t", maps=("m",), lists=("k",), timers=True))}
    new = _job(jobs, operators, 1, 2, 4)
    with raises(ConfigError, states=["old.@timers"]):
        plan_restore(jobs, new, "old=old", "old=new")
    plan = plan_restore(jobs, new, "old=old", "old=new", "old.@timers=new")
    assert _moves(plan) == {(f"old.{n}", f"new.{n}") for n in ("t", "m", "k", "@timers")}
    execute_plan(prepared_job(jobs, new), plan, RestoreRequest("one"))
    job = prepared_job(jobs, new)
    manifest = job.root.checkpoints.manifest_at(job.root.head())
    assert manifest is not None
    names = {o.uid: {s.name for s in (*o.states, *o.operator_states)} for o in manifest.operators}
    assert names == {"old": {"s", "l"}, "new": {"t", "m", "k"}}
    jobs.run(new)
    assert {r[0]: r[1] for r in jobs.rows("x")} == {"s:k": 7, "t:k": 3, "m:k": 3, "l:all": 7, "k:all": 3}
    assert {r[0]: r[1] for r in jobs.rows("y")} == {"t:k": 7, "m:k": 7, "k:all": 7}
    _wait(jobs, HOUR)
    jobs.run(new)
    timers = [sum(row[0].startswith("timer") for row in jobs.rows(sink)) for sink in ("x", "y")]
    assert timers == [0, 1]


def test_renamed_states_swap_their_names_and_may_get_another_type(jobs: LocalJobs) -> None:
    jobs.run(_job(jobs, {"out": ("op", Keep("a", "b", maps=("m",)))}, 1, 2))
    new = _job(jobs, {"out": ("op", Keep("b", "c", maps=("n",), value=float))}, 1, 2, 4)
    restore(jobs, new, "op.a=op.b", "op.b=op.c", "op.m=op.n")
    assert {row[0]: row[1] for row in jobs.rows()} == {"a:k": 3, "b:k": 7, "m:k": 3, "c:k": 7, "n:k": 7}


def test_a_rename_at_another_parallelism_keeps_each_key_and_element(jobs: LocalJobs) -> None:
    rows = [Row(f"k{n}", 1) for n in range(12)]

    def build(uid: str, state: str, number: int) -> Build:
        source = Growing(rows * number, Row)
        return _job(jobs, {"out": (uid, Keep(state, lists=("l",)))}, source=source)

    jobs.run(build("old", "s", 1))
    jobs.settings["parallelism"] = 3
    restore(jobs, build("new", "t", 2), "old=new", "old.s=new.t")
    assert Counter(row for row in jobs.rows() if row[0][0] == "t") == Counter((f"t:k{n}", 2, None) for n in range(12))
    job = prepared_job(jobs, build("new", "t", 2))
    manifest = job.root.checkpoints.manifest_at(job.root.head())
    assert manifest is not None
    elements = [e for o in manifest.operators for _, c in read_parts(job.root.storage, o.parts) for e in c.lists["l"]]
    assert len(elements) == 24


@pytest.mark.parametrize(
    ("function", "maps", "error"),
    [
        (Keep("s", value=str), ("old=new",), IncompatibleState),
        (Keep("t", value=str), ("old=new", "old.s=new.t"), IncompatibleState),
        (Keep("t"), ("old=new", "old.s=new.u"), ConfigError),
        (Keep("t"), (), ConfigError),
    ],
)
def test_a_map_that_does_not_fit_changes_nothing(
    jobs: LocalJobs, function: Keep, maps: tuple[str, ...], error: type[ConfigError]
) -> None:
    jobs.run(_job(jobs, {"out": ("old", Keep("s"))}, 1, 2))
    head = prepared_job(jobs, _job(jobs, {"out": ("old", Keep("s"))})).root.head()
    new = _job(jobs, {"out": ("new", function)}, 1, 2)
    with raises(error):
        plan_restore(jobs, new, *maps)
    assert prepared_job(jobs, new).root.head() == head


def test_a_plan_for_other_states_than_the_job_now_declares_is_outdated(jobs: LocalJobs) -> None:
    jobs.run(_job(jobs, {"x": ("old", Keep("s", "t"))}, 1))
    a, b = Keep("s"), Keep("t")
    plan = plan_restore(jobs, _job(jobs, {"x": ("a", a), "y": ("b", b)}, 1), "old=a", "old=b")
    swapped = _job(jobs, {"x": ("a", b), "y": ("b", a)}, 1)
    with raises(PlanOutdated):
        execute_plan(prepared_job(jobs, swapped), plan, RestoreRequest("one"))
    edited = replace(plan, graph=replace(plan.graph, moves=plan.graph.moves[:-1]))
    with raises(PlanOutdated):
        execute_plan(prepared_job(jobs, _job(jobs, {"x": ("a", a), "y": ("b", b)}, 1)), edited, RestoreRequest("two"))


def test_a_plan_for_another_savepoint_of_that_path_is_outdated(jobs: LocalJobs) -> None:
    build = _job(jobs, {"x": ("a", Keep("s"))}, 1)
    jobs.run(build)
    create_savepoint(str(jobs.folder / "root"), SavepointRequest(name="mine"))
    plan = plan_restore(jobs, build, target="mine")
    with raises(PlanOutdated, savepoint=plan.savepoint_path):
        execute_plan(prepared_job(jobs, build), replace(plan, target_sha256="0" * 64), RestoreRequest("one"))
    execute_plan(prepared_job(jobs, build), plan, RestoreRequest("two"))


@pytest.mark.parametrize("parallelism", [-1, 0, 9, 1 << 62])
def test_state_with_an_impossible_parallelism_is_refused(parallelism: int) -> None:
    """Anyone who can write a savepoint can write this number."""
    storage = MemoryStorage()
    stored = OperatorState(
        uid="a", parallelism=parallelism, key_types=["string"], key_names=["key"], states=[], subtasks=[]
    )
    move = StateMove(kind=StateKind.KEYED, old="a", old_state="x", new="b", new_state="y")
    rewrite, target = Rewrite(stored, ((stored, (move,)),)), ImportTarget(storage, 8, "data/1/")
    with raises(CorruptFile, parallelism=parallelism):
        rewrite_operator(rewrite, StateLocation(storage), target, ManualClock())
