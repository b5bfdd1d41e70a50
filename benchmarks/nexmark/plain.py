"""The results of Nexmark's queries in plain Python, for few events: what tests compare Flink and this project with."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa

from benchmarks.nexmark import patterns
from benchmarks.nexmark.changelog import Row, Rows
from benchmarks.nexmark.reference import average_selling_prices
from benchmarks.nexmark.rules import AUCTION, BID, PERSON

Event = dict[str, Any]
_PREFIXES = {PERSON: "person_", AUCTION: "auction_", BID: "bid_"}
_PAUSE = timedelta(seconds=10)
_EURO = Decimal("0.908")
_CHANNEL_ID = re.compile("(?:&|^)channel_id=([^&]*)")
_HOT_CHANNELS = {"apple": "0", "google": "1", "facebook": "2", "baidu": "3"}
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - Flink's TIMESTAMP has no time zone


class Events:
    """Events of a table, in their order: those of each type, with the names that Nexmark's views have."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        rows = table.to_pylist()
        self.persons = list(_of_type(rows, PERSON))
        self.auctions = list(_of_type(rows, AUCTION))
        self.bids = list(_of_type(rows, BID))

    def bids_of_auctions(self) -> Iterator[tuple[Event, Event]]:
        """Yields each bid with its auction, if there is one."""
        auctions = {auction["id"]: auction for auction in self.auctions}
        for bid in self.bids:
            if bid["auction"] in auctions:
                yield auctions[bid["auction"]], bid

    def winning(self) -> Iterator[tuple[Event, Event]]:
        """Yields auctions with their highest bid while they are open: of equal ones, the first."""
        highest: dict[int, tuple[Event, Event]] = {}
        for auction, bid in self.bids_of_auctions():
            if auction["dateTime"] <= bid["dateTime"] <= auction["expires"]:
                before = highest.get(auction["id"])
                if before is None or bid["price"] > before[1]["price"]:
                    highest[auction["id"]] = (auction, bid)
        yield from highest.values()


def _of_type(rows: list[Event], event_type: int) -> Iterator[Event]:
    prefix = _PREFIXES[event_type]
    for row in rows:
        if row["event_type"] == event_type:
            own = {name.removeprefix(prefix): row[name] for name in row if name.startswith(prefix)}
            yield {**own, "dateTime": row["dateTime"], "extra": row["extra"]}


def _columns(row: Event, names: str) -> Row:
    return tuple(row[name] for name in names.split())


_BID = "auction bidder price channel url dateTime extra"
_AUCTION = "itemName description initialBid reserve dateTime expires seller category extra"


def _converted(events: Events) -> Rows:
    rows = ((bid["auction"], bid["bidder"], _EURO * bid["price"], bid["dateTime"], bid["extra"]) for bid in events.bids)
    return Counter(rows)


def _sellers_of_three_states(events: Events) -> Rows:
    persons = {person["id"]: person for person in events.persons if person["state"] in ("OR", "ID", "CA")}
    return Counter(
        (*_columns(persons[auction["seller"]], "name city state"), auction["id"])
        for auction in events.auctions
        if auction["category"] == 10 and auction["seller"] in persons
    )


