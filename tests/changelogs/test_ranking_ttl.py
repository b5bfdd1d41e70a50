"""Deduplication and rankings forget a key after its time to live."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from stateflow import StateTtlConfig
from stateflow.testing import KeyedHarness, KeyedInput

TTL = StateTtlConfig.new_builder(timedelta(milliseconds=10)).build()


class Row(msgspec.Struct, frozen=True):
    key: str
    value: int


class Ranked(msgspec.Struct, frozen=True):
    key: str
    value: int
    rank: int


def first(rows: Any) -> Any:
    return rows.deduplicate(keep="first", ttl=TTL, uid="d")


def lowest(rows: Any) -> Any:
    return rows.deduplicate(keep="first", order_by="value", ttl=TTL, uid="d")


def highest(rows: Any) -> Any:
    return rows.deduplicate(keep="last", order_by="value", ttl=TTL, uid="d")


def two_highest(rows: Any) -> Any:
    return rows.top_n(2, order_by=[("value", "desc")], output=Ranked, rank="rank", ttl=TTL, uid="t")


@pytest.mark.parametrize(
    ("declare", "before", "after"),
    [
        (first, [], [("a", 4)]),
        (lowest, [], [("a", 4)]),
        (highest, [], [("a", 4)]),
        (two_highest, [("a", 4, 2)], [("a", 4, 1)]),
    ],
)
def test_a_key_is_forgotten_after_its_time_to_live(
    declare: Any, before: list[tuple[Any, ...]], after: list[tuple[Any, ...]]
) -> None:
    def pushed(h: KeyedHarness, row: Row) -> list[tuple[Any, ...]]:
        return [msgspec.structs.astuple(each) for each in h.push(row)]

    # `first` and `lowest` keep 3; `highest` and the ranking keep 5.
    kept = Row("a", 3 if declare in (first, lowest) else 5)
    with KeyedHarness(declare, KeyedInput(Row, "key")) as h:
        assert len(h.push(kept)) == 1
        h.advance_processing_time(9)
        assert pushed(h, Row("a", 4)) == before
    with KeyedHarness(declare, KeyedInput(Row, "key")) as h:
        h.push(kept)
        h.advance_processing_time(10)
        assert pushed(h, Row("a", 4)) == after
