"""Cases of Flink's own tests of deduplication and top-n, restated: the changelog row by row, and by batches.

From `ProcTimeDeduplicateKeepFirstRowFunctionTest`, `ProcTimeDeduplicateKeepLastRowFunctionTest`,
`RowTimeDeduplicateFunctionTest` and `TopNFunctionTestBase` of Apache Flink.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest

from stateflow import RowKind
from stateflow.testing import KeyedHarness, KeyedInput

INSERT, BEFORE, AFTER, DELETE = RowKind
BATCHES = pytest.mark.parametrize("size", [1, 2, 100])
Case = tuple[Any, ...]


class Timed(msgspec.Struct, frozen=True):
    key: str
    value: int
    time: int


class Item(msgspec.Struct, frozen=True):
    category: str
    id: int
    price: int


class Ranked(msgspec.Struct, frozen=True):
    kind: RowKind
    category: str
    id: int
    price: int
    rank: int


class Change(msgspec.Struct, frozen=True):
    kind: RowKind
    category: str
    id: int
    price: int


def _run(declare: Any, rows: list[Any], key: str, size: int) -> list[Case]:
    with KeyedHarness(declare, KeyedInput(type(rows[0]), key)) as h:
        found = [row for at in range(0, len(rows), size) for row in h.push(*rows[at : at + size])]
    return [msgspec.structs.astuple(row) for row in found]


BOOKS = [Item("book", 1, 12), Item("book", 2, 11), Item("book", 1, 13)]


@BATCHES
def test_proc_time_keep_first(size: int) -> None:
    found = _run(lambda rows: rows.deduplicate(uid="d"), BOOKS, "id", size)
    assert sorted(found) == [("book", 1, 12), ("book", 2, 11)]


@pytest.mark.parametrize(("size", "expected"), [(1, [12, 11, 13]), (2, [12, 11, 13]), (100, [13, 11])])
def test_proc_time_keep_last(size: int, expected: list[int]) -> None:
    found = _run(lambda rows: rows.deduplicate(keep="last", uid="d"), BOOKS, "id", size)
    assert sorted(price for _, _, price in found) == sorted(expected)


TIMED = [
    Timed("key1", 13, 99), Timed("key1", 13, 99), Timed("key1", 12, 100), Timed("key2", 11, 101),
    Timed("key1", 12, 300), Timed("key2", 11, 301), Timed("key3", 5, 299), Timed("key1", 12, 400),
    Timed("key2", 11, 401),
]  # fmt: skip


@BATCHES
@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        ("first", {"key1": (13, 99), "key2": (11, 101), "key3": (5, 299)}),
        ("last", {"key1": (12, 400), "key2": (11, 401), "key3": (5, 299)}),
    ],
)
def test_row_time_keeps_the_first_or_last(keep: Literal["first", "last"], expected: dict[str, Case], size: int) -> None:
    found = _run(lambda rows: rows.deduplicate(keep=keep, order_by="time", uid="d"), TIMED, "key", size)
    # Each row replaces the one before it.
    assert {key: (value, time) for key, value, time in found} == expected
    if keep == "first":
        assert len(found) == len(expected)


def test_a_row_with_an_earlier_time_replaces_the_first_one() -> None:
    rows = [Timed("key1", 12, 100), Timed("key1", 13, 99), Timed("key1", 14, 99)]
    found = _run(lambda given: given.deduplicate(order_by="time", uid="d"), rows, "key", 1)
    assert found == [("key1", 12, 100), ("key1", 13, 99)]


ITEMS = [
    Item("book", 2, 12), Item("book", 2, 19), Item("book", 4, 11), Item("fruit", 4, 33), Item("fruit", 3, 44),
    Item("fruit", 5, 22),
]  # fmt: skip


def test_a_top_n_without_rank_inserts_and_deletes() -> None:
    found = _run(lambda rows: rows.top_n(2, order_by="price", output=Change, uid="t"), ITEMS, "category", 1)
    assert found == [
        (INSERT, "book", 2, 12), (INSERT, "book", 2, 19), (DELETE, "book", 2, 19), (INSERT, "book", 4, 11),
        (INSERT, "fruit", 4, 33), (INSERT, "fruit", 3, 44), (DELETE, "fruit", 3, 44), (INSERT, "fruit", 5, 22),
    ]  # fmt: skip


def test_a_top_n_with_rank_updates_the_rows_of_ranks() -> None:
    found = _run(
        lambda rows: rows.top_n(2, order_by="price", output=Ranked, rank="rank", retract=True, uid="t"),
        ITEMS[:3],
        "category",
        1,
    )
    assert found == [
        (INSERT, "book", 2, 12, 1), (INSERT, "book", 2, 19, 2), (BEFORE, "book", 2, 12, 1), (BEFORE, "book", 2, 19, 2),
        (AFTER, "book", 4, 11, 1), (AFTER, "book", 2, 12, 2),
    ]  # fmt: skip


def test_a_batch_emits_only_its_difference() -> None:
    found = _run(
        lambda rows: rows.top_n(2, order_by="price", output=Ranked, rank="rank", uid="t"), ITEMS, "category", 100
    )
    assert sorted(found, key=lambda row: (row[1], row[4])) == [
        (INSERT, "book", 4, 11, 1),
        (INSERT, "book", 2, 12, 2),
        (INSERT, "fruit", 5, 22, 1),
        (INSERT, "fruit", 4, 33, 2),
    ]


def test_a_row_that_is_equal_to_the_last_one_does_not_enter() -> None:
    rows = [Item("book", 1, 10), Item("book", 2, 10), Item("book", 3, 10)]
    found = _run(lambda given: given.top_n(2, order_by="price", output=Change, uid="t"), rows, "category", 1)
    assert found == [(INSERT, "book", 1, 10), (INSERT, "book", 2, 10)]
