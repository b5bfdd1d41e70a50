"""Reading and writing of RocksDB's MANIFEST, which lists the data files of a store.

rocksdict has no function to import another store's files with their levels and order. The manifest contains exactly
that, in a format that RocksDB must stay able to read: a log of records with checksums, each of them an edit; see
https://github.com/facebook/rocksdb/wiki/MANIFEST and `db/version_edit.h`. Unknown content of an edit is refused, never
skipped, unless RocksDB marks it as safe to ignore.

In stored manifests, long bounds are prefixes; see `check`. A field of our own marks them, which neither RocksDB nor a
version without prefixes ignores.

Its records are in blocks of 32 KiB, split into fragments with checksums:
https://github.com/facebook/rocksdb/wiki/Write-Ahead-Log-File-Format
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stateflow.errors import CorruptFile, InternalError
from stateflow.private_files import write_private
from stateflow.state.handles import SubtaskState
from stateflow.state.stored_key import decode_group
from stateflow.types.key_groups import KeyGroupRange

_NAME = "MANIFEST-000001"
_COMPARATOR, _LOG_NUMBER, _NEXT_FILE, _LAST_SEQUENCE, _CURSOR, _DELETED_FILE = 1, 2, 3, 4, 5, 6
_PREVIOUS_LOG, _MIN_LOG, _NEW_FILE, _COLUMN_FAMILY, _MAX_COLUMN_FAMILY, _ATOMIC_GROUP = (9, 10, 103, 200, 203, 300)
_SAFE_TO_IGNORE = 1 << 13
_NUMBERS = {_LOG_NUMBER, _NEXT_FILE, _PREVIOUS_LOG, _MIN_LOG, _MAX_COLUMN_FAMILY, _ATOMIC_GROUP}


_END_OF_DETAILS, _MIN_LOG_OF_STORE, _EPOCH = 1, 3, 13
_NOT_SAFE_TO_IGNORE = 1 << 6
_PREFIX_BOUNDS = _NOT_SAFE_TO_IGNORE | 0x3D
"""Our field of a file whose bounds are prefixes: one byte, 1 for the smallest and 2 for the largest key."""
_LARGEST = 12 << 20
"""Bytes of a manifest; a data file takes 100 to 300."""
_BYTEWISE = b"leveldb.BytewiseComparator"
_TRAILER = 8
_LEVELS = 7
_LARGEST_NUMBER = 1 << 62
"""Bound of file numbers, sizes, epochs and sequence numbers: RocksDB adds to them without a check."""
_LARGEST_SEQUENCE = 1 << 55
"""Half of what RocksDB can count: a store that continues from a larger one would lose its next changes silently."""
_EXCLUSIVE = struct.pack("<Q", ((1 << 56) - 1) << 8 | 0x0F)
"""Trailer of the largest key of a file that ends with a deleted range, whose end is exclusive."""


@dataclass(frozen=True)
class StoreFile:
    """One ``.sst`` file of a store.

    Attributes:
        number, level, size: the file number, its level, and its size in bytes.
        smallest, largest: bounds of its keys and deleted ranges, each with RocksDB's trailer of 8 bytes.
        sequences: its smallest and largest sequence number.
        epoch: order of the files in level 0; the largest is the newest.
        details: other fields of the manifest as (tag, bytes) pairs.
        prefixes: which of `smallest` and `largest` are prefixes of the keys, followed by the trailers of the keys.
    """

    number: int
    level: int
    size: int
    smallest: bytes
    largest: bytes
    sequences: tuple[int, int]
    epoch: int
    details: tuple[tuple[int, bytes], ...] = ()
    prefixes: tuple[bool, bool] = (False, False)

    @property
    def name(self) -> str:
        """The name of the file."""
        return f"{self.number:06d}.sst"

    @property
    def groups(self) -> KeyGroupRange:
        """The key groups between its bounds; the file has no keys or deleted ranges outside of them."""
        first = decode_group(self.smallest[:-_TRAILER])
        largest, trailer = self.largest[:-_TRAILER], self.largest[-_TRAILER:]
        last = decode_group(largest)
        ends_before = trailer == _EXCLUSIVE and len(largest) == 2
        return KeyGroupRange(first, last - 1 if ends_before else last)


@dataclass(frozen=True)
class StoreManifest:
    """The data files of a store, and its last sequence number."""

    files: tuple[StoreFile, ...]
    last_sequence: int

    @property
    def last_epoch(self) -> int:
        """The largest epoch of the files."""
        return max((f.epoch for f in self.files), default=0)


def parse(data: bytes, name: str) -> StoreManifest:
    """Parses a manifest.

    Args:
        data: bytes of the manifest.
        name: name of the file, for errors.

    Raises:
        CorruptFile: the data is not a manifest, or has unknown fields, for example of a newer RocksDB version.
    """
    if len(data) > _LARGEST:
        raise CorruptFile("a store's manifest is too large", file=name, size_bytes=len(data), limit_bytes=_LARGEST)
    return _applied(StoreManifest((), 0), data, 0, name)


def manifest_of(state: SubtaskState) -> StoreManifest:
    """Returns the manifest of a snapshot. Raises CorruptFile if it is damaged, or names files that there are not."""
    if not state.store_manifest:
        raise CorruptFile(
            "a snapshot has no store manifest",
            hint="restore an older checkpoint",
            file=state.snapshot,
            files=[file.local_name for file in state.files][:5],
        )
    manifest = parse(state.store_manifest, state.snapshot)
    sizes = {file.local_name: file.size for file in state.files}
    missing = sorted(f.name for f in manifest.files if sizes.get(f.name) != f.size)
    if missing:
        raise CorruptFile(
            "a store's manifest names files that the snapshot does not have with this size",
            hint="restore an older checkpoint",
            file=state.snapshot,
            missing=missing[:5],
        )
    return manifest


def _applied(known: StoreManifest, data: bytes, offset: int, name: str) -> StoreManifest:
    """Applies the edits in `data`, which starts at `offset` of the manifest."""
    files = {f.number: f for f in known.files}
    last_sequence = known.last_sequence
    try:
        for record in read_records(data, offset):
            edit = _Edit(record)
            for level, number in edit.deleted:
                if files[number].level == level:
                    del files[number]
            files |= {f.number: f for f in edit.added}
            last_sequence = max(last_sequence, edit.last_sequence)
    except (IndexError, KeyError, ValueError, struct.error) as e:
        raise CorruptFile("a store's manifest cannot be read", file=name, reason=repr(e)) from e
    return StoreManifest(tuple(files.values()), last_sequence)


class ManifestFollower:
    """Incremental reader of an open store's manifest.

    Args:
        folder: folder of the store.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = ""
        self._offset = 0
        self._known = StoreManifest((), 0)

    def read(self) -> StoreManifest:
        """Returns the current files, reading only new edits. The store must not change meanwhile; raises as `parse`."""
        name = (self._folder / "CURRENT").read_text().strip()
        if name != self._name:
            self._name, self._offset, self._known = name, 0, StoreManifest((), 0)
        with (self._folder / name).open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        self._known = _applied(self._known, data, self._offset, name)
        self._offset += len(data)
        return self._known


