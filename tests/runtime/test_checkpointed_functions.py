"""Functions with operator state: when they are called, what they may do, and what their errors contain."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from stateflow import (
    CheckpointedFunction,
    CheckpointListener,
    DeadLetters,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    ListStateDescriptor,
    MapStateDescriptor,
    RichMapFunction,
    RuntimeContext,
    ValueStateDescriptor,
)
from stateflow.api.functions.connected import KeyedBroadcastProcessFunction
from stateflow.api.functions.process import Context, KeyedProcessFunction
from stateflow.config.settings import Settings
from stateflow.environment import StreamExecutionEnvironment
from stateflow.errors import JobDefinitionError, StateError, UserCodeError
from stateflow.runtime.planning.explain import explain_job
from tests.support.errors import raises
from tests.support.graphs import Nowhere, Row
from tests.support.local_jobs import LocalJobs

ROWS = [Row("a", n) for n in range(6)]
INTS = ListStateDescriptor("ints", int)
RULES = MapStateDescriptor("rules", str, int)


def _process(jobs: LocalJobs, function: Any, on_error: Any = "fail", **settings: Any) -> None:
    def operators(rows: Any) -> Any:
        return rows.key_by("key", order_by=("number",)).process(function, output=Row, uid="op", on_error=on_error)

    # Synchronous checkpoints: each batch receives the notification about the checkpoint before it.
    jobs.apply(ROWS, operators, checkpoints__asynchronous="no", **settings)


class Calls(KeyedProcessFunction[Row, Row], CheckpointedFunction, CheckpointListener):
    """Records its calls in an operator list at the end of a batch; each row of the next batch emits the list."""

    def initialize_state(self, ctx: FunctionInitializationContext) -> None:
        self.calls = ["initialize, restored" if ctx.is_restored else "initialize"]
        self.count = ctx.get_keyed_state_store().get_state(ValueStateDescriptor("count", int))
        self.log = ctx.get_operator_state_store().get_list_state(ListStateDescriptor("log", str))

    def open(self, ctx: RuntimeContext) -> None:
        self.calls.append("open")

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.calls.append("complete")

    def process_element(self, row: Row, ctx: Context) -> Iterator[Row]:
        self.count.update((self.count.value() or 0) + 1)
        yield Row(json.dumps(list(self.log.get())), self.count.value() or 0)

    def snapshot_state(self, ctx: FunctionSnapshotContext) -> None:
        self.log.update([*self.calls, "snapshot"])


def test_each_batch_initializes_opens_notifies_and_snapshots(jobs: LocalJobs) -> None:
    _process(jobs, Calls(), source__max_rows_per_batch=2)
    first = ["initialize", "open", "snapshot"]
    later = ["initialize, restored", "open", "complete", "snapshot"]
    calls = [(json.loads(log), count) for log, count, _ in jobs.rows()]
    assert calls == [([], 1), ([], 2), (first, 3), (first, 4), (later, 5), (later, 6)]


def test_the_plan_shows_operator_state() -> None:
    env = StreamExecutionEnvironment({})
    stream = env.from_collection(ROWS, Row, uid="rows").key_by("key")
    stream.process(Calls(), output=Row, uid="calls").sink_to(Nowhere(), uid="out")
    levels = explain_job(env.graph, Settings(), on_spark=False).levels
    [states] = [chain.states for level in levels for chain in level.chains if chain.uid == "calls"]
    kinds = [(state.name, state.kind, state.value_type) for state in states or ()]
    assert kinds == [("count", "value", "int"), ("log", "split-list", "str")]


class Sum(RichMapFunction[Row, Row], CheckpointedFunction):
    """Adds up the rows of its subtask."""

    def initialize_state(self, ctx: FunctionInitializationContext) -> None:
        self.ints = ctx.get_operator_state_store().get_list_state(INTS)

    def map(self, row: Row) -> Row:
        self.ints.add(row.number)
        return Row(row.key, sum(self.ints.get()))


def test_a_rich_function_has_operator_state_on_a_keyed_stream_only(jobs: LocalJobs) -> None:
    jobs.apply(ROWS, lambda rows: rows.key_by("key", order_by=("number",)).map(Sum(), uid="op"))
    assert [number for _, number, _ in jobs.rows()] == [0, 1, 3, 6, 10, 15]
    function = Sum()
    with raises(JobDefinitionError, given=repr(function)):
        StreamExecutionEnvironment({}).from_collection(ROWS, Row, uid="rows").map(function)


class Fails(KeyedProcessFunction[Row, Row], CheckpointedFunction, CheckpointListener):
    """Raises in one of its methods."""

    def __init__(self, where: str) -> None:
        self.where = where

    def _pass(self, where: str) -> None:
        if where == self.where:
            raise ValueError("Broken")

    def initialize_state(self, ctx: FunctionInitializationContext) -> None:
        self._pass("initialize_state")

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._pass("notify_checkpoint_complete")

    def process_element(self, row: Row, ctx: Context) -> None: ...

    def snapshot_state(self, ctx: FunctionSnapshotContext) -> None:
        self._pass("snapshot_state")


@pytest.mark.parametrize("where", ["initialize_state", "snapshot_state", "notify_checkpoint_complete"])
def test_an_error_names_operator_and_method(jobs: LocalJobs, where: str) -> None:
    with raises(UserCodeError, operator="op") as raised:
        _process(jobs, Fails(where))
    assert all(word in raised.value.message for word in (where, "ValueError", "Broken"))
    assert len(jobs.results) == (1 if where.startswith("notify") else 0)


class Adds(KeyedProcessFunction[Row, Row], CheckpointedFunction):
    """Adds a row's number, then fails on odd ones."""

    def initialize_state(self, ctx: FunctionInitializationContext) -> None:
        self.ints = ctx.get_operator_state_store().get_list_state(INTS)

    def process_element(self, row: Row, ctx: Context) -> Iterator[Row]:
        self.ints.add(row.number)
        if row.number % 2:
            raise ValueError("odd")
        yield Row(row.key, sum(self.ints.get()))


