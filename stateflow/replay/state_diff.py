"""Compares the state of a job at two barriers, entry by entry, without holding it in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import TypeVar

from msgspec.structs import replace

from stateflow.checkpoint.log.documents import Manifest, OperatorState
from stateflow.checkpoint.operator_parts import read_parts
from stateflow.clock import SystemClock
from stateflow.config.state_settings import RocksDBSettings
from stateflow.query.state import check_entry, stored_entries
from stateflow.replay.keys import WantedKey
from stateflow.scratch_folder import ScratchFolder
from stateflow.state.backends.entry_stream import Entry, KeyRange, first_key
from stateflow.state.backends.factory import StoreLocation, read_ranges
from stateflow.state.files.host_cache import HostCache
from stateflow.state.handles import Base, OperatorContent, StateSchema, SubtaskState
from stateflow.state.kinds.key_context import KEY_OFFSET, state_id
from stateflow.state.kinds.state_registry import state_names
from stateflow.state.kinds.timer_index import TimeDomain
from stateflow.state.kinds.timers import TIMER_IDS, Timer, timers_in
from stateflow.state.schema.named_values import named_value
from stateflow.storage import Storage
from stateflow.types.key_encoding import decode_key, has_key_at
from stateflow.types.serializers import decode_untyped

TIMERS = "_timers"
"""Name of the timers among the states of an operator; no state has it."""
_GROUP_BYTES, _TIME_BYTES = 2, 8
_DOMAINS = {stored: domain for domain, stored in TIMER_IDS.items()}
K = TypeVar("K", bytes, tuple[str, ...])


@dataclass(frozen=True)
class StateChange:
    """An entry of state that differs between two barriers.

    Attributes:
        operator: uid of the operator.
        state: name of the state; ``_timers`` for a timer, whose value is its time in milliseconds since 1970.
        key: values of the key columns; empty for operator state.
        namespace: None without a namespace; the time domain of a timer.
        map_key: key in a map state; position of an element of operator state.
        before, after: the value, or the element of a list; None where there is no entry.
        kind: ``added``, ``removed`` or ``changed``; ``same`` where entries that do not differ were requested.
    """

    operator: str
    state: str
    key: tuple[object, ...]
    namespace: object
    map_key: object
    before: object
    after: object
    kind: str


@dataclass
class StateDiff:
    """The differences between two states.

    Attributes:
        counts: number of entries by (uid of the operator, state, kind of change).
        changes: the first of them; entries that do not differ do not count towards the limit of those that do.
    """

    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    changes: list[StateChange] = field(default_factory=list)
    _kept: Counter[bool] = field(default_factory=Counter)

    def add(self, change: StateChange, max_changes: int | None) -> None:
        """Counts a change, and keeps it unless `max_changes` are kept already; None for no limit."""
        self.counts[change.operator, change.state, change.kind] += 1
        differs = change.kind != "same"
        if max_changes is None or self._kept[differs] < max_changes:
            self._kept[differs] += 1
            self.changes.append(change)


@dataclass(frozen=True)
class StateComparison:
    """What to compare.

    Attributes:
        storage: the storage that has the files of both states.
        keys: the only key of each operator to compare, by uid; None to compare all keys of all operators.
        max_changes: differences to keep; None for all.
        unchanged: whether entries that do not differ are part of the result, with the kind ``same``.
    """

    storage: Storage
    keys: Mapping[str, WantedKey] | None = None
    max_changes: int | None = None
    unchanged: bool = False

    def diff(self, before: Manifest | None, after: Manifest) -> StateDiff:
        """Returns the differences from one manifest's state to another's; None for no state.

        Raises:
            MissingFile, CorruptFile: a file is missing or damaged.
        """
        found = StateDiff()
        old = {operator.uid: operator for operator in before.operators} if before else {}
        new = {operator.uid: operator for operator in after.operators}
        for uid in sorted(old.keys() | new.keys()):
            if self.keys is None or uid in self.keys:
                self._add_keyed(uid, old.get(uid), new.get(uid), found)
            if self.keys is None:
                self._add_operator_state(uid, old.get(uid), new.get(uid), found)
        return found

    def _add_keyed(self, uid: str, old: OperatorState | None, new: OperatorState | None, found: StateDiff) -> None:
        known = [operator for operator in (old, new) if operator]
        names = state_names([schema for operator in known for schema in operator.states])
        wanted = self.keys[uid] if self.keys is not None else None
        reader = _EntryReader(uid, names, len(known[-1].key_types))
        same = frozenset[str]() if self.unchanged else _unchanged(old, new)
        streams = (self._entries(old, same, wanted), self._entries(new, same, wanted))
        with closing(streams[0]) as left, closing(streams[1]) as right:
            for key, before, after in merged(left, right):
                if (before != after or self.unchanged) and (change := reader.change(key, before, after)) is not None:
                    found.add(change, self.max_changes)

    def _entries(
        self, operator: OperatorState | None, same: frozenset[str], wanted: WantedKey | None
    ) -> Generator[Entry, None, None]:
        """Yields the stored entries of an operator in order of their keys, without those of unchanged subtasks."""
        if operator is None:
            return
        if wanted is not None:
            yield from self._entries_of_key(operator, wanted)
            return
        changed = [subtask for subtask in operator.subtasks if subtask.snapshot not in same]
        own = replace(operator, subtasks=sorted(changed, key=lambda subtask: subtask.first_group))
        for _, entries in stored_entries(own, self.storage, SystemClock()):
            with closing(entries):
                yield from entries

    def _entries_of_key(self, operator: OperatorState, wanted: WantedKey) -> Generator[Entry, None, None]:
        """Yields the entries of one key, without reading those of other keys, except for timers of its key group."""
        ranges = _ranges(operator, wanted)
        with ScratchFolder() as scratch:
            for subtask in filter(wanted.is_in, operator.subtasks):
                cache = HostCache.direct(scratch.path / "cache", self.storage, SystemClock())
                location = StoreLocation(scratch.path / "work", cache, RocksDBSettings())
                for block in read_ranges(location, Base.of(subtask), ranges):
                    found = zip(block.keys, block.values, strict=True)
                    yield from (entry for entry in found if _is_of_key(entry[0], wanted))

    def _add_operator_state(
        self, uid: str, old: OperatorState | None, new: OperatorState | None, found: StateDiff
    ) -> None:
        left, right = self._elements(old), self._elements(new)
        schemas = {each.name: each for operator in (old, new) if operator for each in operator.operator_states}
        for kind, name, subtask, at in sorted(left.keys() | right.keys()):
            element = kind, name, subtask, at
            before, after = left.get(element), right.get(element)
            if before != after:
                old_value, new_value = (_decoded(data, schemas.get(name)) for data in (before, after))
                state, place = f"_operator/{name}", at if kind == "broadcast" else f"subtask {subtask}, {at}"
                change = StateChange(uid, state, (), None, place, old_value, new_value, _kind(before, after))
                found.add(change, self.max_changes)

    def _elements(self, operator: OperatorState | None) -> dict[tuple[str, ...], bytes]:
        if operator is None:
            return {}
        return {
            key: data
            for part, content in read_parts(self.storage, operator.parts)
            for key, data in _content_elements(part.subtask, content)
        }


def _ranges(operator: OperatorState, wanted: WantedKey) -> list[KeyRange]:
    """Returns the ranges of stored keys that can be those of a key, in order."""
    group = first_key(wanted.group)
    states = [group + state_id(schema.name) + wanted.encoded for schema in operator.states]
    # A timer's time comes before its key.
    timers = [group + stored for stored in _DOMAINS]
    ranges = [(prefix, prefix + b"\xff") for prefix in states]
    ranges += [(prefix, prefix + b"\xff" * (_TIME_BYTES + 1)) for prefix in timers]
    return sorted(ranges)


def _is_of_key(stored: bytes, wanted: WantedKey) -> bool:
    """Returns whether a stored entry of the key's group belongs to the key."""
    at = KEY_OFFSET + (_TIME_BYTES if stored[_GROUP_BYTES:KEY_OFFSET] in _DOMAINS else 0)
    return has_key_at(stored, wanted.encoded, at)


