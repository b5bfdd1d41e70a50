"""Timers: at most one per key, namespace and time, stored in every snapshot and fired in order of time.

A timer is an entry without a value, whose key has the time before the key of the row (`stored_key`). So registering a
timer twice has no effect, deleting one needs no read, and the timers of a key group are stored in order of time. Due
timers are found without scanning the state: the earliest time per key group is kept in memory while the store is open,
and that of the subtask in the manifest. Both are lower bounds, since a deletion does not search for the next timer.

Timers fire in two ways. `Timers.due` fires those of all keys, between the rows of two batches. `Timers.due_of_key`
fires those of the current key between two of its rows, after `prefetch` has read them for all keys of an Arrow batch.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from stateflow.errors import StateError
from stateflow.state.backends.base import after_prefix
from stateflow.state.handles import EarliestTimers
from stateflow.state.kinds.key_context import KeyContext
from stateflow.state.stored_key import (
    ENTRY_GROUP,
    ENTRY_KEY_OFFSET,
    STATE_PART,
    TIMER_IDS,
    TimeDomain,
    decode_time,
    encode_group,
    encode_namespace,
    encode_time,
    from_time_order,
    timer_without_key,
    to_time_order,
)
from stateflow.types.key_encoding import decode_key, ends_at
from stateflow.types.key_groups import KeyGroupRange


@dataclass
class EarliestTimes:
    """Lower bounds for the times of pending timers in one time domain.

    Attributes:
        bound: bound for all key groups, until the store was read; None without timers.
        groups: bound for each key group that has timers; None until the store was read.
    """

    bound: int | None
    groups: dict[bytes, int] | None = None

    @property
    def earliest(self) -> int | None:
        """Lower bound of the times of all timers; None without timers."""
        if self.groups is None:
            return self.bound
        return min(self.groups.values(), default=None)

    def add(self, group: bytes, time: int) -> None:
        """Adds a timer."""
        if self.groups is None:
            self.bound = time if self.bound is None else min(self.bound, time)
            return
        known = self.groups.get(group)
        if known is None or time < known:
            self.groups[group] = time

    def get(self, group: bytes) -> int | None:
        """Returns the bound for a key group; None without timers."""
        return self.groups.get(group) if self.groups is not None else self.bound

    def remove(self, group: bytes) -> None:
        """Removes the bound of a key group whose timers are about to be read; the reader adds those that remain."""
        if self.groups is not None:
            self.groups.pop(group, None)

    def take_due(self, until: int, owned: KeyGroupRange) -> dict[bytes, int]:
        """Removes and returns the bounds of the key groups that may have timers up to `until`."""
        bound = self.earliest
        if bound is None or bound > until:
            return {}
        if self.groups is None:
            self.groups = {}
            return {encode_group(owned.first + at): bound for at in range(len(owned))}
        taken = {group: time for group, time in self.groups.items() if time <= until}
        for group in taken:
            del self.groups[group]
        return taken


class TimerIndex:
    """The earliest times of a subtask's timers, kept as long as its store is open.

    Args:
        earliest: the times in the manifest.
    """

    def __init__(self, earliest: EarliestTimers | None = None) -> None:
        found = earliest or EarliestTimers()
        self.times = {
            TimeDomain.EVENT_TIME: EarliestTimes(found.event),
            TimeDomain.PROCESSING_TIME: EarliestTimes(found.processing),
        }

    @property
    def earliest(self) -> EarliestTimers:
        """The times to store in the manifest."""
        event, processing = (self.times[domain].earliest for domain in TimeDomain)
        return EarliestTimers(event, processing)


_SCANNED = 256
"""Due timers of a key group that one scan reads: a scan that stays open pins blocks of the store for its key group."""
NO_WATERMARK = -(1 << 63)
MAX_WATERMARK = (1 << 63) - 1
"""The watermark at the end of bounded input, and when a job is drained."""


@dataclass(frozen=True)
class Timer:
    """A pending or due timer.

    Attributes:
        time: milliseconds since 1970.
        group: the key group, 2 bytes.
        key: the key as encoded by `encode_key`.
        values: the values of the key columns.
        namespace: None for the void namespace.
    """

    time: int
    group: bytes
    key: bytes
    values: tuple[object, ...]
    namespace: object


@dataclass
class Firing:
    """The firing of timers up to a time, either those of all keys or those of the current key.

    Attributes:
        domain: the time domain.
        until: the time up to which timers are due, in milliseconds.
        queue: a heap of due timers in time order; those registered meanwhile, and for one key all that are due.
        changed: whether the timer exists, for each due timer that was registered or deleted meanwhile.
    """

    domain: TimeDomain
    until: int
    queue: list[bytes] = field(default_factory=list)
    changed: dict[bytes, bool] = field(default_factory=dict)

    def record(self, entry: bytes, exists: bool) -> None:
        """Records that a due timer was registered or deleted."""
        if exists and not self.changed.get(entry, False):
            heapq.heappush(self.queue, entry)
        self.changed[entry] = exists

    def take(self, entry: bytes) -> bool:
        """Returns whether a timer still exists, and records that it is deleted."""
        exists = self.changed.get(entry, True)
        if entry in self.changed:
            self.changed[entry] = False
        return exists


class Timers:
    """The timers of one operator's subtask, for the current key.

    Args:
        context: current key and pending changes.
        owned: the key groups of the subtask.
        index: the earliest times.
    """

    def __init__(self, context: KeyContext, owned: KeyGroupRange, index: TimerIndex) -> None:
        self._context = context
        self._owned = owned
        self._index = index
        self._firing: Firing | None = None
        self._prefetched: dict[tuple[bytes, bytes], list[bytes]] = {}
        """Timers found by `prefetch`, by key group and key."""

    def register(self, domain: TimeDomain, time: int) -> None:
        """Registers a timer for the current key and namespace.

        Args:
            domain: the time domain.
            time: milliseconds since 1970.

        Raises:
            StateError: no key is current, or the time is out of range.
        """
        self._change(domain, time, True)

    def delete(self, domain: TimeDomain, time: int) -> None:
        """Deletes a timer of the current key and namespace if it exists; arguments and errors as for `register`."""
        self._change(domain, time, False)

    def due(
        self, domain: TimeDomain, until: int, size: SliceSize
    ) -> Iterator[tuple[list[tuple[bytes, bytes]], Iterator[Timer]]]:
        """Fires the timers of all keys up to `until` in order of time, those registered meanwhile included.

        Each timer is deleted when it is yielded. Read each slice to its end before the next one, and write the pending
        changes between two slices.

        Args:
            size: how many timers the next slice has.

        Yields:
            Slices: the (key group, key) pairs of their timers, as far as known in advance, and the timers.
        """
        groups = self._index.times[domain].take_due(until, self._owned)
        while groups:
            self._firing = current = Firing(domain, until)
            found = heapq.merge(*(self._scan(current, *group) for group in groups.items()))
            while len(current.changed) < MOST:
                limit = size.keys
                entries = list(islice(found, limit))
                if not entries and not current.queue:
                    groups = {}
                    break
                yield [_key_of(e) for e in entries], self._slice(current, entries, limit)
            else:
                # Too many timers were registered or deleted to track them: restart, they are all in the store by now.
                for entry in current.queue:
                    group = entry[ENTRY_GROUP]
                    groups[group] = min(decode_time(entry, 0), groups.get(group, MAX_WATERMARK))
        self._firing = None

    def prefetch(self, until: Mapping[tuple[bytes, bytes], int]) -> None:
        """Reads event-time timers for `begin_key`.

        Scans once per key group that has timers in the time range. A timer of another key that the scan passes is read
        a second time when it fires, but not a third time: no scan reads beyond the watermark of the next batch.

        Args:
            until: the time up to which to read the timers of each (key group, key).
        """
        self._prefetched = {}
        times, latest = self._index.times[TimeDomain.EVENT_TIME], max(until.values(), default=NO_WATERMARK)
        if times.earliest is None or times.earliest > latest:
            return
        if times.groups is None:
            self._load_earliest_times(times)
        groups: dict[bytes, dict[bytes, int]] = {}
        for (group, key), time in until.items():
            groups.setdefault(group, {})[key] = time
        for group, keys in groups.items():
            first = times.get(group)
            if first is not None and first <= max(keys.values()):
                times.remove(group)
                self._prefetch_group(group, keys, first)

    def begin_key(self, until: int) -> None:
        """Starts the rows of the current key.

        Its event-time timers up to `until` are the prefetched ones and those registered from now on.
        """
        assert self._context.current_key is not None
        found = self._prefetched.pop(self._context.current_key, [])
        self._firing = Firing(TimeDomain.EVENT_TIME, until, found)

    def is_due_of_key(self, until: int) -> bool:
        """Returns whether the key of `begin_key` may have an event-time timer up to `until`."""
        current = self._firing
        return current is not None and bool(current.queue) and decode_time(current.queue[0], 0) <= until

    def due_of_key(self, until: int) -> Iterator[Timer]:
        """Fires the event-time timers of the key of `begin_key` up to `until` in order of time.

        Includes timers that are registered meanwhile. Each timer is deleted when it is yielded.
        """
        current = self._firing
        assert current is not None
        while self.is_due_of_key(until):
            yield from self._fire(current, heapq.heappop(current.queue))

    def resync_key(self) -> None:
        """Reads again which of the changed timers of the key exist, after a rollback."""
        current = self._firing
        if current is None:
            return
        for entry in list(current.changed):
            current.record(entry, self._context.read(from_time_order(TIMER_IDS[current.domain], entry)) is not None)

    def end_key(self) -> None:
        """Ends the rows of the key, or those in the Arrow batch."""
        current, self._firing = self._firing, None
        assert current is not None
        times = self._index.times[current.domain]
        for entry in current.queue:
            if current.changed.get(entry, True):
                times.add(entry[ENTRY_GROUP], decode_time(entry, 0))

    def _load_earliest_times(self, times: EarliestTimes) -> None:
        """Reads the earliest event-time timer of each key group."""
        assert times.bound is not None
        start, times.groups = _time_bytes(times.bound), {}
        for at in range(len(self._owned)):
            group = encode_group(self._owned.first + at)
            prefix = group + TIMER_IDS[TimeDomain.EVENT_TIME]
            for key, _ in islice(self._context.backend.scan_range(prefix + start, after_prefix(prefix)), 1):
                times.add(group, decode_time(to_time_order(key), 0))

    def _prefetch_group(self, group: bytes, until: Mapping[bytes, int], start: int) -> None:
        """Prefetches timers of a key group from `start` on, and adds the others that it reads to the index.

        Args:
            until: the time up to which to prefetch the timers of each key.
        """
        times, lengths = self._index.times[TimeDomain.EVENT_TIME], sorted({len(key) for key in until})
        latest, prefix = max(until.values()), group + TIMER_IDS[TimeDomain.EVENT_TIME]
        for stored, _ in self._context.backend.scan_range(prefix + _time_bytes(start), after_prefix(prefix)):
            entry = to_time_order(stored)
            time, rest = decode_time(stored), entry[ENTRY_KEY_OFFSET:]
            if time <= latest:
                found = (rest[:length] for length in lengths if ends_at(rest, length) and rest[:length] in until)
                key = next(found, None)
                if key is not None and time <= until[key]:
                    self._prefetched.setdefault((group, key), []).append(entry)
                    continue
            times.add(group, time)
            if time > latest:
                return

    def _slice(self, current: Firing, entries: list[bytes], limit: int) -> Iterator[Timer]:
        queue = current.queue
        for entry in entries:
            while queue and queue[0] < entry:
                yield from self._fire(current, heapq.heappop(queue))
            yield from self._fire(current, entry)
        if len(entries) < limit:
            # The store has no more due timers after these.
            for _ in range(limit):
                if not queue:
                    return
                yield from self._fire(current, heapq.heappop(queue))

    def _fire(self, current: Firing, entry: bytes) -> Iterator[Timer]:
        if current.take(entry):
            self._context.pending[from_time_order(TIMER_IDS[current.domain], entry)] = None
            yield _timer(entry)

    def _scan(self, current: Firing, group: bytes, start: int) -> Iterator[bytes]:
        """Yields the due timers of a key group, and adds the first one that is not due to the index."""
        prefix = group + TIMER_IDS[current.domain]
        # Not from the prefix on: RocksDB would step over every deleted timer that is not yet compacted.
        lower: bytes | None = prefix + _time_bytes(start)
        while lower is not None:
            due, lower = self._read_due(current, lower, after_prefix(prefix))
            yield from due

    def _read_due(self, current: Firing, lower: bytes, upper: bytes | None) -> tuple[list[bytes], bytes | None]:
        """Returns the next due timers of a key group, and the stored key to read on from."""
        due: list[bytes] = []
        for key, _ in self._context.backend.scan_range(lower, upper):
            entry = to_time_order(key)
            if decode_time(entry, 0) > current.until:
                self._index.times[current.domain].add(entry[ENTRY_GROUP], decode_time(entry, 0))
                break
            if len(due) == _SCANNED:
                return due, key
            due.append(entry)
        return due, None

    def _change(self, domain: TimeDomain, time: int, exists: bool) -> None:
        address = self._context.current_key
        if address is None:
            raise StateError(
                "a timer was used without a current key", hint="use timers in process_element and on_timer"
            )
        group, key = address
        stored = group + TIMER_IDS[domain] + _time_bytes(time) + key + self._context.namespace
        self._context.pending[stored] = b"" if exists else None
        current = self._firing
        if current is not None and current.domain is domain and time <= current.until:
            current.record(to_time_order(stored), exists)
        elif exists:
            self._index.times[domain].add(group, time)


def timers_in(entries: Iterable[tuple[bytes, bytes]], domain: TimeDomain) -> list[Timer]:
    """Returns the pending timers of one time domain among a store's entries, in the order in which they fire."""
    stored = [key for key, _ in entries if key[STATE_PART] == TIMER_IDS[domain]]
    return [_timer(entry) for entry in sorted(map(to_time_order, stored))]


