"""The log of a Delta table, as far as a sink that only appends needs it.

Reading the table's head and appending to it are done here rather than by deltalake, which loads every active file for
either: 6 ms in a new table, 260 ms with 100,000 files, for each checkpoint. A head that is known is followed by
reading only the entries behind it, and an entry is one put-if-absent of its version, durable before it is visible.
What is larger than that, the first read, Delta's own checkpoints and the clean-up of the log, is deltalake's.
``docs/design/0003`` tells more.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stateflow.connectors.delta_checkpoint import checkpoint
from stateflow.connectors.delta_files import OWN_NAMES, NamelessFile, disk_error
from stateflow.decoders import json_decoder
from stateflow.errors import CorruptFile, SinkRefused, StorageError

if TYPE_CHECKING:
    from deltalake import DeltaTable

LOG_FOLDER = "_delta_log"

# deltalake's default. Delta's own, 10, would rewrite the list of all files ten times as often.
_CHECKPOINT_INTERVAL = 100

_LOG_FILE = re.compile(
    r"(?P<version>\d{20})\.(?P<kind>json|\d{20}\.compacted\.json"
    r"|(?P<checkpoint>checkpoint)\.(?:parquet|\d{10}\.(?P<parts>\d{10})\.parquet|[0-9a-fA-F-]{36}\.(?:json|parquet)))"
)

_logger = logging.getLogger(__name__)


class Protocol(msgspec.Struct, frozen=True, rename="camel"):
    """Delta's ``protocol`` action: what a reader and a writer must be able to do."""

    min_reader_version: int
    min_writer_version: int
    reader_features: list[str] | None = None
    writer_features: list[str] | None = None


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """Delta's ``metaData`` action: who the table is, and its columns."""

    id: str
    schema_string: str
    partition_columns: list[str] = []
    configuration: Mapping[str, str | None] | None = None


class _Transaction(msgspec.Struct, frozen=True, rename="camel"):
    app_id: str
    version: int


class _Action(msgspec.Struct, frozen=True, rename="camel"):
    """One line of a log entry; actions on files are skipped."""

    protocol: Protocol | None = None
    meta_data: Metadata | None = None
    txn: _Transaction | None = None


_actions = json_decoder(_Action)

Mark = tuple[int, int, int, int]
"""Tells one file from another that took its name later."""


@dataclass(frozen=True)
class DeltaHead:
    """A table at one version, for one application.

    Attributes:
        token: the version that the application's last transaction has; 0 when there is none.
        mark: which file the log entry of `version` is; None when there is no such file any more.
    """

    version: int
    protocol: Protocol
    metadata: Metadata
    token: int
    mark: Mark | None


def entry_path(table: Path, version: int) -> Path:
    """The log entry that made `version`."""
    return table / LOG_FOLDER / f"{version:020d}.json"


def read_head(table: Path, application: str, known: DeltaHead | None = None) -> DeltaHead | None:
    """The table as it is now; None when there is no table.

    Args:
        known: an earlier head of the same table and application. It is used only while its log entry is the very same
            file, so that a table which was dropped and made again is read from the start.

    Raises:
        SinkRefused: the table cannot be read by this version.
    """
    if known is None or not is_current(table, known):
        known = _load(table, application)
    return _follow(table, application, known) if known else None


def is_current(table: Path, head: DeltaHead) -> bool:
    """Whether `head` is still a version of the table at this place."""
    return head.mark is not None and _mark(entry_path(table, head.version)) == head.mark


def append_entry(table: Path, version: int, actions: Iterable[Mapping[str, Any]]) -> bool:
    """Writes the log entry `version`, in one step and durable; False when there is one already.

    Raises StorageError when it may or may not have been written: only reading the table again can tell.
    """
    folder = table / LOG_FOLDER
    try:
        with NamelessFile(folder) as file:
            file.write(b"\n".join(msgspec.json.encode(action) for action in actions) + b"\n")
            return file.link(entry_path(table, version).name)
    except OSError as e:
        raise disk_error(e, folder) from e


def maintain(table: Path, version: int, metadata: Metadata) -> None:
    """After the commit of `version`: now and then makes one of Delta's checkpoints, and removes expired log entries.

    Nothing depends on it, so a failure is only logged.
    """
    if (version + 1) % _checkpoint_interval(metadata) == 0:
        _try_checkpoint(table, version)


def catch_up(table: Path, head: DeltaHead) -> None:
    """At a run's start: makes a checkpoint when two or more are missing; a failure is only logged.

    A driver that is killed after its commit leaves out a checkpoint, and so does one that has no room for it. Without
    this, each later start would read all entries since the last one.
    """
    newest = list_log(table).newest_checkpoint(head.version)
    if head.version - newest >= 2 * _checkpoint_interval(head.metadata):
        _try_checkpoint(table, head.version)


def _checkpoint_interval(metadata: Metadata) -> int:
    interval = (metadata.configuration or {}).get("delta.checkpointInterval") or ""
    return int(interval) if interval.isdecimal() and int(interval) else _CHECKPOINT_INTERVAL


def _try_checkpoint(table: Path, version: int) -> None:
    try:
        checkpoint(table)
    except Exception:
        _logger.warning("the Delta table %s got no checkpoint at version %d", table, version, exc_info=True)


