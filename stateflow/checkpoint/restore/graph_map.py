"""Maps the operators, states and sources of a target to those of the job, as a restore requests. Pure.

`parse_maps` reads what the user gives, `assign_states` assigns every state to an operator of the job or drops it, and
`map_operators` changes the operators of a manifest accordingly; no file is read or written.

A mapping is ``OLD=NEW``. On each side is the uid of an operator or of a source, or ``UID.STATE``. Uids may contain
dots, so a text is compared with the names that exist, and is refused if it can be read in two ways. ``UID:STATE`` and
``UID:`` have one reading: no uid contains a colon.

Each state is restored once or dropped: none is lost without an option that names it, and no two come to one place.

An operator that gets all states of one operator under their names only gets another uid; its files are shared. All
others are divided, joined or renamed entry by entry, because a state's name determines the keys of its entries.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from msgspec.structs import replace

from stateflow.checkpoint.log.documents import Manifest, OperatorState
from stateflow.errors import ConfigError, CorruptFile, WrongJobRoot
from stateflow.helpers import did_you_mean
from stateflow.state.handles import Document, StateSchema

TIMERS_NAME, RAW_NAME = "@timers", "@raw"
"""The names of an operator's timers and of its raw state in mappings."""
_HINT = "use OLD=NEW, each the uid of an operator or of a source, or UID.STATE"


class StateKind(StrEnum):
    """The kinds of state that an operator can have."""

    KEYED = "state"
    OPERATOR = "operator state"
    TIMERS = "timers"
    RAW = "raw state"


@dataclass(frozen=True, order=True)
class StateItem:
    """A part of an operator's state that is restored as a whole.

    Attributes:
        name: name of the state; `TIMERS_NAME` and `RAW_NAME` for timers and raw state.
    """

    kind: StateKind
    name: str


TIMERS = StateItem(StateKind.TIMERS, TIMERS_NAME)
RAW = StateItem(StateKind.RAW, RAW_NAME)


@dataclass(frozen=True)
class StoredGraph:
    """The graph of the job that a target was made by, as far as it has state and positions.

    Attributes:
        operators: the states of each operator, by uid.
        sources: uids of the sources.
    """

    operators: Mapping[str, frozenset[StateItem]]
    sources: frozenset[str] = frozenset()


@dataclass(frozen=True)
class JobGraph:
    """The graph of the job that is restored.

    Attributes:
        operators: uids of the keyed operators.
        declared: the states that an operator declares before its first row, by uid; without those that are not known.
        sources: uids of the sources.
        sinks: uids of the sinks.
    """

    operators: frozenset[str]
    declared: Mapping[str, frozenset[StateItem]] = field(default_factory=dict)
    sources: frozenset[str] = frozenset()
    sinks: frozenset[str] = frozenset()


StateRef = tuple[str, str]
"""Uid of an operator and name of a state."""


@dataclass(frozen=True)
class GraphMap:
    """The mappings of the user.

    Attributes:
        operators: the new operators of an old one, in the given order; several for one that is split.
        states: the new operator and name of a state.
        sources: the new uid of a source.
    """

    operators: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    states: Mapping[StateRef, StateRef] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)


def parse_maps(texts: Sequence[str], stored: StoredGraph, job: JobGraph) -> GraphMap:
    """Returns the mappings in `texts`.

    Args:
        texts: mappings, each as ``OLD=NEW``.
        stored: the graph of the target.
        job: the graph of the job.

    Raises:
        ConfigError: a name does not exist, can be read in two ways, or is mapped twice.
    """
    operators: dict[str, tuple[str, ...]] = {}
    states: dict[StateRef, StateRef] = {}
    sources: dict[str, str] = {}
    for text in texts:
        old, new = _sides(text)
        uid, state, is_source = _old_name(text, old, stored)
        if is_source:
            _add_source(sources, uid, _known(text, new, job.sources, "source", job))
        elif state:
            _add_state(states, (uid, state), _new_state(text, new, state, job))
        else:
            taken = operators.get(uid, ())
            named = _known(text, new.removesuffix(":"), job.operators, "operator", job)
            operators[uid] = taken if named in taken else (*taken, named)
    return GraphMap(operators, states, sources)


