"""Rows that a ranking cannot keep are dropped before the shuffle, and all others are not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow import DataStream, KeyedStream, RowKind, WatermarkStrategy
from stateflow.api.graph import ProcessNode, ReducedNode
from stateflow.api.ranking import PartialRanking, Selection, SortKey
from stateflow.api.schema import RowSchema
from stateflow.errors import JobDefinitionError
from stateflow.runtime.task.row_conversion import to_batch
from stateflow.testing import KeyedHarness, KeyedInput
from tests.joins.joined_rows import unkeyed
from tests.support.examples import one_in
from tests.support.local_jobs import LocalJobs


class Row(msgspec.Struct, frozen=True):
    """A row: its number is unique, and grows in the order of arrival."""

    key: str | None
    part: int
    price: float | None
    number: int


Declare = Callable[[KeyedStream[DataStream]], DataStream]
SCHEMA = RowSchema.of(Row)
ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 1), st.sampled_from([None, 1.0, 2.0, float("nan")])),
    max_size=20,
)


def order(row: dict[str, Any]) -> tuple[float, ...]:
    """Null before all prices, NaN after them."""
    price = row["price"]
    return (0.0, 0.0) if price is None else (2.0, 0.0) if price != price else (1.0, price)


def plain(rows: list[dict[str, Any]], selection: Selection) -> list[int]:
    """The numbers of the kept rows."""
    by_key = defaultdict(list)
    for row in rows:
        by_key[row["key"], row["part"]].append(row)
    found = []
    for of_key in by_key.values():
        given = of_key[::-1] if selection.newest_first else of_key
        if selection.order:
            given = sorted(given, key=order, reverse=selection.order[0].descending)
        found += [row["number"] for row in given[: selection.n]]
    return sorted(found)


@given(
    ROWS,
    st.lists(st.integers(0, 20), max_size=4),
    st.integers(1, 20),
    st.builds(Selection, st.integers(1, 3), st.sampled_from([(), (SortKey("price"),), (SortKey("price", True),)]))
    | st.builds(Selection, st.just(1), st.sampled_from([(), (SortKey("price", True),)]), st.just(True)),
)
def test_the_rows_that_are_kept_of_all_are_in_the_rest_in_their_order(
    rows: list[tuple[str | None, int, float | None]], cuts: list[int], together: int, selection: Selection
) -> None:
    given_rows = [Row(*row, number=number) for number, row in enumerate(rows)]
    edges = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
    batches = [to_batch(given_rows[a:b], SCHEMA) for a, b in pairwise(edges)]
    ranking = PartialRanking(("key", "part"), selection, SCHEMA, rows_at_once=together)
    rest = [row for batch in ranking.apply(batches) for row in batch.to_pylist()]
    numbers = [row["number"] for row in rest]
    assert numbers == sorted(numbers)
    every = [msgspec.structs.asdict(row) for row in given_rows]
    assert plain(rest, selection) == plain(every, selection)
    if len(batches) <= 1 or together == len(rows):
        assert numbers == plain(every, selection)


class Keyed(msgspec.Struct, frozen=True):
    key: str
    part: float
    time: int
    number: int


class Ranked(Keyed, frozen=True):
    rank: int


def operators(rows: DataStream) -> dict[str, DataStream]:
    """Rankings that get fewer rows, and others."""
    passed = rows.filter(lambda row: row.number >= 0)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("time")
    timed = rows.assign_timestamps_and_watermarks(strategy).filter(lambda row: row.number >= 0)
    keyed = passed.key_by("key")
    after = keyed.deduplicate(uid="before").filter(lambda row: True)
    return {
        "top": keyed.top_n(2, order_by="number", output=Ranked, rank="rank", uid="top"),
        "first": keyed.deduplicate(uid="first"),
        "last": keyed.deduplicate(keep="last", order_by="number", uid="last"),
        "whole: a pass of its own": rows.key_by("key").deduplicate(uid="plain"),
        "whole: a float key": passed.key_by("part").deduplicate(uid="float"),
        "whole: an order": passed.key_by("key", order_by="number").deduplicate(uid="ordered"),
        "whole: event time": timed.key_by("key").deduplicate(uid="timed"),
        "whole: of an operator": after.key_by("key").deduplicate(uid="after"),
    }


def test_only_rows_that_python_passes_on_are_ranked_before_the_shuffle(tmp_path: Path) -> None:
    reduced = {}

    def declared(rows: DataStream) -> DataStream:
        for name, stream in operators(rows).items():
            assert isinstance(stream._node, ProcessNode)
            reduced[name] = isinstance(stream._node.inputs[0].node, ReducedNode)
        return operators_of_one(rows)

    LocalJobs(tmp_path).apply([Keyed("a", 1.0, 1, 1)], declared)
    assert reduced == {name: not name.startswith("whole") for name in reduced}


def operators_of_one(rows: DataStream) -> DataStream:
    """A job of one operator."""
    return rows.map(lambda row: row, output=Keyed).key_by("key").deduplicate(keep="last", order_by="number", uid="one")


class Placed(msgspec.Struct, frozen=True):
    key: str
    price: float | None
    place: int | None
    at: int
    number: int


class Entered(Placed, frozen=True):
    kind: RowKind


class Numbered(Entered, frozen=True):
    rank: int


MIXED = [("price", "desc"), ("place", "asc"), ("at", "desc")]
RANKINGS: dict[str, Declare] = {
    "first": lambda rows: rows.deduplicate(uid="one"),
    "last": lambda rows: rows.deduplicate(keep="last", uid="one"),
    "first by time": lambda rows: rows.deduplicate(order_by="at", uid="one"),
    "last by time": lambda rows: rows.deduplicate(keep="last", order_by="at", uid="one"),
    "last, retracted": lambda rows: rows.deduplicate(keep="last", output=Entered, retract=True, uid="one"),
    "top": lambda rows: rows.top_n(2, order_by=MIXED, output=Entered, uid="one"),
    "ranks": lambda rows: rows.top_n(2, order_by=MIXED, output=Numbered, rank="rank", retract=True, uid="one"),
    "top of many": lambda rows: rows.top_n(100, order_by="price", output=Entered, uid="one"),
}
Given = tuple[str, float | None, int | None, int]
PLACED = st.tuples(
    st.sampled_from("ab"),
    st.sampled_from([None, -1.0, -0.0, 0.0, float("nan"), float("inf")]),
    st.sampled_from([None, -(1 << 63), 0, (1 << 63) - 1]),
    st.integers(0, 3),
)


def passed_on(declare: Declare) -> Declare:
    """The ranking of rows that a function passes on."""

    def declared(rows: KeyedStream[DataStream]) -> DataStream:
        made = declare(unkeyed(rows).filter(lambda row: True).key_by("key"))
        assert isinstance(made._node, ProcessNode) and isinstance(made._node.inputs[0].node, ReducedNode)
        return made

    return declared


@one_in(12)
@pytest.mark.parametrize("ranking", RANKINGS)
@given(st.lists(st.lists(PLACED, max_size=8), min_size=1, max_size=4), st.integers(1, 3))
def test_results_and_state_are_those_of_all_rows(ranking: str, batches: list[list[Given]], parallelism: int) -> None:
    given_rows = KeyedInput(Placed, "key")
    numbers = count()
    whole, reduced = KeyedHarness(RANKINGS[ranking], given_rows), KeyedHarness(passed_on(RANKINGS[ranking]), given_rows)
    for batch in batches:
        rows = [Placed(*row, next(numbers)) for row in batch]
        with whole, reduced:
            assert repr(reduced.push(*rows)) == repr(whole.push(*rows))
            assert repr(reduced.state_entries()) == repr(whole.state_entries())
            states = whole.snapshot(), reduced.snapshot()
        # A job may change between both with its state.
        whole = KeyedHarness.restore(states[1], RANKINGS[ranking], parallelism=parallelism)
        reduced = KeyedHarness.restore(states[0], passed_on(RANKINGS[ranking]), parallelism=parallelism)
    whole.close()
    reduced.close()


class Change(msgspec.Struct, frozen=True):
    key: str
    number: int
    kind: RowKind


class CountedKind(msgspec.Struct, frozen=True):
    key: str
    n: int
    kind: RowKind


CHANGES = [Change("a", 1, RowKind.INSERT), Change("a", 2, RowKind.INSERT), Change("a", 1, RowKind.DELETE)]


def test_rows_of_a_changelog_are_not_reduced(tmp_path: Path) -> None:
    jobs = LocalJobs(tmp_path)

    def counted(rows: DataStream) -> DataStream:
        changes = rows.as_changelog(retracts=True).filter(lambda row: True).key_by("key")
        made = changes.aggregate_columns({"n": ("count", "number")}, output=CountedKind, uid="count")
        assert isinstance(made._node, ProcessNode) and not isinstance(made._node.inputs[0].node, ReducedNode)
        for ranked in (changes.deduplicate, partial(changes.top_n, 1, order_by="number")):
            with pytest.raises(JobDefinitionError):
                ranked(uid="ranked")
        return made.as_append_only()

    jobs.apply(CHANGES, counted)
    assert [row[1] for row in jobs.rows()] == [1]
