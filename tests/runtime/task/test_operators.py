"""Keyed operators over Arrow batches, by row and by column: which rows belong together, the same state, and errors."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import groupby
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import stateflow.runtime.task.vector_operator as vector_operator_module
from stateflow.api.functions.process import Context, KeyedProcessFunction, RuntimeContext
from stateflow.api.functions.vectorized import VectorizedKeyedFunction, VectorState
from stateflow.api.schema import RowSchema
from stateflow.api.streams.data_stream import DataStream
from stateflow.api.streams.keyed_stream import KeyedStream
from stateflow.errors import JobDefinitionError, SchemaMismatch, StateError, StateflowError, UserCodeError
from stateflow.runtime.executor import GROUP_SHIFT, SOURCE_PHASE
from stateflow.state.backends.hash_maps import DictBackend
from stateflow.state.handles import StateSchema
from stateflow.testing import KeyedHarness, KeyedInput
from stateflow.types.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from stateflow.types.ttl_config import StateTtlConfig
from tests.support.errors import raises
from tests.support.operators import Mean, Row, chain_of, keyed_operator, outputs_of, pieces_of, vector_operator


class SeenOut(msgspec.Struct):
    key: str
    seen: int


class Trace(KeyedProcessFunction[Any, Any]):
    """Counts a key's rows in state; emits what was called."""

    def open(self, ctx: RuntimeContext) -> None:
        self.seen = ctx.get_state(ValueStateDescriptor("seen", int))

    def process_element(self, row: Any, ctx: Context) -> Iterator[Any]:
        seen = (self.seen.value() or 0) + 1
        self.seen.update(seen)
        yield "row", ctx.get_current_key(), row.number, seen

    def on_batch_end(self, ctx: Context) -> Iterator[Any]:
        yield "end", ctx.get_current_key(), self.seen.value()


@given(st.lists(st.sampled_from([None, "", "a", "b", "c\0", "é"]), max_size=20), st.sets(st.integers(0, 20)))
def test_wherever_arrow_batches_end_each_key_gets_its_rows_and_one_end(keys: list[str | None], cuts: set[int]) -> None:
    """The second batch has a new function object, and the state of the first."""
    store, rows = DictBackend(), [Row(key, number) for number, key in enumerate(keys)]
    for batch in (0, 1):
        expected = []
        for key in sorted(set(keys), key=_nulls_first):
            numbers = [row.number for row in rows if row.key == key]
            seen = batch * len(numbers)
            calls: list[Any] = [("row", key, number, seen + n) for n, number in enumerate(numbers, 1)]
            expected.append((key, [*calls, ("end", key, seen + len(numbers))]))
        chain = chain_of(Trace())
        made = outputs_of(keyed_operator(chain, store), pieces_of(chain, rows, [*cuts]))
        found = [(key, list(of)) for key, of in groupby(made, key=lambda call: call[1])]
        assert sorted(found, key=lambda each: _nulls_first(each[0])) == expected


def _nulls_first(key: str | None) -> tuple[bool, str]:
    return key is not None, key or ""


def test_two_keys_with_one_order_are_kept_apart() -> None:
    """47 bits of a hash collide sooner or later; the sort then goes by key."""
    chain = chain_of(Trace())
    columns = [pa.array([None, None, "a", "a", "b", "c", "c"]), pa.array(range(7))]
    order = np.full(7, 5 << GROUP_SHIFT)
    pieces = [(order[a:b], [c.slice(a, b - a) for c in columns]) for a, b in ((0, 1), (1, 6), (6, 7))]
    calls = outputs_of(keyed_operator(chain), pieces)
    assert [c for c in calls if c[0] == "end"] == [("end", *each) for each in ((None, 2), ("a", 2), ("b", 1), ("c", 2))]


class NullableMeasure(msgspec.Struct):
    key: float | None
    number: int = 0


def test_nan_is_one_key_both_zeros_are_one_and_null_is_another() -> None:
    chain = chain_of(Trace(), NullableMeasure)
    rows = [NullableMeasure(k) for k in (math.nan, 0.0, None, -math.nan, -0.0, math.nan)]
    calls = outputs_of(keyed_operator(chain), pieces_of(chain, rows))
    assert sorted(c[2] for c in calls if c[0] == "end") == [1, 2, 3]


def test_a_function_may_return_none_or_a_list() -> None:
    class Mixed(KeyedProcessFunction[Row, Any]):
        def process_element(self, row: Row, ctx: Context) -> Iterable[Any] | None:
            return None if row.number == 0 else [row.number] * row.number

    chain = chain_of(Mixed())
    assert outputs_of(keyed_operator(chain), pieces_of(chain, [Row("a", n) for n in range(3)])) == [1, 2, 2]


