"""Keyed state in RocksDB: state larger than memory, and incremental snapshots.

The write-ahead log is off: the checkpoint is the log. RocksDB never changes a file after writing it, so a snapshot
uploads only the files that its base does not have. Compactions run only before a snapshot; see `compaction`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Concatenate, NoReturn, ParamSpec, TypeVar, cast

from rocksdict import RdictIter, ReadOptions, WriteBatch

from stateflow import failpoints
from stateflow.config.state_settings import RocksDBSettings
from stateflow.errors import CorruptFile, DamagedCopy, InternalError, StateflowError
from stateflow.state.backends.base import KeyedStateBackend, Snapshot
from stateflow.state.backends.entry_stream import EntryBlock
from stateflow.state.backends.rocksdb.bounds import BoundsShortener
from stateflow.state.backends.rocksdb.bulk_load import bulk_load
from stateflow.state.backends.rocksdb.check import fingerprint
from stateflow.state.backends.rocksdb.compaction import Compactor
from stateflow.state.backends.rocksdb.errors import damaged_file, to_stateflow_error, with_object_key
from stateflow.state.backends.rocksdb.manifest import ManifestFollower, StoreManifest, compose
from stateflow.state.backends.rocksdb.store import StoreOpener, hide_key_groups, live_files
from stateflow.state.files.host_cache import HostCache, damaged_copy, has_content, has_size, remove_tree
from stateflow.state.handles import Base, StateFile

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


def _translated(method: Callable[Concatenate[RocksDBBackend, P], R]) -> Callable[Concatenate[RocksDBBackend, P], R]:
    """Wraps a method that calls RocksDB, to raise RocksDB's errors as StateflowError."""

    @wraps(method)
    def call(self: RocksDBBackend, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(self, *args, **kwargs)
        except Exception as e:
            self.fail(e)

    return call


class RocksDBBackend(KeyedStateBackend):
    """A RocksDB store in a working folder of its own.

    Args:
        folder: must not exist; unique to one attempt, so that RocksDB's lock is never contended.
        cache: the host's cache of stored files.
        base: the initial state; a new store without parts. Parts that were written at another parallelism are merged,
            and their entries of other subtasks are hidden.
        settings: memory and compaction.
        incremental: whether a snapshot may refer to files of its base. If not, every snapshot of changed state stores
            all files under its own name, so that no two of these snapshots share a file.

    Raises:
        MissingFile, CorruptFile: a base file is not what was recorded; the store is not opened.
    """

    def __init__(
        self, folder: Path, cache: HostCache, base: Base, settings: RocksDBSettings, incremental: bool = True
    ) -> None:
        self._folder = folder
        self._cache = cache
        self._files: dict[str, StateFile] = {}
        self._changed = base.rescales
        self._settings = settings
        self._incremental = incremental
        self._failure: StateflowError | None = None
        try:
            self._restore(base, settings)
        except BaseException:
            remove_tree(folder)
            raise

    @_translated
    def _restore(self, base: Base, settings: RocksDBSettings) -> None:
        opened = self._opener(settings).open(base)
        self._db, self._files = opened.db, opened.files
        self._compactor = Compactor(self._db, self._folder, settings, base.subtask)
        self._manifest = ManifestFollower(self._folder)
        self._bounds = BoundsShortener(self._folder)
        self._store_manifest = base.own.store_manifest if base.own else b""
        hide_key_groups(self._db, opened.excess)

    def _opener(self, settings: RocksDBSettings) -> StoreOpener:
        return StoreOpener(self._folder, self._cache, settings)

    @_translated
    def get(self, key: bytes) -> bytes | None:
        return cast(bytes | None, self._db.get(key))

    @_translated
    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        # RocksDB takes twice as long for keys in another order.
        ordered = sorted(keys)
        found = cast(list[bytes | None], self._db.get([*ordered])) if keys else []
        if ordered == keys:
            return found
        values = dict(zip(ordered, found, strict=True))
        return [values[key] for key in keys]

    @_translated
    def scan_range(self, lower: bytes, upper: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        options = ReadOptions()
        if upper is not None:
            # Without a bound, the iterator would step over the deleted entries after the last requested one.
            options.set_iterate_upper_bound(upper)
        # Create the iterator now, not with the first entry that is read: it must not see a write in between.
        found = self._db.iter(options)
        found.seek(lower)
        return self._entries(found, options)

    def _entries(self, found: RdictIter, options: ReadOptions) -> Iterator[tuple[bytes, bytes]]:
        """Yields the entries from the position of an iterator on.

        RocksDB's iterator ends at a damaged block as it ends after the last entry; only its status differs, which
        rocksdict's own iterators do not check.

        Args:
            found: the iterator.
            options: options of the iterator, which has pointers into them; rocksdict does not keep them alive.
        """
        try:
            while found.valid():
                yield found.key(), found.value()
                found.next()
            found.status()
        except Exception as e:
            self.fail(e)
        del options

    def read_all(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields all entries in order of keys, in less time than `scan`; nothing may be written meanwhile."""
        return self.read_range(b"", None)

    def read_range(self, lower: bytes, upper: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Yields the entries with lower <= key < upper as `read_all` does; no end if `upper` is None."""
        options = ReadOptions()
        if upper is not None:
            options.set_iterate_upper_bound(upper)
        try:
            while True:
                # One call for each entry, not four; but these iterators end at a damaged block as after the last entry.
                entries = cast(Iterator[tuple[bytes, bytes]], self._db.items(from_key=lower, read_opt=options))
                for key, value in entries:
                    yield key, value
                    lower = key
                check = self._db.iter(options)
                check.seek(lower := lower + b"\0")
                if not check.valid():
                    check.status()
                    return
        except Exception as e:
            self.fail(e)

    @_translated
    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        if not changes:
            return
        batch = WriteBatch(raw_mode=True)
        for key, value in changes.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        self._db.write(batch)
        self._changed = True

    @_translated
    def load(self, blocks: Iterable[EntryBlock]) -> None:
        """Adds entries, faster than `write`; see `bulk_load` for arguments and errors."""
        self._changed |= bulk_load(self._db, self._settings, blocks)

    @_translated
    def snapshot(self, name: str, full: bool = False) -> Snapshot:
        """See `KeyedStateBackend.snapshot`; `name` ends with a slash or dash."""
        if self._failure is not None:
            # A function may have caught the error; the result of a failed read must not become a checkpoint.
            raise self._failure
        full = full and bool(live_files(self._db))
        if not self._changed and not full:
            return self._snapshot()
        self._db.flush()
        compacted = self._compactor.run_if_due(self._files)
        failpoints.hit("task.snapshot")
        self._store_files(name, self._incremental and not full)
        self._changed = False
        checked = fingerprint(self._store_manifest, self._files)
        self._cache.remember_checked(checked)
        self._cache.keep_only(self._files.values(), checked)
        return self._snapshot(compacted)

    def _snapshot(self, compacted: int = 0) -> Snapshot:
        return Snapshot(tuple(self._files.values()), None, self._store_manifest, compacted)

    def close(self) -> None:
        try:
            self._db.close()
        except Exception as e:
            if to_stateflow_error(e, self._folder) is None:
                raise
            # RocksDB failed to flush its memory, which is not needed: the folder is removed now.
            log.warning("RocksDB failed to close a store cleanly: %s", e)
        remove_tree(self._folder)

    def fail(self, error: Exception) -> NoReturn:
        """Raises an error of RocksDB as StateflowError and makes later snapshots fail; raises other errors as is."""
        translated = None if isinstance(error, StateflowError) else to_stateflow_error(error, self._folder)
        if translated is None:
            raise error
        is_corrupt = isinstance(translated, CorruptFile)
        self._failure = self._diagnose(translated, str(error)) if is_corrupt else translated
        raise self._failure from error

    def _diagnose(self, found: StateflowError, reason: str) -> StateflowError:
        """Returns the error for a damaged local copy, which the next attempt replaces, or for a damaged stored file."""
        damaged = [file for name, file in self._files.items() if self._is_damaged(name)]
        self._cache.drop_damaged(damaged)
        if damaged:
            return damaged_copy(damaged[0], self._folder / damaged[0].local_name, reason)
        if damaged_file(reason) not in self._files:
            return DamagedCopy(
                "a file that a task has just written is damaged",
                hint="the next attempt writes it again; if this happens often, check disk and memory of the host",
                **found.facts,
            )
        return with_object_key(found, reason, self._files)

    def _is_damaged(self, name: str) -> bool:
        path = self._folder / name
        # Only data files are linked into the folder, and RocksDB removes those that it has compacted.
        return path.exists() and not has_content(path, self._files[name])

    def _store_files(self, prefix: str, incremental: bool) -> None:
        """Stores the store's data files as they are now, and composes their manifest.

        RocksDB's own checkpoint would first link them into a folder, sync and remove it, which takes 4 ms. That is not
        needed here: without writes, a log and background compactions, data files and manifest do not change.
        """
        names = sorted(live_files(self._db))
        manifest = self._manifest.read()
        if sorted(f.name for f in manifest.files) != names:
            raise InternalError("RocksDB's manifest does not name the files that RocksDB has", files=names[:5])
        shortened = self._shortened(manifest)
        kept = {name: self._files[name] for name in names if self._is_stored(name) and incremental}
        new = [self._folder / name for name in names if name not in kept]
        stored = self._cache.store(new, prefix, self._files) if new else []
        self._files = kept | {file.local_name: file for file in stored}
        self._store_manifest = compose(shortened)

    def _shortened(self, manifest: StoreManifest) -> StoreManifest:
        try:
            return self._bounds.shorten(manifest)
        except ValueError as e:
            found = CorruptFile("a file of a RocksDB store is damaged", store=str(self._folder), reason=str(e))
            raise self._diagnose(found, str(e)) from e

    def _is_stored(self, name: str) -> bool:
        known = self._files.get(name)
        if known is not None and not has_size(self._folder / name, known):
            # RocksDB never uses a name twice, so the file is damaged.
            self._cache.drop_damaged([known])
            raise damaged_copy(known, self._folder / name)
        return known is not None
