"""Regular joins of changelogs: cases of Flink's tests, and random histories against nested loops over the tables."""

from __future__ import annotations

import itertools
import math
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow import RowKind, StateTtlConfig
from stateflow.api.joins.pairs import Columns
from stateflow.api.joins.regular_join import ColumnCondition
from stateflow.api.streams.data_stream import DataStream
from stateflow.errors import JobDefinitionError
from stateflow.testing import KeyedHarness, KeyedInput
from tests.joins.changelog_rows import ADD, UA, UB, Change, D, Joined, joined
from tests.joins.joined_rows import Keyed, ms, unkeyed
from tests.support.examples import one_in

Result = tuple[str, Any, Any]


class Upsert(msgspec.Struct, frozen=True):
    key: str | None
    id: int
    value: int = 0


class Selected(msgspec.Struct, frozen=True):
    left_id: int | None
    left_value: int | None
    right_id: int | None
    right_value: int | None
    kind: RowKind

    def joined(self) -> Joined:
        sides = ((self.left_id, self.left_value), (self.right_id, self.right_value))
        left, right = (None if id is None else f"{id}:{value}" for id, value in sides)
        return Joined(left, right, self.kind)


SELECTED = {f"{side}_{name}": f"{side}.{name}" for side in ("left", "right") for name in ("id", "value")}


FORMS = {"appends": Upsert, "upserts": Upsert, "changes": Change, "changes-by-key": Change}
"""How the rows of a side correct earlier ones, and their class."""


def _keyed(stream: Keyed, form: str) -> Keyed:
    if form in ("appends", "changes"):
        return stream
    return unkeyed(stream).as_changelog("key", "id").key_by("key")


def _not_above(left: Any, right: Any) -> bool:
    return bool(left.value <= right.value)


def _not_above_by_columns(left: Columns, right: Columns) -> pa.Array:
    return pc.less_equal(left["value"], right["value"])


def _equal(left: Any, right: Any) -> bool:
    return bool(left.value == right.value and left.id <= right.id)


def _equal_by_columns(left: Columns, right: Columns) -> pa.Array:
    return pc.and_kleene(pc.equal(left["value"], right["value"]), pc.less_equal(left["id"], right["id"]))


CONDITIONS: dict[str, tuple[Any, Any]] = {
    "": (None, None),
    "not above": (_not_above, _not_above_by_columns),
    # Partners are found by their values.
    "equal": (_equal, _equal_by_columns),
}


class Ids(msgspec.Struct, frozen=True):
    left_id: int | None
    right_id: int | None
    kind: RowKind


def _selecting_harness(forms: Sequence[str], how: str = "inner", where: Any = None, **settings: Any) -> KeyedHarness:
    def declare(left: Keyed, right: Keyed) -> DataStream:
        join = _keyed(left, forms[0]).regular_join(_keyed(right, forms[1]), how=how)
        return join.select(Selected, SELECTED, where=where, uid="join")

    return KeyedHarness(declare, *(KeyedInput(FORMS[form], "key") for form in forms), **settings)


def _harness(
    forms: Sequence[str], how: str = "inner", ttl: StateTtlConfig | None = None, where: Any = None, **settings: Any
) -> KeyedHarness:
    def declare(left: Keyed, right: Keyed) -> DataStream:
        join = _keyed(left, forms[0]).regular_join(_keyed(right, forms[1]), how=how, ttl=ttl)
        return join.apply(joined, output=Joined, where=where, uid="join")

    return KeyedHarness(declare, *(KeyedInput(FORMS[form], "key") for form in forms), **settings)


def _found(rows: list[Joined]) -> list[Result]:
    return [(row.kind.value, row.left, row.right) for row in rows]


# -- cases of Flink's StreamingJoinOperatorTest -----------------------------------------------------------------------


def test_a_retraction_removes_one_row_of_equal_content() -> None:
    with _harness(["changes", "changes"]) as h:
        h.push_both([Change(ADD, "k", 1), Change(ADD, "k", 1)], [])
        assert _found(h.push_both([], [Change(ADD, "k", 7)])) == [("+I", "1:0", "7:0")] * 2
        assert _found(h.push_both([Change(D, "k", 1)], [])) == [("-D", "1:0", "7:0")]
        assert _found(h.push_both([], [Change(ADD, "k", 8)])) == [("+I", "1:0", "8:0")]
        found = _found(h.push_both([Change(UB, "k", 1), Change(UA, "k", 1, 5)], []))
        assert sorted(found[:2]) == [("-U", "1:0", "7:0"), ("-U", "1:0", "8:0")]
        assert sorted(found[2:]) == [("+U", "1:5", "7:0"), ("+U", "1:5", "8:0")]


