"""RocksDB's log format, used by its MANIFEST: records in blocks of 32 KiB, split into fragments with checksums.

https://github.com/facebook/rocksdb/wiki/Write-Ahead-Log-File-Format
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from functools import cache

_BLOCK = 32768
_HEADER = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


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
    crc = _crc32c((kind, *payload))
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _crc32c(data: Iterable[int]) -> int:
    table = _crc_table()
    crc = 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


@cache
def _crc_table() -> tuple[int, ...]:
    def entry(value: int) -> int:
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        return value

    return tuple(map(entry, range(256)))
