"""A keyed operator over Arrow batches: which rows and calls belong to which key, and what errors say."""

from __future__ import annotations

import dataclasses
import datetime
import inspect
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.api.functions.process import Context, KeyedProcessFunction, RuntimeContext, TaskInfo
from stateflow.api.graph.nodes import Keying
from stateflow.api.schema import RowSchema
from stateflow.checkpoint.barrier.task_report import TaskReport
from stateflow.clock import ManualClock
from stateflow.errors import SchemaMismatch, StateError, StateflowError, UserCodeError
from stateflow.runtime.task.barriers import Barrier
from stateflow.runtime.task.operators.keyed_operator import KeyedOperator
from stateflow.runtime.task.operators.operator_runtime import InitialState
from stateflow.runtime.task.row_conversion import to_batch
from stateflow.runtime.task.task import run_level
from stateflow.runtime.task_spec import (
    BARRIER_ORDER,
    CONTROL,
    GROUP_SHIFT,
    ORDER,
    PHASE_SHIFT,
    REPORT,
    SOURCE_PHASE,
    BatchId,
    BatchInfo,
    ChainSpec,
    InputSpec,
    LevelSpec,
    OutputSpec,
    TaskEnvironment,
    TaskSettings,
)
from stateflow.state.backends.memory import DictBackend
from stateflow.types.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from stateflow.types.key_groups import key_hash
from stateflow.types.ttl_config import StateTtlConfig
from tests.state.test_state_kinds import Mean
from tests.support.errors import raises

M = 128
NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


class Row(msgspec.Struct):
    key: str | None
    number: int = 0


class Out(msgspec.Struct):
    key: str
    seen: int


class Trace(KeyedProcessFunction[Row, Any]):
    """Counts a key's rows in state; emits what was called."""

    def open(self, ctx: RuntimeContext) -> None:
        self.seen = ctx.get_state(ValueStateDescriptor("seen", int))

    def process_element(self, row: Any, ctx: Context) -> Iterator[Any]:
        seen = (self.seen.value() or 0) + 1
        self.seen.update(seen)
        yield "row", ctx.get_current_key(), row.number, seen

    def on_batch_end(self, ctx: Context) -> Iterator[Any]:
        yield "end", ctx.get_current_key(), self.seen.value()


def _chain(
    function: KeyedProcessFunction[Any, Any],
    row_class: type[Any] = Row,
    columns: Sequence[str] = ("key",),
    output: type[Any] = Out,
) -> ChainSpec:
    schema = RowSchema.of(row_class)
    types = tuple(schema.column(c).spark_type for c in columns)
    return ChainSpec(
        uid="op",
        inputs=(InputSpec("i0_", schema, Keying(tuple(columns), (), types)),),
        function=function,
        outputs=(OutputSpec("", (), RowSchema.of(output), (), None),),
        bases=(b"",),
    )


def _operator(chain: ChainSpec, store: DictBackend | None = None) -> KeyedOperator:
    return KeyedOperator(chain, TaskInfo("op", 0, 1, M, NOW), InitialState(store or DictBackend()))


def _order(values: tuple[Any, ...], types: Sequence[str]) -> int:
    """As both runners compute it: key group, then bits of the hash."""
    if None in values:
        return 0
    digest = key_hash(values, types)
    phase = SOURCE_PHASE << PHASE_SHIFT
    return phase | (digest % M) << GROUP_SHIFT | (digest % (1 << 64)) >> (64 - GROUP_SHIFT)


def _sorted(chain: ChainSpec, rows: Iterable[Any]) -> list[tuple[int, Any]]:
    assert chain.keying is not None
    columns, types = chain.keying.columns, chain.keying.types
    keyed = [(_order(tuple(getattr(r, c) for c in columns), types), r) for r in rows]
    return sorted(keyed, key=lambda item: item[0])


def _feed(operator: KeyedOperator, chain: ChainSpec, rows: Sequence[tuple[int, Any]]) -> list[Any]:
    order = np.array([o for o, _ in rows], dtype=np.int64)
    return operator.process(order, to_batch([r for _, r in rows], chain.inputs[0].schema).columns)


