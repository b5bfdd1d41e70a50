"""The newest row of each key of a changelog with several rows of a key: cases, and random histories against a list."""

from __future__ import annotations

import math
import struct
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow import RowKind, StateTtlConfig
from stateflow.api.streams.data_stream import DataStream
from stateflow.errors import IncompatibleState, JobDefinitionError
from stateflow.testing import KeyedHarness, KeyedInput
from tests.joins.joined_rows import unkeyed
from tests.support.errors import raises
from tests.support.examples import one_in

ADD, UB, UA, D = RowKind.INSERT, RowKind.UPDATE_BEFORE, RowKind.UPDATE_AFTER, RowKind.DELETE


class Seat(msgspec.Struct, frozen=True):
    kind: RowKind
    seat: int
    user: int


class Plain(msgspec.Struct, frozen=True):
    seat: int
    user: int


TTL = StateTtlConfig.new_builder(timedelta(milliseconds=10)).build()


def _materialized(seats: Any, ttl: StateTtlConfig | None = None) -> DataStream:
    made: DataStream = seats.materialize(ttl=ttl, uid="seats")
    return made


def _harness(ttl: StateTtlConfig | None = None) -> KeyedHarness:
    return KeyedHarness(lambda seats: _materialized(seats, ttl), KeyedInput(Seat, "seat"))


def test_the_row_before_the_newest_one_returns_when_that_is_retracted() -> None:
    with _harness() as h:
        assert h.push(Seat(ADD, 1, 7), Seat(ADD, 1, 8)) == [Seat(ADD, 1, 7), Seat(UA, 1, 8)]
        with KeyedHarness.restore(h.snapshot(), parallelism=3) as restored:
            assert restored.push(Seat(D, 1, 8)) == [Seat(UA, 1, 7)]
            assert restored.push(Seat(UB, 1, 9)) == []
            assert restored.push(Seat(UB, 1, 7)) == [Seat(D, 1, 7)]
            assert restored.state_entries() == []


class Noted(msgspec.Struct, frozen=True):
    kind: RowKind
    seat: int
    notes: dict[int, float]


class Reordered(msgspec.Struct, frozen=True):
    seat: int
    notes: dict[int, float]
    kind: RowKind


def _reordered(seats: Any) -> DataStream:
    rows = unkeyed(seats).as_changelog(retracts=True)
    mapped = rows.map(lambda row: Reordered(row.seat, row.notes, row.kind), output=Reordered)
    return _materialized(mapped.key_by("seat"))


@pytest.mark.parametrize("declare", [None, _reordered], ids=["same", "reordered"])
def test_an_equal_row_is_retracted_whatever_the_order_of_dicts_and_fields_and_the_bits_of_nan(declare: Any) -> None:
    (negative_nan,) = struct.unpack("<d", (0xFFF8 << 48).to_bytes(8, "little"))
    with KeyedHarness(_materialized, KeyedInput(Noted, "seat")) as h:
        h.push(Noted(ADD, 1, {1: 0.5, 2: math.nan}))
        snapshot = h.snapshot()
    with KeyedHarness.restore(snapshot, declare) as h:
        assert [row.kind for row in h.push(Noted(D, 1, {2: negative_nan, 1: 0.5}))] == [D]


class More(msgspec.Struct, frozen=True):
    kind: RowKind
    seat: int
    user: int
    row: str = ""


class Widened(msgspec.Struct, frozen=True):
    kind: RowKind
    seat: int
    user: int | None


def _converted(output: type[Any], **more: Any) -> Any:
    """Returns the declaration of a materialized stream whose rows have other fields."""

    def declare(seats: Any) -> DataStream:
        rows = unkeyed(seats).map(lambda row: output(row.kind, row.seat, row.user, **more), output=output)
        return _materialized(rows.as_changelog(retracts=True).key_by("seat"))

    return declare


def test_a_restore_with_fields_that_the_stored_rows_do_not_have_is_refused() -> None:
    """A row that is retracted has a value in the new field, and stored rows have its default."""
    with _harness() as h:
        h.push(Seat(ADD, 1, 7))
        snapshot = h.snapshot()
    stored = "content: seat bigint, user bigint"
    with raises(IncompatibleState, name="materialized", stored=stored, declared="content: row string, " + stored[9:]):
        KeyedHarness.restore(snapshot, _converted(More, row="a"))
    with KeyedHarness.restore(snapshot, _converted(Widened)) as h:
        assert [row.kind for row in h.push(Seat(D, 1, 7))] == [D]


def test_a_row_is_forgotten_after_its_time_to_live() -> None:
    with _harness(TTL) as h:
        h.push(Seat(ADD, 1, 7))
        h.advance_processing_time(5)
        h.push(Seat(ADD, 1, 8))
        h.advance_processing_time(9)
        # Neither has expired.
        with KeyedHarness.restore(h.snapshot()) as restored:
            assert restored.push(Seat(D, 1, 8)) == [Seat(UA, 1, 7)]
        h.advance_processing_time(10)
        # The row before the newest one has expired.
        with KeyedHarness.restore(h.snapshot()) as restored:
            assert restored.push(Seat(D, 1, 7)) == []
            assert restored.push(Seat(D, 1, 8)) == [Seat(D, 1, 8)]
        h.advance_processing_time(15)
        assert h.push(Seat(D, 1, 8)) == []
        assert h.push(Seat(ADD, 1, 9)) == [Seat(ADD, 1, 9)]
        # Rows of a key that gets no others are removed, too.
        h.advance_processing_time(25)
        h.push(Seat(ADD, 2, 7))
        assert [entry.key for entry in h.state_entries()] == [(2,)]


changes = st.lists(
    st.lists(st.tuples(st.booleans(), st.integers(0, 1), st.integers(0, 2)), max_size=6), min_size=1, max_size=5
)


@one_in(4)
@given(changes, st.integers(1, 3))
def test_the_table_has_the_newest_row_that_exists(batches: list[list[tuple[bool, int, int]]], parallelism: int) -> None:
    rows: dict[int, list[int]] = {0: [], 1: []}
    table: dict[int, int] = {}
    h = _harness()
    for batch in batches:
        given_rows = []
        for takes_back, seat, user in batch:
            if not takes_back:
                rows[seat].append(user)
            elif user in rows[seat]:
                rows[seat].remove(user)
            given_rows.append(Seat(D if takes_back else ADD, seat, user))
        with h:
            for row in h.push(*given_rows):
                if row.kind.is_retraction:
                    assert table.pop(row.seat) == row.user
                else:
                    table[row.seat] = row.user
            h = KeyedHarness.restore(h.snapshot(), parallelism=parallelism)
        assert table == {seat: users[-1] for seat, users in rows.items() if users}
    h.close()


def test_the_result_is_a_changelog_by_the_key_and_other_streams_are_refused() -> None:
    def declared(seats: Any) -> DataStream:
        made = _materialized(seats)
        assert made._changelog is not None
        assert (made._changelog.keys, made._changelog.row_kind, made._changelog.retracts) == (("seat",), "kind", False)
        return made

    KeyedHarness(declared, KeyedInput(Seat, "seat")).close()
    with pytest.raises(JobDefinitionError) as caught:
        KeyedHarness(_materialized, KeyedInput(Plain, "seat"))
    assert caught.value.facts["called"] == "materialize"