def test_a_dead_letter_leaves_nothing_in_operator_state(jobs: LocalJobs) -> None:
    _process(jobs, Adds(), on_error=DeadLetters(9))
    assert [number for _, number, _ in jobs.rows()] == [0, 2, 6]
    assert len(jobs.letters()) == 3


# -- broadcast state ------------------------------------------------------------------------------------------------


class Rules(KeyedBroadcastProcessFunction[Row, Row, Row]):
    """Sets a rule, then fails on odd ones; gives each row the sum of the rules, and may try to change them there."""

    def __init__(self, writes: bool = False) -> None:
        self.writes = writes

    def process_broadcast_element(self, row: Row, ctx: Context) -> None:
        rules = ctx.get_broadcast_state(RULES)
        rules.put(str(row.number), row.number)
        if row.number % 2:
            raise ValueError("odd")

    def process_element(self, row: Row, ctx: Context) -> Iterator[Row]:
        rules = ctx.get_broadcast_state(RULES)
        if self.writes:
            rules.put("new", 1)
        yield Row(row.key, sum(rules.values()))


def _rule(jobs: LocalJobs, function: Rules, **settings: Any) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        rules = env.from_collection(ROWS[:4], Row, uid="rules").broadcast()
        rows = env.from_collection([Row(f"k{n}", n) for n in range(6)], Row, uid="rows").key_by("key")
        ruled = rows.connect(rules).process(function, output=Row, uid="ruled", on_error=DeadLetters(20))
        ruled.sink_to(jobs.sink("out"), uid="out")
        ruled.get_dead_letters().sink_to(jobs.sink("letters"), uid="letters")

    jobs.run(build, **settings)


def test_broadcast_state_is_kept_and_a_dead_letter_does_not_change_broadcast_state(jobs: LocalJobs) -> None:
    _rule(jobs, Rules(), source__max_rows_per_batch=1, parallelism=3)
    assert [number for _, number, _ in jobs.rows()] == [0, 0, 2, 2, 2, 2]
    # One letter of each subtask for each odd rule.
    assert [(letter.key, letter.error) for letter in jobs.letters()] == [("", "ValueError: odd")] * 6


def test_the_keyed_side_cannot_change_broadcast_state(jobs: LocalJobs) -> None:
    _rule(jobs, Rules(writes=True))
    [error] = {letter.error for letter in jobs.letters() if letter.key}
    assert error.startswith("StateError: ") and "state='rules'" in error
    assert jobs.rows() == []


class Asks(KeyedProcessFunction[Row, Row]):
    """Requests broadcast state."""

    def process_element(self, row: Row, ctx: Context) -> None:
        ctx.get_broadcast_state(RULES)


def test_broadcast_state_needs_a_broadcast_stream(jobs: LocalJobs) -> None:
    with raises(StateError, operator="op", name="rules"):
        _process(jobs, Asks())
