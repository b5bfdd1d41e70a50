"""Commands that write a savepoint from files, or a changed copy of a savepoint."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from stateflow.cli.common import (
    JOB,
    JOB_FILE,
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
from stateflow.operations.savepoints.changed_savepoints import ChangeRequest, change_savepoint
from stateflow.operations.savepoints.written_savepoints import WriteRequest, WrittenSavepoint, write_savepoint
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
    "_operator/buffer, _raw or _raw_keyed. Or spark:CHECKPOINT for state of a query of Spark's Structured Streaming, "
    "with #VARIABLE for a variable of transformWithState, or #operator=N,variable=NAME,store=NAME,batch=N; repeatable.",
)
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="OPERATOR.STATE.COLUMN=EXPRESSION",
    help="A column of a state of a query of Spark: an expression of Spark's SQL over its columns key, value and those "
    "of its kind. COLUMN is a key column, value or a field of the value, map_key, namespace; or time, for timers. "
    "By default, the columns of key and the struct value; repeatable.",
)
@click.option(
    "--source",
    "sources",
    multiple=True,
    metavar="UID=POSITION",
    help="Position of a source: earliest, latest, timestamp:TIME, position:TEXT, or the position's JSON; or "
    "spark:CHECKPOINT for that of a query of Spark's Structured Streaming, with #N for the query's source number N, or "
    "#source=N,batch=N. "
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
    columns: tuple[str, ...],
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

    The job file declares the operators with their keys, the states and the sources. Starts Spark only for state of a
    query of Spark, with the settings of the job, and processes no row. A row that cannot be stored is an error that
    names its key. States whose rows have fields of their values as columns need no column value.
    """
    if not states and not sources:
        refuse("a savepoint needs state or a position", "pass --state OPERATOR.STATE=FILES, or --source UID=POSITION")
    request = WriteRequest(
        job,
        output,
        states,
        sources,
        columns,
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
    "--remove", multiple=True, metavar="UID", help="Leave out this operator with all of its state; repeatable."
)
@click.option(
    "--transform",
    "transforms",
    multiple=True,
    metavar="OPERATOR.STATE=FUNCTION",
    help="Replace the rows of a state by those that a function returns for them: FILE.py:FUNCTION, or MODULE:FUNCTION "
    "of a module that can be imported. It gets and returns record batches of Arrow with the columns of stateflow state "
    "export. STATE is a name such as total, _timers or _operator/buffer; repeatable.",
)
@click.option(
    "--job",
    "job_file",
    type=JOB_FILE,
    metavar="JOB.py",
    help="The job that starts from the copy: it declares the states that --transform names, as they are from now on. "
    "Not needed for _timers.",
)
@_OUTPUT
@_NAME
@_REASON
@with_options(SETTINGS_OPTIONS)
@JSON
def change(
    job_root: str,
    savepoint: str,
    remove: tuple[str, ...],
    transforms: tuple[str, ...],
    job_file: Path | None,
    output: str,
    name: str,
    reason: str,
    config: Path | None,
    assignments: tuple[str, ...],
    as_json: bool,
) -> None:
    """Write a copy of a savepoint, given by name or path, without some operators or with other rows.

    The savepoint stays as it is, and so does everything that no option names.
    """
    if not remove and not transforms:
        refuse("a copy needs a change", "pass --remove UID, or --transform OPERATOR.STATE=FUNCTION")
    request = ChangeRequest(
        savepoint,
        output,
        remove,
        transforms,
        job_file,
        settings_layers(config, assignments),
        job_root,
        name,
        reason,
        lambda step: print_text(step, err=True),
    )
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
        origin = state.imported_from
        if state.rows is not None:
            origin = f"{count_of(state.rows, 'row')} from {count_of(state.files, 'file')}"
        print_text(one_line(f"  state {state.operator}.{state.state}: {origin}"))
    if not made.states:
        print_text(one_line(f"  operators: {', '.join(made.operators) or 'none'}"))
    for uid, offset in made.sources.items():
        print_text(one_line(f"  source {uid} at {offset_text(offset)}"))
    for uid in made.without_position:
        print_text(one_line(f"  source {uid} begins at its start"))
