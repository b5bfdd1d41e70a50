"""The filesystem state backend: a dictionary in the task, and one file per snapshot.

Every snapshot of changed state writes the whole state, so a batch's cost grows with the state. State below a threshold
is stored in the manifest, without a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stateflow.private_files import make_folders, open_private
from stateflow.state.backends.base import Snapshot
from stateflow.state.backends.memory import DictBackend
from stateflow.state.files.host_cache import HostCache, remove_tree

LOCAL_NAME = "entries"


class FilesystemBackend(DictBackend):
    """A store with its entries in a dictionary and its snapshots in files.

    Args:
        folder: working folder for writing a snapshot; created on demand, unique to one attempt.
        cache: the host's cache of stored files.
        entries: the initial entries.
        inline_below: a snapshot with fewer bytes is stored in the manifest.
        stored: the snapshot that already has exactly `entries`, if there is one.
    """

    def __init__(
        self,
        folder: Path,
        cache: HostCache,
        entries: dict[bytes, bytes],
        inline_below: int,
        stored: Snapshot | None = None,
    ) -> None:
        super().__init__(entries)
        self._folder = folder
        self._cache = cache
        self._inline_below = inline_below
        self._stored = stored

    def write(self, changes: Mapping[bytes, bytes | None]) -> None:
        super().write(changes)
        if changes:
            self._stored = None

    def snapshot(self, name: str, full: bool = False) -> Snapshot:
        if self._stored is None or full:
            self._stored = self._store(name)
            self._cache.keep_only(self._stored.files)
        return self._stored

    def _store(self, prefix: str) -> Snapshot:
        make_folders(self._folder)
        path = self._folder / LOCAL_NAME
        try:
            with open_private(path) as file:
                file.writelines(self.encoded())
            if path.stat().st_size < self._inline_below:
                return Snapshot(inline=path.read_bytes())
            return Snapshot(files=tuple(self._cache.store([path], prefix)))
        finally:
            path.unlink(missing_ok=True)

    def close(self) -> None:
        super().close()
        remove_tree(self._folder)
