"""The memory and the filesystem backend, which keep state in a dictionary, and the format of their snapshots.

A snapshot holds the whole state, so a batch's cost grows with the state, not with its changes.

The format of a snapshot::

    stream  = "SFKV" 01 block* 00000000 count        count: of entries, 8 bytes, big-endian
    block   = length items                           length: of items in bytes, 4 bytes, big-endian, not zero
    items   = a msgpack array of bin: key, value, key, value, …

Readers do not trust lengths: a block is neither larger than the remaining bytes nor than the largest one that a writer
makes, and has as few entries, so memory is bounded whatever the checkpoint has recorded. Keys that do not ascend, or
are too short to hold a key group, are refused, as are bytes after the end.
"""

from __future__ import annotations

import io
import struct
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec

from stateflow.config.settings import LARGEST_KEY, LARGEST_MEMORY_STATE, LARGEST_VALUE
from stateflow.errors import ConfigError
from stateflow.private_files import make_folders, open_private
from stateflow.state.backends.base import KeyedStateBackend, LiveState, StoreSnapshot
from stateflow.state.backends.entry_stream import (
    Entry,
    EntryBlock,
    block_of,
    entries_of,
    read_exactly,
    select_key_groups,
    unreadable_file,
)
from stateflow.state.handles import SubtaskState
from stateflow.state.host_cache import HostCache, remove_tree
from stateflow.state.stored_key import GROUP_BYTES
from stateflow.types.key_groups import KeyGroupRange

_FEW = 32


