"""Snapshots of an Iceberg table: the token of each sink in them, and the history that a rewind goes back in.

Each commit of a sink writes its token to the summary of its snapshot, and to a property of the table. The summary
decides: it is part of the history that a reader sees, so a table that was rolled back has an older token. Snapshots
expire, but properties do not: the property decides when the history no longer reaches the sink's last snapshot.

A rewind does not set the branch back to an older snapshot: a paused driver that had read that snapshot could then
commit. It makes a new snapshot with the content of the older one, and with that one as its parent. So snapshots form a
tree, and what was undone is not among the ancestors of the current snapshot, as maintenance of tables expects it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from stateflow.api.sink import OtherCommit, SinkRewind, Successor, TableChanges
from stateflow.errors import DataError, SinkDiverged

APPLICATION = "stateflow.application"
_TOKEN = "stateflow.token"
_PREVIOUS_TOKEN = "stateflow.previous-token"
_PREVIOUS_SNAPSHOT = "stateflow.previous-snapshot-id"
_PROPERTY = "stateflow.token."
_TAKEN_OVER = "stateflow.taken-over."
"""Begins the name of the property that has the successor of an application."""
_NONE = "none"
_LONGEST = 19


@dataclass(frozen=True)
class SnapshotToken:
    """The entries that a sink has written to the summary of its snapshot.

    Attributes:
        application: the sink.
        token: the last published checkpoint.
        previous: the token before this snapshot.
        previous_snapshot: id of the snapshot that the table had before; None if it had none.
        taken_over: pairs of an application that must no longer write, and its successor. In properties only, which
            neither expire nor are rolled back.
    """

    application: str
    token: int
    previous: int
    previous_snapshot: int | None
    taken_over: tuple[tuple[str, str], ...] = ()

    def summary(self) -> dict[str, str]:
        """Returns the entries of the snapshot's summary."""
        before = _NONE if self.previous_snapshot is None else str(self.previous_snapshot)
        return {
            APPLICATION: self.application,
            _TOKEN: str(self.token),
            _PREVIOUS_TOKEN: str(self.previous),
            _PREVIOUS_SNAPSHOT: before,
        }

    def properties(self) -> dict[str, str]:
        """Returns the properties of the table."""
        return {_PROPERTY + self.application: str(self.token), **{_TAKEN_OVER + a: s for a, s in self.taken_over}}


def token_of(snapshot: Snapshot) -> SnapshotToken | None:
    """Returns what a sink wrote to the summary; None for a snapshot of another writer. Raises DataError."""
    summary = snapshot.summary.additional_properties if snapshot.summary else {}
    application = summary.get(APPLICATION)
    if application is None:
        return None
    before = summary.get(_PREVIOUS_SNAPSHOT)
    return SnapshotToken(
        application,
        _number(summary, _TOKEN),
        _number(summary, _PREVIOUS_TOKEN),
        None if before == _NONE else _number(summary, _PREVIOUS_SNAPSHOT),
    )


def before(snapshot: Snapshot) -> int | None:
    """Returns the id of the snapshot that was current before; None if there was none. For a rewind, not the parent."""
    token = token_of(snapshot)
    return token.previous_snapshot if token else snapshot.parent_snapshot_id


def current_token(metadata: TableMetadata, application: str) -> int:
    """Returns the last checkpoint that a sink published; 0 if there is none. Raises DataError."""
    known = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    next_id = metadata.current_snapshot_id
    # The parent of a snapshot may have expired, or have been removed from it when that expired.
    while next_id is not None and (snapshot := known.pop(next_id, None)) is not None:
        found = token_of(snapshot)
        if found is not None and found.application == application:
            return found.token
        next_id = before(snapshot)
    name = _PROPERTY + application
    return _number(metadata.properties, name) if name in metadata.properties else 0


def successor_of(metadata: TableMetadata, application: str) -> Successor | None:
    """Returns the sink that has taken over the table from an application; None if none has."""
    text = metadata.properties.get(_TAKEN_OVER + application)
    return Successor.parse(text) if text else None


