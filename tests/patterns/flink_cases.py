"""Cases of Flink's own tests of patterns: NFAITCase, TimesRangeITCase, GreedyITCase, UntilConditionITCase,
NotPatternITCase, IterativeConditionsITCase and AfterMatchSkipITCase.

A case is a pattern, rows as `rows_of` reads them, and the matches, with commas.
"""

from __future__ import annotations

from datetime import timedelta

from stateflow import AfterMatchSkipStrategy, MatchedRows, Pattern
from tests.patterns.pattern_rows import Row, named

Cases = dict[str, tuple[Pattern, str, str]]
Skip = AfterMatchSkipStrategy
A, B, C, D, E = (named(name) for name in "abcde")

START_A, START_C = Pattern.begin("a", A), Pattern.begin("c", C)
C_THEN_A, C_ANY_A, C_NEXT_A = START_C.followed_by("m", A), START_C.followed_by_any("m", A), START_C.next("m", A)
A_THEN_B, A_ANY_B = START_A.followed_by("m", B), START_A.followed_by_any("m", B)
MANY, ANY = C_THEN_A.one_or_more(), C_ANY_A.one_or_more()


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


CONTIGUITY: Cases = {
    "no condition": (Pattern.begin("s").followed_by("e"), "a b c d e", "a b, b c, c d, d e"),
    "any, no condition": (Pattern.begin("s").followed_by_any("e"), "a b c d", "a b, a c, a d, b c, b d, c d"),
    "strict": (START_A.next("e", B), "a@3 b@5", "a b"),
    "strict, none": (START_A.next("e", B), "a c b", ""),
    "relaxed": (C_THEN_A.followed_by("e", B), "c x a1 a2 x b", "c a1 b"),
    "within": (C_THEN_A.followed_by("e", B).within(ms(10)), "c1@1 c2@2 a@3 x@4 b1@11 b2@13", "c2 a b1"),
    "branching": (
        C_ANY_A.followed_by_any("n", B).followed_by_any("e", E),
        "c a1 a2 a3 b1 b2 e",
        "c a1 b1 e, c a1 b2 e, c a2 b1 e, c a2 b2 e, c a3 b1 e, c a3 b2 e",
    ),
    "branching at the end": (C_THEN_A.followed_by("n", B).followed_by_any("e", E), "c a1 a2 a3 b1 b2 e", "c a1 b1 e"),
}

OPTIONAL: Cases = {
    "stage": (C_THEN_A.optional().followed_by("e", B), "c a b", "c a b, c b"),
    "first stage": (START_C.optional().followed_by("e", B), "c b", "b, c b"),
    "last stage": (C_THEN_A.optional(), "c a", "c, c a"),
}

ONE_OR_MORE: Cases = {
    "at the end": (MANY, "c a1 a2 a3", "c a1, c a1 a2, c a1 a2 a3"),
    "any": (ANY.followed_by_any("e", B), "c a1 a2 a3 b", "c a1 a2 a3 b, c a1 a2 b, c a1 b, c a2 a3 b, c a2 b, c a3 b"),
    "combinations": (ANY.allow_combinations().followed_by_any("e", B), "c a1 a2 b", "c a1 a2 b, c a1 b, c a2 b"),
    "combinations at the start": (
        START_A.one_or_more().allow_combinations().followed_by("e", B),
        "a1 a2 a3 b",
        "a1 a2 a3 b, a1 a2 b, a1 a3 b, a1 b, a2 a3 b, a2 b, a3 b",
    ),
}