class DictBackend(KeyedStateBackend):
    """A store with its entries in a dictionary, whose keys are sorted at the first scan and kept sorted from then on.

    Args:
        entries: the initial entries, owned by the store from now on.
    """

    def __init__(self, entries: dict[bytes, bytes] | None = None) -> None:
        self.entries: dict[bytes, bytes] = {} if entries is None else entries
        self._sorted_keys: _SortedKeys | None = None

    def get(self, key: bytes) -> bytes | None:
        return self.entries.get(key)

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.entries.get(key) for key in keys]

    def scan_range(self, lower: bytes, upper: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        if self._sorted_keys is None:
            self._sorted_keys = _SortedKeys(self.entries)
        keys = self._sorted_keys.between(lower, upper)
        # Copied now, since the scan must not see a later write.
        return iter([(key, self.entries[key]) for key in keys])

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        entries, sorted_keys = self.entries, self._sorted_keys
        # Read all changes before applying the first one: if reading fails, none may be applied.
        for key, value in tuple(changes.items()):
            if value is not None:
                if sorted_keys is not None and key not in entries:
                    sorted_keys.add(key)
                entries[key] = value
            elif entries.pop(key, None) is not None and sorted_keys is not None:
                sorted_keys.remove(key)

    def count_entries(self) -> int:
        return len(self.entries)

    def snapshot(self, name: str, full: bool = False) -> StoreSnapshot:
        content = b"".join(self.encode())
        return StoreSnapshot(inline=content, live=LiveState(len(self.entries), len(content)))

    def encode(self) -> Iterator[bytes]:
        """Yields the content in the format of `encode_snapshot`, in chunks."""
        return encode_snapshot(self.scan_range(b"", None))

    def close(self) -> None:
        self.entries = {}
        self._sorted_keys = None


class _SortedKeys:
    """The sorted keys of a dictionary.

    Changes are collected until the next read: applied one by one, each would move half of all keys.
    """

    def __init__(self, keys: Iterable[bytes]) -> None:
        self._keys = sorted(keys)
        self._added: set[bytes] = set()
        self._removed: set[bytes] = set()

    def add(self, key: bytes) -> None:
        """Adds a key that is not in the dictionary."""
        if key in self._removed:
            self._removed.remove(key)
        else:
            self._added.add(key)

    def remove(self, key: bytes) -> None:
        """Removes a key of the dictionary."""
        if key in self._added:
            self._added.remove(key)
        else:
            self._removed.add(key)

    def between(self, lower: bytes, upper: bytes | None) -> list[bytes]:
        """Returns the keys with lower <= key < upper."""
        self._apply_changes()
        end = len(self._keys) if upper is None else bisect_left(self._keys, upper)
        return self._keys[bisect_left(self._keys, lower) : end]

    def _apply_changes(self) -> None:
        if len(self._added) + len(self._removed) > _FEW:
            left = [key for key in self._keys if key not in self._removed]
            # Sorting is fast here, since most of the list is sorted already.
            self._keys = sorted([*left, *sorted(self._added)])
        else:
            for key in self._removed:
                del self._keys[bisect_left(self._keys, key)]
            for key in self._added:
                insort(self._keys, key)
        self._added.clear()
        self._removed.clear()


def check_limit(states: Mapping[str, Iterable[SubtaskState]], limit: int) -> None:
    """Checks the total size of the memory backend's state in a checkpoint.

    Args:
        states: states of the subtasks by operator uid.
        limit: maximum size in bytes, for all operators together.

    Raises:
        ConfigError: the state is larger; the error names the operator with the most state.
    """
    sizes = {
        uid: sum(len(s.inline or b"") for s in subtasks if s.backend == "memory") for uid, subtasks in states.items()
    }
    total = sum(sizes.values())
    if total > limit:
        uid = max(sizes, key=lambda u: sizes[u])
        raise ConfigError(
            "the state exceeds the limit of the memory backend",
            hint="set state.backend to rocksdb or filesystem, which can read the existing state, or raise "
            f"state.memory_limit_bytes to at most {LARGEST_MEMORY_STATE}",
            uid=uid,
            uid_bytes=sizes[uid],
            all_bytes=total,
            limit_bytes=limit,
        )


LOCAL_NAME = "entries"


class FilesystemBackend(DictBackend):
    """A store with its entries in a dictionary and its snapshots in files.

    Args:
        folder: working folder for writing a snapshot; created on demand, unique to one attempt.
        cache: the host's cache of stored files.
        entries: the initial entries.
        inline_below: a snapshot with fewer bytes is stored in the manifest.
        stored: the snapshot that already has exactly `entries`, if there is one.
    """

    def __init__(
        self,
        folder: Path,
        cache: HostCache,
        entries: dict[bytes, bytes],
        inline_below: int,
        stored: StoreSnapshot | None = None,
    ) -> None:
        super().__init__(entries)
        self._folder = folder
        self._cache = cache
        self._inline_below = inline_below
        self._stored = stored

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        super().write(changes)
        if changes:
            self._stored = None

    def snapshot(self, name: str, full: bool = False) -> StoreSnapshot:
        if self._stored is None or full:
            self._stored = self._store(name)
            self._cache.keep_only(self._stored.files)
        return self._stored

    def _store(self, prefix: str) -> StoreSnapshot:
        make_folders(self._folder)
        path = self._folder / LOCAL_NAME
        try:
            with open_private(path) as file:
                file.writelines(self.encode())
            live = LiveState(len(self.entries), path.stat().st_size)
            if live.size_bytes < self._inline_below:
                return StoreSnapshot(inline=path.read_bytes(), live=live)
            return StoreSnapshot(files=tuple(self._cache.store([path], prefix)), live=live)
        finally:
            path.unlink(missing_ok=True)

    def close(self) -> None:
        super().close()
        remove_tree(self._folder)


_HEAD = b"SFKV\x01"
_LENGTH = struct.Struct(">I")
_COUNT = struct.Struct(">Q")
_BLOCK = 64 << 10
_MOST_ITEMS = 2 * _BLOCK // GROUP_BYTES
"""Keys and values of a block: a writer ends it with the entry that makes it 64 KiB, and no key is shorter."""
_LONGEST_HEADER = 5
_LARGEST_BLOCK = LARGEST_VALUE + 2 * LARGEST_KEY + _BLOCK + _LONGEST_HEADER * (_MOST_ITEMS + 1)
"""Bytes of a block: entries of 64 KiB, and the largest entry that any settings permit."""
_items = msgspec.msgpack.Decoder(Annotated[list[bytes], msgspec.Meta(max_length=_MOST_ITEMS)])


def encode_snapshot(entries: Iterable[Entry]) -> Iterator[bytes]:
    """Yields the stream in chunks.

    Args:
        entries: (key, value) pairs in order of keys.
    """
    yield _HEAD
    count = 0
    items: list[bytes] = []
    size = 0
    for key, value in entries:
        items += (key, value)
        size += len(key) + len(value)
        count += 1
        if size >= _BLOCK:
            yield _block(items)
            items, size = [], 0
    if items:
        yield _block(items)
    yield _LENGTH.pack(0) + _COUNT.pack(count)


def decode_snapshot(stream: BinaryIO, size: int, name: str) -> Iterator[EntryBlock]:
    """Yields the entries of a stream, in blocks.

    Args:
        stream: the stream.
        size: size of the stream in bytes.
        name: name of the file, for errors.

    Raises:
        CorruptFile: the stream is not of this format; entries may have been yielded before.
    """
    if stream.read(len(_HEAD)) != _HEAD:
        raise unreadable_file(name, "it does not start with the header of this version")
    left = size - len(_HEAD)
    count, last = 0, b""
    while length := _number(stream, _LENGTH, name):
        left -= _LENGTH.size + length
        if left < 0:
            raise unreadable_file(name, "a block is longer than the file")
        if length > _LARGEST_BLOCK:
            raise unreadable_file(name, "a block exceeds the largest size")
        block = block_of(_items_of(read_exactly(stream, length, name), name), last, name)
        last = block.keys[-1]
        count += len(block.keys)
        yield block
        del block  # Before the next one is read, since each may be large.
    if _number(stream, _COUNT, name) != count:
        raise unreadable_file(name, "its number of entries differs from the recorded count")
    if stream.read(1):
        raise unreadable_file(name, "there are bytes after its end")


def select_groups(data: bytes, owned: KeyGroupRange, name: str) -> bytes:
    """Returns the stream `data` with only the entries of the key groups `owned`. Raises as `decode_snapshot` does."""
    blocks = decode_snapshot(io.BytesIO(data), len(data), name)
    return b"".join(encode_snapshot(entries_of(select_key_groups(blocks, owned))))


def _block(items: list[bytes]) -> bytes:
    data = msgspec.msgpack.encode(items)
    return _LENGTH.pack(len(data)) + data


def _items_of(data: bytes, name: str) -> list[bytes]:
    try:
        items: list[bytes] = _items.decode(data)
    except msgspec.DecodeError as e:
        raise unreadable_file(name, str(e)) from e
    return items


def _number(stream: BinaryIO, layout: struct.Struct, name: str) -> int:
    (value,) = layout.unpack(read_exactly(stream, layout.size, name))
    return int(value)
