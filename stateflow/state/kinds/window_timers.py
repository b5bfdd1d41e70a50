"""Timers of windows as columns: many are registered, deleted and fired at once."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter

import numpy as np

from stateflow.state.backends.base import after_prefix
from stateflow.state.key_columns import WINDOW_BYTES, Numbers, decode_times, decode_windows, encode_times
from stateflow.state.kinds.key_context import KeyContext
from stateflow.state.kinds.keyed_state_batch import KeyedStateBatch
from stateflow.state.kinds.timers import MOST_BY_COLUMNS, NO_WATERMARK, Firing, SliceSize, TimerIndex, Timers
from stateflow.state.stored_key import (
    ENTRY_TIME,
    GROUP_BYTES,
    GROUP_PART,
    TIME_BYTES,
    TIME_PART,
    TIMED_KEY_OFFSET,
    TIMER_IDS,
    TimeDomain,
    all_from_time_order,
    all_to_time_order,
    decode_time,
)
from stateflow.types.key_groups import KeyGroupRange


@dataclass(frozen=True)
class DueTimers:
    """Timers that are due, in order of time for each key.

    Attributes:
        of: the number of the key of each timer.
        starts, ends: its window.
        times: its time. All are milliseconds since 1970.
    """

    of: Numbers
    starts: Numbers
    ends: Numbers
    times: Numbers

    @classmethod
    def none(cls) -> DueTimers:
        """Returns no timers."""
        empty = np.zeros(0, np.int64)
        return cls(empty, empty, empty, empty)


@dataclass(frozen=True)
class DueKeys:
    """The keys of timers that are due.

    Attributes:
        groups: the key group of each key, 2 bytes.
        keys: the encoded keys.
    """

    groups: list[bytes]
    keys: list[bytes]
    timers: DueTimers


class _Due:
    """Collects the due timers of some keys.

    Args:
        numbers: the number of each key.
        until: the time up to which the timers of each key are due.
    """

    def __init__(self, numbers: dict[bytes, int], until: Numbers) -> None:
        self._numbers = numbers
        self._until = encode_times(until)
        self.latest = int(until.max())
        self.stored: list[bytes] = []
        """Stored timers."""
        self.of: list[int] = []
        """The number of the key of each."""

    def take(self, stored: bytes, key: bytes, time: bytes) -> bool:
        """Adds a timer if it is due, and returns whether it is."""
        number = self._numbers.get(key)
        if number is None or time > self._until[number]:
            return False
        self.stored.append(stored)
        self.of.append(number)
        return True


class WindowTimers(Timers):
    """The timers of one operator's subtask, all of which are timers of windows, or all of keys without a namespace.

    Args:
        context, owned, index: as for `Timers`.
        namespace_bytes: length of their namespaces: that of a window, or of the void namespace. The windows of timers
            without a namespace are zero.
    """

    def __init__(
        self, context: KeyContext, owned: KeyGroupRange, index: TimerIndex, namespace_bytes: int = WINDOW_BYTES
    ) -> None:
        super().__init__(context, owned, index)
        self._namespace_bytes = namespace_bytes

    def register_all(self, domain: TimeDomain, windows: KeyedStateBatch, times: Numbers) -> None:
        """Registers a timer for each window.

        Args:
            times: milliseconds since 1970, one per window.
        """
        stored = windows.stored_keys(TIMER_IDS[domain], encode_times(times))
        self._context.pending |= dict.fromkeys(stored, b"")
        index = self._index.times[domain]
        groups = np.frombuffer(b"".join(windows.groups), ">u2").astype(np.int64)
        if len(groups):
            order = np.argsort(groups, kind="stable")
            starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
            earliest = np.minimum.reduceat(times[order], starts)
            for at, time in zip(order[starts].tolist(), earliest.tolist(), strict=True):
                index.add(windows.groups[at], time)

    def delete_all(self, domain: TimeDomain, windows: KeyedStateBatch, times: Numbers) -> None:
        """Deletes the timers of windows that exist; arguments as for `register_all`."""
        stored = windows.stored_keys(TIMER_IDS[domain], encode_times(times))
        self._context.pending |= dict.fromkeys(stored)

    def fire(self, domain: TimeDomain, until: int, size: SliceSize) -> Iterator[DueKeys]:
        """Yields the timers of all keys up to `until` in order of time, those registered meanwhile included.

        They are deleted when they are yielded. Write the pending changes between two parts.

        Args:
            size: how many timers the next part has.
        """
        while groups := self._index.times[domain].take_due(until, self._owned):
            found = self._in_order(domain, until, groups)
            while entries := list(islice(found, size.keys)):
                self._context.pending |= dict.fromkeys(all_from_time_order(TIMER_IDS[domain], entries))
                yield self._by_key(entries)

    def fire_of_keys(self, groups: Sequence[bytes], keys: Sequence[bytes], until: Numbers) -> DueTimers:
        """Deletes and returns the event-time timers of some keys that are due.

        Args:
            groups: the key group of each key, 2 bytes.
            keys: the encoded keys.
            until: the time up to which the timers of each key are due.
        """
        times = self._index.times[TimeDomain.EVENT_TIME]
        latest = int(until.max(initial=NO_WATERMARK))
        if times.earliest is None or times.earliest > latest:
            return DueTimers.none()
        if times.groups is None:
            self._load_earliest_times(times)
        # A key has one key group, so its number is found without the group.
        due = _Due(dict(zip(keys, range(len(keys)), strict=True)), until)
        for group in dict.fromkeys(groups):
            first = times.get(group)
            if first is not None and first <= latest:
                times.remove(group)
                self._take_due(group, first, due)
        self._context.pending |= dict.fromkeys(due.stored)
        starts, ends = self._windows(due.stored)
        fire_times = decode_times(b"".join([stored[TIME_PART] for stored in due.stored]))
        return DueTimers(np.array(due.of, np.int64), starts, ends, fire_times)

    def _take_due(self, group: bytes, earliest: int, due: _Due) -> None:
        """Adds the due timers of a key group to `due`, and the earliest one that is not due to the index.

        Args:
            earliest: no timer of the group is earlier.
        """
        domain, rest = TimeDomain.EVENT_TIME, b""
        for stored in self._due_in_group(domain, group, earliest, due.latest):
            time = stored[TIME_PART]
            if not due.take(stored, stored[TIMED_KEY_OFFSET : -self._namespace_bytes], time):
                rest = rest or time
        if rest:
            self._index.times[domain].add(group, decode_time(rest, 0))

    def _due_in_group(self, domain: TimeDomain, group: bytes, earliest: int, until: int) -> Iterator[bytes]:
        """Yields the stored timers of a key group in a range of times, and then adds the next one to the index.

        Nothing may be written meanwhile.
        """
        prefix, backend = group + TIMER_IDS[domain], self._context.backend
        first, last = (prefix + time for time in encode_times(np.array([earliest, until])))
        rest, end = after_prefix(last), after_prefix(prefix)
        assert rest is not None
        yield from map(itemgetter(0), backend.read_range(first, rest))
        for key, _ in islice(backend.scan_range(rest, end), 1):
            self._index.times[domain].add(group, decode_time(key))

    def _in_order(self, domain: TimeDomain, until: int, groups: Mapping[bytes, int]) -> Iterator[bytes]:
        """Returns the due timers of key groups in order of time; sorts them if they are few, which takes less time.

        Args:
            groups: the earliest time of each key group.
        """
        found: list[bytes] = []
        for group, earliest in groups.items():
            due = self._due_in_group(domain, group, earliest, until)
            found += islice(due, MOST_BY_COLUMNS - len(found) + 1)
            if len(found) > MOST_BY_COLUMNS:
                current = Firing(domain, until)
                return heapq.merge(*(self._scan(current, *each) for each in groups.items()))
        return iter(sorted(all_to_time_order(found)))

    def _by_key(self, entries: list[bytes]) -> DueKeys:
        addresses = [entry[TIME_BYTES : -self._namespace_bytes] for entry in entries]
        numbers = {address: number for number, address in enumerate(dict.fromkeys(addresses))}
        of = np.fromiter(map(numbers.__getitem__, addresses), np.int64, len(entries))
        starts, ends = self._windows(entries)
        timers = DueTimers(of, starts, ends, decode_times(b"".join([entry[ENTRY_TIME] for entry in entries])))
        return DueKeys([each[GROUP_PART] for each in numbers], [each[GROUP_BYTES:] for each in numbers], timers)

    def _windows(self, stored: list[bytes]) -> tuple[Numbers, Numbers]:
        if self._namespace_bytes != WINDOW_BYTES:
            return np.zeros(len(stored), np.int64), np.zeros(len(stored), np.int64)
        return decode_windows(b"".join([each[-WINDOW_BYTES:] for each in stored]))