@pytest.mark.parametrize(
    ("declared", "stored"),
    [
        (datetime.date, pa.array([19_000, 1 << 30], pa.date32())),
        (datetime.datetime, pa.array([0, 1 << 62], pa.timestamp("us", "UTC"))),
        (str, pa.Array.from_buffers(pa.string(), 2, pa.array([b"a", b"\xff"]).buffers())),
    ],
    ids=["date", "datetime", "str"],
)
def test_a_key_that_cannot_be_read_names_operator_column_and_row(declared: type[Any], stored: pa.Array) -> None:
    chain = chain_of(Trace(), msgspec.defstruct("Row", [("key", declared), ("number", int)]))
    with raises(SchemaMismatch, operator="op", column="key") as refused:
        keyed_operator(chain).process(np.array([0, 1 << GROUP_SHIFT]), [stored, pa.array([5, 77])])
    row = str(refused.value.facts["row"])
    assert "77" in row and str(stored.type) in row


class Emits(KeyedProcessFunction[Row, Any]):
    """Emits whatever it was made with; appends to a file when it is closed."""

    def __init__(self, emitted: Any, log: Path) -> None:
        self.emitted = emitted
        self.log = log

    def process_element(self, row: Row, ctx: Context) -> list[Any]:
        return [self.emitted]

    def close(self) -> None:
        with self.log.open("a") as file:
            file.write("closed\n")


def test_a_function_is_closed_once_also_after_an_error(tmp_path: Path) -> None:
    text: Any = "many"
    for name, emitted in (("good", SeenOut("a", 1)), ("bad", SeenOut("a", text))):
        log = tmp_path / name
        with KeyedHarness(Emits(emitted, log), KeyedInput(Row, "key"), output=SeenOut, parallelism=1) as h:
            with nullcontext() if name == "good" else raises(SchemaMismatch):
                h.push(Row("a", 1), Row("a", 2))
            assert log.read_text() == "closed\n"


class Out(msgspec.Struct):
    key: str
    total: int | None = None


class Sum(msgspec.Struct, array_like=True):
    count: int = 0
    total: int = 0


class _Sums:
    """A sum in a value, the last number per parity in a map, a mean in an aggregating state."""

    def __init__(self, ttl: StateTtlConfig | None = None) -> None:
        self.ttl = ttl

    def open(self, ctx: RuntimeContext) -> None:
        self.sum = ctx.get_state(ValueStateDescriptor("sum", Sum, ttl=self.ttl))
        self.last = ctx.get_map_state(MapStateDescriptor("last", str, int, ttl=self.ttl))
        self.mean = ctx.get_aggregating_state(AggregatingStateDescriptor("mean", Mean(), list[int], ttl=self.ttl))


class SumRows(_Sums, KeyedProcessFunction[Row, Out]):
    """Processes row by row."""

    def process_element(self, row: Row, ctx: Context) -> None:
        before = self.sum.value() or Sum()
        self.sum.update(Sum(before.count + 1, before.total + row.number))
        self.last.get(_parity(row.number))
        self.last.put(_parity(row.number), row.number)
        self.mean.add(row.number)

    def on_batch_end(self, ctx: Context) -> Iterator[Out]:
        found = self.sum.value()
        assert found is not None
        yield Out(ctx.get_current_key(), found.total)


class SumColumns(_Sums, VectorizedKeyedFunction):
    """The same by columns."""

    def process_batch(self, batch: pa.RecordBatch, state: VectorState) -> pa.RecordBatch:
        numbers, keys = batch.column("number").to_numpy(), state.keys.column("key")
        sums = np.add.reduceat(numbers, state.starts)
        self._add_to_mean(state, sums)
        self._put_last(state, numbers)
        before = state.read(self.sum)
        count, total = (before.field(n).fill_null(0).to_numpy() for n in ("count", "total"))
        after = pa.StructArray.from_arrays([count + state.counts, total + sums], names=["count", "total"])
        state.write(self.sum, after)
        return pa.RecordBatch.from_arrays([after.field("total"), keys], names=["total", "key"])

    def _add_to_mean(self, state: VectorState, sums: np.ndarray[Any, Any]) -> None:
        before = [pair or [0, 0] for pair in state.read(self.mean).to_pylist()]
        after = [[n + m, s + d] for (n, s), d, m in zip(before, sums.tolist(), state.counts.tolist(), strict=True)]
        state.write(self.mean, pa.array(after, pa.list_(pa.int64())))

    def _put_last(self, state: VectorState, numbers: np.ndarray[Any, Any]) -> None:
        parities = pa.array([_parity(n) for n in numbers.tolist()], pa.string())
        found = state.read_entries(self.last, state.key_of_row, parities)
        assert len(found) == len(numbers)
        state.write_entries(self.last, state.key_of_row, parities, numbers)