def test_a_row_with_an_upsert_key_replaces_the_results_of_the_earlier_row() -> None:
    with _harness(["upserts", "appends"]) as h:
        h.push_both([Upsert("k", 1, 10)], [Upsert("k", 7)])
        found = _found(h.push_both([Upsert("k", 1, 20), Upsert("k", 2, 5)], []))
        assert found == [("-U", "1:10", "7:0"), ("+U", "1:20", "7:0"), ("+I", "2:5", "7:0")]
        assert h.push_both([Upsert("k", 2, 5)], []) == []


def test_an_outer_join_emits_a_row_alone_again_when_its_last_partner_is_retracted() -> None:
    with _harness(["appends", "changes"], "left") as h:
        assert _found(h.push_both([Upsert("k", 1)], [])) == [("+I", "1:0", None)]
        found = _found(h.push_both([], [Change(ADD, "k", 7), Change(ADD, "k", 8)]))
        assert found == [("-D", "1:0", None), ("+I", "1:0", "7:0"), ("+I", "1:0", "8:0")]
        assert _found(h.push_both([], [Change(D, "k", 7)])) == [("-D", "1:0", "7:0")]
        assert _found(h.push_both([], [Change(D, "k", 8)])) == [("-D", "1:0", "8:0"), ("+I", "1:0", None)]


def test_a_row_that_has_expired_is_not_retracted() -> None:
    with _harness(["changes", "appends"], "left", StateTtlConfig.new_builder(ms(10)).build()) as h:
        h.push_both([Change(ADD, "k", 1)], [Upsert("k", 7)])
        h.advance_processing_time(20)
        assert h.push_both([Change(D, "k", 1)], []) == []
        # Its partner has expired as well, so the next row has none.
        assert _found(h.push_both([Change(ADD, "k", 2)], [])) == [("+I", "2:0", None)]


LOST = "1:2"
"""A row of an outer side whose partner has expired."""


def _lost(form: str, how: str, where: Any) -> Any:
    """Returns a function that pushes rows of the outer side and of the other side, after such a row was joined."""
    is_left = how == "left"
    forms = (form, "changes") if is_left else ("changes", form)
    # A condition that is always true, so that both kinds of joins have the same results.
    h = _harness(forms, how, StateTtlConfig.new_builder(ms(100)).build(), where)

    def push(outer: list[Any], other: list[Any]) -> list[Result]:
        found = _found(h.push_both(*((outer, other) if is_left else (other, outer))))
        return [(kind, *((left, right) if is_left else (right, left))) for kind, left, right in found]

    push([], [Change(ADD, "k", 7)])
    h.advance_processing_time(90)
    assert push([_outer(form, 2)], []) == [("+I", LOST, "7:0")]
    h.advance_processing_time(120)
    return push


def _outer(form: str, value: int, kind: RowKind = ADD) -> Any:
    return Change(kind, "k", 1, value) if form == "changes" else Upsert("k", 1, value)


lost_cases = pytest.mark.parametrize(
    ("how", "where"), [("left", None), ("right", None), ("left", lambda left, right: True)]
)


@lost_cases
@pytest.mark.parametrize("value", [2, 3])
def test_a_row_that_replaces_one_whose_partners_have_expired_is_alone(how: str, where: Any, value: int) -> None:
    push = _lost("upserts", how, where)
    assert push([_outer("upserts", value)], []) == [("+I", f"1:{value}", None)]
    assert push([], [Change(ADD, "k", 8)]) == [("-D", f"1:{value}", None), ("+I", f"1:{value}", "8:0")]


@lost_cases
def test_rows_equal_to_one_whose_partners_have_expired_are_alone(how: str, where: Any) -> None:
    push = _lost("changes", how, where)
    row = _outer("changes", 2)
    assert push([row, row], []) == [("+I", LOST, None)] * 2
    assert push([], [Change(ADD, "k", 8)]) == [("-D", LOST, None)] * 2 + [("+I", LOST, "8:0")] * 3
    assert push([], [Change(D, "k", 8)]) == [("-D", LOST, "8:0")] * 3 + [("+I", LOST, None)] * 3


@lost_cases
def test_as_many_rows_without_a_partner_are_retracted_as_were_emitted(how: str, where: Any) -> None:
    push = _lost("changes", how, where)
    assert push([_outer("changes", 2)], []) == [("+I", LOST, None)]
    back = _outer("changes", 2, D)
    # The result of the older row was with a partner that has expired.
    assert push([back, back], []) == [("-D", LOST, None)]


