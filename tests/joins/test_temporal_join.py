"""Temporal joins: cases of Flink's tests, and random histories against plain Python."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stateflow import RowKind
from stateflow.api.streams.data_stream import DataStream
from stateflow.errors import JobDefinitionError, StateError, UserCodeError
from stateflow.testing import KeyedHarness, KeyedInput
from tests.joins.joined_rows import Declare, Keyed, Left, Pair, Right, harness, unkeyed
from tests.support.examples import one_in

ADD, UB, UA, D = RowKind.INSERT, RowKind.UPDATE_BEFORE, RowKind.UPDATE_AFTER, RowKind.DELETE


def _with_version(row: Left, version: Any) -> Pair:
    if version is None:
        return Pair(row.key, row.at, None, row.number)
    return Pair(row.key, row.at, version.at, row.number, version.text)


def _join(how: str) -> Declare:
    def declare(left: Keyed, right: Keyed) -> DataStream:
        return left.temporal_join(right, how=how).apply(_with_version, output=Pair, uid="join")

    return declare


def test_a_row_waits_for_the_watermark_and_gets_the_version_of_its_time() -> None:
    with harness(_join("inner")) as h:
        h.push_both([Left("k", 3)], [Right("k", 1, "a"), Right("k", 4, "c")])
        assert h.advance_watermark(2) == []
        h.push_both([], [Right("k", 3, "b")])
        assert h.advance_watermark(3) == [Pair("k", 3, 3, 0, "b")]
        h.push_both([Left("k", 4, 1), Left("k", 9, 2)], [Right("other", 5, "x")])
        assert h.advance_watermark(9) == [Pair("k", 4, 4, 1, "c"), Pair("k", 9, 4, 2, "c")]


def test_old_versions_are_removed_and_the_valid_one_is_kept() -> None:
    with harness(_join("inner")) as h:
        h.push_both([], [Right("k", at, str(at)) for at in (1, 2, 5, 8)])
        assert list(h.state("versions", "k")) == [1, 2, 5, 8]
        h.advance_watermark(6)
        assert list(h.state("versions", "k")) == [5, 8]
        h.push_both([Left("k", 7)], [])
        with KeyedHarness.restore(h.snapshot(), parallelism=3) as restored:
            assert restored.advance_watermark(7) == [Pair("k", 7, 5, 0, "5")]
            restored.advance_watermark(100)
            assert list(restored.state("versions", "k")) == [8] and restored.timers() == []


def test_a_late_row_gets_a_version_that_is_still_kept() -> None:
    with harness(_join("left")) as h:
        h.push_both([], [Right("k", 1, "a"), Right("k", 5, "b")])
        h.advance_watermark(6)
        h.push_both([Left("k", 5), Left("k", 2, 1)], [])
        assert sorted(h.advance_watermark(7), key=repr) == [Pair("k", 2, None, 1), Pair("k", 5, 5, 0, "b")]


class Version(msgspec.Struct, frozen=True):
    kind: RowKind
    id: str | None
    at: int
    text: str = ""


def _changing(
    how: str, *, keys: tuple[str, ...] = ("id",), retracts: bool = False, bound: int | None = None, **more: Any
) -> KeyedHarness:
    def declare(left: Keyed, right: Keyed) -> DataStream:
        versions = unkeyed(right).as_changelog(*keys, retracts=retracts).key_by("id")
        return left.temporal_join(versions, how=how).apply(_with_version, output=Pair, uid="join")

    return harness(declare, bound, Version, **more)


def test_a_deletion_is_kept_over_a_restore() -> None:
    with _changing("left") as h:
        h.push_both([], [Version(ADD, "k", 1, "a"), Version(D, "k", 5)])
        h.advance_watermark(6)
        with KeyedHarness.restore(h.snapshot(), parallelism=3) as restored:
            restored.push_both([Left("k", 7)], [Version(ADD, "k", 3, "late")])
            assert restored.drain() == [Pair("k", 7, None, 0)]


def test_the_row_that_an_update_replaces_does_not_end_its_version_at_its_beginning() -> None:
    with _changing("left", retracts=True) as h:
        h.push_both([Left("k", 2), Left("k", 6, 1)], [Version(ADD, "k", 1, "a")])
        h.push_both([], [Version(UB, "k", 1, "a"), Version(UA, "k", 5, "b")])
        assert h.drain() == [Pair("k", 2, 1, 0, "a"), Pair("k", 6, 5, 1, "b")]


def test_changelogs_that_a_temporal_join_cannot_take_are_refused() -> None:
    def of_changes(left: Keyed, right: Keyed) -> DataStream:
        return right.temporal_join(left).apply(_with_version, output=Pair, uid="join")

    inputs = KeyedInput(Left, "key", event_time="at"), KeyedInput(Version, "id", event_time="at")
    with pytest.raises(JobDefinitionError) as caught:
        KeyedHarness(of_changes, *inputs)
    assert caught.value.facts["called"] == "temporal_join"
    for keys, retracts in (((), True), (("id", "text"), True)):
        with pytest.raises(JobDefinitionError) as caught:
            _changing("inner", keys=keys, retracts=retracts)
        assert caught.value.facts["key"] == ["id"] and caught.value.facts["upsert_key"] == list(keys)


events = st.tuples(st.sampled_from(["left", "left", ADD, UA, D]), st.sampled_from([None, "a", "b"]), st.integers(0, 30))
cuts = st.lists(st.tuples(st.integers(0, 40), st.sampled_from([0, 0, 1, 3])), max_size=5).map(sorted)


@one_in(3)
@given(
    st.lists(events, max_size=40), cuts, st.sampled_from(["inner", "left"]), st.booleans(),
    st.sampled_from([None, 1, 3]), st.sampled_from([0, 30]),
)  # fmt: skip
@example([(ADD, "a", 0), ("left", "a", 1), (ADD, "a", 1), ("left", "a", 30)], [(1, 0), (2, 3)], "left", False, None, 0)
def test_rows_get_the_versions_of_plain_python(
    script: list[tuple[Any, str | None, int]],
    cuts: list[tuple[int, int]],
    how: str,
    changes: bool,
    arrow: int | None,
    bound: int,
) -> None:
    """Batches of rows, none of which is late: by time, or in any order and with a watermark that allows for it."""
    script = script if bound else sorted(script, key=lambda event: event[2])
    lefts = {n: Left(key, at, n) for n, (what, key, at) in enumerate(script) if what == "left"}
    versions = {n: Version(what, key, at, str(n)) for n, (what, key, at) in enumerate(script) if what != "left"}
    rights: dict[int, Any] = versions
    if not changes:
        versions = {n: each for n, each in versions.items() if each.kind is not D}
        rights = {n: Right(each.id, each.at, each.text) for n, each in versions.items()}
    more: dict[str, Any] = {} if arrow is None else {"spark.conf.spark.sql.execution.arrow.maxRecordsPerBatch": arrow}
    h = _changing(how, bound=bound, **more) if changes else harness(_join(how), bound, **more)
    found: Counter[Pair] = Counter()
    start = 0
    for end, parallelism in [*cuts, (len(script), 0)]:
        numbers = range(start, max(start, min(end, len(script))))
        start = max(start, end)
        found.update(
            h.push_both([lefts[n] for n in numbers if n in lefts], [rights[n] for n in numbers if n in rights])
        )
        if parallelism:
            with h:
                h = KeyedHarness.restore(h.snapshot(), parallelism=parallelism)
    with h:
        found.update(h.drain())
        assert all(entry.state == "versions" for entry in h.state_entries()) and h.timers() == []
    wanted: Counter[Pair] = Counter()
    for row in lefts.values():
        of_key = [each for each in versions.values() if each.id == row.key is not None]
        by_time = {each.at: each for each in of_key if each.at <= (row.at or 0)}
        version = by_time[max(by_time)] if by_time else None
        version = None if version is not None and version.kind is D else version
        if version is not None or how == "left":
            wanted[_with_version(row, version)] += 1
    assert found == wanted


def test_errors_name_the_operator_and_wrong_declarations_are_refused() -> None:
    def failing(left: Keyed, right: Keyed) -> DataStream:
        return left.temporal_join(right).apply(lambda row, version: 1 // 0, output=Pair, uid="join")

    with harness(failing) as h, pytest.raises(UserCodeError) as caught:
        h.push_both([Left("k", 1)], [Right("k", 1)])
        h.drain()
    assert caught.value.facts["operator"] == "join"
    with harness(_join("inner")) as h, pytest.raises(StateError):
        h.push_both([], [Right("k", None)])
    with pytest.raises(JobDefinitionError):
        harness(_join("right"))
    with pytest.raises(JobDefinitionError):
        KeyedHarness(_join("inner"), KeyedInput(Left, "key"), KeyedInput(Right, "id", event_time="at"))