def parse_drop(name: str, stored: StoredGraph) -> StateRef | None:
    """Returns the operator to drop, with an empty name, or its state to drop; None if `name` has no state.

    Raises:
        ConfigError: the name can be read in two ways.
    """
    found = [(uid, state) for uid, state in _stored_readings(name, stored) if stored.operators[uid]]
    if len(found) > 1:
        raise _ambiguous(name, found)
    return found[0] if found else None


def _sides(text: str) -> tuple[str, str]:
    old, equals, new = (part.strip() for part in text.partition("="))
    if not (old and equals and new):
        raise ConfigError("a mapping is not of the form OLD=NEW", hint=_HINT, map=text)
    return old, new


def _old_name(text: str, name: str, stored: StoredGraph) -> tuple[str, str, bool]:
    """Returns the uid, the state's name or an empty text, and whether the uid is that of a source."""
    found = [(name, "", True)] if name in stored.sources else []
    found += [(uid, state, False) for uid, state in _stored_readings(name, stored)]
    if len(found) == 1:
        return found[0]
    if found:
        raise _ambiguous(text, [(uid, state) for uid, state, _ in found])
    owners = [uid for uid, state in _readings(name, stored.operators) if state]
    known = {uid: sorted(item.name for item in stored.operators[uid]) for uid in owners}
    raise ConfigError(
        "the old name of a mapping does not exist in the target",
        hint=_similar(name, [*stored.operators, *stored.sources]),
        map=text,
        operators=sorted(stored.operators),
        sources=sorted(stored.sources),
        **({"states": known} if known else {}),
    )


def _new_state(text: str, name: str, old_state: str, job: JobGraph) -> StateRef:
    """Returns the new operator and name; the name stays if only an operator is given."""
    found = [(uid, state or old_state) for uid, state in _readings(name, job.operators)]
    if len(found) > 1:
        found = [ref for ref in found if ref[1] in _declared_names(ref[0], job)] or found
    if len(found) == 1:
        _check_special(text, old_state, found[0][1])
        return found[0]
    if found:
        raise _ambiguous(text, found)
    _known(text, name, frozenset(), "operator", job)
    raise AssertionError("unreachable")


def _check_special(text: str, old: str, new: str) -> None:
    if old != new and {old, new} & {TIMERS_NAME, RAW_NAME}:
        raise ConfigError(
            "timers and raw state cannot be renamed", hint=f"map them to an operator: OLD.{TIMERS_NAME}=NEW", map=text
        )


def _declared_names(uid: str, job: JobGraph) -> set[str]:
    return {item.name for item in job.declared.get(uid, ())}


def _stored_readings(name: str, stored: StoredGraph) -> list[StateRef]:
    """Returns the ways to read a name as an operator of the target, or as a state that it has."""
    return [
        (uid, state)
        for uid, state in _readings(name, stored.operators)
        if not state or state in {item.name for item in stored.operators[uid]}
    ]


def _readings(name: str, uids: Iterable[str]) -> list[StateRef]:
    """Returns the ways to read a name as an operator, with an empty name, or as a state of one."""
    uid, colon, state = name.partition(":")
    if colon and uid in uids:
        return [(uid, state)]
    found = [(name, "")] if name in uids else []
    divided = [(uid, name.removeprefix(f"{uid}.")) for uid in sorted(uids) if name.startswith(f"{uid}.")]
    return found + [(uid, state) for uid, state in divided if state]


