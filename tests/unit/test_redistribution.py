"""Operator state over subtasks, by Flink's rules: even split, union, broadcast, raw streams."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.checkpoint.restore.redistribution import AssignedState, WrittenState, assign, even_split
from stateflow.state.handles import OperatorContent
from stateflow.types.key_groups import subtask_of

M = 13
ELEMENTS = st.lists(st.binary(max_size=2), max_size=7)
LISTS = st.dictionaries(st.sampled_from(["a", "b"]), ELEMENTS.filter(bool), max_size=2)


@st.composite
def written(draw: st.DrawFn) -> WrittenState:
    """As the subtasks of an operator write: raw pieces where their key groups belong, broadcast state in one."""
    parallelism = draw(st.integers(1, M))
    broadcasts = draw(
        st.dictionaries(st.sampled_from("xy"), st.dictionaries(st.binary(max_size=2), st.binary()), max_size=2)
    )
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
def test_at_the_same_parallelism_everybody_keeps_its_own(before: WrittenState) -> None:
    found = _all(before, before.parallelism)
    assert {s: each.own for s, each in enumerate(found) if s in before.contents} == dict(before.contents)
    assert all(found[s].own == OperatorContent() for s in range(before.parallelism) if s not in before.contents)


@given(written(), st.integers(1, M))
def test_a_union_gives_everybody_everything(before: WrittenState, parallelism: int) -> None:
    for each in _all(before, parallelism):
        assert {n: e for n, e in each.unions.items() if e} == {
            n: _in_order(before, "unions", n) for n in "ab" if _in_order(before, "unions", n)
        }


@given(written(), st.integers(1, M))
def test_broadcast_state_is_everybody_s_and_kept_once(before: WrittenState, parallelism: int) -> None:
    wanted = before.contents[0].broadcasts
    found = _all(before, parallelism)
    assert all(each.broadcasts == wanted for each in found)
    assert [each.own.broadcasts for each in found] == [wanted] + [{}] * (parallelism - 1)


def test_any_one_copy_of_a_broadcast_state_will_do() -> None:
    contents = {1: OperatorContent(broadcasts={"x": {b"k": b"v"}}), 2: OperatorContent()}
    assert assign(WrittenState(contents, 3), 0, 5, M).broadcasts == {"x": {b"k": b"v"}}


@given(written(), st.integers(1, M))
def test_raw_keyed_pieces_go_with_their_key_groups(before: WrittenState, parallelism: int) -> None:
    found = _all(before, parallelism)
    pieces = [(subtask_of(g, parallelism, M), g) for c in before.contents.values() for g, _ in c.raw_keyed]
    assert Counter((s, g) for s, each in enumerate(found) for g, _ in each.own.raw_keyed) == Counter(pieces)
    for each in found:
        groups = [g for g, _ in each.own.raw_keyed]
        assert groups == sorted(groups) and all(piece == bytes([g]) for g, piece in each.own.raw_keyed)


@given(written(), st.integers(1, M), st.integers(1, M))
def test_rescaling_twice_loses_nothing(before: WrittenState, second: int, third: int) -> None:
    between = WrittenState({s: each.own for s, each in enumerate(_all(before, second))}, second)
    after = WrittenState({s: each.own for s, each in enumerate(_all(between, third))}, third)
    for kind in ("lists", "unions"):
        for name in "ab":
            assert _in_order(after, kind, name) == _in_order(before, kind, name)
    assert after.contents[0].broadcasts == before.contents[0].broadcasts


@given(st.lists(st.integers(0, 9), max_size=8), st.integers(1, M))
def test_no_subtask_gets_more_of_all_lists_together_than_another(lengths: list[int], parallelism: int) -> None:
    lists = {chr(97 + at): [b"x"] * length for at, length in enumerate(lengths) if length}
    unions = {"u": [b"u"] * sum(lengths[:2])}
    before = WrittenState({0: OperatorContent(lists=lists, unions=unions, raw=[b"r"] * len(lengths))}, M + 1)
    shares = [each.own for each in _all(before, parallelism)]
    totals = [sum(map(len, [*s.lists.values(), *s.unions.values(), s.raw])) for s in shares]
    assert max(totals) - min(totals) <= 1


@pytest.mark.parametrize(
    ("items", "parts", "first", "expected"),
    [
        ("", 3, 0, ["", "", ""]),
        ("ab", 3, 0, ["a", "b", ""]),
        ("ab", 3, 2, ["a", "", "b"]),
        ("abcdefg", 3, 0, ["abc", "de", "fg"]),
        ("abcdefg", 3, 1, ["ab", "cde", "fg"]),
        ("abcd", 2, 1, ["ab", "cd"]),
        ("abc", 1, 0, ["abc"]),
    ],
)
def test_runs_of_an_even_split(items: str, parts: int, first: int, expected: list[str]) -> None:
    assert even_split(items, parts, first) == [list(run) for run in expected]