ZERO_OR_MORE: Cases = {
    "relaxed": (MANY.optional().followed_by("e", B), "c a1 a2 d a3 b", "c a1 a2 a3 b, c a1 a2 b, c a1 b, c b"),
    "combinations": (
        ANY.allow_combinations().optional().followed_by("e", B),
        "c a1 a2 b",
        "c a1 a2 b, c a1 b, c a2 b, c b",
    ),
    "consecutive": (C_NEXT_A.one_or_more().optional().consecutive().followed_by("e", E), "c x a1 a2 a3 e", "c e"),
    "alone": (START_A.one_or_more().optional(), "c a1 a2 a3 d1 d2", "a1, a1 a2, a1 a2 a3, a2, a2 a3, a3"),
    "at the start": (
        START_A.one_or_more().optional().followed_by("e", B),
        "a1 a2 a3 b",
        "a1 a2 a3 b, a1 a2 b, a1 b, a2 a3 b, a2 b, a3 b, b",
    ),
    "at the end": (MANY.optional(), "c a1 a2 a3", "c, c a1, c a1 a2, c a1 a2 a3"),
    "twice": (
        ANY.allow_combinations()
        .optional()
        .followed_by("n", D)
        .one_or_more()
        .allow_combinations()
        .optional()
        .followed_by("e", E),
        "c a d1 d2 e",
        "c a d1 d2 e, c a d1 e, c a e, c d1 d2 e, c d1 e, c e",
    ),
    "after branching": (
        C_ANY_A.followed_by_any("n", named("f"))
        .followed_by_any("k", D)
        .one_or_more()
        .allow_combinations()
        .optional()
        .followed_by("e", E),
        "c a1 a2 f d1 d2 e",
        "c a1 f e, c a1 f d1 e, c a1 f d2 e, c a1 f d1 d2 e, c a2 f e, c a2 f d1 e, c a2 f d2 e, c a2 f d1 d2 e",
    ),
    "before a strict stage": (
        Pattern.begin("s", D).followed_by_any("m", A).one_or_more().optional().allow_combinations().next("e", B),
        "d a1 a2 b",
        "d a1 a2 b, d a2 b",
    ),
    "before a strict stage, none": (
        Pattern.begin("s", D).followed_by("m", A).one_or_more().optional().next("e", B),
        "d a1 a2 c b",
        "",
    ),
}

TIMES: Cases = {
    "relaxed": (C_THEN_A.times(2).followed_by("e", B), "c a1 a2 a3 b", "c a1 a2 b"),
    "combinations": (
        C_ANY_A.times(2).allow_combinations().followed_by("e", B),
        "c a1 a2 a3 b",
        "c a1 a2 b, c a1 a3 b, c a2 a3 b",
    ),
    "strict first row": (
        C_NEXT_A.times(2).allow_combinations().followed_by("e", B),
        "c a1 a2 a3 b",
        "c a1 a2 b, c a1 a3 b",
    ),
    "strict first row, others between": (
        C_NEXT_A.times(2).allow_combinations().followed_by("e", B),
        "c a1 f a2 f a3 b",
        "c a1 a2 b, c a1 a3 b",
    ),
    "consecutive": (C_NEXT_A.times(2).consecutive().followed_by("e", B), "c a1 f a2 a3 b", ""),
    "consecutive at the start": (START_A.times(2).consecutive().followed_by("e", B), "a1 a2 a3 b", "a1 a2 b, a2 a3 b"),
    "optional": (C_THEN_A.times(3).optional().followed_by("e", B), "c f b", "c b"),
    "range": (
        C_NEXT_A.times(1, 3).allow_combinations().followed_by("e", B),
        "c a1 a2 a3 b",
        "c a1 a2 a3 b, c a1 a2 b, c a1 a3 b, c a1 b",
    ),
    "range from zero": (
        C_NEXT_A.times(0, 2).allow_combinations().followed_by("e", B),
        "c a1 a2 a3 b",
        "c a1 a2 b, c a1 a3 b, c a1 b, c b",
    ),
    "consecutive range": (
        C_ANY_A.times(0, 3).consecutive().followed_by("e", B),
        "c f a1 f a2 a3 b",
        "c a1 b, c a2 a3 b, c a2 b, c a3 b, c b",
    ),
    "consecutive range, optional": (
        C_NEXT_A.times(1, 3).consecutive().optional().followed_by("e", B),
        "c a1 a2 a3 b",
        "c a1 a2 a3 b, c a1 a2 b, c a1 b, c b",
    ),
}


def is_high(row: Row) -> bool:
    return row.price > 3


GREEDY_ONE, GREEDY_ZERO = MANY.greedy(), MANY.optional().greedy()
GREEDY: Cases = {
    "zero or more": (GREEDY_ZERO.followed_by("e", D), "c x a1 x a2 x a3 d", "c a1 a2 a3 d"),
    "zero or more, none": (GREEDY_ZERO.followed_by("e", D), "c x d", "c d"),
    "zero or more within a time": (GREEDY_ZERO.followed_by("e", D).within(ms(100)), "c a1 a2 x d", "c a1 a2 d"),
    "one or more": (GREEDY_ONE.followed_by("e", D), "c a1 x a2 a3 x d", "c a1 a2 a3 d"),
    "one or more, none": (GREEDY_ONE.followed_by("e", D), "c x d", ""),
    "until": (GREEDY_ZERO.until(is_high).followed_by("e", D), "c a1:2 a2:3 a3:3 a4:4 d:3", "c a1 a2 a3 d"),
    "until, none": (GREEDY_ONE.until(is_high).followed_by("e", D), "c a4:4 a1:2 a2:3 d:3", ""),
}


