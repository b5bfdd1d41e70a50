"""Assigns every state of a target to an operator of the job, or drops it, as the user has mapped. Pure.

Each state is restored once or dropped: none is lost without an option that names it, and no two come to one place.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stateflow.checkpoint.restore.graph_map import (
    RAW,
    RAW_NAME,
    TIMERS,
    TIMERS_NAME,
    GraphMap,
    JobGraph,
    StateItem,
    StateKind,
    StateRef,
    StoredGraph,
    parse_drop,
)
from stateflow.errors import ConfigError
from stateflow.state.handles import Document

_NO_NAMES = {TIMERS, RAW}


class StateMove(Document, frozen=True, kw_only=True):
    """Where one state of the target is restored."""

    kind: StateKind
    old: str
    """Uid of its operator in the target."""
    old_state: str
    new: str
    """Uid of its operator in the job."""
    new_state: str

    @property
    def item(self) -> StateItem:
        """The state in the target."""
        return StateItem(self.kind, self.old_state)

    @property
    def is_changed(self) -> bool:
        """Whether operator or name differ."""
        return (self.old, self.old_state) != (self.new, self.new_state)


class DroppedState(Document, frozen=True, kw_only=True):
    """A state of the target that is not restored, of an operator that is restored otherwise."""

    kind: StateKind
    uid: str
    state: str


@dataclass(frozen=True)
class GraphAssignment:
    """Where each state of a target is restored.

    Attributes:
        moves: where each state that is kept is restored, ordered.
        dropped: the states that are not restored, ordered.
    """

    moves: tuple[StateMove, ...]
    dropped: tuple[DroppedState, ...] = ()

    @property
    def by_operator(self) -> dict[str, list[StateMove]]:
        """The states of each operator of the job that gets some, by its uid."""
        found: dict[str, list[StateMove]] = {}
        for move in self.moves:
            found.setdefault(move.new, []).append(move)
        return found

    @property
    def renamed(self) -> dict[str, str]:
        """The new uid of each operator whose states all go to one operator, by the uid in the target."""
        found: dict[str, set[str]] = {}
        for move in self.moves:
            found.setdefault(move.old, set()).add(move.new)
        return {old: new for old, (new, *others) in found.items() if not others}


def assign_states(stored: StoredGraph, job: JobGraph, given: GraphMap, drop: frozenset[str]) -> GraphAssignment:
    """Returns where each state of the target is restored.

    A state goes where it is mapped; otherwise, to the operator that its operator is mapped to; otherwise, to the
    operator of the same uid. Of several operators, it goes to the one that declares it.

    Args:
        stored: the graph of the target.
        job: the graph of the job.
        given: the mappings.
        drop: ``UID`` of an operator, whose states are dropped that no operator gets, or ``UID.STATE``. Uids of sources
            are ignored.

    Raises:
        ConfigError: a state has no operator and is not dropped, two operators could get it, two states would come to
            one place, or `drop` has a name that does not exist.
    """
    parsed = {name: parse_drop(name, stored) for name in drop}
    dropped_states = set(parsed.values())
    dropped_operators = {found[0] for found in parsed.values() if found and not found[1]}
    moves: list[StateMove] = []
    dropped: list[DroppedState] = []
    unmatched: dict[str, list[StateItem]] = {}
    for uid in sorted(stored.operators):
        to = _destinations(uid, job, given, dropped_operators)
        for item in sorted(stored.operators[uid]):
            place = None if (uid, item.name) in dropped_states else _place(uid, item, to, job, given)
            if place is not None:
                moves.append(_move(uid, item, place))
            elif uid in dropped_operators or (uid, item.name) in dropped_states:
                dropped.append(DroppedState(kind=item.kind, uid=uid, state=item.name))
            else:
                unmatched.setdefault(uid, []).append(item)
    _check_owners(moves, given)
    _check_matched(unmatched, given)
    _check_drops(stored, parsed)
    _check_places(moves)
    return GraphAssignment(tuple(moves), tuple(dropped))


def _check_drops(stored: StoredGraph, drop: Mapping[str, StateRef | None]) -> None:
    """Raises ConfigError for a name to drop that does not exist."""
    unknown = sorted(name for name, found in drop.items() if found is None and name not in stored.sources)
    if unknown:
        raise ConfigError(
            "the target has no state with this uid to drop",
            hint=f"the target has state of {_with_state(stored)}; to drop one state, give UID.STATE",
            uids=unknown,
        )


def _with_state(stored: StoredGraph) -> list[str]:
    return sorted(uid for uid, items in stored.operators.items() if items)


def _destinations(uid: str, job: JobGraph, given: GraphMap, dropped: set[str]) -> tuple[str, ...]:
    """Returns the operators that get the states of an operator which are not mapped themselves."""
    if uid in given.operators:
        return given.operators[uid]
    return (uid,) if uid in job.operators and uid not in dropped else ()


def _place(uid: str, item: StateItem, to: tuple[str, ...], job: JobGraph, given: GraphMap) -> tuple[str, str] | None:
    """Returns the operator and name under which a state is restored; None if no operator gets it."""
    mapped = given.states.get((uid, item.name))
    if mapped is not None:
        _check_declared(uid, item, mapped, job)
        return mapped
    if len(to) < 2:
        return (to[0], item.name) if to else None
    if item in _NO_NAMES:
        return None
    unknown = [new for new in to if new not in job.declared]
    if unknown:
        raise ConfigError(
            "the states of an operator are not known before it runs, so a state cannot be divided among several",
            hint="map each state: OLD.STATE=NEW",
            operators=unknown,
            state=f"{uid}.{item.name}",
        )
    takers = [new for new in to if item in job.declared[new]]
    if len(takers) > 1:
        raise ConfigError(
            "two operators declare a state of an operator that is split",
            hint=f"name the one that gets it: --map {uid}.{item.name}={takers[0]}",
            state=f"{uid}.{item.name}",
            operators=takers,
        )
    return (takers[0], item.name) if takers else None


def _check_declared(uid: str, item: StateItem, place: tuple[str, str], job: JobGraph) -> None:
    """Raises ConfigError for a state that its new operator does not declare.

    Operator state may be a broadcast state, which may be declared only when a row arrives.
    """
    new, state = place
    declared = job.declared.get(new)
    if declared is None or item.kind is not StateKind.KEYED or StateItem(item.kind, state) in declared:
        return
    raise ConfigError(
        "an operator does not declare the state that it is to get",
        hint="correct the name in --map, or declare the state",
        state=f"{uid}.{item.name}",
        to=f"{new}.{state}",
        declared=sorted(other.name for other in declared),
    )


def _move(uid: str, item: StateItem, place: tuple[str, str]) -> StateMove:
    return StateMove(kind=item.kind, old=uid, old_state=item.name, new=place[0], new_state=place[1])


def _check_matched(unmatched: Mapping[str, list[StateItem]], given: GraphMap) -> None:
    """Raises ConfigError for state that no operator gets."""
    divided = given.operators.keys() | {old for old, _ in given.states}
    whole = sorted(unmatched.keys() - divided)
    if whole:
        raise ConfigError(
            "the target has state of operators that the job does not have",
            hint="give the operators their old uids, map them to new ones with --map OLD=NEW, or drop the state with "
            "--drop UID",
            uids=whole,
        )
    states = [f"{uid}.{item.name}" for uid, items in sorted(unmatched.items()) for item in items]
    if states:
        owners = sorted(unmatched)
        raise ConfigError(
            "no operator gets a state of an operator that is split or mapped in part",
            hint=f"map it: --map {states[0]}=NEW; or drop it: --drop {states[0]}"
            + (f". {TIMERS_NAME} and {RAW_NAME} are its timers and its raw state" if "@" in states[0] else ""),
            states=states,
            operators={uid: list(given.operators.get(uid, ())) for uid in owners},
        )


def _check_places(moves: Iterable[StateMove]) -> None:
    """Raises ConfigError when two states would be restored under one name."""
    # A keyed state and an operator state of one name do not meet.
    places: dict[tuple[StateKind, str, str], list[str]] = defaultdict(list)
    for move in moves:
        places[move.kind, move.new, move.new_state].append(f"{move.old}.{move.old_state}")
    for (_, new, state), olds in places.items():
        if len(olds) > 1:
            raise ConfigError(
                "two states of the target would be restored as one",
                hint="map one of them to another state, or drop it: --drop UID.STATE",
                states=olds,
                to=f"{new}.{state}",
            )


def _check_owners(moves: Iterable[StateMove], given: GraphMap) -> None:
    """Raises ConfigError when an operator would get states of two operators that are not mapped one by one."""
    olds: dict[str, set[str]] = defaultdict(set)
    for move in moves:
        if (move.old, move.old_state) not in given.states:
            olds[move.new].add(move.old)
    for new, found in sorted(olds.items()):
        if len(found) > 1:
            raise ConfigError(
                "two operators of the target are mapped to one operator, or it has state of its own",
                hint="map single states: --map OLD.STATE=NEW; or map or drop the other operator: --drop UID",
                operator=new,
                old=sorted(found),
            )
