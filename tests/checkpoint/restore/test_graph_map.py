"""Mappings of a restore: how their texts are read, where each state goes, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from stateflow.checkpoint.log.documents import Manifest, OperatorState
from stateflow.checkpoint.restore.graph_map import (
    RAW,
    TIMERS,
    GraphAssignment,
    JobGraph,
    StateItem,
    StateKind,
    StoredGraph,
    assign_states,
    map_operators,
    parse_maps,
    stored_graph,
)
from stateflow.errors import ConfigError
from stateflow.state.handles import StateSchema, SubtaskState, TypeNode, TypeSchema
from tests.support.errors import raises


def _keyed(*names: str) -> frozenset[StateItem]:
    return frozenset(StateItem(StateKind.KEYED, name) for name in names)


STORED = StoredGraph(
    {
        "visits": _keyed("count", "last") | {TIMERS},
        "rules": frozenset({StateItem(StateKind.OPERATOR, "rates"), RAW}),
        "visits.daily": _keyed("sum"),
        "idle": frozenset(),
    },
    frozenset({"clicks", "views"}),
)


def _job(*operators: str, declared: dict[str, frozenset[StateItem]] | None = None) -> JobGraph:
    return JobGraph(
        frozenset(operators), declared or {}, sources=frozenset({"clicks", "pages"}), sinks=frozenset({"table"})
    )


def _assign(job: JobGraph, *maps: str, drop: tuple[str, ...] = (), stored: StoredGraph = STORED) -> GraphAssignment:
    return assign_states(stored, job, parse_maps(maps, stored, job), frozenset(drop))


def _only(*uids: str) -> StoredGraph:
    return StoredGraph({uid: STORED.operators[uid] for uid in uids})


def _places(assignment: GraphAssignment) -> dict[str, str]:
    return {f"{m.old}.{m.old_state}": f"{m.new}.{m.new_state}" for m in assignment.moves}


def test_operators_keep_their_state_without_mappings() -> None:
    job = _job(*STORED.operators)
    assert all(not move.is_changed for move in _assign(job).moves)
    assert len(_assign(job).moves) == 6


def test_a_renamed_operator_gets_all_states_timers_and_raw_state() -> None:
    job = _job("seen", "prices")
    found = _assign(job, "visits=seen", "rules=prices", stored=_only("visits", "rules"))
    assert _places(found) == {
        "visits.count": "seen.count",
        "visits.last": "seen.last",
        "visits.@timers": "seen.@timers",
        "rules.rates": "prices.rates",
        "rules.@raw": "prices.@raw",
    }


def test_operators_can_swap_uids() -> None:
    found = _assign(_job("visits", "rules"), "visits=rules", "rules=visits", stored=_only("visits", "rules"))
    assert _places(found)["visits.count"] == "rules.count"
    assert _places(found)["rules.@raw"] == "visits.@raw"


def test_a_split_gives_each_operator_its_declared_states() -> None:
    job = _job("visits", "late", declared={"visits": _keyed("count"), "late": _keyed("last", "more")})
    found = _assign(job, "visits=visits", "visits=late", "visits.@timers=late", stored=_only("visits"))
    assert _places(found) == {
        "visits.count": "visits.count",
        "visits.last": "late.last",
        "visits.@timers": "late.@timers",
    }


def test_a_state_can_be_renamed_and_moved() -> None:
    job = _job("visits", "visits.daily")
    stored = _only("visits", "visits.daily")
    assert _places(_assign(job, "visits.count=visits.total", stored=stored))["visits.count"] == "visits.total"
    swapped = _assign(job, "visits.count=visits.last", "visits.last=visits.count", stored=stored)
    assert _places(swapped)["visits.count"] == "visits.last"
    # A uid with a dot is compared as a whole: this is a state of the other operator.
    moved = _assign(job, "visits.daily.sum=visits", stored=stored)
    assert _places(moved)["visits.daily.sum"] == "visits.sum"


def test_states_that_no_operator_gets_can_be_dropped_one_by_one_or_together() -> None:
    job = _job("visits", "late", declared={"visits": _keyed("count"), "late": _keyed()})
    maps = ("visits=visits", "visits=late")
    for drop in (("visits",), ("visits.last", "visits.@timers")):
        found = _assign(job, *maps, drop=drop, stored=_only("visits"))
        assert [state.state for state in found.dropped] == ["last", "@timers"]
        assert _places(found) == {"visits.count": "visits.count"}


def test_a_dropped_operator_makes_room_for_another_one() -> None:
    found = _assign(_job("visits"), "rules=visits", drop=("visits",), stored=_only("visits", "rules"))
    assert set(_places(found)) == {"rules.rates", "rules.@raw"}
    assert {state.uid for state in found.dropped} == {"visits"}


BOTH = {"visits": _keyed("count"), "late": _keyed("count", "last")}


@pytest.mark.parametrize(
    ("maps", "drop", "facts"),
    [
        (["visits"], (), {"map": "visits"}),
        (["=visits"], (), {"map": "=visits"}),
        (["visit=visits"], (), {"map": "visit=visits"}),
        (["visits.counts=late"], (), {"states": {"visits": ["@timers", "count", "last"]}}),
        (["visits=lat"], (), {"map": "visits=lat"}),
        (["visits=table"], (), {"sink": "table"}),
        (["visits.count=table"], (), {"sink": "table"}),
        (["visits=clicks"], (), {"map": "visits=clicks"}),
        (["clicks=late"], (), {"map": "clicks=late"}),
        (["visits.@timers=late.timers"], (), {"map": "visits.@timers=late.timers"}),
        (["visits.count=visits", "visits.count=late"], (), {"to": ["visits.count", "late.count"]}),
        (["visits.count=late.other"], (), {"to": "late.other"}),
        (["visits.last=visits.count"], (), {"to": "visits.count", "states": ["visits.count", "visits.last"]}),
        (["visits=visits", "visits=late"], (), {"state": "visits.count", "operators": ["visits", "late"]}),
        (["visits=visits", "visits=late", "visits.count=late"], (), {"states": ["visits.@timers"]}),
        (["visits=late"], ("rules",), {"uids": ["rules"]}),
        (["views=pages", "clicks=pages"], (), {"old": ["views", "clicks"]}),
    ],
)
def test_a_mapping_without_one_meaning_is_refused(
    maps: list[str], drop: tuple[str, ...], facts: dict[str, Any]
) -> None:
    job = _job("visits", "late", declared=BOTH)
    stored = StoredGraph(_only("visits").operators, STORED.sources)
    with raises(ConfigError, **facts):
        _assign(job, *maps, drop=drop, stored=stored)


def test_two_operators_are_not_joined_as_a_whole() -> None:
    for drop in ((), ("rules.@raw",)):
        with raises(ConfigError, operator="visits", old=["rules", "visits"]):
            _assign(_job("visits"), "rules=visits", drop=drop, stored=_only("rules", "visits"))


def test_a_name_with_two_readings_is_refused_with_both() -> None:
    stored = StoredGraph({"a": _keyed("b.c"), "a.b": _keyed("c")})
    with raises(ConfigError, readings=["a, state b.c", "a.b, state c"]):
        parse_maps(["a.b.c=a"], stored, _job("a", "a.b"))
    with raises(ConfigError, readings=["a.b", "a, state b"]):
        parse_maps(["a.b=x"], StoredGraph({"a": _keyed("b"), "a.b": _keyed("c")}), _job("x"))
    assert parse_maps(
        ["a:b=x", "a.b:=x"], StoredGraph({"a": _keyed("b"), "a.b": _keyed("c")}), _job("x")
    ).operators == {"a.b": ("x",)}
    job = _job("a", "a.b", declared={"a": _keyed("b.c"), "a.b": _keyed("d")})
    assert parse_maps(["a.b=a.b.c"], StoredGraph({"a": _keyed("b")}), job).states == {("a", "b"): ("a", "b.c")}


def test_states_of_an_operator_with_unknown_declarations_are_mapped_one_by_one() -> None:
    stored, job = StoredGraph({"old": _keyed("x", "y")}), _job("a", "b")
    with raises(ConfigError, operators=["a", "b"], state="old.x"):
        _assign(job, "old=a", "old=b", stored=stored)
    found = _assign(job, "old=a", "old=b", "old.x=a", "old.y=b", stored=stored)
    assert _places(found) == {"old.x": "a.x", "old.y": "b.y"}


def _stored(uid: str, watermark: int | None) -> OperatorState:
    """An operator with a state that has the name of the operator."""
    schema = StateSchema(name=uid, kind="value", value_type="int", type=TypeSchema(root=TypeNode(kind="int")))
    state = SubtaskState(subtask=0, first_group=0, last_group=7, snapshot="s", inline=b"x")
    return OperatorState(
        uid=uid,
        parallelism=1,
        key_types=["string"],
        key_names=["key"],
        states=[schema],
        subtasks=[state],
        watermark=watermark,
    )


@pytest.mark.parametrize(("watermarks", "expected"), [((5, 3), 3), ((3, 5), 3), ((5, None), None)])
def test_joined_states_have_the_lowest_watermark_of_their_operators(
    watermarks: tuple[int, int | None], expected: int | None
) -> None:
    """A row that was not late for an operator must not become late for its state."""
    operators = [_stored(uid, watermark) for uid, watermark in zip("ab", watermarks, strict=True)]
    manifest = Manifest(job_uuid="j", generation=1, ordinal=1, operators=operators, sources=[])
    stored = stored_graph(manifest)
    assignment = _assign(_job("both"), "a.a=both", "b.b=both", stored=stored)
    (rewrite,) = map_operators(manifest, stored, assignment).rewrites
    assert (rewrite.result.watermark, [schema.name for schema in rewrite.result.states]) == (expected, ["a", "b"])