def _known(text: str, name: str, uids: frozenset[str], kind: str, job: JobGraph) -> str:
    if name in uids:
        return name
    if name in job.sinks:
        raise ConfigError(
            "a sink cannot be mapped: its table knows the job's output by the sink's uid",
            hint="keep the sink's old uid; or give the new one its own table, and pass --keep-table for the old one",
            map=text,
            sink=name,
        )
    known = sorted(job.operators if kind == "operator" else job.sources)
    raise ConfigError(
        f"the job has no {kind} with the new name of a mapping", hint=_similar(name, known), map=text, known=known
    )


def _add_source(sources: dict[str, str], old: str, new: str) -> None:
    others = [uid for uid, taken in sources.items() if taken == new and uid != old]
    if others or sources.get(old, new) != new:
        raise ConfigError(
            "a source's position is mapped twice",
            hint="map each source to one source",
            old=[*others, old],
            new=sorted({new, sources.get(old, new)}),
        )
    sources[old] = new


def _add_state(states: dict[StateRef, StateRef], old: StateRef, new: StateRef) -> None:
    if states.get(old, new) != new:
        raise ConfigError(
            "a state is mapped to two places",
            hint="each state is restored once; map it to one of them",
            state=".".join(old),
            to=[".".join(states[old]), ".".join(new)],
        )
    states[old] = new


def _ambiguous(text: str, readings: Sequence[StateRef]) -> ConfigError:
    return ConfigError(
        "a name of an operator or a state can be read in two ways",
        hint="write a colon after the uid: UID:STATE for a state, UID: for the operator",
        given=text,
        readings=[f"{uid}, state {state}" if state else uid for uid, state in readings],
    )


def _similar(name: str, known: Sequence[str]) -> str:
    return did_you_mean(name, known) if known else _HINT


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


def _place(uid: str, item: StateItem, to: tuple[str, ...], job: JobGraph, given: GraphMap) -> StateRef | None:
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


def _check_declared(uid: str, item: StateItem, place: StateRef, job: JobGraph) -> None:
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


def _move(uid: str, item: StateItem, place: StateRef) -> StateMove:
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


Origin = tuple[OperatorState, tuple[StateMove, ...]]
"""An operator of the target, and the states of it that one operator of the job gets."""


@dataclass(frozen=True)
class Rewrite:
    """An operator of the job whose state must be written again.

    Attributes:
        result: the operator without its state: uid, parallelism, key types, schemas and watermark.
        origins: where its states come from.
    """

    result: OperatorState
    origins: tuple[Origin, ...]


@dataclass(frozen=True)
class MappedOperators:
    """The operators of the job that get state from a target.

    Attributes:
        shared: operators that keep their files, and operators without state, in order of uids.
        rewrites: operators whose state is written again, in order of uids.
    """

    shared: tuple[OperatorState, ...]
    rewrites: tuple[Rewrite, ...] = ()

    @property
    def outline(self) -> list[OperatorState]:
        """All operators as they will be, for checks; those that are rewritten have the state of their first origin."""
        return sorted((*self.shared, *map(_outline, self.rewrites)), key=lambda operator: operator.uid)


def read_graph(manifest: Manifest, raw: Iterable[str] = ()) -> StoredGraph:
    """Returns the states and sources of a manifest.

    Args:
        raw: uids of the operators that have raw state, which only their files show.
    """
    has_raw = frozenset(raw)
    operators = {o.uid: _items(o, o.uid in has_raw) for o in manifest.operators}
    return StoredGraph(operators, frozenset(position.uid for position in manifest.sources))


