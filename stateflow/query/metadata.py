"""Metadata of checkpoints and savepoints as Arrow tables: which exist, and the operators, states and files of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pyarrow as pa

from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.documents import EntryRef, OperatorState, Pin
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import state_bytes
from stateflow.checkpoint.savepoints.catalog import StoredSavepoint, list_savepoints
from stateflow.clock import parse_timestamp
from stateflow.errors import ConfigError, MissingFile
from stateflow.helpers import did_you_mean
from stateflow.outputs import event_time, to_object
from stateflow.query.snapshot import Snapshot, describe_snapshot, open_job_or_savepoint
from stateflow.query.state_table import OPERATOR_PREFIX, TIMERS
from stateflow.requesters import Requester
from stateflow.state.handles import FilePart, StateSchema
from stateflow.types.key_groups import KeyGroupRange

Row = dict[str, object]

_READERS = 16

_TIME = pa.timestamp("ms", "UTC")
_PINS = pa.list_(
    pa.struct(
        [
            ("id", pa.string()),
            ("owner", pa.struct([("name", pa.string()), ("source", pa.string()), ("account", pa.string())])),
            ("reason", pa.string()),
            ("pinned_at", _TIME),
            ("expires_at", _TIME),
        ]
    )
)
SCHEMAS: dict[str, pa.Schema] = {
    "snapshots": pa.schema(
        [
            pa.field("checkpoint_id", pa.int64(), nullable=False),
            pa.field("name", pa.string()),
            pa.field("kind", pa.string(), nullable=False),
            pa.field("made_at", _TIME),
            pa.field("size_bytes", pa.int64()),
            pa.field("current", pa.bool_(), nullable=False),
            pa.field("pins", _PINS, nullable=False),
        ]
    ),
    "operators": pa.schema(
        [
            pa.field("operator", pa.string(), nullable=False),
            pa.field("parallelism", pa.int64(), nullable=False),
            pa.field("max_parallelism", pa.int64(), nullable=False),
            pa.field("key_columns", pa.list_(pa.string()), nullable=False),
            pa.field("key_types", pa.list_(pa.string()), nullable=False),
            pa.field("states", pa.int64(), nullable=False),
            pa.field("files", pa.int64(), nullable=False),
            pa.field("size_bytes", pa.int64(), nullable=False),
            pa.field("watermark_at", _TIME),
        ]
    ),
    "states": pa.schema(
        [
            pa.field("operator", pa.string(), nullable=False),
            pa.field("state", pa.string(), nullable=False),
            pa.field("kind", pa.string(), nullable=False),
            pa.field("map_key_type", pa.string()),
            pa.field("value_type", pa.string()),
            pa.field("ttl", pa.string()),
            pa.field("queryable", pa.string()),
        ]
    ),
    "files": pa.schema(
        [
            pa.field("operator", pa.string(), nullable=False),
            pa.field("subtask", pa.int64(), nullable=False),
            pa.field("first_key_group", pa.int64()),
            pa.field("last_key_group", pa.int64()),
            pa.field("backend", pa.string()),
            pa.field("name", pa.string()),
            pa.field("file", pa.string(), nullable=False),
            pa.field("offset_bytes", pa.int64(), nullable=False),
            pa.field("size_bytes", pa.int64(), nullable=False),
            pa.field("sha256", pa.string(), nullable=False),
        ]
    ),
}
"""The tables and their columns."""


def read_metadata(location: str, table: str, snapshot: int | str | None = None) -> pa.Table:
    """Returns a table of metadata, also while the job runs. No file of state is read, and nothing is pinned.

    The tables are ``snapshots``: the checkpoints that the job keeps, with their pins, and the savepoints in the job
    root; and of one snapshot: ``operators``, with watermarks as times; ``states``, with the names that
    `read_state` takes, and the time domain of a TTL; and ``files``, with the part of a file where it contains several.

    Args:
        location: a job root, or the folder of a savepoint.
        table: name of the table.
        snapshot: as for `read_state`; not for the table ``snapshots``.

    Raises:
        ConfigError: the location, the table or the snapshot does not exist.
        MissingFile, CorruptFile: a manifest, or a savepoint's document, is missing or damaged.
    """
    if table not in SCHEMAS:
        raise ConfigError(
            "the table of metadata does not exist", hint=did_you_mean(table, SCHEMAS), table=table, known=list(SCHEMAS)
        )
    if table != "snapshots":
        return metadata_of(describe_snapshot(location, snapshot), table)
    if snapshot is not None:
        raise ConfigError(
            "the table of snapshots always contains all snapshots", hint="leave the snapshot out", snapshot=snapshot
        )
    return pa.Table.from_pylist(list(_snapshots(location)), schema=SCHEMAS[table])


def metadata_of(snapshot: Snapshot, table: str) -> pa.Table:
    """Returns a table of one snapshot: ``operators``, ``states`` or ``files``, as `read_metadata` does."""
    return pa.Table.from_pylist(list(_READ[table](snapshot)), schema=SCHEMAS[table])


def _snapshots(location: str) -> Iterable[Row]:
    found = open_job_or_savepoint(location)
    if isinstance(found, StoredSavepoint):
        return [_savepoint_row(found)]
    head = found.head()
    rows = [*_checkpoint_rows(found, head), *map(_savepoint_row, list_savepoints(found.storage))]
    return sorted(rows, key=lambda row: (row["checkpoint_id"], row["kind"], row["made_at"]))


def _checkpoint_rows(root: JobRoot, head: Head) -> list[Row]:
    refs = sorted(set(root.checkpoints.list_kept(head)), key=lambda ref: ref.id)
    with ThreadPoolExecutor(_READERS) as pool:
        sizes = list(pool.map(lambda ref: _bytes_of(root, ref), refs))
    rows: list[Row] = []
    for ref, size in zip(refs, sizes, strict=True):
        pins = [_pin_row(pin) for pin in head.entry.pinned if pin.checkpoint == ref]
        current = ref == head.checkpoint
        about = {"checkpoint_id": ref.id, "name": None, "kind": "checkpoint", "current": current}
        rows.append({**about, "made_at": _time(ref.at), "size_bytes": size, "pins": pins})
    return rows


def _bytes_of(root: JobRoot, ref: EntryRef) -> int | None:
    """Returns the size of a checkpoint's state; None if the run has released it by now."""
    try:
        return root.checkpoints.manifest_of(ref).full_bytes
    except MissingFile:
        newest = JobRoot(root.log, root.clock, root.writer)
        if ref in newest.checkpoints.list_kept(newest.head()):
            raise
        return None


