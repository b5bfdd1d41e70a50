"""The files of each version of a Delta table, and the changes of each log entry.

An entry is read as it is in the log. The files of a version come from deltalake, which supports every format of Delta's
checkpoints, but returns neither the original statistics nor deletion vectors. So deltalake creates one more checkpoint,
in a temporary folder with links to the log up to that version, and the files are read from that checkpoint.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import pyarrow.parquet as pq

from stateflow.connectors.delta.column_types import COLUMN_MAPPING
from stateflow.connectors.delta.log.lines import log_lines, opened_log_file
from stateflow.connectors.delta.log.listing import LOG_FOLDER, list_log
from stateflow.connectors.delta.log.paths import size_of, vector_path
from stateflow.connectors.delta.log.table_log import Action, Metadata, Protocol, entry_path, open_deltalake
from stateflow.errors import CorruptFile, SinkRefused, StorageError
from stateflow.private_files import write_private
from stateflow.types.decoders import json_decoder

_SIDECARS = "_sidecars"

ENGINE, RESTORE = "stateflow", "RESTORE"
_VERSION = re.compile(r"[0-9]{1,20}")
_YEAR_9999 = 253_402_300_799_999
"""Milliseconds since 1970."""

Key = tuple[str, str]
"""Identifies the content of a file in a version: its path, and its deletion vector."""


class _DeletionVector(msgspec.Struct):
    storageType: str
    pathOrInlineDv: str
    offset: int | None = None
    cardinality: int = 0


class _LoggedFile(msgspec.Struct):
    """What is used of an ``add`` or ``remove``."""

    path: str
    partitionValues: dict[str, str | None] | None = None
    size: int = 0
    stats: str | None = None
    deletionVector: _DeletionVector | None = None


class _Statistics(msgspec.Struct):
    numRecords: int | None = None


class CommitInfo(msgspec.Struct, frozen=True, rename="camel"):
    """What is used of a ``commitInfo``; writers may leave out any of it."""

    engine_info: str | None = None
    operation: str | None = None
    timestamp: Annotated[int, msgspec.Meta(ge=0, le=_YEAR_9999)] | None = None
    operation_parameters: dict[str, object] | None = None
    operation_metrics: dict[str, object] | None = None


_action, _statistics = json_decoder(dict[str, Action]), json_decoder(_Statistics)
for _converted in (_LoggedFile, CommitInfo):
    json_decoder(_converted)  # so that `convert` may be called in several threads


@dataclass(frozen=True)
class DataFile:
    """A file of an action of the log.

    Attributes:
        action: the ``add`` or ``remove``.
        rows: number of rows without deleted ones; None when there are no statistics.
        size: size in bytes; 0 in a ``remove`` that does not have it.
    """

    action: Action
    rows: int | None
    size: int

    @classmethod
    def of(cls, action: Action) -> DataFile:
        """Returns the file of an ``add`` or ``remove``. Raises msgspec.MsgspecError if it is not well-formed."""
        file = msgspec.convert(action, _LoggedFile)
        found = _statistics.decode(file.stats or "{}").numRecords
        deleted = file.deletionVector.cardinality if file.deletionVector else 0
        return cls(action, None if found is None else found - deleted, file.size)

    @property
    def path(self) -> str:
        """Path as in the log: percent-encoded, and relative to the table unless absolute."""
        return str(self.action["path"])

    @property
    def partition_values(self) -> dict[str, str | None]:
        """The values of the table's partition columns by name."""
        return self.action.get("partitionValues") or {}

    @property
    def vector(self) -> Action | None:
        """The deletion vector of the file, as in the log; None without one."""
        return self.action.get("deletionVector")

    @property
    def key(self) -> Key:
        """Identifies the file and its deletion vector."""
        v = self.vector
        return self.path, f"{v['storageType']}{v['pathOrInlineDv']}@{v.get('offset')}" if v else ""


@dataclass(frozen=True)
class Entry:
    """A decoded entry of the log.

    Attributes:
        info: its ``commitInfo``.
        tokens: the transaction versions that it sets, by application.
        added: files whose rows it adds. Compaction, which only rewrites rows, adds none.
        removed: files whose rows it removes.
    """

    version: int
    info: Action
    tokens: Mapping[str, int]
    added: tuple[DataFile, ...]
    removed: tuple[DataFile, ...]

    @property
    def commit(self) -> CommitInfo:
        """The ``commitInfo`` with checked types. Raises CorruptFile."""
        try:
            return msgspec.convert(self.info or {}, CommitInfo)
        except msgspec.ValidationError as e:
            message = "the commitInfo of a log entry of the Delta table cannot be decoded"
            raise CorruptFile(message, version=self.version, reason=str(e)) from e


@dataclass(frozen=True)
class Content:
    """The content of a version, and the token of one application at that version."""

    version: int
    protocol: Protocol
    metadata: Metadata
    token: int
    files: Mapping[Key, DataFile]


def parent(entry: Entry) -> int:
    """Returns the version that an entry is based on: the restored version, or the one before the entry."""
    back_to = restored(entry)
    return entry.version - 1 if back_to is None else back_to


def restored(entry: Entry) -> int | None:
    """Returns the version that stateflow restored with this entry; None for any other entry."""
    commit = entry.commit
    if (commit.engine_info, commit.operation) != (ENGINE, RESTORE):
        return None
    text = str((commit.operation_parameters or {}).get("version"))
    # An entry that restores itself, or a later version, would make the path to its base endless.
    if not _VERSION.fullmatch(text) or int(text) >= entry.version:
        message = "a log entry of the Delta table does not have an earlier version that it went back to"
        raise CorruptFile(message, version=entry.version, found=text[:200])
    return int(text)


