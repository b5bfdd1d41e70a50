"""RocksDB's log format, used by its MANIFEST: records in blocks of 32 KiB, split into fragments with checksums.

https://github.com/facebook/rocksdb/wiki/Write-Ahead-Log-File-Format
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

_BLOCK = 32768
_HEADER = struct.Struct("<IHB")
_FEW_BYTES = 40
"""Up to which a loop is faster than NumPy."""
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4

Crcs = NDArray[np.uint32]


def read_records(data: bytes, offset: int) -> Iterator[bytes]:
    """Yields the records in `data`, which starts with a record at `offset` of its file.

    RocksDB splits a record at the ends of blocks. A fragment can be empty: when exactly one header fits into the rest
    of a block, RocksDB writes a FIRST fragment without a payload there. So whether a record is open is tracked
    separately, and not derived from the collected bytes.

    Raises:
        ValueError, struct.error: a record is damaged or truncated; the records before it have been yielded. A log that
            ends between two records is complete.
    """
    at, fragments, is_open = 0, [], False
    while at < len(data):
        left = _BLOCK - (offset + at) % _BLOCK
        if left < _HEADER.size:
            at += left
            continue
        recorded, size, kind = _HEADER.unpack_from(data, at)
        payload = data[at + _HEADER.size : at + _HEADER.size + size]
        if len(payload) != size or size > left - _HEADER.size or recorded != checksum(kind, payload):
            raise ValueError(f"the record at {offset + at} is damaged")
        if kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or is_open != (kind in (_MIDDLE, _LAST)):
            raise ValueError(f"the record at {offset + at} is of kind {kind}")
        fragments.append(payload)
        at += _HEADER.size + size
        is_open = kind in (_FIRST, _MIDDLE)
        if not is_open:
            yield b"".join(fragments)
            fragments.clear()
    if is_open:
        raise ValueError("the last record is truncated")


def fragments_of(record: bytes) -> Iterator[bytes]:
    """Yields the fragments of a record at the start of a file."""
    room = _BLOCK - _HEADER.size
    for at in range(0, max(1, len(record)), room):
        payload = record[at : at + room]
        first, last = at == 0, at + room >= len(record)
        kind = _FULL if first and last else _FIRST if first else _LAST if last else _MIDDLE
        yield _HEADER.pack(checksum(kind, payload), len(payload), kind) + payload


def checksum(kind: int, payload: bytes) -> int:
    """Returns the checksum in a fragment's header: a CRC-32C with RocksDB's mask."""
    crc = _crc32c(bytes([kind]) + payload)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _crc32c(data: bytes) -> int:
    """Returns the CRC-32C of at most a block. A manifest may have megabytes, for which a loop takes seconds."""
    if len(data) < _FEW_BYTES:
        return _crc32c_of_few(data)
    # The CRC is linear: it is the XOR of what each half byte contributes at its distance from the end. Its first four
    # bytes are inverted because it starts with all bits set.
    numbers = np.frombuffer(data, np.uint8).copy()
    numbers[:4] ^= 0xFF
    numbers = numbers[::-1]
    low, high = _contributions()
    rows = np.arange(len(numbers))
    found = np.bitwise_xor.reduce(low[rows, numbers & 0xF] ^ high[rows, numbers >> 4])
    return int(found) ^ 0xFFFFFFFF


def _crc32c_of_few(data: bytes) -> int:
    table = _crc_table().tolist()
    crc = 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


@cache
def _crc_table() -> Crcs:
    """Returns the CRC of each byte, without inversions."""

    def entry(value: int) -> int:
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        return value

    return np.array([entry(value) for value in range(256)], np.uint32)


@cache
def _contributions() -> tuple[Crcs, Crcs]:
    """Returns what the lower and the upper half of a byte contribute to a CRC: a row per number of bytes after it."""
    table = _crc_table()
    rows = table[np.concatenate([np.arange(16), np.arange(16) << 4])][np.newaxis]
    # What `len(rows)` more bytes make of each byte of a CRC.
    shift: list[Crcs] = [table, *(np.arange(0, 256 << size, 1 << size, dtype=np.uint32) for size in (0, 8, 16))]
    while len(rows) < _BLOCK:
        rows = np.concatenate([rows, _shifted(rows, shift)])
        shift = [_shifted(column, shift) for column in shift]
    return rows[:, :16], rows[:, 16:]


def _shifted(crcs: Crcs, shift: list[Crcs]) -> Crcs:
    found: Crcs = shift[0][crcs & 0xFF]
    for n in range(1, 4):
        found = found ^ shift[n][crcs >> 8 * n & 0xFF]
    return found