def map_operators(manifest: Manifest, stored: StoredGraph, assignment: GraphAssignment) -> MappedOperators:
    """Returns the operators of the job that get state.

    Args:
        manifest: manifest of the target.
        stored: its graph, as `assignment` was made for.
        assignment: where its states are restored.

    Raises:
        WrongJobRoot: states of operators with different key types would come to one operator.
        CorruptFile: the operators have different parallelisms, which no run writes.
    """
    operators = {o.uid: o for o in manifest.operators}
    shared: list[OperatorState] = []
    rewrites: list[Rewrite] = []
    for uid, moves in sorted(assignment.by_operator.items()):
        olds = sorted({move.old for move in moves})
        if _is_whole(moves, stored):
            shared.append(replace(operators[olds[0]], uid=uid))
        else:
            origins = tuple((operators[old], tuple(m for m in moves if m.old == old)) for old in olds)
            rewrites.append(Rewrite(_result(uid, origins), origins))
    taken = {operator.uid for operator in (*shared, *(rewrite.result for rewrite in rewrites))}
    shared += [o for o in manifest.operators if not o.has_state and o.uid not in taken]
    return MappedOperators(tuple(sorted(shared, key=lambda o: o.uid)), tuple(rewrites))


def _items(operator: OperatorState, has_raw: bool) -> frozenset[StateItem]:
    if not operator.has_state:
        return frozenset()
    items = {StateItem(StateKind.KEYED, schema.name) for schema in operator.states}
    items |= {StateItem(StateKind.OPERATOR, schema.name) for schema in operator.operator_states}
    if any(s.event_timer is not None or s.processing_timer is not None for s in operator.subtasks):
        items.add(TIMERS)
    if has_raw:
        items.add(RAW)
    # Each operator with state needs a part, so that it is restored or refused as a whole.
    return frozenset(items) or frozenset([TIMERS if operator.subtasks else RAW])


def _is_whole(moves: Sequence[StateMove], stored: StoredGraph) -> bool:
    """Returns whether an operator gets all states of one operator, under their names."""
    olds = {move.old for move in moves}
    same_names = all(move.old_state == move.new_state for move in moves)
    return len(olds) == 1 and same_names and {move.item for move in moves} == stored.operators[olds.pop()]


def _result(uid: str, origins: Sequence[Origin]) -> OperatorState:
    first = origins[0][0]
    different = [o.uid for o, _ in origins if o.key_types != first.key_types]
    if different:
        raise WrongJobRoot(
            "states of operators with different key types would come to one operator",
            hint="map them to different operators",
            operator=uid,
            old={o.uid: o.key_types for o, _ in origins},
        )
    if len({o.parallelism for o, _ in origins}) > 1:
        raise CorruptFile(
            "the operators of a checkpoint have different parallelisms",
            hint="restore another checkpoint or savepoint",
            parallelism={o.uid: o.parallelism for o, _ in origins},
        )
    watermarks = [operator.watermark for operator, _ in origins]
    known = [watermark for watermark in watermarks if watermark is not None]
    return OperatorState(
        uid=uid,
        parallelism=first.parallelism,
        key_types=first.key_types,
        key_names=first.key_names,
        states=_renamed(((o.states, moves) for o, moves in origins), StateKind.KEYED),
        operator_states=_renamed(((o.operator_states, moves) for o, moves in origins), StateKind.OPERATOR),
        subtasks=[],
        # The lowest: a row that was not late for an operator must not become late for its state.
        watermark=min(known) if len(known) == len(watermarks) else None,
    )


def _renamed(
    schemas: Iterable[tuple[Sequence[StateSchema], Sequence[StateMove]]], kind: StateKind
) -> list[StateSchema]:
    found = []
    for stored, moves in schemas:
        names: Mapping[str, str] = {move.old_state: move.new_state for move in moves if move.kind is kind}
        found += [replace(schema, name=names[schema.name]) for schema in stored if schema.name in names]
    return sorted(found, key=lambda schema: schema.name)


def _outline(rewrite: Rewrite) -> OperatorState:
    keyed = [o for o, moves in rewrite.origins if any(m.kind in (StateKind.KEYED, StateKind.TIMERS) for m in moves)]
    others = [o for o, moves in rewrite.origins if any(m.kind in (StateKind.OPERATOR, StateKind.RAW) for m in moves)]
    return replace(rewrite.result, subtasks=keyed[0].subtasks if keyed else [], parts=others[0].parts if others else [])
