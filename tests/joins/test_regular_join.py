"""Regular joins: by rows and by columns, with the same pairs and the same stored state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stateflow import StateTtlConfig
from stateflow.api.joins.pairs import Columns, PairedColumns, PairLimits, Side, number_equal_rows, pairs_of
from stateflow.api.joins.regular_join import ColumnJoin, equal_columns
from stateflow.api.schema import RowSchema
from stateflow.api.streams.data_stream import DataStream
from stateflow.errors import JobDefinitionError, UserCodeError
from stateflow.testing import KeyedHarness, KeyedInput
from tests.joins.joined_rows import Declare, Keyed, Left, Pair, Right, harness, ms, pair_of
from tests.joins.test_random_joins import History, histories
from tests.support.examples import one_in

COLUMNS = {"key": "left.key", "left": "left.at", "right": "right.at"}


def _by_rows(left: Keyed, right: Keyed) -> DataStream:
    return left.regular_join(right).apply(pair_of, output=Pair, uid="join")


def _by_columns(left: Keyed, right: Keyed) -> DataStream:
    return left.regular_join(right).select(Pair, COLUMNS, uid="join")


@pytest.mark.long(reason="draws many histories")
@one_in(4)
@given(histories, st.permutations([_by_rows, _by_columns]))
def test_regular_joins_have_the_pairs_of_nested_loops(history: History, declares: list[Declare]) -> None:
    """Compares with nested loops; at each restore, the operator changes."""
    arrow = history.arrow_rows
    more: dict[str, Any] = {} if arrow is None else {"spark.conf.spark.sql.execution.arrow.maxRecordsPerBatch": arrow}
    first, second = declares
    limits = ColumnJoin.limits if arrow is None else PairLimits(arrow, 40 * arrow)
    with patch.object(ColumnJoin, "limits", limits):
        _check_batches(history, first, second, more)


def _check_batches(history: History, first: Declare, second: Declare, more: dict[str, Any]) -> None:
    found: Counter[Pair] = Counter()
    lefts: list[Left] = []
    rights: list[Right] = []
    h = harness(first, history.bound, **more)
    for (left, right), parallelism in history.batches:
        if parallelism:
            first, second = second, first
            with h:
                h = KeyedHarness.restore(h.snapshot(), first, parallelism=parallelism)
        found.update(h.push_both(left, right))
        lefts += left
        rights += right
        wanted = Counter(pair_of(x, y) for x in lefts for y in rights if x.key == y.id is not None)
        assert found == wanted
    with h:
        for key in "abc":
            assert sorted(h.state("left-records", key), key=repr) == sorted(
                (x for x in lefts if x.key == key), key=repr
            )
            assert len(h.state("right-records", key)) == sum(y.id == key for y in rights)


SIZED = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 50)), max_size=20)


@given(SIZED, SIZED, st.integers(1, 10), st.integers(1, 200))
def test_pairs_are_those_of_nested_loops_in_parts_of_limited_number_and_bytes(
    left: list[tuple[int, int]], right: list[tuple[int, int]], pairs: int, size: int
) -> None:
    (left_of, left_sizes), (right_of, right_sizes) = (
        (np.array([key for key, _ in side], np.int64), np.array([bytes for _, bytes in side], np.int64))
        for side in (left, right)
    )
    found: list[tuple[int, int]] = []
    for first, second in pairs_of(left_of, right_of, (left_sizes, right_sizes), PairLimits(pairs, size)):
        assert 1 <= len(first) == len(second) <= pairs
        assert len(first) == 1 or left_sizes[first].sum() + right_sizes[second].sum() <= size
        found += zip(first.tolist(), second.tolist(), strict=True)
    assert found == [(n, m) for n, (x, _) in enumerate(left) for m, (y, _) in enumerate(right) if x == y]


@pytest.mark.parametrize("by_columns", [False, True])
def test_rows_are_kept_for_their_time_to_live(by_columns: bool) -> None:
    ttl = StateTtlConfig.new_builder(ms(10)).build()
    with harness(_limited(_by_columns if by_columns else _by_rows, ttl)) as h:
        h.push_both([Left("a", 1)], [])
        h.advance_processing_time(9)
        assert len(h.push_both([], [Right("a", 2)])) == 1
        h.advance_processing_time(15)
        assert [pair.left for pair in h.push_both([Left("a", 3)], [Right("a", 4)])] == [3, 3]


def test_a_condition_decides_about_each_pair() -> None:
    def declare(left: Keyed, right: Keyed) -> DataStream:
        where = lambda left, right: pc.less(left["at"], right["at"])  # noqa: E731 - as users write it
        return left.regular_join(right).select(Pair, COLUMNS, where=where, uid="join")

    with harness(declare) as h:
        h.push_both([Left("a", 1), Left("a", 5), Left("a", None)], [Right("a", 3)])
        h.push_both([Left("b", 1)], [Right("a", 4), Right("b", 1)])
        assert sorted((pair.left, pair.right) for pair in h.output) == [(1, 3), (1, 4)]


def test_an_error_of_the_condition_names_the_operator() -> None:
    def declare(left: Keyed, right: Keyed) -> DataStream:
        return left.regular_join(right).select(Pair, COLUMNS, where=lambda left, right: left["none"], uid="join")

    with harness(declare) as h, pytest.raises(UserCodeError) as caught:
        h.push_both([Left("a", 1)], [Right("a", 3)])
    assert caught.value.facts["operator"] == "join"


class Nested(msgspec.Struct, frozen=True):
    key: int
    part: float
    tags: list[str]
    inner: Pair | None = None


class NestedPair(msgspec.Struct, frozen=True):
    key: int
    part: float
    tags: list[str]
    other: Pair | None


def test_nested_columns_and_keys_of_several_columns_are_joined() -> None:
    def declare(left: Keyed, right: Keyed) -> DataStream:
        columns = {"key": "left.key", "part": "right.part", "tags": "left.tags", "other": "right.inner"}
        return left.regular_join(right).select(NestedPair, columns, uid="join")

    inputs = KeyedInput(Nested, ("key", "part")), KeyedInput(Nested, ("key", "part"))
    inner = Pair("x", 1, None)
    with KeyedHarness(declare, *inputs) as h:
        h.push_both([Nested(1, 0.5, ["a"]), Nested(1, float("nan"), [])], [])
        h.push_both([], [Nested(1, 0.5, [], inner), Nested(1, float("nan"), []), Nested(2, 0.5, [])])
        found = sorted(h.output, key=lambda row: row.tags)
        assert [(row.key, row.tags, row.other) for row in found] == [(1, [], None), (1, ["a"], inner)]


class Plain(msgspec.Struct):
    key: str | None
    at: int


def _selected(left: Keyed, right: Keyed) -> DataStream:
    columns = {"key": "right.id", "left": "left.at", "right": "right.at", "number": "left.at"}
    return left.regular_join(right).select(Pair, columns, uid="join")


def _applied(left: Keyed, right: Keyed) -> DataStream:
    join = left.regular_join(right)
    return join.apply(lambda a, b: Pair(b.id, a.at, b.at, a.at, b.text), output=Pair, uid="join")


@pytest.mark.parametrize("declare", [_selected, _applied])
def test_a_row_with_a_null_key_has_no_partner_and_is_not_kept(declare: Declare) -> None:
    with KeyedHarness(declare, KeyedInput(Plain, "key"), KeyedInput(Right, "id")) as h:
        h.push_both([Plain(None, 1)], [Right(None, 2)])
        assert (h.push_both([Plain(None, 3)], [Right(None, 4)]), h.state_entries()) == ([], [])


class Renamed(msgspec.Struct):
    unknown: str


class Mistyped(msgspec.Struct):
    number: str


class NotNull(msgspec.Struct):
    at: int


@pytest.mark.parametrize(
    ("output", "columns"),
    [
        (Renamed, {}), (Renamed, {"unknown": "number"}), (Renamed, {"unknown": "left.none"}), (Mistyped, {}),
        (NotNull, {"at": "left.at"}), (Pair, {}), (Pair, {**COLUMNS, "more": "left.at"}),
    ],
)  # fmt: skip
def test_columns_that_do_not_fit_are_refused(output: type[object], columns: dict[str, str]) -> None:
    with pytest.raises(JobDefinitionError):
        harness(lambda left, right: left.regular_join(right).select(output, columns, uid="join"))


SIDES = st.lists(st.tuples(st.sampled_from("ab"), st.one_of(st.none(), st.integers(0, 60))), max_size=3)


def _limited(declare: Callable[[Keyed, Keyed], DataStream], ttl: StateTtlConfig) -> Declare:
    def limited(left: Keyed, right: Keyed) -> DataStream:
        join = left.regular_join(right, ttl=ttl)
        if declare is _by_rows:
            return join.apply(pair_of, output=Pair, uid="join")
        return join.select(Pair, COLUMNS, uid="join")

    return limited


@pytest.mark.long(reason="draws many histories")
@one_in(6)
@given(st.booleans(), st.lists(st.tuples(st.integers(0, 20), SIDES, SIDES), max_size=6))
@example(True, [(20, [("a", 0)], [("a", 40)]), (20, [], []), (0, [], [("a", 50)])])
@example(True, [(0, [("a", 0)], []), (0, [("b", 60)], [("b", 0)]), (20, [], [("a", 1)]), (20, [], [("a", 2)])])
def test_rows_expire_as_row_by_row_whatever_other_rows_are_in_their_batch(
    renews: bool, batches: list[tuple[int, list[tuple[str, int | None]], list[tuple[str, int | None]]]]
) -> None:
    ttl = StateTtlConfig.new_builder(ms(30)).use_event_time().disable_cleanup_in_background()
    config = (ttl.update_ttl_on_read_and_write() if renews else ttl).build()
    # Without an out-of-orderness, so that time advances between batches for both.
    with harness(_limited(_by_rows, config)) as rows, harness(_limited(_by_columns, config)) as columns:
        now = 0
        for step, lefts, rights in batches:
            made = []
            for h in (rows, columns):
                pairs = h.push_both([Left(*each) for each in lefts], [Right(*each) for each in rights])
                made.append(Counter((pair.key, pair.left, pair.right) for pair in pairs))
                h.advance_watermark(now + step)
            now += step
            assert made[0] == made[1]


# -- equalities in a condition ----------------------------------------------------------------------------------------


class Valued(msgspec.Struct, frozen=True):
    key: str
    number: int
    i: int | None
    x: float | None
    s: str | None


class Numbers(msgspec.Struct, frozen=True):
    left: int
    right: int


VALUES = st.builds(
    Valued, st.sampled_from("ab"), st.integers(0, 99), st.sampled_from([None, 0, 1, -1, 1 << 40]),
    st.sampled_from([None, 0.0, -0.0, 1.5, float("nan")]), st.sampled_from([None, "", "a", "\x00"]),
)  # fmt: skip
Condition = Callable[[Any, Any], Any]
CONDITIONS: list[tuple[Condition, list[tuple[str, str]]]] = [
    (lambda a, b: pc.equal(a["i"], b["i"]), [("i", "i")]),
    (lambda a, b: pc.equal(b["x"], a["x"]), [("x", "x")]),
    (
        lambda a, b: pc.and_kleene(pc.equal(a["s"], b["s"]), pc.and_(pc.equal(a["i"], b["i"]), pc.less(a["x"], 9))),
        [("s", "s"), ("i", "i")],
    ),
    (
        lambda a, b: pc.and_(pc.not_equal(a["s"], ' and "(l0 == r1)'), pc.equal(a["number"], b["number"])),
        [("number", "number")],
    ),
    (lambda a, b: pc.equal(a["i"], b["number"]), [("i", "number")]),
    (lambda a, b: pc.equal(a["x"], b["i"]), [("x", "i")]),
    (lambda a, b: pc.or_kleene(pc.equal(a["i"], b["i"]), pc.is_null(a["i"])), []),
    (lambda a, b: pc.equal(a["i"], a["number"]), []),
    (lambda a, b: pc.equal(pc.add(a["number"], 0), b["i"]), []),
    (lambda a, b: pa.array(np.asarray(a["number"]) == np.asarray(b["number"])), []),
]


@pytest.mark.parametrize(("where", "equal"), CONDITIONS)
@given(lefts=st.lists(VALUES, max_size=12), rights=st.lists(VALUES, max_size=12))
def test_columns_that_a_condition_compares_narrow_the_pairs_and_lose_none(
    where: Condition, equal: list[tuple[str, str]], lefts: list[Valued], rights: list[Valued]
) -> None:
    assert list(equal_columns(where)) == equal
    kind = pa.struct([(column.name, column.shape.arrow) for column in RowSchema.of(Valued).columns])
    rows = [pa.array(list(map(msgspec.structs.asdict, side)), kind) for side in (lefts, rights)]
    keys = [np.array([ord(row.key) for row in side], np.int64) for side in (lefts, rights)]

    def joined(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> Counter[tuple[int, int]]:
        found: Counter[tuple[int, int]] = Counter()
        for at in pairs_of(left, right):
            columns = [PairedColumns(of, own) for of, own in zip(rows, at, strict=True)]
            is_pair = np.asarray(pc.fill_null(where(*columns), False))
            found.update(zip(at[0][is_pair].tolist(), at[1][is_pair].tolist(), strict=True))
        return found

    assert joined(*number_equal_rows(Side(keys[0], rows[0]), Side(keys[1], rows[1]), equal)) == joined(*keys)


def test_an_equality_makes_as_many_pairs_as_are_joined() -> None:
    rows = [[Valued("hot", n, n + first, None, None) for n in range(10_000)] for first in (0, 5_000)]
    compared: list[int] = []

    def where(left: Columns, right: Columns) -> pa.Array:
        found = pc.equal(left["i"], right["i"])
        compared.extend([len(left)] if isinstance(left, PairedColumns) else ())
        return found

    def build(left: Keyed, right: Keyed) -> DataStream:
        columns = {"left": "left.number", "right": "right.number"}
        return left.regular_join(right).select(Numbers, columns, where=where, uid="join")

    inputs = KeyedInput(Valued, "key"), KeyedInput(Valued, "key")
    with KeyedHarness(build, *inputs) as h:
        h.push_both(*rows)
    assert sum(compared) == 5_000


def _compare_some(left: Keyed, right: Keyed) -> DataStream:
    columns = {"left": "left.number", "right": "right.number"}
    return left.regular_join(right).select(Numbers, columns, where=lambda a, b: pc.less(a["i"], 0), uid="join")


def _apply(left: Keyed, right: Keyed) -> DataStream:
    return left.regular_join(right).apply(
        lambda a, b: Numbers(a.number, b.number), output=Numbers, where=lambda a, b: a.i < 0, uid="join"
    )


@pytest.mark.parametrize("build", [_compare_some, _apply])
def test_the_run_names_the_key_that_a_join_compares_most_pairs_of(
    build: Declare, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stateflow.api.joins.pairs.HOT", 10_000)
    monkeypatch.setattr("stateflow.api.joins.regular_join.HOT", 10_000)
    rows = [Valued(key, n, n, None, None) for n in range(120) for key in ("hot", *("cold" if n < 9 else ""))]
    with KeyedHarness(build, KeyedInput(Valued, "key"), KeyedInput(Valued, "key")) as h:
        h.push_both(rows, rows)
    (record,) = [each for each in caplog.records if each.args and "join" in each.args]
    assert record.args == ("join", "'hot'", 120 * 120)