def _time_bytes(time: int) -> bytes:
    if isinstance(time, bool) or not isinstance(time, int) or not NO_WATERMARK <= time <= MAX_WATERMARK:
        raise StateError("a timer's time is not a timestamp", hint="pass milliseconds since 1970 as an int", time=time)
    return encode_time(time)


def _key_of(entry: bytes) -> tuple[bytes, bytes]:
    timer = _timer(entry)
    return timer.group, timer.key


def _timer(entry: bytes) -> Timer:
    rest = entry[ENTRY_KEY_OFFSET:]
    *values, namespace = decode_key(rest) or [None]
    if not values:
        raise timer_without_key(entry)
    key = rest[: len(rest) - len(encode_namespace(namespace))]
    return Timer(decode_time(entry, 0), entry[ENTRY_GROUP], key, tuple(values), namespace)


MOST = 10_000
"""The largest number of keys."""
MOST_BY_COLUMNS = 200_000
"""The largest number when their state is read as columns."""
_FIRST = 128
_FIRST_BY_COLUMNS = 1 << 10
_GROWTH = 4
_BYTES = 2 << 20
"""Size of the state to hold at once, as stored bytes; objects in Python take several times that."""
_BYTES_BY_COLUMNS = 16 << 20
"""The same for columns, which exist several times: stored, decoded, encoded and emitted."""
_ROW_BYTES = 400
"""Assumed size of an emitted row, which is not stored."""


@dataclass
class SliceSize:
    """A number of keys that follows from the size of their state and of what is emitted for them.

    It begins small, since the state of the first keys is not known, and grows to `most` while they need little memory.

    Attributes:
        most: the largest number.
        bytes: size of the state to hold at once, as stored bytes.
    """

    keys: int = _FIRST
    most: int = MOST
    bytes: int = _BYTES

    @classmethod
    def of_columns(cls) -> SliceSize:
        """Returns the size for state that is read as columns, which needs less memory for each key."""
        return cls(_FIRST_BY_COLUMNS, MOST_BY_COLUMNS, _BYTES_BY_COLUMNS)

    def adapt(self, keys: int, state_bytes: int, emitted: int = 0) -> None:
        """Sets the number for the next slice.

        Args:
            keys: how many keys the last slice had.
            state_bytes: the bytes that were read, written or emitted for them.
            emitted: how many rows of unknown size were emitted for them.
        """
        used = max(state_bytes + emitted * _ROW_BYTES, 1)
        self.keys = max(1, min(keys * self.bytes // used, self.keys * _GROWTH, self.most))
