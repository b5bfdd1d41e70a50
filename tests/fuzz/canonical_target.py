"""The fuzz target for files of canonical savepoints."""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import xxhash

from stateflow.state.backends.canonical_file import CanonicalHeader, decode_groups, encode_file
from stateflow.state.backends.entry_stream import blocks_of, entries_of
from stateflow.state.handles import StateSchema
from stateflow.state.schema import type_schema
from stateflow.types.key_groups import KeyGroupRange
from tests.fuzz.mutations import changed_bytes, changed_json
from tests.fuzz.target import Target

_LZ4 = pa.Codec("lz4")
_LAST = 40
Record = tuple[bytes, bytes]
"""A tag, and what follows: the contents of a block, or the number of a key group."""


@contextmanager
def canonical_file(_: Path) -> Iterator[Target]:
    """Changes files: their bytes, their records, and the contents of blocks, whose checksums then fit."""
    header, records, tail = _taken_apart(_written())
    intact = _written()

    def mutate(rng: random.Random) -> bytes:
        kind = rng.random()
        if kind < 0.2:
            return changed_bytes(rng, intact, [intact])
        if kind < 0.35:
            return _put_together(changed_json(rng, header, [header]), records, tail)
        return _put_together(header, _changed_records(rng, records), tail)

    def read(data: bytes) -> None:
        owned = KeyGroupRange(*sorted(random.Random(len(data)).sample(range(_LAST + 10), 2)))
        last = b""
        for key, _value in entries_of(decode_groups(io.BytesIO(data), "a file", owned)):
            assert key > last and int.from_bytes(key[:2]) in owned
            last = key

    yield Target(mutate, read)


def _written() -> bytes:
    states = [StateSchema(name="totals", kind="value", value_type="int", type=type_schema(int))]
    header = CanonicalHeader(
        uid="op", key_types=["string"], max_parallelism=128, first_group=0, last_group=_LAST, states=states
    )
    keys = sorted(struct.pack(">H", number % (_LAST + 1)) + number.to_bytes(3) for number in range(0, 900, 7))
    return b"".join(encode_file(header, blocks_of((key, bytes(int.from_bytes(key) % 97)) for key in keys)))


def _taken_apart(data: bytes) -> tuple[bytes, list[Record], bytes]:
    """Returns the text of the header, the records, and what follows them."""
    (length,) = struct.unpack_from(">I", data, 5)
    at = 17 + length
    header, records = data[17:at], []
    while tag := data[at : at + 1].strip(b"\0"):
        if tag == b"\2":
            records.append((tag, data[at + 1 : at + 3]))
            at += 3
        else:
            length, size, _ = struct.unpack_from(">IIQ", data, at + 1)
            at += 17
            records.append((tag, _LZ4.decompress(data[at : at + length], size, asbytes=True)))
            at += length
    return header, records, data[at:]


def _put_together(header: bytes, records: list[Record], tail: bytes) -> bytes:
    head = b"SFCS\1" + struct.pack(">IQ", len(header), xxhash.xxh64_intdigest(header)) + header
    return head + b"".join(tag + (_block(content) if tag == b"\1" else content) for tag, content in records) + tail


def _block(contents: bytes) -> bytes:
    data: bytes = _LZ4.compress(contents, asbytes=True)
    head: bytes = struct.pack(">IIQ", len(data), len(contents), xxhash.xxh64_intdigest(data))
    return head + data


def _changed_records(rng: random.Random, records: list[Record]) -> list[Record]:
    changed = list(records)
    for _ in range(rng.choice([1, 1, 2, 3])):
        at = rng.randrange(len(changed))
        tag, content = changed[at]
        kind = rng.randrange(4)
        if kind == 0:
            changed.insert(rng.randrange(len(changed) + 1), changed.pop(at))
        elif kind == 1:
            changed.insert(at, rng.choice(records))
        elif kind == 2 and len(changed) > 1:
            del changed[at]
        elif tag == b"\1":
            changed[at] = tag, changed_bytes(rng, content, [c for t, c in records if t == tag])
        else:
            changed[at] = tag, rng.choice([content, b"\0\0", b"\xff\xff", struct.pack(">H", rng.randrange(_LAST + 2))])
    return changed
