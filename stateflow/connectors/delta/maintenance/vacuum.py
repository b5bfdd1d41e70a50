"""Deletes data files of a Delta table that neither its newest version nor a checkpoint or savepoint of the job needs.

Only files are deleted that an entry of the log has removed, and incomplete results of `compaction`. A file that no
entry names may be one that another writer is about to commit, or output of a run that is not published yet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stateflow.connectors.delta.checks import check_protocol
from stateflow.connectors.delta.data_files import disk_error, list_own_files
from stateflow.connectors.delta.log.paths import remove_file, size_of
from stateflow.connectors.delta.log.table_log import unreferenced_files
from stateflow.connectors.delta.maintenance.log_scan import LogScan, scan_log
from stateflow.connectors.delta.maintenance.own_table import COMPACTED, OwnTable
from stateflow.connectors.delta.partitions.values import logged_path
from stateflow.connectors.delta.versions import Content, read_content
from stateflow.errors import CorruptFile, SinkDiverged, SinkRefused

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
        bytes: their size.
    """

    version: int
    holders: tuple[str, ...]
    files: int
    bytes: int


@dataclass(frozen=True)
class VacuumReport:
    """Result of a vacuum, or of its dry run.

    Attributes:
        uid: uid of the sink.
        table: path of the table.
        version: its newest version.
        files: number of deleted files.
        bytes_freed: their size.
        held: the versions that checkpoints or savepoints hold, oldest first.
        lost: labels of checkpoints and savepoints whose version can no longer be restored, whatever is deleted.
    """

    uid: str
    table: str
    version: int
    files: int
    bytes_freed: int
    held: tuple[HeldVersion, ...]
    lost: tuple[str, ...]


@dataclass(frozen=True)
class Expiry:
    """Which files a vacuum may delete.

    Attributes:
        now: time in milliseconds since 1970.
        older_than: time since the removal from the table, in milliseconds.
        ignores_other_jobs: whether a table that other jobs write to is permitted.
    """

    now: int
    older_than: int
    ignores_other_jobs: bool = False


def vacuum(table: OwnTable, holders: Sequence[Holder], expiry: Expiry, *, dry_run: bool = False) -> VacuumReport:
    """Deletes files that were removed from a table, and that no version in use has.

    Args:
        table: the table.
        holders: the checkpoints and savepoints of the job, read before this call: a later checkpoint needs only files
            of the newest version, or of one that an earlier one needs.
        expiry: which files may be deleted.
        dry_run: whether to delete nothing.

    Raises:
        SinkRefused: another job writes to the table, so its checkpoints may need older versions; or the table has a
            feature that is not supported.
        SinkDiverged: the table does not exist, or its newest version cannot be listed.
    """
    # Listed before the log is read: a file that is committed in between is then found in the log.
    leftovers = _incomplete(table, expiry.now)
    head = table.head()
    check_protocol(str(table.path), head)
    scan = scan_log(table.path, head.version)
    if not expiry.ignores_other_jobs:
        _check_other_jobs(table, scan)
    newest = read_content(table.path, head.version, table.application)
    if newest is None:
        raise SinkDiverged("the files of the Delta table cannot be listed", table=str(table.path), version=head.version)
    versions, lost = _needed_versions(table, scan, holders)
    expired = _expired(table.path, scan, newest, expiry)
    held, kept = [], set[str]()
    for version, (content, labels) in sorted(versions.items()):
        found = expired.keys() & {file.path for file in content.files.values()}
        kept |= found
        held.append(HeldVersion(version, labels, len(found), sum(expired[path] for path in found)))
    sizes = {path: size for path, size in expired.items() if path not in kept} | leftovers
    if not dry_run:
        _delete(table.path, sizes)
    return VacuumReport(
        table.uid, str(table.path), head.version, len(sizes), sum(sizes.values()), tuple(held), tuple(lost)
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
            table=str(table.path),
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


def _expired(table: Path, scan: LogScan, newest: Content, expiry: Expiry) -> dict[str, int]:
    """Returns the sizes of files that were removed before the limit and still exist, by path as in the log."""
    active = {file.path for file in newest.files.values()}
    until = expiry.now - expiry.older_than
    paths = (p for p, removed in scan.removed.items() if removed is not None and removed < until and p not in active)
    return {path: size for path in paths if (size := _size(table, path)) is not None}


def _size(table: Path, path: str) -> int | None:
    """Returns the size of a file of the log; None without such a file, or for one that may be another table's."""
    try:
        return size_of(table, path)
    except CorruptFile:
        return None


def _incomplete(table: OwnTable, now: int) -> dict[str, int]:
    """Returns the sizes of files that a killed compaction left, by path."""
    depth = len(table.partition_by)
    names = {str(name): name.path for name in list_own_files(table.path, depth) if name.job_uuid == COMPACTED}
    old = {name: logged_path(path) for name, path in names.items() if _is_old(table.path / path, now)}
    unused = unreferenced_files(table.path, table.application, dict.fromkeys(old, 0)) if old else set[str]()
    return {old[name]: size for name in unused if (size := _size(table.path, old[name])) is not None}


def _is_old(path: Path, now: int) -> bool:
    try:
        return path.lstat().st_mtime * 1000 < now - _INCOMPLETE_MS
    except FileNotFoundError:
        return False
    except OSError as e:
        raise disk_error(e, path) from e


def _delete(table: Path, sizes: Mapping[str, int]) -> None:
    for path in sizes:
        remove_file(table, path)
