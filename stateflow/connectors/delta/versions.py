"""Versions of a Delta table: the files of each, the changes of each entry, and new versions by rewinds and upserts.

An entry is read as it is in the log. The files of a version come from deltalake, which supports every format of Delta's
checkpoints, but returns neither the original statistics nor deletion vectors. So deltalake creates one more checkpoint,
in a temporary folder that has the log up to that version, and the files are read from that checkpoint.

After a rewind the versions of a table form a tree: an entry of stateflow that restores version 6 is based on 6, not on
the entry before it. A rewind undoes the entries between the newest version and the restored one in this tree. A preview
of it takes counts from the files and the metrics of their writers, and reports other counts as unknown.

An upsert copies on write: a data file that has a row of one of the keys is replaced by one without these rows. The
entry that replaces them also sets the sink's token, as for appended files, so an upsert is published once or not at
all.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stateflow.api.sink import OtherCommit, SinkRewind, TableChanges
from stateflow.connectors.data_files import FileName, ParquetWriter, cast_read
from stateflow.connectors.delta.log import (
    LOG_FOLDER,
    Action,
    DeletionVectors,
    DeltaHead,
    Metadata,
    Protocol,
    entry_path,
    folder_of_view,
    list_log,
    log_lines,
    metadata_of,
    open_log_file,
    open_version,
    protocol_of,
    read_parquet,
    size_of,
    vector_path,
)
from stateflow.connectors.delta_types import COLUMN_MAPPING
from stateflow.connectors.parquet_batches import group_batches
from stateflow.connectors.partitions import (
    StoredRows,
    data_columns,
    folder_of,
    parse_partition_value,
    split_by_partition,
    to_logged_path,
)
from stateflow.connectors.store_assignment import assign_rows, nullable_schema
from stateflow.connectors.table_folder import TableFolder, read_each
from stateflow.connectors.upserts import (
    POSITION,
    UpsertSettings,
    find_retracted,
    is_retraction,
    number_rows,
    winning_rows,
    without_deletes,
)
from stateflow.errors import CorruptFile, MissingFile, SinkDiverged, SinkRefused, StateflowError, StorageError
from stateflow.private_files import write_private
from stateflow.state.handles import Committable
from stateflow.types.decoders import json_decoder

if TYPE_CHECKING:
    from deltalake import DeltaTable

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
    """The used fields of an ``add`` or ``remove``."""

    path: str
    partitionValues: dict[str, str | None] | None = None
    size: int = 0
    stats: str | None = None
    deletionVector: _DeletionVector | None = None


class _Statistics(msgspec.Struct):
    numRecords: int | None = None


class CommitInfo(msgspec.Struct, frozen=True, rename="camel"):
    """The used fields of a ``commitInfo``; writers may leave out any of them."""

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
        rows: number of rows without deleted ones; None without statistics.
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
class DeltaEntry:
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


def parent(entry: DeltaEntry) -> int:
    """Returns the version that an entry is based on: the restored version, or the one before the entry."""
    back_to = restored(entry)
    return entry.version - 1 if back_to is None else back_to


def restored(entry: DeltaEntry) -> int | None:
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


def _entry_actions(table: TableFolder, version: int) -> list[Action] | None:
    """Returns the actions of a log entry; None if it does not exist. Raises CorruptFile."""
    path = entry_path(version)
    try:
        with open_log_file(table, path) as file, _decoding(table, version):
            return [_action.decode(line) for line in log_lines(file, f"{table}/{path}")]
    except FileNotFoundError:
        return None


@contextmanager
def _decoding(table: TableFolder, version: int) -> Iterator[None]:
    """Raises CorruptFile if a part of a log entry cannot be decoded in its body."""
    try:
        yield
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, LookupError, TypeError) as e:
        message = "a log entry of the Delta table cannot be decoded"
        raise CorruptFile(message, file=f"{table}/{entry_path(version)}", reason=str(e)) from e


def read_entry(table: TableFolder, version: int) -> DeltaEntry | None:
    """Returns the log entry of a version; None when the log has no such entry."""
    actions = _entry_actions(table, version)
    if actions is None:
        return None
    with _decoding(table, version):
        return _entry(version, actions)


def _entry(version: int, actions: Iterable[Action]) -> DeltaEntry:
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
    return DeltaEntry(version, info, tokens, tuple(files["add"]), tuple(files["remove"]))


def read_content(table: TableFolder, version: int, application: str) -> Content | None:
    """Returns the content of the table at `version`; None when its log no longer contains that."""
    with open_version(table, version) as opened:
        if opened is None:
            return None
        metadata = metadata_of(opened)
        return Content(
            version=version,
            protocol=protocol_of(opened),
            metadata=metadata,
            token=opened.transaction_version(application) or 0,
            files={file.key: file for file in _files(opened, metadata)},
        )


def _files(opened: DeltaTable, metadata: Metadata) -> Iterable[DataFile]:
    """Returns the files of the version of `open_version`.

    So that statistics are JSON text, as in the log, an extra log entry in its folder removes the table's settings for
    checkpoints.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    view, version = folder_of_view(opened), opened.version()
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
    write_private(view / entry_path(version + 1), msgspec.json.encode({"metaData": plain}))
    try:
        DeltaTable(str(view)).create_checkpoint()
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


