"""The states of an operator in two snapshots: which entries belong to which state, and what their keys mean."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from stateflow.checkpoint.log.documents import OperatorState
from stateflow.compare.merge import Difference
from stateflow.compare.values import ValueComparison
from stateflow.errors import CorruptFile
from stateflow.state.backends.entry_stream import GROUP_BYTES
from stateflow.state.handles import StateSchema
from stateflow.state.kinds.key_context import KEY_OFFSET, state_id
from stateflow.state.kinds.state_registry import state_names
from stateflow.state.kinds.timers import TIMER_IDS
from stateflow.types.key_encoding import decode_key

TIMERS = "_timers"
"""Name under which timers are reported."""
_TIME_BYTES = 8
_ZERO = 1 << 63


@dataclass(frozen=True)
class StatePair:
    """A state in two snapshots.

    Attributes:
        name: name of the state; `TIMERS` for the timers.
        kind: kind of the state, ``timer`` for timers. A state whose kind has changed is two states.
        old, new: its schemas; None in a snapshot without the state, and for timers.
    """

    name: str
    kind: str
    old: StateSchema | None = None
    new: StateSchema | None = None

    @cached_property
    def values(self) -> ValueComparison:
        """Compares its values."""
        return ValueComparison(self.old, self.new)


@dataclass(frozen=True)
class DecodedKey:
    """The parts of a stored key.

    Attributes:
        key: values of the key columns.
        namespace: None without a namespace.
        map_key: key in a map state; None for other states.
        time: time of a timer in milliseconds since 1970; None for other states.
        domain: time domain of a timer, ``event`` or ``processing``; empty for other states.
    """

    key: tuple[object, ...]
    namespace: object = None
    map_key: object = None
    time: int | None = None
    domain: str = ""


class OperatorStates:
    """The keyed states of one operator in two snapshots.

    Args:
        old, new: the operator in each snapshot; None if the snapshot does not have it.
    """

    def __init__(self, old: OperatorState | None, new: OperatorState | None) -> None:
        self._ids = _ids_of(old), _ids_of(new)
        self._domains = {found: domain.value for domain, found in TIMER_IDS.items()}
        self._columns = len((new or old or _NOTHING).key_types)
        self._timers = StatePair(TIMERS, "timer")
        self._pairs = {(each.name, each.kind): each for each in _pairs(old, new)}

    @property
    def pairs(self) -> list[StatePair]:
        """Every state, in order of names, and the timers."""
        return [*(self._pairs[key] for key in sorted(self._pairs)), self._timers]

    def list_ids(self, side: int) -> set[bytes]:
        """Returns the ids of the list states of one snapshot: 0 is the first one, 1 the second one."""
        return {found for found, schema in self._ids[side].items() if schema is not None and schema.kind == "list"}

    @property
    def internal_ids(self) -> set[bytes]:
        """The ids of entries that are not compared."""
        known = {found for ids in self._ids for found, schema in ids.items() if schema is None}
        return known - self._domains.keys()

    @property
    def have_same_kinds(self) -> bool:
        """Whether no id belongs to states of two kinds."""
        old, new = self._ids
        return all(_kind(old[found]) == _kind(new[found]) for found in old.keys() & new.keys())

    def of_id(self, found: bytes, side: int) -> StatePair | None:
        """Returns the state with an id in one snapshot; None for internal entries.

        Raises:
            CorruptFile: no state of the snapshot has the id.
        """
        if found in self._domains:
            return self._timers
        if found not in self._ids[side]:
            raise CorruptFile("a stored key belongs to no declared state", state_id=found.hex())
        schema = self._ids[side][found]
        return None if schema is None else self._pairs[schema.name, schema.kind]

    def split(self, found: Difference) -> Iterable[tuple[StatePair, Difference]]:
        """Yields what a difference is to report: nothing for internal entries and for equal values.

        An entry of a state whose kind has changed is removed from the state of the old kind, and added to the new one.

        Raises:
            CorruptFile: the key belongs to no state, or a value does not decode.
        """
        key, old, new = found.key, found.old, found.new
        before = None if old is None else self.of_id(key[GROUP_BYTES:KEY_OFFSET], 0)
        after = None if new is None else self.of_id(key[GROUP_BYTES:KEY_OFFSET], 1)
        if before is not None and before is after:
            assert old is not None and new is not None
            if not before.values.equal(old, new):
                yield before, found
            return
        if before is not None:
            yield before, Difference(key, old, None)
        if after is not None:
            yield after, Difference(key, None, new)

    def decode(self, key: bytes) -> DecodedKey:
        """Decodes a stored key; of a list without a position. Raises CorruptFile if it is not one of this operator."""
        domain = self._domains.get(key[GROUP_BYTES:KEY_OFFSET])
        time = None
        start = KEY_OFFSET
        if domain is not None:
            start += _TIME_BYTES
            if len(key) < start:
                raise CorruptFile("a stored timer has no time", hint="restore an older checkpoint", key=key.hex()[:80])
            time = struct.unpack_from(">Q", key, KEY_OFFSET)[0] - _ZERO
        parts = decode_key(key[start:])
        if len(parts) <= self._columns:
            raise CorruptFile("a stored key has too few columns", key=key.hex()[:80], columns=self._columns)
        map_key = parts[self._columns + 1] if len(parts) > self._columns + 1 else None
        return DecodedKey(parts[: self._columns], parts[self._columns], map_key, time, domain or "")


_NOTHING = OperatorState(uid="", parallelism=1, key_types=[], states=[], subtasks=[])


def _ids_of(operator: OperatorState | None) -> dict[bytes, StateSchema | None]:
    return state_names((operator or _NOTHING).states)


def _pairs(old: OperatorState | None, new: OperatorState | None) -> Iterable[StatePair]:
    before = {schema.name: schema for schema in (old or _NOTHING).states}
    after = {schema.name: schema for schema in (new or _NOTHING).states}
    for name in before | after:
        first, second = before.get(name), after.get(name)
        if first is None or second is None or first.kind == second.kind:
            yield StatePair(name, (second or first or _NO_STATE).kind, first, second)
        else:
            yield StatePair(name, first.kind, first, None)
            yield StatePair(name, second.kind, None, second)


def _kind(schema: StateSchema | None) -> str:
    return "" if schema is None else schema.kind


_NO_STATE = StateSchema(name="", kind="", value_type="")


def id_of(pair: StatePair) -> tuple[bytes, ...]:
    """Returns the ids of a state in stored keys; the timers have two."""
    return tuple(TIMER_IDS.values()) if pair.kind == "timer" else (state_id(pair.name),)
