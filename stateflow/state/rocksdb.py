"""Keyed state in RocksDB: larger than memory, and snapshots that write only what is new.

The write-ahead log is off: the checkpoint is the log. Files are immutable once RocksDB has written them, so a snapshot
uploads those that its base did not have. RocksDB never compacts in the background here, because that would turn old
data into new files at a moment that nobody chose: before a snapshot it may do one merge, which it chooses; see
`RocksDBSettings`.
"""

from __future__ import annotations

import logging
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

from rocksdict import (
    BottommostLevelCompaction,
    CompactOptions,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
)

from stateflow import failpoints
from stateflow.clock import SystemClock
from stateflow.errors import CorruptFile, DamagedCopy, InternalError, StateflowError
from stateflow.keygroups import KeyGroupRange
from stateflow.settings import RocksDBSettings
from stateflow.state.backend import KeyedStateBackend, Snapshot
from stateflow.state.handles import Base, StateFile, SubtaskState
from stateflow.state.rescaling import assemble, read_store_manifest, write_manifest
from stateflow.state.rocksdb_errors import damaged_file, is_corruption, to_stateflow_error
from stateflow.state.rocksdb_options import level0_trigger, rocksdb_options, without_wal
from stateflow.state.store_manifest import ManifestFollower, compose
from stateflow.state.transfer import HostCache, damaged_copy, has_content, has_size, remove_tree

_BEGIN_SECONDS = 1.0
log = logging.getLogger(__name__)

_POLL = timedelta(milliseconds=0.5)
_clock = SystemClock()
_NAME = re.compile(r"[0-9]+\.sst|MANIFEST-[0-9]+")

F = TypeVar("F", bound=Callable[..., Any])


