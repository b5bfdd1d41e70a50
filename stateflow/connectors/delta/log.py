"""The log of a Delta table: its newest version, appended entries, the files that it names, and its checkpoints.

deltalake would load all active files to read the newest version or to append: 6 ms in a new table, 260 ms with
100,000 files, for each checkpoint. From a known version only the later entries are read here, and an entry is one
put-if-absent of its version, durable before it is visible. The first read, Delta's own checkpoints and the clean-up
of the log use deltalake. See ``docs/design/0003``.

Any writer of the table can put files and paths into its log: a FIFO, on which a reader would wait without end, a line
that does not fit into memory, or a path through ``..`` or a link that would let readers copy the rows of another table.
So lines and files are read with limits, below the table's folder, and without following links.

For a checkpoint deltalake loads all active files of a table, starts a hundred threads, and keeps most of the memory: a
driver that created a checkpoint every 100 commits grew by 50 MB in 4,000 commits, and by more with a larger table. A
separate process frees everything when it ends, for 0.1 s of CPU per checkpoint.
"""

from __future__ import annotations

import base64
import dataclasses
import errno
import inspect
import logging
import os
import re
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import unquote, unquote_to_bytes, urlsplit
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stateflow.api.sink import Successor
from stateflow.connectors.data_files import UnnamedFile, disk_error, own_names
from stateflow.connectors.delta_types import DeltaField
from stateflow.connectors.parquet_batches import read_batches
from stateflow.errors import CorruptFile, SinkDiverged, SinkRefused, StorageError
from stateflow.storage.posix import LinkedFolder, NotRegular, open_file, open_folder, open_path, open_root
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

    def fields(self) -> list[DeltaField]:
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
    fields: list[DeltaField]


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


def name_successor(successor: Successor) -> str:
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
    """Returns the newest version of a table; None if the table does not exist.

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
        with open_log_file(path) as file:
            yield from (a.txn for a in _decoded(path, log_lines(file, path)) if a.txn)
        return
    try:
        yield from (msgspec.convert(each, _Transaction) for each in _checkpoint_values(path, "txn"))
    except (pa.ArrowException, msgspec.ValidationError) as e:
        raise CorruptFile("a checkpoint in the Delta table's log cannot be read", file=str(path), reason=str(e)) from e


def _checkpoint_values(path: Path, column: str) -> Iterator[object]:
    """Yields the values of a column of a checkpoint that are not null, which few are."""
    with open_log_file(path) as file, pq.ParquetFile(file) as opened:
        if column in opened.schema_arrow.names:
            for batch in read_batches(file, opened, [column]):
                yield from batch.column(0).drop_null().to_pylist()


def find_unreferenced_files(table: Path, application: str, files: Mapping[str, int]) -> set[str]:
    """Returns the `files` that no readable version of the table and no tombstone refers to.

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
    with suppress(FileNotFoundError), open_log_file(path) as file:
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
            with open_log_file(path) as file:
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


LOG_FOLDER = "_delta_log"


_LOG_FILE = re.compile(
    r"(?P<version>\d{20})\.(?P<kind>json|\d{20}\.compacted\.json"
    r"|(?P<checkpoint>checkpoint)\.(?:parquet|\d{10}\.(?P<parts>\d{10})\.parquet|[0-9a-fA-F-]{36}\.(?:json|parquet)))"
)


@dataclass(frozen=True)
class LogListing:
    """The files of a table's log.

    Attributes:
        names: the version of each file by name; the first version for a file that covers several.
        entries: versions that have a log entry.
        checkpoints: versions that have a complete checkpoint.
    """

    names: Mapping[str, int]
    entries: frozenset[int]
    checkpoints: frozenset[int]

    @property
    def other_texts(self) -> list[str]:
        """JSON files other than entries: compacted entries, and V2 checkpoints."""
        return [name for name in self.names if name.endswith(".json") and name.count(".") > 1]

    def newest_checkpoint(self, version: int) -> int:
        """Returns the newest version up to `version` that has a checkpoint; 0 when there is none."""
        return max((v for v in self.checkpoints if v <= version), default=0)


def list_log(table: Path) -> LogListing:
    """Lists the files of a table's log. Raises StorageError."""
    found = [match for name in log_names(table) if (match := _LOG_FILE.fullmatch(name))]
    parts_found = Counter((int(m["version"]), int(m["parts"] or 1)) for m in found if m["checkpoint"])
    return LogListing(
        names={match.string: int(match["version"]) for match in found},
        entries=frozenset(int(m["version"]) for m in found if m["kind"] == "json"),
        checkpoints=frozenset(version for (version, parts), number in parts_found.items() if number >= parts),
    )


def log_names(table: Path, *, is_view: bool = False) -> list[str]:
    """Returns the names in the folder of a table's log.

    Args:
        is_view: whether the log consists of links that this process has made.

    Raises:
        CorruptFile: the log, or one of its folders, such as `_sidecars`, has a FIFO or a device, for whose content
            deltalake would wait, or a link, by which it would read another table's log.
    """
    found = _checked_files(table / LOG_FOLDER, is_view)
    for entry in found:
        if entry.is_dir():
            _checked_files(Path(entry.path), is_view)
    return [entry.name for entry in found]