def _parity(number: int) -> str:
    return "odd" if number % 2 else "even"


@dataclass
class Run:
    """Batches over one store, by rows or by columns."""

    ttl: StateTtlConfig | None = None
    store: DictBackend = field(default_factory=DictBackend)
    known: tuple[StateSchema, ...] = ()

    def by_row(self, rows: Sequence[Row], batch: int) -> list[Out]:
        chain = replace(chain_of(SumRows(self.ttl), output=Out), known_states=self.known)
        operator = keyed_operator(chain, self.store, batch)
        made: list[Out] = outputs_of(operator, pieces_of(chain, rows))
        self.known = tuple(operator.schemas)
        return made

    def by_column(self, rows: Sequence[Row], batch: int, cuts: Sequence[int] = ()) -> list[Out]:
        chain = replace(chain_of(SumColumns(self.ttl), output=Out), known_states=self.known)
        operator = vector_operator(chain, self.store, batch)
        made = outputs_of(operator, pieces_of(chain, rows, cuts))
        self.known = tuple(operator.schemas)
        return [Out(**row) for _, columns in made for row in columns.to_pylist()]


ROWS = st.lists(st.builds(Row, st.sampled_from("abcde"), st.integers(-(1 << 40), 1 << 40)), min_size=1, max_size=20)
CUTS = st.lists(st.integers(1, 19), max_size=6)


@pytest.mark.long(reason="draws many histories")
@given(st.lists(st.tuples(ROWS, CUTS, st.booleans()), min_size=1, max_size=4), st.booleans())
def test_what_is_stored_and_emitted_is_that_of_the_row_api_and_a_job_may_switch_between_them(
    batches: list[tuple[list[Row], list[int], bool]], with_ttl: bool
) -> None:
    """The row API emits once per key: wherever Spark cuts, a key must come once, with all its rows in their order."""
    ttl = StateTtlConfig.new_builder(timedelta(seconds=2)).update_ttl_on_read_and_write().build()
    plain, mixed = (Run(ttl if with_ttl else None) for _ in range(2))
    for number, (rows, cuts, columns) in enumerate(batches):
        found = mixed.by_column(rows, number, cuts) if columns else mixed.by_row(rows, number)
        assert found == plain.by_row(rows, number)
        assert mixed.store.entries == plain.store.entries
        assert mixed.known == plain.known


class LongText(msgspec.Struct):
    key: str
    text: str


class CountRows(VectorizedKeyedFunction):
    def process_batch(self, batch: pa.RecordBatch, state: VectorState) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([state.keys.column("key"), pa.array(state.counts)], names=["key", "number"])


def test_a_key_whose_rows_do_not_fit_into_one_array_is_an_error_that_names_the_key() -> None:
    chain = chain_of(CountRows(), row_class=LongText)
    rows = [LongText("a", "x"), *[LongText("b", "x" * 400) for _ in range(6)]]
    with patch.object(vector_operator_module, "_LARGEST_COLUMN", 2000), pytest.raises(StateError) as e:
        outputs_of(vector_operator(chain), pieces_of(chain, rows, [2, 4]))
    assert e.value.facts["key"] == "{'key': 'b'}" and e.value.facts["operator"] == "op" and e.value.hint


def test_what_is_held_back_of_a_phase_is_emitted_in_that_phase() -> None:
    chain = chain_of(SumColumns(), output=Out)
    pieces = pieces_of(chain, [Row("a", 1)], phase=0) + pieces_of(chain, [Row("a", 2)])
    assert [(phase, made.to_pylist()) for phase, made in outputs_of(vector_operator(chain), pieces)] == [
        (0, [{"key": "a", "total": 1}]),
        (SOURCE_PHASE, [{"key": "a", "total": 3}]),
    ]


class Measured(msgspec.Struct):
    key: float


def test_nan_is_one_key_and_both_zeros_are_one() -> None:
    class Counts(VectorizedKeyedFunction):
        def process_batch(self, batch: pa.RecordBatch, state: VectorState) -> None:
            counts.append(state.counts.tolist())

    counts: list[list[int]] = []
    for keys in ([math.nan, -math.nan, math.nan], [0.0, -0.0]):
        chain = chain_of(Counts(), Measured)
        assert outputs_of(vector_operator(chain), pieces_of(chain, [Measured(key) for key in keys], [1])) == []
    assert counts == [[3], [2]]