def other_jobs(metadata: TableMetadata, uid: str) -> frozenset[str]:
    """Returns the ids of jobs whose sink of that uid has published, and still may."""
    tokens = {n.removeprefix(_PROPERTY): v for n, v in metadata.properties.items() if n.startswith(_PROPERTY)}
    active = (n for n, value in tokens.items() if value != "0" and _TAKEN_OVER + n not in metadata.properties)
    found = (name.partition("/") for name in active)
    return frozenset(job for job, _, other in found if other == uid)


def _number(values: Mapping[str, str], name: str) -> int:
    text = str(values.get(name, ""))
    if not (text.isascii() and text.isdecimal() and len(text) <= _LONGEST):
        raise DataError("a token in an Iceberg table is malformed", name=name, value=text[:100])
    return int(text)


_HINT = "choose a newer checkpoint, or keep the table as it is and correct its rows yourself"
_DELETE_FILES = ("added-delete-files", "removed-delete-files")


class History:
    """The snapshots of a table that have not expired.

    Args:
        location: name of the table, for errors.
        metadata: of the table.
        application: the sink.
    """

    def __init__(self, location: str, metadata: TableMetadata, application: str) -> None:
        self._location = location
        self._metadata = metadata
        self._application = application
        self._known = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}

    @property
    def head(self) -> Snapshot:
        """The current snapshot. Raises SinkDiverged if the table has none, which the sink creates with the table."""
        head = self._metadata.current_snapshot()
        if head is None:
            raise SinkDiverged("an Iceberg table no longer has a snapshot", hint=_HINT, table=self._location)
        return head

    def plan(self, checkpoint_id: int, io: FileIO) -> SinkRewind:
        """Returns the effect of a rewind to `checkpoint_id`. Raises SinkDiverged if snapshots have expired.

        Args:
            io: reads the files of the table.
        """
        version = version_of(self.head)
        if current_token(self._metadata, self._application) <= checkpoint_id:
            return SinkRewind(version, None, 0, 0, ())
        target = self._target(checkpoint_id)
        self._check_readable(target, io)
        undone, reaches_base = self._path(self.head, target)
        redone, _ = self._path(target, self.head)
        removed, returned = _rows(undone, redone) if reaches_base else (None, None)
        others = tuple(other for s in reversed(undone) if (other := self._other(s)))
        return SinkRewind(version, version_of(target), removed, returned, others)

    def at(self, version: int) -> Snapshot:
        """Returns the snapshot of a version. Raises SinkDiverged if it has expired, or is not the only one."""
        found = [snapshot for snapshot in self._known.values() if version_of(snapshot) == version]
        if len(found) != 1:
            raise self._expired(version=version)
        return found[0]

    def changes_since(self, version: int) -> TableChanges:
        """Returns the changes after `version`."""
        later = list(self._later(version))
        known = [snapshot for snapshot in later if snapshot]
        published = any((token := token_of(s)) and token.application == self._application for s in known)
        others = [other for snapshot in reversed(known) if (other := self._other(snapshot))]
        if len(known) < len(later):
            text = f"after version {version}: snapshots have expired, or were rolled back"
            others.insert(0, OtherCommit(version + 1, frozenset(), text))
        return TableChanges(self._location, published, tuple(others))

    def _find(self, snapshot_id: int | None) -> Snapshot | None:
        return self._known.get(snapshot_id) if snapshot_id is not None else None

    def _path(self, newest: Snapshot, other: Snapshot) -> tuple[list[Snapshot], bool]:
        """Returns the snapshots from `newest` to its newest common ancestor with `other`, and whether that is known."""
        common = {snapshot.snapshot_id for snapshot in self._ancestors(other)}
        path: list[Snapshot] = []
        for snapshot in self._ancestors(newest):
            if snapshot.snapshot_id in common:
                return path, True
            path.append(snapshot)
        return path, False

    def _ancestors(self, snapshot: Snapshot | None) -> Iterator[Snapshot]:
        """Yields a snapshot and its ancestors, newest first, as far as they have not expired."""
        while snapshot is not None:
            yield snapshot
            snapshot = self._find(snapshot.parent_snapshot_id)

    def _later(self, version: int) -> Iterator[Snapshot | None]:
        """Yields the snapshots that were current after `version`, newest first, and None where some are not known."""
        snapshot: Snapshot | None = self.head
        oldest = version_of(self.head)
        while snapshot is not None and version_of(snapshot) > version:
            yield snapshot
            oldest = version_of(snapshot)
            snapshot = self._find(before(snapshot))
        if (snapshot is None and oldest > version + 1) or (snapshot is not None and version_of(snapshot) < version):
            yield None

    def _target(self, checkpoint_id: int) -> Snapshot:
        """Returns the snapshot before the first one whose token is above `checkpoint_id`."""
        own = [(s, t) for s in self._known.values() if (t := token_of(s)) and t.application == self._application]
        crossing = [(s, t) for s, t in own if t.previous <= checkpoint_id < t.token]
        if crossing:
            _, token = min(crossing, key=lambda found: version_of(found[0]))
            target = self._find(token.previous_snapshot)
            if target is not None:
                return self.at(version_of(target))
        raise self._expired(checkpoint_id=checkpoint_id)

    def _check_readable(self, target: Snapshot, io: FileIO) -> None:
        if not io.new_input(target.manifest_list).exists():
            raise self._expired(version=version_of(target))

    def _other(self, snapshot: Snapshot) -> OtherCommit | None:
        """Returns the commit of a snapshot if another writer made it and it changed rows."""
        token = token_of(snapshot)
        if token is not None and token.application == self._application:
            return None
        operation = snapshot.summary.operation if snapshot.summary else Operation.OVERWRITE
        # A sink's snapshot without files only sets its token, or it is a rewind, whose parent is an older snapshot.
        is_rewind = token is not None and token.previous_snapshot != snapshot.parent_snapshot_id
        is_empty = token is not None and not _count(snapshot, "added-records")
        if operation is Operation.REPLACE or (is_empty and not is_rewind):
            return None
        rows = (
            None
            if is_rewind or _has_delete_files(snapshot)
            else _count(snapshot, "added-records") - _count(snapshot, "deleted-records")
        )
        application = token.application if token else ""
        when = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC).isoformat(timespec="seconds")
        writer = application or _text(snapshot, "engine-name") or "another writer"
        change = "" if rows is None else f", {rows:+} rows"
        return OtherCommit(
            version_of(snapshot),
            frozenset([application] if application else []),
            f"version {version_of(snapshot)}: {operation.value} by {writer} at {when}{change}",
            operation=operation.value,
            rows=rows,
        )

    def _expired(self, **facts: int) -> SinkDiverged:
        return SinkDiverged(
            "the Iceberg table cannot be rewound: that snapshot has expired", hint=_HINT, table=self._location, **facts
        )


