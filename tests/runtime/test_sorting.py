"""The sort of a task's input."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow import Context, KeyedProcessFunction
from stateflow.api.graph import Keying
from stateflow.api.schema import RowSchema
from stateflow.api.streams.data_stream import DataStream
from stateflow.errors import BatchFailed
from stateflow.runtime.executor import BARRIER_ORDER, CONTROL, INPUT, ORDER, POSITION, TARGET, ChainSpec, InputSpec
from stateflow.runtime.spark.sorting import SortSettings, sort_input
from tests.support.errors import raises
from tests.support.local_jobs import LocalJobs

MUCH = 1 << 30


class Row(msgspec.Struct):
    key: int
    text: str
    at: float | None


@dataclass(frozen=True)
class Sent:
    order: int
    position: int
    row: Row
    number: int = 0

    @property
    def rank(self) -> tuple[Any, ...]:
        """The promised order; a time is null, a number, or NaN."""
        at = self.row.at
        time = (0, 0.0) if at is None else (2, 0.0) if math.isnan(at) else (1, at)
        return (self.order, self.row.key, self.row.text, time, self.number, self.position)


def _chain(order_by: tuple[str, ...] = (), inputs: int = 1) -> ChainSpec:
    keying = Keying(("key", "text"), order_by, ("bigint", "string"))
    schema = RowSchema.of(Row)
    return ChainSpec("op", tuple(InputSpec(f"i{n}_", schema, keying) for n in range(inputs)), None, (), (b"",))


def _batch(sent: Sequence[Sent], inputs: int = 1, barriers: int = 0) -> pa.RecordBatch:
    """A batch as Spark passes it."""
    columns = {
        TARGET: pa.array([0] * (len(sent) + barriers), pa.int32()),
        ORDER: pa.array([s.order for s in sent] + [BARRIER_ORDER] * barriers, pa.int64()),
        POSITION: pa.array([s.position for s in sent] + [0] * barriers, pa.int64()),
        CONTROL: pa.array([None] * len(sent) + [b"end"] * barriers, pa.binary()),
    }
    if inputs > 1:
        columns[INPUT] = pa.array([s.number for s in sent] + [0] * barriers, pa.int32())
    for number in range(inputs):
        for name, kind in (("key", pa.int64()), ("text", pa.string()), ("at", pa.float64())):
            values = [getattr(s.row, name) if s.number == number else None for s in sent]
            columns[f"i{number}_{name}"] = pa.array(values + [None] * barriers, kind)
    return pa.RecordBatch.from_pydict(columns)


def _positions(batches: Iterable[pa.RecordBatch]) -> list[int]:
    return [p for batch in batches if CONTROL not in batch.schema.names for p in batch.column(POSITION).to_pylist()]


def _space(folder: Path, memory: int = MUCH) -> SortSettings:
    return SortSettings(memory, folder / "local")


_ORDERS = st.one_of(
    st.integers(0, 3), st.sampled_from([-1, 1 << 61, (1 << 61) + 1, (1 << 61) + 2, (1 << 62) - 1, (1 << 62) - 2])
)
"""Some that differ in their lowest bits only, far apart from others: both do not fit into one number with a place."""
_ROWS = st.builds(
    Row, st.integers(0, 2), st.sampled_from("ab"), st.none() | st.sampled_from([0.0, -1.0, 2.5, math.inf, math.nan])
)


@st.composite
def _sendings(draw: st.DrawFn, inputs: int = 1) -> list[list[Sent]]:
    """Rows, each with a position of its own, in batches."""
    rows = draw(st.lists(st.tuples(_ORDERS, _ROWS, st.integers(0, inputs - 1)), max_size=40))
    positions = draw(st.permutations(range(len(rows))))
    sent = [Sent(order, at, row, number) for (order, row, number), at in zip(rows, positions, strict=True)]
    cuts = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=6)))
    return [sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]


@pytest.mark.long(reason="random rows, sorted on disk as well")
@pytest.mark.parametrize("memory", [1, 2000, MUCH])
@pytest.mark.parametrize("inputs", [1, 2])
@given(data=st.data())
def test_rows_are_sorted_by_order_key_declared_order_and_arrival(
    tmp_path_factory: pytest.TempPathFactory, inputs: int, memory: int, data: st.DataObject
) -> None:
    """Without a declared order, by order, key and arrival."""
    space = _space(tmp_path_factory.getbasetemp() / "sorted", memory)
    batches = data.draw(_sendings(inputs))
    sent = [each for batch in batches for each in batch]
    given_batches = [_batch(batch, inputs) for batch in batches]
    made = sort_input(_chain(("at",), inputs), space, given_batches)
    assert _positions(made) == [s.position for s in sorted(sent, key=lambda s: s.rank)]
    if inputs == 1:
        made = sort_input(_chain(), space, given_batches)
        arrival = sorted(sent, key=lambda s: (s.order, s.row.key, s.row.text, s.position))
        assert _positions(made) == [s.position for s in arrival]


def _many(count: int) -> list[Sent]:
    rng = np.random.default_rng(1)
    keys = rng.integers(0, 50, count).tolist()
    return [Sent((1 << 61) + key, at, Row(key, "a", 0.0)) for at, key in enumerate(keys)]


def _came(rows: int, size: int) -> list[pa.RecordBatch]:
    sent = _many(rows)
    return [_batch(sent[at : at + size]) for at in range(0, rows, size)]


@pytest.mark.long(reason="sorts many rows in little memory")
def test_runs_of_several_blocks_are_merged(tmp_path: Path) -> None:
    """Four runs of some 20,000 rows; a block of each has some 300."""
    came = _came(80_000, 1000)
    memory = 20 * (2 * came[0].nbytes + 24 * 1000)
    made = sort_input(_chain(), _space(tmp_path, memory), came)
    expected = sorted(_many(80_000), key=lambda s: (s.order, s.position))
    assert _positions(made) == [s.position for s in expected]


def test_barriers_come_last_and_unneeded_columns_are_dropped(tmp_path: Path) -> None:
    sent = _many(10)
    came = [_batch(sent[:5], barriers=1), _batch([], barriers=2), _batch(sent[5:])]
    *rows, first, second = sort_input(_chain(), _space(tmp_path), came)
    assert sum(map(len, rows)) == 10
    assert first.column(CONTROL).to_pylist() == [b"end"] and second.column(CONTROL).to_pylist() == [b"end"] * 2
    (narrow,) = sort_input(_chain(), _space(tmp_path), [_batch(sent, inputs=2)])
    assert narrow.schema.names == [ORDER, POSITION, INPUT, "i0_key", "i0_text", "i0_at"]


def test_the_file_of_a_run_has_no_name_and_an_unusable_folder_is_reported(tmp_path: Path) -> None:
    came, local = _came(300, 100), tmp_path / "local"
    next(iter(sort_input(_chain(), _space(tmp_path, memory=1), came)))
    assert list(local.iterdir()) == [], "nothing is left even when the task dies now"
    local.rmdir()
    local.write_text("not a folder")
    with raises(BatchFailed, folder=str(local)) as failed:
        list(sort_input(_chain(), _space(tmp_path, memory=1), came))
    assert "shuffle.sort_memory_bytes" in failed.value.hint


@pytest.mark.long(reason="sorts many rows in little memory")
def test_rows_take_no_more_memory_than_the_limit(tmp_path: Path) -> None:
    """Without the received batch."""
    memory = 4 << 20
    sent = _many(2000)
    batch = _batch(sent)

    def coming() -> Iterator[pa.RecordBatch]:
        for at in range(200):
            moved = pa.array(batch.column(POSITION).to_numpy() + at * 2000)
            again = batch.take(pa.array(range(2000)))  # with memory of its own
            yield again.set_column(batch.schema.get_field_index(POSITION), POSITION, moved)
            held.append(pa.total_allocated_bytes() - before)

    before, held = pa.total_allocated_bytes(), [0]
    for made in sort_input(_chain(), _space(tmp_path, memory), coming()):
        held.append(pa.total_allocated_bytes() - before)
        assert len(made)
    assert 200 * batch.nbytes > 3 * memory
    assert memory / 4 < max(held) < memory


class Same(KeyedProcessFunction[Row, Row]):
    def process_element(self, row: Row, ctx: Context) -> tuple[Row]:
        return (row,)


def test_rows_without_spark_have_the_same_order(jobs: LocalJobs) -> None:
    rows = [Row(1, "a", at) for at in (1.0, math.nan, None, -math.inf, math.inf)]

    def ordered(stream: DataStream) -> DataStream:
        return stream.key_by("key", order_by="at").process(Same(), output=Row, uid="op")

    jobs.apply(rows, ordered, source__max_rows_per_batch=9)
    assert str([at for _, _, at in jobs.rows()]) == "[None, -inf, 1.0, inf, nan]"