class ActiveFiles:
    """The files of a table at one version. The next version is read from its log entry alone.

    Args:
        table: the table.
        application: the application that commits.
    """

    def __init__(self, table: TableFolder, application: str) -> None:
        self._table = table
        self._application = application
        self._id = ""
        self._version = -1
        self._files: dict[Key, DataFile] = {}

    def at(self, head: DeltaHead) -> list[DataFile]:
        """Returns the files of the version of `head`.

        Raises:
            SinkDiverged: the log no longer has that version.
            CorruptFile: a log entry is damaged.
        """
        if head.metadata.id != self._id or not self._follow(head.version):
            self._load(head)
        return list(self._files.values())

    def _load(self, head: DeltaHead) -> None:
        content = read_content(self._table, head.version, self._application)
        if content is None:
            raise SinkDiverged(
                "the files of a version of the Delta table cannot be listed",
                hint="restore its log",
                table=self._table.address,
                version=head.version,
            )
        self._id, self._version, self._files = head.metadata.id, head.version, dict(content.files)

    def _follow(self, version: int) -> bool:
        """Applies the entries up to a version; returns False if one of them no longer exists."""
        if version < self._version:
            return False
        for number in range(self._version + 1, version + 1):
            actions = _entry_actions(self._table, number)
            if actions is None:
                return False
            with _decoding(self._table, number):
                self.apply(number, actions)
        return True

    def apply(self, version: int, actions: Iterable[Action]) -> None:
        """Applies the entry that follows the known version; raises as `DataFile.of`."""
        removed, added = [], {}
        for action in actions:
            if "remove" in action:
                removed.append(DataFile.of(action["remove"]).key)
            elif "add" in action:
                file = DataFile.of(action["add"])
                added[file.key] = file
        for key in removed:
            self._files.pop(key, None)
        self._files |= added
        self._version = version


_HINT = "choose a newer checkpoint, or keep the table as it is and correct its rows yourself"


# Other fields of an ``add`` belong to features that the sink rejects, but that the older version may have had.
_FIELDS = frozenset({"path", "partitionValues", "size", "modificationTime", "stats", "tags", "deletionVector"})


@dataclass(frozen=True)
class FileChange:
    """The difference between two versions: files to remove, and files to restore."""

    removed: tuple[DataFile, ...]
    restored: tuple[DataFile, ...]

    def actions(self, now: int) -> list[Action]:
        """Returns the actions of the log entry that makes the change.

        Args:
            now: timestamp in milliseconds since 1970.
        """
        return [*({"remove": remove_action(f, now)} for f in self.removed), *({"add": _add(f)} for f in self.restored)]


