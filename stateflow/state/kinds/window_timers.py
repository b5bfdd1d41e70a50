"""Timers of windows as columns: many are registered, deleted and fired at once."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np

from stateflow.state.backends.base import after_prefix
from stateflow.state.columnar.key_encoding import WINDOW_BYTES, Integers, decode_times, decode_windows, encode_times
from stateflow.state.kinds.key_context import KEY_OFFSET, KeyContext
from stateflow.state.kinds.keyed_state_batch import KeyedStateBatch
from stateflow.state.kinds.timer_index import TimeDomain, TimerIndex
from stateflow.state.kinds.timers import NO_WATERMARK, TIMER_IDS, Firing, Timers, stored_timer
from stateflow.types.key_groups import KeyGroupRange

_STORED_KEY = KEY_OFFSET + 8
"""Offset of the key in a stored timer: after key group, id and time."""
_AT_ONCE = 200_000
"""Number of due timers to hold in memory at a time."""


@dataclass(frozen=True)
class DueTimers:
    """Timers that are due, in order of time for each key.

    Attributes:
        of: the number of the key of each timer.
        starts, ends: its window.
        times: its time. All are milliseconds since 1970.
    """

    of: Integers
    starts: Integers
    ends: Integers
    times: Integers

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

    def register_all(self, domain: TimeDomain, windows: KeyedStateBatch, times: Integers) -> None:
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

    def delete_all(self, domain: TimeDomain, windows: KeyedStateBatch, times: Integers) -> None:
        """Deletes the timers of windows that exist; arguments as for `register_all`."""
        stored = windows.stored_keys(TIMER_IDS[domain], encode_times(times))
        self._context.pending |= dict.fromkeys(stored)

    def fire(self, domain: TimeDomain, until: int) -> Iterator[DueKeys]:
        """Yields the timers of all keys up to `until` in order of time, those registered meanwhile included.

        They are deleted when they are yielded. Write the pending changes between two parts.
        """
        while groups := self._index.times[domain].take_due(until, self._owned):
            current = Firing(domain, until)
            found = self._in_order([self._scan(current, *group) for group in groups.items()])
            while entries := list(islice(found, _AT_ONCE)):
                self._delete(domain, entries)
                yield self._by_key(entries)

    def fire_of_keys(self, groups: Sequence[bytes], keys: Sequence[bytes], until: Integers) -> DueTimers:
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
        of_group: dict[bytes, dict[bytes, int]] = {}
        for number, (group, key) in enumerate(zip(groups, keys, strict=True)):
            of_group.setdefault(group, {})[key] = number
        found: list[bytes] = []
        of: list[int] = []
        for group, numbers in of_group.items():
            first = times.get(group)
            if first is not None and first <= latest:
                times.remove(group)
                self._take_due(group, numbers, (first, until), (found, of))
        self._context.pending |= dict.fromkeys(found)
        starts, ends = self._windows(found)
        fire_times = decode_times(b"".join([stored[KEY_OFFSET:_STORED_KEY] for stored in found]))
        return DueTimers(np.array(of, np.int64), starts, ends, fire_times)

    def _take_due(
        self, group: bytes, numbers: dict[bytes, int], times: tuple[int, Integers], taken: tuple[list[bytes], list[int]]
    ) -> None:
        """Adds the due timers of some keys of a key group to `taken`, and the others that it reads to the index.

        Args:
            numbers: numbers of the keys.
            times: the earliest time to read, and the time up to which the timers of each key are due.
            taken: stored timers, and the numbers of their keys.
        """
        (start, until), index = times, self._index.times[TimeDomain.EVENT_TIME]
        limits = encode_times(until)
        latest = max(map(limits.__getitem__, numbers.values()))
        prefix = group + TIMER_IDS[TimeDomain.EVENT_TIME]
        first = prefix + encode_times(np.array([start]))[0]
        rest: bytes | None = None
        for stored, _ in self._context.backend.scan_range(first, after_prefix(prefix)):
            time = stored[KEY_OFFSET:_STORED_KEY]
            number = numbers.get(stored[_STORED_KEY : -self._namespace_bytes])
            if number is not None and time <= limits[number]:
                taken[0].append(stored)
                taken[1].append(number)
                continue
            rest = rest or time
            if time > latest:
                break
        if rest is not None:
            index.add(group, int(decode_times(rest)[0]))

    def _in_order(self, parts: list[Iterator[bytes]]) -> Iterator[bytes]:
        """Returns sorted parts as one; sorts them at once if they are small, which is several times faster."""
        at_once = _AT_ONCE // max(len(parts), 1) + 1
        heads = [list(islice(part, at_once)) for part in parts]
        if all(len(head) < at_once for head in heads):
            return iter(sorted(chain.from_iterable(heads)))
        return heapq.merge(*(chain(head, part) for head, part in zip(heads, parts, strict=True)))

    def _delete(self, domain: TimeDomain, entries: list[bytes]) -> None:
        self._context.pending |= dict.fromkeys([stored_timer(domain, entry) for entry in entries])

    def _by_key(self, entries: list[bytes]) -> DueKeys:
        addresses = [entry[8 : -self._namespace_bytes] for entry in entries]
        numbers = {address: number for number, address in enumerate(dict.fromkeys(addresses))}
        of = np.fromiter(map(numbers.__getitem__, addresses), np.int64, len(entries))
        starts, ends = self._windows(entries)
        timers = DueTimers(of, starts, ends, decode_times(b"".join([entry[:8] for entry in entries])))
        return DueKeys([each[:2] for each in numbers], [each[2:] for each in numbers], timers)

    def _windows(self, stored: list[bytes]) -> tuple[Integers, Integers]:
        if self._namespace_bytes != WINDOW_BYTES:
            return np.zeros(len(stored), np.int64), np.zeros(len(stored), np.int64)
        return decode_windows(b"".join([each[-WINDOW_BYTES:] for each in stored]))
