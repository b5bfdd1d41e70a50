"""Patterns have the matches of Flink's own tests, and remove what has matched."""

from __future__ import annotations

import pytest

from stateflow import Pattern
from stateflow.errors import StateError, UserCodeError
from tests.patterns.flink_cases import C_ANY_A, GROUPS, E, Skip, missed, ms
from tests.patterns.pattern_rows import TIMED_OUT, harness, matches, rows_of, texts

CASES = [pytest.param(*case, id=f"{group}: {name}") for group, cases in GROUPS.items() for name, case in cases.items()]


@pytest.mark.parametrize(("pattern", "rows", "found"), CASES)
def test_matches_are_those_of_flink(pattern: Pattern, rows: str, found: str) -> None:
    assert matches(pattern, rows) == sorted(found.split(", ") if found else [])


def test_partial_matches_that_exceed_the_time_limit_go_to_a_side_output() -> None:
    with harness(C_ANY_A.followed_by_any("e", E).within(ms(10))) as h:
        h.push(*rows_of("c1@1 c2@2 a@3 x@4 e1@11 e2@13"))
        h.drain()
        assert texts(h.output) == ["c2 a e1"]
        assert texts(h.side_output(TIMED_OUT)) == ["c1", "c1 a", "c2", "c2 a"]
        assert h.state_entries() == [] and h.timers() == []


@pytest.mark.parametrize("skip", [Skip.skip_to_first("b"), Skip.skip_to_last("b")])
def test_a_match_without_the_stage_to_skip_to_may_be_an_error(skip: Skip) -> None:
    with harness(missed(skip.raise_on_miss())) as h, pytest.raises((StateError, UserCodeError)):
        h.push(*rows_of("a c"))
        h.drain()


def test_what_has_matched_is_removed() -> None:
    with harness(Pattern.begin("s", skip=Skip.skip_past_last_row()).times(2)) as h:
        h.push(*rows_of("a1 a2 a3 a4"))
        h.drain()
        assert texts(h.output) == ["a1 a2", "a3 a4"] and h.state_entries() == []
