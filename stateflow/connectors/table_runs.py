"""Which runs may have left files in a table of a store, so that a start lists their files and not the whole table.

A run registers in the table before it writes anything. The names of its files begin with its generation, so that a
store lists them by a prefix. A registration is removed when three later runs have swept: a task of a run that was
replaced may still write while the next run sweeps. Sweeps are registered too, because a run may die before its sweep.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product

from stateflow.api.sink import SinkContext
from stateflow.connectors.table_folder import TableFolder
from stateflow.storage import BlobInfo, Storage

_FOLDER = ".stateflow-runs"
_SWEPT = ".swept"
_NUMBER = re.compile(r"[0-9]{1,20}")
_SWEEP = re.compile(r"([0-9]{1,20})\.swept")
_SWEEPS = 3
"""How many later runs sweep the files of a run."""
_MOST_LISTS = 1024
"""The most prefixes that are listed, such as of four runs in 256 folders: a list of a table with a million files takes
about as many requests."""
_AT_ONCE = 16


class TableRuns:
    """The registered runs of one sink in its table.

    Nothing is registered, and all files are listed, on a disk and in a store that does not list by prefix.

    Args:
        table: the table.
        context: the sink.
        depth: how many folders above a file have the values of partition columns.
    """

    def __init__(self, table: TableFolder, context: SinkContext, depth: int) -> None:
        self._table = table
        self._own = f"{context.job_uuid}-{context.uid}"
        self._depth = depth
        self._runs: list[int] = []
        self._sweeps: set[int] = set()

    def register(self, generation: int) -> None:
        """Registers a run, durably. Raises StorageError."""
        if self._table.prefix_lists is not None:
            self._table.create(self._path(generation), b"")

    def written(self) -> list[BlobInfo]:
        """Returns a list of files that has all which registered runs of the sink have written, and perhaps others."""
        storage = self._table.prefix_lists
        if storage is None:
            return self._table.files("")
        names = [blob.key.rpartition("/")[2] for blob in storage.list(f"{_FOLDER}/{self._own}/")]
        self._runs = [int(name) for name in names if _NUMBER.fullmatch(name)]
        self._sweeps = {int(found[1]) for name in names if (found := _SWEEP.fullmatch(name))}
        # Without an earlier run, the table may be older than its first registration.
        if len(self._runs) < 2 or (folders := self._folders(storage, _MOST_LISTS // len(self._runs))) is None:
            return self._table.files("")
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            prefixes = [f"{folder}stateflow-{self._own}-g{n}-" for folder, n in product(folders, self._runs)]
            return [file for found in pool.map(storage.list, prefixes) for file in found]

    def forget_swept(self) -> None:
        """Registers a sweep of what `written` returned, and removes the registrations that need no further one.

        Raises StorageError.
        """
        if not self._runs:
            return
        # Under the newest run that was registered before the list, which is later than all others.
        self._table.create(self._path(self._runs[-1]) + _SWEPT, b"")
        sweeps = sorted({*self._sweeps, self._runs[-1]})
        if len(sweeps) >= _SWEEPS:
            oldest = sweeps[-_SWEEPS]
            runs = (self._path(n) for n in self._runs if n < oldest)
            self._table.delete([*runs, *(self._path(n) + _SWEPT for n in sweeps if n < oldest)])

    def _path(self, generation: int) -> str:
        return f"{_FOLDER}/{self._own}/{generation:020d}"

    def _folders(self, storage: Storage, most: int) -> list[str] | None:
        """Returns the folders that may have files, each with a slash at its end; None if there are too many."""
        level, found = [""], [""]
        for _ in range(self._depth if most else 0):
            level = [f"{folder}{name}/" for folder in level for name in _partitions(storage, folder)]
            found += level
            if len(found) > most:
                break
        return found if len(found) <= most else None


def _partitions(storage: Storage, folder: str) -> Iterator[str]:
    return (name for name in storage.folders(folder) if "=" in name)
