"""A RocksDB store that is opened only to be read, in less time than one that is written."""

from __future__ import annotations

from pathlib import Path

from stateflow.config.state_settings import RocksDBSettings
from stateflow.state.backends.rocksdb.backend import RocksDBBackend
from stateflow.state.backends.rocksdb.check import check_once
from stateflow.state.backends.rocksdb.rescale import read_store_manifest
from stateflow.state.backends.rocksdb.store import StoreOpener, checked_files, open_to_read
from stateflow.state.files.host_cache import HostCache
from stateflow.state.handles import SubtaskState


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
    check_once(scratch, cache, read_store_manifest(cache, state), checked_files(state))
