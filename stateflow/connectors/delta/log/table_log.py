"""The log of a Delta table, as far as a sink that only appends needs it.

This module reads the newest version of a table and appends to its log. deltalake would load all active files for
either: 6 ms in a new table, 260 ms with 100,000 files, for each checkpoint. From a known version only the later entries
are read, and an entry is one put-if-absent of its version, durable before it is visible. The first read, Delta's own
checkpoints and the clean-up of the log use deltalake. See ``docs/design/0003``.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from stateflow.api.sink import Successor
from stateflow.connectors.delta.column_types import Field
from stateflow.connectors.delta.data_files import UnnamedFile, disk_error, own_names
from stateflow.connectors.delta.log.checkpoint import checkpoint
from stateflow.connectors.delta.log.lines import log_lines, opened_log_file
from stateflow.connectors.delta.log.listing import LOG_FOLDER, list_log, log_names
from stateflow.connectors.parquet_batches import read_batches
from stateflow.errors import CorruptFile, SinkRefused, StorageError
from stateflow.types.decoders import json_decoder

if TYPE_CHECKING:
    from deltalake import DeltaTable

Action = dict[str, Any]
"""An action of the log, as decoded JSON."""

# deltalake's default. Delta's own, 10, would rewrite the list of all files ten times as often.
_CHECKPOINT_INTERVAL = 100
_INTERVAL = re.compile(r"[1-9][0-9]{0,8}")
_TRIES = 20

_logger = logging.getLogger(__name__)


class Protocol(msgspec.Struct, frozen=True, rename="camel"):
    """Delta's ``protocol`` action: what readers and writers must support."""

    min_reader_version: int
    min_writer_version: int
    reader_features: list[str] | None = None
    writer_features: list[str] | None = None


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """Delta's ``metaData`` action: the table's id, columns and properties."""

    id: str
    schema_string: str
    partition_columns: list[str] = []
    configuration: Mapping[str, str | None] | None = None
    name: str | None = None
    description: str | None = None
    created_time: int | None = None

    def fields(self) -> list[Field]:
        """Returns the columns. Raises CorruptFile."""
        try:
            return _schema.decode(self.schema_string).fields
        except (msgspec.DecodeError, RecursionError) as e:
            message = "the schema in the Delta table's log cannot be decoded"
            raise CorruptFile(message, table_id=self.id, reason=str(e)) from e


class _Sidecar(msgspec.Struct):
    path: str


class _Checkpoint(msgspec.Struct):
    sidecar: _Sidecar | None = None


_sidecar = json_decoder(_Checkpoint)
_V2_CHECKPOINT = re.compile(r"\d{20}\.checkpoint\.[0-9a-fA-F-]{36}\.(?:json|parquet)")
_CLASSIC_CHECKPOINT = re.compile(r"\d{20}\.checkpoint\.parquet")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


class _Schema(msgspec.Struct):
    fields: list[Field]


class _Transaction(msgspec.Struct, frozen=True, rename="camel"):
    app_id: str
    version: int


class _Action(msgspec.Struct, frozen=True, rename="camel"):
    """One line of a log entry; actions on files are skipped."""

    protocol: Protocol | None = None
    meta_data: Metadata | None = None
    txn: _Transaction | None = None


_actions, _schema = json_decoder(_Action), json_decoder(_Schema)
FileId = tuple[int, int, int, int]
"""Identifies a file, also when another one has the same name later: device, inode, size, and time in nanoseconds."""


TAKEN_OVER = "#taken-over"
"""Ends the name of an application of the log: the sink with the rest of the name must no longer write."""


def taken_over_by(successor: Successor) -> str:
    """Returns what the name of an application ends with that names the successor."""
    return f"{TAKEN_OVER}-by {successor.text}"


@dataclass(frozen=True)
class DeltaHead:
    """A table at one version, for one application.

    Attributes:
        token: the version of the application's last transaction; 0 when there is none.
        is_taken_over: whether another application has taken over the table from this one.
        file_id: identity of the log file of `version`; None when that file no longer exists.
    """

    version: int
    protocol: Protocol
    metadata: Metadata
    token: int
    file_id: FileId | None
    is_taken_over: bool = False


