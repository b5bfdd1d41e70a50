"""Opens the state backend that a job has configured, with state written by any backend as its base."""

from __future__ import annotations

import io
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import BinaryIO

from stateflow.clock import Clock
from stateflow.config.settings import RocksDBSettings, StateSettings
from stateflow.errors import CorruptFile
from stateflow.private_files import ScratchFolder, make_new_folder
from stateflow.state.backends import canonical_file, hash_maps
from stateflow.state.backends.base import KeyedStateBackend, KeyedStateReader, LiveState, StoreSnapshot
from stateflow.state.backends.entry_stream import (
    Entry,
    EntryBlock,
    blocks_of,
    entries_of,
    select_key_groups,
    select_ranges,
)
from stateflow.state.backends.hash_maps import LOCAL_NAME, DictBackend, FilesystemBackend
from stateflow.state.backends.rocksdb.backend import RocksDBBackend, RocksDBReader, fetch_and_check
from stateflow.state.backends.rocksdb.manifest import manifest_of
from stateflow.state.handles import CANONICAL, Base, StateFile, SubtaskState, check_backends_known
from stateflow.state.host_cache import Check, HostCache, damaged_copy, has_content, has_size, remove_tree
from stateflow.state.stored_key import ALL_KEYS, KeyRange, decode_group
from stateflow.storage import Storage
from stateflow.types.key_groups import KeyGroupRange

_HASH_MAPS = ("memory", "filesystem")


@dataclass(frozen=True)
class StoreLocation:
    """Local resources of a store.

    Attributes:
        folder: the working folder; must not exist, unique to one attempt.
        cache: the host's cache of stored files.
        rocksdb: memory and compaction of RocksDB.
    """

    folder: Path
    cache: HostCache
    rocksdb: RocksDBSettings

    @classmethod
    def in_folder(cls, folder: Path, storage: Storage, clock: Clock) -> StoreLocation:
        """Returns the location of stores that are only read, one at a time, and whose files all are in `folder`."""
        return cls(folder / "work", HostCache.temporary(folder / "cache", storage, clock), RocksDBSettings())


@contextmanager
def open_store_location(storage: Storage, clock: Clock) -> Iterator[StoreLocation]:
    """Opens a location to read the state of one subtask; its local files are removed at the end of the block.

    Args:
        storage: the storage with the files of the state; the caller keeps them from deletion.
        clock: gives the timestamps of copies of files.
    """
    with ScratchFolder() as scratch:
        yield StoreLocation.in_folder(scratch.path, storage, clock)


def open_backend(location: StoreLocation, base: Base, settings: StateSettings) -> KeyedStateBackend:
    """Opens a store of the configured backend with the content of `base`, whichever backends wrote it.

    Raises:
        MissingFile, CorruptFile: a base file is not what was recorded.
        ConfigError: this version does not have the backend that wrote a part.
    """
    check_backends_known(base.parts)
    if settings.backend == "rocksdb":
        return _open_rocksdb(location, base, settings.incremental)
    entries = dict(read_entries(location, base))
    if settings.backend == "filesystem":
        stored = _stored_by("filesystem", base)
        return FilesystemBackend(location.folder, location.cache, entries, settings.inline_below_bytes, stored)
    # This backend never reads a file again.
    location.cache.keep_only(())
    return DictBackend(entries)


def open_to_read(location: StoreLocation, state: SubtaskState) -> KeyedStateReader:
    """Opens the state of one subtask for reading; raises as `open_backend` does.

    A state of a hash map is in memory as a whole.
    """
    if _has_rocksdb_store(state):
        return RocksDBReader(location.folder, location.cache, state, location.rocksdb)
    base = Base.of(state)
    if state.backend in _HASH_MAPS:
        return DictBackend(dict(read_entries(location, base)))
    return open_backend(location, base, StateSettings(backend="rocksdb"))


def prepare_to_read(location: StoreLocation, state: SubtaskState) -> None:
    """Does what takes most of the time of `open_to_read`, for another process of the host with the same cache folder.

    The files of a RocksDB store are fetched into the cache and checked; for other backends, there is nothing to do.
    Raises as `open_backend` does.
    """
    if _has_rocksdb_store(state):
        fetch_and_check(location.folder, location.cache, state)


def _has_rocksdb_store(state: SubtaskState) -> bool:
    return _is_native(state) and state.has_store


def read_entries(location: StoreLocation, base: Base) -> Generator[Entry, None, None]:
    """Yields the entries of the key groups that `base` owns, in order of keys if it has one part.

    Raises as `open_backend` does.
    """
    check_backends_known(base.parts)
    for run in _foreign_runs(base):
        yield from entries_of(_read_blocks(location, run))
    yield from _native_entries(location, base)


def read_blocks(
    location: StoreLocation, base: Base, ranges: Sequence[KeyRange] | None = None
) -> Generator[EntryBlock, None, None]:
    """Yields what `read_entries` yields, in blocks: faster unless RocksDB wrote the parts.

    Args:
        ranges: the ranges of keys to read, ascending and without overlaps; None for all. Keys between them are
            not read, except in the files of hash maps.

    Raises as `open_backend` does.
    """
    check_backends_known(base.parts)
    for run in _foreign_runs(base):
        yield from _read_blocks(location, run) if ranges is None else _blocks_in(ranges, location, run)
    yield from blocks_of(_native_entries(location, base, (ALL_KEYS,) if ranges is None else ranges))


