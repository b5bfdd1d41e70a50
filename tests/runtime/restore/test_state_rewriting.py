"""State under other operators and names: random graphs and mappings, compared with plain dictionaries."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from stateflow.checkpoint.log.documents import Manifest, OperatorState
from stateflow.checkpoint.restore.graph_map import (
    JobGraph,
    Rewrite,
    StateItem,
    StateKind,
    StateMove,
    assign_states,
    map_operators,
    parse_maps,
    read_graph,
)
from stateflow.clock import ManualClock
from stateflow.errors import CorruptFile
from stateflow.runtime.restore.state_import import ImportTarget, StateLocation, has_raw_state, rewrite_operator
from stateflow.state.backends import hash_maps
from stateflow.state.handles import OperatorContent, OperatorPart, StateSchema, SubtaskState
from stateflow.state.schema import type_schema
from stateflow.storage import open_storage
from stateflow.types.key_groups import range_of
from tests.support.errors import raises
from tests.support.stored_state import stored_entries

GROUPS = 16
TIMERS = {b"event": xxhash.xxh32_digest(b"\0event timers"), b"processing": xxhash.xxh32_digest(b"\0processing timers")}

Entries = dict[bytes, bytes]
"""Value by key group and key."""


@dataclass
class Operator:
    """An operator of the old job, or what is expected of one of the new job."""

    keyed: dict[str, Entries] = field(default_factory=dict)
    expiry: dict[str, Entries] = field(default_factory=dict)
    lists: dict[str, list[list[bytes]]] = field(default_factory=dict)
    """Elements by subtask."""
    timers: Entries = field(default_factory=dict)
    raw: list[list[bytes]] = field(default_factory=list)


@dataclass
class Case:
    """An old graph, the options of a restore, and the graph that must come of it, which no code under test computed."""

    parallelism: int
    old: dict[str, Operator]
    new: dict[str, Operator]
    maps: list[str]
    drop: set[str]


def _id(name: str) -> bytes:
    return xxhash.xxh32_digest(name.encode())


def _entries(dice: random.Random) -> Entries:
    return {
        dice.randrange(GROUPS).to_bytes(2, "big") + dice.randbytes(dice.randrange(1, 5)): dice.randbytes(3)
        for _ in range(dice.randrange(6))
    }


def _old_operator(dice: random.Random, parallelism: int) -> Operator:
    made = Operator()
    for name in dice.sample(["x", "y", "z", "x.y"], dice.randrange(1, 5)):
        if dice.random() < 0.3:
            made.lists[name] = [[dice.randbytes(2) for _ in range(dice.randrange(3))] for _ in range(parallelism)]
            made.lists[name][0].append(b"first")
        else:
            made.keyed[name] = _entries(dice)
            made.expiry[name] = _entries(dice) if dice.random() < 0.5 else {}
    if dice.random() < 0.4:
        made.timers = {b"\0\1" + dice.randbytes(8) + b"k": b""}
    if dice.random() < 0.4:
        made.raw = [[dice.randbytes(3)] for _ in range(parallelism)]
    return made


def _put(into: Operator, name: str, old: Operator, state: str) -> None:
    """Gives an expected operator one state of an old one."""
    if state == "@timers":
        into.timers = dict(old.timers)
    elif state == "@raw":
        into.raw = [list(pieces) for pieces in old.raw]
    elif state in old.keyed:
        into.keyed[name], into.expiry[name] = dict(old.keyed[state]), dict(old.expiry[state])
    else:
        into.lists[name] = [list(elements) for elements in old.lists[state]]


def _parts(operator: Operator) -> list[str]:
    special = ["@timers"] * bool(operator.timers) + ["@raw"] * bool(operator.raw)
    return [*operator.keyed, *operator.lists, *special]


def _case(seed: int) -> Case:
    """Decides first where each state must be, and then writes the options that say so."""
    dice = random.Random(seed)
    parallelism = dice.randrange(1, 4)
    old = {uid: _old_operator(dice, parallelism) for uid in dice.sample(["a", "b", "c", "a.x"], dice.randrange(1, 5))}
    case = Case(parallelism, old, {}, [], set())
    free = iter(dice.sample([*old, *(f"new{n}" for n in range(8))], len(old) + 8))
    for uid, operator in old.items():
        kind = dice.choice(["rename", "split", "states", "drop"])
        if kind == "drop":
            case.drop.add(f"{uid}:")
            continue
        targets = [next(free) for _ in range(2 if kind == "split" else 1)]
        case.maps += [f"{uid}:={new}" for new in targets]
        for new in targets:
            case.new[new] = Operator()
        for part in _parts(operator):
            new, name = dice.choice(targets), part
            if kind == "states" and not part.startswith("@") and dice.random() < 0.6:
                name = f"{part}-renamed"
                case.maps.append(f"{uid}:{part}={new}:{name}")
            elif kind == "split" and part.startswith("@"):
                case.maps.append(f"{uid}:{part}={new}:")
            elif kind == "split" and dice.random() < 0.2:
                case.drop.add(f"{uid}:{part}")
                continue
            _put(case.new[new], name, operator, part)
    dice.shuffle(case.maps)
    return case


def _schema(name: str) -> StateSchema:
    return StateSchema(name=name, kind="value", value_type="int", type=type_schema(int))


def _subtask(operator: Operator, subtask: int, parallelism: int) -> SubtaskState:
    owned = range_of(subtask, parallelism, GROUPS)
    entries = {key[:2] + _id(name) + key[2:]: v for name, found in operator.keyed.items() for key, v in found.items()}
    for name, found in operator.expiry.items():
        entries |= {key[:2] + _id(f"{name}\0expiry") + key[2:]: b"" for key in found}
    entries |= {key[:2] + TIMERS[b"event"] + key[2:]: b"" for key in operator.timers}
    own = {k: v for k, v in sorted(entries.items()) if int.from_bytes(k[:2], "big") in owned}
    return SubtaskState(
        subtask=subtask,
        first_group=owned.first,
        last_group=owned.last,
        snapshot=f"s{subtask}",
        backend="memory",
        inline=b"".join(hash_maps.encode_snapshot(own.items())),
        event_timer=5 if operator.timers else None,
    )


def _stored(uid: str, operator: Operator, parallelism: int) -> OperatorState:
    contents = [
        OperatorContent(
            lists={name: elements[n] for name, elements in operator.lists.items() if elements[n]},
            raw=operator.raw[n] if operator.raw else [],
        )
        for n in range(parallelism)
    ]
    return OperatorState(
        uid=uid,
        parallelism=parallelism,
        key_types=["string"],
        key_names=["key"],
        states=[_schema(name) for name in operator.keyed],
        operator_states=[_schema(name) for name in operator.lists],
        subtasks=[_subtask(operator, n, parallelism) for n in range(parallelism)],
        parts=[OperatorPart(subtask=n, memory=0, content=msgspec.msgpack.encode(c)) for n, c in enumerate(contents)],
    )


def _restored(case: Case, folder: Path) -> list[OperatorState]:
    """The operators of the new job, as a restore makes them."""
    storage = open_storage(str(folder))
    location = StateLocation(storage)
    operators = [_stored(uid, operator, case.parallelism) for uid, operator in sorted(case.old.items())]
    manifest = Manifest(job_uuid="j", generation=1, ordinal=1, operators=operators, sources=[])
    stored = read_graph(manifest, [o.uid for o in operators if has_raw_state(o, location)])
    declared = {
        uid: frozenset(
            [StateItem(StateKind.KEYED, name) for name in o.keyed] + [StateItem(StateKind.OPERATOR, n) for n in o.lists]
        )
        for uid, o in case.new.items()
    }
    job = JobGraph(frozenset(case.new), declared)
    assignment = assign_states(stored, job, parse_maps(case.maps, stored, job), frozenset(case.drop))
    mapped = map_operators(manifest, stored, assignment)
    target = ImportTarget(storage, GROUPS, "data/1/")
    return [
        *mapped.shared,
        *(rewrite_operator(rewrite, location, target, ManualClock()) for rewrite in mapped.rewrites),
    ]


def _read(operator: OperatorState, folder: Path) -> Operator:
    """Decodes what an operator has now."""
    subtasks = [msgspec.to_builtins(state) for state in operator.subtasks]
    entries = dict(entry for subtask in subtasks for entry in stored_entries(folder, subtask))

    def of(wanted: bytes) -> Entries:
        return {key[:2] + key[6:]: value for key, value in entries.items() if key[2:6] == wanted}

    names = [schema.name for schema in operator.states]
    contents = {p.subtask: msgspec.msgpack.decode(p.content, type=OperatorContent) for p in operator.parts}
    empty = OperatorContent()
    in_order = [contents.get(n, empty) for n in range(operator.parallelism)]
    raw = [content.raw for content in in_order]
    known = {_id(name) for name in names} | {_id(f"{name}\0expiry") for name in names} | set(TIMERS.values())
    assert {key[2:6] for key in entries} <= known, "an entry of a state that the operator does not have"
    return Operator(
        keyed={name: of(_id(name)) for name in names},
        expiry={name: of(_id(f"{name}\0expiry")) for name in names},
        lists={s.name: [content.lists.get(s.name, []) for content in in_order] for s in operator.operator_states},
        timers=of(TIMERS[b"event"]),
        raw=raw if any(raw) else [],
    )


def _without_values(entries: dict[str, Entries]) -> dict[str, set[bytes]]:
    return {name: set(found) for name, found in entries.items()}


def _comparable(operator: Operator) -> tuple[Any, ...]:
    return operator.keyed, _without_values(operator.expiry), operator.lists, operator.timers, operator.raw


@given(seed=st.integers(0, 1 << 32))
def test_mappings_put_each_state_in_its_place_and_nowhere_else(seed: int, tmp_path_factory: Any) -> None:
    case, folder = _case(seed), tmp_path_factory.mktemp("root")
    restored = {operator.uid: operator for operator in _restored(case, folder)}
    found = {uid: _comparable(_read(operator, folder)) for uid, operator in restored.items()}
    assert found == {uid: _comparable(operator) for uid, operator in case.new.items() if _parts(operator)}
    for uid, operator in case.new.items():
        if operator.timers:
            assert min(s.event_timer for s in restored[uid].subtasks if s.event_timer is not None) == 5
        elif uid in restored:
            assert all(s.event_timer is None for s in restored[uid].subtasks)


@pytest.mark.parametrize("parallelism", [-1, 0, GROUPS + 1, 1 << 62])
def test_state_with_an_impossible_parallelism_is_refused(parallelism: int, tmp_path: Path) -> None:
    """Anyone who can write a savepoint can write this number."""
    storage = open_storage(str(tmp_path))
    stored = OperatorState(
        uid="a", parallelism=parallelism, key_types=["string"], key_names=["key"], states=[_schema("x")], subtasks=[]
    )
    move = StateMove(kind=StateKind.KEYED, old="a", old_state="x", new="b", new_state="y")
    rewrite = Rewrite(stored, ((stored, (move,)),))
    with raises(CorruptFile, parallelism=parallelism):
        rewrite_operator(rewrite, StateLocation(storage), ImportTarget(storage, GROUPS, "data/1/"), ManualClock())
