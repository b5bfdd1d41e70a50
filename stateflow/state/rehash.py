"""Computes the key group of stored entries for another max parallelism."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stateflow.errors import CorruptFile
from stateflow.state.backends.entry_stream import GROUP_BYTES
from stateflow.state.columnar.binary_columns import from_parts, parts_of
from stateflow.state.columnar.key_hashes import PADDING, Bytes, Numbers, hash_keys
from stateflow.state.kinds.key_context import KEY_OFFSET, state_id
from stateflow.state.kinds.timers import TIMER_IDS
from stateflow.state.kinds.ttl.entry_ttl import expiry_ids
from stateflow.types.key_encoding import decode_key_parts, has_key_at
from stateflow.types.key_groups import key_group

Groups = NDArray[np.uint16]

_TIME_BYTES = 8


class Rehash:
    """Gives stored keys of one operator the key group that they have with another max parallelism.

    Args:
        key_types: Spark's names of the types of the key columns.
        states: names of the operator's states.
        max_parallelism: the new number of key groups.
    """

    def __init__(self, key_types: Sequence[str], states: Iterable[str], max_parallelism: int) -> None:
        names = list(states)
        self._types = key_types
        self._max_parallelism = max_parallelism
        at_times = [*TIMER_IDS.values(), *(i for name in names for i in expiry_ids(name))]
        self._offsets = {state_id(name): KEY_OFFSET for name in names}
        self._offsets |= dict.fromkeys(at_times, KEY_OFFSET + _TIME_BYTES)
        ids = sorted(self._offsets)
        self._ids = np.frombuffer(b"".join(ids), ">u4")
        self._offset_of_id = np.array([self._offsets[i] for i in ids])
        self._last: tuple[bytes, int] | None = None

    def __call__(self, stored: pa.LargeBinaryArray) -> tuple[pa.LargeBinaryArray, Groups]:
        """Returns stored keys with their new key groups, and these groups.

        Raises:
            CorruptFile: a key is of no state of the operator, or does not decode.
        """
        data, offsets = _copied(stored)
        starts, ends = offsets[:-1], offsets[1:]
        keys = np.minimum(starts + self._key_offsets(data, starts), ends)
        hashes, valid = hash_keys(data, keys, ends, self._types)
        groups = (hashes % self._max_parallelism).astype(np.uint16)
        for row in np.flatnonzero(~valid).tolist():
            groups[row] = self._group(data[starts[row] : ends[row]].tobytes())
        data[starts], data[starts + 1] = groups >> 8, groups & 0xFF
        return from_parts(data, offsets), groups

    def _key_offsets(self, data: Bytes, starts: Numbers) -> Numbers:
        """Returns the offset of the key in each stored key; any offset after the end if it is of no state."""
        ids = np.ndarray(len(data) - 3, ">u4", data, strides=(1,))[starts + GROUP_BYTES]
        found = np.searchsorted(self._ids, ids)
        found[found == len(self._ids)] = 0
        # Such a key has no valid hash.
        return np.where(self._ids[found] == ids, self._offset_of_id[found], len(data))

    def _group(self, stored: bytes) -> int:
        offset = self._offsets.get(stored[GROUP_BYTES:KEY_OFFSET])
        if offset is None:
            raise CorruptFile(
                "an entry belongs to no state of its operator",
                hint="create the savepoint again with this version; report this if it happens again",
                key=stored.hex()[:200],
            )
        # Entries of one key follow each other, in a map and in a list.
        if self._last is not None and has_key_at(stored, self._last[0], offset):
            return self._last[1]
        values, end = decode_key_parts(stored, offset, len(self._types))
        group = key_group(values, self._types, self._max_parallelism)
        self._last = stored[offset:end], group
        return group


def _copied(stored: pa.LargeBinaryArray) -> tuple[Bytes, Numbers]:
    """Returns a copy of the keys with padding, and their offsets in it."""
    given, offsets = parts_of(stored)
    size = int(offsets[-1] - offsets[0])
    data = np.zeros(size + len(PADDING), np.uint8)
    data[:size] = given[offsets[0] : offsets[-1]]
    return data, offsets - offsets[0]
