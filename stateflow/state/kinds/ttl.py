"""Time to live (TTL) of state entries: their expiry and its index, and the removal of expired entries.

`TtlCleanup` removes a bounded number of entries per batch, or all of them for a full snapshot.

A stored value carries the timestamp that its TTL counts from, not the time at which it expires, and the time domain of
that timestamp. So a TTL can be added, changed or removed on restore. For each value the index has an expiry entry
(`stored_key`), so that expired values are found without scanning the state. The index is a hint: check the value itself
before removing it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import islice, takewhile
from typing import Protocol

from stateflow.state.backends.base import KeyedStateBackend
from stateflow.state.handles import StateSchema
from stateflow.state.kinds.key_context import ABSENT, Absent, KeyContext
from stateflow.state.stored_key import decode_expiry_key, encode_expiry_key, encode_group, expiry_id, expiry_ids
from stateflow.types.key_groups import KeyGroupRange
from stateflow.types.serializers import timestamp_of, with_timestamp
from stateflow.types.ttl_config import StateTtlConfig

_EVENT = StateTtlConfig.TtlTimeCharacteristic.EventTime.value


class Ttl:
    """The TTL of one state's entries, in one batch.

    Args:
        context: current key, clock and pending changes.
        name: name of the state.
        config: the TTL configuration that the job declares.
        stored: the schema in the base checkpoint; None for a new state.

    Attributes:
        clock: the event time; None for a TTL in processing time.
        since: the time since which the state has had a TTL in this time domain, in milliseconds. The TTL of every
            older entry, with or without a timestamp, counts from here. None while there is no watermark.
        always: whether timestamps are used as they are, and not raised to `since`; see `StateSchema.ttl_always`.
        has_other_index: whether expiry entries of the other time domain may exist.
        returns_expired: whether reads return expired entries that still exist.
    """

    def __init__(self, context: KeyContext, name: str, config: StateTtlConfig, stored: StateSchema | None) -> None:
        self.config = config
        self.characteristic = config.ttl_time_characteristic.value
        self.id = expiry_id(name, self.characteristic)
        (self.other_id,) = set(expiry_ids(name)) - {self.id}
        self.has_other_index = _has_other_index(stored, self.characteristic)
        self.clock = context.clock if self.characteristic == _EVENT else None
        self._processing_time = context.time.processing_time
        self.since = self.now
        # Not in processing time: a host's clock may have gone back, and an earlier timestamp would shorten the TTL.
        self.always = stored is None and self.clock is not None
        if stored is not None and stored.ttl_time == self.characteristic:
            self.always = stored.ttl_always
            self.since = self.since if stored.ttl_since is None else stored.ttl_since
        self.returns_expired = config.state_visibility is StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp
        self._renews = config.update_type is StateTtlConfig.UpdateType.OnReadAndWrite
        self._milliseconds = config.milliseconds
        self._context = context

    @property
    def now(self) -> int | None:
        """The time that expiry is compared with, in milliseconds; None before the first watermark."""
        return self._processing_time if self.clock is None else self.clock.now

    def _write_time(self, row: int | None) -> int | None:
        return self._processing_time if self.clock is None else self.clock.write_time(row)

    def ttl_start(self, data: bytes) -> int | None:
        """Returns the time that an entry's TTL counts from, in milliseconds; None before the first watermark."""
        timestamp = timestamp_of(data, self.characteristic)
        if timestamp is None:
            return self.since
        return timestamp if self.always or self.since is None else max(timestamp, self.since)

    def is_expired(self, data: bytes) -> bool:
        """Returns whether an entry has expired."""
        start = self.ttl_start(data)
        return start is not None and self.is_elapsed(start)

    def is_elapsed(self, start: int) -> bool:
        """Returns whether a TTL that counts from `start` has elapsed."""
        now = self.now
        return now is not None and start + self._milliseconds <= now

    def on_read(self, key: bytes, data: bytes, row: int | None = None) -> bool:
        """Applies the TTL to an entry that is read: removes an expired one, renews another one if so configured.

        Args:
            key: the stored key.
            data: the value.
            row: the event time of the row that reads, in milliseconds since 1970; None for the current row.

        Returns:
            Whether the entry is visible.
        """
        if self.is_expired(data):
            self.remove(key, data)
            return self.returns_expired
        if self._renews:
            self._renew(key, data, row)
        return True

    def on_scan(self, key: bytes, data: bytes, row: int | None = None) -> bool:
        """Applies the TTL to an entry of a scan, which may have changed since the scan began; see `on_read`."""
        if not self._renews and not self.is_expired(data):
            return True
        if self._context.read(key) != data:
            return self.returns_expired or not self.is_expired(data)
        visible = self.on_read(key, data, row)
        self._context.write_through_if_many()
        return visible

    def write(self, key: bytes, data: bytes, old: bytes | Absent | None, row: int | None = None) -> None:
        """Sets an entry with the current time as its timestamp; in event time, its timestamp never decreases.

        Args:
            key: the stored key.
            data: the new value.
            old: the previous value, None without one, `ABSENT` if unknown. An unknown value is read for event time;
                for processing time its expiry entry remains until the cleanup reaches it.
            row: the event time of the row that is written, in milliseconds since 1970; None for the current row.
        """
        if old is ABSENT:
            old = None if self.clock is None else self._context.read(key)
        now = self._write_time(row)
        start = self.since if now is None else now
        before = None if old is None else timestamp_of(old, self.characteristic)
        if start is None:
            self._context.pending[key] = data
            return
        if self.clock is not None and before is not None:
            # A timer may fire after later rows of its key, and an earlier row may arrive after them: they count too.
            start = max(start, before)
        self._context.pending[key] = with_timestamp(data, start, self.characteristic)
        if before != start:
            self._remove_index_entry(key, before)
        self._context.pending[encode_expiry_key(key, self.id, start)] = b""

    def remove(self, key: bytes, old: bytes | Absent | None) -> None:
        """Removes an entry; `old` as for `write`, but an unknown value is not read."""
        self._context.pending[key] = None
        self._remove_index_entry(key, None if old is None or old is ABSENT else timestamp_of(old, self.characteristic))

    def _renew(self, key: bytes, data: bytes, row: int | None) -> None:
        timestamp = timestamp_of(data, self.characteristic)
        now = self._write_time(row)
        if now is not None and (timestamp is None or timestamp < now):
            self.write(key, data, data, row)

    def _remove_index_entry(self, key: bytes, timestamp: int | None) -> None:
        if timestamp is not None:
            self._context.pending[encode_expiry_key(key, self.id, timestamp)] = None


