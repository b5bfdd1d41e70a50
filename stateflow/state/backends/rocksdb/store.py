"""Opening a RocksDB store with its base state in a working folder."""

from __future__ import annotations

import logging
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rocksdict import AccessType, BottommostLevelCompaction, CompactOptions, Rdict, WriteBatch

from stateflow.config.state_settings import RocksDBSettings
from stateflow.errors import CorruptFile
from stateflow.private_files import make_new_folder
from stateflow.state.backends.rocksdb.check import check_once, complete_store
from stateflow.state.backends.rocksdb.errors import is_corruption, to_stateflow_error, with_object_key
from stateflow.state.backends.rocksdb.options import rocksdb_options, without_wal
from stateflow.state.backends.rocksdb.rescale import assemble, read_store_manifest
from stateflow.state.files.host_cache import HostCache, remove_tree
from stateflow.state.handles import Base, StateFile, SubtaskState
from stateflow.types.key_groups import KeyGroupRange

log = logging.getLogger(__name__)

_NAME = re.compile(r"[0-9]+\.sst|MANIFEST-[0-9]+")


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
        manifest = read_store_manifest(self._cache, state)
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