def entry_path(table: Path, version: int) -> Path:
    """Returns the path of the log entry that created `version`."""
    return table / LOG_FOLDER / f"{version:020d}.json"


def read_head(table: Path, application: str, known: DeltaHead | None = None) -> DeltaHead | None:
    """Returns the newest version of a table; None when there is no table.

    Args:
        known: an earlier head of the same table and application. It is used only while its log entry is still the same
            file, so that a table which was dropped and created again is read from the start.

    Raises:
        SinkRefused: this version cannot read the table.
    """
    if known is None or not is_current(table, known):
        known = _load(table, application)
    return _follow(table, application, known) if known else None


def is_current(table: Path, head: DeltaHead) -> bool:
    """Returns whether `head` is still a version of the table at this path."""
    return head.file_id is not None and _file_id(entry_path(table, head.version)) == head.file_id


def append_entry(table: Path, version: int, actions: Iterable[Mapping[str, object]]) -> bool:
    """Creates the log entry `version`, atomically and durably. Returns False when it exists already.

    Raises:
        StorageError: the entry may or may not have been written; the caller must read the table again.
    """
    folder = table / LOG_FOLDER
    try:
        with UnnamedFile.create(folder) as file:
            file.write(b"\n".join(msgspec.json.encode(action) for action in actions) + b"\n")
            return file.link(entry_path(table, version).name)
    except OSError as e:
        raise disk_error(e, folder) from e


def append_after(table: Path, head: DeltaHead, actions: Iterable[Mapping[str, object]]) -> int | None:
    """Creates the version after `head` and returns it; returns None when the table has changed since.

    Raises StorageError as `append_entry` does.
    """
    version = head.version + 1
    # Appending to a table that was dropped and created again would leave a gap in its log.
    if not is_current(table, head) or not append_entry(table, version, actions):
        return None
    maintain_log(table, version, head.metadata)
    return version


def maintain_log(table: Path, version: int, metadata: Metadata) -> None:
    """Creates a Delta checkpoint and removes expired log entries, if the commit of `version` makes that due.

    A failure is only logged, because nothing depends on it.
    """
    if (version + 1) % _checkpoint_interval(metadata) == 0:
        _try_checkpoint(table, version)


def create_overdue_checkpoint(table: Path, head: DeltaHead) -> None:
    """Creates a Delta checkpoint at the start of a run when two or more are missing.

    A checkpoint is missing after a driver was killed after its commit, or had no disk space. Each later start would
    otherwise read all entries since the last checkpoint. A failure is only logged.
    """
    newest = list_log(table).newest_checkpoint(head.version)
    if head.version - newest >= 2 * _checkpoint_interval(head.metadata):
        _try_checkpoint(table, head.version)


def _checkpoint_interval(metadata: Metadata) -> int:
    interval = (metadata.configuration or {}).get("delta.checkpointInterval") or ""
    return int(interval) if _INTERVAL.fullmatch(interval) else _CHECKPOINT_INTERVAL


def _try_checkpoint(table: Path, version: int) -> None:
    try:
        log_names(table)
        checkpoint(table)
    except Exception:
        _logger.warning("no checkpoint of the Delta table %s at version %d was created", table, version, exc_info=True)


def read_transactions(table: Path) -> dict[str, int]:
    """Returns the version of the last transaction of each application that has one in the newest version.

    Raises:
        CorruptFile: the log is damaged.
        StorageError: it changes faster than it can be read.
    """
    for _ in range(_TRIES):
        listing = list_log(table)
        newest = max((*listing.entries, *listing.checkpoints), default=0)
        first = listing.newest_checkpoint(newest)
        names = sorted(n for n, v in listing.names.items() if v >= first and ".compacted." not in n)
        # Checkpoints first, then the later entries in order; the log of a checkpoint's own version adds nothing.
        names.sort(key=lambda name: ".checkpoint." not in name)
        with suppress(FileNotFoundError):
            found = (txn for name in names for txn in _transactions(table / LOG_FOLDER / name))
            return {txn.app_id: txn.version for txn in found}
    raise StorageError("the Delta table's log changes too fast to read it", table=str(table), tries=_TRIES)