def _content_elements(subtask: int, content: OperatorContent) -> Iterator[tuple[tuple[str, ...], bytes]]:
    for kind, lists in (("list", content.lists), ("union", content.unions)):
        for name, elements in lists.items():
            yield from (((kind, name, str(subtask), f"{at:010d}"), data) for at, data in enumerate(elements))
    for name, entries in content.broadcasts.items():
        yield from ((("broadcast", name, "", repr(decode_key(key)[0])), data) for key, data in entries.items())


def merged(
    left: Iterator[tuple[K, bytes]], right: Iterator[tuple[K, bytes]]
) -> Iterator[tuple[K, bytes | None, bytes | None]]:
    """Yields each key of two sorted streams once, with the values that they have for it."""
    old, new = next(left, None), next(right, None)
    while old is not None or new is not None:
        if new is None or (old is not None and old[0] < new[0]):
            assert old is not None
            yield old[0], old[1], None
            old = next(left, None)
        elif old is None or new[0] < old[0]:
            yield new[0], None, new[1]
            new = next(right, None)
        else:
            yield old[0], old[1], new[1]
            old, new = next(left, None), next(right, None)


def _unchanged(old: OperatorState | None, new: OperatorState | None) -> frozenset[str]:
    """Returns the snapshots that both have for the same key groups."""
    if old is None or new is None:
        return frozenset()

    def named(operator: OperatorState) -> set[tuple[str, int, int]]:
        return {(s.snapshot, s.first_group, s.last_group) for s in operator.subtasks if _is_unique(s)}

    return frozenset(snapshot for snapshot, _, _ in named(old) & named(new))


def _is_unique(subtask: SubtaskState) -> bool:
    return bool(subtask.snapshot)


def _kind(before: bytes | None, after: bytes | None) -> str:
    if before == after:
        return "same"
    return "added" if before is None else "removed" if after is None else "changed"


def _decoded(data: bytes | None, schema: StateSchema | None) -> object:
    return None if data is None else named_value(decode_untyped(data), schema)


@dataclass(frozen=True)
class _EntryReader:
    """Decodes the stored entries of an operator."""

    operator: str
    names: dict[bytes, StateSchema | None]
    columns: int

    def change(self, stored: bytes, before: bytes | None, after: bytes | None) -> StateChange | None:
        """Returns the difference in an entry; None for an internal one, such as the expiry of another."""
        kind = _kind(before, after)
        domain = _DOMAINS.get(stored[_GROUP_BYTES:KEY_OFFSET])
        if domain is not None:
            return self._timer(stored, domain, kind)
        found = check_entry(self.names, self.columns, stored, before if before is not None else after or b"")
        if found is None:
            return None
        schema = self.names[stored[_GROUP_BYTES:KEY_OFFSET]]
        old, new = (_decoded(data, schema) for data in (before, after))
        return StateChange(self.operator, found.state, found.key, found.namespace, found.map_key, old, new, kind)

    def _timer(self, stored: bytes, domain: TimeDomain, kind: str) -> StateChange:
        timer: Timer = timers_in([(stored, b"")], domain)[0]
        before = None if kind == "added" else timer.time
        after = None if kind == "removed" else timer.time
        return StateChange(self.operator, TIMERS, timer.values, domain.value, timer.namespace, before, after, kind)
