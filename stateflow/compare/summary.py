"""Counts the differences between two snapshots by operator and state, and decides whether they exceed limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from stateflow.compare.merge import Difference
from stateflow.compare.states import StatePair, StatePairs, id_of
from stateflow.outputs import OptionalText

ADDED, REMOVED, CHANGED = "added", "removed", "changed"
"""The kinds of changes: of a key that only the second, only the first, or both snapshots have."""


@dataclass(frozen=True)
class StateDiff:
    """How one state differs between two snapshots.

    A key is that of a value, of an entry of a map, of a whole list, or of a timer; of an operator state's list, it is
    an element.

    Attributes:
        operator: uid of the operator.
        state: name of the state; ``_timers`` for timers, ``_operator/NAME`` for operator state.
        kind: kind of the state, such as ``value``, ``map`` or ``timer``.
        added: keys that only the second snapshot has.
        removed: keys that only the first snapshot has.
        changed: keys whose values differ.
        old_bytes: stored bytes, in the first snapshot, of keys and values that differ.
        new_bytes: the same in the second snapshot.
        old_keys: all keys in the first snapshot; None if they were not counted, see `diff`.
        new_keys: the same in the second snapshot.
        reads_as: which snapshot's type all values were compared with if the types differ: ``old`` or ``new``;
            ``neither`` if neither type can read the other's values, so that decoded values are compared without types.
            Empty if the types are equal or the other snapshot does not have the state.
    """

    operator: str
    state: str
    kind: str
    added: int = 0
    removed: int = 0
    changed: int = 0
    old_bytes: int = 0
    new_bytes: int = 0
    old_keys: int | None = None
    new_keys: int | None = None
    reads_as: OptionalText = ""

    @property
    def keys(self) -> int:
        """Number of keys that differ."""
        return self.added + self.removed + self.changed

    @property
    def fraction(self) -> float | None:
        """Keys that differ, of all keys that either snapshot has; None if the keys were not counted."""
        if self.old_keys is None:
            return None
        return self.keys / max(1, self.old_keys + self.added)


@dataclass
class _Counts:
    pair: StatePair
    changes: Counter[str] = field(default_factory=Counter)
    old_bytes: int = 0
    new_bytes: int = 0


class Tally:
    """Adds up the differences of one operator.

    Args:
        uid: uid of the operator.
    """

    def __init__(self, uid: str) -> None:
        self._uid = uid
        self._counts: dict[tuple[str, str], _Counts] = {}

    def add(self, pair: StatePair, found: Difference) -> None:
        """Counts a difference of a state."""
        counts = self._counts.setdefault((pair.name, pair.kind), _Counts(pair))
        counts.changes[change_of(found)] += 1
        if found.old is not None:
            counts.old_bytes += len(found.key) + len(found.old)
        if found.new is not None:
            counts.new_bytes += len(found.key) + len(found.new)

    def result(self, states: StatePairs, totals: tuple[Counter[bytes], Counter[bytes]] | None) -> tuple[StateDiff, ...]:
        """Returns the counts of all states in order: keyed states by name, timers, operator states.

        Timers and operator states without differences are left out.

        Args:
            states: the keyed states of the operator.
            totals: numbers of entries in both snapshots, by state id; None if they were not counted.
        """
        keyed = {(pair.name, pair.kind): pair for pair in states.pairs}
        others = (counts.pair for key, counts in self._counts.items() if key not in keyed)
        shown = (pair for key, pair in keyed.items() if pair.kind != "timer" or key in self._counts)
        return (*(self._result(pair, totals) for pair in shown), *(self._result(pair, None) for pair in others))

    def _result(self, pair: StatePair, totals: tuple[Counter[bytes], Counter[bytes]] | None) -> StateDiff:
        counts = self._counts.get((pair.name, pair.kind), _Counts(pair))
        old_keys, new_keys = _totals_of(pair, totals)
        return StateDiff(
            self._uid,
            pair.name,
            pair.kind,
            counts.changes[ADDED],
            counts.changes[REMOVED],
            counts.changes[CHANGED],
            counts.old_bytes,
            counts.new_bytes,
            old_keys,
            new_keys,
            pair.values.reads_as if _types_differ(pair) else "",
        )


def change_of(found: Difference) -> str:
    """Returns the kind of a difference."""
    if found.old is None:
        return ADDED
    return REMOVED if found.new is None else CHANGED


def _types_differ(pair: StatePair) -> bool:
    return pair.old is not None and pair.new is not None and pair.old.type != pair.new.type


def _totals_of(pair: StatePair, totals: tuple[Counter[bytes], Counter[bytes]] | None) -> tuple[int | None, int | None]:
    if totals is None:
        return None, None
    # A state whose kind has changed is two states, each in one snapshot only.
    is_timer = pair.kind == "timer"
    old, new = (
        sum(counts[found] for found in id_of(pair)) if is_timer or schema is not None else 0
        for counts, schema in zip(totals, (pair.old, pair.new), strict=True)
    )
    return old, new


@dataclass(frozen=True)
class DiffLimits:
    """How much a state may differ; each limit holds for each state alone.

    Attributes:
        keys: number of keys that may differ; None for any number.
        fraction: part of a state's keys that may differ, from 0 to 1; None for any part. The keys must be counted.
    """

    keys: int | None = 0
    fraction: float | None = None

    def exceeded_by(self, state: StateDiff) -> bool:
        """Returns whether a state differs more than allowed."""
        if self.keys is not None and state.keys > self.keys:
            return True
        return self.fraction is not None and state.keys > 0 and (state.fraction or 1.0) > self.fraction


@dataclass(frozen=True)
class DiffSummary:
    """Result of a task that compares two snapshots.

    Attributes:
        keys: number of keys that differ.
        read_bytes: bytes of keyed state that were read from both snapshots.
        states: the differences by operator and state.
    """

    keys: int
    read_bytes: int
    states: tuple[StateDiff, ...]


def states_beyond(states: Iterable[StateDiff], limits: DiffLimits, ignored: Iterable[str] = ()) -> list[StateDiff]:
    """Returns the states that differ more than allowed.

    Args:
        states: the differences by state.
        limits: what is allowed.
        ignored: states that may differ in any way, each as ``OPERATOR`` or ``OPERATOR.STATE``.
    """
    names = set(ignored)
    return [
        state
        for state in states
        if not {state.operator, f"{state.operator}.{state.state}"} & names and limits.exceeded_by(state)
    ]
