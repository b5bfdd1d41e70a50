"""Names of operators, states and sources that a restore maps: from those of a target to those of the job. Pure.

A mapping is ``OLD=NEW``. On each side is the uid of an operator or of a source, or ``UID.STATE``. Uids may contain
dots, so a text is compared with the names that exist, and is refused if it can be read in two ways. ``UID:STATE`` and
``UID:`` have one reading: no uid contains a colon.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from stateflow.errors import ConfigError
from stateflow.similar_names import did_you_mean

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
    """What the user has mapped.

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
        "the target has nothing with the old name of a mapping",
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
            "timers and raw state have no other name", hint=f"map them to an operator: OLD.{TIMERS_NAME}=NEW", map=text
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
