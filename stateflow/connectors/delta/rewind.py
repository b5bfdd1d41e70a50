"""Going back in a Delta table: which version holds what a checkpoint saw, what it costs, and the entry that does it.

The table's log is a tree once somebody went back in it: an entry of ours that restores version 6 continues 6, not the
entry before it. What counts as undone is what lies between the content of now and the older one in this tree.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import UUID

import msgspec

from stateflow.api.sink import OtherCommit, SinkRewind, TableChanges
from stateflow.connectors.delta_effect import Apart, other_commit
from stateflow.connectors.delta_files import disk_error
from stateflow.connectors.delta_log import DeltaHead, Metadata
from stateflow.connectors.delta_versions import (
    Action,
    Content,
    DataFile,
    Entry,
    parent,
    read_content,
    read_entry,
)
from stateflow.errors import SinkDiverged, SinkRefused

_OUT = "choose a newer checkpoint, or keep the table as it is and mend it by hand"
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_UUID_CHARACTERS = 20

# What else an ``add`` may have belongs to features that the sink refuses, but the older version may have had.
_FIELDS = frozenset(
    {"path", "partitionValues", "size", "modificationTime", "stats", "tags", "deletionVector"}
)


@dataclass(frozen=True)
class Change:
    """From one version's content to another's: files that go, and files that come back."""

    gone: tuple[DataFile, ...]
    back: tuple[DataFile, ...]

    def actions(self, now: int) -> list[Action]:
        """What does it, as a log entry has it."""
        return [*({"remove": _remove(f, now)} for f in self.gone), *({"add": _add(f)} for f in self.back)]


class Rewinder:
    """A table at the version of one handle, and the way back from there.

    Args:
        application: whose tokens count.
    """

    def __init__(self, table: Path, application: str, head: DeltaHead) -> None:
        self._table = table
        self._application = application
        self._head = head
        self._entries: dict[int, Entry | None] = {}

    def plan(self, checkpoint_id: int) -> SinkRewind:
        """What going back to `checkpoint_id` would do. Raises SinkDiverged or SinkRefused when it cannot be done."""
        if self._head.token <= checkpoint_id:
            return SinkRewind(self._head.version, None, 0, 0, ())
        to_version = self._version_before(checkpoint_id)
        newest, older = self._contents(to_version)
        if older.token > checkpoint_id:
            raise self._too_old(version=to_version, checkpoint=checkpoint_id)
        self._checked(newest, older)
        removed, returned, others = self._effect(newest, older)
        return SinkRewind(self._head.version, to_version, removed, returned, others)

    def change(self, to_version: int) -> Change:
        """What makes the table hold what it held at `to_version`. Raises as `plan` does."""
        return self._checked(*self._contents(to_version))

    def changes_since(self, version: int) -> TableChanges:
        """What the entries after `version` did to rows, up to the version of the handle."""
        entries = {v: self._entry(v) for v in range(version + 1, self._head.version + 1)}
        published = any(e is not None and self._application in e.tokens for e in entries.values())
        others = (_other(v, e, self._application) for v, e in entries.items())
        return TableChanges(str(self._table), published, tuple(o for o in others if o))

    def _version_before(self, checkpoint_id: int) -> int:
        """The newest version before the first one whose token is above `checkpoint_id`, as far as the log tells."""
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

    def _contents(self, to_version: int) -> tuple[Content, Content]:
        newest, older = self._content(self._head.version), self._content(to_version)
        if newest is None or older is None:
            raise self._too_old(version=to_version)
        return newest, older

    def _too_old(self, **facts: int) -> SinkDiverged:
        return SinkDiverged("the Delta table cannot go back: its log does not reach back to that version any more",
                            hint=_OUT, table=str(self._table), **facts)  # fmt: skip

    def _checked(self, newest: Content, older: Content) -> Change:
        """What makes one content of the other, if that can be done, and the table forbids nothing of it."""
        change = _change(newest, older)
        facts = {"table": str(self._table), "version": older.version}
        reason = _misfit(newest, older, change)
        if reason:
            raise SinkDiverged(f"the Delta table cannot go back: {reason}", hint=_OUT, **facts)
        missing = [f for file in change.back for f in _missing(self._table, file)]
        if missing:
            raise SinkDiverged("the Delta table cannot go back: files of that version are gone", hint="was the table "
                               f"vacuumed? {_OUT}", **facts, files=missing[:3], missing=len(missing))  # fmt: skip
        configuration = newest.metadata.configuration or {}
        if change.gone and (configuration.get("delta.appendOnly") or "").lower() == "true":
            raise SinkRefused("the Delta table cannot go back: its rows may not be removed", hint="ALTER TABLE ... "
                              "UNSET TBLPROPERTIES ('delta.appendOnly'), and set it again afterwards", **facts,
                              property="delta.appendOnly")  # fmt: skip
        return change

    def _effect(self, newest: Content, older: Content) -> tuple[int | None, int | None, tuple[str, ...]]:
        """Rows that go, rows that come back, and what others did that is undone."""
        base, undone, redone = self._apart(newest.version, older.version)
        known = older if base == older.version else self._content(base)
        apart = Apart(known.files if known else None, undone, redone)
        removed, returned = apart.rows()
        return removed, returned, tuple(apart.others(self._application))

    def _apart(self, newest: int, older: int) -> tuple[int | None, list[Entry], list[Entry]]:
        """The last version that both descend from (None: the log does not tell), and the entries from there."""
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
        return OtherCommit(version, frozenset(), f"version {version}: its log entry is gone")
    if application in entry.tokens or not (entry.added or entry.removed):
        return None
    return other_commit(entry)


def _change(newest: Content, older: Content) -> Change:
    gone = tuple(file for key, file in newest.files.items() if key not in older.files)
    back = tuple(file for key, file in older.files.items() if key not in newest.files)
    return Change(gone, back)


def _remove(file: DataFile, now: int) -> Action:
    about = _without(file, "modificationTime")
    return {**about, "deletionTimestamp": now, "dataChange": True, "extendedFileMetadata": True}


def _add(file: DataFile) -> Action:
    return {**_without(file), "dataChange": True}


def _without(file: DataFile, *names: str) -> Action:
    return {name: value for name, value in file.action.items() if name in _FIELDS and name not in names}


# -- whether it can be done -------------------------------------------------------------------------------------------


def _misfit(newest: Content, older: Content, change: Change) -> str | None:
    """Why files of `older` would not be read right in the table as it is now; its columns and properties stay."""
    if newest.metadata.id != older.metadata.id:
        return "it was replaced since"
    if newest.metadata.partition_columns != older.metadata.partition_columns:
        return "it was partitioned otherwise"
    fields = _columns(newest.metadata)
    lost = [name for name, column in _columns(older.metadata).items() if fields.get(name) != column]
    if lost:
        return f"columns were dropped or changed since ({', '.join(sorted(lost))})"
    if any(f.vector for f in change.back) and "deletionVectors" not in (
        newest.protocol.writer_features or []
    ):
        return "its rows were deleted with deletion vectors, which it does not support any more"
    return None


def _columns(metadata: Metadata) -> dict[str, Any]:
    """What decides how a column is found in a file and read, by name."""
    return {
        f["name"]: (
            f["type"],
            [v for k, v in sorted(f.get("metadata", {}).items()) if k.startswith("delta.columnM")],
        )
        for f in msgspec.json.decode(metadata.schema_string)["fields"]
    }


def _missing(table: Path, file: DataFile) -> Iterator[str]:
    """Names of what is needed to read a file and is not there."""
    if _size(table, file.path) != file.action["size"]:
        yield file.path
    vector = _vector_path(file.vector) if file.vector else None
    if vector is not None and _size(table, vector) is None:
        yield vector


def _size(table: Path, path: str) -> int | None:
    """Size of a file that the log names; None when it is not there, or where this host cannot look."""
    parts = urlsplit(path)
    if parts.scheme not in ("", "file"):
        return None
    place = table / unquote(parts.path)
    try:
        return place.stat().st_size
    except FileNotFoundError:
        return None
    except OSError as e:
        raise disk_error(e, place) from e


def _vector_path(vector: Mapping[str, Any]) -> str | None:
    """Where a deletion vector is; None when it is in the log itself."""
    kind, text = vector["storageType"], str(vector["pathOrInlineDv"])
    if kind != "u":
        return text if kind == "p" else None
    folder, name = text[:-_UUID_CHARACTERS], text[-_UUID_CHARACTERS:]
    # The same code as Python's base85, with other characters for the digits.
    number = base64.b85decode(name.encode().translate(bytes.maketrans(_Z85, _B85)))
    file = f"deletion_vector_{UUID(bytes=number)}.bin"
    return f"{folder}/{file}" if folder else file
