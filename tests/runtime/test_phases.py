"""The output of a task has the phase of the row that it processed."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from stateflow import Context, KeyedBroadcastProcessFunction, KeyedProcessFunction
from stateflow.api.graph.nodes import Keying
from stateflow.api.schema import RowSchema
from stateflow.clock import ManualClock
from stateflow.runtime.task import store_cache
from stateflow.runtime.task.barriers import Barrier
from stateflow.runtime.task.task import run_level
from stateflow.runtime.task_spec import (
    BARRIER_ORDER,
    BROADCAST_ORDER,
    CONTROL,
    GROUP_SHIFT,
    INPUT,
    ORDER,
    OUTPUT_NUMBER,
    PHASE,
    PHASE_SHIFT,
    POSITION,
    TARGET,
    BatchId,
    BatchInfo,
    ChainSpec,
    InputSpec,
    LevelSpec,
    OutputSpec,
    TaskEnvironment,
    TaskSettings,
)


class Row(msgspec.Struct):
    number: int


SCHEMA = RowSchema.of(Row)
INPUTS = pa.schema(
    {ORDER: pa.int64(), INPUT: pa.int64(), CONTROL: pa.binary(), "i0_number": pa.int64(), "i1_number": pa.int64()}
)
OUTPUT = pa.schema(
    {
        OUTPUT_NUMBER: pa.int32(),
        TARGET: pa.int64(),
        POSITION: pa.int64(),
        PHASE: pa.int64(),
        CONTROL: pa.binary(),
        "u0_number": pa.int64(),
    }
)
BARRIER = {ORDER: BARRIER_ORDER, INPUT: 0, CONTROL: msgspec.msgpack.encode(Barrier(1, 1))}


class Echo(KeyedProcessFunction[Row, Row]):
    """Emits each row."""

    def process_element(self, row: Row, ctx: Context) -> Iterator[Row]:
        yield row


class EchoBoth(KeyedBroadcastProcessFunction[Row, Row, Row]):
    """Emits each row of both streams."""

    def process_element(self, row: Row, ctx: Context) -> Iterator[Row]:
        yield row

    def process_broadcast_element(self, row: Row, ctx: Context) -> Iterator[Row]:
        yield Row(-row.number)


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    store_cache.close_all()


def _emitted(folder: Path, function: Any, rows: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """Number and phase of the rows that a task emits for rows with (order, input, number)."""
    keying = Keying(("number",), (), ("bigint",)) if function else None
    inputs = [InputSpec("i0_", SCHEMA, keying)]
    if isinstance(function, KeyedBroadcastProcessFunction):
        inputs.append(InputSpec("i1_", SCHEMA, None))
    chain = ChainSpec("op", tuple(inputs), function, (OutputSpec("", (), SCHEMA, (), 0),), (b"",))
    batch = BatchInfo(
        BatchId(ManualClock(1).new_id(), 1, 1, datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)),
        TaskSettings(1),
        TaskEnvironment((folder / "root").as_uri(), folder / "local"),
    )
    given = [{ORDER: order, INPUT: i, f"i{i}_number": number} for order, i, number in rows]
    table = pa.RecordBatch.from_pylist([*given, BARRIER], INPUTS)
    made = pa.Table.from_batches(list(run_level(LevelSpec(batch, 1, (chain,), (), 1, OUTPUT), 0, "a", [table])), OUTPUT)
    return [(row["u0_number"], row[PHASE]) for row in made.to_pylist() if row[OUTPUT_NUMBER] is not None]


def _order(phase: int, number: int) -> int:
    return phase << PHASE_SHIFT | number


ROWS = [(_order(0, 1), 0, 1), (_order(0, 2), 0, 2), (_order(1, 1), 0, 1), (_order(1, 3), 0, 3)]


@pytest.mark.parametrize("function", [None, Echo()], ids=["relay", "operator"])
def test_output_has_the_phase_of_the_input(tmp_path: Path, function: Any) -> None:
    emitted = _emitted(tmp_path, function, ROWS)
    assert emitted == [(1, 0), (2, 0), (1, 1), (3, 1)]


def test_broadcast_rows_come_first_and_their_output_is_of_phase_1(tmp_path: Path) -> None:
    rows = [(BROADCAST_ORDER, 1, 7), (BROADCAST_ORDER, 1, 8), *ROWS[1:3]]
    assert _emitted(tmp_path, EchoBoth(), rows) == [(-7, 1), (-8, 1), (2, 0), (1, 1)]


def test_every_order_is_below_that_of_a_barrier() -> None:
    highest = 1 << PHASE_SHIFT | ((1 << 15) - 1) << GROUP_SHIFT | ((1 << GROUP_SHIFT) - 1)
    assert highest < BARRIER_ORDER
    assert highest.bit_length() == PHASE_SHIFT + 1
