"""Deletion vectors: which rows of a version's data files other writers have deleted without writing the files again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from stateflow.connectors.delta.log.paths import plain_path, size_of, vector_path
from stateflow.connectors.delta.log.table_log import Action, open_deltalake
from stateflow.errors import SinkDiverged


class DeletionVectors:
    """The deletion vectors of a version of a table; read by deltalake, all at once, when the first one is needed.

    Args:
        table: folder of the table.
        version: the version.
        vectors: its deletion vectors, as in the log.
    """

    def __init__(self, table: Path, version: int, vectors: Sequence[Action]) -> None:
        self._table = table
        self._version = version
        self._vectors = vectors
        self._kept: dict[str, pa.Array] | None = None

    def kept_rows(self, path: str, count: int) -> pa.Array:
        """Returns for each row of a data file whether it is not deleted.

        Args:
            path: of a data file with a deletion vector, as in the log.
            count: number of its rows, with deleted ones.

        Raises:
            SinkDiverged: the deletion vector is missing or damaged.
            CorruptFile: a deletion vector is not below the table's folder.
        """
        if self._kept is None:
            self._kept = self._read()
        found = self._kept.get(os.path.realpath(self._table / plain_path(path)))
        if found is None or len(found) > count:
            raise self._unreadable(f"it has no vector for {count} rows of {path}")
        # A vector ends at its last deleted row.
        return pa.concat_arrays([found, pa.repeat(pa.scalar(True), count - len(found))])

    def _read(self) -> dict[str, pa.Array]:
        from deltalake.exceptions import DeltaError

        # deltalake would open whatever the log names.
        for path in map(vector_path, self._vectors):
            if path is not None and size_of(self._table, path) is None:
                raise self._unreadable(f"{path} does not exist")
        try:
            opened = open_deltalake(self._table)
            opened.load_as_version(self._version)
            found = pa.table(opened.deletion_vectors().read_all())
        except (DeltaError, OSError) as e:
            raise self._unreadable(f"{type(e).__name__}: {e}") from e
        masks: dict[str, pa.Array] = {}
        paths = found.column("filepath").to_pylist()
        for number, uri in enumerate(paths):
            mask = found.column("selection_vector").slice(number, 1).combine_chunks()
            masks[os.path.realpath(unquote(urlsplit(uri).path))] = pc.list_flatten(mask)
        return masks

    def _unreadable(self, reason: str) -> SinkDiverged:
        return SinkDiverged(
            "the deletion vectors of the Delta table cannot be read",
            hint="restore its files, or let Spark remove the vectors: REORG TABLE ... APPLY (PURGE)",
            table=str(self._table),
            version=self._version,
            reason=reason[:500],
        )
