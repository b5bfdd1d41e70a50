"""The results in plain Python of the queries that Flink cannot run, for a few events that are checked by hand."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.nexmark.generator import SCHEMA, generate
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


def test_winning_bids_of_the_same_time_are_in_the_order_of_their_auctions() -> None:
    opened = [auction(1, 7, 0, 100), auction(2, 7, 0, 100)]
    for bids in ([bid(2, 10, 5), bid(1, 31, 5)], [bid(1, 31, 5), bid(2, 10, 5)]):
        assert average_selling_prices(table(*opened, *bids)) == Counter({(7, 31): 1, (7, 20): 1})


def test_bids_are_counted_in_windows_of_their_arrival() -> None:
    events = table(bid(1, 5, 0, 3), auction(2, 7, 0, 9), bid(1, 5, 90, 3), bid(1, 5, 0, 4), bid(2, 5, 0, 3))
    arrivals = np.array([0, 5_000, 9_999, 10_000, 20_001])
    epoch = datetime(1970, 1, 1)  # noqa: DTZ001 - without time zone, as Flink's times
    first, second, third = (epoch + timedelta(seconds=seconds) for seconds in (0, 10, 20))
    assert bids_by_arrival(events, arrivals) == Counter(
        [(3, 2, first, second), (4, 1, second, third), (3, 1, third, third + timedelta(seconds=10))]
    )


def test_generated_auctions_have_at_most_one_row_each() -> None:
    events = generate(Stream(), 0, 20_000)
    result = average_selling_prices(events)
    assert 800 < result.total() <= 1_200
    arrivals = np.zeros(len(events), np.int64)
    counts = [row[1] for row in bids_by_arrival(events, arrivals) if isinstance(row[1], int)]
    assert sum(counts) == 20_000 * 46 // 50