def _transactions(path: Path) -> Iterator[_Transaction]:
    if path.suffix == ".json":
        with opened_log_file(path) as file:
            yield from (a.txn for a in _decoded(path, log_lines(file, path)) if a.txn)
        return
    try:
        yield from (msgspec.convert(each, _Transaction) for each in _checkpoint_values(path, "txn"))
    except (pa.ArrowException, msgspec.ValidationError) as e:
        raise CorruptFile("a checkpoint in the Delta table's log cannot be read", file=str(path), reason=str(e)) from e


def _checkpoint_values(path: Path, column: str) -> Iterator[object]:
    """Yields the values of a column of a checkpoint that are not null, which few are."""
    with opened_log_file(path) as file, pq.ParquetFile(file) as opened:
        if column in opened.schema_arrow.names:
            for batch in read_batches(file, opened, [column]):
                yield from batch.column(0).drop_null().to_pylist()


def unreferenced_files(table: Path, application: str, files: Mapping[str, int]) -> set[str]:
    """Returns those of `files` that no readable version of the table and no tombstone refers to.

    The newest version and its tombstones are read from Delta's checkpoint. Older log entries are read only for files
    that these do not contain: from the newest entry back to entries that are older than the files.

    Args:
        application: the application whose commits may refer to the files.
        files: names of stateflow's data files, each with the generation that wrote it.
    """
    opened = open_deltalake(table)
    missing = files.keys() - {uri.rpartition("/")[2] for uri in opened.file_uris()}
    if missing:
        # A vacuum that is not full lists files of the log only, and all tombstones are older than zero hours.
        removed = opened.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=True, full=False)
        missing -= {path.rpartition("/")[2] for path in removed}
    if missing:
        # Versions older than Delta's tombstones remain readable until the log is cleaned up.
        oldest = min(files[name] for name in missing)
        for lines in _logs(table, application, oldest):
            for line in lines:
                missing -= {name.decode() for name in own_names(line)}
            if not missing:
                break
    return missing


def _logs(table: Path, application: str, oldest: int) -> Iterator[Iterator[bytes]]:
    """Yields the log's files line by line, newest entry first, as far back as they may refer to the files.

    The commits of a generation have tokens above its number, or, in at-least-once mode, the newest token below it.

    Args:
        oldest: the generation of the oldest of the files.
    """
    listing = list_log(table)
    for name in listing.other_texts:
        yield _lines(table / LOG_FOLDER / name)
    newest_below = None
    for version in sorted(listing.entries, reverse=True):
        path = entry_path(table, version)
        yield _lines(path)
        token = _token_of(path, application)
        if token is None or token >= oldest:
            continue
        if newest_below is not None and token < newest_below:
            return
        newest_below = token


def _lines(path: Path) -> Iterator[bytes]:
    """Yields the lines of a file of the log; none when a clean-up has removed it meanwhile."""
    with suppress(FileNotFoundError), opened_log_file(path) as file:
        yield from log_lines(file, path)


def _token_of(path: Path, application: str) -> int | None:
    found = [a.txn.version for a in _decoded(path, _lines(path)) if a.txn and a.txn.app_id == application]
    return found[-1] if found else None


def check_log(table: Path, *, is_view: bool = False) -> None:
    """Checks a log before deltalake opens it, if there is one; arguments and errors as of `log_names`.

    Raises CorruptFile also for a checkpoint whose sidecars are not in the log.
    """
    if not (table / LOG_FOLDER).is_dir():
        return
    names = [*log_names(table, is_view=is_view)]
    # One of the older name may have sidecars, too. Only the newest is read; a log has hundreds.
    classic = max(filter(_CLASSIC_CHECKPOINT.fullmatch, names), default="")
    for name in names:
        if name != classic and not _V2_CHECKPOINT.fullmatch(name):
            continue
        path = table / LOG_FOLDER / name
        if is_view:
            path = path.readlink()  # made here, to a name in the log that is not a link itself
        for sidecar in _sidecars_of_text(path) if name.endswith(".json") else _sidecars_of_parquet(path):
            if not _PLAIN_NAME.fullmatch(sidecar):
                raise CorruptFile(
                    "a checkpoint of the Delta table names a file outside of its log",
                    hint="remove the checkpoint, or restore the log from a copy",
                    file=str(path),
                    sidecar=sidecar[:500],
                )


