"""Upserts into a Delta table: which rows of a checkpoint win, and which data files are written again without others.

Copy on write: a data file that has a row of one of the keys is replaced by one without these rows. The log entry that
replaces them also sets the sink's token, as for appended files, so an upsert is published once or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stateflow.connectors.columns.store_assignment import assign, nullable
from stateflow.connectors.delta.data_files import FileName, ParquetWriter, cast_read, disk_error
from stateflow.connectors.delta.log.deletion_vectors import DeletionVectors
from stateflow.connectors.delta.log.paths import read_parquet, remove_file
from stateflow.connectors.delta.partitions.columns import StoredRows, data_columns
from stateflow.connectors.delta.partitions.values import folder_of, logged_path, scalar, split
from stateflow.connectors.delta.versions import DataFile
from stateflow.connectors.parquet_batches import group_batches
from stateflow.connectors.upserts import (
    POSITION,
    UpsertSettings,
    deleted_by_content,
    is_retraction,
    numbered,
    winning_rows,
    without_deletes,
)
from stateflow.errors import SinkDiverged, StateflowError
from stateflow.state.handles import Committable
from stateflow.types.decoders import json_decoder

_COMBINED_BYTES = 32 << 20
"""Data files below this size are combined when they are written again; larger ones keep their rows together."""


@dataclass(frozen=True)
class Rewrite:
    """The data files that an upsert replaces, and those that it adds."""

    removed: tuple[DataFile, ...]
    added: tuple[Committable, ...]


class Upsert:
    """One upsert.

    Args:
        table: folder of the table.
        settings: how rows are matched.
        rows: how the table stores the emitted rows, and its partition columns.
        name: name of the first file that is written.
    """

    def __init__(self, table: Path, settings: UpsertSettings, rows: StoredRows, name: FileName) -> None:
        self._table = table
        self._settings = settings
        self._rows = rows
        self._name = name
        self._partition_by = rows.partition_by
        self._schema = settings.table_schema(rows.schema)
        self._every = nullable(rows.target)
        self._stored = data_columns(pa.schema([self._every.field(n) for n in self._schema.names]), rows.partition_by)
        self._keys = pa.schema([self._every.field(name) for name in settings.keys])
        # Of a key, which is never null, null in the table is the empty text.
        self._empty = {f.name for f in self._keys if f.name in rows.partition_by and pa.types.is_string(f.type)}

    def apply(self, emitted: Sequence[Committable], active: Iterable[DataFile], vectors: DeletionVectors) -> Rewrite:
        """Writes the new data files.

        Args:
            emitted: files with the rows of the checkpoint.
            active: the files of the table.
            vectors: which of their rows are deleted.

        Raises:
            SinkDiverged: a file of the table does not exist, or has other columns.
            CorruptFile: a file is damaged.
        """
        winners = self._winners(emitted)
        stored = [name for name in self._settings.keys if name not in self._partition_by]
        bounds = {name: pc.min_max(winners.column(name)).as_py() for name in stored}
        possible = (file for file in active if self._has_key_partition(file, winners) and _may_contain(file, bounds))
        matches = [match for file in possible if (match := self._match(file, winners, vectors))]
        outputs = self._outputs(matches, without_deletes(winners, self._settings))
        added = tuple(w for number, (to, rows) in enumerate(outputs) for w in self._written(number, to, rows))
        return Rewrite(tuple(match.file for match in matches), added)

    def _winners(self, emitted: Sequence[Committable]) -> pa.Table:
        """Returns the rows that change the table."""
        ordered = sorted(emitted, key=_order)
        rows = pa.concat_tables([self._emitted(file.path) for file in ordered])
        return winning_rows(rows, self._settings)

    def _emitted(self, path: str) -> pa.Table:
        try:
            found = read_parquet(self._table, logged_path(path))
            batches = [assign(batch, self._rows.target, {"file": path}) for batch in found]
        except FileNotFoundError as e:
            raise disk_error(e, self._table / path) from e
        rows = pa.Table.from_batches(batches, self._every)
        for at, field in enumerate(self._every):
            if field.name in self._empty:
                rows = rows.set_column(at, field, pc.fill_null(rows.column(at), ""))
        return rows

    def _has_key_partition(self, file: DataFile, winners: pa.Table) -> bool:
        """Returns whether the rows of a file may have one of the keys, by the values of its partition."""
        values = {name: self._partition_value(file, name) for name in self._settings.keys if name in self._partition_by}
        # The columns of a key are never null: a partition of null has rows of none.
        found = (value.is_valid and pc.any(pc.equal(winners.column(n), value)).as_py() for n, value in values.items())
        return all(found)

    def _partition_value(self, file: DataFile, column: str) -> pa.Scalar:
        text = file.partition_values.get(column)
        try:
            return scalar(text, self._every.field(column).type, empty="" if column in self._empty else None)
        except ValueError as e:
            raise self._unusable(file, str(e)) from e

    def _match(self, file: DataFile, winners: pa.Table, vectors: DeletionVectors) -> _Match | None:
        """Returns which rows of a file have one of the keys; None if none has, but for deleted ones."""
        stored = pa.schema([field for field in self._keys if field.name not in self._partition_by])
        found: list[pa.Array] = []
        for keys in group_batches(self._batches(file, stored.names)):
            rows = self._cast(pa.Table.from_batches(keys), stored, file)
            found += self._matched(rows, sum(map(len, keys)), file, winners).chunks
        matched = pa.chunked_array(found, pa.bool_())
        if self._settings.by_content and pc.any(matched).as_py():
            matched = self._without_unequal(_Match(file, matched), winners)
        if not pc.any(matched).as_py():
            return None
        if file.vector is None:
            return _Match(file, pc.invert(matched))
        kept = vectors.kept_rows(file.path, len(matched))
        return _Match(file, pc.and_not(kept, matched)) if pc.any(pc.and_(kept, matched)).as_py() else None

    def _batches(self, file: DataFile, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        try:
            yield from read_parquet(self._table, file.path, columns)
        except FileNotFoundError as e:
            raise self._unusable(file, "it does not exist") from e

    def _without_unequal(self, match: _Match, winners: pa.Table) -> pa.ChunkedArray:
        """Returns which rows of a file are replaced, or equal a row that is retracted.

        Args:
            match: the file; `remaining` is true for rows with a key of `winners`.
        """
        retracted = winners.filter(pa.array(is_retraction(winners, self._settings)))
        if not len(retracted):
            return match.remaining
        kept = without_deletes(winners, self._settings)
        replaced = [self._replaced(rows, match.file, kept, retracted) for rows in group_batches(self._remaining(match))]
        found = np.zeros(len(match.remaining), bool)
        found[np.flatnonzero(match.remaining.to_numpy())] = np.concatenate(replaced)
        return pa.chunked_array([pa.array(found)])

    def _replaced(
        self, stored: Sequence[pa.RecordBatch], file: DataFile, kept: pa.Table, retracted: pa.Table
    ) -> NDArray[np.bool_]:
        rows = pa.Table.from_batches(stored, self._stored)
        for name in self._partition_by:
            rows = rows.append_column(name, pa.repeat(self._partition_value(file, name), len(rows)))
        is_kept = _matched(rows.select(self._keys.names), kept, self._settings.keys)
        found: NDArray[np.bool_] = is_kept.to_numpy() | deleted_by_content(
            rows, retracted, self._settings, self._schema
        )
        return found

    def _matched(self, stored: pa.Table, count: int, file: DataFile, winners: pa.Table) -> pa.ChunkedArray:
        columns = [
            pa.repeat(self._partition_value(file, name), count) if name in self._partition_by else stored.column(name)
            for name in self._keys.names
        ]
        return _matched(pa.table(columns, schema=self._keys), winners, self._settings.keys)

    def _outputs(self, matches: Sequence[_Match], kept: pa.Table) -> Iterator[tuple[str, Iterator[pa.RecordBatch]]]:
        """Yields the folder and the rows of each new data file.

        Large files are written again one by one, small ones of a partition together.
        """
        new = self._by_partition(kept)
        small: dict[str, list[_Match]] = {folder: [] for folder in new}
        for match in matches:
            if match.file.size < _COMBINED_BYTES:
                small.setdefault(self._folder(match.file), []).append(match)
        for folder, together in small.items():
            sources = (new.get(folder, ()), *map(self._remaining, together))
            yield folder, (batch for source in sources for batch in source)
        for match in matches:
            if match.file.size >= _COMBINED_BYTES:
                yield self._folder(match.file), self._remaining(match)

    def _by_partition(self, rows: pa.Table) -> dict[str, list[pa.RecordBatch]]:
        """Returns rows by the folder of their partition, without the partition columns."""
        if not self._partition_by:
            return {"": rows.to_batches()}
        found: dict[str, list[pa.RecordBatch]] = {}
        for batch in rows.to_batches():
            for folder, part in split(batch, self._partition_by):
                found.setdefault(folder, []).append(part)
        return found

    def _folder(self, file: DataFile) -> str:
        """Returns the folder of a file's partition, whatever folder the file is in."""
        return folder_of({name: file.partition_values.get(name) or None for name in self._partition_by})

    def _remaining(self, match: _Match) -> Iterator[pa.RecordBatch]:
        start = 0
        for batch in self._batches(match.file):
            # Cast first: Arrow does not filter each type that other writers use.
            rows = self._cast(pa.Table.from_batches([batch]), self._stored, match.file)
            yield from rows.filter(match.remaining.slice(start, len(batch))).to_batches()
            start += len(batch)

    def _written(self, number: int, folder: str, rows: Iterable[pa.RecordBatch]) -> list[Committable]:
        writing = self._name.writing
        name = replace(self._name, folder=folder, writing=replace(writing, attempt=f"{writing.attempt}f{number}"))
        writer = ParquetWriter(self._table, name, self._stored)
        for batch in rows:
            writer.write_stored(batch.select(self._stored.names))
        return writer.close()

    def _cast(self, rows: pa.Table, wanted: pa.Schema, file: DataFile) -> pa.Table:
        """Returns rows of a data file with some columns of the table; a column that the file lacks is null."""
        found = rows.schema.names
        if more := sorted(set(found) - {*wanted.names, *self._partition_by}):
            raise self._unusable(file, f"it has further columns: {', '.join(more)}")
        try:
            columns = [cast_read(rows.column(f.name), f.type) if f.name in found else None for f in wanted]
        except pa.ArrowException as e:
            raise self._unusable(file, str(e)) from e
        nulls = [pa.nulls(len(rows), f.type) if c is None else c for f, c in zip(wanted, columns, strict=True)]
        return pa.table(nulls, schema=wanted)

    def _unusable(self, file: DataFile, reason: str) -> SinkDiverged:
        return SinkDiverged(
            "a data file of the Delta table cannot be rewritten",
            hint="restore the file, or the table to a version without it",
            table=str(self._table),
            file=file.path,
            reason=reason[:500],
        )


