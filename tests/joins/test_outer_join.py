"""Regular outer joins: cases of Flink's tests, and random histories against plain Python."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow import RowKind, StateTtlConfig
from stateflow.api.streams.data_stream import DataStream
from stateflow.errors import JobDefinitionError
from stateflow.testing import KeyedHarness
from tests.joins.joined_rows import Declare, Keyed, Left, Pair, Right, harness, ms
from tests.joins.test_random_joins import History, histories

Result = tuple[int | None, str | None]


class Change(msgspec.Struct, frozen=True):
    """A result: numbers of the rows, and its kind."""

    number: int | None
    text: str | None
    kind: RowKind = RowKind.UPDATE_AFTER


def _change(left: Left | None, right: Right | None) -> Change:
    return Change(left.number if left else None, right.text if right else None)


def _join(how: str, ttl: StateTtlConfig | None = None) -> Declare:
    def declare(left: Keyed, right: Keyed) -> DataStream:
        return left.regular_join(right, how=how, ttl=ttl).apply(_change, output=Change, uid="join")

    return declare


def _changes(rows: list[Change]) -> list[tuple[str, int | None, str | None]]:
    return [(row.kind.value, row.number, row.text) for row in rows]


def test_a_left_join_deletes_the_result_without_a_partner() -> None:
    with harness(_join("left")) as h:
        assert _changes(h.push_both([Left("k", 1, 1)], [])) == [("+I", 1, None)]
        assert _changes(h.push_both([Left("k", 1, 2)], [])) == [("+I", 2, None)]
        found = _changes(h.push_both([], [Right("k", 1, "a")]))
        assert found == [("-D", 1, None), ("-D", 2, None), ("+I", 1, "a"), ("+I", 2, "a")]
        assert _changes(h.push_both([], [Right("k", 1, "b")])) == [("+I", 1, "b"), ("+I", 2, "b")]
        assert _changes(h.push_both([Left("k", 1, 3)], [])) == [("+I", 3, "a"), ("+I", 3, "b")]
        assert _changes(h.push_both([], [Right("alone", 1, "c")])) == []


def test_a_right_join_deletes_the_result_without_a_partner() -> None:
    with harness(_join("right")) as h:
        assert _changes(h.push_both([Left("alone", 1, 9)], [Right("k", 1, "a")])) == [("+I", None, "a")]
        assert _changes(h.push_both([Left("k", 1, 1)], [])) == [("-D", None, "a"), ("+I", 1, "a")]


def test_a_full_join_has_the_rows_of_both_sides() -> None:
    with harness(_join("full")) as h:
        h.push_both([Left("x", 1, 1)], [Right("y", 1, "a")])
        with KeyedHarness.restore(h.snapshot(), parallelism=3) as restored:
            changes = _changes(restored.push_both([Left("y", 1, 2)], [Right("x", 1, "b")]))
            assert sorted(changes, key=repr) == [("+I", 1, "b"), ("+I", 2, "a"), ("-D", 1, None), ("-D", None, "a")]


def test_a_row_whose_partner_has_expired_is_not_deleted_twice() -> None:
    ttl = StateTtlConfig.new_builder(ms(10)).build()
    with harness(_join("left", ttl)) as h:
        h.push_both([Left("k", 1, 1)], [Right("k", 1, "a")])
        h.advance_processing_time(5)
        h.push_both([Left("k", 1, 2)], [])
        h.advance_processing_time(12)
        assert _changes(h.push_both([Left("k", 1, 3)], [])) == [("+I", 3, None)]
        found = _changes(h.push_both([], [Right("k", 1, "b")]))
        assert found == [("-D", 3, None), ("+I", 2, "b"), ("+I", 3, "b")]


@given(histories, st.sampled_from(["left", "right", "full"]))
def test_the_changes_add_up_to_the_join_of_plain_python(history: History, how: str) -> None:
    table: Counter[Result] = Counter()
    lefts: list[Left] = []
    rights: list[Right] = []
    h = harness(_join(how), history.bound)
    for (left, right), parallelism in history.batches:
        if parallelism:
            with h:
                h = KeyedHarness.restore(h.snapshot(), parallelism=parallelism)
        for row in h.push_both(left, right):
            table[row.number, row.text] += 1 if row.kind is RowKind.INSERT else -1
            assert row.kind in (RowKind.INSERT, RowKind.DELETE) and table[row.number, row.text] >= 0
        lefts += left
        rights += right
        assert +table == _outer(lefts, rights, how)
    h.close()


def _outer(lefts: list[Left], rights: list[Right], how: str) -> Counter[Result]:
    found: Counter[Result] = Counter((x.number, y.text) for x in lefts for y in rights if x.key == y.id is not None)
    if how in ("left", "full"):
        found.update((x.number, None) for x in lefts if x.key is None or all(x.key != y.id for y in rights))
    if how in ("right", "full"):
        found.update((None, y.text) for y in rights if y.id is None or all(x.key != y.id for x in lefts))
    return found


def test_wrong_declarations_are_refused() -> None:
    def no_kind(left: Keyed, right: Keyed) -> DataStream:
        return left.regular_join(right, how="left").apply(_change, output=Pair, uid="join")

    def columns(left: Keyed, right: Keyed) -> DataStream:
        return left.regular_join(right, how="full").select(Pair, {"key": "left.key"}, uid="join")

    for declare in (no_kind, columns, _join("outer")):
        with pytest.raises(JobDefinitionError):
            harness(declare)