# -- keys and calls -----------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(["", "a", "b", "c\0", "é"]), max_size=20), st.sets(st.integers(0, 20)))
def test_wherever_batches_end_each_key_gets_its_rows_and_one_end(keys: list[str], cuts: set[int]) -> None:
    chain = _chain(Trace())
    rows = _sorted(chain, [Row(key, number) for number, key in enumerate(keys)])
    bounds = [0, *sorted(c for c in cuts if c < len(rows)), len(rows)]
    operator = _operator(chain)
    calls = []
    for start, end in pairwise(bounds):
        calls += _feed(operator, chain, rows[start:end])
    calls += operator.finish()

    expected: list[Any] = []
    for key, group in groupby([row for _, row in rows], key=lambda row: row.key):
        numbers = [row.number for row in group]
        expected += [("row", key, number, seen) for seen, number in enumerate(numbers, 1)]
        expected.append(("end", key, len(numbers)))
    assert calls == expected


def test_state_goes_on_in_the_next_batch_with_a_new_function_object() -> None:
    store = DictBackend()
    for batch in (1, 2):
        chain = _chain(Trace())
        operator = _operator(chain, store)
        calls = _feed(operator, chain, _sorted(chain, [Row("a"), Row("b")])) + operator.finish()
        assert {c[-1] for c in calls} == {batch}


def test_two_keys_with_one_order_are_kept_apart() -> None:
    """47 bits of a hash collide sooner or later; the sort then goes by key."""
    chain = _chain(Trace())
    rows = [(5 << GROUP_SHIFT, Row(key, n)) for n, key in enumerate(["a", "a", "b", "c", "c"])]
    operator = _operator(chain)
    calls = _feed(operator, chain, rows[:4]) + _feed(operator, chain, rows[4:]) + operator.finish()
    assert [c for c in calls if c[0] == "end"] == [("end", "a", 2), ("end", "b", 1), ("end", "c", 2)]


def test_a_batch_without_rows_calls_nothing() -> None:
    chain = _chain(Trace())
    operator = _operator(chain)
    assert _feed(operator, chain, []) == []
    assert operator.finish() == []


class Measured(msgspec.Struct):
    key: float
    number: int = 0


def test_nan_is_one_key_and_both_zeros_are_one() -> None:
    chain = _chain(Trace(), Measured)
    rows = _sorted(chain, [Measured(k) for k in (math.nan, 0.0, -math.nan, -0.0, math.nan)])
    operator = _operator(chain)
    calls = _feed(operator, chain, rows) + operator.finish()
    assert sorted(repr(c[2]) for c in calls if c[0] == "end") == ["2", "3"]


class Pair(msgspec.Struct, kw_only=True):
    a: str
    b: int
    number: int = 0


def test_a_key_of_several_columns_is_a_tuple() -> None:
    chain = _chain(Trace(), Pair, ("b", "a"))
    operator = _operator(chain)
    rows = _sorted(chain, [Pair(a="x", b=1), Pair(a="x", b=2), Pair(a="y", b=1)])
    calls = _feed(operator, chain, rows) + operator.finish()
    assert {c[1] for c in calls} == {(1, "x"), (2, "x"), (1, "y")}


def test_a_function_may_return_nothing_a_list_or_a_generator() -> None:
    class Mixed(KeyedProcessFunction[Row, Any]):
        def process_element(self, row: Row, ctx: Context) -> Iterable[Any] | None:
            return None if row.number == 0 else [row.number] * row.number

    chain = _chain(Mixed())
    operator = _operator(chain)
    assert _feed(operator, chain, _sorted(chain, [Row("a", n) for n in range(3)])) == [1, 2, 2]
    assert operator.finish() == []


class Fleeting(KeyedProcessFunction[Row, Any]):
    """What it knows of a key lives for a minute."""

    def open(self, ctx: RuntimeContext) -> None:
        minute = StateTtlConfig.new_builder(datetime.timedelta(minutes=1)).build()
        self.seen = ctx.get_reducing_state(ReducingStateDescriptor("seen", max, int, ttl=minute))
        self.all = ctx.get_list_state(ListStateDescriptor("all", int, ttl=minute))
        self.names = ctx.get_map_state(MapStateDescriptor("names", str, int, ttl=minute))
        self.mean = ctx.get_aggregating_state(AggregatingStateDescriptor("mean", Mean(), list[int], ttl=minute))

    def process_element(self, row: Row, ctx: Context) -> Iterator[Any]:
        self.seen.add(row.number)
        self.all.add(row.number)
        self.names.put(str(row.number), row.number)
        self.mean.add(row.number)
        yield self.seen.get(), list(self.all.get()), list(self.names.keys()), self.mean.get()