def _blocks_in(ranges: Sequence[KeyRange], location: StoreLocation, base: Base) -> Iterator[EntryBlock]:
    for part in base.parts:
        # A canonical file is divided by key groups, that of a hash map is read as a whole.
        for groups in _groups_of(ranges, base.owned) if part.backend == CANONICAL else [base.owned]:
            yield from select_ranges(_read_blocks(location, replace(base, owned=groups, parts=(part,))), ranges)


def _groups_of(ranges: Sequence[KeyRange], owned: KeyGroupRange) -> Iterator[KeyGroupRange]:
    """Yields the key groups that ranges of keys are in, adjacent ones together."""
    found: KeyGroupRange | None = None
    for lower, upper in ranges:
        first, last = map(decode_group, (lower, upper))
        if found is not None and first > found.last + 1:
            yield found
            found = None
        found = KeyGroupRange(first if found is None else found.first, min(last, owned.last))
    if found is not None:
        yield found


def _native_entries(
    location: StoreLocation, base: Base, ranges: Sequence[KeyRange] = (ALL_KEYS,)
) -> Generator[Entry, None, None]:
    native = _native_parts(base)
    if native.parts:
        store = RocksDBBackend(location.folder, location.cache, native, location.rocksdb)
        try:
            for lower, upper in ranges:
                yield from store.read_range(lower, upper)
        finally:
            store.close()


def _open_rocksdb(location: StoreLocation, base: Base, incremental: bool) -> RocksDBBackend:
    store = RocksDBBackend(location.folder, location.cache, _native_parts(base), location.rocksdb, incremental)
    try:
        for run in _foreign_runs(base):
            with closing(_read_blocks(location, run)) as blocks:
                store.load(blocks)
    except BaseException:
        store.close()
        raise
    return store


def _native_parts(base: Base) -> Base:
    """Returns the base with only the parts that RocksDB wrote."""
    return replace(base, parts=tuple(part for part in base.parts if _is_native(part)))


def _foreign_runs(base: Base) -> Iterator[Base]:
    """Yields the base with parts that RocksDB did not write, in order of key groups, a native part between two runs."""
    parts = sorted(base.parts, key=lambda part: part.first_group)
    for is_native, run in groupby(parts, _is_native):
        if not is_native:
            yield replace(base, parts=tuple(run))


def _is_native(part: SubtaskState) -> bool:
    return part.backend == "rocksdb"


def _read_blocks(location: StoreLocation, base: Base) -> Generator[EntryBlock, None, None]:
    """Yields the entries of the key groups that `base` owns, part by part; RocksDB wrote none of the parts."""
    for part in base.parts:
        if part.backend == CANONICAL:
            for stored in part.files:
                with _opened(location, part, stored, has_size) as file:
                    yield from canonical_file.decode_groups(file, stored.handle.key, base.owned)
        else:
            yield from select_key_groups(_hashmap_blocks(location, part), base.owned)


def check_snapshot(state: SubtaskState) -> None:
    """Checks without reading files that a snapshot has those that its backend writes, as a run does at its first row.

    Raises:
        CorruptFile: it has others.
        ConfigError: this version does not have the backend.
    """
    check_backends_known([state])
    if state.backend in _HASH_MAPS and state.inline is None:
        _check_one_file(state)
    elif state.has_store and _is_native(state):
        manifest_of(state)


def _check_one_file(part: SubtaskState) -> None:
    if [f.local_name for f in part.files] != [LOCAL_NAME]:
        raise CorruptFile(
            "a snapshot of a hash map does not consist of one file",
            hint="restore an older checkpoint",
            files=[f.local_name for f in part.files][:5],
            snapshot=part.snapshot,
        )


def _hashmap_blocks(location: StoreLocation, part: SubtaskState) -> Iterator[EntryBlock]:
    if part.inline is not None:
        yield from hash_maps.decode_snapshot(io.BytesIO(part.inline), len(part.inline), part.snapshot)
        return
    _check_one_file(part)
    stored = part.files[0]
    # The format has no checksums of its own, and the file is read as a whole anyway.
    with _opened(location, part, stored, has_content) as file:
        yield from hash_maps.decode_snapshot(file, stored.size, stored.handle.key)


@contextmanager
def _opened(location: StoreLocation, part: SubtaskState, stored: StateFile, check: Check) -> Iterator[BinaryIO]:
    """Opens a file of a part for reading, fetching it first if the host has no copy that passes the check.

    A damaged copy that the reader finds is dropped, so that the next attempt fetches the file again.
    """
    # In a folder, because what a killed attempt leaves is looked for and removed as a folder.
    scratch = location.folder.with_name(f"{location.folder.name}.part-{part.subtask}")
    make_new_folder(scratch)
    path = scratch / LOCAL_NAME
    try:
        location.cache.link(stored, path, check)
        with path.open("rb") as file:
            yield file
    except CorruptFile as e:
        if location.cache.drop_damaged([stored]):
            raise damaged_copy(stored, path, str(e.facts.get("reason", ""))) from e
        raise
    finally:
        remove_tree(scratch)


def _stored_by(backend: str, base: Base) -> StoreSnapshot | None:
    """Returns the snapshot that `base` consists of if `backend` wrote it for this subtask, else None."""
    own = base.own
    if own is None or own.backend != backend:
        return None
    known = own.live_entries is not None and own.live_bytes is not None
    live = LiveState(own.live_entries or 0, own.live_bytes or 0) if known else None
    return StoreSnapshot(files=tuple(own.files), inline=own.inline, live=live)