def _checked_files(folder: Path, is_view: bool) -> list[os.DirEntry[str]]:
    if not is_view and folder.is_symlink():
        raise _not_a_file(str(folder))
    try:
        with os.scandir(folder) as entries:
            found = list(entries)
    except OSError as e:
        raise disk_error(e, folder) from e
    for entry in found:
        # Views of a log consist of links, whose files a clean-up may have removed.
        is_link = entry.is_symlink()
        is_known = is_link and is_view and not os.path.exists(entry.path)
        if (is_link and not is_view) or not (entry.is_file() or entry.is_dir() or is_known):
            raise _not_a_file(entry.path)
    return found


def _not_a_file(path: str) -> CorruptFile:
    return CorruptFile(
        "the Delta table's log contains something other than files",
        hint="remove it, or restore the file from a copy",
        file=path,
    )


_LONGEST_LINE = 3 << 20
"""Bytes of a line. That of a file with statistics has a few kilobytes, a schema of 10,000 columns about a megabyte.
Decoded, a line takes up to 30 times as many bytes."""
_MOST_LINES = 500_000
"""Lines of a file: actions of one commit."""


@contextmanager
def open_log_file(path: Path) -> Iterator[BinaryIO]:
    """Opens a file of the log.

    Raises:
        FileNotFoundError: the file does not exist.
        CorruptFile: the name refers to something other than a regular file.
        ConfigError, StorageError: the file cannot be read.
    """
    try:
        with open_path(path) as file:
            yield file
    except FileNotFoundError:
        raise
    except NotRegular as e:
        raise CorruptFile(
            "a file of the Delta table's log is not a regular file",
            hint="remove it, or restore the file from a copy",
            file=str(path),
            found=e.strerror,
        ) from e
    except OSError as e:
        raise disk_error(e, path) from e


