"""Removal of expired entries: a bounded number per batch, or all of them for a full snapshot."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from itertools import islice, takewhile

from stateflow.state.backends.base import KeyedStateBackend
from stateflow.state.kinds.state_registry import StateRegistry
from stateflow.state.kinds.ttl.entry_ttl import Ttl, decode_index_key, expiry_ids
from stateflow.types.key_groups import KeyGroupRange

_CHUNK = 1000
_SCAN_COST = 3
"""The cost of starting a scan in RocksDB, in units of one removed entry."""


class TtlCleanup:
    """Cleanup of the expired entries of one subtask's states. No changes may be pending when it runs.

    Args:
        groups: the key groups of the subtask.
        epoch: epoch of the batch; it selects the first key group to clean, so that the groups take turns.
        registry: the declared states.
    """

    def __init__(self, backend: KeyedStateBackend, groups: KeyGroupRange, epoch: int, registry: StateRegistry) -> None:
        self._entries = _ExpiredEntries(backend, groups, epoch)
        self._registry = registry

    def remove_some(self, limit: int) -> None:
        """Removes a bounded number of expired entries of each state.

        Args:
            limit: maximum work per state, unless the state's TTL configuration sets `cleanup_entries`. An expiry entry
                that is due, or that belongs to the other time domain, costs 1; the scan of a key group costs 3. At
                least one key group is scanned.
        """
        for name, state in self._registry.states.items():
            ttl = state.ttl
            if ttl is not None and ttl.config.background_cleanup:
                self._entries.remove_some(state.id, ttl, ttl.config.cleanup_entries or limit)
            elif ttl is None and self._had_ttl(name):
                for expiry in expiry_ids(name):
                    self._entries.drop_some_of_index(expiry, limit)

    def remove_all(self) -> None:
        """Removes all expired entries, by reading the whole state; for a full snapshot, which reads it anyway."""
        for name, state in self._registry.states.items():
            if state.ttl is not None:
                self._entries.remove_all(state.id, state.ttl)
            elif self._had_ttl(name):
                for expiry in expiry_ids(name):
                    self._entries.drop_index(expiry)

    def shortest_ttl(self) -> int | None:
        """Returns the shortest TTL in processing time of the states with cleanup, in milliseconds; None without one."""
        return min((ttl.config.milliseconds for _, ttl in self._in_processing_time()), default=None)

    def first_expiry(self) -> int | None:
        """Returns a lower bound for the time at which an entry with a TTL in processing time expires, in milliseconds.

        None without such entries. Reads the first expiry entry of each key group and state.
        """
        found = (self._entries.first_expiry(state, ttl) for state, ttl in self._in_processing_time())
        return min((first for first in found if first is not None), default=None)

    def _in_processing_time(self) -> Iterator[tuple[bytes, Ttl]]:
        for state in self._registry.states.values():
            ttl = state.ttl
            if ttl is not None and ttl.clock is None and ttl.config.background_cleanup:
                yield state.id, ttl

    def _had_ttl(self, name: str) -> bool:
        stored = self._registry.stored.get(name)
        return stored is not None and stored.ttl_index


class _ExpiredEntries:
    """The expired entries in one subtask's key groups; arguments as for `TtlCleanup`."""

    def __init__(self, backend: KeyedStateBackend, groups: KeyGroupRange, epoch: int) -> None:
        self._backend = backend
        self._groups = groups
        self._epoch = epoch

    def remove_some(self, state: bytes, ttl: Ttl, limit: int) -> None:
        """Removes some expired entries of the state with the id `state`."""
        for group in self._rotated_groups(limit):
            moved = self._move_to_index(group, state, ttl, limit)
            limit -= _SCAN_COST + moved + self._remove_due(group, state, ttl, limit)
            if limit <= 0:
                return

    def remove_all(self, state: bytes, ttl: Ttl) -> None:
        """Removes every expired entry of a state, by a scan: values from before it had a TTL are in no index."""
        for group in self._all_groups():
            while self._move_to_index(group, state, ttl, _CHUNK):
                pass
            while self._remove_due(group, state, ttl, _CHUNK):
                pass
            self._remove_keys(key for key, data in self._backend.scan(group + state) if ttl.is_expired(data))

    def first_expiry(self, state: bytes, ttl: Ttl) -> int | None:
        """Returns the time at which the first expiry entry of a state is due, in milliseconds; None without any."""
        found = (next(self._backend.scan(group + ttl.id), None) for group in self._all_groups())
        starts = (decode_index_key(first[0], state)[0] for first in found if first is not None)
        start = min(starts, default=None)
        return None if start is None else start + ttl.config.milliseconds

    def drop_some_of_index(self, expiry: bytes, limit: int) -> None:
        """Removes some expiry entries of a state that no longer has a TTL."""
        for group in self._rotated_groups(limit):
            found = [key for key, _ in islice(self._backend.scan(group + expiry), limit)]
            self._backend.write(dict.fromkeys(found))
            limit -= _SCAN_COST + len(found)
            if limit <= 0:
                return

    def drop_index(self, expiry: bytes) -> None:
        """Removes every expiry entry of a state that no longer has a TTL."""
        for group in self._all_groups():
            self._remove_keys(key for key, _ in self._backend.scan(group + expiry))

    def _remove_keys(self, keys: Iterator[bytes]) -> None:
        while chunk := list(islice(keys, _CHUNK)):
            self._backend.write(dict.fromkeys(chunk))

    def _move_to_index(self, group: bytes, state: bytes, ttl: Ttl, limit: int) -> int:
        """Moves expiry entries of a key group from the other time domain's index to this one's.

        Returns:
            The number of entries moved, at most `limit`.
        """
        if not ttl.has_other_index or ttl.since is None:
            return 0
        found = [key for key, _ in islice(self._backend.scan(group + ttl.other_id), limit)]
        changes: dict[bytes, bytes | None] = dict.fromkeys(found)
        keys = [decode_index_key(key, state)[1] for key in found]
        for key, data in zip(keys, self._backend.multi_get(keys), strict=True):
            start = None if data is None else ttl.ttl_start(data)
            if start is not None:
                changes[ttl.index_key(start, key)] = b""
        self._backend.write(changes)
        return len(found)

    def _remove_due(self, group: bytes, state: bytes, ttl: Ttl, limit: int) -> int:
        """Processes due expiry entries of a key group; returns their number, at most `limit`."""
        scanned = ((key, *decode_index_key(key, state)) for key, _ in self._backend.scan(group + ttl.id))
        due = list(islice(takewhile(lambda found: ttl.is_elapsed(found[1]), scanned), limit))
        if not due:
            return 0
        changes: dict[bytes, bytes | None] = {}
        stored = self._backend.multi_get([key for _, _, key in due])
        for (index_key, timestamp, key), data in zip(due, stored, strict=True):
            changes[index_key] = None
            if data is None:
                continue
            start = ttl.ttl_start(data)
            assert start is not None  # a watermark exists, otherwise no entry would be due
            if ttl.is_elapsed(start):
                changes[key] = None
            elif start != timestamp:
                # Written again, or written before the state had this TTL, or while a host's clock was ahead.
                changes[ttl.index_key(start, key)] = b""
        self._backend.write(changes)
        return len(due)

    def _rotated_groups(self, limit: int) -> Iterator[bytes]:
        """Yields all key groups, starting at a different group in each batch.

        The first groups of two batches are about as far apart as the number of groups that one batch can scan. This
        distance has no common divisor with the number of groups, so every group is the first one in some batch.
        """
        count = len(self._groups)
        step = min(max(1, limit // _SCAN_COST), count)
        while math.gcd(step, count) > 1:
            step += 1
        start = self._epoch * step % count
        return (self._group((start + at) % count) for at in range(count))

    def _all_groups(self) -> Iterator[bytes]:
        return (self._group(at) for at in range(len(self._groups)))

    def _group(self, at: int) -> bytes:
        return struct.pack(">H", self._groups.first + at)
