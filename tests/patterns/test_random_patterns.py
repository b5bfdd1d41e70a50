"""Random patterns over random rows, compared with all sequences of rows, at any batch size, parallelism and restore.

For more of them: ``HYPOTHESIS_PROFILE=nightly python -m pytest tests/patterns/test_random_patterns.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow import (
    AfterMatchSkipStrategy,
    Context,
    KeyedProcessFunction,
    ListStateDescriptor,
    OnTimerContext,
    Pattern,
    RuntimeContext,
)
from stateflow.api.streams.data_stream import DataStream
from stateflow.api.streams.keyed_stream import KeyedStream
from stateflow.testing import KeyedHarness, KeyedInput
from tests.patterns.brute_force import Numbered, Path, Rule, Search, kept
from tests.support.examples import one_in

Skip = AfterMatchSkipStrategy
Assigned = tuple[tuple[str, int], ...]


class Row(msgspec.Struct, frozen=True):
    key: str
    at: int
    name: str
    price: float
    number: int


class Found(msgspec.Struct, frozen=True):
    stages: list[str]
    numbers: list[int]

    @property
    def assigned(self) -> Assigned:
        return tuple(sorted(zip(self.stages, self.numbers, strict=True), key=lambda pair: pair[1]))


class Delay(KeyedProcessFunction[Row, Row]):
    """Emits the rows of every other time when the watermark reaches it, and all others at once."""

    def open(self, ctx: RuntimeContext) -> None:
        self.delayed = ctx.get_list_state(ListStateDescriptor("delayed", Row))

    def process_element(self, row: Row, ctx: Context) -> Iterator[Row]:
        if row.at % 2:
            yield row
            return
        self.delayed.add(row)
        ctx.timer_service().register_event_time_timer(row.at)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Row]:
        rows = list(self.delayed.get())
        self.delayed.update([row for row in rows if row.at != timestamp])
        yield from (row for row in rows if row.at == timestamp)


@dataclass(frozen=True)
class History:
    """Rows in the order of arrival.

    Attributes:
        batches: how many rows each has, and the parallelism before it or 0.
        disorder: the out-of-orderness, in milliseconds.
        order_by: the declared order of a key's rows in a batch.
        is_delayed: whether the rows come from an operator that delays some of them.
    """

    rows: tuple[Row, ...]
    batches: tuple[tuple[int, int], ...]
    disorder: int = 4
    order_by: tuple[str, ...] = ()
    is_delayed: bool = False


def _rules(rules: list[Rule]) -> tuple[Rule, ...]:
    """Changes what cannot be declared; the neighbours of a negative stage match one row."""
    found: list[Rule] = []
    for rule in rules:
        before = found[-1] if found else None
        if rule.is_negative:
            if before is None or before.is_negative:
                continue
            found[-1] = before.plain
            found.append(rule.plain)
        elif before is not None and before.is_negative:
            found.append(rule.plain)
        else:
            found.append(rule.declarable(before))
    return tuple(found[:-1] if found and found[-1].is_negative else found)


rules = (
    st.lists(
        st.builds(
            Rule,
            st.sampled_from(["next", "followed_by", "followed_by", "followed_by_any", "not_next", "not_followed_by"]),
            st.sampled_from(["a", "b", "ab", "abc"]),
            st.integers(1, 3),
            st.sampled_from([1, 1, 1, 2, 3, None]),
            st.booleans(),
            st.sampled_from(["", "consecutive", "allow_combinations"]),
            st.booleans(),
            st.booleans(),
        ),
        min_size=1,
        max_size=4,
    )
    .map(_rules)
    .filter(bool)
)


@st.composite
def histories(draw: st.DrawFn) -> History:
    events = draw(
        st.lists(
            st.tuples(
                st.integers(0, 14), st.sampled_from("kkj"), st.sampled_from("aabbc"), st.integers(0, 2),
                st.integers(0, 4),
            ),
            min_size=3,
            max_size=11,
        )
    )  # fmt: skip
    disorder = draw(st.sampled_from([0, 4]))
    # No row is later than declared.
    arrived = sorted(events, key=lambda event: event[0] + min(event[4], disorder))
    rows = tuple(Row(key, at, name, price, number) for number, (at, key, name, price, _) in enumerate(arrived))
    batches = st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0, 0, 0, 1, 3])), max_size=6).map(tuple)
    order_by = draw(st.sampled_from([(), (), ("at",)]))
    return History(rows, draw(batches), disorder, order_by, draw(st.booleans()))


def _assigned(match: Mapping[str, list[Row]]) -> Found:
    rows = [(stage, row.number) for stage, some in match.items() for row in some]
    return Found([stage for stage, _ in rows], [number for _, number in rows])


def _run(pattern: Pattern, history: History) -> list[Assigned]:
    def declare(rows: KeyedStream[DataStream]) -> DataStream:
        if history.is_delayed:
            rows = rows.process(Delay(), output=Row, uid="delay").key_by("key", order_by=history.order_by)
        return rows.match_pattern(pattern).select(_assigned, output=Found, uid="matches")

    disorder = timedelta(milliseconds=history.disorder)
    given_rows = KeyedInput(Row, "key", history.order_by, event_time="at", out_of_orderness=disorder)
    found, left = list[Found](), list(history.rows)
    h = KeyedHarness(declare, given_rows)
    for size, parallelism in history.batches:
        if parallelism:
            with h:
                h = KeyedHarness.restore(h.snapshot(), parallelism=parallelism)
        found += h.push(*left[:size])
        left = left[size:]
    with h:
        found += h.push(*left) + h.drain()
        if pattern.within_ms is not None:
            assert h.state_entries(uid="matches") == [] and h.timers(uid="matches") == []
    return [each.assigned for each in found]


def _of_key(history: History, key: str) -> tuple[list[Row], tuple[Numbered, ...]]:
    rows = sorted((row for row in history.rows if row.key == key), key=lambda row: row.at)
    return rows, tuple(Numbered(at, row.at, row.name, row.price) for at, row in enumerate(rows))


def _expected(found: tuple[Rule, ...], history: History, within: int | None, skip: Skip) -> list[Assigned] | None:
    """All matches; None if a strategy has a choice, because two matches have the same first and last row."""
    expected: list[Assigned] = []
    for key in "jk":
        rows, numbered = _of_key(history, key)
        paths = Search(found, numbered, within).matches()
        ends = Counter((path[0][1].position, path[-1][1].position) for path in paths)
        if skip.skips and max(ends.values(), default=0) > 1:
            return None
        expected += [_numbers(path, rows) for path in kept(paths, skip)]
    return expected


def _numbers(path: Path, rows: list[Row]) -> Assigned:
    pairs = [(f"s{number}", rows[row.position].number) for number, row in path]
    return tuple(sorted(pairs, key=lambda pair: pair[1]))


def _check(found: tuple[Rule, ...], history: History, within: int | None, skip: Skip) -> None:
    expected = _expected(found, history, within, skip)
    pattern: Pattern | None = None
    for number, rule in enumerate(found):
        pattern = rule.declared(pattern, f"s{number}", skip)
    assert pattern is not None
    pattern = pattern if within is None else pattern.within(timedelta(milliseconds=within))
    matched = _run(pattern, history)
    if expected is not None:
        assert Counter(matched) == Counter(expected)


skips = st.sampled_from(
    [Skip.skip_to_next(), Skip.skip_past_last_row(), Skip.skip_to_first("s0"), Skip.skip_to_last("s0")]
)


@pytest.mark.long(reason="draws many patterns and histories")
@one_in(3)
@given(rules, histories(), st.sampled_from([None, None, 1, 4, 9]))
def test_matches_are_all_sequences_that_keep_the_rules(
    found: tuple[Rule, ...], history: History, within: int | None
) -> None:
    _check(found, history, within, Skip.no_skip())


@pytest.mark.long(reason="draws many patterns and histories")
@one_in(3)
@given(rules, histories(), st.sampled_from([2, 5, 9, 20]), skips)
def test_skipped_matches_are_those_after_earlier_ones(
    found: tuple[Rule, ...], history: History, within: int, skip: Skip
) -> None:
    _check(found, history, within, skip)
