"""The log of a Delta table: its newest version, appended entries, the files that it names, and its checkpoints.

deltalake would load all active files to read the newest version or to append: 6 ms in a new table, 260 ms with
100,000 files, for each checkpoint. From a known version only the later entries are read here, and an entry is one
put-if-absent of its version, durable before it is visible. deltalake reads and creates Delta's own checkpoints, in a
local copy of the log, so that it needs no access to the table's storage. See ``docs/design/0003``.

Any writer of the table can put a line into its log that does not fit into memory, or a path that leads elsewhere: lines
are read with limits, and files below the table's folder.

For a checkpoint deltalake loads all active files of a table, starts a hundred threads, and keeps most of the memory: a
driver that created a checkpoint every 100 commits grew by 50 MB in 4,000 commits, and by more with a larger table. A
separate process frees everything when it ends, for 0.1 s of CPU per checkpoint.
"""

from __future__ import annotations

import base64
import dataclasses
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
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
from stateflow.clock import SystemClock, epoch_milliseconds, to_milliseconds
from stateflow.connectors.data_files import own_names
from stateflow.connectors.delta_types import DeltaField
from stateflow.connectors.parquet_batches import read_batches
from stateflow.connectors.table_folder import DiskFolder, TableFolder, read_each
from stateflow.errors import CorruptFile, SinkDiverged, SinkRefused, StorageError
from stateflow.storage import BlobInfo
from stateflow.types.decoders import json_decoder

if TYPE_CHECKING:
    from deltalake import DeltaTable


Action = dict[str, Any]
"""An action of the log, as decoded JSON."""


# deltalake's default. Delta's own, 10, would rewrite the list of all files ten times as often.
_CHECKPOINT_INTERVAL = 100
_INTERVAL = re.compile(r"[1-9][0-9]{0,8}")
_TRIES = 20
_LONGEST_SUMMARY = 16 << 10
"""Bytes of protocol and metadata that an entry has of the version before it. Very wide tables have more."""
_OWN_ENTRIES = 8
"""How many of the newest entries are read to find one of the application, before a checkpoint is read."""
_clock = SystemClock()
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


class _LastCheckpoint(msgspec.Struct):
    version: int


_sidecar, _last_checkpoint = json_decoder(_Checkpoint), json_decoder(_LastCheckpoint)
_V2_CHECKPOINT = re.compile(r"\d{20}\.checkpoint\.[0-9a-fA-F-]{36}\.(?:json|parquet)")
_CLASSIC_CHECKPOINT = re.compile(r"\d{20}\.checkpoint\.parquet")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


class _Schema(msgspec.Struct):
    fields: list[DeltaField]


class _Transaction(msgspec.Struct, frozen=True, rename="camel"):
    app_id: str
    version: int


class _Before(msgspec.Struct, frozen=True, rename="camel"):
    """Protocol and metadata of the version before an entry."""

    protocol: Protocol
    meta_data: Metadata


class _CommitInfo(msgspec.Struct, frozen=True):
    """A ``commitInfo``; only entries of stateflow have the field."""

    stateflow: _Before | None = None


class _Action(msgspec.Struct, frozen=True, rename="camel"):
    """One line of a log entry; actions on files are skipped."""

    protocol: Protocol | None = None
    meta_data: Metadata | None = None
    txn: _Transaction | None = None
    commit_info: _CommitInfo | None = None


