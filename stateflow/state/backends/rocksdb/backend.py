"""Keyed state in RocksDB: state larger than memory, incremental snapshots, bulk loading and compaction.

The write-ahead log is off: the checkpoint is the log. RocksDB never changes a file after writing it, so a snapshot
uploads only the files that its base does not have. Compactions run only before a snapshot; see `_Compactor`.

A bulk load writes its data files with the options of the store and moves them into its lowest level, where a compaction
of all entries would have left them. They are not copied, so a load takes as much disk space as the entries.

RocksDB's automatic compactions would turn old data into new files, which the next snapshot uploads, at any time.
So they are disabled. When one is due, they are enabled until the first one starts, and the snapshot waits for its end.

rocksdict raises plain `Exception` for every error, with RocksDB's message. Only this module parses these messages.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache, partial, wraps
from itertools import cycle
from pathlib import Path
from typing import Concatenate, NoReturn, ParamSpec, TypeVar, cast

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    BottommostLevelCompaction,
    Cache,
    CompactOptions,
    DBCompactionStyle,
    DBCompressionType,
    IngestExternalFileOptions,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    SstFileWriter,
    UniversalCompactOptions,
    WriteBatch,
    WriteOptions,
)

from stateflow import failpoints
from stateflow.clock import Section, SystemClock
from stateflow.config.settings import RocksDBSettings
from stateflow.errors import CorruptFile, DamagedCopy, InternalError, StateflowError, StorageError
from stateflow.private_files import make_new_folder
from stateflow.state.backends.base import KeyedStateBackend, KeyedStateReader, LiveState, StoreSnapshot
from stateflow.state.backends.entry_stream import EntryBlock
from stateflow.state.backends.rocksdb.check import BoundsShortener, check_once, complete_store, fingerprint
from stateflow.state.backends.rocksdb.manifest import ManifestFollower, StoreManifest, compose, manifest_of
from stateflow.state.backends.rocksdb.rescale import assemble
from stateflow.state.handles import Base, StateFile, SubtaskState
from stateflow.state.host_cache import HostCache, damaged_copy, has_content, has_size, remove_tree
from stateflow.state.stored_key import encode_group
from stateflow.types.key_groups import KeyGroupRange

log = logging.getLogger(__name__)


P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound="_OpenStore")


def _translated(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Wraps a method that calls RocksDB, to raise RocksDB's errors as StateflowError."""

    @wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(self, *args, **kwargs)
        except Exception as e:
            self.fail(e)

    return call


