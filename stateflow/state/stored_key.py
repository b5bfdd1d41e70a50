"""The layout of stored keys of keyed state: constants, encoding and division, for all that read or write them.

| entry | stored key |
|---|---|
| value | ``key group (2 bytes) | state id (4) | key | namespace`` |
| entry of a map | the same, then the user key |
| element of a list | the same, then ``epoch (8) | index (4)`` |
| timer | ``key group (2) | timers' id (4) | time (8) | key | namespace`` |
| expiry entry | ``key group (2) | expiry id (4) | timestamp (8) | rest of the stored key of the value`` |

The state id is a hash of the state's name, so subtasks agree on it without coordination, and it stays the same when
other states are added or removed. Key, namespace and user key are encoded by `encode_key`; `key_columns` encodes and
decodes those of many entries at once.

The parts of a fixed size are slices, since ``stored[STATE_PART]`` takes less time than the call of a function.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from enum import Enum
from typing import NamedTuple

import xxhash

from stateflow.errors import CorruptFile
from stateflow.types.key_encoding import decode_key, encode_key

KeyRange = tuple[bytes, bytes]
"""The smallest key of a range, and the smallest key after it."""
GROUP_BYTES = 2
KEY_OFFSET = 6
"""Offset of the key in a stored key: the length of key group and state id."""
TIME_BYTES = 8
TIMED_KEY_OFFSET = KEY_OFFSET + TIME_BYTES
"""Offset of the key in timers and expiry entries."""
POSITION_BYTES = 12
"""Length of the position of an element in a list: epoch and index, which follow the namespace."""
VOID_NAMESPACE = b"\0"
GROUP_PART = slice(GROUP_BYTES)
STATE_PART = slice(GROUP_BYTES, KEY_OFFSET)
TIME_PART = slice(KEY_OFFSET, TIMED_KEY_OFFSET)
ENTRY_KEY_OFFSET = TIME_BYTES + GROUP_BYTES
"""Offset of the key in a timer in time order, which `to_time_order` returns."""
ENTRY_TIME, ENTRY_GROUP = slice(TIME_BYTES), slice(TIME_BYTES, ENTRY_KEY_OFFSET)
ALL_KEYS: KeyRange = (b"", b"\xff" * (GROUP_BYTES + 1))
"""All keys: no key group is above 2^15."""
_TIME = struct.Struct(">Q")
_ZERO = 1 << 63


class TimeDomain(Enum):
    """The time that a timer refers to."""

    EVENT_TIME = "event"
    PROCESSING_TIME = "processing"


def state_id(name: str) -> bytes:
    """Returns the 4-byte id of a state in stored keys: the XXH32 hash of its name (https://xxhash.com)."""
    return struct.pack(">I", xxhash.xxh32_intdigest(name.encode()))


TIMER_IDS = {domain: state_id(f"\0{domain.value} timers") for domain in TimeDomain}
"""The id that replaces the state id in timers; no state name contains a NUL."""
TIMER_DOMAINS = {stored: domain for domain, stored in TIMER_IDS.items()}
_EXPIRY_NAMES = {"processing": "expiry", "event": "event expiry"}
"""One index per time domain: timestamps of two clocks cannot be ordered in one index."""


def expiry_id(name: str, time: str) -> bytes:
    """Returns the id that replaces the state id in a state's expiry entries of one time domain.

    Args:
        name: name of the state.
        time: ``processing`` or ``event``.
    """
    return state_id(f"{name}\0{_EXPIRY_NAMES[time]}")


def expiry_ids(name: str) -> tuple[bytes, ...]:
    """Returns the expiry ids of a state in both time domains."""
    return tuple(expiry_id(name, time) for time in _EXPIRY_NAMES)


encode_group: Callable[[int], bytes] = struct.Struct(">H").pack
"""Returns a key group as stored keys begin with it: the smallest key that an entry of it can have."""


def decode_group(stored: bytes) -> int:
    """Returns the key group of a stored key; of a bound that is too short, that of the keys after it."""
    return int.from_bytes(stored[GROUP_PART].ljust(GROUP_BYTES, b"\0"))


encode_epoch: Callable[[int], bytes] = struct.Struct(">Q").pack
"""Returns the first part of the position of an element: the epoch of the batch that added it."""
encode_index: Callable[[int], bytes] = struct.Struct(">I").pack
"""Returns the second part of the position of an element: its number within the epoch."""


def encode_time(time: int) -> bytes:
    """Returns a time of 64 bits as 8 bytes that sort as the times do."""
    return _TIME.pack(time + _ZERO)


def decode_time(data: bytes, offset: int = KEY_OFFSET) -> int:
    """Returns the time of a stored timer or expiry entry, or the one at another offset."""
    time: int = _TIME.unpack_from(data, offset)[0]
    return time - _ZERO


def encode_namespace(namespace: object) -> bytes:
    """Returns a namespace as part of a stored key; None is the void namespace.

    Raises:
        StateError: the value cannot be part of a key.
    """
    return encode_key((namespace,))


def after_key(stored: bytes) -> bytes:
    """Returns a bound after all stored keys that continue a key, and before those of longer keys with its bytes.

    A text goes on after its end if ``ff`` follows: that is another key.
    """
    return stored + b"\xff"


def list_key(stored: bytes) -> bytes:
    """Returns the stored key of an element without its position. Raises CorruptFile if it has none."""
    if len(stored) <= KEY_OFFSET + POSITION_BYTES:
        raise CorruptFile(
            "the stored key of a list's element has no position",
            hint="restore an older checkpoint",
            key=stored.hex()[:80],
        )
    return stored[:-POSITION_BYTES]


def encode_expiry_key(stored: bytes, expiry: bytes, timestamp: int) -> bytes:
    """Returns the key of the expiry entry of a value.

    Args:
        stored: the stored key of the value.
        expiry: the expiry id of its state.
        timestamp: what its TTL counts from, in milliseconds since 1970.
    """
    return stored[GROUP_PART] + expiry + _TIME.pack(timestamp + _ZERO) + stored[KEY_OFFSET:]


def decode_expiry_key(expiry_key: bytes, state: bytes) -> tuple[int, bytes]:
    """Returns the timestamp in an expiry entry's key, and the stored key of the value that it refers to.

    Args:
        expiry_key: key of the expiry entry.
        state: the state id.

    Raises CorruptFile.
    """
    if len(expiry_key) < TIMED_KEY_OFFSET:
        raise CorruptFile(
            "a stored expiry entry has no timestamp", hint="restore an older checkpoint", key=expiry_key.hex()[:80]
        )
    return decode_time(expiry_key), expiry_key[GROUP_PART] + state + expiry_key[TIMED_KEY_OFFSET:]


def to_time_order(stored: bytes) -> bytes:
    """Returns a stored timer as bytes that sort by time over key groups: time, key group, key, namespace."""
    if len(stored) <= TIMED_KEY_OFFSET:
        raise timer_without_key(stored)
    return stored[TIME_PART] + stored[GROUP_PART] + stored[TIMED_KEY_OFFSET:]


def all_to_time_order(stored: Iterable[bytes]) -> list[bytes]:
    """Returns stored timers, all of which have a key, as `to_time_order` does, in less time for each."""
    return [each[TIME_PART] + each[GROUP_PART] + each[TIMED_KEY_OFFSET:] for each in stored]


def from_time_order(timer_id: bytes, entry: bytes) -> bytes:
    """Returns the stored key of a timer: the reverse of `to_time_order`."""
    return entry[ENTRY_GROUP] + timer_id + entry[ENTRY_TIME] + entry[ENTRY_KEY_OFFSET:]


def all_from_time_order(timer_id: bytes, entries: Iterable[bytes]) -> list[bytes]:
    """Returns the stored keys of timers as `from_time_order` does, in less time for each."""
    return [each[ENTRY_GROUP] + timer_id + each[ENTRY_TIME] + each[ENTRY_KEY_OFFSET:] for each in entries]


def timer_without_key(stored: bytes) -> CorruptFile:
    """Returns the error for a stored timer that is too short."""
    return CorruptFile("a stored timer has no key", hint="restore an older checkpoint", timer=stored.hex()[:80])


def decode_parts(
    stored: bytes, columns: int, start: int = KEY_OFFSET, tail: int = 0
) -> tuple[tuple[object, ...], object, object]:
    """Returns the values of the key columns, the namespace, and the user key of a map; None without one.

    Args:
        stored: the stored key.
        columns: number of key columns.
        start: offset of the key.
        tail: number of bytes at the end that are not decoded, such as the position of an element.

    Raises:
        CorruptFile: it does not have these parts.
    """
    parts = decode_key(stored[start : len(stored) - tail])
    if len(parts) <= columns:
        raise CorruptFile("a stored key has too few columns", key=stored.hex()[:80], columns=columns)
    return parts[:columns], parts[columns], parts[columns + 1] if len(parts) > columns + 1 else None


class StoredKey(NamedTuple):
    """The decoded parts of a stored key, or of the key of other state.

    Attributes:
        key: values of the key columns.
        namespace: None without a namespace.
        map_key: key in a map state; None for other states.
        time: time of a timer in milliseconds since 1970; None for other entries.
        domain: time domain of a timer.
    """

    key: tuple[object, ...]
    namespace: object = None
    map_key: object = None
    time: int | None = None
    domain: TimeDomain | None = None

    @classmethod
    def decode(cls, stored: bytes, columns: int, tail: int = 0) -> StoredKey:
        """Decodes the stored key of a value or timer; arguments and errors as for `decode_parts`."""
        domain, start, time = TIMER_DOMAINS.get(stored[STATE_PART]), KEY_OFFSET, None
        if domain is not None:
            if len(stored) <= TIMED_KEY_OFFSET:
                raise timer_without_key(stored)
            start, time = TIMED_KEY_OFFSET, decode_time(stored)
        return cls(*decode_parts(stored, columns, start, tail), time, domain)