def is_five(row: Row) -> bool:
    return row.price == 5.0


THREE_LOWER, TWO_LOWER = "c a1:2 a2:3 a3:4 a5:5 a6:6", "c a1:2 a2:3 a5:5 a6:6"
UNTIL: Cases = {
    "relaxed": (MANY.until(is_five).followed_by("e", is_five), THREE_LOWER, "c a1 a2 a3 a5, c a1 a2 a5, c a1 a5"),
    "combinations": (
        MANY.allow_combinations().until(is_five).followed_by("e", is_five),
        THREE_LOWER,
        "c a1 a2 a3 a5, c a1 a2 a5, c a1 a3 a5, c a1 a5",
    ),
    "consecutive": (MANY.consecutive().until(is_five).followed_by("e", is_five), TWO_LOWER, "c a1 a2 a5, c a1 a5"),
    "zero or more": (MANY.optional().until(is_five).followed_by("e", is_five), TWO_LOWER, "c a1 a2 a5, c a1 a5, c a5"),
    "any, at the end": (ANY.until(is_five), TWO_LOWER, "c a1, c a1 a2, c a2, c a6"),
}

NOT_B, NOT_C = START_A.not_followed_by("not", B), START_A.not_followed_by("not", C)
NOT_B_ANY_C, NOT_NEXT = NOT_B.followed_by_any("m", C), START_A.not_next("not", B)
ONE_C, TWO_C = "a b1 c b2 d", "a c1 b c2 d"
C_BETWEEN, C_EARLY = "a b1 b2 b3 c b4 b5 b6 d", "a b1 c b4 b5 b6 d"
IN_ORDER = "a b1 b4 b5 b6 d, a b1 b4 b5 d, a b1 b4 d, a b1 d"
COMBINED = f"{IN_ORDER}, a b1 b4 b6 d, a b1 b5 b6 d, a b1 b5 d, a b1 b6 d"
NEGATIVE: Cases = {
    "not next": (NOT_NEXT.followed_by_any("m", C).followed_by("e", D), TWO_C, "a c1 d, a c2 d"),
    "not next, none": (NOT_NEXT.followed_by("m", C).followed_by("e", D), "a b c1 c2 d", ""),
    "not next at the end": (
        START_A.followed_by_any("m", C).followed_by_any("e", D).not_next("not", B),
        "a c1 c2 d b",
        "",
    ),
    "not next after one or more": (A_THEN_B.one_or_more().not_next("not", C).followed_by("e", D), ONE_C, ""),
    "not next after any": (A_ANY_B.one_or_more().not_next("not", C).followed_by("e", D), ONE_C, "a b2 d"),
    "not followed by": (NOT_B_ANY_C.followed_by("e", D), TWO_C, "a c1 d"),
    "not followed by, the last row is one": (
        START_A.not_followed_by("not", named("b", "d")).followed_by("e", D),
        "a d",
        "a d",
    ),
    "not followed by, a row between is one": (
        START_A.not_followed_by("not", named("b", "c")).followed_by("m", C).followed_by("e", D),
        "a c d",
        "",
    ),
    "branching at the start": (NOT_B.followed_by("m", C).followed_by("e", D), "a1 b c1 a2 c2 d", "a2 c2 d"),
    "at the end, within a time": (NOT_B.within(ms(3)), "a1@1 b1@2 a2@4 c@5 b2@10 a3@11 b3@13", "a2"),
    "after times": (A_ANY_B.times(2).not_followed_by("not", C).followed_by("e", D), ONE_C, ""),
    "after one or more": (A_THEN_B.one_or_more().not_followed_by("not", C).followed_by("e", D), C_BETWEEN, ""),
    "after any": (
        A_ANY_B.one_or_more().not_followed_by("not", C).followed_by("e", D),
        C_BETWEEN,
        "a b4 b5 b6 d, a b4 b5 d, a b4 d, a b5 b6 d, a b5 d, a b6 d",
    ),
    "before an optional stage": (NOT_B_ANY_C.optional().followed_by("e", D), TWO_C, "a c1 d"),
    "before an optional last stage": (NOT_B.followed_by_any("e", C).optional(), "a c1 b c2", "a, a c1"),
    "before optional times": (NOT_B_ANY_C.times(2).optional().followed_by("e", D), TWO_C, "a c1 c2 d"),
    "before one or more": (NOT_C.followed_by("m", B).one_or_more().followed_by("e", D), C_EARLY, IN_ORDER),
    "before combinations of one or more": (
        NOT_C.followed_by_any("m", B).one_or_more().allow_combinations().followed_by("e", D),
        C_EARLY,
        COMBINED,
    ),
    "before zero or more": (NOT_C.followed_by("m", B).one_or_more().optional().followed_by("e", D), C_EARLY, IN_ORDER),
    "before combinations of zero or more": (
        NOT_C.followed_by_any("m", B).one_or_more().optional().allow_combinations().followed_by("e", D),
        C_EARLY,
        COMBINED,
    ),
}


