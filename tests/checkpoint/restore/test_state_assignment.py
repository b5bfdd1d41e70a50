"""What a start takes from a checkpoint, what it refuses, and how operator state is divided, by Flink's rules."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.checkpoint.log.documents import Manifest, OperatorState, SourcePosition
from stateflow.checkpoint.restore.state_assignment import (
    CurrentJob,
    WrittenOperatorState,
    assign,
    assign_state,
    even_split,
)
from stateflow.errors import ConfigError, CorruptFile, StateflowError, WrongJobRoot
from stateflow.state.handles import Base, EarliestTimers, OperatorContent, OperatorPart, SubtaskState
from stateflow.types.key_groups import KeyGroupRange, range_of, subtask_of
from tests.support.errors import raises

STATE = [SubtaskState(subtask=0, first_group=0, last_group=127, snapshot="s")]


def _operator(uid: str, *types: str, **more: Any) -> OperatorState:
    given = {
        "parallelism": 2,
        "key_types": list(types) or ["string"],
        "key_names": ["key"] * (len(types) or 1),
        "states": [],
        "subtasks": STATE,
        **more,
    }
    return OperatorState(uid=uid, **given)


def _of_backend(backend: str) -> OperatorState:
    return _operator("a", subtasks=[msgspec.structs.replace(STATE[0], backend=backend)])


def _of_groups(*groups: tuple[int, int]) -> OperatorState:
    states = [SubtaskState(subtask=n, first_group=a, last_group=b, snapshot="s") for n, (a, b) in enumerate(groups)]
    return _operator("a", subtasks=states)


def _of_parts(*subtasks: int) -> OperatorState:
    return _operator("a", subtasks=[], parts=[OperatorPart(subtask=n, memory=0, content=b"") for n in subtasks])


def _manifest(*operators: OperatorState, sources: tuple[str, ...] = ("rows",)) -> Manifest:
    positions = [SourcePosition(uid=uid, description=f"reads {uid}", offset=uid) for uid in sources]
    return Manifest(job_uuid="j", generation=1, ordinal=1, operators=list(operators), sources=positions)


def _job(**changes: Any) -> CurrentJob:
    key_types, sources = {"a": ["string"], "b": ["string"]}, (("rows", "reads rows"),)
    given = {"parallelism": 2, "max_parallelism": 128, "key_types": key_types, "sources": sources, **changes}
    return CurrentJob(**given)


def test_state_is_matched_by_uid_and_a_removed_operator_without_state_is_ignored() -> None:
    manifest = _manifest(_operator("b"), _operator("gone", subtasks=[]))
    plan = assign_state(7, manifest, _job())
    assert (plan.checkpoint_id, plan.matched, plan.new) == (7, ("b",), ("a",))
    assert plan.operators == {"b": manifest.operators[0]}
    assert plan.positions == tuple(manifest.sources)
    assert assign_state(0, None, _job()).new == ("a", "b")


def _states(parallelism: int) -> list[SubtaskState]:
    ranges = [range_of(s, parallelism, 128) for s in range(parallelism)]
    return [
        SubtaskState(subtask=s, first_group=r.first, last_group=r.last, snapshot=f"{s}") for s, r in enumerate(ranges)
    ]


@given(before=st.integers(1, 128), now=st.integers(1, 128), gone=st.sets(st.integers(0, 127)))
def test_each_key_group_comes_from_its_previous_subtask(before: int, now: int, gone: set[int]) -> None:
    states = [s for s in _states(before) if s.subtask not in gone]
    manifest = _manifest(_operator("a", parallelism=before, subtasks=states))
    plan = assign_state(7, manifest, _job(parallelism=now))
    bases = plan.bases["a"]
    assert [b.subtask for b in bases] == list(range(now))
    for group in range(128):
        base = bases[subtask_of(group, now, 128)]
        found = [p.subtask for p in base.parts if p.first_group <= group <= p.last_group]
        assert found == [s for s in [subtask_of(group, before, 128)] if s not in gone]
        assert all(p.groups.overlap(base.owned) for p in base.parts)
    if before == now:
        assert [b.own for b in bases if b.parts] == states and not plan.rescaled
    elif len(states) == before:
        assert plan.rescaled == ("a",)


def test_state_of_the_same_key_groups_under_another_number_is_rescaled() -> None:
    moved = SubtaskState(subtask=3, first_group=0, last_group=63, snapshot="s")
    assert Base(0, KeyGroupRange(0, 63), (moved,)).rescales
    assert not Base(3, KeyGroupRange(0, 63), (moved,)).rescales
    assert not Base(0, KeyGroupRange(0, 63)).rescales


OVERLAPPING = _operator("a", subtasks=[*_states(2), *_states(3)])
GROUPS = [(0, 42), (0, 63), (43, 85), (64, 127), (86, 127)]


@pytest.mark.parametrize(
    ("manifest", "changes", "error", "facts"),
    [
        (_manifest(_operator("gone"), _operator("lost"), _operator("a")), {}, ConfigError, {"uids": ["gone", "lost"]}),
        (_manifest(_operator("a", "bigint")), {}, WrongJobRoot, {"uid": "a", "found": ["bigint"]}),
        (
            _manifest(_operator("a", "string", "string")),
            {},
            WrongJobRoot,
            {"found": ["string"] * 2, "wanted": ["string"]},
        ),
        (_manifest(_operator("a")), {"parallelism": 129}, ConfigError, {"parallelism": 129, "max_parallelism": 128}),
        (_manifest(OVERLAPPING), {}, CorruptFile, {"uid": "a", "groups": GROUPS}),
        (_manifest(_of_groups((0, 64), (64, 127))), {}, CorruptFile, {"uid": "a", "groups": [(0, 64), (64, 127)]}),
        (_manifest(_of_groups((0, 128))), {}, CorruptFile, {"key_groups": [("a", 0, 128)], "max_parallelism": 128}),
        (_manifest(_of_backend("forst")), {}, ConfigError, {"found": ["forst"]}),
        (_manifest(_of_parts(0, 0)), {}, CorruptFile, {"uid": "a", "subtasks": [0, 0], "parallelism": 2}),
        (_manifest(_of_parts(2)), {}, CorruptFile, {"subtasks": [2]}),
        (_manifest(_of_parts(-1)), {}, CorruptFile, {"subtasks": [-1]}),
        (_manifest(sources=("other",)), {}, ConfigError, {"found": ["other"], "wanted": ["rows"]}),
        (_manifest(sources=("rows", "more")), {}, ConfigError, {"found": ["rows", "more"], "wanted": ["rows"]}),
        (
            _manifest(),
            {"sources": (("rows", "new"),)},
            ConfigError,
            {"uid": "rows", "before": "reads rows", "now": "new"},
        ),
    ],
)
def test_a_checkpoint_that_does_not_fit_the_job_is_refused_by_name(
    manifest: Manifest, changes: dict[str, Any], error: type[StateflowError], facts: dict[str, Any]
) -> None:
    with raises(error, **facts) as refused:
        assign_state(7, manifest, _job(**changes))
    assert refused.value.hint


def test_a_rescaled_subtask_knows_the_earliest_timers_of_all_its_parts() -> None:
    parts = tuple(
        SubtaskState(
            subtask=n, first_group=n, last_group=n, snapshot="", event_timer=event, processing_timer=processing
        )
        for n, (event, processing) in enumerate([(7, None), (5, 3), (None, 9)])
    )
    assert Base(0, KeyGroupRange(0, 2), parts).earliest_timers == EarliestTimers(5, 3)


M = 13
ELEMENTS = st.lists(st.binary(max_size=2), max_size=7)
LISTS = st.dictionaries(st.sampled_from(["a", "b"]), ELEMENTS.filter(bool), max_size=2)
BROADCAST = st.dictionaries(st.binary(max_size=2), st.binary())


@st.composite
def written(draw: st.DrawFn) -> WrittenOperatorState:
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
    return WrittenOperatorState({s: c for s, c in contents.items() if s not in left_out}, parallelism)


@pytest.mark.long(reason="draws many states")
@given(written(), st.integers(1, M))
def test_operator_state_is_divided_by_flinks_rules(before: WrittenOperatorState, parallelism: int) -> None:
    found = [assign(before, subtask, parallelism, M) for subtask in range(parallelism)]
    for kind in ("lists", "unions"):
        for name in "ab":
            kept = [getattr(each.own, kind).get(name, []) for each in found]
            assert [e for elements in kept for e in elements] == _in_order(before, kind, name)
            if parallelism != before.parallelism:
                assert max(map(len, kept)) - min(map(len, kept)) <= 1
    raw = [piece for each in found for piece in each.own.raw]
    assert raw == [piece for s in sorted(before.contents) for piece in before.contents[s].raw]
    # Union and broadcast state are given to every subtask, and stored once.
    broadcasts = before.contents[0].broadcasts
    unions = {name: elements for name in "ab" if (elements := _in_order(before, "unions", name))}
    assert all(each.broadcasts == broadcasts for each in found)
    assert all({name: e for name, e in each.unions.items() if e} == unions for each in found)
    assert [each.own.broadcasts for each in found] == [broadcasts] + [{}] * (parallelism - 1)
    groups = sorted(g for c in before.contents.values() for g, _ in c.raw_keyed)
    for subtask, each in enumerate(found):
        assert each.own.raw_keyed == [(g, bytes([g])) for g in groups if subtask_of(g, parallelism, M) == subtask]
    same = [assign(before, subtask, before.parallelism, M).own for subtask in range(before.parallelism)]
    assert same == [before.contents.get(s, OperatorContent()) for s in range(before.parallelism)]


def _in_order(before: WrittenOperatorState, kind: str, name: str) -> list[bytes]:
    return [e for s in sorted(before.contents) for e in getattr(before.contents[s], kind).get(name, [])]


def test_any_copy_of_a_broadcast_state_is_used() -> None:
    contents = {1: OperatorContent(broadcasts={"x": {b"k": b"v"}}), 2: OperatorContent()}
    assert assign(WrittenOperatorState(contents, 3), 0, 5, M).broadcasts == {"x": {b"k": b"v"}}


@pytest.mark.parametrize("parallelism", [2, 3])
def test_raw_keyed_state_of_no_subtask_is_refused(parallelism: int) -> None:
    before = WrittenOperatorState({1: OperatorContent(raw_keyed=[(0, b"a"), (M, b"b")])}, 2)
    with raises(CorruptFile, key_group=M, max_parallelism=M):
        assign(before, 0, parallelism, M)


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
