"""Timers: per key and namespace, each once, in every snapshot, fired in order of time.

A timer is an entry without a value, ``key group | timers' id | time (8 bytes) | key | namespace``: setting one twice is
setting it once, deleting one needs no look, and within a key group they lie in order of time. What is due is found
without looking at state: for each key group the earliest time is remembered while the store stays open, and for the
whole subtask in the manifest. Both are lower bounds, since a deletion does not look for the next one.

Timers fire in two ways. `Timers.due` fires those of all keys, between the rows of two batches. `Timers.due_of_key`
fires those of the current key, between two of its rows: `look_ahead` reads them once for all keys of an Arrow batch.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import Any

from stateflow.errors import StateError
from stateflow.keygroups import KeyGroupRange
from stateflow.serializers import decode_key
from stateflow.state.backend import after_prefix
from stateflow.state.current import ADDRESS_BYTES, CurrentKey, encode_namespace, state_id
from stateflow.state.handles import EarliestTimers

SLICE = 10_000
"""Due timers that are in memory together."""
NO_WATERMARK = -(1 << 63)
MAX_WATERMARK = (1 << 63) - 1
"""The watermark at the end of bounded input, and of a job that drains."""
_GROUP_BYTES, _TIME_BYTES = 2, 8
_ZERO = 1 << 63


class TimeDomain(Enum):
    """Which time a timer goes by."""

    EVENT_TIME = "event"
    PROCESSING_TIME = "processing"


TIMER_IDS = {domain: state_id(f"\0{domain.value} timers") for domain in TimeDomain}
"""What stands in the place of the state id; no state has a name with a zero in it."""


@dataclass(frozen=True)
class Timer:
    """A timer that is pending, or due.

    Attributes:
        time: milliseconds since 1970.
        group: the key group, 2 bytes.
        key: as `encode_key` encodes it.
        values: the key, column by column.
    """

    time: int
    group: bytes
    key: bytes
    values: tuple[Any, ...]
    namespace: object


@dataclass
class _Heads:
    """The earliest time of each key group that has timers; until the store was looked at, only that of all of them."""

    bound: int | None
    groups: dict[bytes, int] | None = None

    @property
    def earliest(self) -> int | None:
        if self.groups is None:
            return self.bound
        return min(self.groups.values(), default=None)

    def note(self, group: bytes, time: int) -> None:
        """There is a timer of that time."""
        if self.groups is None:
            self.bound = time if self.bound is None else min(self.bound, time)
        elif time < self.groups.get(group, MAX_WATERMARK + 1):
            self.groups[group] = time

    def known(self, group: bytes) -> int | None:
        """The earliest time in a key group; None when it has no timer. Needs `groups`."""
        return self.groups.get(group) if self.groups is not None else self.bound

    def forget(self, group: bytes) -> None:
        """The timers of a key group are read now; what stays is noted again."""
        if self.groups is not None:
            self.groups.pop(group, None)

    def take(self, until: int, owned: KeyGroupRange) -> dict[bytes, int]:
        """The key groups that may have something due, and from which time on; what is known of them is forgotten."""
        bound = self.earliest
        if bound is None or bound > until:
            return {}
        if self.groups is None:
            self.groups = {}
            return {struct.pack(">H", owned.first + at): bound for at in range(len(owned))}
        taken = {group: time for group, time in self.groups.items() if time <= until}
        for group in taken:
            del self.groups[group]
        return taken


class TimerIndex:
    """When the next timers of a subtask are due, as far as that is known; lives as long as its store is open.

    Args:
        earliest: what the manifest knows.
    """

    def __init__(self, earliest: EarliestTimers | None = None) -> None:
        found = earliest or EarliestTimers()
        self.heads = {
            TimeDomain.EVENT_TIME: _Heads(found.event),
            TimeDomain.PROCESSING_TIME: _Heads(found.processing),
        }

    @property
    def earliest(self) -> EarliestTimers:
        """For the manifest."""
        event, processing = (self.heads[domain].earliest for domain in TimeDomain)
        return EarliestTimers(event, processing)


@dataclass
class _Pass:
    """The firing of one domain's timers up to a time: those of all keys, or those of the current one.

    Attributes:
        fresh: timers that were set meanwhile and are due, a heap of `_by_time` bytes; of one key, all that are due.
        changed: by the same bytes, whether the timer is there, for those that were set or deleted meanwhile.
    """

    domain: TimeDomain
    until: int
    fresh: list[bytes] = field(default_factory=list)
    changed: dict[bytes, bool] = field(default_factory=dict)

    def note(self, entry: bytes, exists: bool) -> None:
        """A due timer was set or deleted."""
        if exists and not self.changed.get(entry, False):
            heapq.heappush(self.fresh, entry)
        self.changed[entry] = exists

    def admit(self, entry: bytes) -> bool:
        """Whether a timer that was found is still there; it is not, from now on."""
        exists = self.changed.get(entry, True)
        if entry in self.changed:
            self.changed[entry] = False
        return exists


class Timers:
    """The timers of one operator's subtask, for the current key.

    Args:
        entries: what all state of the subtask works on.
        owned: its key groups.
    """

    def __init__(self, entries: CurrentKey, owned: KeyGroupRange, index: TimerIndex) -> None:
        self._entries = entries
        self._owned = owned
        self._index = index
        self._pass: _Pass | None = None
        self._ahead: dict[tuple[bytes, bytes], list[bytes]] = {}
        """What `look_ahead` found, by key group and key."""

    def register(self, domain: TimeDomain, time: int) -> None:
        """Sets a timer for the current key and namespace. Raises StateError without a key."""
        self._change(domain, time, True)

    def delete(self, domain: TimeDomain, time: int) -> None:
        """Deletes the current key's timer, if there is one. Raises StateError without a key."""
        self._change(domain, time, False)

    def due(
        self, domain: TimeDomain, until: int
    ) -> Iterator[tuple[list[tuple[bytes, bytes]], Iterator[Timer]]]:
        """The timers up to `until`, in order of time over all keys, those included that are set meanwhile.

        They come in slices: the keys whose timers are in it, as far as they are known before, and the timers. A timer
        is deleted when it comes. Each slice must be used up before the next one; in between, changes are to be written.
        """
        groups = self._index.heads[domain].take(until, self._owned)
        while groups:
            self._pass = current = _Pass(domain, until)
            found = heapq.merge(*(self._scan(current, *group) for group in groups.items()))
            while len(current.changed) < SLICE:
                entries = list(islice(found, SLICE))
                if not entries and not current.fresh:
                    groups = {}
                    break
                yield [_address(e) for e in entries], self._slice(current, entries)
            else:
                # Too much to remember was set or deleted: all is in the store now, and is found there.
                for entry in current.fresh:
                    groups[_group(entry)] = min(_time(entry), groups.get(_group(entry), MAX_WATERMARK))
        self._pass = None

    def look_ahead(self, until: Mapping[tuple[bytes, bytes], int]) -> None:
        """Finds the event-time timers of some keys in the store, each up to a time, for `begin_key`.

        One scan for each key group that has timers in that time. A timer that is passed on the way is read once more
        when it fires, and never a third time: a scan does not go further than the next batch's watermark.
        """
        self._ahead = {}
        heads, latest = self._index.heads[TimeDomain.EVENT_TIME], max(until.values(), default=NO_WATERMARK)
        if heads.earliest is None or heads.earliest > latest:
            return
        if heads.groups is None:
            self._learn(heads)
        groups: dict[bytes, dict[bytes, int]] = {}
        for (group, key), time in until.items():
            groups.setdefault(group, {})[key] = time
        for group, keys in groups.items():
            first = heads.known(group)
            if first is not None and first <= max(keys.values()):
                heads.forget(group)
                self._look_into(group, keys, first)

    def begin_key(self, until: int) -> None:
        """The current key's rows begin. Its event-time timers up to `until` are those that `look_ahead` found, and
        those that are set from now on."""
        assert self._entries.address is not None
        found = self._ahead.pop(self._entries.address, [])
        self._pass = _Pass(TimeDomain.EVENT_TIME, until, found)

    def is_due_of_key(self, until: int) -> bool:
        """Whether the key that `begin_key` began may have an event-time timer up to `until`."""
        current = self._pass
        return current is not None and bool(current.fresh) and _time(current.fresh[0]) <= until

    def due_of_key(self, until: int) -> Iterator[Timer]:
        """The event-time timers of the key that `begin_key` began, up to `until`, in order of time; those included that
        are set meanwhile. A timer is deleted when it comes."""
        current = self._pass
        assert current is not None
        while self.is_due_of_key(until):
            yield from self._fire(current, heapq.heappop(current.fresh))

    def refresh_key(self) -> None:
        """Changes were taken back: looks again which of the changed timers of the key there are."""
        current = self._pass
        if current is None:
            return
        for entry in list(current.changed):
            current.note(entry, self._entries.read(_stored(current.domain, entry)) is not None)

    def end_key(self) -> None:
        """The rows of the key end, or those of the Arrow batch."""
        current, self._pass = self._pass, None
        assert current is not None
        heads = self._index.heads[current.domain]
        for entry in current.fresh:
            if current.changed.get(entry, True):
                heads.note(_group(entry), _time(entry))

    def _learn(self, heads: _Heads) -> None:
        """Finds the earliest event-time timer of each key group."""
        assert heads.bound is not None
        start, heads.groups = _time_bytes(heads.bound), {}
        for at in range(len(self._owned)):
            group = struct.pack(">H", self._owned.first + at)
            prefix = group + TIMER_IDS[TimeDomain.EVENT_TIME]
            for key, _ in islice(self._entries.backend.scan_range(prefix + start, after_prefix(prefix)), 1):
                heads.note(group, _time(_by_time(key)))

    def _look_into(self, group: bytes, until: Mapping[bytes, int], start: int) -> None:
        """Reads the timers of a key group from a time on: those of some keys are kept, and the first one that is not is
        noted."""
        heads, lengths = self._index.heads[TimeDomain.EVENT_TIME], sorted({len(key) for key in until})
        latest, prefix = max(until.values()), group + TIMER_IDS[TimeDomain.EVENT_TIME]
        for stored, _ in self._entries.backend.scan_range(prefix + _time_bytes(start), after_prefix(prefix)):
            entry = _by_time(stored)
            time, rest = _time(entry), entry[_TIME_BYTES + _GROUP_BYTES :]
            if time <= latest:
                # No key's encoding begins with that of another key: the namespace follows it.
                key = next((rest[:length] for length in lengths if rest[:length] in until), None)
                if key is not None and time <= until[key]:
                    self._ahead.setdefault((group, key), []).append(entry)
                    continue
            heads.note(group, time)
            if time > latest:
                return

    def _slice(self, current: _Pass, entries: list[bytes]) -> Iterator[Timer]:
        fresh = current.fresh
        for entry in entries:
            while fresh and fresh[0] < entry:
                yield from self._fire(current, heapq.heappop(fresh))
            yield from self._fire(current, entry)
        if len(entries) < SLICE:
            # Nothing more is to be found behind these.
            for _ in range(SLICE):
                if not fresh:
                    return
                yield from self._fire(current, heapq.heappop(fresh))

    def _fire(self, current: _Pass, entry: bytes) -> Iterator[Timer]:
        if current.admit(entry):
            self._entries.pending[_stored(current.domain, entry)] = None
            yield _timer(entry)

    def _scan(self, current: _Pass, group: bytes, start: int) -> Iterator[bytes]:
        """The due timers of a key group. On the way, the first one that is not due becomes known."""
        prefix = group + TIMER_IDS[current.domain]
        # Not from the prefix on: RocksDB would pass over every deleted timer that is not compacted yet.
        for key, _ in self._entries.backend.scan_range(prefix + _time_bytes(start), after_prefix(prefix)):
            entry = _by_time(key)
            if _time(entry) > current.until:
                self._index.heads[current.domain].note(group, _time(entry))
                return
            yield entry

    def _change(self, domain: TimeDomain, time: int, exists: bool) -> None:
        address = self._entries.address
        if address is None:
            raise StateError("a timer was used without a key", hint="timers belong to a key: use them in "
                             "process_element and on_timer")  # fmt: skip
        group, key = address
        stored = group + TIMER_IDS[domain] + _time_bytes(time) + key + self._entries.namespace
        self._entries.pending[stored] = b"" if exists else None
        current = self._pass
        if current is not None and current.domain is domain and time <= current.until:
            current.note(_by_time(stored), exists)
        elif exists:
            self._index.heads[domain].note(group, time)


