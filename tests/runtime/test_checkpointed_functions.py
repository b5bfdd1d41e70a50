"""Functions with operator state: when they are called, what they may do, and what their errors say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
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


SYNCHRONOUS = {"checkpoints.asynchronous": "no"}
"""So that each batch knows that the one before it is committed."""


@pytest.fixture
def box(tmp_path: Path) -> LocalJobs:
    return LocalJobs(tmp_path)


def _job(box: LocalJobs, function: Any, **more: Any) -> Any:
    def build(env: StreamExecutionEnvironment) -> None:
        stream = env.from_collection(ROWS, Row, uid="rows").key_by("key", order_by=("number",))
        out = stream.process(function, output=Row, uid="op", **more)
        out.sink_to(box.sink("out"), uid="out")
        if more:
            out.get_dead_letters().sink_to(box.sink("letters"), uid="letters")

    return build


class Calls(KeyedProcessFunction[Row, Row], CheckpointedFunction, CheckpointListener):
    """Writes down what is called, in an operator list, and emits it when the batch ends."""

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


def test_each_batch_initializes_opens_is_told_and_snapshots(box: LocalJobs) -> None:
    box.run(_job(box, Calls()), **{"source.max_rows_per_batch": "2", **SYNCHRONOUS})
    first = ["initialize", "open", "snapshot"]
    later = ["initialize, restored", "open", "complete", "snapshot"]
    assert [(json.loads(log), count) for log, count, _ in box.rows("out")] == [
        ([], 1),
        ([], 2),
        (first, 3),
        (first, 4),
        (later, 5),
        (later, 6),
    ]


class Rich(RichMapFunction[Row, Row], CheckpointedFunction):
    """Counts rows of its subtask."""

    def initialize_state(self, ctx: FunctionInitializationContext) -> None:
        self.ints = ctx.get_operator_state_store().get_list_state(INTS)

    def map(self, row: Row) -> Row:
        self.ints.add(row.number)
        return Row(row.key, sum(self.ints.get()))


def test_a_rich_function_on_a_keyed_stream_takes_part(box: LocalJobs) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        stream = env.from_collection(ROWS, Row, uid="rows").key_by("key", order_by=("number",))
        stream.map(Rich(), uid="op").sink_to(box.sink("out"), uid="out")

    box.run(build, **{"source.max_rows_per_batch": "2"})
    assert [number for _, number, _ in box.rows("out")] == [0, 1, 3, 6, 10, 15]


def test_a_row_function_on_an_unkeyed_stream_does_not() -> None:
    stream = StreamExecutionEnvironment({}).from_collection(ROWS, Row, uid="rows")
    function = Rich()
    with raises(JobDefinitionError, given=repr(function)):
        stream.map(function)


class Fails(KeyedProcessFunction[Row, Row], CheckpointedFunction, CheckpointListener):
    """Raises where it is told to."""

    def __init__(self, where: str) -> None:
        self.where = where

    def _pass(self, where: str) -> None:
        if where == self.where:
            raise ValueError("Broken")

    def initialize_state(self, ctx: FunctionInitializationContext) -> None:
        self._pass("initialize_state")

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._pass("notify_checkpoint_complete")

    def process_element(self, row: Row, ctx: Context) -> None:
        """Does nothing."""

    def snapshot_state(self, ctx: FunctionSnapshotContext) -> None:
        self._pass("snapshot_state")


@pytest.mark.parametrize("where", ["initialize_state", "snapshot_state", "notify_checkpoint_complete"])
def test_an_error_names_operator_and_method(box: LocalJobs, where: str) -> None:
    with raises(UserCodeError, operator="op") as raised:
        box.run(_job(box, Fails(where)), **SYNCHRONOUS)
    assert all(word in raised.value.message for word in (where, "ValueError", "Broken"))
    assert len(box.results) == (1 if where.startswith("notify") else 0)


class Adds(KeyedProcessFunction[Row, Row], CheckpointedFunction):
    """Adds a row's number, then fails on odd ones."""

    def initialize_state(self, ctx: FunctionInitializationContext) -> None:
        self.ints = ctx.get_operator_state_store().get_list_state(INTS)

    def process_element(self, row: Row, ctx: Context) -> Iterator[Row]:
        self.ints.add(row.number)
        if row.number % 2:
            raise ValueError("odd")
        yield Row(row.key, sum(self.ints.get()))


