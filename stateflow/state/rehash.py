"""Computes the key groups of many stored entries at once for another max parallelism.

The hashes are Spark's, with the same numbers as those of `key_hash`.

The columns of a key are found in its encoded bytes, without decoding them: integers and timestamps have a fixed size,
and texts are hashed as they are stored. Algorithm: XXH64, https://xxhash.com.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from stateflow.errors import CorruptFile
from stateflow.state.binary_columns import from_parts, parts_of
from stateflow.state.stored_key import (
    GROUP_BYTES,
    KEY_OFFSET,
    STATE_PART,
    TIMED_KEY_OFFSET,
    TIMER_IDS,
    expiry_ids,
    state_id,
)
from stateflow.types.key_encoding import NULL_PART, decode_key_parts, has_key_at
from stateflow.types.key_groups import SPARK_SEED, key_group

Groups = NDArray[np.uint16]


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
        self._offsets |= dict.fromkeys(at_times, TIMED_KEY_OFFSET)
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
        offset = self._offsets.get(stored[STATE_PART])
        if offset is None:
            raise CorruptFile(
                "an entry does not belong to a state of its operator",
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


Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]
Words = NDArray[np.uint64]
Flags = NDArray[np.bool_]


PADDING = bytes(32)
"""Is read, but not used, where a key is shorter than what is read of every key."""
_SHORT = 32
"""XXH64 has another algorithm for inputs from this size on."""
_SIGN = np.uint64(1 << 63)
_TEXT_END, _ESCAPE = 0, 0xFF
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
)


@dataclass(frozen=True)
class _Number:
    """How a number is encoded, and what of it is hashed.

    Attributes:
        tag: first bytes of the encoding.
        offset: offset of its 8 bytes.
        smallest, largest: bounds of the type.
        hashed: numpy's name of the type that is hashed.
    """

    tag: int
    offset: int
    smallest: int
    largest: int
    hashed: str


_INT = _Number(0x15, 1, -(1 << 31), (1 << 31) - 1, "<i4")
_DATETIME = _Number(0x31, 2, -62_135_596_800_000_000, 253_402_300_799_999_999, "<i8")
"""The years 1 to 9999 in microseconds; the second byte, which is not hashed, says whether there is a time zone."""
_NUMBERS = {
    **dict.fromkeys(("tinyint", "smallint", "int"), _INT),
    "bigint": _Number(0x15, 1, -(1 << 63), (1 << 63) - 1, "<i8"),
    **dict.fromkeys(("timestamp", "timestamp_ntz"), _DATETIME),
}
_TEXTS = {"binary": 1, "string": 2}
"""First bytes of the encodings of texts."""


def hash_keys(data: Bytes, starts: Numbers, ends: Numbers, types: Sequence[str]) -> tuple[Numbers, Flags]:
    """Returns the hash of n encoded keys, and which of the hashes are valid.

    A hash is not valid if a key has a column of another type than integer, timestamp, string or binary, a value that is
    not of its type, or a text with NUL; or if the data is damaged. `key_hash` has the hash, or the error.

    Args:
        data: bytes that contain the keys, with `PADDING` at the end.
        starts: offset of each key.
        ends: offset after each key, or after what follows it; no key extends further.
        types: Spark's names of the types of the columns.
    """
    hashes = np.full(len(starts), SPARK_SEED, np.uint64)
    at, valid = starts, np.ones(len(starts), np.bool_)
    for name in types:
        if name in _NUMBERS:
            end, is_of_type, found = _hash_numbers(data, at, _NUMBERS[name], hashes)
        elif name in _TEXTS:
            end, is_of_type, found = _hash_texts(data, at, _TEXTS[name], hashes)
        else:
            return hashes.view(np.int64), np.zeros(len(starts), np.bool_)
        is_null = data[at] == NULL_PART[0]
        hashes = np.where(is_null, hashes, found)
        at = np.where(is_null, at + 1, end)
        valid &= (is_null | is_of_type) & (at <= ends)
        # Offsets of keys that are not valid may be anywhere.
        at = np.where(valid, at, starts)
    return hashes.view(np.int64), valid


def _hash_numbers(data: Bytes, at: Numbers, number: _Number, seeds: Words) -> tuple[Numbers, Flags, Words]:
    """Hashes a column of numbers; returns where it ends, its validity, and the hashes."""
    values = (_words(data, ">u8")[at + number.offset] ^ _SIGN).view(np.int64)
    valid = (data[at] == number.tag) & (number.smallest <= values) & (values <= number.largest)
    hashed = values.astype(number.hashed)
    size = hashed.itemsize
    lengths = np.full(len(at), size, np.int64)
    content = np.concatenate((hashed.view(np.uint8), np.frombuffer(PADDING, np.uint8)))
    hashes = hash_short(content, np.arange(len(at)) * size, lengths, seeds)
    return at + number.offset + values.itemsize, valid, hashes


def _hash_texts(data: Bytes, at: Numbers, tag: int, seeds: Words) -> tuple[Numbers, Flags, Words]:
    """Hashes a column of texts as `_hash_numbers` does for numbers."""
    starts = at + 1
    zeros = np.flatnonzero(data == _TEXT_END)
    ends = zeros[np.searchsorted(zeros, starts)]
    lengths = ends - starts
    valid = (data[at] == tag) & (data[ends + 1] != _ESCAPE)
    is_short = lengths < _SHORT
    hashes = hash_short(data, starts, np.where(is_short, lengths, 0), seeds)
    for row in np.flatnonzero(~is_short & valid).tolist():
        hashes[row] = xxhash.xxh64_intdigest(data[starts[row] : ends[row]].tobytes(), int(seeds[row]))
    return ends + 1, valid, hashes


def hash_short(data: Bytes, starts: Numbers, lengths: Numbers, seeds: Words) -> Words:
    """Returns the XXH64 of n inputs of less than 32 bytes.

    Args:
        data: bytes that contain the inputs, with `PADDING` at the end.
        starts: offset of each input.
        lengths: length of each input.
        seeds: seed of each input.
    """
    words = _words(data, "<u8")
    hashes = seeds + _P5 + lengths.astype(np.uint64)
    for at in range(0, _SHORT - 8, 8):
        is_longer = lengths >= at + 8
        if is_longer.any():
            mixed = hashes ^ (_rotated(words[starts + at] * _P2, 31) * _P1)
            hashes = np.where(is_longer, _rotated(mixed, 27) * _P1 + _P4, hashes)
    rest = words[starts + (lengths & ~7)]
    has_four = (lengths & 4) != 0
    if has_four.any():
        mixed = hashes ^ ((rest & np.uint64(0xFFFF_FFFF)) * _P1)
        hashes = np.where(has_four, _rotated(mixed, 23) * _P2 + _P3, hashes)
        rest = np.where(has_four, rest >> np.uint64(32), rest)
    for count in range(1, 4):
        is_longer = (lengths & 3) >= count
        if is_longer.any():
            mixed = hashes ^ ((rest & np.uint64(0xFF)) * _P5)
            hashes = np.where(is_longer, _rotated(mixed, 11) * _P1, hashes)
            rest = rest >> np.uint64(8)
    hashes = (hashes ^ (hashes >> np.uint64(33))) * _P2
    hashes = (hashes ^ (hashes >> np.uint64(29))) * _P3
    return hashes ^ (hashes >> np.uint64(32))


def _rotated(words: Words, bits: int) -> Words:
    return (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))


def _words(data: Bytes, layout: str) -> Words:
    """Returns the 8 bytes at each offset of the data; it copies nothing."""
    return np.ndarray(len(data) - 7, layout, data, strides=(1,))