class Rewinder:
    """Plans rewinds of a table from one version.

    Args:
        application: the application whose tokens mark checkpoints.
        head: the version to rewind from.
    """

    def __init__(self, table: TableFolder, application: str, head: DeltaHead) -> None:
        self._table = table
        self._application = application
        self._head = head
        self._entries: dict[int, DeltaEntry | None] = {}

    def plan(self, checkpoint_id: int) -> SinkRewind:
        """Returns the effect of a rewind to `checkpoint_id`.

        Raises:
            SinkDiverged: the table cannot be rewound to that version.
            SinkRefused: a property of the table forbids it.
        """
        if self._head.token <= checkpoint_id:
            return SinkRewind(self._head.version, None, 0, 0, ())
        to_version = self._version_before(checkpoint_id)
        newest, older = self._contents(to_version, checkpoint_id=checkpoint_id)
        if older.token > checkpoint_id:
            raise self._too_old(version=to_version, checkpoint_id=checkpoint_id)
        self._checked(newest, older)
        removed, returned, others = self._effect(newest, older)
        return SinkRewind(self._head.version, to_version, removed, returned, others)

    def change(self, to_version: int) -> FileChange:
        """Returns the change that restores the content of `to_version`. Raises as `plan` does."""
        return self._checked(*self._contents(to_version))

    def changes_since(self, version: int) -> TableChanges:
        """Returns the commits after `version` that changed rows, up to the version of the head."""
        entries = {v: self._entry(v) for v in self._later_versions(version)}
        published = any(e is not None and self._application in e.tokens for e in entries.values())
        others = (_other(v, e, self._application) for v, e in entries.items())
        return TableChanges(self._table.address, published, tuple(o for o in others if o))

    def _later_versions(self, version: int) -> Iterator[int]:
        """Yields the later versions that have a log entry, and the first version of each gap.

        Not each missing one: a checkpoint in the log can make any number the newest version.
        """
        expected = version + 1
        for found in sorted({*list_log(self._table).entries, self._head.version + 1}):
            if version < found <= self._head.version + 1:
                if found > expected:
                    yield expected
                if found <= self._head.version:
                    yield found
                expected = found + 1

    def _version_before(self, checkpoint_id: int) -> int:
        """Returns the version before the first one whose token is above `checkpoint_id`, as far as the log reaches."""
        first = None
        for version in range(self._head.version, -1, -1):
            entry = self._entry(version)
            token = entry.tokens.get(self._application) if entry else None
            if entry is None or (token is not None and token <= checkpoint_id):
                break
            first = version if token is not None else first
        if not first:
            raise self._too_old(newest=self._head.version, checkpoint_id=checkpoint_id)
        return first - 1

    def _entry(self, version: int) -> DeltaEntry | None:
        if version not in self._entries:
            self._entries[version] = read_entry(self._table, version)
        return self._entries[version]

    def _content(self, version: int | None) -> Content | None:
        return None if version is None else read_content(self._table, version, self._application)

    def _contents(self, to_version: int, **facts: int) -> tuple[Content, Content]:
        newest, older = self._content(self._head.version), self._content(to_version)
        if newest is None or older is None:
            raise self._too_old(version=to_version, **facts)
        return newest, older

    def _too_old(self, **facts: int) -> SinkDiverged:
        return SinkDiverged(
            "the Delta table cannot be rewound: its log no longer contains that version",
            hint=_HINT,
            table=self._table.address,
            **facts,
        )

    def _checked(self, newest: Content, older: Content) -> FileChange:
        """Returns the change from `newest` to `older`, after checking that it is possible and permitted."""
        change = _change(newest, older)
        facts = {"table": self._table.address, "version": older.version}
        if found := _incompatibility(newest, older, change):
            raise SinkDiverged(f"the Delta table cannot be rewound: {found.reason}", hint=_HINT, **facts, **found.facts)
        lacking = read_each(lambda file: _missing(self._table, file), change.restored)
        missing = sorted(itertools.chain.from_iterable(lacking))
        if missing:
            raise SinkDiverged(
                "the Delta table cannot be rewound: files of that version no longer exist",
                hint=f"VACUUM may have removed them; {_HINT}",
                **facts,
                files=missing[:3],
                missing=len(missing),
            )
        configuration = newest.metadata.configuration or {}
        if change.removed and (configuration.get("delta.appendOnly") or "").lower() == "true":
            raise SinkRefused(
                "the Delta table cannot be rewound: it does not permit removing rows",
                hint="ALTER TABLE ... UNSET TBLPROPERTIES ('delta.appendOnly'), and set it again afterwards",
                **facts,
                property="delta.appendOnly",
            )
        return change

    def _effect(self, newest: Content, older: Content) -> tuple[int | None, int | None, tuple[OtherCommit, ...]]:
        """Returns rows to remove, rows to restore, and the commits of other writers that are undone."""
        base, undone, redone = self._paths_from_base(newest.version, older.version)
        known = older if base == older.version else self._content(base)
        divergence = Divergence(known.files if known else None, undone, redone)
        removed, returned = divergence.rows()
        return removed, returned, tuple(divergence.other_commits(self._application))

    def _paths_from_base(self, newest: int, older: int) -> tuple[int | None, list[DeltaEntry], list[DeltaEntry]]:
        """Returns the newest common base of two versions (None when unknown), and the entries from there to each."""
        undone: list[DeltaEntry] = []
        redone: list[DeltaEntry] = []
        while newest != older:
            entry = self._entry(max(newest, older))
            if entry is None:
                return None, undone[::-1], redone[::-1]
            if newest > older:
                undone.append(entry)
                newest = parent(entry)
            else:
                redone.append(entry)
                older = parent(entry)
        return newest, undone[::-1], redone[::-1]


