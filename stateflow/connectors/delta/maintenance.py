"""Maintenance of Delta tables: combines small files, and deletes files that no version in use has.

A combined file is durable before the entry of the log that names it. The entry is created only if its version is free.
When another writer commits first, files that are still in the table are committed after it; the others are left as they
are.

Only files are deleted that an entry of the log has removed, and incomplete results of a compaction. A file that no
entry names may be one that another writer is about to commit, or output of a run that is not published yet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from stateflow import failpoints
from stateflow.api.sink import Writing
from stateflow.clock import SystemClock, epoch_milliseconds
from stateflow.connectors.data_files import FileName, Limits, ParquetWriter, cast_read, list_own_files
from stateflow.connectors.delta.log import (
    Action,
    DeltaHead,
    append_after,
    entry_path,
    find_unreferenced_files,
    list_log,
    log_lines,
    open_log_file,
    open_logged_parquet,
    plain_path,
    read_parquet,
    size_of,
)
from stateflow.connectors.delta.sink import COMPACTED, OwnTable, add_action, check_protocol
from stateflow.connectors.delta.versions import (
    ENGINE,
    ActiveFiles,
    Content,
    DataFile,
    read_content,
    remove_action,
    remove_files,
)
from stateflow.connectors.delta_types import target_schema
from stateflow.connectors.partitions import data_columns, folder_of, to_logged_path
from stateflow.connectors.store_assignment import can_assign, nullable_schema
from stateflow.connectors.table_folder import TableFolder, read_each
from stateflow.errors import CorruptFile, SinkDiverged, SinkRefused, StateflowError, StorageError
from stateflow.state.handles import Committable
from stateflow.types.decoders import json_decoder

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
        combined_files: number of small files that were combined.
        new_files: number of files that they were combined to; None in a dry run.
        combined_bytes: size of the combined files.
        skipped_files: number of small files that stay, because another writer has replaced them concurrently, or
            because they have deletion vectors, or columns or types that the sink does not write.
    """

    uid: str
    table: str
    version: int
    combined_files: int
    new_files: int | None
    combined_bytes: int
    skipped_files: int


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
        target = nullable_schema(target_schema(self._table.schema, head.metadata.fields()))
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
        return CompactionReport(table.uid, table.path.address, version, sum(map(len, groups)), after, size, skipped)

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
            return all(f.name in known and can_assign(known[f.name], _plain(f.type)) for f in found)
        except FileNotFoundError:
            self._check_replaced(file)
            return False

    def _check_replaced(self, file: DataFile) -> None:
        """Raises SinkDiverged unless another writer has replaced a file, after which a VACUUM may delete it."""
        if file.key in {each.key for each in self._files.at(self._table.head())}:
            raise SinkDiverged(
                "a data file of the Delta table does not exist",
                hint="restore the file, or the table to a version without it",
                table=self._table.path.address,
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
            table=self._table.path.address,
            tries=_TRIES,
        )

    def _actions(self, rewrites: Sequence[_Rewrite], read_version: int) -> list[Action]:
        now = epoch_milliseconds(_clock.now())
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


_INCOMPLETE_MS = 24 * 3600 * 1000
"""The age from which a result of a compaction that no entry names is not one of a running compaction."""


@dataclass(frozen=True)
class Holder:
    """A checkpoint or savepoint that a restore may rewind the table to.

    Attributes:
        label: its name for display.
        checkpoint_id: the checkpoint.
        version: version of the table that a restore has already decided on; None to find it in the log.
    """

    label: str
    checkpoint_id: int
    version: int | None = None


@dataclass(frozen=True)
class HeldVersion:
    """A version of a table whose files are kept only for checkpoints or savepoints.

    Attributes:
        version: the version.
        holders: labels of the checkpoints and savepoints.
        files: number of files that would otherwise be deleted.
        size_bytes: their size.
    """

    version: int
    holders: tuple[str, ...]
    files: int
    size_bytes: int


