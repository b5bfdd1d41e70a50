"""Commands that show the state of a checkpoint or savepoint, also during a run."""

from __future__ import annotations

import json

import click

from stateflow.cli.common import JSON
from stateflow.cli.formatting import align_columns, count_of, human_bytes, print_text
from stateflow.query.metadata import metadata_of
from stateflow.query.snapshot import Snapshot, describe_snapshot

Row = dict[str, str | int | list[str] | None]

_LOCATION = click.argument("location", metavar="JOB_ROOT|SAVEPOINT")
_SNAPSHOT = click.option(
    "--snapshot",
    metavar="ID|NAME",
    help="In a job root, the id of a checkpoint, or the name or path of a savepoint. Default: the newest checkpoint.",
)


@click.group()
def state() -> None:
    """Show the state of a checkpoint or savepoint, without a run and during one."""


@state.command()
@_LOCATION
@_SNAPSHOT
@JSON
def show(location: str, snapshot: str | None, as_json: bool) -> None:
    """Show the operators and states of a checkpoint or savepoint.

    JOB_ROOT|SAVEPOINT is a job root, or the folder of a savepoint: a path or URI.
    """
    found = describe_snapshot(location, snapshot)
    operators: list[Row] = metadata_of(found, "operators").to_pylist()
    states: list[Row] = metadata_of(found, "states").to_pylist()
    if as_json:
        about = {"job": found.job, "job_uuid": found.job_uuid, "max_parallelism": found.max_parallelism}
        named = {"checkpoint_id": found.checkpoint_id, "name": found.name}
        print_text(json.dumps({**about, **named, "operators": operators, "states": states}, indent=2))
    else:
        _print_snapshot(found, operators, states)


def _print_snapshot(found: Snapshot, operators: list[Row], states: list[Row]) -> None:
    made_from = f", made from checkpoint {found.checkpoint_id}" if found.name else ""
    print_text(f"{found.label} of {found.job}{made_from}: {count_of(found.max_parallelism, 'key group')}")
    if not operators:
        print_text("no operator has state")
        return
    rows = [("operator", "key", "subtasks", "files", "size")]
    for each in operators:
        counts = str(each["parallelism"]), str(each["files"])
        rows.append((str(each["operator"]), _key_text(each), *counts, human_bytes(_number(each["bytes"]))))
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