def _savepoint_row(stored: StoredSavepoint) -> Row:
    document = stored.document
    return {
        "checkpoint_id": document.checkpoint_id,
        "name": document.name,
        "kind": "savepoint",
        "made_at": _time(document.made_at),
        "size_bytes": stored.size,
        "current": False,
        "pins": [],
    }


def _pin_row(pin: Pin) -> Row:
    times = {"pinned_at": _time(pin.since), "expires_at": _time(pin.until)}
    return {"id": pin.id, "owner": to_object(Requester.parse(pin.owner)), "reason": pin.reason, **times}


def _time(text: str) -> datetime | None:
    try:
        return parse_timestamp(text)
    except ValueError:
        return None


def _operators(snapshot: Snapshot) -> Iterator[Row]:
    for operator in snapshot.manifest.operators:
        yield {
            "operator": operator.uid,
            "parallelism": operator.parallelism,
            "max_parallelism": snapshot.max_parallelism,
            "key_columns": operator.key_names,
            "key_types": operator.key_types,
            "states": len(operator.states) + len(operator.operator_states),
            "files": len({handle.key for handle in operator.files}),
            "size_bytes": state_bytes([operator]),
            "watermark_at": None if operator.watermark is None else event_time(operator.watermark),
        }


def _states(snapshot: Snapshot) -> Iterator[Row]:
    for operator in snapshot.manifest.operators:
        for schema in operator.states:
            yield _state_row(operator, schema, schema.name)
        if any(part.event_timer is not None or part.processing_timer is not None for part in operator.subtasks):
            yield {"operator": operator.uid, "state": TIMERS, "kind": "timers"}
        for schema in operator.operator_states:
            yield _state_row(operator, schema, OPERATOR_PREFIX + schema.name)


def _state_row(operator: OperatorState, schema: StateSchema, name: str) -> Row:
    return {
        "operator": operator.uid,
        "state": name,
        "kind": schema.kind,
        "map_key_type": schema.key_type or None,
        "value_type": schema.value_type,
        "ttl": schema.ttl_time or None,
        "queryable": schema.queryable or None,
    }


def _files(snapshot: Snapshot) -> Iterator[Row]:
    for operator in snapshot.manifest.operators:
        for state in operator.subtasks:
            for file in state.files:
                about = {"operator": operator.uid, "subtask": state.subtask, "backend": state.backend}
                place = {"file": file.handle.key, "offset_bytes": _offset(file.part), "name": file.local_name}
                yield {**about, **place, **_groups(state.groups), "size_bytes": file.size, "sha256": file.sha256}
        for part in operator.parts:
            if (handle := part.handle) is not None:
                about = {"operator": operator.uid, "subtask": part.subtask}
                yield {
                    **about,
                    "file": handle.key,
                    "offset_bytes": 0,
                    "size_bytes": handle.size,
                    "sha256": handle.sha256,
                }


def _offset(part: FilePart | None) -> int:
    return part.offset if part else 0


def _groups(groups: KeyGroupRange) -> Row:
    return {"first_key_group": groups.first, "last_key_group": groups.last}


_READ: dict[str, Callable[[Snapshot], Iterable[Row]]] = {"operators": _operators, "states": _states, "files": _files}