@dataclass(frozen=True)
class VacuumReport:
    """Result of a vacuum, or of its dry run.

    Attributes:
        uid: uid of the sink.
        table: path of the table.
        version: its newest version.
        deleted_files: number of deleted files.
        freed_bytes: their size.
        held: the versions that checkpoints or savepoints hold, oldest first.
        lost: labels of checkpoints and savepoints whose version can no longer be restored, whatever is deleted.
    """

    uid: str
    table: str
    version: int
    deleted_files: int
    freed_bytes: int
    held: tuple[HeldVersion, ...]
    lost: tuple[str, ...]


@dataclass(frozen=True)
class MaintenanceReport:
    """Result of a task that maintains the tables of a job, or of its preview.

    Attributes:
        optimized: what was combined in each table; without tables if small files are not combined.
        vacuumed: what was deleted from each table.
    """

    optimized: tuple[CompactionReport, ...]
    vacuumed: tuple[VacuumReport, ...]


def vacuum(
    table: OwnTable,
    holders: Sequence[Holder],
    *,
    now: int,
    older_than: int,
    ignores_other_jobs: bool = False,
    dry_run: bool = False,
) -> VacuumReport:
    """Deletes files that were removed from a table, and that no version in use has.

    Args:
        table: the table.
        holders: the checkpoints and savepoints of the job, read before this call: a later checkpoint needs only files
            of the newest version, or of one that an earlier one needs.
        now: time in milliseconds since 1970.
        older_than: milliseconds since the removal from the table after which a file is deleted.
        ignores_other_jobs: whether a table that other jobs write to is permitted.
        dry_run: whether to delete nothing.

    Raises:
        SinkRefused: another job writes to the table, so its checkpoints may need older versions; or the table has a
            feature that is not supported.
        SinkDiverged: the table does not exist, or its newest version cannot be listed.
    """
    # Listed before the log is read: a file that is committed in between is then found in the log.
    leftovers = _incomplete(table, now)
    head = table.head()
    check_protocol(table.path.address, head)
    scan = scan_log(table.path, head.version)
    if not ignores_other_jobs:
        _check_other_jobs(table, scan)
    newest = read_content(table.path, head.version, table.application)
    if newest is None:
        message = "the files of the Delta table cannot be listed"
        raise SinkDiverged(message, table=table.path.address, version=head.version)
    versions, lost = _needed_versions(table, scan, holders)
    expired = _expired(table.path, scan, newest, now - older_than)
    held, kept = [], set[str]()
    for version, (content, labels) in sorted(versions.items()):
        found = expired.keys() & {file.path for file in content.files.values()}
        kept |= found
        held.append(HeldVersion(version, labels, len(found), sum(expired[path] for path in found)))
    sizes = {path: size for path, size in expired.items() if path not in kept} | leftovers
    if not dry_run:
        table.path.delete(map(plain_path, sizes))
    return VacuumReport(
        table.uid, table.path.address, head.version, len(sizes), sum(sizes.values()), tuple(held), tuple(lost)
    )


def _check_other_jobs(table: OwnTable, scan: LogScan) -> None:
    others = sorted(
        job
        for job, separator, _ in (application.partition("/") for application in scan.tokens)
        if separator and len(job) == len(table.job_uuid) and job != table.job_uuid
    )
    if others:
        raise SinkRefused(
            "another job has written to the Delta table, and its checkpoints may need older versions",
            hint="pass --ignore-other-jobs if they are never restored",
            table=table.path.address,
            jobs=others[:3],
        )


