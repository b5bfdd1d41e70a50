"""Operator state over subtasks, by Flink's rules: even split, union, broadcast, raw streams."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.checkpoint.restore.state_assignment import AssignedState, WrittenState, assign, even_split
from stateflow.errors import CorruptFile
from stateflow.state.handles import OperatorContent
from stateflow.types.key_groups import subtask_of
from tests.support.errors import raises

M = 13
ELEMENTS = st.lists(st.binary(max_size=2), max_size=7)
LISTS = st.dictionaries(st.sampled_from(["a", "b"]), ELEMENTS.filter(bool), max_size=2)
BROADCAST = st.dictionaries(st.binary(max_size=2), st.binary())


@st.composite
def written(draw: st.DrawFn) -> WrittenState:
    """State as an operator's subtasks write it: raw pieces where their key groups belong, broadcast state in one."""
    parallelism = draw(st.integers(1, M))
    broadcasts = draw(st.dictionaries(st.sampled_from("xy"), BROADCAST, max_size=2))
    groups = draw(st.sets(st.integers(0, M - 1)))
    contents = {
        subtask: OperatorContent(
            lists=draw(LISTS),
            unions=draw(LISTS),
            raw=draw(ELEMENTS),
            broadcasts=broadcasts if subtask == 0 else {},
            raw_keyed=[(g, bytes([g])) for g in sorted(groups) if subtask_of(g, parallelism, M) == subtask],
        )
        for subtask in range(parallelism)
    }
    left_out = draw(st.sets(st.integers(1, M), max_size=2))
    return WrittenState({s: c for s, c in contents.items() if s not in left_out}, parallelism)


def _all(before: WrittenState, parallelism: int) -> list[AssignedState]:
    return [assign(before, subtask, parallelism, M) for subtask in range(parallelism)]


def _in_order(before: WrittenState, kind: str, name: str) -> list[bytes]:
    return [e for s in sorted(before.contents) for e in getattr(before.contents[s], kind).get(name, [])]


@given(written(), st.integers(1, M))
def test_an_even_split_keeps_every_element_and_their_order(before: WrittenState, parallelism: int) -> None:
    found = _all(before, parallelism)
    for kind in ("lists", "unions"):
        for name in "ab":
            kept = [getattr(each.own, kind).get(name, []) for each in found]
            assert [e for elements in kept for e in elements] == _in_order(before, kind, name)
            if parallelism != before.parallelism:
                assert max(map(len, kept)) - min(map(len, kept)) <= 1
    raw = [piece for each in found for piece in each.own.raw]
    assert raw == [piece for s in sorted(before.contents) for piece in before.contents[s].raw]


@given(written())
def test_at_the_same_parallelism_each_subtask_keeps_its_own(before: WrittenState) -> None:
    found = _all(before, before.parallelism)
    assert [each.own for each in found] == [
        before.contents.get(s, OperatorContent()) for s in range(before.parallelism)
    ]


@given(written(), st.integers(1, M))
def test_union_and_broadcast_state_are_given_to_every_subtask(before: WrittenState, parallelism: int) -> None:
    wanted = before.contents[0].broadcasts
    unions = {name: elements for name in "ab" if (elements := _in_order(before, "unions", name))}
    found = _all(before, parallelism)
    assert all(each.broadcasts == wanted for each in found)
    assert all({name: e for name, e in each.unions.items() if e} == unions for each in found)
    assert [each.own.broadcasts for each in found] == [wanted] + [{}] * (parallelism - 1), "stored once"


def test_any_copy_of_a_broadcast_state_is_used() -> None:
    contents = {1: OperatorContent(broadcasts={"x": {b"k": b"v"}}), 2: OperatorContent()}
    assert assign(WrittenState(contents, 3), 0, 5, M).broadcasts == {"x": {b"k": b"v"}}


@given(written(), st.integers(1, M))
def test_raw_keyed_pieces_go_with_their_key_groups(before: WrittenState, parallelism: int) -> None:
    groups = sorted(g for c in before.contents.values() for g, _ in c.raw_keyed)
    for subtask, each in enumerate(_all(before, parallelism)):
        own = [(g, bytes([g])) for g in groups if subtask_of(g, parallelism, M) == subtask]
        assert each.own.raw_keyed == own


@pytest.mark.parametrize("parallelism", [2, 3])
def test_raw_keyed_state_of_no_subtask_is_refused(parallelism: int) -> None:
    before = WrittenState({1: OperatorContent(raw_keyed=[(0, b"a"), (M, b"b")])}, 2)
    with raises(CorruptFile, key_group=M, max_parallelism=M):
        assign(before, 0, parallelism, M)


@given(st.lists(st.integers(0, 9), max_size=8), st.integers(1, M))
def test_no_subtask_gets_more_of_all_lists_together_than_another(lengths: list[int], parallelism: int) -> None:
    lists = {chr(97 + at): [b"x"] * length for at, length in enumerate(lengths) if length}
    unions = {"u": [b"u"] * sum(lengths[:2])}
    before = WrittenState({0: OperatorContent(lists=lists, unions=unions, raw=[b"r"] * len(lengths))}, M + 1)
    shares = [each.own for each in _all(before, parallelism)]
    totals = [sum(map(len, [*s.lists.values(), *s.unions.values(), s.raw])) for s in shares]
    assert max(totals) - min(totals) <= 1


@pytest.mark.parametrize(
    ("items", "first", "expected"),
    [
        ("", 0, ["", "", ""]),
        ("ab", 0, ["a", "b", ""]),
        ("ab", 2, ["a", "", "b"]),
        ("abcdefg", 0, ["abc", "de", "fg"]),
        ("abcdefg", 1, ["ab", "cde", "fg"]),
        ("abcd", 1, ["ab", "cd"]),
        ("abc", 0, ["abc"]),
    ],
)
def test_an_even_split_starts_the_longer_runs_at_the_given_part(items: str, first: int, expected: list[str]) -> None:
    assert even_split(items, len(expected), first) == [list(run) for run in expected]
