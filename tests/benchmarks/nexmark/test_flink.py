"""Flink's results of some queries of Nexmark are equal to those of plain Python."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from benchmarks.flink_environment import is_set_up
from benchmarks.nexmark.changelog import Rows
from benchmarks.nexmark.flink import FlinkInputs, measure, result
from benchmarks.nexmark.generate import Slices, write_slice
from benchmarks.nexmark.generator import generate
from benchmarks.nexmark.rules import AUCTION, BID, Stream

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_set_up(), reason="Flink is not set up: the benchmarks do this at their first run"),
]
# Few events of a long time: several windows, and sessions that end.
SLICES = Slices(Stream(events_per_second=40), 3_000, 1_000)
Event = dict[str, Any]


@pytest.fixture(scope="module")
def events() -> list[Event]:
    rows: list[Event] = generate(SLICES.stream, 0, SLICES.events).to_pylist()
    return rows


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> FlinkInputs:
    folder = tmp_path_factory.mktemp("nexmark")
    for number in range(SLICES.files):
        write_slice(SLICES, folder, number)
    return FlinkInputs.write(folder, tmp_path_factory.mktemp("flink"))


def of_type(events: list[Event], event_type: int) -> Iterator[Event]:
    prefix = ("person_", "auction_", "bid_")[event_type]
    for event in events:
        if event["event_type"] == event_type:
            yield {name.removeprefix(prefix): value for name, value in event.items()}


def converted(events: list[Event]) -> Rows:
    """q1."""
    return Counter(
        (bid["auction"], bid["bidder"], Decimal("0.908") * bid["price"], bid["dateTime"], bid["extra"])
        for bid in of_type(events, BID)
    )


def average_winning_bids(events: list[Event]) -> Rows:
    """q4."""
    auctions = {auction["id"]: auction for auction in of_type(events, AUCTION)}
    winning: dict[int, int] = {}
    for bid in of_type(events, BID):
        auction = auctions.get(bid["auction"])
        if auction and auction["dateTime"] <= bid["dateTime"] <= auction["expires"]:
            winning[auction["id"]] = max(winning.get(auction["id"], 0), bid["price"])
    by_category = defaultdict(list)
    for auction_id, price in winning.items():
        by_category[auctions[auction_id]["category"]].append(price)
    return Counter((category, sum(prices) // len(prices)) for category, prices in by_category.items())


def with_values(events: list[Event]) -> Rows:
    """q13."""
    return Counter(
        (bid["auction"], bid["bidder"], bid["price"], bid["dateTime"], str(bid["auction"] % 10_000))
        for bid in of_type(events, BID)
    )


def with_letters_counted(events: list[Event]) -> Rows:
    """q14: all times of the events are in the first hours of a day."""
    return Counter(
        (bid["auction"], bid["bidder"], price, "nightTime", bid["dateTime"], bid["extra"], bid["extra"].count("c"))
        for bid in of_type(events, BID)
        if 1_000_000 < (price := Decimal("0.908") * bid["price"]) < 50_000_000
    )


def sessions(events: list[Event]) -> Rows:
    """q11."""
    gap = timedelta(seconds=10)
    found: list[tuple[int, int, datetime, datetime]] = []
    opened: dict[int, tuple[int, datetime, datetime]] = {}
    for bid in of_type(events, BID):
        bidder, at = bid["bidder"], bid["dateTime"]
        count, start, end = opened.get(bidder, (0, at, at))
        if at > end:
            found.append((bidder, count, start, end))
            count, start = 0, at
        opened[bidder] = (count + 1, start, at + gap)
    return Counter([*found, *((bidder, *session) for bidder, session in opened.items())])


def last_bids(events: list[Event]) -> Rows:
    """q18: of bids at the same time, the last one in the stream."""
    last = {(bid["bidder"], bid["auction"]): bid for bid in of_type(events, BID)}
    columns = ("auction", "bidder", "price", "channel", "url", "dateTime", "extra")
    return Counter(tuple(bid[name] for name in columns) for bid in last.values())


@pytest.mark.parametrize(
    ("query", "oracle"),
    [
        ("q1", converted),
        ("q4", average_winning_bids),
        ("q11", sessions),
        ("q13", with_values),
        ("q14", with_letters_counted),
        ("q18", last_bids),
    ],
)
def test_final_rows_of_flink_are_those_of_plain_python(
    events: list[Event], inputs: FlinkInputs, query: str, oracle: Callable[[list[Event]], Rows]
) -> None:
    assert result(query, inputs) == oracle(events)


def test_a_measured_run_takes_time_of_the_clock_and_of_processors(inputs: FlinkInputs, tmp_path: Path) -> None:
    taken = measure("q10", inputs)
    assert taken.seconds > 0
    assert taken.cpu_seconds > 0
    assert list(inputs.folder.glob("tmp*")) == []
