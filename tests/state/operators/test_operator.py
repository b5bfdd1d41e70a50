"""A keyed operator over Arrow batches: which rows and calls belong to which key, and what errors name."""

from __future__ import annotations

import datetime
import inspect
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.api.functions.process import Context, KeyedProcessFunction, RuntimeContext
from stateflow.checkpoint.barriers import TaskReport
from stateflow.clock import ManualClock
from stateflow.errors import SchemaMismatch, StateError, StateflowError, UserCodeError
from stateflow.runtime.executor import (
    BARRIER_ORDER,
    CONTROL,
    GROUP_SHIFT,
    ORDER,
    REPORT,
    BatchId,
    BatchInfo,
    LevelSpec,
    TaskEnvironment,
    TaskSettings,
)
from stateflow.runtime.task.outputs import BarrierMessage
from stateflow.runtime.task.task import run_level
from stateflow.state.backends.hash_maps import DictBackend
from stateflow.types.descriptors import AggregatingStateDescriptor, ListStateDescriptor, ValueStateDescriptor
from stateflow.types.ttl_config import StateTtlConfig, Time
from tests.support.errors import raises
from tests.support.operators import MAX_PARALLELISM, NOW, Mean, Row, chain_of, keyed_operator, outputs_of, pieces_of


class Out(msgspec.Struct):
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


class Measured(msgspec.Struct):
    key: float | None
    number: int = 0


def test_nan_is_one_key_both_zeros_are_one_and_null_is_another() -> None:
    chain = chain_of(Trace(), Measured)
    rows = [Measured(k) for k in (math.nan, 0.0, None, -math.nan, -0.0, math.nan)]
    calls = outputs_of(keyed_operator(chain), pieces_of(chain, rows))
    assert sorted(c[2] for c in calls if c[0] == "end") == [1, 2, 3]


def test_a_function_may_return_none_or_a_list() -> None:
    class Mixed(KeyedProcessFunction[Row, Any]):
        def process_element(self, row: Row, ctx: Context) -> Iterable[Any] | None:
            return None if row.number == 0 else [row.number] * row.number

    chain = chain_of(Mixed())
    assert outputs_of(keyed_operator(chain), pieces_of(chain, [Row("a", n) for n in range(3)])) == [1, 2, 2]


class Fleeting(KeyedProcessFunction[Row, Any]):
    """What it knows of a key lives for a minute."""

    def open(self, ctx: RuntimeContext) -> None:
        minute = StateTtlConfig.new_builder(Time.minutes(1)).build()
        self.all = ctx.get_list_state(ListStateDescriptor("all", int, ttl=minute))
        self.mean = ctx.get_aggregating_state(AggregatingStateDescriptor("mean", Mean(), list[int], ttl=minute))

    def process_element(self, row: Row, ctx: Context) -> Iterator[Any]:
        self.all.add(row.number)
        self.mean.add(row.number)
        yield list(self.all.get()), self.mean.get()


def test_state_expires_by_the_time_of_the_batch_and_the_cleanup_removes_what_is_left() -> None:
    chain, store = chain_of(Fleeting()), DictBackend()
    for second, numbers, found, entries in (
        (1, [8], [([8], 8.0)], 4),
        (60, [4], [([8, 4], 6.0)], 6),
        (61, [2], [([4, 2], 14 / 3)], 6),
        (120, [], [], 4),
        (121, [], [], 0),
    ):
        operator = keyed_operator(chain, store, batch=second)
        assert outputs_of(operator, pieces_of(chain, [Row("a", n) for n in numbers])) == found
        operator.ttl_cleanup().remove_some(1000)
        chain = replace(chain, known_states=tuple(operator.schemas))
        assert len(store.entries) == entries


def test_a_null_that_the_row_class_rules_out_names_operator_column_and_row() -> None:
    columns = [pa.array(["a"]), pa.array([None], pa.int64())]
    with raises(SchemaMismatch, operator="op", column="number") as refused:
        keyed_operator(chain_of(Trace())).process(np.array([0]), columns)
    assert "'key': 'a'" in str(refused.value.facts["row"])


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


class Failing(KeyedProcessFunction[Row, Any]):
    """Raises in the given method, for the key "b" if it has one."""

    def __init__(self, where: str) -> None:
        self.where = where

    def open(self, ctx: RuntimeContext) -> None:
        self._maybe("open")

    def process_element(self, row: Row, ctx: Context) -> None:
        self._maybe(f"process_element of {row.key}")

    def on_batch_end(self, ctx: Context) -> None:
        self._maybe(f"on_batch_end of {ctx.get_current_key()}")

    def close(self) -> None:
        self._maybe("close")

    def _maybe(self, where: str) -> None:
        if where in (self.where, f"{self.where} of b"):
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
    chain = chain_of(Failing(where))
    with raises(UserCodeError, operator="op", key=key, row=row, where=f"{__file__}:{RAISING_LINE}") as raised:
        outputs_of(keyed_operator(chain), pieces_of(chain, [Row("a", 12), Row("b", 13)]))
    assert all(datum in raised.value.sentence for datum in (where, "LookupError", "no such thing"))
    assert isinstance(raised.value.__cause__, LookupError)


def test_an_error_of_stateflow_in_a_function_is_raised_unchanged() -> None:
    class Misuse(KeyedProcessFunction[Row, Any]):
        def open(self, ctx: RuntimeContext) -> None:
            ctx.get_state(ValueStateDescriptor("x", int)).update(1)

    with raises(StateError):
        keyed_operator(chain_of(Misuse()))


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


def _run_task(emitted: Any, folder: Path) -> StateflowError | None:
    """Runs one task over two rows of one key, of which each emits `emitted`; returns the failure that it reports."""
    chain = chain_of(Emits(emitted, folder / "log"), output=Out)
    batch = BatchInfo(
        BatchId(ManualClock(1).new_id(), 1, 1, NOW),
        TaskSettings(MAX_PARALLELISM),
        TaskEnvironment((folder / "root").as_uri(), folder / "local"),
    )
    spec = LevelSpec(batch, 1, (chain,), (), 0, pa.schema([pa.field(REPORT, pa.binary())]))
    ((order, columns),) = pieces_of(chain, [Row("a", 1), Row("a", 2)])
    names = [ORDER, CONTROL, *chain.inputs[0].columns]
    barrier = pa.array([msgspec.msgpack.encode(BarrierMessage(1, 1))])
    given = [
        pa.RecordBatch.from_arrays([pa.array(order), pa.nulls(2, pa.binary()), *columns], names=names),
        pa.RecordBatch.from_arrays(
            [pa.array([BARRIER_ORDER]), barrier, *(pa.nulls(1, c.type) for c in columns)], names=names
        ),
    ]
    (answer,) = run_level(spec, 0, "a1", given)
    report = msgspec.msgpack.decode(answer.column(REPORT)[0].as_py(), type=TaskReport)
    assert report.failure is None or report.state is None
    return report.failure.to_error() if report.failure else None


def test_a_function_is_closed_once_and_a_failed_task_leaves_no_store(tmp_path: Path) -> None:
    assert _run_task(Out("a", 1), tmp_path) is None
    assert (tmp_path / "log").read_text() == "closed\n"
    text: Any = "many"
    assert isinstance(_run_task(Out("a", text), tmp_path), SchemaMismatch)
    assert (tmp_path / "log").read_text() == "closed\nclosed\n"
    assert list((tmp_path / "local").glob("*/op/0/work/*")) == []