def _sidecars_of_text(path: Path) -> Iterator[str]:
    try:
        for action in map(_sidecar.decode, _lines(path)):
            if action.sidecar is not None:
                yield action.sidecar.path
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        message = "a checkpoint of the Delta table cannot be decoded"
        raise CorruptFile(message, file=str(path), reason=str(e)) from e


def _sidecars_of_parquet(path: Path) -> Iterator[str]:
    try:
        with suppress(FileNotFoundError):
            yield from (msgspec.convert(each, _Sidecar).path for each in _checkpoint_values(path, "sidecar"))
    except (pa.ArrowException, msgspec.ValidationError) as e:
        message = "a checkpoint of the Delta table cannot be decoded"
        raise CorruptFile(message, file=str(path), reason=str(e)) from e


def open_deltalake(table: Path, *, is_view: bool = False) -> DeltaTable:
    """Opens a table with deltalake; `is_view` as for `log_names`.

    Raises SinkRefused, CorruptFile, StorageError, or deltalake's TableNotFoundError.
    """
    check_log(table, is_view=is_view)
    # The import takes 0.2 s, and tasks never need it.
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        return DeltaTable(str(table))
    except TableNotFoundError:
        raise
    except DeltaError as e:
        hint = "check whether it has a feature that this version does not support, or a damaged log"
        raise SinkRefused("the Delta table cannot be read", hint=hint, **_facts(table, e)) from e
    except OSError as e:
        raise StorageError("the Delta table's log cannot be read", **_facts(table, e)) from e


def _load(table: Path, application: str) -> DeltaHead | None:
    from deltalake.exceptions import TableNotFoundError

    try:
        opened = open_deltalake(table)
    except TableNotFoundError:
        return None
    needs, about, version = opened.protocol(), opened.metadata(), opened.version()
    return DeltaHead(
        version=version,
        protocol=Protocol(
            needs.min_reader_version, needs.min_writer_version, needs.reader_features, needs.writer_features
        ),
        metadata=Metadata(
            str(about.id),
            opened.schema().to_json(),
            about.partition_columns,
            dict(about.configuration),
            about.name,
            about.description,
            about.created_time,
        ),
        token=opened.transaction_version(application) or 0,
        file_id=_file_id(entry_path(table, version)),
        is_taken_over=opened.transaction_version(application + TAKEN_OVER) is not None,
    )


def _follow(table: Path, application: str, head: DeltaHead) -> DeltaHead:
    """Returns the head after all entries that are later than `head`."""
    while True:
        path = entry_path(table, head.version + 1)
        try:
            with opened_log_file(path) as file:
                file_id = _file_id_of(os.fstat(file.fileno()))
                head = _applied(head, application, _decoded(path, log_lines(file, path)))
        except FileNotFoundError:
            return head
        head = dataclasses.replace(head, version=head.version + 1, file_id=file_id)


def _applied(head: DeltaHead, application: str, actions: Iterable[_Action]) -> DeltaHead:
    for action in actions:
        head = dataclasses.replace(
            head,
            protocol=action.protocol or head.protocol,
            metadata=action.meta_data or head.metadata,
            token=action.txn.version if action.txn and action.txn.app_id == application else head.token,
            is_taken_over=head.is_taken_over or bool(action.txn and action.txn.app_id == application + TAKEN_OVER),
        )
    return head


def _decoded(path: Path, lines: Iterable[bytes]) -> Iterator[_Action]:
    try:
        for line in lines:
            yield _actions.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        message = "a log entry of the Delta table cannot be decoded"
        raise CorruptFile(message, file=str(path), reason=str(e)) from e


def _file_id(path: Path) -> FileId | None:
    try:
        return _file_id_of(path.stat())
    except FileNotFoundError:
        return None
    except OSError as e:
        raise disk_error(e, path) from e


def _file_id_of(status: os.stat_result) -> FileId:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _facts(table: Path, e: Exception) -> dict[str, str]:
    # deltalake's messages may have a backtrace after the first line.
    return {"table": str(table), "reason": str(e).strip().partition("\n")[0]}