def timers_in(entries: Iterable[tuple[bytes, bytes]], domain: TimeDomain) -> list[Timer]:
    """The pending timers of one domain among the entries of a store, in the order in which they will fire."""
    stored = [key for key, _ in entries if key[_GROUP_BYTES:ADDRESS_BYTES] == TIMER_IDS[domain]]
    return [_timer(entry) for entry in sorted(map(_by_time, stored))]


def _time_bytes(time: int) -> bytes:
    if isinstance(time, bool) or not isinstance(time, int) or not NO_WATERMARK <= time <= MAX_WATERMARK:
        raise StateError(
            "a timer's time is not one", hint="give milliseconds since 1970, a whole number", time=time
        )
    return struct.pack(">Q", time + _ZERO)


def _by_time(stored: bytes) -> bytes:
    """A timer as it sorts over key groups: time, key group, key, namespace."""
    behind = ADDRESS_BYTES + _TIME_BYTES
    return stored[ADDRESS_BYTES:behind] + stored[:_GROUP_BYTES] + stored[behind:]


def _stored(domain: TimeDomain, entry: bytes) -> bytes:
    return _group(entry) + TIMER_IDS[domain] + entry[:_TIME_BYTES] + entry[_TIME_BYTES + _GROUP_BYTES :]


def _time(entry: bytes) -> int:
    time: int = struct.unpack_from(">Q", entry)[0] - _ZERO
    return time


def _group(entry: bytes) -> bytes:
    return entry[_TIME_BYTES : _TIME_BYTES + _GROUP_BYTES]


def _address(entry: bytes) -> tuple[bytes, bytes]:
    timer = _timer(entry)
    return timer.group, timer.key


def _timer(entry: bytes) -> Timer:
    rest = entry[_TIME_BYTES + _GROUP_BYTES :]
    *values, namespace = decode_key(rest)
    key = rest[: len(rest) - len(encode_namespace(namespace))]
    return Timer(_time(entry), _group(entry), key, tuple(values), namespace)
