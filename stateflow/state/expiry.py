"""Removing what has expired: a bounded slice per batch, or all of it for a full snapshot."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from itertools import islice, takewhile

from stateflow.keygroups import KeyGroupRange
from stateflow.state.backend import KeyedStateBackend
from stateflow.state.ttl import Ttl, indexed

_SLICE = 1000
_LOOK = 3
"""What it costs to begin a scan in RocksDB, measured in entries removed."""


class CleanUp:
    """Cleans the entries of a subtask's key groups.

    Args:
        groups: the key groups that the subtask owns.
        epoch: of the batch; where a slice begins depends on it, so that none is always left out.
    """

    def __init__(self, backend: KeyedStateBackend, groups: KeyGroupRange, epoch: int) -> None:
        self._backend = backend
        self._groups = groups
        self._epoch = epoch

    def remove_some(self, state: bytes, ttl: Ttl, limit: int) -> None:
        """Removes expired entries of the state with the id `state`. An expiry entry that is due, or is of another kind
        of time, counts one towards `limit`, a look at a key group three; there is one look at least."""
        for group in self._rotated(limit):
            moved = self._move_group(group, state, ttl, limit)
            limit -= _LOOK + moved + self._clean_group(group, state, ttl, limit)
            if limit <= 0:
                return

    def remove_all(self, state: bytes, ttl: Ttl) -> None:
        """Removes every expired entry; looks at the whole state, since what was written before it had a time to live
        is in no index."""
        for group in self._all():
            while self._move_group(group, state, ttl, _SLICE):
                pass
            while self._clean_group(group, state, ttl, _SLICE):
                pass
            expired = (key for key, data in self._backend.scan(group + state) if ttl.expired(data))
            while some := list(islice(expired, _SLICE)):
                self._backend.write(dict.fromkeys(some))

    def drop_index(self, expiry: bytes, limit: int) -> None:
        """Removes expiry entries of a state that has no time to live any more; `limit` as above."""
        for group in self._rotated(limit):
            found = [key for key, _ in islice(self._backend.scan(group + expiry), limit)]
            self._backend.write(dict.fromkeys(found))
            limit -= _LOOK + len(found)
            if limit <= 0:
                return

    def drop_all(self, expiry: bytes) -> None:
        """Removes every expiry entry of a state that has no time to live any more."""
        for group in self._all():
            found = (key for key, _ in self._backend.scan(group + expiry))
            while some := list(islice(found, _SLICE)):
                self._backend.write(dict.fromkeys(some))

    def _move_group(self, group: bytes, state: bytes, ttl: Ttl, limit: int) -> int:
        """Enters in this kind of time some entries of a key group that are in the index of the other; returns how
        many."""
        if not ttl.has_other_index or ttl.since is None:
            return 0
        found = [key for key, _ in islice(self._backend.scan(group + ttl.other_id), limit)]
        changes: dict[bytes, bytes | None] = dict.fromkeys(found)
        keys = [indexed(key, state)[1] for key in found]
        for key, data in zip(keys, self._backend.multi_get(keys), strict=True):
            begin = None if data is None else ttl.lives_from(data)
            if begin is not None:
                changes[ttl.index_key(begin, key)] = b""
        self._backend.write(changes)
        return len(found)

    def _clean_group(self, group: bytes, state: bytes, ttl: Ttl, limit: int) -> int:
        """Works off due expiry entries of a key group; returns how many."""
        scanned = ((key, *indexed(key, state)) for key, _ in self._backend.scan(group + ttl.id))
        due = list(islice(takewhile(lambda found: ttl.is_over(found[1]), scanned), limit))
        if not due:
            return 0
        changes: dict[bytes, bytes | None] = {}
        stored = self._backend.multi_get([key for _, _, key in due])
        for (index_key, moment, key), data in zip(due, stored, strict=True):
            changes[index_key] = None
            if data is None:
                continue
            begin = ttl.lives_from(data)
            assert begin is not None  # there is a time, or nothing would be due
            if ttl.is_over(begin):
                changes[key] = None
            elif begin != moment:
                # Written again, or from before the state had this time to live, or when a clock had gone back.
                changes[ttl.index_key(begin, key)] = b""
        self._backend.write(changes)
        return len(due)

    def _rotated(self, limit: int) -> Iterator[bytes]:
        """Key groups from one on that differs by batch. The step between two batches' first ones is about what a batch
        can look at, and has no divisor in common with their number: each is the first one now and then."""
        count = len(self._groups)
        step = min(max(1, limit // _LOOK), count)
        while math.gcd(step, count) > 1:
            step += 1
        start = self._epoch * step % count
        return (self._bytes((start + at) % count) for at in range(count))

    def _all(self) -> Iterator[bytes]:
        return (self._bytes(at) for at in range(len(self._groups)))

    def _bytes(self, at: int) -> bytes:
        return struct.pack(">H", self._groups.first + at)