class Does(VectorizedKeyedFunction):
    """Calls what it was made with."""

    def __init__(self, call: Callable[[Any, VectorState], Any]) -> None:
        self.call = call

    def open(self, ctx: RuntimeContext) -> None:
        self.number = ctx.get_state(ValueStateDescriptor("number", int, default=7))
        self.map = ctx.get_map_state(MapStateDescriptor("map", int, float))
        self.list = ctx.get_list_state(ListStateDescriptor("list", int))
        self.odd = ctx.get_state(ValueStateDescriptor("odd", set[int]))

    def process_batch(self, batch: pa.RecordBatch, state: VectorState) -> Any:
        return self.call(self, state)


def _do(call: Callable[[Any, VectorState], Any], store: DictBackend | None = None) -> Any:
    chain = chain_of(Does(call), output=Out)
    return outputs_of(vector_operator(chain, store), pieces_of(chain, [Row("a", 1), Row("b", 2), Row("c", 3)]))


def _do_with_two_keys(call: Callable[[Any, VectorState], Any], store: DictBackend | None = None) -> None:
    """Calls it once: for the Arrow batch that has two of the three keys."""
    sizes: list[int] = []

    def call_once(does: Any, state: VectorState) -> None:
        if len(state) == 2:
            call(does, state)
        sizes.append(len(state))

    _do(call_once, store)
    assert sorted(sizes) == [1, 2]


def test_a_read_sees_earlier_writes_and_the_default_where_nothing_was_written() -> None:
    def call(does: Any, state: VectorState) -> None:
        assert state.read(does.number).to_pylist() == [7, 7]
        state.write(does.number, np.array([1, 2]), where=np.array([False, True]))
        assert state.read(does.number).to_pylist() == [7, 2]
        state.write(does.number, pa.array([5, None], pa.int64()))
        assert state.read(does.number).to_pylist() == [5, 7]

    store = DictBackend()
    _do_with_two_keys(call, store)
    assert len(store.entries) == 1


def test_entries_of_maps_are_set_removed_and_listed_in_order() -> None:
    def call(does: Any, state: VectorState) -> None:
        of = np.array([1, 0, 1, 1])
        state.write_entries(does.map, of, np.array([5, 9, -3, 5]), np.array([1.0, 2.0, 3.0, 4.0]))
        listed = state.all_entries(does.map)
        assert [part.tolist() if isinstance(part, np.ndarray) else part.to_pylist() for part in listed] == [
            [0, 1, 1],
            [9, -3, 5],
            [2.0, 3.0, 4.0],
        ]
        state.write_entries(does.map, np.array([1]), np.array([-3]), pa.array([None], pa.float64()))
        found = state.read_entries(does.map, np.array([1, 1, 0]), np.array([-3, 5, 5]))
        assert found.to_pylist() == [None, 4.0, None]

    _do_with_two_keys(call)


@pytest.mark.parametrize(
    ("call", "kind", "facts"),
    [
        (lambda d, s: s.read(d.list), StateError, {"given": "ListState"}),
        (lambda d, s: s.read(d.map), StateError, {"given": "MapState"}),
        (lambda d, s: s.all_entries(d.number), StateError, {"given": "ValueState"}),
        (lambda d, s: s.read(d.odd), JobDefinitionError, {"type": "set[int]"}),
        (lambda d, s: s.write(d.number, pa.array([1, 2, 3])), SchemaMismatch, {"found": 3, "wanted": 2}),
        (
            lambda d, s: s.write(d.number, pa.array(["x"] * len(s))),
            SchemaMismatch,
            {"declared": "int", "given": "string"},
        ),
        (
            lambda d, s: s.write_entries(d.map, [0], pa.array(["x"]), pa.array([1.0])),
            SchemaMismatch,
            {"state": "map", "wanted": "int64", "given": "string", "nulls": 0},
        ),
        (
            lambda d, s: s.write_entries(d.map, [0], pa.array([1]), pa.array([1.0, 2.0])),
            SchemaMismatch,
            {"found": 2, "wanted": 1},
        ),
        (lambda d, s: [1], SchemaMismatch, {"given": "list"}),
        (lambda d, s: pa.table({"key": ["a"]}), SchemaMismatch, {"declared": ["key", "total"], "given": ["key"]}),
        (lambda d, s: pa.table({"key": ["a"], "total": [1.5]}), SchemaMismatch, {"column": "total", "given": "double"}),
        (lambda d, s: pa.table({"key": [None], "total": [1]}), SchemaMismatch, {"column": "key"}),
    ],
)
def test_a_wrong_use_of_state_or_return_value_is_refused(
    call: Any, kind: type[StateflowError], facts: dict[str, Any]
) -> None:
    with raises(kind, operator="op", **facts):
        _do(call)