def _has_other_index(stored: StateSchema | None, time: str) -> bool:
    return stored is not None and stored.ttl_index and (stored.ttl_other_index or stored.ttl_time != time)


_CHUNK = 1000
_SCAN_COST = 3
"""The cost of starting a scan in RocksDB, in units of one removed entry."""


class ExpiringState(Protocol):
    """A declared state whose entries may expire."""

    id: bytes
    ttl: Ttl | None


class TtlCleanup:
    """Cleanup of the expired entries of one subtask's states. No changes may be pending when it runs.

    Args:
        groups: the key groups of the subtask.
        epoch: epoch of the batch; it selects the first key group to clean, so that the groups take turns.
        states: the declared states by name.
        stored: their schemas in the checkpoint that the subtask starts from, by name.
    """

    def __init__(
        self,
        backend: KeyedStateBackend,
        groups: KeyGroupRange,
        epoch: int,
        *,
        states: Mapping[str, ExpiringState],
        stored: Mapping[str, StateSchema],
    ) -> None:
        self._entries = _ExpiredEntries(backend, groups, epoch)
        self._states = states
        self._stored = stored

    def remove_some(self, limit: int) -> None:
        """Removes a bounded number of expired entries of each state.

        Args:
            limit: maximum work per state, unless the state's TTL configuration sets `cleanup_entries`. An expiry entry
                that is due, or that belongs to the other time domain, costs 1; the scan of a key group costs 3. At
                least one key group is scanned.
        """
        for name, state in self._states.items():
            ttl = state.ttl
            if ttl is not None and ttl.config.background_cleanup:
                self._entries.remove_some(state.id, ttl, ttl.config.cleanup_entries or limit)
            elif ttl is None and self._had_ttl(name):
                for expiry in expiry_ids(name):
                    self._entries.drop_some_of_index(expiry, limit)

    def remove_all(self) -> None:
        """Removes all expired entries, by reading the whole state; for a full snapshot, which reads it anyway."""
        for name, state in self._states.items():
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
        for state in self._states.values():
            ttl = state.ttl
            if ttl is not None and ttl.clock is None and ttl.config.background_cleanup:
                yield state.id, ttl

    def _had_ttl(self, name: str) -> bool:
        stored = self._stored.get(name)
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
        starts = (decode_expiry_key(first[0], state)[0] for first in found if first is not None)
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
        keys = [decode_expiry_key(key, state)[1] for key in found]
        for key, data in zip(keys, self._backend.multi_get(keys), strict=True):
            start = None if data is None else ttl.ttl_start(data)
            if start is not None:
                changes[encode_expiry_key(key, ttl.id, start)] = b""
        self._backend.write(changes)
        return len(found)

    def _remove_due(self, group: bytes, state: bytes, ttl: Ttl, limit: int) -> int:
        """Processes due expiry entries of a key group; returns their number, at most `limit`."""
        scanned = ((key, *decode_expiry_key(key, state)) for key, _ in self._backend.scan(group + ttl.id))
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
                changes[encode_expiry_key(key, ttl.id, start)] = b""
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
        return encode_group(self._groups.first + at)
