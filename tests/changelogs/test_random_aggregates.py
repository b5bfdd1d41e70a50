"""Aggregates of rows that are retracted, compared with plain Python, at any batch size and parallelism."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow import RowKind, StreamExecutionEnvironment
from stateflow.api.streams.data_stream import DataStream
from stateflow.api.streams.keyed_stream import KeyedStream
from stateflow.errors import JobDefinitionError, StateError
from stateflow.testing import KeyedHarness, KeyedInput
from tests.changelogs.materialized import materialized
from tests.support.errors import raises
from tests.support.examples import one_in
from tests.support.local_jobs import Growing, LocalJobs


class Appended(msgspec.Struct, frozen=True):
    key: str
    value: int | None
    number: int = 0


class Bid(msgspec.Struct, frozen=True):
    category: str
    auction: int
    price: int
    is_high: bool


class Best(msgspec.Struct, frozen=True):
    kind: RowKind
    category: str
    auction: int
    price: int


class Mean(msgspec.Struct, frozen=True):
    kind: RowKind
    category: str
    auctions: int
    total: int
    mean: float


class Change(msgspec.Struct, frozen=True):
    kind: RowKind
    key: str
    value: int | None
    number: int


class Total(msgspec.Struct, frozen=True):
    kind: RowKind
    key: str
    rows: int
    total: int | None


def best(bids: KeyedStream[DataStream], **more: Any) -> DataStream:
    return bids.aggregate_columns({"price": ("max", "price")}, output=Best, uid="best", **more)


def means(bids: KeyedStream[DataStream]) -> DataStream:
    wanted = {"auctions": ("count", "price"), "total": ("sum", "price"), "mean": ("mean", "price")}
    return best(bids, retract=True).key_by("category").aggregate_columns(wanted, output=Mean, retract=True, uid="mean")


def totals(changes: KeyedStream[DataStream]) -> DataStream:
    wanted = {"rows": ("count", "number"), "total": ("sum", "value")}
    return changes.aggregate_columns(wanted, output=Total, uid="totals")


def emitted(
    declare: Any, row_class: type[Any], keys: Sequence[str], batches: Iterable[tuple[list[Any], int]]
) -> list[Any]:
    """Returns the rows that are emitted for batches, each with the parallelism of a restore before it, or 0."""
    found: list[Any] = []
    h = KeyedHarness(declare, KeyedInput(row_class, keys))
    for rows, parallelism in batches:
        if parallelism:
            with h:
                h = KeyedHarness.restore(h.snapshot(), parallelism=parallelism)
        found += h.push(*rows)
    h.close()
    return found


bids = st.builds(Bid, st.sampled_from("ab"), st.integers(0, 3), st.integers(0, 50), st.booleans())
parallelisms = st.sampled_from([0, 0, 1, 3])


@one_in(6)
@given(st.lists(st.tuples(st.lists(bids, max_size=8), parallelisms), min_size=1, max_size=5))
def test_the_mean_of_maxima_follows_each_new_maximum(batches: list[tuple[list[Bid], int]]) -> None:
    maxima: dict[str, dict[int, int]] = defaultdict(dict)
    for bid in (bid for rows, _ in batches for bid in rows):
        of = maxima[bid.category]
        of[bid.auction] = max(bid.price, of.get(bid.auction, 0))
    # The operators of a harness have one input each: the second one is declared on the first.
    found = emitted(means, Bid, ("category", "auction"), batches)
    table = materialized(found, "category", kind="kind", retracts=True)
    expected = {(c,): (len(of), sum(of.values()), sum(of.values()) / len(of)) for c, of in maxima.items()}
    assert {key: (row.auctions, row.total, row.mean) for key, row in table.items()} == expected


def test_a_key_without_rows_has_no_state() -> None:
    with KeyedHarness(totals, KeyedInput(Change, "key")) as h:
        h.push(Change(RowKind.INSERT, "a", 1, 1))
        assert len(h.state_entries()) == 2
        (row,) = h.push(Change(RowKind.DELETE, "a", 1, 1))
        assert row == Total(RowKind.DELETE, "a", 1, 1) and h.state_entries() == []


def test_rows_that_were_only_appended_cannot_be_retracted(tmp_path: Path) -> None:
    rows = [Appended("a", 1), Appended("a", 2)]
    jobs = LocalJobs(tmp_path)

    def build(env: StreamExecutionEnvironment, is_changelog: bool) -> None:
        given = env.from_source(Growing(rows, Appended), uid="rows")
        if is_changelog:
            given = given.map(lambda row: Change(RowKind.DELETE, row.key, row.value, 0), output=Change)
        totals(given.key_by("key")).print()

    jobs.run(lambda env: build(env, is_changelog=False))
    rows.append(Appended("a", 1))
    with raises(StateError, state="aggregated-rows"):
        jobs.run(lambda env: build(env, is_changelog=True))


@pytest.mark.parametrize(
    ("declare", "facts"),
    [
        (lambda rows: best(rows).key_by("category").aggregate_columns({}, output=Mean, uid="m"), {}),
        (
            lambda rows: (
                best(rows, retract=True)
                .key_by("category")
                .aggregate_columns(
                    {"price": ("max", "price")},
                    output=msgspec.defstruct("Out", [("category", str), ("price", int)]),
                    uid="m",
                )
            ),
            {"row_kind": "kind"},
        ),
        (
            lambda rows: (
                best(rows, retract=True)
                .key_by("category")
                .aggregate_columns({"auction": ("last", "auction"), "price": ("sum", "price")}, output=Best, uid="m")
            ),
            {"name": "auction", "aggregate": "Last"},
        ),
    ],
)
def test_what_cannot_be_retracted_is_refused(declare: Any, facts: dict[str, Any]) -> None:
    with raises(JobDefinitionError, **facts):
        KeyedHarness(declare, KeyedInput(Bid, ("category", "auction")))