def _timed(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """As `_translated`, and counts the time in the store."""
    translated = _translated(method)

    @wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        before = self.watch.switch(Section.STORE)
        try:
            return translated(self, *args, **kwargs)
        finally:
            self.watch.switch(before)

    return call


_SAMPLED = 64
"""Of calls for one key or few, which are as many as there are rows, one of so many is measured."""
# Not the first call, which is slower than others.
_IS_MEASURED = (*(False,) * (_SAMPLED // 2), True, *(False,) * (_SAMPLED // 2 - 1))


class _OpenStore(KeyedStateReader):
    """An open RocksDB store in a working folder of its own, and its reads.

    Args:
        folder: must not exist; unique to one attempt, so that RocksDB's lock is never contended.
        cache: the host's cache of stored files.
    """

    _db: Rdict

    def __init__(self, folder: Path, cache: HostCache) -> None:
        self._folder = folder
        self._cache = cache
        self._files: dict[str, StateFile] = {}
        self._failure: StateflowError | None = None
        # The cheapest way to count: a decrement of an attribute takes twice as long.
        self._is_measured = cycle(_IS_MEASURED)

    def get(self, key: bytes) -> bytes | None:
        # Without calls around it, such as a decorator: there may be one for each row.
        found: bytes | None
        try:
            if next(self._is_measured):
                found = self.watch.estimate(Section.STORE, partial(self._db.get, key), _SAMPLED)
            else:
                found = self._db.get(key)
        except Exception as e:
            self.fail(e)
        return found

    @_timed
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
        if not next(self._is_measured):
            found.seek(lower)
            return self._entries(found, options)
        self.watch.estimate(Section.STORE, partial(found.seek, lower), _SAMPLED)
        return self._measured(self._entries(found, options))

    def _measured(self, entries: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        read = partial(next, entries, None)
        while (entry := self.watch.estimate(Section.STORE, read, _SAMPLED)) is not None:
            yield entry

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
        if _damaged_file(reason) not in self._files:
            return DamagedCopy(
                "a file that a task has just written is damaged",
                hint="the next attempt writes it again; if this happens often, check disk and memory of the host",
                **found.facts,
            )
        return _add_object_key(found, reason, self._files)

    def _is_damaged(self, name: str) -> bool:
        path = self._folder / name
        # Only data files are linked into the folder, and RocksDB removes those that it has compacted.
        return path.exists() and not has_content(path, self._files[name])


class RocksDBBackend(_OpenStore, KeyedStateBackend):
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
        super().__init__(folder, cache)
        self._changed = base.rescales
        self._settings = settings
        self._incremental = incremental
        # Apart from the reads: in a fixed order of calls, one of 64 may always be the same kind of call.
        self._is_write_measured = cycle(_IS_MEASURED)
        self._hides_entries = base.rescales or (base.own is not None and base.own.live_entries is None)
        try:
            self._restore(base, settings)
        except BaseException:
            remove_tree(folder)
            raise

    @_translated
    def _restore(self, base: Base, settings: RocksDBSettings) -> None:
        opened = _StoreOpener(self._folder, self._cache, settings).open(base)
        self._db, self._files = opened.db, opened.files
        self._compactor = _Compactor(self._db, self._folder, settings, base.subtask)
        self._manifest = ManifestFollower(self._folder)
        self._bounds = BoundsShortener(self._folder)
        self._store_manifest = base.own.store_manifest if base.own else b""
        _hide_key_groups(self._db, opened.excess)

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        # Without calls around it, as `get`: a state that is read as a list writes the changes of each row first.
        if not changes:
            return
        try:
            if len(changes) > _SAMPLED:
                self.watch.estimate(Section.STORE, partial(self._write, changes), 1)
            elif next(self._is_write_measured):
                self.watch.estimate(Section.STORE, partial(self._write, changes), _SAMPLED)
            else:
                self._write(changes)
        except Exception as e:
            self.fail(e)

    def _write(self, changes: Mapping[bytes, bytes | None]) -> None:
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
    def count_entries(self) -> int:
        return int(self._db.property_int_value("rocksdb.estimate-num-keys") or 0)

    @_timed
    def snapshot(self, name: str, full: bool = False) -> StoreSnapshot:
        """See `KeyedStateBackend.snapshot`; `name` ends with a slash or dash."""
        if self._failure is not None:
            # A function may have caught the error; the result of a failed read must not become a checkpoint.
            raise self._failure
        full = full and bool(_live_files(self._db))
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

    def _snapshot(self, compacted: int = 0) -> StoreSnapshot:
        files = _data_files(self._db)
        # Deleted ranges hide entries of other subtasks that no figure of a file shows, until all is one sorted run.
        self._hides_entries = self._hides_entries and len({file.run for file in files}) > 1
        live = None if self._hides_entries else live_state(files)
        return StoreSnapshot(tuple(self._files.values()), None, self._store_manifest, compacted, live)

    def _store_files(self, prefix: str, incremental: bool) -> None:
        """Stores the store's data files as they are now, and composes their manifest.

        RocksDB's own checkpoint would first link them into a folder, sync and remove it, which takes 4 ms. That is not
        needed here: without writes, a log and background compactions, data files and manifest do not change.
        """
        names = sorted(_live_files(self._db))
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


class RocksDBReader(_OpenStore):
    """The store of one subtask as it was stored, in a working folder of its own; RocksDB opens it only for reading.

    Args:
        folder: must not exist; unique to one attempt.
        cache: the host's cache of stored files.
        state: the state that the subtask itself wrote with RocksDB. The store of another subtask would have to be cut,
            which writes.
        settings: memory.

    Raises:
        MissingFile, CorruptFile: a file is not what was recorded; the store is not opened.
    """

    def __init__(self, folder: Path, cache: HostCache, state: SubtaskState, settings: RocksDBSettings) -> None:
        super().__init__(folder, cache)
        try:
            self._open(Base.of(state), settings)
        except BaseException:
            remove_tree(folder)
            raise

    @_translated
    def _open(self, base: Base, settings: RocksDBSettings) -> None:
        opened = _StoreOpener(self._folder, self._cache, settings, _open_read_only).open(base)
        self._db, self._files = opened.db, opened.files


def fetch_and_check(scratch: Path, cache: HostCache, state: SubtaskState) -> None:
    """Puts the files of a stored state into the cache, and checks the store, so that a reader has only to open it.

    Args:
        scratch: must not exist; a folder for the files, which is removed.
        cache: the host's cache of stored files.
        state: the state of a subtask, stored with RocksDB.

    Raises:
        MissingFile, CorruptFile: a file is missing, or not what was recorded, or the store is not safe to open.
        DamagedCopy: a cached copy is damaged; it was dropped.
    """
    check_once(scratch, cache, manifest_of(state), _check_files(state))


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
        self._largest_file = _target_file_bytes(settings)
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
        if not _is_overlap(e):
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


class _Compactor:
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
        names, new_bytes = _live_files(self._db), self._bytes_of_new_files(stored)
        self._set_automatic(True)
        until = _clock.monotonic() + _START_SECONDS
        # A compaction that ended before it was seen running has changed the files.
        while not self._is_running and _live_files(self._db) == names and _clock.monotonic() < until:
            _clock.sleep(_POLL)
        self._threshold = self._settings.compact_at_files
        # The running compaction completes and no other one starts, so files and manifest stay as they are after it.
        self._set_automatic(False)
        while self._is_running:
            _clock.sleep(_POLL)
        _raise_background_error(self._db)
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
                "level0_file_num_compaction_trigger": str(_level0_trigger(self._settings, self._threshold)),
            }
        )

    @property
    def _is_running(self) -> bool:
        return self._property("num-running-compactions") > 0

    def _property(self, name: str) -> int:
        return int(self._db.property_value(f"rocksdb.{name}") or 0)

    def _bytes_of_new_files(self, stored: Container[str]) -> int:
        return sum((self._folder / n).stat().st_size for n in _live_files(self._db) if n not in stored)


_NAME = re.compile(r"[0-9]+\.sst")


@dataclass(frozen=True)
class _OpenedStore:
    """An open store.

    Attributes:
        db: the store.
        files: the stored files that it consists of, by local name.
        excess: key groups that its files contain and that the subtask does not own; hide them before reading.
    """

    db: Rdict
    files: dict[str, StateFile]
    excess: Sequence[KeyGroupRange]


class _StoreOpener:
    """Opens stores in a folder.

    Args:
        folder: must not exist; unique to one attempt.
        cache: the host's cache of stored files.
        settings: memory and compaction.
        open_laid_out: opens the complete store in the folder.
    """

    def __init__(
        self,
        folder: Path,
        cache: HostCache,
        settings: RocksDBSettings,
        open_laid_out: Callable[[Path, RocksDBSettings], Rdict] | None = None,
    ) -> None:
        self._folder = folder
        self._cache = cache
        self._settings = settings
        self._open_laid_out = open_laid_out or open_store

    def open(self, base: Base) -> _OpenedStore:
        """Opens a store with the files of `base`; damaged cached copies are replaced once.

        Raises:
            MissingFile, CorruptFile: a base file is missing, or differs from its recorded size or hash.
        """
        try:
            return self._open(*self._lay_out(base))
        except Exception as e:
            if not _is_corruption(e):
                raise
            dropped = self._cache.drop_damaged(file for part in base.parts for file in part.files)
            log.warning("RocksDB failed to open a store; dropped %d damaged copies, retrying: %s", dropped, e)
            remove_tree(self._folder)
        files: dict[str, StateFile] = {}
        try:
            files, excess = self._lay_out(base)
            return self._open(files, excess)
        except Exception as e:
            # The files are exactly what was recorded now, so no retry can fix what RocksDB refuses.
            found = to_stateflow_error(e, self._folder)
            if not isinstance(found, CorruptFile):
                raise
            raise _add_object_key(found, str(e), files) from e

    def _open(self, files: dict[str, StateFile], excess: Sequence[KeyGroupRange]) -> _OpenedStore:
        return _OpenedStore(self._open_laid_out(self._folder, self._settings), files, excess)

    def _lay_out(self, base: Base) -> tuple[dict[str, StateFile], Sequence[KeyGroupRange]]:
        """Links the files of `base` into the new folder; returns them by name, and the key groups to hide."""
        make_new_folder(self._folder)
        if base.rescales:
            laid_out = assemble(self._folder, self._cache, base, self._cut_out)
            return laid_out.files, laid_out.excess
        if base.own is not None and base.own.has_store:
            return self._link(base.own), ()
        return {}, ()

    def _link(self, state: SubtaskState) -> dict[str, StateFile]:
        files = _check_files(state)
        manifest = manifest_of(state)
        check_once(self._folder.with_name(f"{self._folder.name}.check"), self._cache, manifest, files)
        self._cache.link_all({self._folder / f.name: files[f.name] for f in manifest.files})
        complete_store(self._folder, self._cache, manifest, files)
        return files

    def _cut_out(self, folder: Path, ranges: Sequence[KeyGroupRange]) -> None:
        store = open_store(folder, self._settings)
        try:
            _hide_key_groups(store, ranges)
            # Without force, RocksDB moves a file with a deleted range to the last level as it is.
            everything = CompactOptions()
            everything.set_bottommost_level_compaction(BottommostLevelCompaction.force_optimized())
            for groups in ranges:
                store.compact_range(*_bounds(groups), everything)
                _raise_background_error(store)
        finally:
            store.close()


def open_store(folder: Path, settings: RocksDBSettings) -> Rdict:
    """Opens the store in a folder, without a write-ahead log."""
    store = Rdict(str(folder), options=rocksdb_options(settings))
    store.set_write_options(without_wal())
    return store


def _open_read_only(folder: Path, settings: RocksDBSettings) -> Rdict:
    """Opens the store in a folder without writing to the folder.

    rocksdict holds the interpreter lock until a store is open. To open one for writing, RocksDB writes and syncs a new
    manifest and other files, so on a busy disk no other thread would continue for a tenth of a second.
    """
    options = rocksdb_options(settings)
    # Only compactions need statistics of files; with them, or with several threads, opening takes 1.6 times as long.
    options.set_skip_stats_update_on_db_open(True)
    options.set_max_file_opening_threads(1)
    return Rdict(str(folder), options=options, access_type=AccessType.read_only())


def _live_files(store: Rdict) -> list[str]:
    """Returns the names of a store's data files."""
    return [str(file["name"]).removeprefix("/") for file in store.live_files()]


@dataclass(frozen=True)
class DataFile:
    """A data file of a store.

    Attributes:
        level: its level.
        name: its name.
        size: in bytes.
        entries: values and deletions that it has.
        deletions: those of `entries` that delete a key.
    """

    level: int
    name: str
    size: int
    entries: int
    deletions: int

    @property
    def run(self) -> int | str:
        """The sorted run that it belongs to: of each level, but of level 0 each file is one."""
        return self.level or self.name


def _data_files(store: Rdict) -> list[DataFile]:
    return [
        DataFile(f["level"], str(f["name"]), f["size"], f["num_entries"], f["num_deletions"])
        for f in store.live_files()
    ]


def live_state(files: Sequence[DataFile]) -> LiveState:
    """Returns a lower bound of the live entries of a store.

    The keys of a sorted run are distinct. Each one that the run sets is live, whichever run has its newest value,
    unless another run deletes it.

    Args:
        files: the data files; none of them deletes a range of keys.
    """
    deleted = sum(file.deletions for file in files)
    best = LiveState(0, 0)
    for run in {file.run for file in files}:
        own = [file for file in files if file.run == run]
        entries = sum(file.entries for file in own)
        # Its own deletions are of other keys than its values.
        live = entries - deleted
        if live > best.entries:
            best = LiveState(live, sum(file.size for file in own) * live // entries)
    return best


def _raise_background_error(store: Rdict) -> None:
    """Raises the error of a failed compaction, which RocksDB otherwise reports with the next write."""
    if int(store.property_value("rocksdb.background-errors") or 0):
        store.write(WriteBatch(raw_mode=True))


def _hide_key_groups(store: Rdict, ranges: Sequence[KeyGroupRange]) -> None:
    """Deletes key groups, each range in a file of its own.

    Together with other writes or with another range, the file would span all owned key groups, and cutting it out of a
    later store would rewrite them all.
    """
    for groups in ranges:
        store.delete_range(*_bounds(groups))
        store.flush()


def _bounds(groups: KeyGroupRange) -> tuple[bytes, bytes]:
    """Returns the smallest possible key of the range, and that of the next key group after it."""
    return encode_group(groups.first), encode_group(groups.last + 1)


def _check_files(state: SubtaskState) -> dict[str, StateFile]:
    """Returns the files of a stored state by local name; raises CorruptFile for a name that no store has."""
    for stored in state.files:
        _check_name(stored.local_name)
    return {file.local_name: file for file in state.files}


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise CorruptFile(
            "a snapshot names a file that no RocksDB store has", hint="restore an older checkpoint", name=name
        )


_FILE_BYTES = 64 << 20
_LOG_BYTES = 256 << 10


@lru_cache(maxsize=4)
def _block_cache(size: int) -> Cache:
    # RocksDB's LRU cache has so many shards that the index and the filter of one file fill a whole shard, and are
    # evicted and read again all the time. 0: the cache estimates the size of its entries.
    return Cache.new_hyper_clock_cache(size, 0)


def rocksdb_options(settings: RocksDBSettings) -> Options:
    """Returns the options to open a store with."""
    table = BlockBasedOptions()
    table.set_block_cache(_block_cache(settings.block_cache_bytes))
    table.set_bloom_filter(10, False)
    # Otherwise each store keeps them for all its files in addition to the cache, and memory grows with the state.
    table.set_cache_index_and_filter_blocks(True)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_disable_auto_compactions(True)
    _choose_compaction(options, settings)
    options.set_write_buffer_size(settings.write_buffer_bytes)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_block_based_table_factory(table)
    options.set_level_zero_slowdown_writes_trigger(1 << 20)
    options.set_level_zero_stop_writes_trigger(1 << 20)
    options.set_max_open_files(256)
    # RocksDB's info log grows by 4 kB per snapshot as long as the store is open.
    options.set_max_log_file_size(_LOG_BYTES)
    options.set_keep_log_file_num(1)
    # Statistics are off; RocksDB would still save them in memory every ten minutes.
    options.set_stats_persist_period_sec(0)
    options.set_stats_dump_period_sec(0)
    return options


def _choose_compaction(options: Options, settings: RocksDBSettings) -> None:
    options.set_level_zero_file_num_compaction_trigger(_level0_trigger(settings, settings.compact_at_files))
    options.set_target_file_size_base(_target_file_bytes(settings))
    if settings.compaction == "leveled":
        options.set_max_bytes_for_level_base(settings.level_base_bytes)
    else:
        options.set_compaction_style(DBCompactionStyle.universal())
        universal = UniversalCompactOptions()
        universal.max_size_amplification_percent = settings.max_size_amplification_percent
        options.set_universal_compaction_options(universal)


def _target_file_bytes(settings: RocksDBSettings) -> int:
    """Returns the size at which a new data file begins, below level 0."""
    # Universal: the index of a file is one block of the cache, and that of a larger file would evict all others.
    # Leveled: a compaction into the next level reads one file and all files that it overlaps there, ten times as much.
    return max(1, settings.level_base_bytes // 4) if settings.compaction == "leveled" else _FILE_BYTES


def _level0_trigger(settings: RocksDBSettings, compact_at: int) -> int:
    """Returns RocksDB's threshold for a compaction at `compact_at` files: universal compacts at one run more."""
    return compact_at if settings.compaction == "leveled" else max(1, compact_at - 1)


def without_wal() -> WriteOptions:
    """Returns options for writes without a write-ahead log: the checkpoint is the log."""
    options = WriteOptions()
    setattr(options, "disable_wal", True)  # noqa: B010 - an attribute that the stub declares as a method
    return options


_CORRUPTION = re.compile(r"\bCorruption\b")
_UNREADABLE = re.compile(r"IO error: While p?read.*Input/output error")
_IO_ERROR = re.compile(r"\bIO error\b|\(os error \d+\)")
_OVERLAP = "Global seqno is required"
_DATA_FILE = re.compile(r"[0-9]{6,}\.sst")
_LONGEST = 300


def to_stateflow_error(error: Exception, folder: Path) -> StateflowError | None:
    """Returns the StateflowError for an error of rocksdict; None when it is not an error of RocksDB.

    Args:
        error: the error.
        folder: folder of the store.
    """
    text = str(error)
    if _is_corruption(error):
        return CorruptFile(
            "a file of a RocksDB store is damaged",
            hint="check disk and memory of the host; if the stored file is damaged, restore an older checkpoint",
            file=_damaged_file(text),
            store=str(folder),
            reason=text[:_LONGEST],
        )
    if type(error) is Exception and _IO_ERROR.search(text):
        return StorageError(
            "a task could not write or read its files",
            hint="check the free space and the disk of local_dir",
            local_dir=str(folder),
            reason=text[:_LONGEST],
        )
    return None


def _is_corruption(error: Exception) -> bool:
    """Returns whether RocksDB found a damaged or unreadable file."""
    text = str(error)
    if type(error) is not Exception:
        return False
    return _UNREADABLE.search(text) is not None or (
        _CORRUPTION.search(text) is not None and _IO_ERROR.search(text) is None
    )


def _is_overlap(error: Exception) -> bool:
    """Returns whether RocksDB refused data files because of keys between those of other files."""
    return type(error) is Exception and _OVERLAP in str(error)


def _damaged_file(text: str) -> str:
    """Returns the name of the data file in a message of RocksDB; empty when there is none."""
    found = _DATA_FILE.findall(text)
    return found[0] if found else ""


def _add_object_key(found: StateflowError, text: str, files: Mapping[str, StateFile]) -> CorruptFile:
    """Returns an error about a damaged data file with the key of the stored object, where it is known.

    Args:
        found: the error.
        text: the message of RocksDB.
        files: the stored files of the store by local name.
    """
    file = files.get(_damaged_file(text))
    return CorruptFile(found.message, hint=found.hint, **found.facts | ({"file": file.handle.key} if file else {}))