def _needed_versions(
    table: OwnTable, scan: LogScan, holders: Iterable[Holder]
) -> tuple[dict[int, tuple[Content, tuple[str, ...]]], list[str]]:
    """Returns the versions that a restore may rewind to, with labels of their holders; and the holders without one."""
    wanted: dict[tuple[int, str], list[Holder]] = defaultdict(list)
    own = {table.application, *(name for name in scan.tokens if name.startswith(f"{table.job_uuid}/"))}
    for application in sorted(own):
        for holder in holders:
            decided = holder.version is not None
            version = holder.version if decided else scan.version_of(application, holder.checkpoint_id)
            if version is not None:
                wanted[version, application].append(holder)
    found: dict[int, tuple[Content, tuple[str, ...]]] = {}
    lost: list[str] = []
    for (version, application), those in wanted.items():
        content = read_content(table.path, version, application)
        is_held = [h for h in those if content and (h.version is not None or content.token <= h.checkpoint_id)]
        lost += [holder.label for holder in those if holder not in is_held]
        if content is not None and is_held:
            labels = (*(found[version][1] if version in found else ()), *(holder.label for holder in is_held))
            found[version] = content, tuple(dict.fromkeys(labels))
    return found, list(dict.fromkeys(lost))


def _expired(table: TableFolder, scan: LogScan, newest: Content, until: int) -> dict[str, int]:
    """Returns the sizes of files that were removed before a time and still exist, by path as in the log."""
    active = {file.path for file in newest.files.values()}
    paths = [p for p, removed in scan.removed.items() if removed is not None and removed < until and p not in active]
    sizes = read_each(lambda path: _size(table, path), paths)
    return {path: size for path, size in zip(paths, sizes, strict=True) if size is not None}


def _size(table: TableFolder, path: str) -> int | None:
    """Returns the size of a file of the log; None without such a file, or for one that may be another table's."""
    try:
        return size_of(table, path)
    except CorruptFile:
        return None


def _incomplete(table: OwnTable, now: int) -> dict[str, int]:
    """Returns the sizes of files that a killed compaction left, by path."""
    old = {
        str(name): file
        for name, file in list_own_files(table.path)
        if name.job_uuid == COMPACTED and file.modified_ms < now - _INCOMPLETE_MS
    }
    unused = find_unreferenced_files(table.path, table.application, dict.fromkeys(old, 0)) if old else set[str]()
    return {to_logged_path(old[name].key): old[name].size for name in unused}


class _Remove(msgspec.Struct, rename="camel"):
    path: str
    deletion_timestamp: int | None = None


class _Transaction(msgspec.Struct, rename="camel"):
    app_id: str
    version: int


class _Line(msgspec.Struct):
    remove: _Remove | None = None
    txn: _Transaction | None = None


_line = json_decoder(_Line)


@dataclass(frozen=True)
class LogScan:
    """The newest entries of a log without a gap.

    Attributes:
        removed: for each path that an entry removes, as in the log, the newest time in milliseconds since 1970; None
            if an entry does not have it.
        tokens: for each application, the versions that set its token, oldest first, with the token.
    """

    removed: Mapping[str, int | None]
    tokens: Mapping[str, list[tuple[int, int]]]

    def version_of(self, application: str, checkpoint_id: int) -> int | None:
        """Returns the version that a rewind to a checkpoint restores; None if there is nothing to undo."""
        first = None
        for version, token in reversed(self.tokens.get(application, [])):
            if token <= checkpoint_id:
                break
            first = version
        return None if not first else first - 1


def scan_log(table: TableFolder, newest: int) -> LogScan:
    """Reads the entries of a table's log up to a version. Raises CorruptFile."""
    removed: dict[str, int | None] = {}
    tokens: dict[str, list[tuple[int, int]]] = defaultdict(list)
    entries = list_log(table).entries
    first = newest
    while first - 1 in entries:
        first -= 1
    for version in range(first, newest + 1):
        for line in _lines(table, version):
            if line.remove is not None:
                removed[line.remove.path] = line.remove.deletion_timestamp
            if line.txn is not None:
                tokens[line.txn.app_id].append((version, line.txn.version))
    return LogScan(removed, tokens)


def _lines(table: TableFolder, version: int) -> Iterator[_Line]:
    path = entry_path(version)
    try:
        with open_log_file(table, path) as file:
            for line in log_lines(file, f"{table}/{path}"):
                yield _line.decode(line)
    except FileNotFoundError:
        return  # expired and removed meanwhile
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        message = "a log entry of the Delta table cannot be decoded"
        raise CorruptFile(message, file=f"{table}/{path}", reason=str(e)) from e
