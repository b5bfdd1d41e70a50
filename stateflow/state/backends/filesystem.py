"""Keyed state in a dictionary in the task, and in one file per snapshot.

Every snapshot that has a change writes all of the state: a batch costs as much as there is state. Small state goes
into the manifest instead, where it costs no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stateflow.state.backend import Snapshot
from stateflow.state.memory import DictBackend
from stateflow.state.transfer import HostCache, remove_tree

LOCAL_NAME = "entries"


class FilesystemBackend(DictBackend):
    """Entries in a dictionary, snapshots in files.

    Args:
        folder: for a snapshot on its way; made when it is needed, and unique to one attempt.
        cache: where snapshots go to.
        entries: what it starts with.
        inline_below: a snapshot with fewer bytes goes into the manifest.
        stored: what `entries` are stored as already, if they are.
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
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._folder / LOCAL_NAME
        try:
            with path.open("wb") as file:
                file.writelines(self.encoded())
            if path.stat().st_size < self._inline_below:
                return Snapshot(inline=path.read_bytes())
            return Snapshot(files=tuple(self._cache.store([path], prefix)))
        finally:
            path.unlink(missing_ok=True)

    def close(self) -> None:
        super().close()
        remove_tree(self._folder)