def _other(version: int, entry: DeltaEntry | None, application: str) -> OtherCommit | None:
    if entry is None:
        return OtherCommit(version, frozenset(), f"version {version}: its log entry no longer exists")
    if application in entry.tokens or not (entry.added or entry.removed):
        return None
    return other_commit(entry)


def _change(newest: Content, older: Content) -> FileChange:
    removed = tuple(file for key, file in newest.files.items() if key not in older.files)
    returned = tuple(file for key, file in older.files.items() if key not in newest.files)
    return FileChange(removed, returned)


def remove_action(file: DataFile, now: int) -> Action:
    """Returns the action that removes a file from the table at a time in milliseconds since 1970."""
    fields = _without(file, "modificationTime")
    return {**fields, "deletionTimestamp": now, "dataChange": True, "extendedFileMetadata": True}


def _add(file: DataFile) -> Action:
    return {**_without(file), "dataChange": True}


def _without(file: DataFile, *names: str) -> Action:
    return {name: value for name, value in file.action.items() if name in _FIELDS and name not in names}


@dataclass(frozen=True)
class _Incompatibility:
    """Why the newest table would not read the files of an older version correctly."""

    reason: str
    facts: Mapping[str, object]


def _incompatibility(newest: Content, older: Content, change: FileChange) -> _Incompatibility | None:
    """Compares two versions: a rewind restores files, but neither columns nor properties."""
    now, then = newest.metadata, older.metadata
    if now.id != then.id:
        return _Incompatibility("it has been replaced", {"table_id": then.id, "found": now.id})
    if now.partition_columns != then.partition_columns:
        facts = {"partitioned_by": then.partition_columns, "found": now.partition_columns}
        return _Incompatibility("it was partitioned differently", facts)
    fields = _columns(now)
    lost = sorted(name for name, column in _columns(then).items() if fields.get(name) != column)
    if lost:
        return _Incompatibility("columns have been dropped or changed", {"columns": lost})
    if any(f.vector for f in change.restored) and "deletionVectors" not in (newest.protocol.writer_features or []):
        reason = "that version has deletion vectors, which the table no longer supports"
        return _Incompatibility(reason, {"feature": "deletionVectors"})
    return None


def _columns(metadata: Metadata) -> dict[str, object]:
    """Returns, by name, the properties that decide how a column is found in a file and read."""
    return {
        f.name: (f.type, [v for k, v in sorted((f.metadata or {}).items()) if k.startswith("delta.columnM")])
        for f in metadata.fields()
    }


def _missing(table: TableFolder, file: DataFile) -> list[str]:
    """Returns the names of files that are needed to read a data file and do not exist. Raises CorruptFile."""
    missing = [] if size_of(table, file.path) == file.size else [file.path]
    vector = vector_path(file.vector) if file.vector else None
    return missing if vector is None or size_of(table, vector) is not None else [*missing, vector]


_COPIED = ("numCopiedRows", "num_copied_rows", "numTargetRowsCopied", "num_target_rows_copied")
_COUNT = re.compile(r"[0-9]{1,18}")
_COPYING = frozenset({"DELETE", "UPDATE", "MERGE"})


Files = Mapping[Key, DataFile]
_RowsByPath = Mapping[str, int | None]


