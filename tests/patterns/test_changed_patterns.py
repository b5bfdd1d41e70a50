"""A job whose pattern is changed: what it can continue with, and what is refused before a run."""

from __future__ import annotations

from datetime import timedelta

import pytest

from stateflow import AfterMatchSkipStrategy, MatchedRows, Pattern
from stateflow.errors import IncompatibleState
from stateflow.testing import KeyedHarness
from stateflow.testing.harness.batches import HarnessSnapshot
from tests.patterns.pattern_rows import TIMED_OUT, Row, harness, matching, named, rows_of, texts
from tests.support.errors import raises

A, B, C = named("a"), named("b"), named("c")
PATTERN = Pattern.begin("one", A).followed_by("two", B)


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


def same_price(row: Row, matched: MatchedRows[Row]) -> bool:
    first = matched.first("one")
    return first is not None and first.price == row.price


def _open_match(pattern: Pattern) -> HarnessSnapshot:
    """A snapshot with a partial match, of a row at 1."""
    with harness(pattern) as h:
        h.push(*rows_of("a@1"))
        h.advance_watermark(1)
        return h.snapshot()


@pytest.mark.parametrize(
    "changed",
    [
        PATTERN.next("three", C), PATTERN.one_or_more(), PATTERN.optional(),
        Pattern.begin("one", A).followed_by_any("two", B), Pattern.begin("one", A).followed_by("second", B),
    ],
    ids=lambda pattern: pattern.structure,
)  # fmt: skip
def test_other_stages_are_refused_before_a_run(changed: Pattern) -> None:
    snapshot = _open_match(PATTERN)
    facts = {
        "name": "partial-matches", "operator": "matches", "field": "PartialMatches.pattern",
        "stored": f'literal["{PATTERN.structure}"]', "declared": f'literal["{changed.structure}"]',
    }  # fmt: skip
    with raises(IncompatibleState, **facts):
        KeyedHarness.restore(snapshot, matching(changed))


def test_other_conditions_and_another_strategy_continue() -> None:
    changed = Pattern.begin("one", A, skip=AfterMatchSkipStrategy.skip_to_next()).followed_by("two", C)
    with KeyedHarness.restore(_open_match(PATTERN), matching(changed)) as h:
        h.push(*rows_of("b@2 c@3"))
        h.drain()
        assert texts(h.output) == ["a c"]


def test_matches_that_wait_are_emitted_when_nothing_is_skipped_now() -> None:
    waiting = Pattern.begin("one", named("a", "b"), skip=AfterMatchSkipStrategy.skip_past_last_row())
    waiting = waiting.followed_by("two", same_price)
    rows = rows_of("a:1 b:2 c:2 d:1")
    with harness(waiting) as h:
        h.push(*rows[:3])
        assert h.advance_watermark(3) == []
        snapshot = h.snapshot()
    without = Pattern.begin("one", named("a", "b")).followed_by("two", same_price)
    with KeyedHarness.restore(snapshot, matching(without)) as h:
        h.push(rows[3])
        h.drain()
        assert texts(h.output) == ["a d", "b c"]


@pytest.mark.parametrize(("before", "after", "found"), [(10, 100, ["a b"]), (100, 10, []), (10, None, ["a b"])])
def test_another_time_limit_is_that_of_open_matches_too(before: int, after: int | None, found: list[str]) -> None:
    pattern = PATTERN if after is None else PATTERN.within(ms(after))
    tags = () if after is None else (TIMED_OUT,)
    with KeyedHarness.restore(_open_match(PATTERN.within(ms(before))), matching(pattern), side_outputs=tags) as h:
        h.push(*rows_of("b@50"))
        h.advance_watermark(60)
        assert texts(h.output) == found
        assert (h.state_entries() == []) == (found == [] or after is None or after == 100)
