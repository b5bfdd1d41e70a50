"""The command group state: shows, reads and exports the state of a checkpoint or savepoint, also during a run."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

import click
import msgspec
import pyarrow as pa

from stateflow.cli.common import (
    align_columns,
    count_of,
    human_bytes,
    in_utc,
    json_option,
    print_json,
    print_text,
    refuse,
)
from stateflow.clock import SystemClock
from stateflow.connectors.json_rows import encode, json_objects
from stateflow.errors import ConfigError
from stateflow.operations.state_export import ExportFormat, ExportRequest, export_state, write_rows
from stateflow.outputs import OptionalId, OptionalText
from stateflow.query.metadata import SCHEMAS, metadata_of, read_metadata
from stateflow.query.reader import state_table
from stateflow.query.snapshot import Snapshot, describe_snapshot, open_snapshot
from stateflow.query.state_table import Rows, key_fields
from stateflow.requesters import Requester
from stateflow.types.key_values import parse_key

Row = dict[str, object]


_LOCATION = click.argument("location", metavar="JOB_ROOT|SAVEPOINT")
_SNAPSHOT = click.option(
    "--snapshot",
    metavar="ID|NAME",
    help="In a job root, the id of a checkpoint, or the name or path of a savepoint. Default: the newest checkpoint.",
)


_OPERATOR = click.option("--operator", required=True, metavar="UID", help="Uid of the operator.")
_STATE = click.option(
    "--state",
    "name",
    required=True,
    metavar="NAME",
    help="Name of the state as `stateflow state show` prints it, such as total, _timers or _operator/buffer.",
)
_NO_ENTRY = 6
"""Exit code of get for a key without an entry."""


@dataclass(frozen=True)
class SnapshotPin:
    """A pin of a checkpoint.

    Attributes:
        id: id of the pin.
        owner: who has pinned it.
        reason: why.
        pinned_at: when it was pinned.
        expires_at: when the pin ends unless its owner renews it; None for a pin without an end.
    """

    id: str
    owner: Requester
    reason: str
    pinned_at: datetime | None
    expires_at: datetime | None


@dataclass(frozen=True)
class SnapshotRow:
    """A checkpoint or savepoint, with ``--table snapshots``.

    Attributes:
        checkpoint_id: id of the checkpoint, or of the savepoint's; 0 for a savepoint of other state.
        name: name of the savepoint; None for a checkpoint.
        kind: ``checkpoint`` or ``savepoint``.
        made_at: when it was committed or made.
        size_bytes: size of its state; None if the run has released it meanwhile.
        current: whether the next run starts from it.
        pins: its pins.
    """

    checkpoint_id: OptionalId
    name: str | None
    kind: str
    made_at: datetime | None
    size_bytes: int | None
    current: bool
    pins: list[SnapshotPin]


@dataclass(frozen=True)
class OperatorRow:
    """An operator of a snapshot, with ``--table operators``.

    Attributes:
        operator: uid of the operator.
        parallelism: number of subtasks.
        max_parallelism: number of key groups.
        key_columns: names of the key columns.
        key_types: their types.
        states: number of states.
        files: number of files.
        size_bytes: size of the state.
        watermark_at: its watermark; None before the first one.
    """

    operator: str
    parallelism: int
    max_parallelism: int
    key_columns: list[str]
    key_types: list[str]
    states: int
    files: int
    size_bytes: int
    watermark_at: datetime | None


@dataclass(frozen=True)
class StateRow:
    """A state of a snapshot, with ``--table states``.

    Attributes:
        operator: uid of the operator.
        state: name of the state.
        kind: kind of the state.
        map_key_type: type of a map's keys; None for other states.
        value_type: type of the values; None for timers.
        ttl: time domain of the time to live; None without one.
        queryable: queryable name; None without one.
    """

    operator: str
    state: str
    kind: str
    map_key_type: str | None
    value_type: str | None
    ttl: str | None
    queryable: str | None


@dataclass(frozen=True)
class FileRow:
    """A file of a snapshot, with ``--table files``.

    Attributes:
        operator: uid of the operator.
        subtask: index of the subtask.
        first_key_group: first key group of the subtask; None for operator state.
        last_key_group: last key group of the subtask; None for operator state.
        backend: the state backend; None for operator state.
        name: name of the file in the store; None for operator state.
        file: key of the file.
        offset_bytes: where the part begins, in a file that contains several.
        size_bytes: size of the part.
        sha256: its hash.
    """

    operator: str
    subtask: int
    first_key_group: int | None
    last_key_group: int | None
    backend: str | None
    name: str | None
    file: str
    offset_bytes: int
    size_bytes: int
    sha256: str


_ROWS = {
    tuple(SCHEMAS[name].names): row_class
    for name, row_class in (
        ("snapshots", SnapshotRow),
        ("operators", OperatorRow),
        ("states", StateRow),
        ("files", FileRow),
    )
}


@dataclass(frozen=True)
class SnapshotContents:
    """The operators and states of a checkpoint or savepoint.

    Attributes:
        job: name of the job.
        job_uuid: uuid of the job.
        max_parallelism: number of key groups.
        checkpoint_id: id of the checkpoint, or of the savepoint's; 0 for a savepoint of other state.
        name: name of the savepoint; empty for a checkpoint.
        operators: the operators.
        states: the states.
    """

    job: str
    job_uuid: str
    max_parallelism: int
    checkpoint_id: OptionalId
    name: OptionalText
    operators: list[OperatorRow]
    states: list[StateRow]


StateOutput = SnapshotContents | SnapshotRow | OperatorRow | StateRow | FileRow
"""Without ``--table``, and a line for each row of each table."""


@dataclass(frozen=True)
class KeyEntries:
    """The entries of a key.

    Attributes:
        operator: uid of the operator.
        state: name of the state.
        checkpoint_id: id of the checkpoint, or of the savepoint's; 0 for a savepoint of other state.
        key: values of the key columns.
        rows: the entries, with the columns of ``stateflow state export``.
    """

    operator: str
    state: str
    checkpoint_id: OptionalId
    key: list[object]
    rows: list[dict[str, object]]


@click.group()
def state() -> None:
    """Show, read or export the state of a checkpoint or savepoint, without a run and during one."""


@state.command()
@_LOCATION
@_SNAPSHOT
@click.option(
    "--table",
    type=click.Choice(list(SCHEMAS)),
    help="Print this table of metadata instead: all snapshots of the job root; or the operators, states or files of "
    "one, with all columns. With --json, one line for each row.",
)
@json_option(StateOutput)
def show(location: str, snapshot: str | None, table: str | None, as_json: bool) -> None:
    """Show the operators and states of a checkpoint or savepoint.

    JOB_ROOT|SAVEPOINT is a job root, or the folder of a savepoint: a path or URI.
    """
    if table is not None:
        print_metadata(read_metadata(location, table, snapshot), as_json)
        return
    found = describe_snapshot(location, snapshot)
    operators: list[Row] = metadata_of(found, "operators").to_pylist()
    states: list[Row] = metadata_of(found, "states").to_pylist()
    if as_json:
        about = found.job, found.job_uuid, found.max_parallelism, found.checkpoint_id, found.name
        rows = msgspec.convert(operators, list[OperatorRow]), msgspec.convert(states, list[StateRow])
        print_json(SnapshotContents(*about, *rows))
    else:
        _print_snapshot(found, operators, states)


@state.command()
@_LOCATION
@_OPERATOR
@_STATE
@click.option(
    "--key",
    "texts",
    required=True,
    multiple=True,
    metavar="KEY",
    help="Value of the key column; with several, once for each in their order, or a JSON array of their values, or an "
    "object with their names. Dates, times and durations are in ISO 8601, binary values are Base64; [null] is "
    "the null of one column.",
)
@_SNAPSHOT
@json_option(KeyEntries)
def get(location: str, operator: str, name: str, texts: tuple[str, ...], snapshot: str | None, as_json: bool) -> None:
    """Print the entries of one key as JSON: a line for each element of a list or entry of a map.

    Expired entries that still exist are included. Exit codes: 0 the key has entries; 6 it has none; others: an error.
    """
    with open_snapshot(location, snapshot) as opened:
        found = opened.operator(operator)
        columns = [field.name for field in key_fields(found)]
        key = parse_key(texts, dict(zip(columns, found.key_types, strict=True)))
        table = state_table(opened, operator, name, Rows(keys=(key,)))
        batches = list(table.batches(opened.storage, SystemClock(), table.schema.names))
    rows = [row for batch in batches for row in json_objects(batch)]
    if as_json:
        values = {"key": list(key), "rows": rows}
        print_json(KeyEntries(operator, name, opened.checkpoint_id, **json.loads(encode(values))))
    else:
        hidden = {"key_group", *columns}
        for row in rows:
            hidden_here = hidden if row.get("namespace") else hidden | {"namespace"}
            print_text(encode({column: row[column] for column in row if column not in hidden_here}).decode())
    if not rows:
        print_text(f"the key has no entry in {opened.label}", err=True)
        sys.exit(_NO_ENTRY)


@state.command()
@_LOCATION
@_OPERATOR
@_STATE
@click.option(
    "--format",
    "kind",
    type=click.Choice([kind.value for kind in ExportFormat]),
    help="Format of the rows. Default: parquet for an output that ends with .parquet, otherwise jsonl.",
)
@click.option(
    "--output",
    metavar="FILE|URI",
    help="Write to a file, which only the current user can read, and which is replaced once it is complete; or to an "
    "object, such as s3://bucket/rows.parquet. Default: stdout.",
)
@_SNAPSHOT
def export(location: str, operator: str, name: str, kind: str | None, output: str | None, snapshot: str | None) -> None:
    """Write all rows of a state as JSON lines or Parquet, while they are read.

    In JSON, times are in ISO 8601 and binary values are Base64.
    """
    found = ExportFormat(kind) if kind is not None else ExportFormat.of(output or "")
    if found is ExportFormat.PARQUET and output is None:
        refuse("Parquet is not written to the terminal", "pass --output FILE")
    if output is not None and "://" in output:
        report = export_state(ExportRequest(location, operator, name, output, found, snapshot))
        print_text(f"{report.label}: {count_of(report.rows, 'row')} of {operator}.{name} in {output}")
        return
    with open_snapshot(location, snapshot) as opened:
        table = state_table(opened, operator, name)
        batches = table.batches(opened.storage, SystemClock(), table.schema.names)
        if output is None:
            print_rows(batches)
            return
        with new_file(Path(output)) as file:
            rows = write_rows(file, found, table.schema, batches)
    print_text(f"{opened.label}: {count_of(rows, 'row')} of {operator}.{name} in {output}")


def _print_snapshot(found: Snapshot, operators: list[Row], states: list[Row]) -> None:
    made_from = f", made from checkpoint {found.checkpoint_id}" if found.name else ""
    print_text(f"{found.label} of {found.job}{made_from}: {count_of(found.max_parallelism, 'key group')}")
    if not operators:
        print_text("no operator has state")
        return
    rows = [("operator", "key", "subtasks", "files", "size")]
    for each in operators:
        counts = str(each["parallelism"]), str(each["files"])
        rows.append((str(each["operator"]), _key_text(each), *counts, human_bytes(_number(each["size_bytes"]))))
    for line in align_columns(rows):
        print_text(line)
    print_text()
    lines = [("operator", "state", "kind", "type", "TTL", "queryable")]
    for each in states:
        names = str(each["operator"]), str(each["state"]), str(each["kind"])
        lines.append((*names, _type_text(each), str(each["ttl"] or ""), str(each["queryable"] or "")))
    for line in align_columns(lines):
        print_text(line)


def _key_text(operator: Row) -> str:
    names, types = operator["key_columns"], operator["key_types"]
    assert isinstance(names, list) and isinstance(types, list)
    if len(names) != len(types):
        return ", ".join(types)
    return ", ".join(f"{name}: {kind}" for name, kind in zip(names, types, strict=True))


def _type_text(state: Row) -> str:
    value = str(state["value_type"] or "")
    return f"{state['map_key_type']} -> {value}" if state["map_key_type"] else value


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value


def print_rows(batches: Iterable[pa.RecordBatch]) -> None:
    """Prints a line of JSON for each row."""
    for batch in batches:
        for row in json_objects(batch):
            print_text(encode(row).decode())


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Opens a file next to `path`, which gets its name at the end of the block; removes it if the block fails.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        number, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    except OSError as e:
        raise _unwritable(path, e) from e
    try:
        with os.fdopen(number, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except OSError as e:
        raise _unwritable(path, e) from e
    finally:
        Path(name).unlink(missing_ok=True)


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        "the output cannot be written",
        hint="check the folder, its permissions, and the space that is left",
        output=str(path),
        reason=error.strerror or str(error),
    )


_SIZES = ("size_bytes",)


def print_metadata(table: pa.Table, as_json: bool) -> None:
    """Prints a table of `read_metadata`: aligned columns, or a line of JSON for each row."""
    if as_json:
        row_class = _ROWS[tuple(table.schema.names)]
        for row in table.to_pylist():
            print_json(msgspec.convert(row, row_class))
        return
    columns = [[name, *(_cell(name, value) for value in table.column(name).to_pylist())] for name in table.schema.names]
    for line in align_columns(list(zip(*columns, strict=True))):
        print_text(line)


def _cell(column: str, value: object) -> str:
    if value is None:
        return ""
    if column in _SIZES and isinstance(value, int):
        return human_bytes(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return in_utc(value.isoformat())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(_part(part) for part in value)
    return str(value)


def _part(value: object) -> str:
    """Returns an item of a list: of a pin, who holds it and why."""
    return f"{Requester(**value['owner'])} ({value['reason']})" if isinstance(value, dict) else str(value)
