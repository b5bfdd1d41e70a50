"""What a task emits has the phase of the rows that it was applying."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from stateflow import Context, KeyedBroadcastProcessFunction, KeyedProcessFunction
from stateflow.api.graph import Keying
from stateflow.api.schema import RowSchema
from stateflow.clock import ManualClock
from stateflow.runtime.executor import (
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
from stateflow.runtime.task import store_cache
from stateflow.runtime.task.outputs import BarrierMessage
from stateflow.runtime.task.row_conversion import to_batch
from stateflow.runtime.task.task import run_level


class Row(msgspec.Struct):
    number: int


SCHEMA = RowSchema.of(Row)
OUTPUT = pa.schema(
    [
        (OUTPUT_NUMBER, pa.int32()),
        (TARGET, pa.int64()),
        (POSITION, pa.int64()),
        (PHASE, pa.int64()),
        (CONTROL, pa.binary()),
        ("u0_number", pa.int64()),
    ]
)


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


def _emitted(folder: Path, function: Any, keyed: bool, rows: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """(number, phase) of what a task emits for rows with (order, input, number)."""
    keying = Keying(("number",), (), ("bigint",)) if keyed else None
    inputs = [InputSpec("i0_", SCHEMA, keying)]
    if isinstance(function, KeyedBroadcastProcessFunction):
        inputs.append(InputSpec("i1_", SCHEMA, None))
    chain = ChainSpec("op", tuple(inputs), function, (OutputSpec("", (), SCHEMA, (), 0),), (b"",))
    batch = BatchInfo(
        BatchId(ManualClock(1).new_id(), 1, 1, datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)),
        TaskSettings(1),
        TaskEnvironment((folder / "root").as_uri(), folder / "local"),
    )
    barrier = msgspec.msgpack.encode(BarrierMessage(1, 1))
    given: dict[str, Any] = {
        ORDER: [o for o, _, _ in rows] + [BARRIER_ORDER],
        INPUT: [i for _, i, _ in rows] + [0],
        CONTROL: [None] * len(rows) + [barrier],
    }
    columns = to_batch([Row(n) for _, _, n in rows], SCHEMA).column("number").to_pylist()
    for at, spec in enumerate(inputs):
        own = [n if i == at else None for (_, i, _), n in zip(rows, columns, strict=True)]
        given[spec.columns[0]] = pa.array([*own, None], pa.int64())
    table = pa.RecordBatch.from_pydict(given)
    made = pa.Table.from_batches(list(run_level(LevelSpec(batch, 1, (chain,), (), 1, OUTPUT), 0, "a", [table])), OUTPUT)
    emitted = zip(*(made.column(c).to_pylist() for c in (OUTPUT_NUMBER, "u0_number", PHASE)), strict=True)
    return [(number, phase) for output, number, phase in emitted if output is not None]


def _order(phase: int, number: int) -> int:
    return phase << PHASE_SHIFT | number


ROWS = [(_order(0, 1), 0, 1), (_order(0, 2), 0, 2), (_order(1, 1), 0, 1), (_order(1, 3), 0, 3)]


@pytest.mark.parametrize("function", [None, Echo()], ids=["relay", "operator"])
def test_rows_of_both_phases_are_emitted_in_their_own_phase(tmp_path: Path, function: Any) -> None:
    emitted = _emitted(tmp_path, function, function is not None, ROWS)
    assert emitted == [(1, 0), (2, 0), (1, 1), (3, 1)]


def test_broadcast_rows_come_first_and_what_they_make_is_of_phase_1(tmp_path: Path) -> None:
    rows = [(BROADCAST_ORDER, 1, 7), (BROADCAST_ORDER, 1, 8), *ROWS[1:3]]
    assert _emitted(tmp_path, EchoBoth(), True, rows) == [(-7, 1), (-8, 1), (2, 0), (1, 1)]


def test_every_order_is_below_that_of_a_barrier() -> None:
    highest = 1 << PHASE_SHIFT | ((1 << 15) - 1) << GROUP_SHIFT | ((1 << GROUP_SHIFT) - 1)
    assert highest < BARRIER_ORDER
    assert highest.bit_length() == PHASE_SHIFT + 1
