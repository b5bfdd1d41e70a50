"""Every kind of function in the harness, and short jobs of several."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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


class Row(msgspec.Struct):
    key: str
    number: int


class Rate(msgspec.Struct):
    key: str
    factor: int


class Out(msgspec.Struct):
    key: str
    number: int


SIDE = OutputTag("side", Out)
ROWS, RATES = KeyedInput(Row, "key"), KeyedInput(Rate, "key")
RULES = MapStateDescriptor("rules", str, int)


class Priced(KeyedCoProcessFunction[Row, Rate, Out]):
    def open(self, ctx: RuntimeContext) -> None:
        self.factor = ctx.get_state(ValueStateDescriptor("factor", int))

    def process_element1(self, row: Row, ctx: Context) -> Iterable[Out]:
        yield Out(row.key, row.number * (self.factor.value() or 1))

    def process_element2(self, row: Rate, ctx: Context) -> None:
        self.factor.update(row.factor)


def test_two_keyed_inputs_share_their_state() -> None:
    with KeyedHarness(Priced(), ROWS, RATES, output=Out, parallelism=2) as h:
        assert h.push_both([("a", 2)], [("a", 10)]) == [Out("a", 2)]
        assert h.push_both([("a", 3), ("b", 3)], []) in ([Out("a", 30), Out("b", 3)], [Out("b", 3), Out("a", 30)])
        snapshot = h.snapshot()
    with KeyedHarness.restore(snapshot, parallelism=3) as h:
        assert h.push_both([("a", 1)], [("b", 5)]) == [Out("a", 10)]
        assert h.state("factor", "b") == 5


def test_the_push_for_another_number_of_inputs_is_refused() -> None:
    with KeyedHarness(Priced(), ROWS, RATES, output=Out) as h, raises(ConfigError, inputs=2):
        h.push(("a", 1))
    with KeyedHarness(Summed(), ROWS, output=Out) as h, raises(ConfigError, inputs=1):
        h.push_both([("a", 1)], [])


class Filtered(KeyedBroadcastProcessFunction[Row, Rate, Out]):
    def process_element(self, row: Row, ctx: Context) -> Iterable[Out]:
        factor = ctx.get_broadcast_state(RULES).get(row.key)
        if factor is not None:
            yield Out(row.key, row.number * factor)

    def process_broadcast_element(self, row: Rate, ctx: Context) -> None:
        ctx.get_broadcast_state(RULES).put(row.key, row.factor)


def test_broadcast_rows_reach_every_subtask_and_last() -> None:
    with KeyedHarness(Filtered(), ROWS, BroadcastInput(Rate), output=Out, parallelism=2) as h:
        keys = [f"key-{n}" for n in range(10)]
        h.push_both([], [(key, 2) for key in keys])
        assert h.broadcast_state(RULES) == dict.fromkeys(keys, 2)
        snapshot = h.snapshot()
    with KeyedHarness.restore(snapshot, parallelism=3) as h:
        h.push_both([(key, 5) for key in [*keys, "other"]], [])
        assert sorted(h.output, key=lambda row: row.key) == [Out(key, 10) for key in keys]
        assert h.broadcast_state(RULES) == dict.fromkeys(keys, 2)


class Summed(VectorizedKeyedFunction):
    def open(self, ctx: RuntimeContext) -> None:
        self.total = ctx.get_state(ValueStateDescriptor("total", int))

    def process_batch(self, batch: pa.RecordBatch, state: VectorState) -> pa.RecordBatch:
        sums = np.add.reduceat(batch.column("number").to_numpy(), state.starts)
        totals = pc.add(pc.coalesce(state.read(self.total), 0), sums)
        state.write(self.total, totals)
        return pa.RecordBatch.from_pydict({"key": state.keys.column("key"), "number": totals})


def test_a_vectorized_function_emits_and_keeps_what_it_does_in_a_run() -> None:
    with KeyedHarness(Summed(), ROWS, output=Out, parallelism=2) as h:
        h.push(("a", 1), ("b", 5), ("a", 2))
        assert sorted((row.key, row.number) for row in h.output) == [("a", 3), ("b", 5)]
        assert h.push(("a", 10)) == [Out("a", 13)]
        assert (h.state("total", "a"), h.state("total", "b")) == (13, 5)


def test_rows_and_columns_share_one_state() -> None:
    class SummedRows(KeyedProcessFunction[Row, Out]):
        def open(self, ctx: RuntimeContext) -> None:
            self.total = ctx.get_state(ValueStateDescriptor("total", int))

        def process_element(self, row: Row, ctx: Context) -> Iterable[Out]:
            yield Out(row.key, (self.total.value() or 0) + row.number)

    with KeyedHarness(Summed(), ROWS, output=Out) as h:
        h.push(("a", 1), ("a", 2))
        snapshot = h.snapshot()
    with KeyedHarness.restore(snapshot, SummedRows()) as h:
        assert h.push(("a", 10)) == [Out("a", 13)]


class Numbered(RichMapFunction[Row, Out]):
    def open(self, ctx: RuntimeContext) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", int))

    def map(self, row: Row) -> Out:
        self.count.update((self.count.value() or 0) + 1)
        return Out(row.key, self.count.value() or 0)


class Twice(RichFlatMapFunction[Row, Out]):
    def flat_map(self, row: Row) -> Iterable[Out]:
        return [Out(row.key, row.number)] * 2


class New(RichFilterFunction[Row]):
    def open(self, ctx: RuntimeContext) -> None:
        self.seen = ctx.get_state(ValueStateDescriptor("seen", bool))

    def filter(self, row: Row) -> bool:
        seen, _ = self.seen.value(), self.seen.update(True)
        return not seen


def test_rich_functions_have_state_for_each_key() -> None:
    with KeyedHarness(Numbered(), ROWS, output=Out) as h:
        h.push(("a", 0), ("a", 0))
        assert h.push(("a", 0)) == [Out("a", 3)]
    with KeyedHarness(Twice(), ROWS, output=Out) as h:
        assert h.push(("a", 7)) == [Out("a", 7)] * 2
    with KeyedHarness(New(), ROWS) as h:
        h.push(("a", 1), ("a", 2))
        h.push(("a", 3), ("b", 4))
        assert h.output == [Row("a", 1), Row("b", 4)]


def test_short_forms_are_given_as_a_callable() -> None:
    def count(row: Row, seen: int | None) -> tuple[Out, int]:
        return Out(row.key, (seen or 0) + 1), (seen or 0) + 1

    with KeyedHarness(lambda rows: rows.map_with_state(count, state=int, output=Out, uid="count"), ROWS) as h:
        h.push(("a", 0), ("a", 0))
        assert h.output == [Out("a", 1), Out("a", 2)]
        assert h.state("value", "a") == 2

    def add(x: Row, y: Row) -> Row:
        return Row(x.key, x.number + y.number)

    with KeyedHarness(lambda rows: rows.reduce(add, uid="sum"), ROWS) as h:
        h.push(("a", 1), ("a", 2))
        assert h.push(("a", 3)) == [Row("a", 6)]
    with KeyedHarness(
        lambda rows: rows.aggregate_columns({"number": ("max", "number")}, output=Out, uid="max"), ROWS
    ) as h:
        assert h.push(("a", 1), ("a", 9)) == [Out("a", 9)]


def test_several_operators_are_named_by_uid() -> None:
    def two_levels(rows: Any) -> Any:
        first = rows.map(Numbered(), output=Out, uid="first")
        return first.key_by("key").map(Numbered(), output=Out, uid="second")

    with KeyedHarness(two_levels, ROWS, parallelism=2) as h:
        h.push(("a", 0), ("b", 0), ("a", 0))
        assert (h.state("count", "a", uid="first"), h.state("count", "b", uid="second")) == (2, 1)
        with raises(ConfigError, uid="", known=["first", "second"]):
            h.state("count", "a")
        snapshot = h.snapshot()
    with KeyedHarness.restore(snapshot, parallelism=3) as h:
        assert h.push(("a", 0)) == [Out("a", 3)]


def test_dead_letters_and_side_outputs_of_a_callable_are_collected() -> None:
    class Picky(KeyedProcessFunction[Row, Out]):
        def process_element(self, row: Row, ctx: Context) -> None:
            ctx.output(SIDE, Out(row.key, 100 // row.number))

    def build(rows: Any) -> Any:
        return rows.process(Picky(), output=Out, uid="picky", on_error=DeadLetters(budget=5))

    with KeyedHarness(build, ROWS, side_outputs=[SIDE]) as h:
        h.push(("a", 4), ("a", 0))
        assert h.side_output(SIDE) == [Out("a", 25)]
        assert [letter.operator for letter in h.dead_letters] == ["picky"]
    with raises(JobDefinitionError, given=["output"]):
        KeyedHarness(build, ROWS, output=Out)


def test_an_error_in_a_row_function_after_an_operator_names_both() -> None:
    def build(rows: Any) -> Any:
        return rows.map(Numbered(), output=Out, uid="op").map(lambda row: 1 // 0)

    with KeyedHarness(build, ROWS) as h, raises(UserCodeError, operator="op", row=repr(Out("a", 1))) as caught:
        h.push(("a", 0))
    assert "ZeroDivisionError" in str(caught.value) and "<lambda>" in str(caught.value.facts["function"])


def test_a_spark_expression_is_refused() -> None:
    def build(rows: Any) -> Any:
        mapped = rows.map(Numbered(), output=Out, uid="op").transform(lambda frame: frame)
        return mapped.key_by("key").map(Numbered(), output=Out, uid="next")

    with raises(JobDefinitionError, uid="next"):
        KeyedHarness(build, ROWS)


class Buffered(KeyedProcessFunction[Row, Out], CheckpointedFunction, CheckpointListener):
    """Keeps numbers in an operator list, emits the checkpoint that it was last notified of."""

    def initialize_state(self, ctx: FunctionInitializationContext) -> None:
        self.restored = ctx.is_restored
        self.notified = 0
        self.buffer = ctx.get_operator_state_store().get_list_state(ListStateDescriptor("buffer", int))

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.notified = checkpoint_id

    def process_element(self, row: Row, ctx: Context) -> Iterable[Out]:
        self.buffer.add(row.number)
        yield Out("restored" if self.restored else "new", self.notified)

    def snapshot_state(self, ctx: FunctionSnapshotContext) -> None:
        pass


def test_operator_state_is_restored_and_checkpoints_are_notified() -> None:
    with KeyedHarness(Buffered(), ROWS, output=Out) as h:
        assert h.operator_state("buffer") == [[]]
        assert h.push(("a", 1), ("a", 2)) == [Out("new", 0), Out("new", 0)]
        assert h.push(("a", 3)) == [Out("restored", 1)]
        assert h.operator_state("buffer") == [[1, 2, 3]]
        snapshot = h.snapshot()
    with KeyedHarness.restore(snapshot, parallelism=2) as h:
        assert h.push(("a", 4)) == [Out("restored", 2)]
        assert sorted(map(sorted, h.operator_state("buffer"))) in ([[1, 2], [3, 4]], [[1, 2, 4], [3]])
        with raises(ConfigError, name="bufer", declared=["buffer"]):
            h.operator_state("bufer")


def test_keyed_state_of_a_broadcast_row_is_refused_as_in_a_run() -> None:
    class Wrong(Filtered):
        def open(self, ctx: RuntimeContext) -> None:
            self.mine = ctx.get_state(ValueStateDescriptor("mine", int))

        def process_broadcast_element(self, row: Rate, ctx: Context) -> None:
            self.mine.value()

    with KeyedHarness(Wrong(), ROWS, BroadcastInput(Rate), output=Out) as h:
        with raises(StateError, row=repr(Rate("a", 1))):
            h.push_both([], [("a", 1)])
