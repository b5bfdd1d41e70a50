"""Compaction of a RocksDB store: at most one, and only just before a snapshot.

RocksDB's automatic compactions would turn old data into new files, which the next snapshot uploads, at any time.
So they are disabled. When one is due, they are enabled until the first one starts, and the snapshot waits for its end.
"""

from __future__ import annotations

from collections.abc import Container
from datetime import timedelta
from pathlib import Path

from rocksdict import Rdict

from stateflow.clock import SystemClock
from stateflow.config.state_settings import RocksDBSettings
from stateflow.state.backends.rocksdb.options import level0_trigger
from stateflow.state.backends.rocksdb.store import live_files, raise_background_error

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