@dataclass(frozen=True)
class Divergence:
    """How the contents of two versions diverged.

    Attributes:
        files: the files of their newest common base; None when it is unknown.
        undone: entries from the base to the newest version, in order.
        redone: entries from the base to the version to restore, in order.
    """

    files: Files | None
    undone: Sequence[DeltaEntry]
    redone: Sequence[DeltaEntry]

    def rows(self) -> tuple[int | None, int | None]:
        """Returns the number of rows to remove and of rows to restore; None for unknown numbers."""
        if self.files is None:
            return None, None
        newest, older = _replayed(self.files, self.undone), _replayed(self.files, self.redone)
        if newest is None or older is None:
            return None, None
        kept = _kept(newest, older, self.undone, self.redone)
        newest_rows, older_rows = _sum(f.rows for f in newest.values()), _sum(f.rows for f in older.values())
        if kept is None or newest_rows is None or older_rows is None:
            return None, None
        return newest_rows - kept, older_rows - kept

    def other_commits(self, application: str) -> Iterator[OtherCommit]:
        """Yields the undone commits of writers other than `application` that changed rows."""
        # A remove action need not have the number of rows of its file.
        known = [*(self.files or {}).values(), *(f for e in self.undone for f in e.added)]
        rows = {file.key: file.rows for file in known}
        for entry in self.undone:
            if (entry.added or entry.removed) and application not in entry.tokens:
                added = _sum(f.rows for f in entry.added)
                removed = _sum(rows.get(f.key, f.rows) for f in entry.removed)
                yield _commit(entry, _difference(added, removed))


def other_commit(entry: DeltaEntry) -> OtherCommit:
    """Describes a commit of another writer from its log entry."""
    return _commit(entry, _difference(_sum(f.rows for f in entry.added), _sum(f.rows for f in entry.removed)))


def _replayed(files: Files, entries: Iterable[DeltaEntry]) -> Files | None:
    """Applies the row changes of `entries` to `files`, without compactions; returns None when that is not possible."""
    result = dict(files)
    for entry in entries:
        if restored(entry) is not None:
            continue  # the entries before it on this path lead to the content that it restores
        for file in entry.removed:
            if result.pop(file.key, None) is None:
                return None  # a compacted file: which of its rows were removed is unknown
        result.update((file.key, file) for file in entry.added)
    return result


def _kept(newest: Files, older: Files, undone: Iterable[DeltaEntry], redone: Iterable[DeltaEntry]) -> int | None:
    """Returns the number of rows in both versions, as far as files and metrics of their writers determine it."""
    if all(any(_copied_rows(e) != 0 for e in entries) for entries in (undone, redone)):
        return None  # a file that was rewritten on both paths is in neither version, but its rows may be in both
    now = {f.path: f.rows for f in newest.values()}
    then = {f.path: f.rows for f in older.values()}
    copied = [*_copied(now, then, undone), *_copied(then, now, redone)]
    # Deletion vectors only grow along a path, so the version with fewer rows of a file has the common ones.
    return _sum([*(_least(now[p], then[p]) for p in now.keys() & then.keys()), *copied])


def _copied(now: _RowsByPath, then: _RowsByPath, entries: Iterable[DeltaEntry]) -> Iterator[int | None]:
    """Yields the rows that a DELETE, UPDATE or MERGE of `entries` copied from files of `then` into files of `now`."""
    old = set(then)
    for entry in entries:
        removed, added = {f.path for f in entry.removed}, {f.path: f.rows for f in entry.added}
        rewritten, new = removed - added.keys(), {p: rows for p, rows in added.items() if p not in removed}
        copied = _copied_rows(entry)
        if copied == 0 or not new or not rewritten & old:
            continue
        if rewritten <= old and new.items() <= now.items():
            yield copied
        elif rewritten <= old and not new.keys() & now.keys() and copied == _sum(new.values()):
            old |= new.keys()  # rewritten or deleted by a later entry, which is handled there
        else:
            yield None  # which rows remain is unknown when they come from files of both kinds


def _copied_rows(entry: DeltaEntry) -> int | None:
    commit = entry.commit
    if commit.operation not in _COPYING:
        return 0
    metrics = commit.operation_metrics or {}
    found = next((str(metrics[name]) for name in _COPIED if name in metrics), "")
    return int(found) if _COUNT.fullmatch(found) else None