def test_an_error_of_the_function_names_method_cause_and_line() -> None:
    with raises(UserCodeError, operator="op") as caught:
        _do(lambda d, s: 1 // 0)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert all(name in caught.value.sentence for name in ("process_batch", "ZeroDivisionError"))
    assert str(caught.value.facts["where"]).startswith(f"{__file__}:")


def test_rows_may_come_as_a_table_in_another_order_of_columns_and_in_narrower_numbers() -> None:
    made = pa.table({"total": pa.array([1, None], pa.int32()), "key": pa.array(["x", "y"])})
    ((_, rows), _) = _do(lambda d, s: made)
    assert rows.schema == RowSchema.of(Out).arrow
    assert rows.to_pylist() == [{"key": "x", "total": 1}, {"key": "y", "total": None}]


class Timed(msgspec.Struct, frozen=True):
    key: str
    at: int | None
    number: int


class Found(msgspec.Struct, frozen=True):
    """What was stored before."""

    key: str
    count: int | None
    last: int | None


class _States:
    def __init__(self, ttl: StateTtlConfig) -> None:
        self._ttl = ttl

    def open(self, ctx: RuntimeContext) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", int, ttl=self._ttl))
        self.last = ctx.get_map_state(MapStateDescriptor("last", str, int, ttl=self._ttl))


class ByRow(_States, KeyedProcessFunction[Timed, Found]):
    def process_element(self, row: Timed, ctx: Context) -> Iterator[Found]:
        yield Found(ctx.get_current_key(), self.count.value(), self.last.get(""))
        if row.number:
            self.count.update((self.count.value() or 0) + row.number)
            self.last.put("", row.number)


class ByColumn(_States, VectorizedKeyedFunction):
    def process_batch(self, batch: pa.RecordBatch, state: VectorState) -> pa.RecordBatch:
        numbers, every = batch.column("number").to_numpy(), np.arange(len(state))
        sums = np.add.reduceat(numbers, state.starts)
        names = pa.array([""] * len(state), pa.string())
        count, last = state.read(self.count), state.read_entries(self.last, every, names)
        state.write(self.count, pc.add(count.fill_null(0), pa.array(sums)), sums > 0)
        for at in np.flatnonzero(sums).tolist():
            (own,) = [numbers[start : start + size] for start, size in [(state.starts[at], state.counts[at])]]
            state.write_entries(self.last, np.array([at]), names[:1], pa.array([int(own[own > 0][-1])]))
        return pa.RecordBatch.from_arrays([state.keys.column("key"), count, last], names=["key", "count", "last"])


TIMED_ROWS = st.lists(
    st.builds(Timed, st.sampled_from("ab"), st.one_of(st.none(), st.integers(0, 60)), st.integers(0, 3))
)


def _harness(function: Callable[[StateTtlConfig], Any], ttl: StateTtlConfig) -> KeyedHarness:
    def declare(rows: KeyedStream[DataStream]) -> DataStream:
        return rows.process(function(ttl), output=Found, uid="op")

    return KeyedHarness(declare, KeyedInput(Timed, "key", order_by=("at",), event_time="at"))


@pytest.mark.long(reason="draws many histories")
@given(st.booleans(), st.lists(st.tuples(st.integers(0, 20), TIMED_ROWS), max_size=6))
@example(False, [(20, [Timed("a", 0, 1), Timed("a", 40, 1)]), (15, []), (0, [Timed("a", 41, 0)])])
@example(False, [(20, [Timed("a", 0, 1), Timed("b", 60, 1)]), (20, []), (0, [Timed("a", 41, 0), Timed("b", 41, 0)])])
def test_the_time_to_live_of_a_key_counts_from_its_own_rows(
    renews: bool, batches: list[tuple[int, list[Timed]]]
) -> None:
    ttl = StateTtlConfig.new_builder(timedelta(milliseconds=30)).use_event_time().disable_cleanup_in_background()
    config = (ttl.update_ttl_on_read_and_write() if renews else ttl).build()
    with _harness(ByRow, config) as rows, _harness(ByColumn, config) as columns:
        now = 0
        for step, batch in batches:
            now += step
            made = []
            for h in (rows, columns):
                # The row function emits for each row: the first one of a key shows what was stored before.
                made.append({row.key: row for row in reversed(h.push(*batch))})
                h.advance_watermark(now)
            assert made[0] == made[1]