def compose(manifest: StoreManifest) -> bytes:
    """Returns the bytes of a manifest; the file numbers must be distinct."""
    edit = bytearray()
    edit += _varint(_COMPARATOR) + _sized(_BYTEWISE)
    next_file = max((f.number for f in manifest.files), default=0) + 1
    for tag, number in ((_LOG_NUMBER, 0), (_NEXT_FILE, next_file), (_LAST_SEQUENCE, manifest.last_sequence)):
        edit += _varint(tag) + _varint(number)
    for file in manifest.files:
        edit += _encode_file(file)
    return b"".join(fragments_of(bytes(edit)))


def write_manifest(folder: Path, manifest: StoreManifest) -> None:
    """Writes a manifest that makes the data files in `folder` a store; its bounds must be exact."""
    prefixes = [file.name for file in manifest.files if any(file.prefixes)]
    if prefixes:
        raise InternalError("a store cannot be opened with prefixes as bounds", files=prefixes[:5])
    write_private(folder / _NAME, compose(manifest))
    write_private(folder / "CURRENT", f"{_NAME}\n".encode())


# -- edits --------------------------------------------------------------------------------------------------------


class _Edit:
    """The changes of one record."""

    def __init__(self, record: bytes) -> None:
        self.deleted: list[tuple[int, int]] = []
        self.added: list[StoreFile] = []
        self.last_sequence = 0
        reader = ByteReader(record)
        while reader:
            self._take(reader.varint(), reader)

    def _take(self, tag: int, reader: ByteReader) -> None:
        if tag == _NEW_FILE:
            self.added.append(_decode_file(reader))
        elif tag == _DELETED_FILE:
            self.deleted.append((reader.varint(), reader.varint()))
        elif tag == _LAST_SEQUENCE:
            self.last_sequence = reader.varint()
            if self.last_sequence > _LARGEST_SEQUENCE:
                raise ValueError(f"the last sequence number is {self.last_sequence}")
        elif tag in _NUMBERS:
            reader.varint()
        elif tag == _CURSOR:
            reader.varint()
            reader.sized()
        elif tag & _SAFE_TO_IGNORE:
            reader.sized()
        elif (tag == _COMPARATOR and reader.sized() == _BYTEWISE) or (tag == _COLUMN_FAMILY and reader.varint() == 0):
            pass
        else:
            raise _unknown("edit", tag)