def stays_below_five(row: Row, matched: MatchedRows[Row]) -> bool:
    """Rows of `a`, as long as the sum of their prices stays below 5."""
    return row.name == "a" and sum(each.price for each in matched.rows("m")) + row.price < 5


def follows_two(row: Row, matched: MatchedRows[Row]) -> bool:
    """A row of `e` after rows of `c` whose prices add up to 2 or more."""
    return row.name == "e" and sum(each.price for each in matched.rows("c")) >= 2


CHEAP, CHEAP_FIRST = START_C.followed_by("m", stays_below_five).one_or_more(), Pattern.begin("m", stays_below_five)
TWO_STARTS, RISING_PRICES = "c1 a1:1 a2:2 c2 a3:3 a4:1 x e", "a1:1 a2:2 a3:3 e"
ITERATIVE: Cases = {
    "relaxed": (CHEAP.followed_by("e", E), TWO_STARTS, "c1 a1 a2 a4 e, c1 a1 a2 e, c1 a1 e, c2 a3 a4 e, c2 a3 e"),
    "combinations": (
        CHEAP.allow_combinations().followed_by("e", E),
        TWO_STARTS,
        "c1 a1 a2 a4 e, c1 a1 a2 e, c1 a1 a3 e, c1 a1 a4 e, c1 a1 e, c2 a3 a4 e, c2 a3 e",
    ),
    "at the start": (
        CHEAP_FIRST.one_or_more().optional().followed_by("e", E),
        RISING_PRICES,
        "a1 a2 e, a1 e, a2 e, a3 e, e",
    ),
    "combinations at the start": (
        CHEAP_FIRST.one_or_more().allow_combinations().optional().followed_by("e", E),
        RISING_PRICES,
        "a1 a2 e, a1 a3 e, a1 e, a2 e, a3 e, e",
    ),
    "of a stage before": (START_C.one_or_more().followed_by("e", follows_two), "c1:1 c2:2 e", "c1 c2 e, c2 e"),
}


def two_and_two(skip: Skip) -> Pattern:
    """Two rows whose name has an `a`, and two whose name has a `b`."""
    has_a, has_b = (lambda row: "a" in row.name), (lambda row: "b" in row.name)
    return Pattern.begin("s", has_a, skip=skip).times(2).next("end", has_b).times(2)


def pairs(skip: Skip) -> Pattern:
    return Pattern.begin("s", A, skip=skip).followed_by_any("e", B)


def quantified_end(skip: Skip) -> Pattern:
    return Pattern.begin("s", A, skip=skip).next("end", B).one_or_more()


def consecutive_end(skip: Skip) -> Pattern:
    return quantified_end(skip).consecutive()


def greedy_start(skip: Skip) -> Pattern:
    """The example of Flink's documentation."""
    return Pattern.begin("a", A, skip=skip).one_or_more().consecutive().greedy().next("b", B)


def missed(skip: Skip) -> Pattern:
    """A match need not have the stage `b`."""
    return Pattern.begin("a", A, skip=skip).next("b", B).one_or_more().optional().consecutive().next("c", C)


def same_price(row: Row, matched: MatchedRows[Row]) -> bool:
    first = matched.first("a")
    return row.name == "b" and first is not None and first.price == row.price