def check_entry(table: Path, version: int) -> None:
    """Checks the files that the log entry of a version names, if it exists.

    Raises:
        CorruptFile: one is not a file below the table's folder, or the entry is damaged.
    """
    path = entry_path(table, version)
    try:
        with opened_log_file(path) as file:
            for action in map(_action.decode, log_lines(file, path)):
                for kind in action.keys() & {"add", "remove", "cdc"}:
                    check_file(table, DataFile.of(action[kind]))
    except FileNotFoundError:
        return
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        message = "a log entry of the Delta table cannot be decoded"
        raise CorruptFile(message, file=str(path), reason=str(e)) from e


def check_file(table: Path, file: DataFile) -> None:
    """Raises CorruptFile unless a file and its deletion vector are files below the table's folder, if they exist."""
    size_of(table, file.path)
    vector = vector_path(file.vector) if file.vector else None
    if vector is not None:
        size_of(table, vector)


def read_entry(table: Path, version: int) -> Entry | None:
    """Returns the log entry of a version; None when the log has no such entry."""
    path = entry_path(table, version)
    try:
        with opened_log_file(path) as file:
            return _entry(version, (_action.decode(line) for line in log_lines(file, path)))
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, LookupError, TypeError) as e:
        message = "a log entry of the Delta table cannot be decoded"
        raise CorruptFile(message, file=str(path), reason=str(e)) from e


def _entry(version: int, actions: Iterable[Action]) -> Entry:
    info: Action = {}
    tokens: dict[str, int] = {}
    files: dict[str, list[DataFile]] = {"add": [], "remove": []}
    for action in actions:
        for kind, value in action.items():
            if kind == "commitInfo":
                info = info or value
            elif kind == "txn":
                tokens[value["appId"]] = value["version"]
            # Files that were only rewritten, often many, are not kept.
            elif kind in files and value["dataChange"]:
                files[kind].append(DataFile.of(value))
    return Entry(version, info, tokens, tuple(files["add"]), tuple(files["remove"]))


def read_content(table: Path, version: int, application: str) -> Content | None:
    """Returns the content of the table at `version`; None when its log no longer contains that."""
    from deltalake.exceptions import TableNotFoundError

    with tempfile.TemporaryDirectory(prefix="stateflow-delta-") as scratch:
        view = Path(scratch)
        _link_log(table, view, version)
        try:
            opened = open_deltalake(view, is_view=True)
        except (TableNotFoundError, SinkRefused):
            return None
        if opened.version() != version:
            return None
        needs, about = opened.protocol(), opened.metadata()
        metadata = Metadata(
            str(about.id), opened.schema().to_json(), about.partition_columns, dict(about.configuration)
        )
        files = _files(view, version, metadata)
        return Content(
            version=version,
            protocol=Protocol(
                needs.min_reader_version, needs.min_writer_version, needs.reader_features, needs.writer_features
            ),
            metadata=metadata,
            token=opened.transaction_version(application) or 0,
            files={file.key: file for file in files},
        )


def _link_log(table: Path, view: Path, version: int) -> None:
    """Links the log of a table into a view that starts at the newest checkpoint up to `version`, and ends there."""
    source, links = (table / LOG_FOLDER).absolute(), view / LOG_FOLDER
    links.mkdir()
    listing = list_log(table)
    first = listing.newest_checkpoint(version)
    for name, number in listing.names.items():
        if first <= number <= version and not name.endswith(".compacted.json"):
            (links / name).symlink_to(source / name)
    if (source / _SIDECARS).is_dir():
        (links / _SIDECARS).symlink_to(source / _SIDECARS)


def _files(view: Path, version: int, metadata: Metadata) -> Iterable[DataFile]:
    """Returns the files of a view's newest version.

    So that statistics are JSON text, as in the log, an extra log entry of the view removes the table's settings for
    checkpoints.
    """
    from deltalake.exceptions import DeltaError

    mapping = (metadata.configuration or {}).get(COLUMN_MAPPING)
    plain = {
        "id": metadata.id,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": metadata.schema_string,
        "partitionColumns": metadata.partition_columns,
        # Partition values have the names of files.
        "configuration": {} if mapping is None else {COLUMN_MAPPING: mapping},
        "createdTime": 0,
    }
    write_private(entry_path(view, version + 1), msgspec.json.encode({"metaData": plain}))
    try:
        open_deltalake(view, is_view=True).create_checkpoint()
    except DeltaError as e:
        raise StorageError(
            "the files of a version of the Delta table cannot be listed",
            version=version,
            reason=str(e).partition("\n")[0],
        ) from e
    checkpoint = view / LOG_FOLDER / f"{version + 1:020d}.checkpoint.parquet"
    adds = pq.read_table(checkpoint, columns=["add"]).column("add")
    return [DataFile.of(_as_logged(add)) for add in adds.to_pylist(maps_as_pydicts="strict") if add]


def _as_logged(add: Action) -> Action:
    """Returns an ``add`` as in a log entry, without fields that are null."""
    found = {name: value for name, value in add.items() if value is not None}
    if vector := found.get("deletionVector"):
        found["deletionVector"] = {name: value for name, value in vector.items() if value is not None}
    return found