@dataclass(frozen=True)
class _Match:
    """A data file with rows of some of the keys; `remaining` is false for these rows and for deleted ones."""

    file: DataFile
    remaining: pa.ChunkedArray


def remove_files(table: Path, names: Iterable[str]) -> None:
    """Removes data files that no version of the table has; the next run removes what is left."""
    for name in names:
        # Another process has removed it, or a sweep will.
        with suppress(StateflowError):
            remove_file(table, logged_path(name))


def _order(file: Committable) -> tuple[int, int, int, int]:
    """Returns the position of a file in the order in which its rows were emitted."""
    name = FileName.parse(file.path)
    assert name is not None
    writing = name.writing
    return writing.generation, writing.ordinal, writing.subtask, name.part


def _matched(keys: pa.Table, winners: pa.Table, names: Sequence[str]) -> pa.ChunkedArray:
    """Returns for each row of `keys` whether `winners` has a row of its key."""
    if len(names) == 1:
        (name,) = names
        return pc.is_in(keys.column(name), value_set=winners.column(name).combine_chunks())
    with_numbers = numbered(keys)
    found = with_numbers.join(winners.select(list(names)), list(names), join_type="left semi").column(POSITION)
    return pc.is_in(with_numbers.column(POSITION), value_set=found.combine_chunks())


class _Bounds(msgspec.Struct):
    minValues: dict[str, object] = {}
    maxValues: dict[str, object] = {}


_bounds = json_decoder(_Bounds)


def _may_contain(file: DataFile, wanted: Mapping[str, Mapping[str, Any]]) -> bool:
    """Returns whether a file may have a row of one of the keys, by its statistics.

    Args:
        wanted: the smallest and largest value of each key column, as ``min`` and ``max``.
    """
    try:
        bounds = _bounds.decode(str(file.action.get("stats") or "{}"))
    except (msgspec.DecodeError, RecursionError):
        return True
    for name, ends in wanted.items():
        low, high = bounds.minValues.get(name), bounds.maxValues.get(name)
        for kind in (int, str):
            # Bounds of texts are in the order of UTF-8, which is that of Python's code points.
            if all(isinstance(v, kind) and not isinstance(v, bool) for v in (low, high, *ends.values())):
                if ends["max"] < low or high < ends["min"]:
                    return False
    return True