def _decode_file(reader: ByteReader) -> StoreFile:
    level, number, size = reader.varint(), reader.varint(), reader.varint()
    smallest, largest = reader.sized(), reader.sized()
    sequences = (reader.varint(), reader.varint())
    details: list[tuple[int, bytes]] = []
    epoch, prefixes = None, (False, False)
    while (tag := reader.varint()) != _END_OF_DETAILS:
        value = reader.sized()
        if tag == _PREFIX_BOUNDS:
            prefixes = _decode_prefixes(value)
        elif tag & _NOT_SAFE_TO_IGNORE:
            raise _unknown("file", tag)
        elif tag == _EPOCH:
            epoch = ByteReader(value).varint()
        elif tag != _MIN_LOG_OF_STORE:
            # The skipped tag is not a property of the file, and RocksDB would crash in a store with lower numbers.
            details.append((tag, value))
    if epoch is None:
        raise ValueError("a file has no epoch")
    file = StoreFile(number, level, size, smallest, largest, sequences, epoch, tuple(details), prefixes)
    _check_numbers(file)
    return file


def _check_numbers(file: StoreFile) -> None:
    if min(len(file.smallest), len(file.largest)) < _TRAILER:
        raise ValueError("a key has no trailer")
    if file.level >= _LEVELS or not 0 < file.number < _LARGEST_NUMBER or not 0 < file.size < _LARGEST_NUMBER:
        raise ValueError(f"a file has the level {file.level}, the number {file.number} and the size {file.size}")
    if file.smallest[:-_TRAILER] > file.largest[:-_TRAILER] or file.epoch >= _LARGEST_NUMBER:
        raise ValueError(f"the bounds of file {file.number} are not in order, or its epoch is {file.epoch}")
    if not file.sequences[0] <= file.sequences[1] <= _LARGEST_SEQUENCE:
        raise ValueError(f"file {file.number} has the sequence numbers {file.sequences}")


def _decode_prefixes(value: bytes) -> tuple[bool, bool]:
    if value not in (b"\1", b"\2", b"\3"):
        raise ValueError(f"the flags of prefix bounds are {value[:8]!r}")
    return bool(value[0] & 1), bool(value[0] & 2)


def _encode_file(file: StoreFile) -> bytes:
    numbers = (_NEW_FILE, file.level, file.number, file.size)
    parts = [*map(_varint, numbers), _sized(file.smallest), _sized(file.largest), *map(_varint, file.sequences)]
    if any(file.prefixes):
        parts += [_varint(_PREFIX_BOUNDS), _sized(_varint(file.prefixes[0] + 2 * file.prefixes[1]))]
    for tag, value in (*file.details, (_EPOCH, _varint(file.epoch))):
        parts += [_varint(tag), _sized(value)]
    return b"".join([*parts, _varint(_END_OF_DETAILS)])


def _unknown(what: str, tag: int) -> CorruptFile:
    # Not an internal error, after which a run would restart: the file may come from a user.
    return CorruptFile(
        f"RocksDB's manifest has an unknown field of a {what}",
        hint="restore an older checkpoint; if stateflow has written this one, install the version of rocksdict in its "
        "requirements.txt",
        tag=tag,
    )


def _varint(value: int) -> bytes:
    result = bytearray()
    while value >= 0x80:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)


def _sized(data: bytes) -> bytes:
    return _varint(len(data)) + data


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


_LONGEST_VARINT = 10
"""Bytes of a number of 64 bits; a longer one would cost quadratic time."""


class ByteReader:
    """Reads fields of variable size one after the other.

    The methods raise ValueError when the data ends in a field, or a number has more than 64 bits.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def position(self) -> int:
        """The number of bytes read."""
        return self._at

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def varint(self) -> int:
        """Reads a number: seven bits per byte, the lowest first."""
        value = 0
        size = 0
        for byte in self._data[self._at : self._at + _LONGEST_VARINT]:
            value |= (byte & 0x7F) << 7 * size
            size += 1
            if byte < 0x80 and value < 1 << 64:
                self._at += size
                return value
        raise ValueError("a number is cut off, or has more than 64 bits")

    def sized(self) -> bytes:
        """Reads a field that follows its size."""
        return self.take(self.varint())

    def skip(self, size: int) -> None:
        """Skips a number of bytes."""
        if size > len(self._data) - self._at:
            raise ValueError("a field is cut off")
        self._at += size

    def take(self, size: int) -> bytes:
        """Reads a number of bytes."""
        found = self._data[self._at : self._at + size]
        if len(found) != size:
            raise ValueError("a field is cut off")
        self._at += size
        return found