@dataclass(frozen=True)
class LogListing:
    """The files of a table's log.

    Attributes:
        names: of all files, each with the version that it is about or begins with.
        entries: versions that have a log entry.
        checkpoints: versions that have a complete checkpoint.
    """

    names: Mapping[str, int]
    entries: frozenset[int]
    checkpoints: frozenset[int]

    @property
    def other_texts(self) -> list[str]:
        """JSON files that are no entries: compacted entries, and checkpoints of Delta's version 2."""
        return [name for name in self.names if name.endswith(".json") and name.count(".") > 1]

    def newest_checkpoint(self, version: int) -> int:
        """The newest version up to `version` that has a checkpoint; 0 without one."""
        return max((v for v in self.checkpoints if v <= version), default=0)


def list_log(table: Path) -> LogListing:
    """What a table's log consists of. Raises StorageError."""
    folder = table / LOG_FOLDER
    try:
        found = [match for name in os.listdir(folder) if (match := _LOG_FILE.fullmatch(name))]
    except OSError as e:
        raise disk_error(e, folder) from e
    there = Counter((int(m["version"]), int(m["parts"] or 1)) for m in found if m["checkpoint"])
    return LogListing(
        names={match.string: int(match["version"]) for match in found},
        entries=frozenset(int(m["version"]) for m in found if m["kind"] == "json"),
        checkpoints=frozenset(version for (version, parts), number in there.items() if number >= parts),
    )


def unnamed_files(table: Path, application: str, files: Mapping[str, int]) -> set[str]:
    """Those of `files` that no version of the table which can still be read names, nor a tombstone that Delta keeps.

    The newest version and its tombstones come from Delta's checkpoint. Only for files that these do not name, older
    log entries are read: from the newest one back to those that were written before the files.

    Args:
        application: whose commits may name the files.
        files: names of stateflow's data files, each with the generation that wrote it.
    """
    opened = open_deltalake(table)
    missing = files.keys() - {uri.rpartition("/")[2] for uri in opened.file_uris()}
    if missing:
        # Lite: only what the log names. All tombstones are older than zero hours.
        missing -= set(
            opened.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=True, full=False)
        )
    if missing:
        # Versions that are older than the tombstones which Delta keeps can be read until the log is cleaned up.
        oldest = min(files[name] for name in missing)
        for text in _texts(table, application, oldest):
            missing -= {name.decode() for name in OWN_NAMES.findall(text)}
            if not missing:
                break
    return missing


def _texts(table: Path, application: str, oldest: int) -> Iterator[bytes]:
    """The log as text, newest entry first, as far back as it may name a file of the generation `oldest`.

    What a generation publishes has a token above its number; or, in at-least-once mode, the newest token below that.
    """
    listing = list_log(table)
    for name in listing.other_texts:
        yield _text(table / LOG_FOLDER / name)
    newest_below = None
    for version in sorted(listing.entries, reverse=True):
        path = entry_path(table, version)
        text = _text(path)
        yield text
        token = _token_of(path, text.splitlines(), application)
        if token is None or token >= oldest:
            continue
        if newest_below is not None and token < newest_below:
            return
        newest_below = token


def _text(path: Path) -> bytes:
    """A file of the log; nothing when a clean-up has removed it in between."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as e:
        raise disk_error(e, path) from e


def _token_of(path: Path, lines: list[bytes], application: str) -> int | None:
    found = [a.txn.version for a in _decoded(path, lines) if a.txn and a.txn.app_id == application]
    return found[-1] if found else None


def open_deltalake(table: Path) -> DeltaTable:
    """The table through deltalake. Raises SinkRefused, StorageError, or deltalake's TableNotFoundError."""
    # Costs 0.2 s at the first time; the tasks never need it.
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        return DeltaTable(str(table))
    except TableNotFoundError:
        raise
    except DeltaError as e:
        hint = "does it have a feature that is newer than this version, or is its log damaged?"
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
            str(about.id), opened.schema().to_json(), about.partition_columns, dict(about.configuration)
        ),
        token=opened.transaction_version(application) or 0,
        mark=_mark(entry_path(table, version)),
    )


def _follow(table: Path, application: str, head: DeltaHead) -> DeltaHead:
    """The head after the entries that came behind `head`."""
    while True:
        path = entry_path(table, head.version + 1)
        try:
            with path.open("rb") as file:
                lines, mark = file.readlines(), _mark_of(os.fstat(file.fileno()))
        except FileNotFoundError:
            return head
        except OSError as e:
            raise disk_error(e, path) from e
        head = _applied(head, application, path, lines)
        head = dataclasses.replace(head, version=head.version + 1, mark=mark)


def _applied(head: DeltaHead, application: str, path: Path, lines: list[bytes]) -> DeltaHead:
    for action in _decoded(path, lines):
        head = dataclasses.replace(
            head,
            protocol=action.protocol or head.protocol,
            metadata=action.meta_data or head.metadata,
            token=action.txn.version if action.txn and action.txn.app_id == application else head.token,
        )
    return head


def _decoded(path: Path, lines: list[bytes]) -> list[_Action]:
    try:
        return [_actions.decode(line) for line in lines if line.strip()]
    except msgspec.DecodeError as e:
        message = "a log entry of the Delta table does not decode"
        raise CorruptFile(message, file=str(path), reason=str(e)) from e


def _mark(path: Path) -> Mark | None:
    try:
        return _mark_of(path.stat())
    except FileNotFoundError:
        return None
    except OSError as e:
        raise disk_error(e, path) from e


def _mark_of(status: os.stat_result) -> Mark:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _facts(table: Path, e: Exception) -> dict[str, str]:
    # deltalake's messages may have a backtrace behind the first line.
    return {"table": str(table), "reason": str(e).strip().partition("\n")[0]}
