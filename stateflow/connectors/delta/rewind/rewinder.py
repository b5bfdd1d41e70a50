"""Rewinds a Delta table: finds the version of a checkpoint, previews the changes, and builds the restoring log entry.

After a rewind the versions of a table form a tree: an entry of stateflow that restores version 6 is based on 6, not on
the entry before it. A rewind undoes the entries between the newest version and the restored one in this tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from stateflow.api.sink import OtherCommit, SinkRewind, TableChanges
from stateflow.connectors.delta.log.listing import list_log
from stateflow.connectors.delta.log.paths import size_of, vector_path
from stateflow.connectors.delta.log.table_log import Action, DeltaHead, Metadata
from stateflow.connectors.delta.rewind.rewind_preview import Divergence, other_commit
from stateflow.connectors.delta.versions import Content, DataFile, Entry, parent, read_content, read_entry
from stateflow.errors import SinkDiverged, SinkRefused

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

    def __init__(self, table: Path, application: str, head: DeltaHead) -> None:
        self._table = table
        self._application = application
        self._head = head
        self._entries: dict[int, Entry | None] = {}

    def plan(self, checkpoint_id: int) -> SinkRewind:
        """Returns the effect of a rewind to `checkpoint_id`.

        Raises:
            SinkDiverged: the table cannot be rewound to that version.
            SinkRefused: a property of the table forbids it.
        """
        if self._head.token <= checkpoint_id:
            return SinkRewind(self._head.version, None, 0, 0, ())
        to_version = self._version_before(checkpoint_id)
        newest, older = self._contents(to_version, checkpoint=checkpoint_id)
        if older.token > checkpoint_id:
            raise self._too_old(version=to_version, checkpoint=checkpoint_id)
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
        return TableChanges(str(self._table), published, tuple(o for o in others if o))

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
            raise self._too_old(newest=self._head.version, checkpoint=checkpoint_id)
        return first - 1

    def _entry(self, version: int) -> Entry | None:
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
            table=str(self._table),
            **facts,
        )

    def _checked(self, newest: Content, older: Content) -> FileChange:
        """Returns the change from `newest` to `older`, after checking that it is possible and permitted."""
        change = _change(newest, older)
        facts = {"table": str(self._table), "version": older.version}
        if found := _incompatibility(newest, older, change):
            raise SinkDiverged(f"the Delta table cannot be rewound: {found.reason}", hint=_HINT, **facts, **found.facts)
        missing = sorted(f for file in change.restored for f in _missing(self._table, file))
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

    def _paths_from_base(self, newest: int, older: int) -> tuple[int | None, list[Entry], list[Entry]]:
        """Returns the newest common base of two versions (None when unknown), and the entries from there to each."""
        undone: list[Entry] = []
        redone: list[Entry] = []
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


def _other(version: int, entry: Entry | None, application: str) -> OtherCommit | None:
    if entry is None:
        return OtherCommit(version, frozenset(), f"version {version}: its log entry no longer exists")
    if application in entry.tokens or not (entry.added or entry.removed):
        return None
    return other_commit(entry)


def _change(newest: Content, older: Content) -> FileChange:
    removed = tuple(file for key, file in newest.files.items() if key not in older.files)
    restored = tuple(file for key, file in older.files.items() if key not in newest.files)
    return FileChange(removed, restored)


def remove_action(file: DataFile, now: int) -> Action:
    """Returns the action that removes a file from the table at a time in milliseconds since 1970."""
    fields = _without(file, "modificationTime")
    return {**fields, "deletionTimestamp": now, "dataChange": True, "extendedFileMetadata": True}


def _add(file: DataFile) -> Action:
    return {**_without(file), "dataChange": True}


def _without(file: DataFile, *names: str) -> Action:
    return {name: value for name, value in file.action.items() if name in _FIELDS and name not in names}


# -- compatibility of two versions ------------------------------------------------------------------------------------


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


def _missing(table: Path, file: DataFile) -> Iterator[str]:
    """Yields the names of files that are needed to read a data file and do not exist. Raises CorruptFile."""
    if size_of(table, file.path) != file.size:
        yield file.path
    vector = vector_path(file.vector) if file.vector else None
    if vector is not None and size_of(table, vector) is None:
        yield vector
