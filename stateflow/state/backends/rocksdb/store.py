"""Opens a RocksDB store with its base state in a working folder: its options, and the translation of its errors.

rocksdict raises plain `Exception` for every error, with RocksDB's message. Only this module parses these messages.
"""

from __future__ import annotations

import logging
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    BottommostLevelCompaction,
    Cache,
    CompactOptions,
    DBCompactionStyle,
    DBCompressionType,
    Options,
    Rdict,
    UniversalCompactOptions,
    WriteBatch,
    WriteOptions,
)

from stateflow.config.state_settings import RocksDBSettings
from stateflow.errors import CorruptFile, StateflowError, StorageError
from stateflow.private_files import make_new_folder
from stateflow.state.backends.rocksdb.check import check_once, complete_store
from stateflow.state.backends.rocksdb.manifest import manifest_of
from stateflow.state.backends.rocksdb.rescale import assemble
from stateflow.state.handles import Base, StateFile, SubtaskState
from stateflow.state.host_cache import HostCache, remove_tree
from stateflow.types.key_groups import KeyGroupRange

log = logging.getLogger(__name__)


_NAME = re.compile(r"[0-9]+\.sst")


@dataclass(frozen=True)
class OpenedStore:
    """An open store.

    Attributes:
        db: the store.
        files: the stored files that it consists of, by local name.
        excess: key groups that its files contain and that the subtask does not own; hide them before reading.
    """

    db: Rdict
    files: dict[str, StateFile]
    excess: Sequence[KeyGroupRange]


class StoreOpener:
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

    def open(self, base: Base) -> OpenedStore:
        """Opens a store with the files of `base`; damaged cached copies are replaced once.

        Raises:
            MissingFile, CorruptFile: a base file is missing, or differs from its recorded size or hash.
        """
        try:
            return self._open(*self._lay_out(base))
        except Exception as e:
            if not is_corruption(e):
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
            raise with_object_key(found, str(e), files) from e

    def _open(self, files: dict[str, StateFile], excess: Sequence[KeyGroupRange]) -> OpenedStore:
        return OpenedStore(self._open_laid_out(self._folder, self._settings), files, excess)

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
        files = checked_files(state)
        manifest = manifest_of(state)
        check_once(self._folder.with_name(f"{self._folder.name}.check"), self._cache, manifest, files)
        self._cache.link_all({self._folder / f.name: files[f.name] for f in manifest.files})
        complete_store(self._folder, self._cache, manifest, files)
        return files

    def _cut_out(self, folder: Path, ranges: Sequence[KeyGroupRange]) -> None:
        store = open_store(folder, self._settings)
        try:
            hide_key_groups(store, ranges)
            # Without force, RocksDB moves a file with a deleted range to the last level as it is.
            everything = CompactOptions()
            everything.set_bottommost_level_compaction(BottommostLevelCompaction.force_optimized())
            for groups in ranges:
                store.compact_range(*_bounds(groups), everything)
                raise_background_error(store)
        finally:
            store.close()


def open_store(folder: Path, settings: RocksDBSettings) -> Rdict:
    """Opens the store in a folder, without a write-ahead log."""
    store = Rdict(str(folder), options=rocksdb_options(settings))
    store.set_write_options(without_wal())
    return store


def open_to_read(folder: Path, settings: RocksDBSettings) -> Rdict:
    """Opens the store in a folder without writing to the folder.

    rocksdict holds the interpreter lock until a store is open. To open one for writing, RocksDB writes and syncs a new
    manifest and other files, so on a busy disk no other thread would continue for a tenth of a second.
    """
    options = rocksdb_options(settings)
    # Only compactions need statistics of files; with them, or with several threads, opening takes 1.6 times as long.
    options.set_skip_stats_update_on_db_open(True)
    options.set_max_file_opening_threads(1)
    return Rdict(str(folder), options=options, access_type=AccessType.read_only())


def live_files(store: Rdict) -> list[str]:
    """Returns the names of a store's data files."""
    return [str(file["name"]).removeprefix("/") for file in store.live_files()]


def raise_background_error(store: Rdict) -> None:
    """Raises the error of a failed compaction, which RocksDB otherwise reports with the next write."""
    if int(store.property_value("rocksdb.background-errors") or 0):
        store.write(WriteBatch(raw_mode=True))


def hide_key_groups(store: Rdict, ranges: Sequence[KeyGroupRange]) -> None:
    """Deletes key groups, each range in a file of its own.

    Together with other writes or with another range, the file would span all owned key groups, and cutting it out of a
    later store would rewrite them all.
    """
    for groups in ranges:
        store.delete_range(*_bounds(groups))
        store.flush()


def _bounds(groups: KeyGroupRange) -> tuple[bytes, bytes]:
    """Returns the smallest possible key of the range, and that of the next key group after it."""
    return struct.pack(">H", groups.first), struct.pack(">H", groups.last + 1)


def checked_files(state: SubtaskState) -> dict[str, StateFile]:
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
    options.set_level_zero_file_num_compaction_trigger(level0_trigger(settings, settings.compact_at_files))
    options.set_target_file_size_base(target_file_bytes(settings))
    if settings.compaction == "leveled":
        options.set_max_bytes_for_level_base(settings.level_base_bytes)
    else:
        options.set_compaction_style(DBCompactionStyle.universal())
        universal = UniversalCompactOptions()
        universal.max_size_amplification_percent = settings.max_size_amplification_percent
        options.set_universal_compaction_options(universal)


def target_file_bytes(settings: RocksDBSettings) -> int:
    """Returns the size at which a new data file begins, below level 0."""
    # Universal: the index of a file is one block of the cache, and that of a larger file would evict all others.
    # Leveled: a compaction into the next level reads one file and all files that it overlaps there, ten times as much.
    return max(1, settings.level_base_bytes // 4) if settings.compaction == "leveled" else _FILE_BYTES


def level0_trigger(settings: RocksDBSettings, compact_at: int) -> int:
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
    if is_corruption(error):
        return CorruptFile(
            "a file of a RocksDB store is damaged",
            hint="check disk and memory of the host; if the stored file is damaged, restore an older checkpoint",
            file=damaged_file(text),
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


def is_corruption(error: Exception) -> bool:
    """Returns whether RocksDB found a damaged or unreadable file."""
    text = str(error)
    if type(error) is not Exception:
        return False
    return _UNREADABLE.search(text) is not None or (
        _CORRUPTION.search(text) is not None and _IO_ERROR.search(text) is None
    )


def is_overlap(error: Exception) -> bool:
    """Returns whether RocksDB refused data files because of keys between those of other files."""
    return type(error) is Exception and _OVERLAP in str(error)


def damaged_file(text: str) -> str:
    """Returns the name of the data file in a message of RocksDB; empty when there is none."""
    found = _DATA_FILE.findall(text)
    return found[0] if found else ""


def with_object_key(found: StateflowError, text: str, files: Mapping[str, StateFile]) -> CorruptFile:
    """Returns an error about a damaged data file with the key of the stored object, where it is known.

    Args:
        found: the error.
        text: the message of RocksDB.
        files: the stored files of the store by local name.
    """
    file = files.get(damaged_file(text))
    return CorruptFile(found.message, hint=found.hint, **found.facts | ({"file": file.handle.key} if file else {}))
