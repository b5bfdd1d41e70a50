"""The token of each sink in an Iceberg table, and what a snapshot's summary has about the commit that made it.

Each commit of a sink writes its token to the summary of its snapshot, and to a property of the table. The summary
decides: it is part of the history that a reader sees, so a table that was rolled back has an older token. Snapshots
expire, but properties do not: the property decides when the history no longer reaches the sink's last snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from stateflow.api.sink import Successor
from stateflow.errors import DataError

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
    """What a sink has written to the summary of its snapshot.

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
