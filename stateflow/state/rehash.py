"""Computes the key group of stored entries for another max parallelism."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from stateflow.errors import CorruptFile
from stateflow.state.kinds.key_context import KEY_OFFSET, state_id
from stateflow.state.kinds.timers import TIMER_IDS
from stateflow.state.kinds.ttl.entry_ttl import expiry_ids
from stateflow.types.key_encoding import decode_key_parts
from stateflow.types.key_groups import key_group

_TIME_BYTES = 8
_GROUP = struct.Struct(">H")


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
        self._last: tuple[bytes, bytes] | None = None

    def __call__(self, stored: bytes) -> bytes:
        """Returns a stored key with its new key group.

        Raises:
            CorruptFile: the key is of no state of the operator, or does not decode.
        """
        offset = self._offsets.get(stored[_GROUP.size : KEY_OFFSET])
        if offset is None:
            raise CorruptFile(
                "an entry belongs to no state of its operator",
                hint="create the savepoint again with this version; report this if it happens again",
                key=stored.hex()[:200],
            )
        # Entries of one key follow each other, in a map and in a list. No key is a prefix of another one.
        if self._last is not None and stored.startswith(self._last[0], offset):
            return self._last[1] + stored[_GROUP.size :]
        values, end = decode_key_parts(stored, offset, len(self._types))
        group = _GROUP.pack(key_group(values, self._types, self._max_parallelism))
        self._last = stored[offset:end], group
        return group + stored[_GROUP.size :]
