"""Time to live: when an entry has expired, and the index in which expired entries are found without looking at state.

A stored value carries the moment from which it lives, not the one at which it expires, and the kind of time that it is
of: so a time to live can be added, changed and removed on restore. The index has an entry for each of them,
``key group | expiry id | moment (8 bytes) | rest of the stored key``, and is a hint: whoever finds an entry through it
looks at the value before removing it.
"""

from __future__ import annotations

import struct
from typing import Any

from stateflow.serializers import moment_of, with_moment
from stateflow.state.changes import ABSENT
from stateflow.state.current import ADDRESS_BYTES, CurrentKey, state_id
from stateflow.state.handles import StateSchema
from stateflow.time_to_live import StateTtlConfig

_EVENT = StateTtlConfig.TtlTimeCharacteristic.EventTime.value
_GROUP_BYTES, _MOMENT_BYTES = 2, 8
_ZERO = 1 << 63


_INDEXES = {"processing": "expiry", "event": "event expiry"}
"""By kind of time: moments of two clocks in one index would be in no order."""


def expiry_id(name: str, time: str) -> bytes:
    """What stands in the place of the state id in a state's expiry entries of a kind of time."""
    return state_id(f"{name}\0{_INDEXES[time]}")


def expiry_ids(name: str) -> tuple[bytes, ...]:
    """Those of both."""
    return tuple(expiry_id(name, time) for time in _INDEXES)


class Ttl:
    """The time to live of one state's entries, in one batch.

    Args:
        entries: what the state works on.
        name: of the state.
        config: as it is declared now.
        stored: the state as the base knows it; None when it is new.
    """

    def __init__(
        self, entries: CurrentKey, name: str, config: StateTtlConfig, stored: StateSchema | None
    ) -> None:
        self.config = config
        self.characteristic = config.ttl_time_characteristic.value
        self.id = expiry_id(name, self.characteristic)
        (self.other_id,) = set(expiry_ids(name)) - {self.id}
        self.has_other_index = _has_other_index(stored, self.characteristic)
        """Whether there may be expiry entries from when it lived in the other kind of time."""
        self.clock = entries.clock if self.characteristic == _EVENT else None
        """By which entries live; None for those that live by processing time."""
        self._processing_time = entries.time.processing_time
        self.since = self.now
        """Since then the state has had a time to live, in this kind of time. What was written before, with a moment or
        without, counts from here. None while there is no time."""
        self.always = stored is None and self.clock is not None
        """Whether nothing was written before, in event time: then each moment counts as it is. In processing time the
        clock may have gone back, and an earlier moment would shorten a life."""
        if stored is not None and stored.ttl_time == self.characteristic:
            self.always = stored.ttl_always
            self.since = self.since if stored.ttl_since is None else stored.ttl_since
        self.returns_expired = (
            config.state_visibility is StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp
        )
        self._renews = config.update_type is StateTtlConfig.UpdateType.OnReadAndWrite
        self._milliseconds = config.milliseconds
        self._entries = entries

    @property
    def now(self) -> int | None:
        """The time that decides whether an entry has expired."""
        return self._processing_time if self.clock is None else self.clock.now

    def _now_written(self) -> int | None:
        """The time from which an entry lives that is written now."""
        return self._processing_time if self.clock is None else self.clock.of_write()

    def lives_from(self, data: bytes) -> int | None:
        """The moment from which an entry counts; None for one without a moment while there is no time."""
        moment = self._moment_of(data)
        if moment is None:
            return self.since
        return moment if self.always or self.since is None else max(moment, self.since)

    def _moment_of(self, data: bytes) -> int | None:
        return moment_of(data, self.characteristic)

    def expired(self, data: bytes) -> bool:
        """Whether an entry's time is over."""
        begin = self.lives_from(data)
        return begin is not None and self.is_over(begin)

    def is_over(self, begin: int) -> bool:
        """Whether the time of what lives from `begin` is over."""
        now = self.now
        return now is not None and begin + self._milliseconds <= now

    def admit(self, key: bytes, data: bytes) -> bool:
        """Reads an entry: whether it may be seen. An expired one is removed; one that lives may live on for it."""
        if self.expired(data):
            self.remove(key, data)
            return self.returns_expired
        if self._renews:
            self._renew(key, data)
        return True

    def admit_scanned(self, key: bytes, data: bytes) -> bool:
        """The same for an entry of a scan, which may have been changed since the scan began."""
        if not self._renews and not self.expired(data):
            return True
        if self._entries.read(key) != data:
            return self.returns_expired or not self.expired(data)
        admitted = self.admit(key, data)
        self._entries.write_some()
        return admitted

    def write(self, key: bytes, data: bytes, old: Any) -> None:
        """Sets an entry, which lives from now on; in event time at least from where it has lived from.

        Args:
            old: its bytes until now, None without any, `ABSENT` when that is not known. Then it is read for event
                time; for processing time its index entry stays until a clean-up comes to it.
        """
        if old is ABSENT:
            old = None if self.clock is None else self._entries.read(key)
        now = self._now_written()
        begin = self.since if now is None else now
        before = None if old is None else self._moment_of(old)
        if begin is None:
            self._entries.pending[key] = data
            return
        if self.clock is not None and before is not None:
            # A timer may fire after later rows of its key, and an earlier row may come after them: they count as well.
            begin = max(begin, before)
        self._entries.pending[key] = with_moment(data, begin, self.characteristic)
        if before != begin:
            self._forget(key, before)
        self._entries.pending[self.index_key(begin, key)] = b""

    def remove(self, key: bytes, old: Any) -> None:
        """Removes an entry; `old` as in `write`, but nothing is read."""
        self._entries.pending[key] = None
        self._forget(key, None if old in (None, ABSENT) else self._moment_of(old))

    def index_key(self, moment: int, key: bytes) -> bytes:
        """The expiry entry of what is stored under `key` and lives from `moment`."""
        return key[:_GROUP_BYTES] + self.id + struct.pack(">Q", moment + _ZERO) + key[ADDRESS_BYTES:]

    def _renew(self, key: bytes, data: bytes) -> None:
        moment = self._moment_of(data)
        now = self._now_written()
        if now is not None and (moment is None or moment < now):
            self.write(key, data, data)

    def _forget(self, key: bytes, moment: int | None) -> None:
        if moment is not None:
            self._entries.pending[self.index_key(moment, key)] = None


def indexed(index_key: bytes, state: bytes) -> tuple[int, bytes]:
    """The moment in an expiry entry's key, and the stored key of the entry of `state` that it stands for."""
    at = ADDRESS_BYTES + _MOMENT_BYTES
    (moment,) = struct.unpack(">Q", index_key[ADDRESS_BYTES:at])
    return moment - _ZERO, index_key[:_GROUP_BYTES] + state + index_key[at:]


def _has_other_index(stored: StateSchema | None, time: str) -> bool:
    return stored is not None and stored.ttl_index and (stored.ttl_other_index or stored.ttl_time != time)
