"""Keyed state in RocksDB: state larger than memory, incremental snapshots, bulk loading and compaction.

The write-ahead log is off: the checkpoint is the log. RocksDB never changes a file after writing it, so a snapshot
uploads only the files that its base does not have. Compactions run only before a snapshot; see `Compactor`.

A bulk load writes its data files with the options of the store and moves them into its lowest level, where a compaction
of all entries would have left them. They are not copied, so a load takes as much disk space as the entries.

RocksDB's automatic compactions would turn old data into new files, which the next snapshot uploads, at any time.
So they are disabled. When one is due, they are enabled until the first one starts, and the snapshot waits for its end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Concatenate, NoReturn, ParamSpec, TypeVar, cast

from rocksdict import IngestExternalFileOptions, Rdict, RdictIter, ReadOptions, SstFileWriter, WriteBatch

from stateflow import failpoints
from stateflow.clock import SystemClock
from stateflow.config.state_settings import RocksDBSettings
from stateflow.errors import CorruptFile, DamagedCopy, InternalError, StateflowError
from stateflow.state.backends.base import KeyedStateBackend, Snapshot
from stateflow.state.backends.entry_stream import EntryBlock
from stateflow.state.backends.rocksdb.check import BoundsShortener, check_once, fingerprint
from stateflow.state.backends.rocksdb.manifest import ManifestFollower, StoreManifest, compose, manifest_of
from stateflow.state.backends.rocksdb.store import (
    StoreOpener,
    checked_files,
    damaged_file,
    hide_key_groups,
    is_overlap,
    level0_trigger,
    live_files,
    open_to_read,
    raise_background_error,
    rocksdb_options,
    target_file_bytes,
    to_stateflow_error,
    with_object_key,
)
from stateflow.state.handles import Base, StateFile, SubtaskState
from stateflow.state.host_cache import HostCache, damaged_copy, has_content, has_size, remove_tree

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
                start = lower
                # One call for each entry, not four; but these iterators end at a damaged block as after the last entry.
                entries = cast(Iterator[tuple[bytes, bytes]], self._db.items(from_key=lower, read_opt=options))
                for key, value in entries:
                    yield key, value
                    lower = key
                if lower < start:
                    # RocksDB trusts the order in a forged file. Reading on from a smaller key would never end.
                    raise CorruptFile(
                        "the keys of a RocksDB store are not in order",
                        hint="restore an older checkpoint or savepoint, and find out who changed this one",
                        store=str(self._folder),
                    )
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


class RocksDBReader(RocksDBBackend):
    """The store of one subtask as it was stored, in a working folder of its own; RocksDB refuses to write to it.

    Arguments and errors are those of `RocksDBBackend`. `base` must be the state that the subtask itself wrote with
    RocksDB: the store of another subtask would have to be cut, which writes.
    """

    def _opener(self, settings: RocksDBSettings) -> StoreOpener:
        return StoreOpener(self._folder, self._cache, settings, open_to_read)


def fetch_and_check(scratch: Path, cache: HostCache, state: SubtaskState) -> None:
    """Puts the files of a stored state into the cache, and checks the store, so that a reader has only to open it.

    Args:
        scratch: must not exist; a folder for the files, which is removed.
        cache: the host's cache of stored files.
        state: what the subtask has stored with RocksDB.

    Raises:
        MissingFile, CorruptFile: a file is missing, or not what was recorded, or the store is not safe to open.
        DamagedCopy: a cached copy is damaged; it was dropped.
    """
    check_once(scratch, cache, manifest_of(state), checked_files(state))


def bulk_load(store: Rdict, settings: RocksDBSettings, blocks: Iterable[EntryBlock]) -> bool:
    """Adds entries to an open store, without rewriting those that it has.

    Args:
        store: the store.
        settings: those with which it is open.
        blocks: the entries. Where keys do not ascend, another run of entries begins. Between the first and the last key
            of a run, neither another run nor the store may have a key.

    Returns:
        Whether there were any entries.

    Raises:
        CorruptFile: there is a key between those of a run; nothing was added.
    """
    writer = _TableWriter(Path(store.path()), settings)
    for block in blocks:
        writer.add(block)
        del block  # Before the next one is read, since each may be large.
    writer.finish()
    if writer.paths:
        _ingest(store, writer.paths)
    return bool(writer.paths)


class _TableWriter:
    """Writes data files of about the size that compactions write.

    Args:
        folder: folder of the store. RocksDB ignores the names of the files until it has moved them.
        settings: settings of the store.
    """

    def __init__(self, folder: Path, settings: RocksDBSettings) -> None:
        self.paths: list[str] = []
        self._folder = folder
        self._options = rocksdb_options(settings)
        self._largest_file = target_file_bytes(settings)
        self._file: SstFileWriter | None = None
        self._last = b""

    def add(self, block: EntryBlock) -> None:
        """Appends a block, to the current file if its keys are larger and the file is not full."""
        if self._file is None or block.keys[0] <= self._last or self._file.file_size() >= self._largest_file:
            self._file = self._next_file()
        file = self._file
        for key, value in zip(block.keys, block.values, strict=True):
            file[key] = value
        self._last = block.keys[-1]

    def finish(self) -> None:
        """Completes the current file."""
        if self._file is not None:
            self._file.finish()

    def _next_file(self) -> SstFileWriter:
        self.finish()
        path = str(self._folder / f"load-{len(self.paths)}")
        file = SstFileWriter(self._options)
        file.open(path)
        self.paths.append(path)
        return file


def _ingest(store: Rdict, paths: list[str]) -> None:
    options = IngestExternalFileOptions()
    options.set_move_files(True)
    # Entries then keep the sequence number 0 that is in the files, so that files and store manifest agree on the bounds
    # of a file. RocksDB requires another number where keys overlap, and refuses the files.
    options.set_allow_global_seqno(False)
    try:
        store.ingest_external_file(paths, options)
    except Exception as e:
        if not is_overlap(e):
            raise
        raise CorruptFile(
            "parts of a state have entries of the same key groups",
            hint="restore an older checkpoint, or another savepoint",
            store=store.path(),
            reason=str(e),
        ) from e


_START_SECONDS = 1.0
_POLL = timedelta(milliseconds=0.5)
_clock = SystemClock()


class Compactor:
    """Runs the compactions of one store.

    Args:
        db: the open store.
        folder: folder of the store.
        settings: thresholds and kind of compaction.
        subtask: number of the subtask, which staggers the first compactions.
    """

    def __init__(self, db: Rdict, folder: Path, settings: RocksDBSettings, subtask: int) -> None:
        self._db = db
        self._folder = folder
        self._settings = settings
        self._threshold = settings.compact_at_files
        if all(file["level"] == 0 for file in db.live_files()):
            # Otherwise all subtasks would compact first in the same batch, and in the same batches from then on.
            self._threshold -= subtask % max(1, settings.compact_at_files // 2)

    def run_if_due(self, stored: Container[str]) -> int:
        """Runs one compaction of RocksDB's choice if one is due.

        Args:
            stored: names of the data files that are stored already.

        Returns:
            The number of bytes that the compaction adds to the upload.
        """
        if not self._is_due():
            return 0
        names, new_bytes = live_files(self._db), self._bytes_of_new_files(stored)
        self._set_automatic(True)
        until = _clock.monotonic() + _START_SECONDS
        # A compaction that ended before it was seen running has changed the files.
        while not self._is_running and live_files(self._db) == names and _clock.monotonic() < until:
            _clock.sleep(_POLL)
        self._threshold = self._settings.compact_at_files
        # The running compaction completes and no other one starts, so files and manifest stay as they are after it.
        self._set_automatic(False)
        while self._is_running:
            _clock.sleep(_POLL)
        raise_background_error(self._db)
        return max(0, self._bytes_of_new_files(stored) - new_bytes)

    def _is_due(self) -> bool:
        levels = [file["level"] for file in self._db.live_files()]
        if self._settings.compaction == "leveled":
            return levels.count(0) >= self._threshold or self._property("compaction-pending") > 0
        # Sorted runs are the files of level 0, and each lower level as a whole; a single one has nothing to merge with.
        return levels.count(0) + len({*levels} - {0}) >= max(2, self._threshold)

    def _set_automatic(self, enabled: bool) -> None:
        self._db.set_options(
            {
                "disable_auto_compactions": "false" if enabled else "true",
                "level0_file_num_compaction_trigger": str(level0_trigger(self._settings, self._threshold)),
            }
        )

    @property
    def _is_running(self) -> bool:
        return self._property("num-running-compactions") > 0

    def _property(self, name: str) -> int:
        return int(self._db.property_value(f"rocksdb.{name}") or 0)

    def _bytes_of_new_files(self, stored: Container[str]) -> int:
        return sum((self._folder / n).stat().st_size for n in live_files(self._db) if n not in stored)
