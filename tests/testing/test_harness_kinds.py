"""Every kind of function in the harness, and short jobs of several operators."""

from __future__ import annotations

from collections.abc import Iterable
from types import FunctionType
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from stateflow import (
    CheckpointedFunction,
    CheckpointListener,
    Context,
    DeadLetters,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    RichFilterFunction,
    RichFlatMapFunction,
    RichMapFunction,
    RuntimeContext,
    ValueStateDescriptor,
    VectorizedKeyedFunction,
    VectorState,
)
from stateflow.errors import ConfigError, JobDefinitionError, StateError, UserCodeError
from stateflow.testing import BroadcastInput, KeyedHarness, KeyedInput
from tests.support.errors import raises


class Row(msgspec.Struct, order=True):
    key: str
    number: int


SIDE = OutputTag("side", Row)
ROWS = KeyedInput(Row, "key")
RULES = MapStateDescriptor("rules", str, int)


class Priced(KeyedCoProcessFunction[Row, Row, Row]):
    """Multiplies the first input with the key's last number of the second."""

    def open(self, ctx: RuntimeContext) -> None:
        self.factor = ctx.get_state(ValueStateDescriptor("factor", int))

    def process_element1(self, row: Row, ctx: Context) -> Iterable[Row]:
        yield Row(row.key, row.number * (self.factor.value() or 1))

    def process_element2(self, row: Row, ctx: Context) -> None:
        self.factor.update(row.number)


class Filtered(KeyedBroadcastProcessFunction[Row, Row, Row]):
    """Multiplies with the broadcast number of the key; the number 0 reads keyed state, which a broadcast row lacks."""

    def open(self, ctx: RuntimeContext) -> None:
        self.total = ctx.get_state(ValueStateDescriptor("total", int))

    def process_element(self, row: Row, ctx: Context) -> Iterable[Row]:
        factor = ctx.get_broadcast_state(RULES).get(row.key)
        if factor is not None:
            yield Row(row.key, row.number * factor)

    def process_broadcast_element(self, row: Row, ctx: Context) -> None:
        if row.number == 0:
            self.total.value()
        ctx.get_broadcast_state(RULES).put(row.key, row.number)


class Summed(VectorizedKeyedFunction):
    def open(self, ctx: RuntimeContext) -> None:
        self.total = ctx.get_state(ValueStateDescriptor("total", int))

    def process_batch(self, batch: pa.RecordBatch, state: VectorState) -> pa.RecordBatch:
        sums = np.add.reduceat(batch.column("number").to_numpy(), state.starts)
        totals = pc.add(pc.coalesce(state.read(self.total), 0), sums)
        state.write(self.total, totals)
        return pa.RecordBatch.from_pydict({"key": state.keys.column("key"), "number": totals})


class Numbered(RichMapFunction[Row, Row]):
    def open(self, ctx: RuntimeContext) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", int))

    def map(self, row: Row) -> Row:
        self.count.update((self.count.value() or 0) + 1)
        return Row(row.key, self.count.value() or 0)


class Twice(RichFlatMapFunction[Row, Row]):
    def flat_map(self, row: Row) -> Iterable[Row]:
        return [row] * 2


class New(RichFilterFunction[Row]):
    def open(self, ctx: RuntimeContext) -> None:
        self.seen = ctx.get_state(ValueStateDescriptor("seen", bool))

    def filter(self, row: Row) -> bool:
        seen, _ = self.seen.value(), self.seen.update(True)
        return not seen


def _count(row: Row, seen: int | None) -> tuple[Row, int]:
    return Row(row.key, (seen or 0) + 1), (seen or 0) + 1


def _add(x: Row, y: Row) -> Row:
    return Row(x.key, x.number + y.number)


@pytest.mark.parametrize(
    ("function", "numbers"),
    [
        (Summed(), [16, 24]),
        (Numbered(), [1, 2, 3]),
        (Twice(), [7, 7, 9, 9, 8, 8]),
        (New(), [7]),
        (lambda rows: rows.map_with_state(_count, state=int, output=Row, uid="count"), [1, 2, 3]),
        (lambda rows: rows.reduce(_add, uid="sum"), [7, 16, 24]),
        (lambda rows: rows.aggregate_columns({"number": ("max", "number")}, output=Row, uid="max"), [9, 9]),
    ],
    ids=["vectorized", "map", "flat map", "filter", "map with state", "reduce", "aggregate columns"],
)
def test_functions_of_every_kind_have_state_that_a_restore_keeps(function: Any, numbers: list[int]) -> None:
    output = {} if isinstance(function, FunctionType) else {"output": Row}
    with KeyedHarness(function, ROWS, **output) as h:
        emitted = h.push(("a", 7), ("a", 9))
        snapshot = h.snapshot()
        with raises(ConfigError, inputs=1):
            h.push_both([("a", 1)], [])
    with KeyedHarness.restore(snapshot, parallelism=3) as h:
        emitted += h.push(("a", 8))
    assert [row.number for row in emitted] == numbers