_actions, _schema = json_decoder(_Action), json_decoder(_Schema)
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
        entry: version of the log file of `version`, as in `BlobInfo`; empty when that file no longer exists.
        transactions: what `read_transactions` returns, if the whole log was read from a store; otherwise None.
    """

    version: int
    protocol: Protocol
    metadata: Metadata
    token: int
    entry: str
    is_taken_over: bool = False
    transactions: Mapping[str, int] | None = None


def entry_path(version: int) -> str:
    """Returns the path, in its table, of the log entry that created `version`."""
    return f"{LOG_FOLDER}/{version:020d}.json"


def read_head(table: TableFolder, application: str, known: DeltaHead | None = None) -> DeltaHead | None:
    """Returns the newest version of a table; None if the table does not exist.

    Args:
        application: the application; empty for a reader.
        known: an earlier head of the same table and application. It is used only while its log entry is still the same
            file, so that a table which was dropped and created again is read from the start.

    Raises:
        SinkRefused: this version cannot read the table.
    """
    if known is not None and (followed := _follow(table, application, known)) is not None:
        return followed
    for _ in range(_TRIES):
        listing = newest_log(table)
        if not listing.entries and not listing.checkpoints:
            return None
        # A clean-up may remove files that were listed.
        with suppress(FileNotFoundError):
            return _own_head(table, application, listing) or _load(table, application, listing)
    raise _changes_too_fast(table)


def is_current(table: TableFolder, head: DeltaHead) -> bool:
    """Returns whether `head` is still a version of the table at this path."""
    found = table.info(entry_path(head.version))
    return found is not None and found.version == head.entry


def append_entry(
    table: TableFolder, version: int, actions: Iterable[Mapping[str, object]], head: DeltaHead | None = None
) -> bool:
    """Creates the log entry `version`, atomically and durably. Returns False when another one exists.

    Args:
        head: the version before it, which a later start then finds in this entry; None for a new table.

    Raises:
        StorageError: the entry may or may not have been written; the caller must read the table again.
    """
    # An id of its own tells this entry from one with the same actions when a storage's answer was lost.
    more: dict[str, object] = {"txnId": _clock.new_id()}
    listed = list(actions)
    if head is not None and not any("metaData" in action or "protocol" in action for action in listed):
        summary = msgspec.json.encode({"protocol": head.protocol, "metaData": head.metadata})
        more |= {"stateflow": msgspec.Raw(summary)} if len(summary) <= _LONGEST_SUMMARY else {}
    lines = [{**a, "commitInfo": {**_dict(a["commitInfo"]), **more}} if "commitInfo" in a else a for a in listed]
    return table.create(entry_path(version), b"\n".join(msgspec.json.encode(line) for line in lines) + b"\n")


def _dict(value: object) -> dict[str, object]:
    assert isinstance(value, dict)
    return value


def append_after(table: TableFolder, head: DeltaHead, actions: Iterable[Mapping[str, object]]) -> int | None:
    """Creates the version after `head` and returns it; returns None when the table has changed since.

    Raises StorageError as `append_entry` does.
    """
    version = head.version + 1
    # Appending to a table that was dropped and created again would leave a gap in its log.
    if not is_current(table, head) or not append_entry(table, version, actions, head):
        return None
    maintain_log(table, version, head.metadata)
    return version


def maintain_log(table: TableFolder, version: int, metadata: Metadata) -> None:
    """Creates a Delta checkpoint and removes expired log entries, if the commit of `version` makes that due.

    A failure is only logged, because nothing depends on it.
    """
    if (version + 1) % _checkpoint_interval(metadata) == 0:
        _try_checkpoint(table, version, metadata)


def create_overdue_checkpoint(table: TableFolder, head: DeltaHead) -> None:
    """Creates a Delta checkpoint at the start of a run when two or more are missing.

    A checkpoint is missing after a driver was killed after its commit, or had no disk space. Each later start would
    otherwise read all entries since the last checkpoint. A failure is only logged.
    """
    newest = newest_log(table).newest_checkpoint(head.version)
    if head.version - newest >= 2 * _checkpoint_interval(head.metadata):
        _try_checkpoint(table, head.version, head.metadata)


def _checkpoint_interval(metadata: Metadata) -> int:
    interval = (metadata.configuration or {}).get("delta.checkpointInterval") or ""
    return int(interval) if _INTERVAL.fullmatch(interval) else _CHECKPOINT_INTERVAL


def _try_checkpoint(table: TableFolder, version: int, metadata: Metadata) -> None:
    try:
        checkpoint(table, version, metadata.configuration or {})
    except Exception:
        message = "no checkpoint of the Delta table %s at version %d was created"
        _logger.warning(message, table.address, version, exc_info=True)


def read_transactions(table: TableFolder) -> dict[str, int]:
    """Returns the version of the last transaction of each application that has one in the newest version.

    Raises:
        CorruptFile: the log is damaged.
        StorageError: it changes faster than it can be read.
    """
    for _ in range(_TRIES):
        listing = newest_log(table)
        newest = max((*listing.entries, *listing.checkpoints), default=0)
        # Checkpoints first, then the later entries in order; the log of a checkpoint's own version adds nothing.
        names = sorted(listing.of_version(newest), key=lambda name: (".checkpoint." not in name, name))
        with suppress(FileNotFoundError):
            found = (txn for name in names for txn in _transactions(table, name))
            return {txn.app_id: txn.version for txn in found}
    raise _changes_too_fast(table)


def _changes_too_fast(table: TableFolder) -> StorageError:
    return StorageError("the Delta table's log changes too fast to read it", table=table.address, tries=_TRIES)


def _transactions(table: TableFolder, name: str) -> Iterator[_Transaction]:
    path = f"{LOG_FOLDER}/{name}"
    if name.endswith(".json"):
        with open_log_file(table, path) as file:
            yield from (a.txn for a in _decoded(f"{table}/{path}", log_lines(file, f"{table}/{path}")) if a.txn)
        return
    try:
        yield from (msgspec.convert(each, _Transaction) for each in _checkpoint_values(table, path, "txn"))
    except (pa.ArrowException, msgspec.ValidationError) as e:
        raise CorruptFile(
            "a checkpoint in the Delta table's log cannot be read", file=f"{table}/{path}", reason=str(e)
        ) from e


def _checkpoint_values(table: TableFolder, path: str, column: str) -> Iterator[object]:
    """Yields the values of a column of a checkpoint that are not null, which few are."""
    with open_log_file(table, path) as file, pq.ParquetFile(file) as opened:
        if column in opened.schema_arrow.names:
            for batch in read_batches(file, opened, [column]):
                yield from batch.column(0).drop_null().to_pylist()


def find_unreferenced_files(table: TableFolder, application: str, files: Mapping[str, int]) -> set[str]:
    """Returns the `files` that no readable version of the table and no tombstone refers to.

    The newest version and its tombstones are read from Delta's checkpoint. Older log entries are read only for files
    that these do not contain: from the newest entry back to entries that are older than the files.

    Args:
        application: the application whose commits may refer to the files.
        files: names of stateflow's data files, each with the generation that wrote it.
    """
    missing = set(files)
    with open_version(table) as opened:
        if opened is not None:
            missing -= {uri.rpartition("/")[2] for uri in opened.file_uris()}
            # A vacuum that is not full lists files of the log only, and all tombstones are older than zero hours.
            removed = opened.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=True, full=False)
            missing -= {path.rpartition("/")[2] for path in removed}
    if missing:
        # Versions older than Delta's tombstones remain readable until the log is cleaned up.
        oldest = min(files[name] for name in missing)
        for names in _names_in_log(table, application, oldest):
            missing -= names
            if not missing:
                break
    return missing


def _names_in_log(table: TableFolder, application: str, oldest: int) -> Iterator[set[str]]:
    """Yields what may be names of data files in the log, newest entry first, as far back as it may refer to the files.

    The commits of a generation have tokens above its number, or, in at-least-once mode, the newest token below it.

    Args:
        oldest: the generation of the oldest of the files.
    """
    listing = list_log(table)
    for name in listing.other_texts:
        for line in _lines(table, f"{LOG_FOLDER}/{name}"):
            yield {found.decode() for found in own_names(line)}
    newest_below = None
    newest_first = sorted(listing.entries, reverse=True)
    for names, token in read_each(lambda version: _names_and_token(table, version, application), newest_first):
        yield names
        if token is None or token >= oldest:
            continue
        if newest_below is not None and token < newest_below:
            return
        newest_below = token


def _names_and_token(table: TableFolder, version: int, application: str) -> tuple[set[str], int | None]:
    names: set[str] = set()

    def lines() -> Iterator[bytes]:
        for line in _lines(table, path):
            names.update(name.decode() for name in own_names(line))
            yield line

    path = entry_path(version)
    actions = _decoded(f"{table}/{path}", lines())
    tokens = [action.txn.version for action in actions if action.txn and action.txn.app_id == application]
    return names, tokens[-1] if tokens else None


def _lines(table: TableFolder, path: str) -> Iterator[bytes]:
    """Yields the lines of a file of the log; none when a clean-up has removed it meanwhile."""
    with suppress(FileNotFoundError), open_log_file(table, path) as file:
        yield from log_lines(file, f"{table}/{path}")


@contextmanager
def open_version(table: TableFolder, version: int | None = None) -> Iterator[DeltaTable | None]:
    """Opens a version of a table with deltalake, in a local folder that has its log up to this version, and no data.

    Yields None when the log no longer contains the version, or does not exist.

    Args:
        version: the version; None for the newest one.

    Raises:
        SinkRefused: deltalake cannot read the table.
        CorruptFile: the log is damaged, or leads out of the table.
    """
    with tempfile.TemporaryDirectory(prefix="stateflow-delta-") as scratch:
        yield view_version(table, Path(scratch), version)


def view_version(table: TableFolder, scratch: Path, version: int | None = None) -> DeltaTable | None:
    """Opens a version as `open_version` does, in a new folder in the local folder `scratch`."""
    # The import takes 0.2 s, and tasks never need it.
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    view, newest = copy_log(table, scratch, version)
    try:
        opened = DeltaTable(str(view))
    except TableNotFoundError:
        return None
    except DeltaError as e:
        if version is not None and not list_log(table).has_version(version):
            return None
        if (feature := _unsupported_feature(e)) is not None:
            dropped = "the Delta table has a feature that is not supported", f"ALTER TABLE ... DROP FEATURE {feature}"
            sentence, hint = CATALOG_MANAGED if feature in CATALOG_FEATURES else dropped
            hint = f"{hint}, or let the sink write to another table"
            raise SinkRefused(sentence, hint=hint, feature=feature, **_facts(table, e)) from e
        raise _damaged(**_facts(table, e)) from e
    except OSError as e:
        raise StorageError("the Delta table's log cannot be read", **_facts(table, e)) from e
    return opened if opened.version() == newest else None


CATALOG_FEATURES = frozenset({"catalogManaged", "catalogOwned", "catalogOwned-preview"})
"""Features of tables of which a catalog keeps the newest versions."""
CATALOG_MANAGED = (
    "the Delta table is managed by a catalog: its folder need not have its newest commits, and the catalog would not "
    "know of others",
    "create a table that is not managed by a catalog such as Unity",
)
"""Why a sink refuses such a table, and what helps."""
_UNSUPPORTED = re.compile(r"Feature '([^']+)' is not supported")


def _unsupported_feature(error: Exception) -> str | None:
    """Returns the feature for which deltalake refuses to open a table; None for any other error."""
    text = str(error)
    if "catalog-managed table" in text:
        return "catalogManaged"
    named = _UNSUPPORTED.search(text)
    return named[1] if named else None


def _damaged(**facts: str) -> SinkRefused:
    return SinkRefused("the Delta table cannot be read", hint="check whether the log is damaged", **facts)


def _facts(table: TableFolder, e: Exception) -> dict[str, str]:
    # deltalake's messages may have a backtrace after the first line.
    return {"table": table.address, "reason": str(e).strip().partition("\n")[0]}


def copy_log(table: TableFolder, scratch: Path, version: int | None = None) -> tuple[Path, int]:
    """Copies or links the log up to a version, from the newest checkpoint on, to a new folder in `scratch`.

    Returns:
        The folder, which deltalake can open, and the version.
    """
    for attempt in range(_TRIES):
        listing = newest_log(table)
        newest = max((*listing.entries, *listing.checkpoints), default=-1) if version is None else version
        if newest < min(listing.names.values(), default=0):
            listing = list_log(table)
        # A clean-up may remove files that were listed.
        with suppress(FileNotFoundError):
            _copy_files(table, scratch / str(attempt), listing.of_version(newest))
            return scratch / str(attempt), newest
    raise _changes_too_fast(table)


def _copy_files(table: TableFolder, view: Path, names: Iterable[str]) -> None:
    """Makes some files of the log available in a local folder. Raises FileNotFoundError if one no longer exists."""
    copy = view / LOG_FOLDER
    (copy / _SIDECARS).mkdir(parents=True)
    used = [name for name in names if not name.endswith(".compacted.json")]
    table.fetch_all([(f"{LOG_FOLDER}/{name}", copy / name) for name in used])
    sidecars = {sidecar for name in used for sidecar in _sidecars_of(table, name)}
    table.fetch_all([(f"{LOG_FOLDER}/{_SIDECARS}/{name}", copy / _SIDECARS / name) for name in sorted(sidecars)])


def check_log(table: TableFolder) -> None:
    """Checks a log before another library opens the table.

    Raises:
        CorruptFile: it has something other than files, or a checkpoint whose sidecars are not in the log.
    """
    # In a store only the part that is read now: the older one may take many requests, and cannot have a FIFO.
    names = (newest_log if table.only_files else list_log)(table).names
    # One of the older name may have sidecars, too. Only the newest is read; a log has hundreds.
    classic = max(filter(_CLASSIC_CHECKPOINT.fullmatch, names), default="")
    for name in names:
        if name == classic or _V2_CHECKPOINT.fullmatch(name):
            for _ in _sidecars_of(table, name):
                pass


def _sidecars_of(table: TableFolder, name: str) -> Iterator[str]:
    """Yields the names of the sidecars of a checkpoint. Raises CorruptFile for one that is not in the log."""
    if not _CLASSIC_CHECKPOINT.fullmatch(name) and not _V2_CHECKPOINT.fullmatch(name):
        return
    path = f"{LOG_FOLDER}/{name}"
    try:
        if name.endswith(".json"):
            actions = map(_sidecar.decode, _lines(table, path))
            found = [action.sidecar.path for action in actions if action.sidecar is not None]
        else:
            values = _checkpoint_values(table, path, "sidecar")
            found = [msgspec.convert(each, _Sidecar).path for each in values]
    except (pa.ArrowException, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        message = "a checkpoint of the Delta table cannot be decoded"
        raise CorruptFile(message, file=f"{table}/{path}", reason=str(e)) from e
    for sidecar in found:
        if not _PLAIN_NAME.fullmatch(sidecar):
            raise CorruptFile(
                "a checkpoint of the Delta table names a file outside of its log",
                hint="remove the checkpoint, or restore the log from a copy",
                file=f"{table}/{path}",
                sidecar=sidecar[:500],
            )
        yield sidecar


def _load(table: TableFolder, application: str, listing: LogListing) -> DeltaHead | None:
    """Returns the newest listed version as deltalake reads it; None if a log has none."""
    version = max((*listing.entries, *listing.checkpoints))
    with open_version(table, version) as opened:
        if opened is None and not listing.has_version(version):
            raise _damaged(table=table.address, reason="the log has neither its first entry nor a checkpoint")
        if opened is None:
            return None
        return DeltaHead(
            version=version,
            protocol=protocol_of(opened),
            metadata=metadata_of(opened),
            token=opened.transaction_version(application) or 0,
            entry=listing.identity(version),
            is_taken_over=opened.transaction_version(application + TAKEN_OVER) is not None,
            # From the copies: a store needs a request for each entry.
            transactions=read_transactions(DiskFolder(folder_of_view(opened))) if table.only_files else None,
        )


def folder_of_view(opened: DeltaTable) -> Path:
    """Returns the local folder of a version that `view_version` has opened."""
    return Path(unquote(urlsplit(opened.table_uri).path))


def protocol_of(opened: DeltaTable) -> Protocol:
    """Returns the protocol of an opened version."""
    needs = opened.protocol()
    return Protocol(needs.min_reader_version, needs.min_writer_version, needs.reader_features, needs.writer_features)


def metadata_of(opened: DeltaTable) -> Metadata:
    """Returns the metadata of an opened version."""
    about = opened.metadata()
    return Metadata(
        str(about.id),
        opened.schema().to_json(),
        about.partition_columns,
        dict(about.configuration),
        about.name,
        about.description,
        about.created_time,
    )


def _own_head(table: TableFolder, application: str, listing: LogListing) -> DeltaHead | None:
    """Returns the newest listed version by the application's last entry; None if the last few have none.

    Such an entry says what the version before it had, and sets the application's token. So a start reads an entry
    instead of a checkpoint and all entries after it. Without an application, an entry of any sink will do.
    """
    newest, first = max(listing.entries, default=0), max(listing.checkpoints, default=0)
    later: list[list[_Action]] = []
    for version in range(newest, max(first, newest - _OWN_ENTRIES) - 1, -1):
        if version not in listing.entries:
            return None
        actions = _actions_of(table, version)
        before = next((a.commit_info.stateflow for a in actions if a.commit_info), None)
        token = next((a.txn.version for a in actions if a.txn and a.txn.app_id == application), None)
        if before is not None and (token is not None or not application):
            head = DeltaHead(newest, before.protocol, before.meta_data, token or 0, listing.identity(newest))
            for each in reversed(later):
                head = _applied(head, application, each)
            return head
        later.append(actions)
    return None


def _actions_of(table: TableFolder, version: int) -> list[_Action]:
    """Returns the actions of a log entry. Raises FileNotFoundError."""
    path = entry_path(version)
    with open_log_file(table, path) as file:
        return list(_decoded(f"{table}/{path}", log_lines(file, f"{table}/{path}")))


def _follow(table: TableFolder, application: str, head: DeltaHead) -> DeltaHead | None:
    """Returns the head after all entries that are later than `head`; None if its version no longer exists."""
    found = table.sequence(entry_path, head.version)
    if not found or found[0].version != head.entry:
        return None
    later = range(head.version + 1, head.version + len(found))
    try:
        for info, actions in zip(found[1:], read_each(lambda version: _actions_of(table, version), later), strict=True):
            version = head.version + 1
            head = dataclasses.replace(_applied(head, application, actions), version=version, entry=info.version)
    except FileNotFoundError:
        return None
    return head


def _applied(head: DeltaHead, application: str, actions: Iterable[_Action]) -> DeltaHead:
    for action in actions:
        known, txn = head.transactions, action.txn
        head = dataclasses.replace(
            head,
            protocol=action.protocol or head.protocol,
            metadata=action.meta_data or head.metadata,
            token=txn.version if txn and txn.app_id == application else head.token,
            is_taken_over=head.is_taken_over or bool(txn and txn.app_id == application + TAKEN_OVER),
            transactions=known if known is None or txn is None else {**known, txn.app_id: txn.version},
        )
    return head


def _decoded(path: str, lines: Iterable[bytes]) -> Iterator[_Action]:
    try:
        for line in lines:
            yield _actions.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        message = "a log entry of the Delta table cannot be decoded"
        raise CorruptFile(message, file=path, reason=str(e)) from e


LOG_FOLDER = "_delta_log"
LAST_CHECKPOINT = f"{LOG_FOLDER}/_last_checkpoint"
_SIDECARS = "_sidecars"


_LOG_FILE = re.compile(
    r"(?P<version>\d{20})\.(?P<kind>json|\d{20}\.compacted\.json"
    r"|(?P<checkpoint>checkpoint)\.(?:parquet|\d{10}\.(?P<parts>\d{10})\.parquet|[0-9a-fA-F-]{36}\.(?:json|parquet)))"
)


@dataclass(frozen=True)
class LogListing:
    """The files of a table's log.

    Attributes:
        names: the version of each file by name; the first version for a file that covers several.
        files: the file of each name.
        entries: versions that have a log entry.
        checkpoints: versions that have a complete checkpoint.
    """

    names: Mapping[str, int]
    files: Mapping[str, BlobInfo]
    entries: frozenset[int]
    checkpoints: frozenset[int]

    @property
    def other_texts(self) -> list[str]:
        """JSON files other than entries: compacted entries, and V2 checkpoints."""
        return [name for name in self.names if name.endswith(".json") and name.count(".") > 1]

    def has_version(self, version: int) -> bool:
        """Returns whether the log has what a version is read from: a checkpoint up to it, or the first entry of all."""
        return 0 in self.entries or any(v <= version for v in self.checkpoints)

    def newest_checkpoint(self, version: int) -> int:
        """Returns the newest version up to `version` that has a checkpoint; 0 when there is none."""
        return max((v for v in self.checkpoints if v <= version), default=0)

    def identity(self, version: int) -> str:
        """Returns the version, as in `BlobInfo`, of the entry of a version; empty without one."""
        file = self.files.get(entry_path(version).rpartition("/")[2])
        return file.version if file else ""

    def of_version(self, version: int) -> list[str]:
        """Returns the files that a version is read from: the newest checkpoint up to it, and the entries since."""
        first = self.newest_checkpoint(version)
        return sorted(name for name, number in self.names.items() if first <= number <= version)


def list_log(table: TableFolder, since: int = 0) -> LogListing:
    """Lists the files of a table's log.

    Args:
        since: the first version to list; 0 for all.

    Raises:
        CorruptFile: the log, or one of its folders, such as `_sidecars`, has a FIFO or a device, for whose content
            deltalake would wait, or a link, by which it would read another table's log.
    """
    # The names of a version sort after its number alone.
    listed = table.files(LOG_FOLDER, f"{since:020d}" if since else "")
    files = {file.key.removeprefix(f"{LOG_FOLDER}/"): file for file in listed}
    found = [match for name in files if (match := _LOG_FILE.fullmatch(name))]
    parts_found = Counter((int(m["version"]), int(m["parts"] or 1)) for m in found if m["checkpoint"])
    return LogListing(
        names={match.string: int(match["version"]) for match in found},
        files=files,
        entries=frozenset(int(m["version"]) for m in found if m["kind"] == "json"),
        checkpoints=frozenset(version for (version, parts), number in parts_found.items() if number >= parts),
    )


def newest_log(table: TableFolder) -> LogListing:
    """Lists the log from the checkpoint that it names as the newest one, without thousands of older entries."""
    since = _named_checkpoint(table)
    if since:
        listing = list_log(table, since)
        if since in listing.checkpoints:
            return listing
    return list_log(table)


def _named_checkpoint(table: TableFolder) -> int:
    """Returns the version that the log names as its newest checkpoint; 0 without one. It may be wrong."""
    try:
        with open_log_file(table, LAST_CHECKPOINT) as file:
            return _last_checkpoint.decode(file.read(_LONGEST_LINE)).version
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0


_LONGEST_LINE = 3 << 20
"""Bytes of a line. That of a file with statistics has a few kilobytes, a schema of 10,000 columns about a megabyte.
Decoded, a line takes up to 30 times as many bytes."""
_MOST_LINES = 500_000
"""Lines of a file: actions of one commit."""


@contextmanager
def open_log_file(table: TableFolder, path: str) -> Iterator[BinaryIO]:
    """Opens a file of the log.

    Args:
        path: its path in the table.

    Raises:
        FileNotFoundError: the file does not exist.
        CorruptFile: the name refers to something other than a regular file.
        ConfigError, StorageError: the file cannot be read.
    """
    with table.open(path) as file:
        yield file


def log_lines(file: BinaryIO, path: str) -> Iterator[bytes]:
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
                file=path,
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
def open_logged_file(table: TableFolder, path: str) -> Iterator[BinaryIO]:
    """Opens a file that the log names.

    Args:
        table: the table's folder.
        path: as in the log.

    Raises:
        FileNotFoundError: it does not exist.
        CorruptFile: the path leads away, or through a link, or to something else than a regular file, or the content is
            damaged.
        ConfigError, StorageError: it cannot be read.
    """
    try:
        with table.open(plain_path(path)) as file:
            yield file
    except FileNotFoundError:
        raise
    except OSError as e:  # Arrow's, while the content was read, such as about a wrong checksum.
        raise damaged_file(table, path, e) from e


@contextmanager
def open_logged_parquet(table: TableFolder, path: str) -> Iterator[pq.ParquetFile]:
    """Opens a Parquet file that the log names. Raises as `open_logged_file`."""
    with _parquet(table, path) as (_, opened):
        yield opened


def read_parquet(table: TableFolder, path: str, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a file that the log names, in batches of bounded size. Raises as `open_logged_file`.

    Args:
        columns: those to read; None for all.
    """
    with _parquet(table, path) as (file, opened):
        yield from read_batches(file, opened, columns)


