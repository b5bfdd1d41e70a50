"""Combines small data files of a Delta table, without a change of rows.

New files are durable before the entry of the log that names them. The entry is created only if its version is free.
When another writer commits first, files that are still in the table are committed after it; the others are left as they
are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from stateflow import failpoints
from stateflow.api.sink import Writing
from stateflow.clock import SystemClock
from stateflow.connectors.columns.store_assignment import fits, nullable
from stateflow.connectors.delta.active_files import ActiveFiles
from stateflow.connectors.delta.column_types import target_schema
from stateflow.connectors.delta.data_files import FileName, Limits, ParquetWriter, cast_read
from stateflow.connectors.delta.log.paths import open_logged_parquet, read_parquet
from stateflow.connectors.delta.log.table_log import Action, DeltaHead, append_after
from stateflow.connectors.delta.maintenance.own_table import COMPACTED, OwnTable
from stateflow.connectors.delta.partitions.columns import data_columns
from stateflow.connectors.delta.partitions.values import folder_of
from stateflow.connectors.delta.rewind.rewinder import remove_action
from stateflow.connectors.delta.sink_table import add_action, now_ms
from stateflow.connectors.delta.upsert import remove_files
from stateflow.connectors.delta.versions import ENGINE, DataFile
from stateflow.errors import SinkDiverged, StateflowError, StorageError
from stateflow.state.handles import Committable

TARGET_BYTES = 256 << 20
"""Size of combined files."""
_COMMIT_BYTES = 1 << 30
"""Bytes of data files that one commit replaces."""
_TRIES = 50
_clock = SystemClock()


@dataclass(frozen=True)
class CompactionReport:
    """Result of a compaction, or of its dry run.

    Attributes:
        uid: uid of the sink.
        table: path of the table.
        version: its newest version.
        files_before: number of small files that were combined.
        files_after: number of files that they were combined to; None in a dry run.
        bytes_before: size of the combined files.
        skipped: number of small files that stay, because another writer has replaced them concurrently, or because
            they have deletion vectors, or columns or types that the sink does not write.
    """

    uid: str
    table: str
    version: int
    files_before: int
    files_after: int | None
    bytes_before: int
    skipped: int


@dataclass(frozen=True)
class _Rewrite:
    """Small files, and those with the same rows."""

    old: tuple[DataFile, ...]
    new: tuple[Committable, ...]


class Compaction:
    """One compaction of a table.

    Args:
        table: the table.
        target_bytes: size of combined files.
    """

    def __init__(self, table: OwnTable, target_bytes: int = TARGET_BYTES) -> None:
        self._table = table
        self._target = target_bytes
        self._stored = pa.schema([])
        self._files = ActiveFiles(table.path, table.application)
        self._label = _clock.new_id()
        self._written = 0

    def run(self, *, dry_run: bool = False) -> CompactionReport:
        """Combines the small files of each partition.

        Raises:
            CorruptFile: a data file is damaged.
            SinkDiverged: the table or a data file does not exist, or the table cannot be listed.
            StorageError: each attempt to commit conflicted with another writer.
        """
        head = self._table.head()
        target = nullable(target_schema(self._table.schema, head.metadata.fields()))
        self._stored = data_columns(target, self._table.partition_by)
        groups = list(self._groups(self._files.at(head)))
        if dry_run:
            return self._report(head.version, groups, None, 0)
        done: list[_Rewrite] = []
        skipped, version = 0, head.version
        for part in _in_commits(groups):
            rewrites = self._rewrites(part)
            committed, at = self._commit(rewrites, head)
            done += committed
            version = at or version
            skipped += sum(map(len, part)) - sum(len(rewrite.old) for rewrite in committed)
        after = sum(len(rewrite.new) for rewrite in done)
        return self._report(version, [rewrite.old for rewrite in done], after, skipped)

    def _report(
        self, version: int, groups: Sequence[Sequence[DataFile]], after: int | None, skipped: int
    ) -> CompactionReport:
        size = sum(file.size for files in groups for file in files)
        table = self._table
        return CompactionReport(table.uid, str(table.path), version, sum(map(len, groups)), after, size, skipped)

    def _groups(self, files: Iterable[DataFile]) -> Iterator[tuple[DataFile, ...]]:
        """Yields small files of a partition that fit into one file, at least two each."""
        partitions: dict[str, list[DataFile]] = defaultdict(list)
        for file in files:
            if file.size < self._target // 2 and file.vector is None:
                partitions[self._folder(file)].append(file)
        for small in partitions.values():
            group: list[DataFile] = []
            for file in sorted(small, key=lambda f: (f.action.get("modificationTime", 0), f.path)):
                if sum(f.size for f in group) + file.size > self._target:
                    yield from [tuple(group)] if len(group) > 1 else []
                    group = []
                group.append(file)
            yield from [tuple(group)] if len(group) > 1 else []

    def _folder(self, file: DataFile) -> str:
        return folder_of({name: file.partition_values.get(name) or None for name in self._table.partition_by})

    def _rewrites(self, groups: Iterable[Sequence[DataFile]]) -> list[_Rewrite]:
        done: list[_Rewrite] = []
        try:
            for files in groups:
                done += [rewrite] if (rewrite := self._rewrite(files)) is not None else []
        except StateflowError:
            remove_files(self._table.path, (f.path for rewrite in done for f in rewrite.new))
            raise
        return done

    def _rewrite(self, files: Sequence[DataFile]) -> _Rewrite | None:
        usable = tuple(file for file in files if self._is_usable(file))
        if len(usable) < 2:
            return None
        writing = Writing(0, self._written, 0, self._label)
        self._written += 1
        name = FileName(COMPACTED, "files", writing, folder=self._folder(usable[0]))
        writer = ParquetWriter(self._table.path, name, self._stored, Limits(file_bytes=self._target))
        for file in usable:
            try:
                for batch in read_parquet(self._table.path, file.path):
                    writer.write_stored(self._as_stored(batch))
            except FileNotFoundError:
                self._check_replaced(file)
                return None
        return _Rewrite(usable, tuple(writer.close()))

    def _is_usable(self, file: DataFile) -> bool:
        """Returns whether the sink writes each column of a file, with its type or a narrower or other form of it."""
        try:
            with open_logged_parquet(self._table.path, file.path) as opened:
                found = opened.schema_arrow
            known = {field.name: field.type for field in self._stored}
            # Views, dictionaries and the like have the same values as the types that are written.
            return all(f.name in known and fits(known[f.name], _plain(f.type)) for f in found)
        except FileNotFoundError:
            self._check_replaced(file)
            return False

    def _check_replaced(self, file: DataFile) -> None:
        """Raises SinkDiverged unless another writer has replaced a file, after which a VACUUM may delete it."""
        if file.key in {each.key for each in self._files.at(self._table.head())}:
            raise SinkDiverged(
                "a data file of the Delta table does not exist",
                hint="restore the file, or the table to a version without it",
                table=str(self._table.path),
                file=file.path,
            )

    def _as_stored(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        found = batch.schema.names
        columns = [
            cast_read(batch.column(f.name), f.type) if f.name in found else pa.nulls(len(batch), f.type)
            for f in self._stored
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._stored)

    def _commit(self, rewrites: Sequence[_Rewrite], planned: DeltaHead) -> tuple[list[_Rewrite], int | None]:
        """Commits those whose files are still in the table; returns them and the version."""
        head = planned
        for _ in range(_TRIES):
            head = self._table.head(head)
            same = (head.metadata.id, head.metadata.schema_string) == (
                planned.metadata.id,
                planned.metadata.schema_string,
            )
            active = {file.key for file in self._files.at(head)} if same else set()
            valid = [rewrite for rewrite in rewrites if all(file.key in active for file in rewrite.old)]
            remove_files(self._table.path, (f.path for r in rewrites if r not in valid for f in r.new))
            if not valid:
                return [], None
            failpoints.hit("compaction.commit")
            version = append_after(self._table.path, head, self._actions(valid, head.version))
            if version is not None:
                return valid, version
            rewrites = valid
        raise StorageError(
            "every attempt to commit combined files of the Delta table conflicted with another writer",
            hint="optimize the table when fewer processes write to it",
            table=str(self._table.path),
            tries=_TRIES,
        )

    def _actions(self, rewrites: Sequence[_Rewrite], read_version: int) -> list[Action]:
        now = now_ms()
        old, new = [f for r in rewrites for f in r.old], [f for r in rewrites for f in r.new]
        info = {
            "timestamp": now,
            "operation": "OPTIMIZE",
            "operationParameters": {"predicate": "[]", "targetSize": str(self._target)},
            "operationMetrics": {"numRemovedFiles": str(len(old)), "numAddedFiles": str(len(new))},
            "readVersion": read_version,
            "isBlindAppend": False,
            "engineInfo": ENGINE,
        }
        removed = [{"remove": {**remove_action(file, now), "dataChange": False}} for file in old]
        added = [{"add": {**add_action(file, now), "dataChange": False}} for file in new]
        return [{"commitInfo": info}, *removed, *added]


def _plain(kind: pa.DataType) -> pa.DataType:
    """Returns the type of data files for one that another writer uses in memory, such as views and large texts."""
    kinds = pa.types
    if kinds.is_dictionary(kind):
        return _plain(kind.value_type)
    if kinds.is_large_list(kind) or kinds.is_list(kind) or kinds.is_list_view(kind) or kinds.is_large_list_view(kind):
        return pa.list_(_plain(kind.value_type))
    if kinds.is_struct(kind):
        return pa.struct([(field.name, _plain(field.type)) for field in kind])
    if kinds.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if kinds.is_large_string(kind) or kinds.is_string_view(kind):
        return pa.string()
    if kinds.is_large_binary(kind) or kinds.is_binary_view(kind):
        return pa.binary()
    if kinds.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    return kind


def _in_commits(groups: Iterable[tuple[DataFile, ...]]) -> Iterator[list[tuple[DataFile, ...]]]:
    """Yields the groups of each commit."""
    part: list[tuple[DataFile, ...]] = []
    size = 0
    for group in groups:
        part.append(group)
        size += sum(file.size for file in group)
        if size >= _COMMIT_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part