def _translated(method: F) -> F:
    """Wraps a method that calls RocksDB: what RocksDB raises becomes a StateflowError."""

    @wraps(method)
    def call(self: RocksDBBackend, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except Exception as e:
            self.fail(e)

    return cast(F, call)


class RocksDBBackend(KeyedStateBackend):
    """One RocksDB store in a working folder of its own.

    Args:
        folder: must not exist; unique to one attempt, so that RocksDB's lock is never contended.
        cache: where files come from and go to.
        base: what to start from; without parts, a new store. Parts that were written at another parallelism are put
            together, and what they hold for other subtasks is not to be seen.
        settings: memory and compaction.
        incremental: whether a snapshot refers to files that its base has stored; if not, each is stored anew under the
            snapshot's own name, so that no two snapshots of changed state have a file in common.

    Raises:
        MissingFile, CorruptFile: a base file is not what was recorded; the store is not opened.
    """

    def __init__(
        self,
        folder: Path,
        cache: HostCache,
        base: Base,
        settings: RocksDBSettings,
        incremental: bool = True,
    ) -> None:
        self._folder = folder
        self._cache = cache
        self._settings = settings
        self._compact_at = settings.compact_at_files
        self._files: dict[str, StateFile] = {}
        self._changed = base.rescales
        self._incremental = incremental
        self._failure: StateflowError | None = None
        try:
            self._restore(base)
        except BaseException:
            remove_tree(folder)
            raise

    @_translated
    def _restore(self, base: Base) -> None:
        try:
            excess = self._opened(base)
        except Exception as e:
            if not is_corruption(e):
                raise
            dropped = self._cache.drop_damaged(file for part in base.parts for file in part.files)
            log.warning(
                "RocksDB refused to open a store; %d damaged copies were dropped, trying again: %s",
                dropped,
                e,
            )
            remove_tree(self._folder)
            excess = self._opened_again(base)
        if all(file["level"] == 0 for file in self._db.live_files()):
            # Else all subtasks would do their first merge in the same batch, and all later ones as well.
            self._compact_at -= base.subtask % max(1, self._settings.compact_at_files // 2)
        self._manifest = ManifestFollower(self._folder)
        self._store_manifest = base.own.store_manifest if base.own else b""
        _hide(self._db, excess)

    @_translated
    def get(self, key: bytes) -> bytes | None:
        return cast(bytes | None, self._db.get(key))

    @_translated
    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return cast(list[bytes | None], self._db.get(list(keys))) if keys else []

    @_translated
    def scan_range(self, lower: bytes, upper: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        options = ReadOptions()
        if upper is not None:
            # Without a bound, the iterator would go on over the deleted entries behind the last one that is wanted.
            options.set_iterate_upper_bound(upper)
        # At once, not with the first entry that is asked for: a write in between must not be seen.
        found = self._db.iter(options)
        found.seek(lower)
        return self._entries(found, options)

    def _entries(self, found: RdictIter, options: ReadOptions) -> Iterator[tuple[bytes, bytes]]:
        """The entries from where an iterator stands.

        RocksDB's iterator ends at a damaged block as it ends after the last entry; only its status differs, at which
        rocksdict's own iterators do not look.

        Args:
            options: of the iterator, which points into them, and rocksdict lets them go: they are held here.
        """
        try:
            while found.valid():
                yield found.key(), found.value()
                found.next()
            found.status()
        except Exception as e:
            self.fail(e)
        del options

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
    def snapshot(self, name: str, full: bool = False) -> Snapshot:
        """See `KeyedStateBackend.snapshot`; `name` ends with a slash or dash."""
        if self._failure is not None:
            # A function may have caught it; what it did without the value must not become a checkpoint.
            raise self._failure
        full = full and bool(self._live_files())
        if not self._changed and not full:
            return self._snapshot()
        self._db.flush()
        rewritten = self._compact_when_due()
        failpoints.hit("task.snapshot")
        self._keep_or_store(name, self._incremental and not full)
        self._changed = False
        self._cache.keep_only(self._files.values())
        return self._snapshot(rewritten)

    def _snapshot(self, rewritten: int = 0) -> Snapshot:
        return Snapshot(tuple(self._files.values()), None, self._store_manifest, rewritten)

    def close(self) -> None:
        try:
            self._db.close()
        except Exception as e:
            if to_stateflow_error(e, self._folder) is None:
                raise
            # It writes what is in memory, which is not needed: the folder goes now.
            log.warning("a store was not closed in good order: %s", e)
        remove_tree(self._folder)

    def fail(self, error: Exception) -> NoReturn:
        """Raises what an error of RocksDB means, and makes later snapshots fail; raises other errors as they are."""
        meaning = None if isinstance(error, StateflowError) else to_stateflow_error(error, self._folder)
        if meaning is None:
            raise error
        self._failure = self._examined(meaning, str(error)) if isinstance(meaning, CorruptFile) else meaning
        raise self._failure from error

    def _examined(self, found: CorruptFile, reason: str) -> CorruptFile:
        """Finds out whether this host's copy is damaged, which the next attempt can replace, or what is stored."""
        damaged = [file for name, file in self._files.items() if self._is_damaged(name)]
        self._cache.drop_damaged(damaged)
        if damaged:
            return damaged_copy(damaged[0], self._folder / damaged[0].local_name, reason)
        if damaged_file(reason) not in self._files:
            return DamagedCopy("a file that a task has just written is damaged", hint="the next attempt writes it "
                               "again; if this happens often, check disk and memory of the host",
                               **found.facts)  # fmt: skip
        return self._named(found, reason)

    def _named(self, found: CorruptFile, reason: str) -> CorruptFile:
        """The error with the stored object's name, where it is known."""
        file = self._files.get(damaged_file(reason))
        return CorruptFile(
            found.message, hint=found.hint, **found.facts | ({"file": file.handle.key} if file else {})
        )

    def _is_damaged(self, name: str) -> bool:
        path = self._folder / name
        # A store lays out its data files only, and RocksDB removes those that it has merged.
        return path.exists() and not has_content(path, self._files[name])

    def _opened(self, base: Base) -> Sequence[KeyGroupRange]:
        """Lays the base out and opens it; returns what must be hidden then."""
        self._folder.mkdir(parents=True, mode=0o700)
        excess = self._lay_out(base)
        self._db = _open(self._folder, self._settings)
        return excess

    def _opened_again(self, base: Base) -> Sequence[KeyGroupRange]:
        """As `_opened`, of files that are exactly what was recorded: what RocksDB refuses now, no retry can fix."""
        try:
            return self._opened(base)
        except Exception as e:
            found = to_stateflow_error(e, self._folder)
            if not isinstance(found, CorruptFile):
                raise
            raise self._named(found, str(e)) from e

    def _lay_out(self, base: Base) -> Sequence[KeyGroupRange]:
        """Puts the base's files where RocksDB looks for them; returns what must be hidden after opening."""
        if base.rescales:
            laid_out = assemble(self._folder, self._cache, base, self._cut_out)
            self._files = laid_out.files
            return laid_out.excess
        if base.own is not None and base.own.has_store:
            self._link(base.own)
        return ()

    def _link(self, state: SubtaskState) -> None:
        for stored in state.files:
            _check_name(stored.local_name)
        self._files = {file.local_name: file for file in state.files}
        manifest = read_store_manifest(self._cache, state)
        self._cache.link_all({self._folder / f.name: self._files[f.name] for f in manifest.files})
        write_manifest(self._folder, manifest)

    def _cut_out(self, folder: Path, ranges: Sequence[KeyGroupRange]) -> None:
        store = _open(folder, self._settings)
        try:
            _hide(store, ranges)
            # Without force, RocksDB moves a file with a deleted range to the last level as it is.
            everything = CompactOptions()
            everything.set_bottommost_level_compaction(BottommostLevelCompaction.force_optimized())
            for groups in ranges:
                store.compact_range(*_bounds(groups), everything)
                _raise_background_error(store)
        finally:
            store.close()

    def _keep_or_store(self, prefix: str, incremental: bool) -> None:
        """Takes the store's files as they are now, and what its manifest says of them, which is small.

        RocksDB's own checkpoint links all of that into a folder first, and syncs and removes it: 4 ms, for what nothing
        changes here meanwhile. Without writes, a log, or compactions in the background, data files and manifest stay.
        """
        names = sorted(self._live_files())
        manifest = self._manifest.read()
        if sorted(f.name for f in manifest.files) != names:
            raise InternalError(
                "RocksDB's manifest does not name the files that RocksDB has", files=names[:5]
            )
        kept = {name: self._files[name] for name in names if self._is_kept(name) and incremental}
        new = [self._folder / name for name in names if name not in kept]
        stored = self._cache.store(new, prefix, self._files) if new else []
        self._files = kept | {file.local_name: file for file in stored}
        self._store_manifest = compose(manifest)

    def _is_kept(self, name: str) -> bool:
        known = self._files.get(name)
        if known is not None and not has_size(self._folder / name, known):
            # RocksDB never uses a name twice.
            self._cache.drop_damaged([known])
            raise damaged_copy(known, self._folder / name)
        return known is not None

    def _live_files(self) -> list[str]:
        return [str(file["name"]).removeprefix("/") for file in self._db.live_files()]

    def _compact_when_due(self) -> int:
        """Lets RocksDB do one merge, of its own choice, if one is due; returns the bytes that it adds to the upload."""
        if not self._is_compaction_due():
            return 0
        names, changed = self._live_files(), self._bytes_of_new_files()
        self._db.set_options(self._window(opens=True))
        until = _clock.monotonic() + _BEGIN_SECONDS
        # One that is over before it was seen at work has changed the files.
        while not self._is_compacting and self._live_files() == names and _clock.monotonic() < until:
            _clock.sleep(_POLL)
        self._compact_at = self._settings.compact_at_files
        # What is at work is completed; nothing else begins, so that files and manifest stay as they are from here on.
        self._db.set_options(self._window(opens=False))
        while self._is_compacting:
            _clock.sleep(_POLL)
        _raise_background_error(self._db)
        return max(0, self._bytes_of_new_files() - changed)

    def _is_compaction_due(self) -> bool:
        levels = [file["level"] for file in self._db.live_files()]
        if self._settings.compaction == "leveled":
            return levels.count(0) >= self._compact_at or self._property("compaction-pending") > 0
        # Files of level 0, and each level below as a whole, are sorted runs; of one alone there is nothing to merge.
        return levels.count(0) + len({*levels} - {0}) >= max(2, self._compact_at)

    def _window(self, opens: bool) -> dict[str, str]:
        return {
            "disable_auto_compactions": "false" if opens else "true",
            "level0_file_num_compaction_trigger": str(level0_trigger(self._settings, self._compact_at)),
        }

    @property
    def _is_compacting(self) -> bool:
        return self._property("num-running-compactions") > 0

    def _property(self, name: str) -> int:
        return int(self._db.property_value(f"rocksdb.{name}") or 0)

    def _bytes_of_new_files(self) -> int:
        """Of data files that the base does not have."""
        return sum((self._folder / n).stat().st_size for n in self._live_files() if n not in self._files)


def _open(folder: Path, settings: RocksDBSettings) -> Rdict:
    store = Rdict(str(folder), options=rocksdb_options(settings))
    store.set_write_options(without_wal())
    return store


def _raise_background_error(store: Rdict) -> None:
    """Raises what a merge failed with: RocksDB keeps it to itself until the next write."""
    if int(store.property_value("rocksdb.background-errors") or 0):
        store.write(WriteBatch(raw_mode=True))


def _hide(store: Rdict, ranges: Sequence[KeyGroupRange]) -> None:
    """Deletes key groups, each range in a file of its own: together with other writes or with another range, the file
    would reach over all owned key groups, and cutting it out of a later store would rewrite them all."""
    for groups in ranges:
        store.delete_range(*_bounds(groups))
        store.flush()


def _bounds(groups: KeyGroupRange) -> tuple[bytes, bytes]:
    """The smallest possible key of the range, and of the key group behind it."""
    return struct.pack(">H", groups.first), struct.pack(">H", groups.last + 1)


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise CorruptFile("a snapshot names a file that a store does not have", name=name)