def test_a_dead_letter_leaves_nothing_in_operator_state(box: LocalJobs) -> None:
    box.run(_job(box, Adds(), on_error=DeadLetters(9)))
    assert [number for _, number, _ in box.rows("out")] == [0, 2, 6]
    assert len(box.letters()) == 3


# -- broadcast state ------------------------------------------------------------------------------------------------


class Rules(KeyedBroadcastProcessFunction[Row, Row, Row]):
    """Sets a rule, then fails on odd ones; gives each row the rules' sum. Changes them there when it is told to."""

    def __init__(self, cheats: bool = False) -> None:
        self.cheats = cheats

    def process_broadcast_element(self, row: Row, ctx: Context) -> None:
        rules = ctx.get_broadcast_state(RULES)
        rules.put(str(row.number), row.number)
        if row.number % 2:
            raise ValueError("odd")

    def process_element(self, row: Row, ctx: Context) -> Iterator[Row]:
        rules = ctx.get_broadcast_state(RULES)
        if self.cheats:
            rules.put("new", 1)
        yield Row(row.key, sum(rules.values()))


def _ruled(box: LocalJobs, function: Rules) -> Any:
    def build(env: StreamExecutionEnvironment) -> None:
        rules = env.from_collection(ROWS[:4], Row, uid="rules").broadcast()
        rows = env.from_collection([Row(f"k{n}", n) for n in range(6)], Row, uid="rows").key_by("key")
        ruled = rows.connect(rules).process(function, output=Row, uid="ruled", on_error=DeadLetters(20))
        ruled.sink_to(box.sink("out"), uid="out")
        ruled.get_dead_letters().sink_to(box.sink("letters"), uid="letters")

    return build


def test_broadcast_state_lasts_and_a_dead_letter_leaves_nothing_in_it(box: LocalJobs) -> None:
    box.run(_ruled(box, Rules()), **{"source.max_rows_per_batch": "1", "parallelism": "3"})
    assert [number for _, number, _ in box.rows("out")] == [0, 0, 2, 2, 2, 2]
    assert [letter.error for letter in box.letters()] == ["ValueError: odd"] * 6


def test_the_keyed_side_cannot_change_broadcast_state(box: LocalJobs) -> None:
    box.run(_ruled(box, Rules(cheats=True)))
    [error] = {letter.error for letter in box.letters() if letter.key}
    assert error.startswith("StateError: ") and "state='rules'" in error
    assert box.rows("out") == []


class Asks(KeyedProcessFunction[Row, Row]):
    """Asks for broadcast state."""

    def process_element(self, row: Row, ctx: Context) -> None:
        ctx.get_broadcast_state(RULES)


def test_broadcast_state_needs_a_broadcast_stream(box: LocalJobs) -> None:
    with raises(StateError, operator="op", name="rules"):
        box.run(_job(box, Asks()))


def test_the_plan_shows_operator_state() -> None:
    env = StreamExecutionEnvironment({})
    stream = env.from_collection(ROWS, Row, uid="rows").key_by("key")
    stream.process(Calls(), output=Row, uid="calls").sink_to(Nowhere(), uid="out")
    levels = explain_job(env.graph, Settings(), on_spark=False).levels
    [states] = [chain.states for level in levels for chain in level.chains if chain.uid == "calls"]
    assert states is not None
    assert [(state.name, state.kind, state.value_type) for state in states] == [
        ("count", "value", "int"),
        ("log", "split-list", "str"),
    ]
