"""Compares the state of a job at two barriers, entry by entry, without holding it in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field

from stateflow.checkpoint.log.documents import Manifest, OperatorState
from stateflow.clock import SystemClock
from stateflow.compare.merge import Difference, differences
from stateflow.compare.operators import OperatorComparison, OperatorSide, Readers
from stateflow.private_files import ScratchFolder
from stateflow.query.state import check_entry
from stateflow.replay.key_trace import WantedKey
from stateflow.state.backends.entry_stream import EntryBlock
from stateflow.state.backends.factory import open_store_location, read_blocks
from stateflow.state.handles import Base, OperatorContent, StateSchema
from stateflow.state.kinds.keyed_state import state_names
from stateflow.state.kinds.timers import Timer, timers_in
from stateflow.state.operator_content import read_parts
from stateflow.state.schema import name_fields
from stateflow.state.stored_key import (
    KEY_OFFSET,
    STATE_PART,
    TIME_BYTES,
    TIMED_KEY_OFFSET,
    TIMER_DOMAINS,
    KeyRange,
    TimeDomain,
    after_key,
    encode_group,
    state_id,
)
from stateflow.storage import Storage
from stateflow.types.key_encoding import decode_key, has_key_at
from stateflow.types.serializers import decode_untyped

TIMERS = "_timers"
"""Name of the timers among the states of an operator; no state has it."""


@dataclass(frozen=True)
class EntryChange:
    """An entry of state that differs between two barriers.

    Attributes:
        operator: uid of the operator.
        state: name of the state; ``_timers`` for a timer, whose value is its time in milliseconds since 1970.
        key: values of the key columns; empty for operator state.
        namespace: None without a namespace; the time domain of a timer.
        map_key: key in a map state; position of an element of operator state.
        before, after: the value, or the element of a list; None without an entry.
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
class StateChanges:
    """The differences between two states.

    Attributes:
        counts: number of entries by (uid of the operator, state, kind of change).
        changes: the first of them; entries that do not differ do not count towards the limit of those that do.
    """

    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    changes: list[EntryChange] = field(default_factory=list)
    _kept: Counter[bool] = field(default_factory=Counter)

    def add(self, change: EntryChange, max_changes: int | None) -> None:
        """Counts a change, and keeps it unless `max_changes` are kept already; None for no limit."""
        self.counts[change.operator, change.state, change.kind] += 1
        differs = change.kind != "same"
        if max_changes is None or self._kept[differs] < max_changes:
            self._kept[differs] += 1
            self.changes.append(change)


@dataclass(frozen=True)
class StateComparison:
    """Compares states of one job.

    Attributes:
        storage: the storage that has the files of all states.
        max_parallelism: number of key groups of the job.
        max_changes: differences to keep; None for all.
    """

    storage: Storage
    max_parallelism: int
    max_changes: int | None = None

    def diff(self, before: Manifest | None, after: Manifest) -> StateChanges:
        """Returns the differences from one manifest's state to another's; None for no state.

        Raises:
            MissingFile, CorruptFile: a file is missing or damaged.
        """
        found = StateChanges()
        old, new = _operators(before), _operators(after)
        with ScratchFolder() as scratch:
            readers = Readers.create(scratch.path, SystemClock())
            for uid in sorted(old.keys() | new.keys()):
                first, second = old.get(uid), new.get(uid)
                compared = OperatorComparison(self._side(first), self._side(second), readers, whole_lists=False)
                self._add_entries(first, second, compared.stored_differences(), found)
                self._add_operator_state(uid, first, second, found)
        return found

    def entries_of_key(self, uid: str, key: WantedKey, before: Manifest | None, after: Manifest) -> StateChanges:
        """Returns all entries of one key of an operator, those that do not differ with the kind ``same``.

        Raises:
            MissingFile, CorruptFile: a file is missing or damaged.
        """
        found = StateChanges()
        old, new = _operators(before).get(uid), _operators(after).get(uid)
        blocks = self._blocks_of_key(old, key), self._blocks_of_key(new, key)
        with closing(blocks[0]), closing(blocks[1]):
            self._add_entries(old, new, differences(*blocks, with_equal=True), found)
        return found

    def _side(self, operator: OperatorState | None) -> OperatorSide | None:
        return OperatorSide(self.storage, operator, self.max_parallelism) if operator else None

    def _add_entries(
        self, old: OperatorState | None, new: OperatorState | None, entries: Iterable[Difference], found: StateChanges
    ) -> None:
        known = [operator for operator in (old, new) if operator]
        if not known:
            return
        names = state_names([schema for operator in known for schema in operator.states])
        reader = _EntryReader(known[-1].uid, names, len(known[-1].key_types))
        for entry in entries:
            if (change := reader.change(entry.key, entry.old, entry.new)) is not None:
                found.add(change, self.max_changes)

    def _blocks_of_key(self, operator: OperatorState | None, wanted: WantedKey) -> Generator[EntryBlock, None, None]:
        """Yields the entries of one key, without reading those of other keys, except for timers of its key group."""
        if operator is None:
            return
        ranges = _ranges(operator, wanted)
        for subtask in filter(wanted.is_in, operator.subtasks):
            with open_store_location(self.storage, SystemClock()) as location:
                for block in read_blocks(location, Base.of(subtask), ranges):
                    own = [at for at, key in enumerate(block.keys) if _is_of_key(key, wanted)]
                    if own:
                        yield EntryBlock([block.keys[at] for at in own], [block.values[at] for at in own])

    def _add_operator_state(
        self, uid: str, old: OperatorState | None, new: OperatorState | None, found: StateChanges
    ) -> None:
        left, right = self._elements(old), self._elements(new)
        schemas = {each.name: each for operator in (old, new) if operator for each in operator.operator_states}
        for kind, name, subtask, at in sorted(left.keys() | right.keys()):
            element = kind, name, subtask, at
            before, after = left.get(element), right.get(element)
            if before != after:
                old_value, new_value = (_decoded(data, schemas.get(name)) for data in (before, after))
                state, place = f"_operator/{name}", at if kind == "broadcast" else f"subtask {subtask}, {at}"
                change = EntryChange(uid, state, (), None, place, old_value, new_value, _kind(before, after))
                found.add(change, self.max_changes)

    def _elements(self, operator: OperatorState | None) -> dict[tuple[str, ...], bytes]:
        if operator is None:
            return {}
        return {
            key: data
            for part, content in read_parts(self.storage, operator.parts)
            for key, data in _content_elements(part.subtask, content)
        }


