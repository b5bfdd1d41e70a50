"""The guide about corrected results: its functions are run over bids, and compared with plain Python."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from stateflow import KeyedProcessFunction
from stateflow.testing import KeyedHarness, KeyedInput
from tests.changelogs.materialized import materialized
from tests.docs.pages import blocks, load_module, read
from tests.docs.test_guide_windows import Keyed

GUIDE = read("changelogs")


class KeyedAgain(Keyed):
    """A stream that is keyed already, whatever the columns."""

    def key_by(self, *columns: str) -> Any:
        return self._keyed


class Forward(KeyedProcessFunction[Any, Any]):
    """Emits its rows."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    text = "\n".join(blocks(GUIDE, "python"))
    return load_module(tmp_path_factory.mktemp("guide") / "guide_changelogs.py", text)


def _bids(guide: ModuleType) -> list[Any]:
    rng = random.Random(3)
    return [guide.Bid(rng.choice("ab"), rng.choice("xyz"), rng.randrange(30), time) for time in range(120)]


def _run(declare: Any, guide: ModuleType, keys: tuple[str, ...]) -> list[Any]:
    bids, found = _bids(guide), []
    with KeyedHarness(declare, KeyedInput(guide.Bid, keys)) as h:
        for at in range(0, len(bids), 25):
            found += h.push(*bids[at : at + 25])
    return found


def test_one_row_of_each_key_is_kept(guide: ModuleType, tmp_path: Path) -> None:
    first: dict[str, Any] = {}
    newest: dict[Any, Any] = {}
    for bid in _bids(guide):
        first.setdefault(bid.item, bid)
        newest[bid.item, bid.bidder] = bid
    rows = _run(lambda keyed: guide.first_bids(KeyedAgain(keyed)), guide, ("item",))
    assert sorted(rows, key=lambda bid: bid.item) == [first["a"], first["b"]]
    rows = _run(lambda keyed: guide.newest_bids(KeyedAgain(keyed), _table(tmp_path)), guide, ("item", "bidder"))
    assert materialized(rows, "item", "bidder") == newest


def test_the_best_rows_of_each_key_are_kept(guide: ModuleType, tmp_path: Path) -> None:
    of = defaultdict(list)
    for bid in _bids(guide):
        of[bid.item].append(bid)
    best = {(bid.item, bid.time) for bids in of.values() for bid in sorted(bids, key=_order)[:10]}
    ranked = _run(lambda keyed: guide.best_bids(KeyedAgain(keyed), _table(tmp_path)), guide, ("item",))
    assert {(bid.item, bid.time) for bid in materialized(ranked, "item", "place").values()} == best
    for declare in (guide.best_ten, guide.history):
        changes = _run(lambda keyed, d=declare: d(KeyedAgain(keyed), _table(tmp_path)), guide, ("item",))
        assert set(materialized(changes, "item", "time", kind="kind")) == best


def test_distinct_values_are_counted_with_filters(guide: ModuleType) -> None:
    bids = _bids(guide)

    def declare(keyed: Any) -> Any:
        return guide.bidders(keyed.process(Forward(), output=guide.Bid, uid="forward"))

    with KeyedHarness(declare, KeyedInput(guide.Bid, "item")) as h:
        h.push(*bids[:50])
        found = h.push(*bids[50:])
    for row in found:
        own = [bid for bid in bids if bid.item == row.item]
        high = [bid for bid in own if bid.price >= 20]
        assert (row.bids, row.high_bids) == (len(own), len(high))
        assert (row.bidders, row.high_bidders) == (len({b.bidder for b in own}), len({b.bidder for b in high}))


def test_the_mean_of_ten_bids_is_that_of_the_bids_before_each(guide: ModuleType) -> None:
    bids = _bids(guide)
    given = KeyedInput(guide.Bid, "item", event_time="time", out_of_orderness=timedelta(0))
    with KeyedHarness(lambda keyed: guide.mean_of_ten(KeyedAgain(keyed)), given) as h:
        found = [row for at in range(0, len(bids), 25) for row in h.push(*bids[at : at + 25])] + h.drain()
    assert len(found) == len(bids)
    for row in found:
        own = [bid.price for bid in bids if bid.item == row.item and bid.time <= row.time][-10:]
        assert (row.bids, row.mean) == (len(own), sum(own) / len(own))


def test_the_mean_of_the_best_bids_is_corrected(guide: ModuleType) -> None:
    bids = _bids(guide)
    best: dict[str, dict[str, int]] = {"a": {}, "b": {}}
    for bid in bids:
        best[bid.item][bid.bidder] = max(bid.price, best[bid.item].get(bid.bidder, 0))
    rows = _run(lambda keyed: guide.mean_of_best(KeyedAgain(keyed)), guide, ("item", "bidder"))
    table = materialized(rows, "item", kind="kind")
    for item, prices in best.items():
        row = table[item,]
        assert (row.bidders, row.mean) == (len(prices), sum(prices.values()) / len(prices))


def _table(folder: Path) -> str:
    """A folder for the files that the sink of a table writes; a harness neither creates nor commits tables."""
    for name in ("table", "table_history"):
        (folder / name).mkdir(exist_ok=True)
    return str(folder / "table")


def _order(bid: Any) -> tuple[int, int]:
    return -bid.price, bid.time


class Seat(msgspec.Struct, frozen=True):
    user: str
    seat: int


def test_users_move_between_seats(guide: ModuleType, tmp_path: Path) -> None:
    seats = [Seat("a", 1), Seat("b", 2), Seat("a", 3), Seat("b", 1)]
    with KeyedHarness(
        lambda keyed: guide.users_by_seat(KeyedAgain(keyed), _table(tmp_path)), KeyedInput(Seat, "user")
    ) as h:
        rows = [row for each in (seats[:2], seats[2:]) for row in h.push(*each)]
    assert {row.seat: row.user for row in materialized(rows, "user", kind="kind", retracts=True).values()} == {
        3: "a",
        1: "b",
    }


def test_the_newest_user_of_a_seat_is_kept(guide: ModuleType, tmp_path: Path) -> None:
    seats = [Seat("a", 1), Seat("b", 1), Seat("b", 2), Seat("a", 3), Seat("c", 3)]
    found: dict[int, str] = {}
    with KeyedHarness(
        lambda keyed: guide.newest_user_by_seat(KeyedAgain(keyed), _table(tmp_path)), KeyedInput(Seat, "user")
    ) as h:
        for seat in seats:
            for row in h.push(seat):
                if row.kind.is_retraction:
                    assert found.pop(row.seat) == row.user
                else:
                    found[row.seat] = row.user
            if seat == seats[2]:
                assert found == {1: "a", 2: "b"}
    assert found == {2: "b", 3: "c"}


def test_changes_of_a_source_are_a_changelog_by_their_key(guide: ModuleType, tmp_path: Path) -> None:
    kinds = guide.RowKind.INSERT, guide.RowKind.DELETE
    bids = [guide.BidChange(kind, "a", "x", 1, time) for time, kind in enumerate(kinds)]

    def declare(keyed: Any) -> Any:
        forwarded = keyed.process(Forward(), output=guide.BidChange, uid="forward")
        return guide.from_changes(forwarded, _table(tmp_path))

    with KeyedHarness(declare, KeyedInput(guide.BidChange, "item")) as h:
        assert [row.bidder for row in h.push(*bids)] == ["X", "X"]