def test_state_lives_by_the_batch_s_time_and_the_clean_up_removes_what_is_left() -> None:
    chain, store = _chain(Fleeting()), DictBackend()

    def batch(epoch: int, seconds: int, *numbers: int) -> list[Any]:
        nonlocal chain
        now = NOW + datetime.timedelta(seconds=seconds)
        operator = KeyedOperator(chain, TaskInfo("op", 0, 1, M, now, epoch), InitialState(store))
        found = _feed(operator, chain, _sorted(chain, [Row("a", n) for n in numbers])) + operator.finish()
        operator.clean_up(1000)
        chain = dataclasses.replace(chain, known_states=tuple(operator.schemas))
        return found

    assert batch(1, 0, 8)[-1] == (8, [8], ["8"], 8.0)
    assert batch(2, 59, 4)[-1] == (8, [8, 4], ["4", "8"], 6.0)
    assert batch(3, 60, 2)[-1] == (8, [4, 2], ["2", "4"], 14 / 3)
    assert batch(4, 119) == []
    assert len(store.entries) == 2 * (1 + 1 + 1 + 1)
    assert batch(5, 120) == []
    assert store.entries == {}


# -- errors -------------------------------------------------------------------------------------------------------


def test_a_null_key_names_operator_column_and_row() -> None:
    chain = _chain(Trace())
    with raises(StateError, operator="op", column="key") as refused:
        _feed(_operator(chain), chain, _sorted(chain, [Row("a", 1), Row(None, 77), Row("b", 2)]))
    assert "77" in str(refused.value.facts["row"])


def test_a_null_that_the_row_class_rules_out_names_operator_column_and_row() -> None:
    chain = _chain(Trace())
    ((order, row),) = _sorted(chain, [Row("a", 1)])
    columns = [pa.array([row.key]), pa.array([None], pa.int64())]
    with raises(SchemaMismatch, operator="op", column="number") as refused:
        _operator(chain).process(np.array([order]), columns)
    assert "'key': 'a'" in str(refused.value.facts["row"])


@pytest.mark.parametrize(
    ("declared", "stored"),
    [
        (datetime.date, pa.array([19_000, 1 << 30], pa.date32())),
        (datetime.datetime, pa.array([0, 1 << 62], pa.timestamp("us", "UTC"))),
        (str, pa.Array.from_buffers(pa.string(), 2, pa.array([b"a", b"\xff"]).buffers())),
    ],
)
def test_a_key_that_cannot_be_read_names_operator_column_and_row(declared: type[Any], stored: pa.Array) -> None:
    row_class = msgspec.defstruct("Row", [("key", declared), ("number", int)])
    chain = _chain(Trace(), row_class)
    order = np.array([0, 1 << GROUP_SHIFT], dtype=np.int64)
    with raises(StateError, operator="op", columns=["key"]) as refused:
        _operator(chain).process(order, [stored, pa.array([5, 77])])
    row = str(refused.value.facts["row"])
    assert "77" in row and str(stored.type) in row


class Failing(Trace):
    """Raises in the method that it is told."""

    def __init__(self, where: str) -> None:
        self.where = where

    def open(self, ctx: RuntimeContext) -> None:
        super().open(ctx)
        self._maybe("open")

    def process_element(self, row: Row, ctx: Context) -> Iterator[Any]:
        if row.number == 13:
            self._maybe("process_element")
        yield from super().process_element(row, ctx)

    def on_batch_end(self, ctx: Context) -> Iterator[Any]:
        if ctx.get_current_key() == "b":
            self._maybe("on_batch_end")
        return iter(())

    def close(self) -> None:
        self._maybe("close")

    def _maybe(self, where: str) -> None:
        if where == self.where:
            raise LookupError("no such thing")


RAISING_LINE = inspect.getsourcelines(Failing._maybe)[1] + 2


