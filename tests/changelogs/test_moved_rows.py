"""Rows that move between keys of an operator: a sink by another key has the rows that are left, in whatever order."""

from __future__ import annotations

import math
import struct
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from stateflow import DeltaSink, KafkaSink, RowKind, StreamExecutionEnvironment
from stateflow.api.changelog import Changelog
from stateflow.api.schema import RowSchema
from stateflow.api.sink import Writing
from stateflow.connectors.delta import versions
from stateflow.connectors.kafka.sink import KafkaTable
from stateflow.connectors.upserts import UpsertSettings, find_retracted, winning_rows
from tests.changelogs.seats import Move, SeatChange, Seats, as_texts, histories
from tests.support.delta_tables import context, write
from tests.support.examples import one_in
from tests.support.local_jobs import Growing, LocalJobs

CHANGES = Changelog(row_kind="kind", retracts=True)


def _rows(folder: Path) -> list[dict[str, Any]]:
    files = DeltaTable(str(folder)).file_uris() if folder.exists() else []
    return [row for name in files for row in pq.read_table(name, partitioning=None).to_pylist()]


@one_in(12)
@given(histories, st.integers(1, 3), st.booleans())
def test_a_delta_table_has_the_rows_that_are_not_retracted(
    history: list[list[Move]], parallelism: int, large: bool
) -> None:
    seats = Seats()
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        # Each file is written again by itself, or all of them together.
        patch.setattr(versions, "_COMBINED_BYTES", 0 if large else 1 << 30)
        folder, about = Path(name) / "table", context(SeatChange)
        sink = DeltaSink(folder, mode="upsert", keys="seat").for_changelog(CHANGES)
        sink.prepare(about)
        for token, moves in enumerate(history, 1):
            parts: list[list[SeatChange]] = [[] for _ in range(parallelism)]
            for move in moves:
                parts[move[0] % parallelism] += seats.move(move)
            files = [
                file
                for subtask, rows in enumerate(parts)
                for file in (write(sink, about, rows, Writing(1, token, subtask, "a")) if rows else [])
            ]
            assert sink.open_table(about).commit(token, files) is not None
            assert as_texts(_rows(folder)) == seats.table


@given(histories, st.randoms(use_true_random=False))
def test_the_rows_of_a_checkpoint_cancel_in_any_order_of_tasks(history: list[list[Move]], random: Any) -> None:
    seats, settings_by_content = Seats(), UpsertSettings(("seat",), row_kind="kind", by_content=True)
    changes = [(move[0], change) for moves in history for move in moves for change in seats.move(move)]
    order = random.sample(range(4), 4)
    changes.sort(key=lambda each: order.index(each[0]))
    rows = [msgspec.to_builtins(change) for _, change in changes]
    found = winning_rows(pa.Table.from_pylist(rows, RowSchema.of(SeatChange).arrow), settings_by_content).to_pylist()
    # Into a table without rows, so none is deleted.
    assert as_texts(found) == seats.table


def test_a_null_of_a_row_that_is_older_than_the_column_is_any_value() -> None:
    class Old(msgspec.Struct):
        seat: int
        user: int
        note: float | None

    schema = RowSchema.of(Old)
    stored = pa.table({"seat": [1, 2, 3], "user": [None, None, 7], "note": [None, None, None]}, schema.arrow)
    taken = pa.table({"seat": [1, 2, 3], "user": [5, 6, 8], "note": [None, 1.0, None]}, schema.arrow)
    found = find_retracted(stored, taken, UpsertSettings(("seat",)), schema)
    # The note of the second row may be null in rows, and the user of the third one differs.
    assert np.array_equal(found, [True, False, False])


def test_a_row_is_deleted_whatever_the_order_of_its_dicts_and_the_bits_of_nan() -> None:
    class Noted(msgspec.Struct):
        seat: int
        notes: dict[int, list[float]]

    schema = RowSchema.of(Noted)
    (negative_nan,) = struct.unpack("<d", (0xFFF8 << 48).to_bytes(8, "little"))
    notes = [[(1, [0.0]), (2, [math.nan])], [(1, [0.5])]]
    others = [[(2, [negative_nan]), (1, [-0.0])], []]
    stored, taken = (pa.table({"seat": [1, 2], "notes": each}, schema.arrow) for each in (notes, others))
    found = find_retracted(stored, taken, UpsertSettings(("seat",)), schema)
    assert np.array_equal(found, [True, False])


def test_a_changelog_in_kafka_has_no_record_of_a_row_that_was_retracted() -> None:
    sink = KafkaSink("localhost:1", topic="t", key="seat").for_changelog(CHANGES)
    assert isinstance(sink, KafkaSink)
    table = KafkaTable.__new__(KafkaTable)
    table.context, table._layout, table._cancels = context(SeatChange), sink._settings.layout, sink._settings.cancels
    seats = Seats()
    changes = [row for move in [(1, 1, None), (1, 2, None), (2, 1, None)] for row in seats.move(move)]
    # The task of the second user comes first.
    changes.sort(key=lambda row: -row.user)
    rows = pa.RecordBatch.from_pylist([msgspec.to_builtins(row) for row in changes], RowSchema.of(SeatChange).arrow)
    table.staged_rows = lambda committables: iter([rows])  # type: ignore[method-assign]
    found = {record.key: record.value for record in table._records([])}
    assert set(found) == {b"1", b"2"} and b'"user":2' in (found[b"1"] or b"") and b'"user":1' in (found[b"2"] or b"")


class Bid(msgspec.Struct, frozen=True):
    item: int
    bidder: int
    price: int


class BidChange(msgspec.Struct, frozen=True):
    kind: RowKind
    item: int
    bidder: int
    price: int


@one_in(12)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), min_size=1, max_size=25),
    st.integers(1, 3),
    st.integers(1, 8),
)
def test_bidders_that_move_between_the_best_of_items(steps: list[tuple[int, int]], parallelism: int, size: int) -> None:
    best: dict[int, list[Bid]] = {item: [] for item in range(3)}
    rows = []
    for price, (item, pick) in enumerate(steps):
        # A bidder is among the best of one item: six of seven at most.
        free = sorted(set(range(7)) - {bid.bidder for bids in best.values() for bid in bids})
        rows.append(Bid(item, free[pick % len(free)], price))
        best[item] = [*best[item], rows[-1]][-2:]

    def build(env: StreamExecutionEnvironment) -> None:
        bids = env.from_source(Growing(rows, Bid), uid="bids").key_by("item")
        changes = bids.top_n(2, order_by=[("price", "desc")], output=BidChange, uid="best")
        changes.sink_to(DeltaSink(folder / "table", mode="upsert", keys="bidder"), uid="table")

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        LocalJobs(folder, parallelism=parallelism, source__max_rows_per_batch=size).run(build)
        expected = {msgspec.structs.astuple(bid) for bids in best.values() for bid in bids}
        assert {(row["item"], row["bidder"], row["price"]) for row in _rows(folder / "table")} == expected