def _operators(manifest: Manifest | None) -> dict[str, OperatorState]:
    return {operator.uid: operator for operator in manifest.operators} if manifest else {}


def _ranges(operator: OperatorState, wanted: WantedKey) -> list[KeyRange]:
    """Returns the ranges of stored keys that can be those of a key, in order."""
    group = encode_group(wanted.group)
    states = [group + state_id(schema.name) + wanted.encoded for schema in operator.states]
    # A timer's time comes before its key.
    timers = [group + stored for stored in TIMER_DOMAINS]
    ranges = [(prefix, after_key(prefix)) for prefix in states]
    ranges += [(prefix, prefix + b"\xff" * (TIME_BYTES + 1)) for prefix in timers]
    return sorted(ranges)


def _is_of_key(stored: bytes, wanted: WantedKey) -> bool:
    """Returns whether a stored entry of the key's group belongs to the key."""
    at = TIMED_KEY_OFFSET if stored[STATE_PART] in TIMER_DOMAINS else KEY_OFFSET
    return has_key_at(stored, wanted.encoded, at)


def _content_elements(subtask: int, content: OperatorContent) -> Iterator[tuple[tuple[str, ...], bytes]]:
    for kind, lists in (("list", content.lists), ("union", content.unions)):
        for name, elements in lists.items():
            yield from (((kind, name, str(subtask), f"{at:010d}"), data) for at, data in enumerate(elements))
    for name, entries in content.broadcasts.items():
        yield from ((("broadcast", name, "", repr(decode_key(key)[0])), data) for key, data in entries.items())


def _kind(before: bytes | None, after: bytes | None) -> str:
    if before == after:
        return "same"
    return "added" if before is None else "removed" if after is None else "changed"


def _decoded(data: bytes | None, schema: StateSchema | None) -> object:
    return None if data is None else name_fields(decode_untyped(data), schema)


@dataclass(frozen=True)
class _EntryReader:
    """Decodes the stored entries of an operator."""

    operator: str
    names: dict[bytes, StateSchema | None]
    columns: int

    def change(self, stored: bytes, before: bytes | None, after: bytes | None) -> EntryChange | None:
        """Returns the difference in an entry; None for an internal one, such as the expiry of another."""
        kind = _kind(before, after)
        domain = TIMER_DOMAINS.get(stored[STATE_PART])
        if domain is not None:
            return self._timer(stored, domain, kind)
        found = check_entry(self.names, self.columns, stored, before if before is not None else after or b"")
        if found is None:
            return None
        schema = self.names[stored[STATE_PART]]
        old, new = (_decoded(data, schema) for data in (before, after))
        return EntryChange(self.operator, found.state, found.key, found.namespace, found.map_key, old, new, kind)

    def _timer(self, stored: bytes, domain: TimeDomain, kind: str) -> EntryChange:
        timer: Timer = timers_in([(stored, b"")], domain)[0]
        before = None if kind == "added" else timer.time
        after = None if kind == "removed" else timer.time
        return EntryChange(self.operator, TIMERS, timer.values, domain.value, timer.namespace, before, after, kind)
