"""Mappings of a restore: where each state goes, the positions of sources of another version, and what is refused."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.checkpoint.log.documents import (
    HoldingSource,
    Manifest,
    OperatorState,
    SourceFile,
    SourcePosition,
    SourceWatermark,
    SparkPosition,
    WaitingRows,
)
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
    read_graph,
)
from stateflow.checkpoint.restore.source_positions import SourceStart, match_sources, with_added_sources, with_sources
from stateflow.errors import ConfigError, CorruptFile
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


def test_a_dropped_operator_makes_room_for_another_one() -> None:
    found = _assign(_job("visits"), "rules=visits", drop=("visits",), stored=_only("visits", "rules"))
    assert set(_places(found)) == {"rules.rates", "rules.@raw"}
    assert {state.uid for state in found.dropped} == {"visits"}


def test_states_that_no_operator_gets_can_be_dropped_one_by_one_or_together() -> None:
    job = _job("visits", "late", declared={"visits": _keyed("count"), "late": _keyed()})
    maps = ("visits=visits", "visits=late")
    for drop in (("visits",), ("visits.last", "visits.@timers")):
        found = _assign(job, *maps, drop=drop, stored=_only("visits"))
        assert [state.state for state in found.dropped] == ["last", "@timers"]
        assert _places(found) == {"visits.count": "visits.count"}


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
    stored = read_graph(manifest)
    assignment = _assign(_job("both"), "a.a=both", "b.b=both", stored=stored)
    (rewrite,) = map_operators(manifest, stored, assignment).rewrites
    assert (rewrite.result.watermark, [schema.name for schema in rewrite.result.states]) == (expected, ["a", "b"])


HEADER = 'v1\n{"batchWatermarkMs":0}\n'
UIDS = ["a", "b", "c", "d", "e"]


def _manifest(*uids: str) -> Manifest:
    """Each source is at a position with its uid, and has a log and a watermark with the uid."""
    spark = SparkPosition(
        batch_id=4,
        offsets=(HEADER + "\n".join(f"at {uid}" for uid in uids)).encode(),
        previous_offsets=(HEADER + "\n".join(f"before {uid}" for uid in uids)).encode(),
        commit=b"",
        source_files=[SourceFile(path=f"{n}/7", content=uid.encode()) for n, uid in enumerate(uids)],
    )
    return Manifest(
        job_uuid="j",
        generation=1,
        ordinal=1,
        operators=[],
        sources=[SourcePosition(uid=uid, description="reads", offset=f"at {uid}") for uid in uids],
        spark=spark,
        watermarks=[SourceWatermark(uid=uid, watermark=n, active_at=0) for n, uid in enumerate(uids)],
        columns={uid: {uid: "string"} for uid in uids},
        waiting=[WaitingRows(operator="op", inputs=list(uids), rows=1, waits_for=_holding(uids))],
    )


def _holding(uids: Iterable[str]) -> list[HoldingSource]:
    return [HoldingSource(uid=uid, split=split) for uid in uids for split in ("", "t-0")]


def _wanted(*uids: str) -> list[tuple[str, str]]:
    return [(uid, "reads") for uid in sorted(uids)]


def _lines(offsets: bytes | None) -> list[str]:
    assert offsets is not None
    text = offsets.decode()
    assert text.startswith(HEADER)
    return text.removeprefix(HEADER).split("\n")


@given(seed=st.integers(0, 1 << 32))
def test_each_source_has_the_position_and_the_files_of_its_origin(seed: int) -> None:
    dice = random.Random(seed)
    old = sorted(dice.sample(UIDS, dice.randrange(1, 5)))
    new = dice.sample(UIDS, dice.randrange(1, 5))
    # The oracle: which old source each new one continues; None for a position of its own.
    free = dice.sample(old, len(old))
    origins = {uid: free.pop() if free and dice.random() < 0.6 else None for uid in new}
    starts = {
        uid: SourceStart(origin) if origin else SourceStart(offset=f"set {uid}", logs={"0": f"set {uid}".encode()})
        for uid, origin in origins.items()
    }
    found = with_sources(_manifest(*old), _wanted(*new), starts)
    assert found.spark is not None
    uids = sorted(new)
    at = [f"at {origins[uid]}" if origins[uid] else f"set {uid}" for uid in uids]
    before = [f"before {origins[uid]}" if origins[uid] else f"set {uid}" for uid in uids]
    assert [(p.uid, p.offset) for p in found.sources] == list(zip(uids, at, strict=True))
    assert (_lines(found.spark.offsets), _lines(found.spark.previous_offsets)) == (at, before)
    logs = {file.path: file.content for file in found.spark.source_files}
    assert logs == {
        f"{n}/{'7' if origins[uid] else '0'}": (origins[uid] or f"set {uid}").encode() for n, uid in enumerate(uids)
    }
    kept = {uid: origin for uid, origin in sorted(origins.items()) if origin}
    assert [(w.uid, w.watermark) for w in found.watermarks] == [(uid, old.index(o)) for uid, o in kept.items()]
    new_of = {origin: uid for uid, origin in kept.items()}
    (waiting,) = found.waiting
    assert waiting.inputs == sorted({new_of.get(uid, uid) for uid in old})
    assert waiting.waits_for == _holding(new_of.get(uid, uid) for uid in old)
    assert found.columns == {uid: {origin: "string"} for uid, origin in kept.items()}


def test_a_manifest_with_the_job_s_sources_is_unchanged() -> None:
    manifest = _manifest("a", "b")
    assert with_added_sources(manifest, _wanted("a", "b")) is manifest


def test_a_source_without_a_place_in_the_job_is_removed_and_one_that_reads_other_data_needs_a_decision() -> None:
    stored = _manifest("a", "b", "c").sources
    found = match_sources(stored, _wanted("b", "d", "e"), {"a": "d"}, {"e": SourceStart()})
    assert (found.removed, found.before) == (("c",), {"b": "b", "d": "a"})
    assert found.starts == {"b": SourceStart("b"), "d": SourceStart("a"), "e": SourceStart()}
    changed = [("a", "another description")]
    with raises(ConfigError, uid="a"):
        match_sources(stored, changed, {}, {})
    assert match_sources(stored, changed, {}, {"a": None}).starts == {"a": SourceStart("a")}


@pytest.mark.parametrize("offsets", [b"v1\n{}\nat a", b"v1\n{}\nat a\nat b\nat c", b"v1\n{}\nat a\r\nat b", b"\xff"])
def test_offsets_that_are_not_those_of_the_sources_are_corrupt(offsets: bytes) -> None:
    manifest = _manifest("a", "b")
    assert manifest.spark is not None
    damaged = Manifest(
        job_uuid="j",
        generation=1,
        ordinal=1,
        operators=[],
        sources=manifest.sources,
        spark=SparkPosition(batch_id=4, offsets=offsets, previous_offsets=None, commit=b"", source_files=[]),
    )
    with raises(CorruptFile):
        with_added_sources(damaged, _wanted("a", "b", "c"))
