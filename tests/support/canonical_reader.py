"""Reads files of canonical savepoints as `docs/format.md` describes them; imports nothing of stateflow."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
import xxhash


def header(file: BinaryIO) -> dict[str, Any]:
    """The header of a file, which is read up to its first record."""
    assert file.read(5) == b"SFCS\x01"
    length, checksum = struct.unpack(">IQ", file.read(12))
    text = file.read(length)
    assert xxhash.xxh64_intdigest(text) == checksum
    found: dict[str, Any] = json.loads(text)
    return found


def records(file: BinaryIO) -> Iterator[tuple[int, list[tuple[bytes, bytes]]]]:
    """Yields each key group with its entries, after the header."""
    entries: list[tuple[bytes, bytes]] = []
    count = 0
    while tag := file.read(1)[0]:
        if tag == 2:
            (group,) = struct.unpack(">H", file.read(2))
            yield group, entries
            entries = []
            continue
        assert tag == 1
        length, size, checksum = struct.unpack(">IIQ", file.read(16))
        data = file.read(length)
        assert xxhash.xxh64_intdigest(data) == checksum
        items = msgspec.msgpack.decode(pa.Codec("lz4").decompress(data, size, asbytes=True))
        entries += zip(items[::2], items[1::2], strict=True)
        count += len(items) // 2
    assert not entries and struct.unpack(">Q", file.read()) == (count,)
