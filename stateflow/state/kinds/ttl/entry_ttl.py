"""Time to live (TTL) of state entries: expiry, and the index of expiry entries.

A stored value carries the timestamp that its TTL counts from, not the time at which it expires, and the time domain of
that timestamp. So a TTL can be added, changed or removed on restore. For each value the index has an expiry entry
``key group | expiry id | timestamp (8 bytes) | rest of the stored key``, so that expired values are found without
scanning the state. The index is a hint: check the value itself before removing it.
"""

from __future__ import annotations

import struct

from stateflow.errors import CorruptFile
from stateflow.state.handles import StateSchema
from stateflow.state.kinds.key_context import KEY_OFFSET, KeyContext, state_id
from stateflow.state.kinds.write_buffer import ABSENT, Absent
from stateflow.types.serializers import timestamp_of, with_timestamp
from stateflow.types.ttl_config import StateTtlConfig

_EVENT = StateTtlConfig.TtlTimeCharacteristic.EventTime.value
_GROUP_BYTES, _TIMESTAMP_BYTES = 2, 8
_ZERO = 1 << 63

_INDEX_NAMES = {"processing": "expiry", "event": "event expiry"}
"""One index per time domain: timestamps of two clocks cannot be ordered in one index."""


def expiry_id(name: str, time: str) -> bytes:
    """Returns the id that replaces the state id in a state's expiry entries of one time domain.

    Args:
        name: name of the state.
        time: ``processing`` or ``event``.
    """
    return state_id(f"{name}\0{_INDEX_NAMES[time]}")


def expiry_ids(name: str) -> tuple[bytes, ...]:
    """Returns the expiry ids of a state in both time domains."""
    return tuple(expiry_id(name, time) for time in _INDEX_NAMES)


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
        self._context.pending[self.index_key(start, key)] = b""

    def remove(self, key: bytes, old: bytes | Absent | None) -> None:
        """Removes an entry; `old` as for `write`, but an unknown value is not read."""
        self._context.pending[key] = None
        self._remove_index_entry(key, None if old is None or old is ABSENT else timestamp_of(old, self.characteristic))

    def index_key(self, timestamp: int, key: bytes) -> bytes:
        """Returns the key of the expiry entry for the value at `key` with this timestamp."""
        return key[:_GROUP_BYTES] + self.id + struct.pack(">Q", timestamp + _ZERO) + key[KEY_OFFSET:]

    def _renew(self, key: bytes, data: bytes, row: int | None) -> None:
        timestamp = timestamp_of(data, self.characteristic)
        now = self._write_time(row)
        if now is not None and (timestamp is None or timestamp < now):
            self.write(key, data, data, row)

    def _remove_index_entry(self, key: bytes, timestamp: int | None) -> None:
        if timestamp is not None:
            self._context.pending[self.index_key(timestamp, key)] = None


def decode_index_key(index_key: bytes, state: bytes) -> tuple[int, bytes]:
    """Returns the timestamp in an expiry entry's key, and the stored key of the value that it refers to.

    Args:
        index_key: key of the expiry entry.
        state: the state id.

    Raises CorruptFile.
    """
    end = KEY_OFFSET + _TIMESTAMP_BYTES
    if len(index_key) < end:
        raise CorruptFile(
            "a stored expiry entry has no timestamp", hint="restore an older checkpoint", key=index_key.hex()[:80]
        )
    (timestamp,) = struct.unpack(">Q", index_key[KEY_OFFSET:end])
    return timestamp - _ZERO, index_key[:_GROUP_BYTES] + state + index_key[end:]


def _has_other_index(stored: StateSchema | None, time: str) -> bool:
    return stored is not None and stored.ttl_index and (stored.ttl_other_index or stored.ttl_time != time)
