"""Joins of streams that other operators emit: timers fire between batches only, and the pairs are the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from stateflow import TumblingEventTimeWindows
from stateflow.api.streams.data_stream import DataStream
from stateflow.testing import KeyedHarness
from tests.joins.joined_rows import EmitPair, Keyed, Left, Pair, Right, harness, ms, pair_of, unkeyed

Declare = Callable[[Keyed, Keyed], DataStream]


def _interval(left: Keyed, right: Keyed) -> DataStream:
    return left.interval_join(right).between(ms(-5), ms(10)).process(EmitPair(), output=Pair, uid="join")


def _window(left: Keyed, right: Keyed) -> DataStream:
    windows = unkeyed(left).join(unkeyed(right)).where("key").equal_to("id").window(TumblingEventTimeWindows.of(ms(20)))
    return windows.apply(pair_of, output=Pair, uid="join")


def _temporal(left: Keyed, right: Keyed) -> DataStream:
    return left.temporal_join(right, how="left").apply(pair_of, output=Pair, uid="join")


LEFTS = [Left("ab"[n % 2], n * 7 % 200, n) for n in range(60)]
RIGHTS = [Right("ab"[n % 3 % 2], n * 11 % 200, str(n)) for n in range(60)]


def _wanted(declare: Declare) -> Counter[Pair]:
    pairs = [(x, y, (y.at or 0) - (x.at or 0)) for x in LEFTS for y in RIGHTS if x.key == y.id]
    if declare is _interval:
        return Counter(pair_of(x, y) for x, y, after in pairs if -5 <= after <= 10)
    if declare is _window:
        return Counter(pair_of(x, y) for x, y, _ in pairs if (x.at or 0) // 20 == (y.at or 0) // 20)
    found: Counter[Pair] = Counter()
    for x in LEFTS:
        before = [y for row, y, after in pairs if row is x and after <= 0]
        found[pair_of(x, max(before, key=lambda y: y.at or 0) if before else None)] += 1
    return found


@pytest.mark.parametrize(("both", "size"), [(False, 60), (True, 7)])
@pytest.mark.parametrize("declare", [_interval, _window, _temporal])
def test_a_join_after_an_operator_has_the_same_pairs(declare: Declare, size: int, both: bool) -> None:
    def after_maps(left: Keyed, right: Keyed) -> DataStream:
        mapped = left.map(lambda row: row, uid="left").key_by("key")
        return declare(mapped, right.map(lambda row: row, uid="right").key_by("id") if both else right)

    found: Counter[Pair] = Counter()
    h = harness(after_maps, 200)
    for start in range(0, 60, size):
        found.update(h.push_both(LEFTS[start : start + size], RIGHTS[start : start + size]))
        if start == 28:
            with h:
                h = KeyedHarness.restore(h.snapshot(), parallelism=3)
    with h:
        found.update(h.drain())
        assert h.timers("join") == []
    assert found == _wanted(declare)
