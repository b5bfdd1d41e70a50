"""The results of Nexmark's queries of patterns in plain Python, row by row."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

from benchmarks.nexmark.changelog import Row, Rows

Event = dict[str, Any]
Bids = Sequence[Event]
_FIVE_SECONDS = timedelta(seconds=5)


class Unfinished(Exception):
    """The rows have ended before a match has: later matches wait for it, and are not in the result."""


def falls(bids: Iterable[Event]) -> Rows:
    """Returns the result of cep0."""
    return _matches(bids, _fall, lambda start, end: end)


def runs(bids: Iterable[Event]) -> Rows:
    """Returns the result of cep1."""
    return _matches(bids, _run, lambda start, end: end + 1)


def overlapping_runs(bids: Iterable[Event]) -> Rows:
    """Returns the result of cep2."""
    return _matches(bids, _run, lambda start, end: start + 1)


def drops(bids: Iterable[Event]) -> Rows:
    """Returns the result of cep3."""
    return _matches(bids, _drop, lambda start, end: end + 1)


_Match = Callable[[Bids, int], tuple[int, Row] | None]
"""Returns the last position and the row of the match that begins at a position."""


def _matches(bids: Iterable[Event], match: _Match, following: Callable[[int, int], int]) -> Rows:
    found: Rows = Counter()
    for of_key in _by_key(bids):
        found.update(_of_key(of_key, match, following))
    return found


def _by_key(bids: Iterable[Event]) -> Iterable[Bids]:
    by_key: defaultdict[Row, list[Event]] = defaultdict(list)
    for bid in sorted(bids, key=lambda bid: bid["dateTime"]):
        by_key[bid["auction"], bid["bidder"]].append(bid)
    return by_key.values()


def _of_key(bids: Bids, match: _Match, following: Callable[[int, int], int]) -> Iterator[Row]:
    at = 0
    while at < len(bids):
        try:
            found = match(bids, at)
        except Unfinished:
            return
        if found is None:
            at += 1
        else:
            yield found[1]
            at = following(at, found[0])


def _fall(bids: Bids, start: int) -> tuple[int, Row] | None:
    at = start
    while at + 1 < len(bids) and bids[at + 1]["price"] < bids[at]["price"]:
        at += 1
    if at + 1 == len(bids):
        raise Unfinished
    # The last price but one that fell: the first one did not fall.
    if at - start < 2 or bids[at + 1]["price"] <= bids[at - 1]["price"]:
        return None
    times = [bids[each]["dateTime"] for each in (start, at, at + 1)]
    return at + 1, (bids[start]["auction"], bids[start]["bidder"], *times)


def _run(bids: Bids, start: int) -> tuple[int, Row] | None:
    total = 0
    for at in range(start, len(bids)):
        longer = total + bids[at]["price"]
        if longer >= 10_000 * (at - start + 1):
            if at == start:
                return None
            own = bids[start]["auction"], bids[start]["bidder"]
            times = bids[start]["dateTime"], bids[at - 1]["dateTime"]
            return at, (*own, *times, total // (at - start))
        total = longer
    raise Unfinished


def _drop(bids: Bids, start: int) -> tuple[int, Row] | None:
    high = bids[start]
    for at in range(start + 1, len(bids)):
        bid = bids[at]
        if bid["dateTime"] - high["dateTime"] >= _FIVE_SECONDS or bid["price"] == high["price"] - 50:
            return None
        if bid["price"] < high["price"] - 50:
            return at, (bid["auction"], bid["bidder"], bid["dateTime"], high["price"] - bid["price"])
    return None  # its time ends with the input