@pytest.mark.parametrize(
    ("function", "second", "numbers"),
    [(Priced(), ROWS, [2, 30, 40, 3]), (Filtered(), BroadcastInput(Row), [20, 30, 40])],
    ids=["two keyed inputs", "keyed and broadcast input"],
)
def test_functions_of_two_inputs_have_state_that_a_restore_keeps(
    function: Any, second: Any, numbers: list[int]
) -> None:
    with KeyedHarness(function, ROWS, second, output=Row, parallelism=2) as h:
        emitted = h.push_both([("a", 2)], [("a", 10)]) + h.push_both([("a", 3)], [])
        snapshot = h.snapshot()
        with raises(ConfigError, inputs=2):
            h.push(("a", 1))
    with KeyedHarness.restore(snapshot, parallelism=3) as h:
        emitted += sorted(h.push_both([("a", 4), ("b", 3)], []))
    assert [row.number for row in emitted] == numbers


def test_broadcast_rows_reach_every_subtask_and_have_no_keyed_state() -> None:
    keys = [f"key-{n}" for n in range(10)]
    with KeyedHarness(Filtered(), ROWS, BroadcastInput(Row), output=Row, parallelism=2) as h:
        h.push_both([], [(key, 2) for key in keys])
        with raises(StateError, row=repr(Row("a", 0))):
            h.push_both([], [("a", 0)])
        assert h.broadcast_state(RULES) == dict.fromkeys(keys, 2)
        assert sorted(h.push_both([(key, 5) for key in keys], [])) == [Row(key, 10) for key in keys]


def test_several_operators_are_named_by_uid() -> None:
    def two_levels(rows: Any) -> Any:
        first = rows.map(Numbered(), output=Row, uid="first")
        return first.key_by("key").map(Numbered(), output=Row, uid="second")

    with KeyedHarness(two_levels, ROWS, parallelism=2) as h:
        h.push(("a", 0), ("b", 0), ("a", 0))
        assert (h.state("count", "a", uid="first"), h.state("count", "b", uid="second")) == (2, 1)
        with raises(ConfigError, uid="", known=["first", "second"]):
            h.state("count", "a")
        snapshot = h.snapshot()
    with KeyedHarness.restore(snapshot, parallelism=3) as h:
        assert h.push(("a", 0)) == [Row("a", 3)]


def test_dead_letters_and_side_outputs_of_a_callable_are_collected() -> None:
    class Divided(KeyedProcessFunction[Row, Row]):
        def process_element(self, row: Row, ctx: Context) -> None:
            ctx.output(SIDE, Row(row.key, 100 // row.number))

    def build(rows: Any) -> Any:
        return rows.process(Divided(), output=Row, uid="divided", on_error=DeadLetters(budget=5))

    with KeyedHarness(build, ROWS, side_outputs=[SIDE]) as h:
        h.push(("a", 4), ("a", 0))
        assert h.side_output(SIDE) == [Row("a", 25)]
        assert [letter.operator for letter in h.dead_letters] == ["divided"]
    with raises(JobDefinitionError, given=["output"]):
        KeyedHarness(build, ROWS, output=Row)


def test_an_error_in_a_row_function_after_an_operator_names_both() -> None:
    def build(rows: Any) -> Any:
        return rows.map(Numbered(), output=Row, uid="op").map(lambda row: 1 // 0)

    with KeyedHarness(build, ROWS) as h, raises(UserCodeError, operator="op", row=repr(Row("a", 1))) as caught:
        h.push(("a", 0))
    assert "ZeroDivisionError" in str(caught.value) and "<lambda>" in str(caught.value.facts["function"])


def test_a_spark_expression_is_refused() -> None:
    def build(rows: Any) -> Any:
        mapped = rows.map(Numbered(), output=Row, uid="op").transform(lambda frame: frame)
        return mapped.key_by("key").map(Numbered(), output=Row, uid="next")

    with raises(JobDefinitionError, uid="next"):
        KeyedHarness(build, ROWS)


class Buffered(KeyedProcessFunction[Row, Row], CheckpointedFunction, CheckpointListener):
    """Keeps numbers in an operator list, emits the checkpoint of its last notification."""

    def initialize_state(self, ctx: FunctionInitializationContext) -> None:
        self.restored = ctx.is_restored
        self.notified = 0
        self.buffer = ctx.get_operator_state_store().get_list_state(ListStateDescriptor("buffer", int))

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.notified = checkpoint_id

    def process_element(self, row: Row, ctx: Context) -> Iterable[Row]:
        self.buffer.add(row.number)
        yield Row("restored" if self.restored else "new", self.notified)

    def snapshot_state(self, ctx: FunctionSnapshotContext) -> None:
        pass


def test_operator_state_is_restored_and_checkpoints_are_notified() -> None:
    with KeyedHarness(Buffered(), ROWS, output=Row) as h:
        assert h.operator_state("buffer") == [[]]
        assert h.push(("a", 1), ("a", 2)) == [Row("new", 0), Row("new", 0)]
        assert h.push(("a", 3)) == [Row("restored", 1)]
        assert h.operator_state("buffer") == [[1, 2, 3]]
        snapshot = h.snapshot()
    with KeyedHarness.restore(snapshot, parallelism=2) as h:
        assert h.push(("a", 4)) == [Row("restored", 2)]
        assert sorted(map(sorted, h.operator_state("buffer"))) in ([[1, 2], [3, 4]], [[1, 2, 4], [3]])
        with raises(ConfigError, name="bufer", declared=["buffer"]):
            h.operator_state("bufer")