@contextmanager
def _parquet(table: TableFolder, path: str) -> Iterator[tuple[BinaryIO, pq.ParquetFile]]:
    with open_logged_file(table, path) as file:
        try:
            # Times of 96 bits have nanoseconds, which years after 2262 do not have in 64 bits.
            options = {"coerce_int96_timestamp_unit": "us", "page_checksum_verification": True}
            with pq.ParquetFile(file, **options) as opened:
                yield file, opened
        except pa.ArrowException as e:
            raise damaged_file(table, path, e) from e


def size_of(table: TableFolder, path: str) -> int | None:
    """Returns the size of a file that the log names; None if it does not exist. Raises as `open_logged_file`."""
    found = table.info(plain_path(path))
    return None if found is None else found.size


def damaged_file(table: TableFolder, path: str, error: Exception) -> CorruptFile:
    """Returns the error of a file whose content cannot be read."""
    return CorruptFile(
        "a file of a Delta table is damaged",
        hint="restore the file from a copy, or delete its rows from the table",
        table=table.address,
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
    try:
        number = UUID(bytes=decode_z85(name))
    except ValueError as e:
        raise CorruptFile("the name of a deletion vector of the Delta table is not valid", name=text[:200]) from e
    file = f"deletion_vector_{number}.bin"
    path = f"{folder}/{file}" if folder else file
    logged_parts(path)
    return path


def decode_z85(text: str) -> bytes:
    """Returns the bytes of a text in Z85, in which the log has deletion vectors and their names. Raises ValueError."""
    # It is the encoding of Python's base85 with other characters for the digits.
    return base64.b85decode(text.encode().translate(bytes.maketrans(_Z85, _B85)))


class DeletionVectors:
    """The deletion vectors of a version of a table; read by deltalake, all at once, when the first one is needed.

    Args:
        table: the table's folder.
        version: the version.
        vectors: its deletion vectors, as in the log.
    """

    def __init__(self, table: TableFolder, version: int, vectors: Sequence[Action]) -> None:
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
        found = self._kept.get(plain_path(path))
        if found is None or len(found) > count:
            raise self._unreadable(f"it has no vector for {count} rows of {path}")
        # A vector ends at its last deleted row.
        return pa.concat_arrays([found, pa.repeat(pa.scalar(True), count - len(found))])

    def _read(self) -> dict[str, pa.Array]:
        from deltalake.exceptions import DeltaError

        with tempfile.TemporaryDirectory(prefix="stateflow-delta-") as scratch:
            opened = view_version(self._table, Path(scratch), self._version)
            if opened is None:
                raise self._unreadable("the log no longer has this version")
            view = folder_of_view(opened)
            self._fetch_vectors(view)
            try:
                found = pa.table(opened.deletion_vectors().read_all())
            except (DeltaError, OSError) as e:
                raise self._unreadable(f"{type(e).__name__}: {e}") from e
            return dict(self._masks(found, os.path.realpath(view)))

    def _fetch_vectors(self, view: Path) -> None:
        # deltalake would open whatever the log names.
        paths = {plain_path(path) for path in map(vector_path, self._vectors) if path is not None}
        for path in paths:
            if self._table.info(path) is None:
                raise self._unreadable(f"{path} does not exist")
            (view / path).parent.mkdir(parents=True, exist_ok=True)
        self._table.fetch_all([(path, view / path) for path in sorted(paths)])

    @staticmethod
    def _masks(found: pa.Table, view: str) -> Iterator[tuple[str, pa.Array]]:
        for number, uri in enumerate(found.column("filepath").to_pylist()):
            mask = found.column("selection_vector").slice(number, 1).combine_chunks()
            yield os.path.relpath(unquote(urlsplit(uri).path), view), pc.list_flatten(mask)

    def _unreadable(self, reason: str) -> SinkDiverged:
        return SinkDiverged(
            "the deletion vectors of the Delta table cannot be read",
            hint="restore its files, or let Spark remove the vectors: REORG TABLE ... APPLY (PURGE)",
            table=self._table.address,
            version=self._version,
            reason=reason[:500],
        )


_SHOWN = 500
_SECONDS = 600
"""A checkpoint of a million files takes a tenth of it. Without a limit, a FIFO in the log would stop the driver."""


def checkpoint(
    table: TableFolder, version: int, configuration: Mapping[str, str | None], seconds: float = _SECONDS
) -> None:
    """Creates a checkpoint of a version, then removes expired log entries.

    Args:
        table: the table.
        version: the version.
        configuration: properties of the table.
        seconds: time after which the process that creates it is killed.

    Raises:
        StorageError: the process failed, or took too long.
    """
    with tempfile.TemporaryDirectory(prefix="stateflow-delta-") as scratch:
        view, _ = copy_log(table, Path(scratch), version)
        known = set(view.rglob("*"))
        _run_checkpoint(table, view, seconds)
        for path in sorted(set(view.rglob("*")) - known):
            if path.name != LAST_CHECKPOINT.rpartition("/")[2]:
                _store(table, str(path.relative_to(view)), path)
        newest = view / LAST_CHECKPOINT
        if newest.exists():  # unless the version had a checkpoint
            # Not in one step: a reader that finds none lists the log.
            table.delete([LAST_CHECKPOINT])
            table.create(LAST_CHECKPOINT, newest.read_bytes())
    if (configuration.get("delta.enableExpiredLogCleanup") or "true").lower() == "true":
        _remove_expired(table, configuration.get("delta.logRetentionDuration") or "interval 30 days")


def _store(table: TableFolder, path: str, source: Path) -> None:
    """Stores a file of a checkpoint, unless another process has created the same one."""
    with source.open("rb") as file, table.new_file() as target:
        shutil.copyfileobj(file, target)
        if not target.publish(path) and table.info(path) is None:
            raise StorageError("a file of a checkpoint was deleted meanwhile", table=table.address, file=path)


def _run_checkpoint(table: TableFolder, view: Path, seconds: float) -> None:
    # The program is passed as text: `-m` would import stateflow, which takes ten times as long as its own imports.
    program = "import sys; from deltalake import DeltaTable; DeltaTable(sys.argv[1]).create_checkpoint()"
    paths = os.pathsep.join(os.path.abspath(path) for path in sys.path if path)
    try:
        ended = subprocess.run(
            [sys.executable, "-P", "-c", program, str(view)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths},
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as e:
        message = "creating a checkpoint of the Delta table took too long"
        raise StorageError(message, table=table.address, timeout_ms=to_milliseconds(seconds)) from e
    if ended.returncode:
        raise StorageError(
            "creating a checkpoint of the Delta table failed",
            table=table.address,
            exit_code=ended.returncode,
            reason=ended.stderr.decode(errors="replace").strip()[-_SHOWN:],
        )


_MILLISECONDS = {"second": 1000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000, "week": 604_800_000}
_INTERVAL_PART = re.compile(r"(\d{1,9})\s+(second|minute|hour|day|week)s?\b")


def _remove_expired(table: TableFolder, retention: str) -> None:
    """Removes the log of versions that are older than the table keeps them, and that no kept version is read from.

    Args:
        retention: as Delta writes an interval.
    """
    parts = _INTERVAL_PART.findall(retention.lower())
    if not parts:
        _logger.warning("the log of %s is not cleaned up: %r is not an interval of days", table, retention)
        return
    kept_ms = sum(int(number) * _MILLISECONDS[unit] for number, unit in parts)
    cutoff = epoch_milliseconds(_clock.now()) - kept_ms
    listing = list_log(table)
    old = {name for name in listing.names if listing.files[name].modified_ms < cutoff}
    # Versions after this checkpoint are read from it; those before it have expired, as it has itself.
    until = max((v for v in listing.checkpoints if f"{v:020d}.json" in old), default=0)
    table.delete(f"{LOG_FOLDER}/{name}" for name, version in listing.names.items() if version < until and name in old)
