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
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from rocksdict import (
    BlockBasedOptions,
    BottommostLevelCompaction,
    Cache,
    CompactOptions,
    DBCompactionStyle,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    UniversalCompactOptions,
    WriteBatch,
    WriteOptions,
)

from stateflow import failpoints
from stateflow.clock import SystemClock
from stateflow.errors import CorruptFile, InternalError
from stateflow.keygroups import KeyGroupRange
from stateflow.settings import RocksDBSettings
from stateflow.state.backend import KeyedStateBackend, Snapshot
from stateflow.state.handles import Base, StateFile, SubtaskState
from stateflow.state.rescaling import assemble, read_store_manifest, write_manifest
from stateflow.state.store_manifest import ManifestFollower, compose
from stateflow.state.transfer import HostCache, remove_tree

_BEGIN_SECONDS = 1.0
_FILE_BYTES = 64 << 20
_LOG_BYTES = 256 << 10
log = logging.getLogger(__name__)

_IO_ERROR = re.compile(r"\bIO error\b|\(os error \d+\)")
_POLL = timedelta(milliseconds=0.5)
_clock = SystemClock()
_NAME = re.compile(r"[0-9]+\.sst|MANIFEST-[0-9]+")


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
        folder.mkdir(parents=True, mode=0o700)
        try:
            excess = self._lay_out(base)
        except BaseException:
            remove_tree(folder)
            raise
        self._db = _open(folder, settings)
        if all(file["level"] == 0 for file in self._db.live_files()):
            # Else all subtasks would do their first merge in the same batch, and all later ones as well.
            self._compact_at -= base.subtask % max(1, settings.compact_at_files // 2)
        self._manifest = ManifestFollower(folder)
        self._store_manifest = base.own.store_manifest if base.own else b""
        _hide(self._db, excess)

    def get(self, key: bytes) -> bytes | None:
        return cast(bytes | None, self._db.get(key))

    def multi_get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return cast(list[bytes | None], self._db.get(list(keys))) if keys else []

    def scan_range(self, lower: bytes, upper: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        options = ReadOptions()
        if upper is not None:
            # Without a bound, the iterator would go on over the deleted entries behind the last one that is wanted.
            options.set_iterate_upper_bound(upper)
        # At once, not with the first entry that is asked for: a write in between must not be seen.
        return _held(self._db.items(from_key=lower, read_opt=options), options)

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

    def snapshot(self, name: str, full: bool = False) -> Snapshot:
        """See `KeyedStateBackend.snapshot`; `name` ends with a slash or dash."""
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
            if not is_io_error(e):
                raise
            # It writes what is in memory to a disk that is full, and nobody needs that: the folder goes now.
            log.warning("a store was not closed in good order: %s", e)
        remove_tree(self._folder)

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
        stored = self._cache.store(new, prefix) if new else []
        self._files = kept | {file.local_name: file for file in stored}
        self._store_manifest = compose(manifest)

    def _is_kept(self, name: str) -> bool:
        known = self._files.get(name)
        if known is not None and known.size != (self._folder / name).stat().st_size:
            raise InternalError("RocksDB used a file name twice", file=name)
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
            "level0_file_num_compaction_trigger": str(_trigger(self._settings, self._compact_at)),
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
    store = Rdict(str(folder), options=_options(settings))
    store.set_write_options(_without_wal())
    return store


def is_io_error(error: Exception) -> bool:
    """Whether RocksDB could not write or read a file: what it says then has a type of no name, and its words."""
    return type(error) is Exception and _IO_ERROR.search(str(error)) is not None


def _held(entries: Any, options: ReadOptions) -> Iterator[tuple[bytes, bytes]]:
    """RocksDB's iterator points into the options for its bound, and rocksdict lets them go: they are held here."""
    yield from entries


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


@lru_cache(maxsize=4)
def _block_cache(size: int) -> Cache:
    # RocksDB's older cache is cut into so many shards that the index and the filter of one file fill a whole one, and
    # go out and come in again all the time. 0: it finds out how large what it keeps is.
    return Cache.new_hyper_clock_cache(size, 0)


def _options(settings: RocksDBSettings) -> Options:
    table = BlockBasedOptions()
    table.set_block_cache(_block_cache(settings.block_cache_bytes))
    table.set_bloom_filter(10, False)
    # Else each store holds those of all its files beside the cache, and memory grows with state.
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
    # RocksDB's own log gets 4 kB at each snapshot, as long as the store is open.
    options.set_max_log_file_size(_LOG_BYTES)
    options.set_keep_log_file_num(1)
    # It has no statistics, and would keep them in memory every ten minutes.
    options.set_stats_persist_period_sec(0)
    options.set_stats_dump_period_sec(0)
    return options


def _choose_compaction(options: Options, settings: RocksDBSettings) -> None:
    options.set_level_zero_file_num_compaction_trigger(_trigger(settings, settings.compact_at_files))
    if settings.compaction == "leveled":
        options.set_max_bytes_for_level_base(settings.level_base_bytes)
        # A merge into the next level takes one file, and all that it overlaps there: ten times as much.
        options.set_target_file_size_base(max(1, settings.level_base_bytes // 4))
    else:
        # The index of a file is one block of the cache: of larger files it would push out all others.
        options.set_target_file_size_base(_FILE_BYTES)
        options.set_compaction_style(DBCompactionStyle.universal())
        universal = UniversalCompactOptions()
        universal.max_size_amplification_percent = settings.max_size_amplification_percent
        options.set_universal_compaction_options(universal)


def _trigger(settings: RocksDBSettings, compact_at: int) -> int:
    """RocksDB's own threshold: leveled merges at so many files of level 0, universal at one run more."""
    return compact_at if settings.compaction == "leveled" else max(1, compact_at - 1)


def _without_wal() -> WriteOptions:
    options = WriteOptions()
    setattr(options, "disable_wal", True)  # noqa: B010 - its stub has it as a method, it is an attribute
    return options