@pytest.mark.parametrize(
    ("where", "key", "row"),
    [
        ("open", "None", "None"),
        ("process_element", "{'key': 'b'}", "Row(key='b', number=13)"),
        ("on_batch_end", "{'key': 'b'}", "None"),
        ("close", "None", "None"),
    ],
)
def test_an_error_of_the_user_names_operator_key_row_and_line(where: str, key: str, row: str) -> None:
    chain = _chain(Failing(where))
    with raises(UserCodeError, operator="op", key=key, row=row, where=f"{__file__}:{RAISING_LINE}") as raised:
        operator = _operator(chain)
        _feed(operator, chain, _sorted(chain, [Row("a", 12), Row("b", 13)]))
        operator.finish()
    assert all(datum in raised.value.sentence for datum in (where, "LookupError", "no such thing"))
    assert isinstance(raised.value.__cause__, LookupError)


def test_an_error_of_ours_passes_as_it_is() -> None:
    class Misuse(KeyedProcessFunction[Row, Any]):
        def open(self, ctx: RuntimeContext) -> None:
            ctx.get_state(ValueStateDescriptor("x", int)).update(1)

    with raises(StateError):
        _operator(_chain(Misuse()))


# -- as a task ----------------------------------------------------------------------------------------------------


class Emits(KeyedProcessFunction[Row, Any]):
    """Emits whatever it was made with; remembers in a file that it was closed."""

    def __init__(self, emitted: Any, log: Path) -> None:
        self.emitted = emitted
        self.log = log

    def process_element(self, row: Row, ctx: Context) -> list[Any]:
        return [self.emitted]

    def close(self) -> None:
        with self.log.open("a") as file:
            file.write("closed\n")


def _run_task(function: KeyedProcessFunction[Any, Any], tmp_path: Path) -> TaskReport:
    """One task over two rows of one key; returns what it reported."""
    chain = _chain(function)
    batch = BatchInfo(
        BatchId(ManualClock(1).new_id(), 1, 1, NOW),
        TaskSettings(M),
        TaskEnvironment((tmp_path / "root").as_uri(), tmp_path / "local"),
    )
    spec = LevelSpec(batch, 1, (chain,), (), 0, pa.schema([pa.field(REPORT, pa.binary())]))
    rows = _sorted(chain, [Row("a", 1), Row("a", 2)])
    columns = to_batch([r for _, r in rows], chain.inputs[0].schema).columns
    names = [ORDER, CONTROL, *(n for n in chain.inputs[0].columns)]
    barrier = msgspec.msgpack.encode(Barrier(1, 1))
    given = [
        pa.RecordBatch.from_arrays([pa.array([o for o, _ in rows]), pa.nulls(2, pa.binary()), *columns], names=names),
        pa.RecordBatch.from_arrays(
            [
                pa.array([BARRIER_ORDER]),
                pa.array([barrier]),
                *(pa.nulls(1, c.arrow_type) for c in chain.inputs[0].schema.columns),
            ],
            names=names,
        ),
    ]
    (answer,) = run_level(spec, 0, "a1", given)
    return msgspec.msgpack.decode(answer.column(REPORT)[0].as_py(), type=TaskReport)


def _failure(report: TaskReport) -> StateflowError:
    assert report.failure is not None and report.state is None
    return report.failure.to_error()


@pytest.mark.parametrize(
    ("emitted", "column"),
    [
        (Row("a", 1), "seen"),
        (Out("a", "many"), "seen"),
        (Out(7, 1), "key"),
        ({"key": "a", "seen": 1}, "key"),  # type: ignore[arg-type]
        (Out("a", 1 << 70), "seen"),
        (Out("a", 1.5), "seen"),
        (Out(None, 1), "key"),  # type: ignore[arg-type]
    ],
)
def test_a_row_that_is_not_of_the_output_class_names_the_column(tmp_path: Path, emitted: Any, column: str) -> None:
    error = _failure(_run_task(Emits(emitted, tmp_path / "log"), tmp_path))
    assert isinstance(error, SchemaMismatch)
    assert error.facts["column"] == column


def test_a_function_is_closed_once_also_after_a_failure(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert _run_task(Emits(Out("a", 1), log), tmp_path).failure is None
    assert log.read_text() == "closed\n"
    _failure(_run_task(Emits("no row", log), tmp_path / "again"))
    assert log.read_text() == "closed\nclosed\n"


def test_a_failed_task_leaves_no_store_behind(tmp_path: Path) -> None:
    _failure(_run_task(Emits("no row", tmp_path / "log"), tmp_path))
    stores = list((tmp_path / "local").glob("*/op/0/work/*"))
    assert stores == []
