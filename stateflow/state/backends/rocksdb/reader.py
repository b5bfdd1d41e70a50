"""A RocksDB store that is opened only to be read, in less time than one that is written."""

from __future__ import annotations

from stateflow.config.state_settings import RocksDBSettings
from stateflow.state.backends.rocksdb.backend import RocksDBBackend
from stateflow.state.backends.rocksdb.store import StoreOpener, open_to_read


class RocksDBReader(RocksDBBackend):
    """The store of one subtask as it was stored, in a working folder of its own; RocksDB refuses to write to it.

    Arguments and errors are those of `RocksDBBackend`. `base` must be the state that the subtask itself wrote with
    RocksDB: the store of another subtask would have to be cut, which writes.
    """

    def _opener(self, settings: RocksDBSettings) -> StoreOpener:
        return StoreOpener(self._folder, self._cache, settings, open_to_read)