def log_lines(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """Yields the lines of a log file that have content. Raises CorruptFile for too many lines, or one that is too long.

    Args:
        file: the open file.
        path: its path, for the error.
    """
    for number in count(1):
        line = file.readline(_LONGEST_LINE + 1)
        if not line:
            return
        if len(line) > _LONGEST_LINE or number > _MOST_LINES:
            raise CorruptFile(
                "a file of the Delta table's log has too many lines, or one that is too long",
                hint="restore the file from a copy",
                file=str(path),
                line=number,
                longest=_LONGEST_LINE,
            )
        if not line.isspace():
            yield line


_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_UUID_CHARACTERS = 20
_INLINE, _BY_UUID = "i", "u"


def logged_parts(path: str) -> tuple[str, ...]:
    """Returns the names of the folders and the file of a path in a table's log, which is decoded once, as Delta does.

    Raises:
        CorruptFile: the path leads out of the table's folder, or into its log.
    """
    decoded = os.fsdecode(unquote_to_bytes(path))
    parts = tuple(decoded.split("/"))
    leads_away = any(part in ("", ".", "..") for part in parts) or "\0" in decoded or parts[0] == LOG_FOLDER
    if leads_away or _SCHEME.match(path):
        raise CorruptFile(
            "the log of a Delta table names a file that is not below the table's folder",
            hint="restore the log from a copy, or copy the rows to a new table; shallow clones are not supported",
            file=path[:500],
        )
    return parts


def plain_path(path: str) -> str:
    """Returns a path in a table's log as one relative to the table's folder. Raises CorruptFile as `logged_parts`."""
    return "/".join(logged_parts(path))


@contextmanager
def open_logged_file(table: Path, path: str) -> Iterator[BinaryIO]:
    """Opens a file that the log names.

    Args:
        table: the table's folder, which may be reached through links.
        path: as in the log.

    Raises:
        FileNotFoundError: it does not exist.
        CorruptFile: the path leads away, or through a link, or to something else than a regular file, or the content is
            damaged.
        ConfigError, StorageError: it cannot be read.
    """
    with _parent(table, path) as (folder, name), os.fdopen(open_file(folder, name), "rb") as file:
        yield file


@contextmanager
def open_logged_parquet(table: Path, path: str) -> Iterator[pq.ParquetFile]:
    """Opens a Parquet file that the log names. Raises as `open_logged_file`."""
    with _parquet(table, path) as (_, opened):
        yield opened


def read_parquet(table: Path, path: str, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a file that the log names, in batches of bounded size. Raises as `open_logged_file`.

    Args:
        columns: those to read; None for all.
    """
    with _parquet(table, path) as (file, opened):
        yield from read_batches(file, opened, columns)


@contextmanager
def _parquet(table: Path, path: str) -> Iterator[tuple[BinaryIO, pq.ParquetFile]]:
    with open_logged_file(table, path) as file:
        try:
            # Times of 96 bits have nanoseconds, which years after 2262 do not have in 64 bits.
            options = {"coerce_int96_timestamp_unit": "us", "page_checksum_verification": True}
            with pq.ParquetFile(file, **options) as opened:
                yield file, opened
        except pa.ArrowException as e:
            raise damaged_file(table, path, e) from e


def size_of(table: Path, path: str) -> int | None:
    """Returns the size of a file that the log names; None if it does not exist. Raises as `open_logged_file`."""
    try:
        with _parent(table, path) as (folder, name):
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISREG(found.st_mode):
                raise NotRegular(errno.EINVAL, "something else than a file")
            return found.st_size
    except FileNotFoundError:
        return None


def remove_file(table: Path, path: str) -> None:
    """Deletes a file that the log names, if it exists. Raises as `open_logged_file`."""
    try:
        with _parent(table, path) as (folder, name):
            os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return


@contextmanager
def _parent(table: Path, path: str) -> Iterator[tuple[int, str]]:
    """Yields the open folder of a file, and the file's name; translates errors."""
    *folders, name = logged_parts(path)
    opened: list[int] = []
    try:
        opened.append(open_root(table))
        for each in folders:
            opened.append(open_folder(opened[-1], each))
        yield opened[-1], name
    except FileNotFoundError:
        raise
    except (LinkedFolder, NotRegular, IsADirectoryError, NotADirectoryError) as e:
        raise CorruptFile(
            "a file of a Delta table is a link, in a linked folder, or not a regular file",
            hint="replace it by a copy of the file",
            table=str(table),
            file=path[:500],
            found=e.strerror,
        ) from e
    except OSError as e:
        if e.errno is None:  # Arrow's, while the content was read, such as about a wrong checksum.
            raise damaged_file(table, path, e) from e
        raise disk_error(e, table / "/".join((*folders, name))) from e
    finally:
        for number in opened:
            os.close(number)


def damaged_file(table: Path, path: str, error: Exception) -> CorruptFile:
    """Returns the error of a file whose content cannot be read."""
    return CorruptFile(
        "a file of a Delta table is damaged",
        hint="restore the file from a copy, or delete its rows from the table",
        table=str(table),
        file=path[:500],
        reason=str(error)[:500],
    )


def vector_path(vector: Mapping[str, object]) -> str | None:
    """Returns the path of a deletion vector as in the log; None when it is in the log itself.

    Raises:
        CorruptFile: it is outside of the table's folder, or has no valid name.
    """
    kind, text = vector["storageType"], str(vector["pathOrInlineDv"])
    if kind == _INLINE:
        return None
    if kind != _BY_UUID:
        raise CorruptFile(
            "the log of a Delta table names a deletion vector by an absolute path",
            hint="let Spark remove the vectors: REORG TABLE ... APPLY (PURGE)",
            file=text[:500],
        )
    folder, name = text[:-_UUID_CHARACTERS], text[-_UUID_CHARACTERS:]
    # Z85 is the encoding of Python's base85 with other characters for the digits.
    try:
        number = UUID(bytes=base64.b85decode(name.encode().translate(bytes.maketrans(_Z85, _B85))))
    except ValueError as e:
        raise CorruptFile("the name of a deletion vector of the Delta table is not valid", name=text[:200]) from e
    file = f"deletion_vector_{number}.bin"
    path = f"{folder}/{file}" if folder else file
    logged_parts(path)
    return path


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


_SHOWN = 500
_SECONDS = 600
"""A checkpoint of a million files takes a tenth of it. Without a limit, a FIFO in the log would stop the driver."""


def checkpoint(table: Path, seconds: float = _SECONDS) -> None:
    """Creates a checkpoint of the newest version, then removes expired log entries.

    Args:
        table: the table.
        seconds: time after which the process is killed.

    Raises:
        StorageError: the process failed, or took too long.
    """
    # The program is passed as text: `-m` would import stateflow, which takes ten times as long as its own imports.
    program = f"{inspect.getsource(_create_checkpoint)}\n_create_checkpoint(__import__('sys').argv[1])"
    paths = os.pathsep.join(os.path.abspath(path) for path in sys.path if path)
    try:
        ended = subprocess.run(
            [sys.executable, "-P", "-c", program, str(table)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths},
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as e:
        message = "creating a checkpoint of the Delta table took too long"
        raise StorageError(message, table=str(table), seconds=seconds) from e
    if ended.returncode:
        raise StorageError(
            "creating a checkpoint of the Delta table failed",
            table=str(table),
            exit_code=ended.returncode,
            reason=ended.stderr.decode(errors="replace").strip()[-_SHOWN:],
        )


def _create_checkpoint(table: str) -> None:
    """Creates the checkpoint and removes expired entries, in a process that knows only the text of this function."""
    import os
    from pathlib import Path

    from deltalake import DeltaTable

    opened, folder = DeltaTable(table), Path(table, "_delta_log")
    opened.create_checkpoint()
    # deltalake does not sync. After a power failure, readers must not start from an incomplete checkpoint.
    for path in (*folder.glob(f"{opened.version():020d}.checkpoint*"), folder / "_last_checkpoint", folder):
        # Another writer can create a FIFO of such a name at any time; opening it would wait.
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            os.fsync(number)
        finally:
            os.close(number)
    if (opened.metadata().configuration.get("delta.enableExpiredLogCleanup") or "true").lower() == "true":
        opened.cleanup_metadata()
