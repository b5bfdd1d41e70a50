"""Which runs may have left files in a table of a store, so that a start lists their files and not the whole table.

A run registers in the table before it writes anything. The names of its files begin with its generation, so that a
store lists them by a prefix. A registration is removed when two later runs have swept: a task of a run that was
replaced may still write while the next run sweeps.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product

from stateflow.api.sink import SinkContext
from stateflow.connectors.table_folder import TableFolder
from stateflow.storage import BlobInfo

_FOLDER = ".stateflow-runs"
_KEPT = 3
"""How many runs stay registered after a sweep, the present one included."""
_MOST_PARTITIONS = 256
"""Above this number of partitions, a list of the whole table takes fewer requests, or about as many."""
_AT_ONCE = 16


class TableRuns:
    """The registered runs of one sink in its table. On a disk, nothing is registered, and all files are listed.

    Args:
        table: the table.
        context: the sink.
        depth: how many folders above a file have the values of partition columns.
    """

    def __init__(self, table: TableFolder, context: SinkContext, depth: int) -> None:
        self._table = table
        self._own = f"{context.job_uuid}-{context.uid}"
        self._depth = depth

    def register(self, generation: int) -> None:
        """Registers a run, durably. Raises StorageError."""
        if self._table.lists_by_prefix:
            self._table.create(f"{_FOLDER}/{self._own}/{generation:020d}", b"")

    def written(self) -> list[BlobInfo]:
        """Returns a list of files that has all which registered runs of the sink have written, and perhaps others."""
        generations = self._registered()
        # Without an earlier run, the table may be older than its first registration.
        if len(generations) < 2 or (folders := self._folders()) is None:
            return self._table.files("")
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            prefixes = [f"{folder}stateflow-{self._own}-g{n}-" for folder, n in product(folders, generations)]
            return [file for found in pool.map(self._table.files_by_prefix, prefixes) for file in found]

    def forget_swept(self) -> None:
        """Removes the registrations of runs that two later runs have swept; called after a sweep."""
        old = self._registered()[:-_KEPT]
        self._table.delete(f"{_FOLDER}/{self._own}/{generation:020d}" for generation in old)

    def _registered(self) -> list[int]:
        """Returns the generations of the registered runs, in order."""
        if not self._table.lists_by_prefix:
            return []
        names = (file.key.rpartition("/")[2] for file in self._table.files(f"{_FOLDER}/{self._own}"))
        return sorted(int(name) for name in names if name.isdecimal() and name.isascii())

    def _folders(self) -> list[str] | None:
        """Returns the folders that may have files, each with a slash at its end; None if there are too many."""
        level, found = [""], [""]
        for _ in range(self._depth):
            level = [f"{folder}{name}/" for folder in level for name in self._partitions(folder)]
            found += level
            if len(found) > _MOST_PARTITIONS:
                return None
        return found

    def _partitions(self, folder: str) -> Iterator[str]:
        return (name for name in self._table.subfolders(folder) if "=" in name)