def _average_winning_bids(events: Events) -> Rows:
    prices = defaultdict(list)
    for auction, bid in events.winning():
        prices[auction["category"]].append(bid["price"])
    return Counter((category, sum(some) // len(some)) for category, some in prices.items())


def _most_bids(events: Events) -> Rows:
    counts: defaultdict[datetime, Counter[int]] = defaultdict(Counter)
    for bid in events.bids:
        newest = _start(bid["dateTime"], 2)
        for number in range(5):
            counts[newest - number * timedelta(seconds=2)][bid["auction"]] += 1
    return Counter(
        (auction, count)
        for window in counts.values()
        for auction, count in window.items()
        if count == max(window.values())
    )


def _highest_bids(events: Events) -> Rows:
    highest: dict[datetime, int] = {}
    for bid in events.bids:
        start = _start(bid["dateTime"], 10)
        highest[start] = max(highest.get(start, 0), bid["price"])
    # A bid at the end of a window counts for the window that it ends, too.
    return Counter(
        _columns(bid, "auction price bidder dateTime extra")
        for bid in events.bids
        for start, price in highest.items()
        if bid["price"] == price and start <= bid["dateTime"] <= start + timedelta(seconds=10)
    )


def _new_sellers(events: Events) -> Rows:
    sellers = {(auction["seller"], _start(auction["dateTime"], 10)) for auction in events.auctions}
    windows = [(person["id"], person["name"], _start(person["dateTime"], 10)) for person in events.persons]
    return Counter(row for row in windows if (row[0], row[2]) in sellers)


def _winning_bids(events: Events) -> Rows:
    return Counter(
        (*_columns(auction, f"id {_AUCTION}"), *_columns(bid, "auction bidder price dateTime extra"))
        for auction, bid in events.winning()
    )


def _partitioned(events: Events) -> Rows:
    return Counter(
        (
            *_columns(bid, "auction bidder price dateTime extra"),
            f"{bid['dateTime']:%Y-%m-%d}",
            f"{bid['dateTime']:%H:%M}",
        )
        for bid in events.bids
    )


def _sessions(events: Events) -> Rows:
    found: list[Row] = []
    opened: dict[int, tuple[int, datetime, datetime]] = {}
    # Bids in the order of their times. Flink merges a session and one that starts exactly at its end.
    for bid in sorted(events.bids, key=lambda bid: bid["dateTime"]):
        bidder, at = bid["bidder"], bid["dateTime"]
        count, start, end = opened.get(bidder, (0, at, at))
        if at > end:
            found.append((bidder, count, start, end))
            count, start = 0, at
        opened[bidder] = (count + 1, start, at + _PAUSE)
    return Counter([*found, *((bidder, *session) for bidder, session in opened.items())])


def _with_values(events: Events) -> Rows:
    return Counter(
        (*_columns(bid, "auction bidder price dateTime"), str(bid["auction"] % 10_000)) for bid in events.bids
    )


def _with_letters_counted(events: Events) -> Rows:
    rows: Rows = Counter()
    for bid in events.bids:
        price, hour = _EURO * bid["price"], bid["dateTime"].hour
        if 1_000_000 < price < 50_000_000:
            part = "dayTime" if 8 <= hour <= 18 else "nightTime" if hour <= 6 or hour >= 20 else "otherTime"
            own = (bid["auction"], bid["bidder"], price, part, bid["dateTime"], bid["extra"])
            rows[(*own, bid["extra"].count("c"))] += 1
    return rows


def _counts(bids: list[Event], *distinct: str) -> Row:
    """All bids and those of three ranges of prices: how many, and how many different values of columns."""
    bounds = (0, 10_000, 1_000_000, 1 << 62)
    ranges = [bids, *([b for b in bids if low <= b["price"] < high] for low, high in pairwise(bounds))]
    return (*map(len, ranges), *(len({bid[name] for bid in some}) for name in distinct for some in ranges))


def _grouped(events: Events, *names: str) -> dict[Row, list[Event]]:
    groups = defaultdict(list)
    for bid in events.bids:
        groups[(*(bid[name] for name in names), f"{bid['dateTime']:%Y-%m-%d}")].append(bid)
    return groups


def _statistics_of_days(events: Events) -> Rows:
    return Counter((*key, *_counts(bids, "bidder", "auction")) for key, bids in _grouped(events).items())


def _statistics_of_channels(events: Events) -> Rows:
    return Counter(
        (*key, max(f"{bid['dateTime']:%H:%M}" for bid in bids), *_counts(bids, "bidder", "auction"))
        for key, bids in _grouped(events, "channel").items()
    )


def _statistics_of_auctions(events: Events) -> Rows:
    rows: Rows = Counter()
    for key, bids in _grouped(events, "auction").items():
        prices = [bid["price"] for bid in bids]
        rows[(*key, *_counts(bids), min(prices), max(prices), sum(prices) // len(prices), sum(prices))] += 1
    return rows


def _last_bids(events: Events) -> Rows:
    """Of bids at the same time, the last one in the stream."""
    ordered = sorted(events.bids, key=lambda bid: bid["dateTime"])
    last = {(bid["bidder"], bid["auction"]): bid for bid in ordered}
    return Counter(_columns(bid, _BID) for bid in last.values())


def _ten_highest_bids(events: Events) -> Rows:
    """Of equal prices, the first in the stream."""
    by_auction = defaultdict(list)
    for bid in events.bids:
        by_auction[bid["auction"]].append(bid)
    return Counter(
        (*_columns(bid, _BID), rank)
        for bids in by_auction.values()
        for rank, bid in enumerate(sorted(bids, key=lambda bid: -bid["price"])[:10], 1)
    )


def _bids_with_auctions(events: Events) -> Rows:
    return Counter(
        (*_columns(bid, _BID), *_columns(auction, _AUCTION))
        for auction, bid in events.bids_of_auctions()
        if auction["category"] == 10
    )


def _with_channel_ids(events: Events) -> Rows:
    rows: Rows = Counter()
    for bid in events.bids:
        found = _CHANNEL_ID.search(bid["url"])
        number = _HOT_CHANNELS.get(bid["channel"].lower(), found and found[1])
        if number is not None:
            rows[(*_columns(bid, "auction bidder price channel"), number)] += 1
    return rows


def _with_directories(events: Events) -> Rows:
    return Counter((*_columns(bid, "auction bidder price channel"), *bid["url"].split("/")[3:6]) for bid in events.bids)


def _bids_of_sellers(events: Events) -> Rows:
    persons = {person["id"]: person for person in events.persons}
    sold = defaultdict(list)
    for auction in events.auctions:
        sold[auction["seller"]].append(auction)
    person = "id name emailAddress creditCard city state extra"
    return Counter(
        (
            *_columns(bid, "bidder price channel url extra"),
            *_columns(persons[bid["bidder"]], person),
            *_columns(auction, _AUCTION),
        )
        for bid in events.bids
        if bid["bidder"] in persons
        for auction in sold[bid["bidder"]]
    )


def _start(at: datetime, seconds: int) -> datetime:
    size = timedelta(seconds=seconds)
    return at - (at - _EPOCH) % size


RESULTS: dict[str, Callable[[Events], Rows]] = {
    "q0": lambda events: Counter(_columns(bid, "auction bidder price dateTime extra") for bid in events.bids),
    "q1": _converted,
    "q2": lambda events: Counter(_columns(bid, "auction price") for bid in events.bids if bid["auction"] % 123 == 0),
    "q3": _sellers_of_three_states,
    "q4": _average_winning_bids,
    "q5": _most_bids,
    "q6": lambda events: average_selling_prices(events.table),
    "q7": _highest_bids,
    "q8": _new_sellers,
    "q9": _winning_bids,
    "q10": _partitioned,
    "q11": _sessions,
    "q13": _with_values,
    "q14": _with_letters_counted,
    "q15": _statistics_of_days,
    "q16": _statistics_of_channels,
    "q17": _statistics_of_auctions,
    "q18": _last_bids,
    "q19": _ten_highest_bids,
    "q20": _bids_with_auctions,
    "q21": _with_channel_ids,
    "q22": _with_directories,
    "q23": _bids_of_sellers,
    "cep0": lambda events: patterns.falls(events.bids),
    "cep1": lambda events: patterns.runs(events.bids),
    "cep2": lambda events: patterns.overlapping_runs(events.bids),
    "cep3": lambda events: patterns.drops(events.bids),
}
"""Final rows by query. Without q12, whose result depends on the clock."""
