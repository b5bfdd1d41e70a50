"""Cases of Flink's own tests of patterns: NFAITCase, TimesRangeITCase, GreedyITCase, UntilConditionITCase,
NotPatternITCase, IterativeConditionsITCase and AfterMatchSkipITCase."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from stateflow import AfterMatchSkipStrategy, MatchedRows, Pattern
from stateflow.errors import StateError, UserCodeError
from tests.patterns.pattern_rows import TIMED_OUT, Row, harness, matches, named, rows_of, texts

Skip = AfterMatchSkipStrategy
A, B, C, D, E = (named(name) for name in "abcde")


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


def up_to(limit: float, name: str, stage: str) -> Callable[[Row, MatchedRows[Row]], bool]:
    """Rows of a name, as long as the sum of prices of the stage stays below a limit."""

    def condition(row: Row, matched: MatchedRows[Row]) -> bool:
        return row.name == name and sum(each.price for each in matched.rows(stage)) + row.price < limit

    return condition


START_C = Pattern.begin("start", C)
MANY = START_C.followed_by("middle", A).one_or_more()
ANY = START_C.followed_by_any("middle", A).one_or_more()
NEXT = START_C.next("middle", A)
AFTER_NOT = Pattern.begin("a", A).not_followed_by("not", B)

CONTIGUITY = {
    "no condition": (Pattern.begin("s").followed_by("e"), "a b c d e", ["a b", "b c", "c d", "d e"]),
    "any with no condition": (
        Pattern.begin("s").followed_by_any("e"),
        "a b c d",
        ["a b", "a c", "a d", "b c", "b d", "c d"],
    ),
    "strict": (Pattern.begin("s", A).next("e", B), "a@3 b@5", ["a b"]),
    "strict without a result": (Pattern.begin("s", A).next("e", B), "a c b", []),
    "relaxed": (START_C.followed_by("m", A).followed_by("e", B), "c x a1 a2 x b", ["c a1 b"]),
    "within": (
        START_C.followed_by("m", A).followed_by("e", B).within(ms(10)),
        "c1@1 c2@2 a@3 x@4 b1@11 b2@13",
        ["c2 a b1"],
    ),
    "branching": (
        START_C.followed_by_any("m", A).followed_by_any("n", B).followed_by_any("e", E),
        "c a1 a2 a3 b1 b2 e",
        [f"c a{n} b{m} e" for n in (1, 2, 3) for m in (1, 2)],
    ),
    "branching that skips till next": (
        START_C.followed_by("m", A).followed_by("n", B).followed_by_any("e", E),
        "c a1 a2 a3 b1 b2 e",
        ["c a1 b1 e"],
    ),
}

QUANTIFIERS = {
    "eager zero or more": (
        MANY.optional().followed_by("e", B),
        "c a1 a2 d a3 b",
        ["c a1 a2 a3 b", "c a1 a2 b", "c a1 b", "c b"],
    ),
    "zero or more combinations": (
        ANY.allow_combinations().optional().followed_by("e", B),
        "c a1 a2 b",
        ["c a1 a2 b", "c a1 b", "c a2 b", "c b"],
    ),
    "zero or more at the begin": (
        Pattern.begin("m", A).one_or_more().optional().followed_by("e", B),
        "a1 a2 a3 b",
        ["a1 a2 a3 b", "a1 a2 b", "a1 b", "a2 a3 b", "a2 b", "a3 b", "b"],
    ),
    "zero or more twice": (
        ANY.allow_combinations()
        .optional()
        .followed_by("n", D)
        .one_or_more()
        .allow_combinations()
        .optional()
        .followed_by("e", E),
        "c a d1 d2 e",
        ["c a d1 d2 e", "c a d1 e", "c a e", "c d1 d2 e", "c d1 e", "c e"],
    ),
    "zero or more after branching": (
        START_C.followed_by_any("m", A)
        .followed_by_any("n", named("f"))
        .followed_by_any("k", D)
        .one_or_more()
        .allow_combinations()
        .optional()
        .followed_by("e", E),
        "c a1 a2 f d1 d2 e",
        [f"c a{n} f {k}e" for n in (1, 2) for k in ("", "d1 ", "d2 ", "d1 d2 ")],
    ),
    "strict after zero or more, without a result": (
        Pattern.begin("s", D).followed_by("m", A).one_or_more().optional().next("e", B),
        "d a1 a2 c b",
        [],
    ),
    "strict after zero or more": (
        Pattern.begin("s", D).followed_by_any("m", A).one_or_more().optional().allow_combinations().next("e", B),
        "d a1 a2 b",
        ["d a1 a2 b", "d a2 b"],
    ),
    "at least one, combinations": (
        ANY.allow_combinations().followed_by_any("e", B),
        "c a1 a2 b",
        ["c a1 a2 b", "c a1 b", "c a2 b"],
    ),
    "at least one at the begin": (
        Pattern.begin("s", A).one_or_more().allow_combinations().followed_by("e", B),
        "a1 a2 a3 b",
        ["a1 a2 a3 b", "a1 a2 b", "a1 a3 b", "a1 b", "a2 a3 b", "a2 b", "a3 b"],
    ),
    "at least one, eager": (
        ANY.followed_by_any("e", B),
        "c a1 a2 a3 b",
        ["c a1 a2 a3 b", "c a1 a2 b", "c a1 b", "c a2 a3 b", "c a2 b", "c a3 b"],
    ),
    "next zero or more": (NEXT.one_or_more().optional().consecutive().followed_by("e", E), "c x a1 a2 a3 e", ["c e"]),
    "optional": (START_C.followed_by("m", A).optional().followed_by("e", B), "c a b", ["c a b", "c b"]),
    "optional at the begin": (START_C.optional().followed_by("e", B), "c b", ["b", "c b"]),
    "optional at the end": (START_C.followed_by("m", A).optional(), "c a", ["c", "c a"]),
    "zero or more at the end": (MANY.optional(), "c a1 a2 a3", ["c", "c a1", "c a1 a2", "c a1 a2 a3"]),
    "only zero or more": (
        Pattern.begin("s", A).one_or_more().optional(),
        "c a1 a2 a3 d1 d2",
        ["a1", "a1 a2", "a1 a2 a3", "a2", "a2 a3", "a3"],
    ),
    "one or more at the end": (MANY, "c a1 a2 a3", ["c a1", "c a1 a2", "c a1 a2 a3"]),
    "times": (NEXT.times(2).allow_combinations().followed_by("e", B), "c a1 a2 a3 b", ["c a1 a2 b", "c a1 a3 b"]),
    "times at the begin": (
        Pattern.begin("m", A).times(2).consecutive().followed_by("e", B),
        "a1 a2 a3 b",
        ["a1 a2 b", "a2 a3 b"],
    ),
    "times, not strict, after next": (
        NEXT.times(2).allow_combinations().followed_by("e", B),
        "c a1 f a2 f a3 b",
        ["c a1 a2 b", "c a1 a3 b"],
    ),
    "times, eager": (START_C.followed_by("m", A).times(2).followed_by("e", B), "c a1 a2 a3 b", ["c a1 a2 b"]),
    "times, not eager": (
        START_C.followed_by_any("m", A).times(2).allow_combinations().followed_by("e", B),
        "c a1 a2 a3 b",
        ["c a1 a2 b", "c a1 a3 b", "c a2 a3 b"],
    ),
    "times, strict": (NEXT.times(2).consecutive().followed_by("e", B), "c a1 f a2 a3 b", []),
    "times, optional": (START_C.followed_by("m", A).times(3).optional().followed_by("e", B), "c f b", ["c b"]),
    "times range": (
        NEXT.times(1, 3).allow_combinations().followed_by("e", B),
        "c a1 a2 a3 b",
        ["c a1 a2 a3 b", "c a1 a2 b", "c a1 a3 b", "c a1 b"],
    ),
    "times range from zero": (
        NEXT.times(0, 2).allow_combinations().followed_by("e", B),
        "c a1 a2 a3 b",
        ["c a1 a2 b", "c a1 a3 b", "c a1 b", "c b"],
    ),
    "times range, strict": (
        START_C.followed_by_any("m", A).times(0, 3).consecutive().followed_by("e", B),
        "c f a1 f a2 a3 b",
        ["c a1 b", "c a2 a3 b", "c a2 b", "c a3 b", "c b"],
    ),
    "times range, strict and optional": (
        NEXT.times(1, 3).consecutive().optional().followed_by("e", B),
        "c a1 a2 a3 b",
        ["c a1 a2 a3 b", "c a1 a2 b", "c a1 b", "c b"],
    ),
}

GREEDY = {
    "zero or more": (MANY.optional().greedy().followed_by("e", D), "c x a1 x a2 x a3 d", ["c a1 a2 a3 d"]),
    "zero or more, none": (MANY.optional().greedy().followed_by("e", D), "c x d", ["c d"]),
    "zero or more before a time limit": (
        MANY.optional().greedy().followed_by("e", D).within(ms(100)),
        "c a1 a2 x d",
        ["c a1 a2 d"],
    ),
    "one or more": (MANY.greedy().followed_by("e", D), "c a1 x a2 a3 x d", ["c a1 a2 a3 d"]),
    "one or more, none": (MANY.greedy().followed_by("e", D), "c x d", []),
    "until": (
        MANY.optional().greedy().until(lambda row: row.price > 3).followed_by("e", D),
        "c a1:2 a2:3 a3:3 a4:4 d:3",
        ["c a1 a2 a3 d"],
    ),
    "until before the first": (
        MANY.greedy().until(lambda row: row.price > 3).followed_by("e", D),
        "c a4:4 a1:2 a2:3 d:3",
        [],
    ),
}


def is_five(row: Row) -> bool:
    return row.price == 5.0


UNTIL_ROWS = "c a1:2 a2:3 a3:4 a5:5 a6:6"
UNTIL = {
    "one or more": (
        MANY.until(is_five).followed_by("e", is_five),
        UNTIL_ROWS,
        ["c a1 a2 a3 a5", "c a1 a2 a5", "c a1 a5"],
    ),
    "combinations": (
        MANY.allow_combinations().until(is_five).followed_by("e", is_five),
        UNTIL_ROWS,
        ["c a1 a2 a3 a5", "c a1 a2 a5", "c a1 a3 a5", "c a1 a5"],
    ),
    "consecutive": (
        MANY.consecutive().until(is_five).followed_by("e", is_five),
        "c a1:2 a2:3 a5:5 a6:6",
        ["c a1 a2 a5", "c a1 a5"],
    ),
    "zero or more": (
        MANY.optional().until(is_five).followed_by("e", is_five),
        "c a1:2 a2:3 a5:5 a6:6",
        ["c a1 a2 a5", "c a1 a5", "c a5"],
    ),
    "any, at the end": (ANY.until(is_five), "c a1:2 a2:3 a5:5 a6:6", ["c a1", "c a1 a2", "c a2", "c a6"]),
}

NOT_NEXT = Pattern.begin("a", A).not_next("not", B)
NOT_C = Pattern.begin("a", A).not_followed_by("not", C)
B_AFTER_NOT = {
    "eager": ["a b1 b4 b5 b6 d", "a b1 b4 b5 d", "a b1 b4 d", "a b1 d"],
    "combinations": [
        "a b1 b4 b5 b6 d",
        "a b1 b4 b5 d",
        "a b1 b4 b6 d",
        "a b1 b4 d",
        "a b1 b5 b6 d",
        "a b1 b5 d",
        "a b1 b6 d",
        "a b1 d",
    ],
}
NEGATIVE = {
    "not next": (NOT_NEXT.followed_by_any("m", C).followed_by("e", D), "a c1 b c2 d", ["a c1 d", "a c2 d"]),
    "not next, no match": (NOT_NEXT.followed_by("m", C).followed_by("e", D), "a b c1 c2 d", []),
    "not next at the end": (
        Pattern.begin("a", A).followed_by_any("m", C).followed_by_any("e", D).not_next("not", B),
        "a c1 c2 d b",
        [],
    ),
    "not followed by": (AFTER_NOT.followed_by_any("m", C).followed_by("e", D), "a c1 b c2 d", ["a c1 d"]),
    "before an optional stage": (
        AFTER_NOT.followed_by_any("m", C).optional().followed_by("e", D),
        "a c1 b c2 d",
        ["a c1 d"],
    ),
    "after times": (
        Pattern.begin("a", A).followed_by_any("m", B).times(2).not_followed_by("not", C).followed_by("e", D),
        "a b1 c b2 d",
        [],
    ),
    "before optional times": (
        AFTER_NOT.followed_by_any("m", C).times(2).optional().followed_by("e", D),
        "a c1 b c2 d",
        ["a c1 c2 d"],
    ),
    "before an optional stage at the end": (AFTER_NOT.followed_by_any("e", C).optional(), "a c1 b c2", ["a", "a c1"]),
    "branching at the start": (AFTER_NOT.followed_by("m", C).followed_by("e", D), "a1 b c1 a2 c2 d", ["a2 c2 d"]),
    "not next after one or more": (
        Pattern.begin("a", A).followed_by("m", B).one_or_more().not_next("not", C).followed_by("e", D),
        "a b1 c b2 d",
        [],
    ),
    "not next after any": (
        Pattern.begin("a", A).followed_by_any("m", B).one_or_more().not_next("not", C).followed_by("e", D),
        "a b1 c b2 d",
        ["a b2 d"],
    ),
    "after one or more": (
        Pattern.begin("a", A).followed_by("m", B).one_or_more().not_followed_by("not", C).followed_by("e", D),
        "a b1 b2 b3 c b4 b5 b6 d",
        [],
    ),
    "after any": (
        Pattern.begin("a", A).followed_by_any("m", B).one_or_more().not_followed_by("not", C).followed_by("e", D),
        "a b1 b2 b3 c b4 b5 b6 d",
        ["a b4 b5 b6 d", "a b4 b5 d", "a b4 d", "a b5 b6 d", "a b5 d", "a b6 d"],
    ),
    "before one or more": (
        NOT_C.followed_by("m", B).one_or_more().followed_by("e", D),
        "a b1 c b4 b5 b6 d",
        B_AFTER_NOT["eager"],
    ),
    "before any combinations": (
        NOT_C.followed_by_any("m", B).one_or_more().allow_combinations().followed_by("e", D),
        "a b1 c b4 b5 b6 d",
        B_AFTER_NOT["combinations"],
    ),
    "before zero or more": (
        NOT_C.followed_by("m", B).one_or_more().optional().followed_by("e", D),
        "a b1 c b4 b5 b6 d",
        B_AFTER_NOT["eager"],
    ),
    "before any combinations of zero or more": (
        NOT_C.followed_by_any("m", B).one_or_more().optional().allow_combinations().followed_by("e", D),
        "a b1 c b4 b5 b6 d",
        B_AFTER_NOT["combinations"],
    ),
    "at the end, within a time": (AFTER_NOT.within(ms(3)), "a1@1 b1@2 a2@4 c@5 b2@10 a3@11 b3@13", ["a2"]),
}

SUM_A = up_to(5.0, "a", "middle")
ITERATIVE = {
    "branching, eager": (
        START_C.followed_by("middle", SUM_A).one_or_more().followed_by("e", E),
        "c1 a1:1 a2:2 c2 a3:3 a4:1 x e",
        ["c1 a1 a2 a4 e", "c1 a1 a2 e", "c1 a1 e", "c2 a3 a4 e", "c2 a3 e"],
    ),
    "branching, combinations": (
        START_C.followed_by("middle", SUM_A).one_or_more().allow_combinations().followed_by("e", E),
        "c1 a1:1 a2:2 c2 a3:3 a4:1 x e",
        ["c1 a1 a2 a4 e", "c1 a1 a2 e", "c1 a1 a3 e", "c1 a1 a4 e", "c1 a1 e", "c2 a3 a4 e", "c2 a3 e"],
    ),
    "looping at the start": (
        Pattern.begin("middle", SUM_A).one_or_more().optional().followed_by("e", E),
        "a1:1 a2:2 a3:3 e",
        ["a1 a2 e", "a1 e", "a2 e", "a3 e", "e"],
    ),
    "looping combinations at the start": (
        Pattern.begin("middle", SUM_A).one_or_more().allow_combinations().optional().followed_by("e", E),
        "a1:1 a2:2 a3:3 e",
        ["a1 a2 e", "a1 a3 e", "a1 e", "a2 e", "a3 e", "e"],
    ),
    "of a stage before": (
        Pattern.begin("s", C)
        .one_or_more()
        .followed_by("e", lambda row, matched: row.name == "e" and sum(each.price for each in matched.rows("s")) >= 2),
        "c1:1 c2:2 e",
        ["c1 c2 e", "c2 e"],
    ),
}

AB = lambda row: "a" in row.name  # noqa: E731
BB = lambda row: "b" in row.name  # noqa: E731
RISING = "a1 a2 a3 a4 a5 a6"
BOTH = "ab1 ab2 ab3 ab4 ab5 ab6 ab7"


def two_pairs(skip: Skip) -> Pattern:
    return Pattern.begin("s", AB, skip=skip).times(2).next("end", BB).times(2)


def quantified_end(skip: Skip) -> Pattern:
    return Pattern.begin("s", A, skip=skip).next("end", B).one_or_more()


def greedy_start(skip: Skip) -> Pattern:
    return Pattern.begin("a", A, skip=skip).one_or_more().consecutive().greedy().next("b", B)


def consecutive_end(skip: Skip) -> Pattern:
    return Pattern.begin("a", A, skip=skip).next("b", B).one_or_more().consecutive()


def pairs(skip: Skip) -> Pattern:
    return Pattern.begin("s", A, skip=skip).followed_by_any("e", B)


def missed(skip: Skip) -> Pattern:
    return Pattern.begin("a", A, skip=skip).next("b", B).one_or_more().optional().consecutive().next("c", C)


def same_price(row: Row, matched: MatchedRows[Row]) -> bool:
    first = matched.first("a")
    return row.name == "b" and first is not None and first.price == row.price


SKIPPING = {
    "no skip": (Pattern.begin("s", A).times(3), RISING, ["a1 a2 a3", "a2 a3 a4", "a3 a4 a5", "a4 a5 a6"]),
    "no skip, any": (pairs(Skip.no_skip()), "a1 b1 a2 b2", ["a1 b1", "a1 b2", "a2 b2"]),
    "next, any": (pairs(Skip.skip_to_next()), "a1 b1 a2 b2", ["a1 b1", "a2 b2"]),
    "no skip, at the end": (quantified_end(Skip.no_skip()), "a b1 b2 b3", ["a b1", "a b1 b2", "a b1 b2 b3"]),
    "next, at the end": (quantified_end(Skip.skip_to_next()), "a b1 b2 b3", ["a b1"]),
    "past last": (Pattern.begin("s", A, skip=Skip.skip_past_last_row()).times(3), RISING, ["a1 a2 a3", "a4 a5 a6"]),
    "to first": (two_pairs(Skip.skip_to_first("end")), BOTH[:-4], ["ab1 ab2 ab3 ab4", "ab3 ab4 ab5 ab6"]),
    "to last": (two_pairs(Skip.skip_to_last("end")), BOTH, ["ab1 ab2 ab3 ab4", "ab4 ab5 ab6 ab7"]),
    "past last, branching": (
        Pattern.begin("a", A, skip=Skip.skip_past_last_row())
        .followed_by_any("b", B)
        .followed_by_any("c", C)
        .followed_by("d", D),
        "a1 a2 b1 b2 c1 c2 d1 d2",
        ["a1 b1 c1 d1"],
    ),
    "past last, strict": (Pattern.begin("a", A, skip=Skip.skip_past_last_row()).next("b", B), "a1 c a2 b2", ["a2 b2"]),
    "to first, optional": (
        Pattern.begin("x", named("x"), skip=Skip.skip_to_first("b")).one_or_more().optional().next("b", B).next("c", C),
        "b1 c1 b2 c2",
        ["b1 c1", "b2 c2"],
    ),
    "to first at the start": (
        Pattern.begin("b", B, skip=Skip.skip_to_first("b")).next("c", C),
        "b1 c1 b2 c2",
        ["b1 c1", "b2 c2"],
    ),
    "to first, one or more": (
        consecutive_end(Skip.skip_to_first("b")),
        "a1 b1 a2 b2 b3 a3 b4",
        ["a1 b1", "a2 b2", "a3 b4"],
    ),
    "to last, one or more": (
        consecutive_end(Skip.skip_to_last("b")),
        "a1 b1 a2 b2 b3 a3 b4",
        ["a1 b1", "a2 b2", "a3 b4"],
    ),
    "missed": (missed(Skip.skip_to_first("b")), "a c", ["a c"]),
    "docs: past last": (greedy_start(Skip.skip_past_last_row()), "a1 a2 a3 b", ["a1 a2 a3 b"]),
    "docs: to last": (greedy_start(Skip.skip_to_last("a")), "a1 a2 a3 b", ["a1 a2 a3 b", "a3 b"]),
    "docs: to first": (greedy_start(Skip.skip_to_first("a")), "a1 a2 a3 b", ["a1 a2 a3 b", "a2 a3 b", "a3 b"]),
    "docs: no skip": (greedy_start(Skip.no_skip()), "a1 a2 a3 b", ["a1 a2 a3 b", "a2 a3 b", "a3 b"]),
    "to first, discarding": (
        Pattern.begin("a or c", named("a", "c"), skip=Skip.skip_to_first("c*"))
        .followed_by("b or c", named("b", "c"))
        .followed_by("c*", C)
        .one_or_more()
        .greedy()
        .followed_by("d", D),
        "a b c1 c2 c3 d",
        ["a b c1 c2 c3 d", "c1 c2 c3 d"],
    ),
    "before others that are complete": (
        Pattern.begin("a", A, skip=Skip.skip_to_first("c")).followed_by("c", C).followed_by("b", same_price),
        "a1 c1 a2:1 c2 b1:1 b2",
        ["a1 c1 b2", "a2 c2 b1"],
    ),
}

GROUPS = {
    "contiguity": CONTIGUITY,
    "quantifier": QUANTIFIERS,
    "greedy": GREEDY,
    "until": UNTIL,
    "negative": NEGATIVE,
    "iterative": ITERATIVE,
    "skip": SKIPPING,
}
CASES = [pytest.param(*case, id=f"{group}-{name}") for group, cases in GROUPS.items() for name, case in cases.items()]


@pytest.mark.parametrize(("pattern", "rows", "found"), CASES)
def test_matches_are_those_of_flink(pattern: Pattern, rows: str, found: list[str]) -> None:
    assert matches(pattern, rows) == sorted(found)


def test_partial_matches_that_exceed_the_time_limit_go_to_a_side_output() -> None:
    pattern = START_C.followed_by_any("m", A).followed_by_any("e", E).within(ms(10))
    with harness(pattern) as h:
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
