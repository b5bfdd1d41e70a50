"""Results in plain Python of Nexmark's queries, for a few events that are checked by hand."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.nexmark.flink import QUERIES
from benchmarks.nexmark.generator import SCHEMA, generate
from benchmarks.nexmark.plain import RESULTS, Events
from benchmarks.nexmark.reference import average_selling_prices, bids_by_arrival
from benchmarks.nexmark.rules import AUCTION, BID, Stream

START = datetime(2015, 7, 15)  # noqa: DTZ001 - as in the events


def at(seconds: int) -> datetime:
    return START + timedelta(seconds=seconds)


def auction(number: int, seller: int, opened: int, expires: int) -> dict[str, Any]:
    own = {"auction_id": number, "auction_seller": seller, "auction_expires": at(expires)}
    return {"event_type": AUCTION, "dateTime": at(opened), "extra": "", **own}


def bid(number: int, price: int, seconds: int, bidder: int = 1) -> dict[str, Any]:
    own = {"bid_auction": number, "bid_price": price, "bid_bidder": bidder}
    return {"event_type": BID, "dateTime": at(seconds), "extra": "", **own}


def table(*events: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(events), schema=SCHEMA)


def test_the_highest_bid_wins_that_is_made_while_the_auction_is_open() -> None:
    events = table(
        bid(1, 5, 10),
        auction(1, 7, 10, 20),
        *(bid(1, 900, 9), bid(1, 30, 10), bid(1, 40, 20), bid(1, 800, 21)),
        *(auction(2, 7, 10, 20), bid(2, 10, 15)),
        auction(3, 8, 10, 20),
    )
    # The bid of 10 is earlier than that of 40.
    assert average_selling_prices(events) == Counter({(7, 10): 1, (7, 25): 1})


def test_an_average_is_that_of_eleven_auctions_of_the_seller_rounded_down() -> None:
    events = [each for n in range(13) for each in (auction(n, 7, 0, 100), bid(n, 2**n, n))]
    averages = [(2 ** (n + 1) - 2 ** max(n - 10, 0)) // min(n + 1, 11) for n in range(13)]
    assert average_selling_prices(table(*events)) == Counter((7, average) for average in averages)


def test_bids_are_counted_in_windows_of_their_arrival() -> None:
    events = table(bid(1, 5, 0, 3), auction(2, 7, 0, 9), bid(1, 5, 90, 3), bid(1, 5, 0, 4), bid(2, 5, 0, 3))
    arrivals = np.array([0, 5_000, 9_999, 10_000, 20_001])
    epoch = datetime(1970, 1, 1)  # noqa: DTZ001 - without time zone, as Flink's times
    first, second, third = (epoch + timedelta(seconds=seconds) for seconds in (0, 10, 20))
    assert bids_by_arrival(events, arrivals) == Counter(
        [(3, 2, first, second), (4, 1, second, third), (3, 1, third, third + timedelta(seconds=10))]
    )


def test_each_query_whose_result_does_not_depend_on_the_clock_has_one() -> None:
    events = Events(generate(Stream(events_per_second=40), 0, 2_000))
    assert {*RESULTS} == {query for query in QUERIES if query != "q12"}
    # No bidder of so few events is one of their persons.
    assert [query for query, result in RESULTS.items() if not result(events)] == ["q23"]


def test_sessions_that_touch_are_one() -> None:
    bids = Events(table(bid(1, 5, 0, 3), bid(1, 5, 10, 3), bid(1, 5, 21, 3)))
    assert RESULTS["q11"](bids) == Counter([(3, 2, at(0), at(20)), (3, 1, at(21), at(31))])


def test_a_bid_at_the_end_of_a_window_counts_for_its_highest_price_too() -> None:
    bids = Events(table(bid(1, 5, 3), bid(2, 5, 10), bid(3, 4, 10), bid(4, 9, 15)))
    assert sorted(row[0] for row in RESULTS["q7"](bids).elements() if isinstance(row[0], int)) == [1, 2, 4]


def test_bids_are_ranked_by_price_and_then_by_their_order() -> None:
    prices = [7, 3, 7, *range(10, 18), 3]
    rows = RESULTS["q19"](Events(table(auction(1, 7, 0, 9), *(bid(1, price, n, n) for n, price in enumerate(prices)))))
    bidders = {rank: bidder for _, bidder, *_, rank in rows}
    assert [bidders[rank] for rank in range(1, 11)] == [10, 9, 8, 7, 6, 5, 4, 3, 0, 2]