def _least(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else min(a, b)


def _sum(numbers: Iterable[int | None]) -> int | None:
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total


def _commit(entry: DeltaEntry, rows: int | None) -> OtherCommit:
    paths = sorted({f.path for f in (*entry.added, *entry.removed)})
    return OtherCommit(
        entry.version, frozenset(entry.tokens), _sentence(entry, rows), tuple(paths), entry.commit.operation or "", rows
    )


def _sentence(entry: DeltaEntry, rows: int | None) -> str:
    who = "".join(f" by {application}" for application in sorted(entry.tokens))
    ms = entry.commit.timestamp
    when = f" at {datetime.fromtimestamp(ms // 1000, UTC):%Y-%m-%dT%H:%M:%SZ}" if ms else ""
    what = entry.commit.operation or "a commit"
    return f"version {entry.version}: {what}{who}{when}, {_counted(rows)}"


def _difference(added: int | None, removed: int | None) -> int | None:
    return None if added is None or removed is None else added - removed


def _counted(rows: int | None) -> str:
    if rows is None:
        return "an unknown number of rows"
    if rows == 0:
        return "as many rows as before"
    return f"{abs(rows)} {'row' if abs(rows) == 1 else 'rows'} {'more' if rows > 0 else 'fewer'}"


_COMBINED_BYTES = 32 << 20
"""Data files below this size are combined when they are written again; larger ones keep their rows together."""


@dataclass(frozen=True)
class RewrittenFiles:
    """The data files that an upsert replaces, and those that it adds."""

    removed: tuple[DataFile, ...]
    added: tuple[Committable, ...]


class DeltaUpsert:
    """One upsert.

    Args:
        table: the table's folder.
        settings: how rows are matched.
        rows: how the table stores the emitted rows, and its partition columns.
        name: name of the first file that is written.
    """

    def __init__(self, table: TableFolder, settings: UpsertSettings, rows: StoredRows, name: FileName) -> None:
        self._table = table
        self._settings = settings
        self._rows = rows
        self._name = name
        self._partition_by = rows.partition_by
        self._schema = settings.table_schema(rows.schema)
        self._every = nullable_schema(rows.target)
        self._stored = data_columns(pa.schema([self._every.field(n) for n in self._schema.names]), rows.partition_by)
        self._keys = pa.schema([self._every.field(name) for name in settings.keys])
        # Of a key, which is never null, null in the table is the empty text.
        self._empty = {f.name for f in self._keys if f.name in rows.partition_by and pa.types.is_string(f.type)}

    def apply(
        self, emitted: Sequence[Committable], active: Iterable[DataFile], vectors: DeletionVectors
    ) -> RewrittenFiles:
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
        return RewrittenFiles(tuple(match.file for match in matches), added)

    def _winners(self, emitted: Sequence[Committable]) -> pa.Table:
        """Returns the rows that change the table."""
        ordered = sorted(emitted, key=_order)
        rows = pa.concat_tables([self._emitted(file.path) for file in ordered])
        return winning_rows(rows, self._settings)

    def _emitted(self, path: str) -> pa.Table:
        try:
            found = read_parquet(self._table, to_logged_path(path))
            batches = [assign_rows(batch, self._rows.target, {"file": path}) for batch in found]
        except FileNotFoundError as e:
            raise MissingFile("emitted rows do not exist", table=self._table.address, file=path) from e
        rows = pa.Table.from_batches(batches, self._every)
        for at, field in enumerate(self._every):
            if field.name in self._empty:
                rows = rows.set_column(at, field, pc.fill_null(rows.column(at), ""))
        return rows

    def _has_key_partition(self, file: DataFile, winners: pa.Table) -> bool:
        """Returns whether the rows of a file may have one of the keys, by the values of its partition."""
        values = {name: self._partition_value(file, name) for name in self._settings.keys if name in self._partition_by}
        # The columns of a key are never null: in a partition of null, no row has a key.
        found = (value.is_valid and pc.any(pc.equal(winners.column(n), value)).as_py() for n, value in values.items())
        return all(found)

    def _partition_value(self, file: DataFile, column: str) -> pa.Scalar:
        text = file.partition_values.get(column)
        try:
            return parse_partition_value(
                text, self._every.field(column).type, empty="" if column in self._empty else None
            )
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
        found: NDArray[np.bool_] = is_kept.to_numpy() | find_retracted(rows, retracted, self._settings, self._schema)
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
            for folder, part in split_by_partition(batch, self._partition_by):
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
            table=self._table.address,
            file=file.path,
            reason=reason[:500],
        )


@dataclass(frozen=True)
class _Match:
    """A data file with rows of some of the keys; `remaining` is false for these rows and for deleted ones."""

    file: DataFile
    remaining: pa.ChunkedArray


def remove_files(table: TableFolder, paths: Iterable[str]) -> None:
    """Removes data files that no version of the table has; the next run removes what is left."""
    # Another process has removed them, or a sweep will.
    with suppress(StateflowError):
        table.delete(paths)


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
    with_numbers = number_rows(keys)
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
