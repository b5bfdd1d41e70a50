"""Deduplication and top-n compared with plain Python, at any batch size, parallelism and restore.

For more histories: ``HYPOTHESIS_PROFILE=nightly python -m pytest tests/changelogs``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow import RowKind, StateTtlConfig
from stateflow.api.streams.data_stream import DataStream
from stateflow.api.streams.keyed_stream import KeyedStream
from stateflow.errors import IncompatibleState
from stateflow.testing import KeyedHarness, KeyedInput
from tests.changelogs.materialized import materialized
from tests.support.errors import raises
from tests.support.examples import one_in


class Row(msgspec.Struct, frozen=True):
    """A row: its number is unique, and grows in the order of arrival."""

    key: str
    at: int
    price: float | None
    number: int


class Ranked(msgspec.Struct, frozen=True):
    key: str
    at: int
    price: float | None
    number: int
    rank: int


class RankedKind(msgspec.Struct, frozen=True):
    kind: RowKind
    key: str
    at: int
    price: float | None
    number: int
    rank: int


class Kind(msgspec.Struct, frozen=True):
    kind: RowKind
    key: str
    at: int
    price: float | None
    number: int


Declare = Callable[[KeyedStream[DataStream]], DataStream]
Batches = tuple[tuple[tuple[tuple[str, int, float | None], ...], int], ...]


@dataclass(frozen=True)
class History:
    """Batches of rows; and, before each, the parallelism of a restore, or 0."""

    batches: Batches
    arrow_rows: int | None

    @property
    def rows(self) -> list[Row]:
        each = (row for batch, _ in self.batches for row in batch)
        return [Row(key, at, price, number) for number, (key, at, price) in enumerate(each)]


prices = st.sampled_from([None, -1.5, 0.0, 2.0, 2.0, 3.0, float("inf")])
batches = st.tuples(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(-3, 5), prices), max_size=9).map(tuple),
    st.sampled_from([0, 0, 1, 3]),
)
histories = st.builds(History, st.lists(batches, min_size=1, max_size=6).map(tuple), st.sampled_from([None, 1, 3]))


def emitted(declare: Declare, history: History) -> list[Any]:
    """Returns the rows that an operator emits, in order."""
    arrow = history.arrow_rows
    more: dict[str, Any] = {} if arrow is None else {"spark.conf.spark.sql.execution.arrow.maxRecordsPerBatch": arrow}
    found, rows = [], history.rows
    h = KeyedHarness(declare, KeyedInput(Row, "key"), **more)
    for batch, parallelism in history.batches:
        if parallelism:
            with h:
                h = KeyedHarness.restore(h.snapshot(), parallelism=parallelism)
        found += h.push(*rows[: len(batch)])
        rows = rows[len(batch) :]
    h.close()
    return found


def by_key(rows: list[Row]) -> dict[str, list[Row]]:
    found = defaultdict(list)
    for row in rows:
        found[row.key].append(row)
    return found


def plain_dedup(rows: list[Row], keep: str, by: str) -> Row:
    values = [getattr(row, by) for row in rows] if by else list(range(len(rows)))
    best = min(values) if keep == "first" else max(values)
    same = [row for row, value in zip(rows, values, strict=True) if value == best]
    return same[0] if keep == "first" else same[-1]


@pytest.mark.long(reason="draws many histories")
@one_in(2)
@given(histories, st.sampled_from(["first", "last"]), st.sampled_from(["", "at"]), st.sampled_from([None, False, True]))
def test_deduplication_keeps_the_row_that_plain_python_keeps(
    history: History, keep: Literal["first", "last"], by: str, retract: bool | None
) -> None:
    """As rows, as changes, or as changes that retract replaced rows; nothing replaces the first row by arrival."""
    has_kind = retract is not None and (keep, by) != ("first", "")
    more: dict[str, Any] = {"output": Kind, "retract": retract} if has_kind else {}
    rows = emitted(lambda given: given.deduplicate(keep=keep, order_by=by, uid="d", **more), history)
    expected = {(key,): plain_dedup(each, keep, by) for key, each in by_key(history.rows).items()}
    kinds: dict[str, Any] = {"kind": "kind", "retracts": bool(retract)} if has_kind else {}
    table = materialized(rows, "key", **kinds)
    assert dict(zip(table, as_rows(table.values()), strict=True)) == expected
    if keep == "first" and not by:
        assert len(rows) == len(expected)


ORDERS: list[Declare] = [
    lambda rows: rows.deduplicate(uid="o"),
    lambda rows: rows.deduplicate(order_by="at", uid="o"),
    lambda rows: rows.deduplicate(keep="last", order_by="at", uid="o"),
    lambda rows: rows.deduplicate(keep="last", order_by="at", output=Kind, uid="o"),
]
TOPS: list[Declare] = [
    lambda rows: rows.top_n(2, order_by="at", output=Kind, uid="o"),
    lambda rows: rows.top_n(3, order_by="at", output=Kind, uid="o"),
    lambda rows: rows.top_n(2, order_by=[("at", "desc")], output=Kind, uid="o"),
]


@pytest.mark.parametrize("ways", [ORDERS, TOPS], ids=["deduplicate", "top_n"])
def test_state_of_another_order_is_refused(ways: list[Declare]) -> None:
    for stored in ways:
        with KeyedHarness(stored, KeyedInput(Row, "key")) as h:
            h.push(Row("a", 1, 2.0, 3))
            snapshot = h.snapshot()
        for wanted in ways:
            if wanted is stored:
                KeyedHarness.restore(snapshot, wanted).close()
            else:
                with raises(IncompatibleState):
                    KeyedHarness.restore(snapshot, wanted)


TTL = StateTtlConfig.new_builder(timedelta(milliseconds=10)).build()


@pytest.mark.parametrize(
    ("declare", "kept", "before"),
    [
        (lambda rows: rows.deduplicate(ttl=TTL, uid="d"), 3, []),
        (lambda rows: rows.deduplicate(order_by="at", ttl=TTL, uid="d"), 3, []),
        (lambda rows: rows.deduplicate(keep="last", order_by="at", ttl=TTL, uid="d"), 5, []),
        (lambda rows: rows.top_n(2, order_by=[("at", "desc")], output=Ranked, rank="rank", ttl=TTL, uid="t"), 5, [2]),
    ],
)
def test_a_key_is_forgotten_after_its_time_to_live(declare: Declare, kept: int, before: list[int]) -> None:
    for wait, ranks in ((9, before), (10, [1])):
        with KeyedHarness(declare, KeyedInput(Row, "key")) as h:
            assert len(h.push(Row("a", kept, None, 0))) == 1
            h.advance_processing_time(wait)
            assert [getattr(row, "rank", 1) for row in h.push(Row("a", 4, None, 1))] == ranks


def plain_top(rows: list[Row], n: int) -> list[Row]:
    """By price, descending with null at the end, then by time."""

    def order(row: Row) -> tuple[bool, float, int]:
        return (row.price is None, 0.0 if row.price is None else -row.price, row.at)

    return sorted(rows, key=order)[:n]


ORDER: list[Any] = [("price", "desc"), "at"]


def as_rows(found: Any) -> list[Row]:
    return [Row(row.key, row.at, row.price, row.number) for row in found]


@pytest.mark.long(reason="draws many histories")
@one_in(3)
@given(histories, st.integers(1, 4), st.sampled_from(["ranks", "rows", "retractions"]))
def test_a_top_n_is_the_one_of_plain_python(history: History, n: int, made: str) -> None:
    expected = {key: plain_top(rows, n) for key, rows in by_key(history.rows).items()}
    forms: dict[str, dict[str, Any]] = {
        "ranks": {"output": Ranked, "rank": "rank"},
        "rows": {"output": Kind},
        "retractions": {"output": RankedKind, "rank": "rank", "retract": True},
    }
    found = emitted(lambda rows: rows.top_n(n, order_by=ORDER, uid="t", **forms[made]), history)
    if made == "rows":
        table = materialized(found, "number", kind="kind") if n > 1 else materialized(found, "key")
        numbers = sorted(row.number for rows in expected.values() for row in rows)
        assert sorted(row.number for row in table.values()) == numbers
        return
    kinds: dict[str, Any] = {"kind": "kind", "retracts": True} if made == "retractions" else {}
    table = materialized(found, "key", "rank", **kinds)
    ranks = {(key, at): row for key, rows in expected.items() for at, row in enumerate(rows, 1)}
    assert dict(zip(table, as_rows(table.values()), strict=True)) == ranks
