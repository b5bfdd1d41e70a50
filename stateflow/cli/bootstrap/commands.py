"""Commands that write a savepoint from files, or a changed copy of a savepoint."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from stateflow import operations
from stateflow.cli.common import (
    JOB,
    JSON,
    OPTIONAL_ROOT,
    SETTINGS_OPTIONS,
    print_json,
    refuse,
    settings_layers,
    with_options,
)
from stateflow.cli.formatting import count_of, human_bytes, offset_text, one_line, print_text
from stateflow.errors import ConfigError
from stateflow.operations.savepoints.written_savepoints import (
    ChangeRequest,
    WriteRequest,
    WrittenSavepoint,
    change_savepoint,
    write_savepoint,
)
from stateflow.types.key_groups import MAX_PARALLELISM_LIMIT

_OUTPUT = click.option(
    "--output",
    required=True,
    metavar="URI",
    help="Folder of the new savepoint, on any storage; repeat a call that was killed.",
)
_NAME = click.option("--name", default="", help="Name of the savepoint; by default, that of its folder.")
_REASON = click.option("--reason", default="", help="Why it is written, for display.")


@click.command()
@JOB
@_OUTPUT
@click.option(
    "--state",
    "states",
    multiple=True,
    metavar="OPERATOR.STATE=FILES",
    help="Files with the rows of a state, with the columns that stateflow state export writes: a file of Parquet or "
    "JSON lines, a folder of them, or a quoted pattern; a path or URI. STATE is a name such as total, _timers, "
    "_operator/buffer, _raw or _raw_keyed; repeatable.",
)
@click.option(
    "--source",
    "sources",
    multiple=True,
    metavar="UID=POSITION",
    help="Position of a source: earliest, latest, timestamp:TIME, position:TEXT, or the position's JSON; or "
    "spark:CHECKPOINT for that of a query of Spark's Structured Streaming, with #N for the query's source number N. "
    "By default a source begins at its start; repeatable.",
)
@click.option(
    "--max-parallelism",
    type=click.IntRange(1, MAX_PARALLELISM_LIMIT),
    metavar="N",
    help="Number of key groups.  [default: the setting max_parallelism of the job, or 128]",
)
@click.option(
    "--parallelism",
    type=click.IntRange(1, MAX_PARALLELISM_LIMIT),
    metavar="N",
    help="Number of subtasks whose state is written; the job that starts may have any other number.  [default: 4]",
)
@click.option(
    "--at",
    metavar="TIME",
    help="Time of the savepoint in ISO 8601, in UTC if it has no zone. A time to live begins then for rows "
    "without a column written_at. Default: that of a savepoint which is in the folder already, or now.",
)
@_NAME
@_REASON
@with_options(SETTINGS_OPTIONS)
@JSON
def write(
    job: Path,
    output: str,
    states: tuple[str, ...],
    sources: tuple[str, ...],
    max_parallelism: int | None,
    parallelism: int | None,
    at: str | None,
    name: str,
    reason: str,
    config: Path | None,
    assignments: tuple[str, ...],
    as_json: bool,
) -> None:
    """Write a savepoint from files, from which stateflow run --from-savepoint starts the job.

    The job file declares the operators with their keys, the states and the sources. Starts no Spark, and processes no
    row. A row that cannot be stored is an error that names its key. States whose rows have fields of their values as
    columns need no column value.
    """
    if not states and not sources:
        refuse("a savepoint needs state or a position", "pass --state OPERATOR.STATE=FILES, or --source UID=POSITION")
    request = WriteRequest(
        job,
        output,
        states,
        sources,
        settings_layers(config, assignments),
        max_parallelism,
        parallelism,
        name,
        None if at is None else _time(at),
        reason,
        lambda step: print_text(step, err=True),
    )
    _print(write_savepoint(request), as_json)


@click.command()
@OPTIONAL_ROOT
@click.argument("savepoint", metavar="NAME|PATH")
@click.option(
    "--remove",
    multiple=True,
    required=True,
    metavar="UID",
    help="Leave out this operator with all of its state; repeatable.",
)
@_OUTPUT
@_NAME
@_REASON
@JSON
def change(
    job_root: str, savepoint: str, remove: tuple[str, ...], output: str, name: str, reason: str, as_json: bool
) -> None:
    """Write a copy of a savepoint, given by name or path, without some operators. The savepoint stays as it is.

    To change the rows of a state, use SavepointWriter in Python.
    """
    if not job_root and "/" not in savepoint:
        refuse("a savepoint's name needs a job root", "pass --job-root, or the path of the savepoint")
    request = ChangeRequest(operations.find(job_root, savepoint).uri, output, remove, name, reason)
    _print(change_savepoint(request), as_json)


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError as e:
        raise ConfigError(
            "the value of --at is not in ISO 8601 format", hint="for example 2026-01-31T03:00", given=text
        ) from e
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _print(made: WrittenSavepoint, as_json: bool) -> None:
    if as_json:
        print_json(made)
        return
    groups = count_of(made.max_parallelism, "key group")
    print_text(one_line(f"savepoint {made.name} of {made.job}: {groups}, {human_bytes(made.bytes)}"))
    print_text(f"  {made.path}")
    for state in made.states:
        rows, files = count_of(state.rows, "row"), count_of(state.files, "file")
        print_text(one_line(f"  state {state.operator}.{state.state}: {rows} from {files}"))
    if not made.states:
        print_text(one_line(f"  operators: {', '.join(made.operators) or 'none'}"))
    for uid, offset in made.sources.items():
        print_text(one_line(f"  source {uid} at {offset_text(offset)}"))
    for uid in made.without_position:
        print_text(one_line(f"  source {uid} begins at its start"))
