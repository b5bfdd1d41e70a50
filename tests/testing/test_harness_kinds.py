"""Functions of every kind in the harness, with null keys and misplaced calls, and short jobs of several operators."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
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
    OutputTag,
    Pattern,
    RichFilterFunction,
    RichFlatMapFunction,
    RichMapFunction,
    RuntimeContext,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    VectorizedKeyedFunction,
    VectorState,
)
from stateflow.api.streams.data_stream import DataStream
from stateflow.api.streams.keyed_stream import KeyedStream
from stateflow.errors import ConfigError, JobDefinitionError, StateError, UserCodeError
from stateflow.testing import BroadcastInput, KeyedHarness, KeyedInput
from tests.joins.joined_rows import unkeyed
from tests.support.errors import raises


class Row(msgspec.Struct, order=True):
    key: str
    number: int


SIDE = OutputTag("side", Row)
ROWS = KeyedInput(Row, "key")


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
        is_new = not self.seen.value()
        self.seen.update(True)
        return is_new


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
    output: dict[str, Any] = {} if isinstance(function, FunctionType) else {"output": Row}
    with KeyedHarness(function, ROWS, **output) as h:
        emitted = h.push(("a", 7), ("a", 9))
        snapshot = h.snapshot()
    with KeyedHarness.restore(snapshot, parallelism=3) as h:
        emitted += h.push(("a", 8))
    assert [row.number for row in emitted] == numbers


class Misplaced(KeyedBroadcastProcessFunction[Row, Row, Row]):
    """Reads keyed state for a broadcast row, which has no key."""

    def open(self, ctx: RuntimeContext) -> None:
        self.total = ctx.get_state(ValueStateDescriptor("total", int))

    def process_element(self, row: Row, ctx: Context) -> None: ...

    def process_broadcast_element(self, row: Row, ctx: Context) -> None:
        self.total.value()


def test_a_push_needs_rows_of_all_inputs_and_a_broadcast_row_has_no_keyed_state() -> None:
    with KeyedHarness(Misplaced(), ROWS, BroadcastInput(Row), output=Row) as h:
        with raises(ConfigError, inputs=2):
            h.push(("a", 1))
        with raises(StateError, row=repr(Row("a", 1))):
            h.push_both([], [("a", 1)])
    with KeyedHarness(Numbered(), ROWS, output=Row) as h, raises(ConfigError, inputs=1):
        h.push_both([("a", 1)], [])


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


class Notified(KeyedProcessFunction[Row, Row], CheckpointedFunction, CheckpointListener):
    def initialize_state(self, ctx: FunctionInitializationContext) -> None:
        self.restored = ctx.is_restored
        self.notified = 0
        self.buffer = ctx.get_operator_state_store().get_list_state(ListStateDescriptor("buffer", int))

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.notified = checkpoint_id

    def process_element(self, row: Row, ctx: Context) -> Iterable[Row]:
        self.buffer.add(row.number)
        yield Row("restored" if self.restored else "new", self.notified)

    def snapshot_state(self, ctx: FunctionSnapshotContext) -> None: ...


def test_functions_are_notified_of_each_checkpoint_also_after_a_restore() -> None:
    with KeyedHarness(Notified(), ROWS, output=Row) as h:
        assert h.push(("a", 1), ("a", 2)) == [Row("new", 0), Row("new", 0)]
        assert h.push(("a", 3)) == [Row("restored", 1)]
        assert h.operator_state("buffer") == [[1, 2, 3]]
        with raises(ConfigError, name="bufer", declared=["buffer"]):
            h.operator_state("bufer")
        snapshot = h.snapshot()
    with KeyedHarness.restore(snapshot, parallelism=2) as h:
        assert h.push(("a", 4)) == [Row("restored", 2)]


# -- null keys ---------------------------------------------------------------------------------------------------------


class Named(msgspec.Struct, frozen=True):
    key: str | None
    at: int
    number: int


class Total(msgspec.Struct, frozen=True):
    key: str | None
    number: int


class SummedOfTwo(KeyedCoProcessFunction[Named, Named, Named]):
    def open(self, ctx: RuntimeContext) -> None:
        self.total = ctx.get_state(ValueStateDescriptor("total", int))

    def process_element1(self, row: Named, ctx: Context) -> Iterable[Named]:
        self.total.update((self.total.value() or 0) + row.number)
        return []

    def process_element2(self, row: Named, ctx: Context) -> Iterable[Named]:
        return [Named(ctx.get_current_key(), row.at, self.total.value() or 0)]


def _united(x: KeyedStream[Any], y: KeyedStream[Any]) -> KeyedStream[Any]:
    return unkeyed(x).union(unkeyed(y)).key_by("key")


def _grouped(left: DataStream, right: DataStream) -> DataStream:
    groups = left.co_group(right).where("key").equal_to("key")
    return groups.window(TumblingEventTimeWindows.of(timedelta(seconds=1))).apply(
        lambda key, window, x, y: [Named(key, window.start, 10 * len(x) + len(y))], output=Named, uid="op"
    )


_RISE = Pattern.begin("low", lambda row: row.number < 5).followed_by("high", lambda row: row.number >= 5)
_OF_NULL_KEYS: dict[str, Any] = {
    "vectorized": lambda x, y: _united(x, y).process(Summed(), output=Total, uid="op"),
    "match_pattern": lambda x, y: (
        _united(x, y)
        .match_pattern(_RISE)
        .select(
            lambda found: Named(found["low"][0].key, found["low"][0].at, found["high"][0].number),
            output=Named,
            uid="op",
        )
    ),
    "connect": lambda x, y: x.connect(y).process(SummedOfTwo(), output=Named, uid="op"),
    "co_group": lambda x, y: _grouped(unkeyed(x), unkeyed(y)),
}


def _emitted(kind: str, name: str | None) -> list[Any]:
    """Returns what a function emits for rows of a key, next to others, with a restore in between."""
    rows = [Named(key, 100 * at, at % 7 + at % 2) for at in range(20) for key in (name, "a", "")]
    inputs = [KeyedInput(Named, "key", event_time="at", out_of_orderness=timedelta(0))] * 2
    found = []
    with KeyedHarness(_OF_NULL_KEYS[kind], *inputs) as h:
        found += h.push_both(rows[:33], rows[:21])
        snapshot = h.snapshot()
    with KeyedHarness.restore(snapshot, parallelism=3) as h:
        found += h.push_both(rows[33:], rows[21:])
        found += h.drain()
    return [msgspec.structs.replace(row, key="") for row in found if row.key == name]


@pytest.mark.parametrize("kind", _OF_NULL_KEYS)
def test_null_is_a_key_like_any_other(kind: str) -> None:
    assert _emitted(kind, None) == _emitted(kind, "n") != []
