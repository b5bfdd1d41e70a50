"""Results in plain Python of Nexmark's queries: rules that few generated events do not show, and sums that agree."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta

import pytest

from benchmarks.nexmark.flink import QUERIES
from benchmarks.nexmark.generator import generate
from benchmarks.nexmark.plain import RESULTS, Events
from benchmarks.nexmark.rules import PERSON, Stream
from tests.benchmarks.nexmark.test_reference import START, auction, bid, table


@pytest.fixture(scope="module")
def events() -> Events:
    return Events(generate(Stream(events_per_second=40), 0, 2_000))


def at(seconds: int) -> datetime:
    return START + timedelta(seconds=seconds)


def test_each_query_whose_result_does_not_depend_on_the_clock_has_one(events: Events) -> None:
    assert {*RESULTS} == {query for query in QUERIES if query != "q12"}
    # No bidder of so few events is one of their persons.
    assert [query for query, result in RESULTS.items() if not result(events)] == ["q23"]


@pytest.mark.parametrize("query", ["q0", "q1", "q10", "q13", "q22"])
def test_queries_without_a_condition_have_a_row_for_each_bid(events: Events, query: str) -> None:
    assert RESULTS[query](events).total() == len(events.bids) == 2_000 * 46 // 50


@pytest.mark.parametrize(("query", "column"), [("q11", 1), ("q15", 1), ("q16", 3), ("q17", 2)])
def test_counts_of_bids_add_up_to_all_bids(events: Events, query: str, column: int) -> None:
    counts = [row[column] for row in RESULTS[query](events).elements()]
    assert sum(count for count in counts if isinstance(count, int)) == len(events.bids)


def test_sessions_that_touch_are_one() -> None:
    bids = Events(table(bid(1, 5, 0, 3), bid(1, 5, 10, 3), bid(1, 5, 21, 3)))
    assert RESULTS["q11"](bids) == Counter([(3, 2, at(0), at(20)), (3, 1, at(21), at(31))])


def test_a_bid_at_the_end_of_a_window_counts_for_its_highest_price_too() -> None:
    bids = Events(table(bid(1, 5, 3), bid(2, 5, 10), bid(3, 4, 10), bid(4, 9, 15)))
    assert sorted(row[0] for row in RESULTS["q7"](bids).elements() if isinstance(row[0], int)) == [1, 2, 4]


def test_bids_of_sellers_have_a_row_for_each_auction_of_the_bidder() -> None:
    person = {"event_type": PERSON, "dateTime": at(0), "extra": "", "person_id": 7, "person_name": "Kate"}
    bids = [bid(1, 5, 1, 7), bid(1, 6, 1, 8), bid(9, 7, 1, 7), bid(9, 7, 1, 9)]
    rows = RESULTS["q23"](Events(table(person, auction(1, 7, 0, 9), auction(2, 7, 0, 9), auction(3, 9, 0, 9), *bids)))
    assert sorted(row[:2] for row in rows.elements()) == [(7, 5), (7, 5), (7, 7), (7, 7)]


def test_bids_are_ranked_by_price_and_then_by_their_order() -> None:
    prices = [7, 3, 7, *range(10, 18), 3]
    rows = RESULTS["q19"](Events(table(auction(1, 7, 0, 9), *(bid(1, price, n, n) for n, price in enumerate(prices)))))
    bidders = {rank: bidder for _, bidder, *_, rank in rows}
    assert [bidders[rank] for rank in range(1, 11)] == [10, 9, 8, 7, 6, 5, 4, 3, 0, 2]
