"""The backends that a job can choose from, and state of any of them as the base of any other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from stateflow.errors import CorruptFile
from stateflow.settings import RocksDBSettings, StateSettings
from stateflow.state import snapshots
from stateflow.state.backend import KeyedStateBackend, Snapshot
from stateflow.state.filesystem import LOCAL_NAME, FilesystemBackend
from stateflow.state.handles import Base, SubtaskState, check_known
from stateflow.state.memory import DictBackend
from stateflow.state.rocksdb import RocksDBBackend
from stateflow.state.snapshots import Entry
from stateflow.state.transfer import HostCache, has_content

_CHUNK = 10_000


@dataclass(frozen=True)
class Place:
    """Where a store works on its host.

    Attributes:
        folder: must not exist; unique to one attempt.
        cache: where files come from and go to.
        rocksdb: memory and compaction of a RocksDB.
    """

    folder: Path
    cache: HostCache
    rocksdb: RocksDBSettings


def open_backend(place: Place, base: Base, settings: StateSettings) -> KeyedStateBackend:
    """A store of the chosen backend with exactly `base` in it, whichever backends its parts were written by.

    Raises:
        MissingFile, CorruptFile: a base file is not what was recorded.
        ConfigError: a part was written by a backend that this version does not have.
    """
    check_known(base.parts)
    if settings.backend == "rocksdb":
        return _open_rocksdb(place, base, settings.incremental)
    entries = dict(read_entries(place, base))
    if settings.backend == "filesystem":
        stored = _stored_by("filesystem", base)
        return FilesystemBackend(place.folder, place.cache, entries, settings.inline_below_bytes, stored)
    # It never asks for a file again.
    place.cache.keep_only(())
    return DictBackend(entries)


def read_entries(place: Place, base: Base) -> Iterator[Entry]:
    """The entries of the key groups that `base` owns; in order of keys when it has one part. Raises as `open_backend`
    does."""
    check_known(base.parts)
    native, foreign = _split(base)
    for part in foreign.parts:
        yield from snapshots.within(_decoded(place, part), base.owned)
    if native.parts:
        store = RocksDBBackend(place.folder, place.cache, native, place.rocksdb)
        try:
            yield from store.scan(b"")
        finally:
            store.close()


def _open_rocksdb(place: Place, base: Base, incremental: bool) -> RocksDBBackend:
    native, foreign = _split(base)
    store = RocksDBBackend(place.folder, place.cache, native, place.rocksdb, incremental)
    try:
        entries = read_entries(place, foreign)
        while chunk := dict(islice(entries, _CHUNK)):
            store.write(chunk)
    except BaseException:
        store.close()
        raise
    return store


def _split(base: Base) -> tuple[Base, Base]:
    """The base without the parts that RocksDB did not write, and without those that it did."""
    native = tuple(p for p in base.parts if p.backend == "rocksdb")
    foreign = tuple(p for p in base.parts if p.backend != "rocksdb")
    return replace(base, parts=native), replace(base, parts=foreign)


def _decoded(place: Place, part: SubtaskState) -> Iterator[Entry]:
    if part.inline is not None:
        yield from snapshots.decode_bytes(part.inline, part.snapshot)
        return
    if [f.local_name for f in part.files] != [LOCAL_NAME]:
        raise CorruptFile("a snapshot of a hash map is not one file", files=[f.local_name for f in part.files][:5],
                          snapshot=part.snapshot)  # fmt: skip
    stored = part.files[0]
    path = place.folder.with_name(f"{place.folder.name}.part-{part.subtask}")
    place.folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        # It has no checksums of its own, and is read whole anyway.
        place.cache.link(stored, path, has_content)
        with path.open("rb") as file:
            yield from snapshots.decode(file, stored.size, stored.handle.key)
    finally:
        path.unlink(missing_ok=True)


def _stored_by(backend: str, base: Base) -> Snapshot | None:
    """What the base is stored as, when that is what `backend` would store again."""
    own = base.own
    if own is None or own.backend != backend:
        return None
    return Snapshot(files=tuple(own.files), inline=own.inline)