def version_of(snapshot: Snapshot) -> int:
    """Returns the version of a table that a snapshot made: its sequence number, 0 in format version 1."""
    return snapshot.sequence_number or 0


def _rows(undone: Sequence[Snapshot], redone: Sequence[Snapshot]) -> tuple[int | None, int | None]:
    """Returns how many rows are removed and restored; (None, None) if files mark single rows as deleted."""
    undone, redone = _changing(undone), _changing(redone)
    if any(map(_has_delete_files, [*undone, *redone])):
        return None, None
    removed = _sum(undone, "added-records") + _sum(redone, "deleted-records")
    return removed, _sum(redone, "added-records") + _sum(undone, "deleted-records")


def _changing(snapshots: Iterable[Snapshot]) -> list[Snapshot]:
    """Returns the snapshots without compactions, which change no rows."""
    return [s for s in snapshots if not (s.summary and s.summary.operation is Operation.REPLACE)]


def _has_delete_files(snapshot: Snapshot) -> bool:
    return snapshot.summary is None or any(_count(snapshot, name) for name in _DELETE_FILES)


def _sum(snapshots: Iterable[Snapshot], name: str) -> int:
    return sum(_count(snapshot, name) for snapshot in snapshots)


def _count(snapshot: Snapshot, name: str) -> int:
    text = _text(snapshot, name)
    return int(text) if text.isascii() and text.isdecimal() else 0


def _text(snapshot: Snapshot, name: str) -> str:
    return str(snapshot.summary.additional_properties.get(name, "")) if snapshot.summary else ""