class Nested(msgspec.Struct, frozen=True):
    kind: RowKind
    key: str
    id: int
    value: dict[int, float]


def test_a_retraction_finds_an_equal_row_whatever_the_order_of_dicts_and_the_bits_of_nan() -> None:
    def declare(left: Keyed, right: Keyed) -> DataStream:
        return left.regular_join(right).apply(joined, output=Joined, uid="join")

    (negative_nan,) = struct.unpack("<d", (0xFFF8 << 48).to_bytes(8, "little"))
    with KeyedHarness(declare, KeyedInput(Nested, "key"), KeyedInput(Change, "key")) as h:
        h.push_both([Nested(ADD, "k", 1, {1: math.nan, 2: 0.5})], [Change(ADD, "k", 7)])
        assert [row.kind for row in h.push_both([Nested(D, "k", 1, {2: 0.5, 1: negative_nan})], [])] == [D]


# -- random histories -------------------------------------------------------------------------------------------------

Steps = list[tuple[list[tuple[int, int]], list[tuple[int, int]], int]]
steps = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 9)), max_size=5)


class _Side:
    """Rows of one side: the changes of steps, and the table that they make."""

    def __init__(self, form: str) -> None:
        self.form = form
        self.table: list[Any] = []

    def changes(self, steps: list[tuple[int, int]]) -> list[Any]:
        return [row for action, number in steps for row in self._apply(action, number)]

    def _apply(self, action: int, number: int) -> list[Any]:
        new = Upsert(("a", "b", None)[number % 3], number // 4, action)
        if self.form == "appends":
            self.table.append(new)
            return [new]
        if self.form == "changes":
            return self._change(action, number, new)
        old = [row for row in self.table if (row.key, row.id) == (new.key, new.id)]
        self.table = [row for row in self.table if row not in old]
        if self.form == "changes-by-key" and action > 4:
            return [Change(D, new.key, new.id, -1)]
        self.table.append(new)
        kind = UA if old else ADD
        return [new] if self.form == "upserts" else [Change(kind, new.key, new.id, new.value)]

    def _change(self, action: int, number: int, new: Upsert) -> list[Any]:
        if action < 4 or not self.table:
            # Few values, so that there are rows of equal content.
            self.table.append(new := Upsert(new.key, new.id, action % 2))
            return [Change(ADD, *msgspec.structs.astuple(new))]
        old = self.table.pop(number % len(self.table))
        if action == 4:
            self.table.append(new)
            return [Change(UB, *msgspec.structs.astuple(old)), Change(UA, *msgspec.structs.astuple(new))]
        return [Change(D, *msgspec.structs.astuple(old))]


@dataclass(frozen=True)
class _History:
    """Steps of both sides by batch with the parallelism of a restore, or 0."""

    batches: Steps
    forms: tuple[str, str]
    how: str
    condition: str
    by_columns: bool

    def harness(self) -> KeyedHarness:
        # Without corrections, `select` has no kind; tests of selected joins have it.
        if self.by_columns and (self.how != "inner" or self.forms != ("appends", "appends")):
            return _selecting_harness(self.forms, self.how, CONDITIONS[self.condition][1])
        return _harness(self.forms, self.how, where=CONDITIONS[self.condition][0])


histories = st.builds(
    _History,
    st.lists(st.tuples(steps, steps, st.sampled_from([0, 0, 0, 1, 3])), min_size=1, max_size=6),
    st.tuples(st.sampled_from(sorted(FORMS)), st.sampled_from(sorted(FORMS))),
    st.sampled_from(["inner", "left", "right", "full"]),
    st.sampled_from(sorted(CONDITIONS)),
    st.booleans(),
)


def _tables(left: list[Any], right: list[Any], how: str, where: Any) -> Counter[tuple[Any, Any]]:
    def is_joined(x: Any, y: Any) -> bool:
        return bool(x.key == y.key is not None and (where is None or where(x, y)))

    pairs = [(x, y) for x in left for y in right if is_joined(x, y)]
    if how in ("left", "full"):
        pairs += [(x, None) for x in left if not any(is_joined(x, y) for y in right)]
    if how in ("right", "full"):
        pairs += [(None, y) for y in right if not any(is_joined(x, y) for x in left)]
    return Counter((row.left, row.right) for row in (joined(*pair) for pair in pairs))


@pytest.mark.long(reason="draws many histories")
@one_in(2)
@given(histories)
def test_the_changes_add_up_to_the_join_of_both_tables(history: _History) -> None:
    left, right = (_Side(form) for form in history.forms)
    table: Counter[tuple[Any, Any]] = Counter()
    where = CONDITIONS[history.condition][0]
    h = history.harness()
    for first, second, parallelism in history.batches:
        if parallelism:
            with h:
                h = KeyedHarness.restore(h.snapshot(), parallelism=parallelism)
        for given_row in h.push_both(left.changes(first), right.changes(second)):
            row = given_row.joined() if isinstance(given_row, Selected) else given_row
            table[row.left, row.right] += -1 if row.kind.is_retraction else 1
            assert table[row.left, row.right] >= 0
        assert +table == _tables(left.table, right.table, history.how, where)
    with h:
        if not left.table and not right.table:
            assert h.state_entries() == []


@pytest.mark.long(reason="draws many histories")
@one_in(3)
@given(histories, st.lists(st.integers(0, 12), min_size=6, max_size=6))
def test_no_result_is_retracted_more_often_than_emitted_if_rows_expire(history: _History, waits: list[int]) -> None:
    left, right = (_Side(form) for form in history.forms)
    table: Counter[tuple[Any, Any]] = Counter()
    ttl = StateTtlConfig.new_builder(ms(10)).build()
    with _harness(history.forms, history.how, ttl, CONDITIONS[history.condition][0]) as h:
        for (first, second, _), end in zip(history.batches, itertools.accumulate(waits), strict=False):
            for row in h.push_both(left.changes(first), right.changes(second)):
                table[row.left, row.right] += -1 if row.kind.is_retraction else 1
                assert table[row.left, row.right] >= 0
            h.advance_processing_time(end)


class Priced(msgspec.Struct, frozen=True):
    key: str
    id: int
    value: float | None


@pytest.mark.parametrize("how", ["left", "full"])
def test_an_outer_join_compares_only_rows_whose_equal_columns_are_equal(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []

    def counted(condition: ColumnCondition, row: object, others: Sequence[object], is_left: bool) -> Sequence[bool]:
        compared.append(len(others))
        return find(condition, row, others, is_left)

    find = ColumnCondition.__call__
    monkeypatch.setattr(ColumnCondition, "__call__", counted)

    def declare(left: Keyed, right: Keyed) -> DataStream:
        columns = {"left_id": "left.id", "right_id": "right.id"}
        return left.regular_join(right, how=how).select(Ids, columns, where=_equal_by_columns, uid="join")

    values = [*map(float, range(300)), -0.0, math.nan, None]
    left, right = ([Priced("k", id, value) for id, value in enumerate(some)] for some in (values, values[::-1]))
    with KeyedHarness(declare, KeyedInput(Priced, "key"), KeyedInput(Priced, "key")) as h:
        h.push_both(left, right)
        table = Counter[tuple[int | None, int | None]]()
        for row in h.output:
            table[row.left_id, row.right_id] += -1 if row.kind.is_retraction else 1
    pairs = [(x.id, y.id) for x in left for y in right if x.value == y.value is not None and x.id <= y.id]
    expected: list[tuple[int | None, int | None]] = [*pairs]
    expected += [(x.id, None) for x in left if x.id not in {one for one, _ in pairs}]
    if how == "full":
        expected += [(None, y.id) for y in right if y.id not in {other for _, other in pairs}]
    assert +table == Counter(expected)
    assert sum(compared) < 2_000


def test_declarations_that_give_wrong_results_are_refused() -> None:
    class NoKind(msgspec.Struct):
        key: str

    class NeverNull(msgspec.Struct):
        kind: RowKind
        id: int

    def no_kind(left: Keyed, right: Keyed) -> DataStream:
        return left.regular_join(right).apply(joined, output=NoKind, uid="join")

    def columns(left: Keyed, right: Keyed) -> DataStream:
        return left.regular_join(right).select(NoKind, {"key": "left.key"}, uid="join")

    def never_null(left: Keyed, right: Keyed) -> DataStream:
        join = left.regular_join(right, how="left")
        return join.select(NeverNull, {"id": "right.id"}, uid="join")

    def ordered(left: Keyed, right: Keyed) -> DataStream:
        join = unkeyed(left).as_changelog("key", "id").key_by("key", order_by=("id",)).regular_join(right)
        return join.apply(joined, output=Joined, uid="join")

    def upserts_by_another_key(left: Keyed, right: Keyed) -> DataStream:
        upserts = unkeyed(right).as_changelog("id").key_by("key")
        return left.regular_join(upserts).apply(joined, output=Joined, uid="join")

    for declare in (no_kind, columns, never_null, ordered, upserts_by_another_key):
        with pytest.raises(JobDefinitionError):
            KeyedHarness(declare, KeyedInput(Change, "key"), KeyedInput(Change, "key"))