PAST_LAST = Skip.skip_past_last_row()
SKIP: Cases = {
    "none": (START_A.times(3), "a1 a2 a3 a4 a5 a6", "a1 a2 a3, a2 a3 a4, a3 a4 a5, a4 a5 a6"),
    "past last": (Pattern.begin("s", A, skip=PAST_LAST).times(3), "a1 a2 a3 a4 a5 a6", "a1 a2 a3, a4 a5 a6"),
    "past last, strict": (Pattern.begin("a", A, skip=PAST_LAST).next("b", B), "a1 c a2 b2", "a2 b2"),
    "past last, branching": (
        Pattern.begin("a", A, skip=PAST_LAST).followed_by_any("b", B).followed_by_any("c", C).followed_by("d", D),
        "a1 a2 b1 b2 c1 c2 d1 d2",
        "a1 b1 c1 d1",
    ),
    "none, any": (pairs(Skip.no_skip()), "a1 b1 a2 b2", "a1 b1, a1 b2, a2 b2"),
    "to next, any": (pairs(Skip.skip_to_next()), "a1 b1 a2 b2", "a1 b1, a2 b2"),
    "none, one or more": (quantified_end(Skip.no_skip()), "a b1 b2 b3", "a b1, a b1 b2, a b1 b2 b3"),
    "to next, one or more": (quantified_end(Skip.skip_to_next()), "a b1 b2 b3", "a b1"),
    "to first, one or more": (
        consecutive_end(Skip.skip_to_first("end")),
        "a1 b1 a2 b2 b3 a3 b4",
        "a1 b1, a2 b2, a3 b4",
    ),
    "to last, one or more": (consecutive_end(Skip.skip_to_last("end")), "a1 b1 a2 b2 b3 a3 b4", "a1 b1, a2 b2, a3 b4"),
    "to first": (two_and_two(Skip.skip_to_first("end")), "ab1 ab2 ab3 ab4 ab5 ab6", "ab1 ab2 ab3 ab4, ab3 ab4 ab5 ab6"),
    "to last": (
        two_and_two(Skip.skip_to_last("end")),
        "ab1 ab2 ab3 ab4 ab5 ab6 ab7",
        "ab1 ab2 ab3 ab4, ab4 ab5 ab6 ab7",
    ),
    "to first, of the first stage": (
        Pattern.begin("b", B, skip=Skip.skip_to_first("b")).next("c", C),
        "b1 c1 b2 c2",
        "b1 c1, b2 c2",
    ),
    "to first, after an optional stage": (
        Pattern.begin("x", named("x"), skip=Skip.skip_to_first("b")).one_or_more().optional().next("b", B).next("c", C),
        "b1 c1 b2 c2",
        "b1 c1, b2 c2",
    ),
    "to first, discarding": (
        Pattern.begin("a or c", named("a", "c"), skip=Skip.skip_to_first("c*"))
        .followed_by("b or c", named("b", "c"))
        .followed_by("c*", C)
        .one_or_more()
        .greedy()
        .followed_by("d", D),
        "a b c1 c2 c3 d",
        "a b c1 c2 c3 d, c1 c2 c3 d",
    ),
    "before others that are complete": (
        Pattern.begin("a", A, skip=Skip.skip_to_first("c")).followed_by("c", C).followed_by("b", same_price),
        "a1 c1 a2:1 c2 b1:1 b2",
        "a1 c1 b2, a2 c2 b1",
    ),
    "missed": (missed(Skip.skip_to_first("b")), "a c", "a c"),
    "documentation, none": (greedy_start(Skip.no_skip()), "a1 a2 a3 b", "a1 a2 a3 b, a2 a3 b, a3 b"),
    "documentation, past last": (greedy_start(PAST_LAST), "a1 a2 a3 b", "a1 a2 a3 b"),
    "documentation, to first": (greedy_start(Skip.skip_to_first("a")), "a1 a2 a3 b", "a1 a2 a3 b, a2 a3 b, a3 b"),
    "documentation, to last": (greedy_start(Skip.skip_to_last("a")), "a1 a2 a3 b", "a1 a2 a3 b, a3 b"),
}

GROUPS = {
    "contiguity": CONTIGUITY, "optional": OPTIONAL, "one or more": ONE_OR_MORE, "zero or more": ZERO_OR_MORE,
    "times": TIMES, "greedy": GREEDY, "until": UNTIL, "negative": NEGATIVE, "iterative": ITERATIVE, "skip": SKIP,
}  # fmt: skip
