"""The command group savepoint (also write and change, which make savepoints from files), and the command stop."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import click
from msgspec.structs import replace

from stateflow import operations
from stateflow.checkpoint.log.documents import Origin, SavepointFormat
from stateflow.checkpoint.log.manifest_files import state_bytes
from stateflow.checkpoint.savepoints.cleanup import SavepointRule
from stateflow.cli.common import (
    JOB_FILE,
    JOB_OF_REQUEST,
    OPTIONAL_ROOT,
    REQUESTER_OPTIONS,
    ROOT,
    F,
    Members,
    align_columns,
    count_of,
    human_bytes,
    in_utc,
    json_option,
    offset_text,
    one_line,
    print_json,
    print_text,
    refuse,
    timeout_options,
    to_duration,
    to_seconds,
    with_options,
    with_request,
    with_settings,
)
from stateflow.clock import parse_timestamp
from stateflow.config.sources import SettingsLayer, resolve
from stateflow.errors import ConfigError
from stateflow.operations import JobCode, RekeyRequest, SavepointDescription, SavepointReport, SavepointRequest
from stateflow.operations.changed_savepoints import ChangeRequest, change_savepoint
from stateflow.operations.written_savepoints import WriteRequest, WrittenSavepoint, write_savepoint
from stateflow.requesters import describe_requester, os_user
from stateflow.types.key_groups import MAX_PARALLELISM_LIMIT

_REQUEST_OPTIONS = [
    click.option(
        "--job",
        type=JOB_FILE,
        metavar="JOB.py",
        help="Job file; needed to publish pending output, to complete a restore, or to fire timers without a run.",
    ),
    click.option(
        "--request-id", default="", metavar="ID", help="Id of the request; the same id returns the same savepoint."
    ),
    *timeout_options("; after that, no run is assumed"),
]


def _format_option(default: str) -> Callable[[F], F]:
    return click.option(
        "--format",
        type=Members(SavepointFormat),
        help="native: as the state backend stored it; canonical: independent of the state backend.  [default: "
        f"{default}]",
    )


def _with_job(request: SavepointRequest, job: Path | None, layers: tuple[SettingsLayer, ...]) -> SavepointRequest:
    """Returns the request with the job file and its settings."""
    code = JobCode(job, layers) if job else None
    return dataclasses.replace(request, settings=resolve(*layers).savepoint, code=code)


@click.group()
def savepoint() -> None:
    """Create, write, list, verify and delete savepoints."""


@savepoint.command()
@ROOT
@click.option("--name", default="", help="Name of the savepoint; by default its origin and the time.")
@click.option(
    "--into",
    default="",
    metavar="URI",
    help="Write the savepoint to a new folder below this one, on any storage, instead of the job root.",
)
@click.option(
    "--from-head", is_flag=True, help="Do not ask the run; use the newest checkpoint whose output is published."
)
@click.option(
    "--origin",
    type=Members(o for o in Origin if o is not Origin.STOP),
    default=Origin.MANUAL.value,
    show_default=True,
    help="Purpose of the savepoint.",
)
@_format_option("native")
@with_options(_REQUEST_OPTIONS)
@with_settings
@with_options(REQUESTER_OPTIONS)
@json_option(SavepointReport)
@with_request(SavepointRequest)
def create(
    request: SavepointRequest,
    job_root: str,
    into: str,
    job: Path | None,
    layers: tuple[SettingsLayer, ...],
    as_json: bool,
) -> None:
    """Create a savepoint at the run's next barrier, or from the newest checkpoint when there is no run.

    A savepoint does not depend on its job root: stateflow run --from-savepoint starts a job from it in a new root.
    """
    request = _with_job(request, job, layers)
    if into:
        made = operations.create_savepoint_into(job_root, request, into)
    else:
        made = operations.create_savepoint(job_root, request)
    if as_json:
        print_json(made)
        return
    how = "by the run"
    if made.made_from != "run":
        how = f"from the newest checkpoint: {operations.why_no_run(job_root, request)}"
    print_text(
        f"savepoint {made.name} of {made.job}: checkpoint {made.checkpoint_id}, {human_bytes(made.size_bytes)}, "
        f"taken {how}\n  {made.path}"
    )


@savepoint.command(name="list")
@OPTIONAL_ROOT
@click.option("--in", "folder", default="", metavar="URI", help="List the savepoints in a folder passed to --into.")
@json_option(list[SavepointReport])
def list_(job_root: str, folder: str, as_json: bool) -> None:
    """List the complete savepoints below a job root or in another folder."""
    if bool(job_root) == bool(folder):
        refuse("savepoint list needs either --job-root or --in", "--in lists what savepoint create --into has written")
    found = operations.list_savepoints_in(folder) if folder else operations.list_all(job_root)
    if job_root and not found:
        operations.require_job(job_root)
    if as_json:
        print_json(found)
    elif found:
        _print_savepoints(found)
    else:
        print_text("no savepoints")


def _print_savepoints(savepoints: list[SavepointReport]) -> None:
    rows = [("name", "checkpoint", "made (UTC)", "origin", "format", "size")]
    rows += [
        (s.name, str(s.checkpoint_id), to_seconds(s.made_at), s.origin, s.format, human_bytes(s.size_bytes))
        for s in savepoints
    ]
    title, *lines = align_columns(rows)
    print_text(title)
    for s, line in zip(savepoints, lines, strict=True):
        # The path has a line of its own, so that it can be copied.
        print_text(f"{line}\n  {s.path}")
        if s.claimed_by:
            print_text(one_line(f"  claimed by {s.claimed_by} at {to_seconds(s.claimed_at)}"))


@savepoint.command()
@OPTIONAL_ROOT
@click.argument("name")
@json_option(SavepointDescription)
def show(job_root: str, name: str, as_json: bool) -> None:
    """Show the contents of a savepoint, given by name or path."""
    _require_root_for_name(job_root, name)
    stored = operations.find(job_root, name)
    document = stored.document
    report = operations.describe_savepoint(stored)
    if as_json:
        print_json(operations.describe_contents(stored))
        return
    document = replace(document, by=one_line(document.by), reason=one_line(document.reason), job=one_line(document.job))
    print_text(f"savepoint {document.name} ({one_line(document.id)})\n  {stored.uri}")
    print_text(
        f"  job {document.job} ({one_line(document.job_uuid)}), checkpoint {document.checkpoint_id}, "
        f"max parallelism {document.max_parallelism}, {document.format.value} format"
    )
    print_text(
        f"  made {in_utc(document.made_at)} by {describe_requester(document.by)}, {document.origin.value}"
        + (f": {document.reason}" if document.reason else "")
    )
    if report.claimed_by:
        print_text(one_line(f"  claimed by {report.claimed_by} at {in_utc(report.claimed_at)}"))
    for operator in document.manifest.operators:
        size = state_bytes([operator])
        states = ", ".join(
            f"{s.name}: {s.kind} of {s.value_type}" for s in [*operator.states, *operator.operator_states]
        )
        parallelism = f"parallelism {operator.parallelism}"
        print_text(one_line(f"  operator {operator.uid}: {human_bytes(size)}, {parallelism}; {states}"))
    for position in document.manifest.sources:
        print_text(one_line(f"  source {position.uid} at {offset_text(position.offset)}"))
    for uid, sink in document.sinks.items():
        version = "version unknown" if sink.known_version is None else f"version {sink.known_version}"
        print_text(one_line(f"  sink {uid}: {version}, checkpoint {sink.checkpoint_id}"))


@savepoint.command()
@OPTIONAL_ROOT
@click.argument("name")
@json_option(operations.Verification)
def verify(job_root: str, name: str, as_json: bool) -> None:
    """Read every file of a savepoint, given by name or path, and compare its size and hash."""
    _require_root_for_name(job_root, name)
    read = operations.verify_savepoint(operations.find(job_root, name))
    if as_json:
        print_json(read)
        return
    print_text(f"{read.label}: {count_of(read.files, 'file')}, {human_bytes(read.size_bytes)}, sizes and hashes match")


@savepoint.command()
@OPTIONAL_ROOT
@click.argument("name")
@click.option("--claimed", is_flag=True, help="Delete also a savepoint that a job has claimed; no job needs its files.")
@with_options(REQUESTER_OPTIONS)
@json_option(SavepointReport)
def dispose(job_root: str, name: str, claimed: bool, by: str, reason: str, as_json: bool) -> None:
    """Delete a savepoint, given by its name, by its folder in the job root, or by its path on any storage.

    A damaged savepoint has no readable name: give its folder or path. Give an unfinished savepoint that --into has
    left on another storage by its path.
    """
    _require_root_for_name(job_root, name)
    requester = os_user(by)
    if "/" in name:
        deleted = operations.dispose_path(name, requester, reason, claimed=claimed)
    else:
        deleted = operations.dispose(job_root, name, requester, reason, claimed=claimed)
    if as_json:
        print_json(deleted)
        return
    print_text(f"deleted savepoint {deleted.name}, {human_bytes(deleted.size_bytes)}")


@savepoint.command()
@OPTIONAL_ROOT
@click.argument("savepoint", metavar="NAME")
@click.option(
    "--max-parallelism",
    required=True,
    type=click.IntRange(1, MAX_PARALLELISM_LIMIT),
    metavar="N",
    help="Number of key groups of the copy.",
)
@click.option("--into", required=True, metavar="URI", help="Folder, on any storage, for the folder of the copy.")
@click.option("--name", default="", help="Name of the copy; by default, that of the savepoint.")
@with_options(REQUESTER_OPTIONS)
@json_option(SavepointReport)
@with_request(RekeyRequest)
def rekey(request: RekeyRequest, job_root: str, as_json: bool) -> None:
    """Copy a savepoint, given by name or path, with another max parallelism.

    A job root keeps its max parallelism: start a new one from the copy with stateflow run --from-savepoint, or restore
    the copy. Both also rekey while they import a savepoint with another max parallelism.
    """
    _require_root_for_name(job_root, request.savepoint)
    made = operations.rekey_savepoint(request, job_root)
    if as_json:
        print_json(made)
    else:
        size = human_bytes(made.size_bytes)
        print_text(f"savepoint {made.name} of {made.job}: {request.max_parallelism} key groups, {size}\n  {made.path}")


def _require_root_for_name(job_root: str, name: str) -> None:
    if not job_root and "/" not in name:
        refuse("a savepoint's name needs a job root", "pass --job-root, or the path of the savepoint")


@savepoint.command()
@ROOT
@click.option("--keep", type=click.IntRange(min=1), metavar="N", help="Keep the N newest periodic savepoints.")
@click.option(
    "--max-age",
    callback=lambda ctx, option, text: to_duration(ctx, option, text or None),
    metavar="DURATION",
    help="Delete older ones; a duration such as 36h or 30d.",
)
@click.option("--dry-run", is_flag=True, help="List what would be deleted, without deleting it.")
@json_option(operations.PruneReport)
def prune(job_root: str, keep: int | None, max_age: timedelta | None, dry_run: bool, as_json: bool) -> None:
    """Delete periodic savepoints beyond --keep or older than --max-age.

    The newest periodic savepoint, and all savepoints of other origins, are kept.
    """
    done = operations.prune_savepoints(job_root, SavepointRule(keep, max_age), dry_run=dry_run, by=os_user())
    if as_json:
        print_json(done)
        return
    names = f"{', '.join(done.deleted)}, {human_bytes(done.freed_bytes)}" if done.deleted else "nothing"
    print_text(f"{'would delete' if dry_run else 'deleted'} {names}; kept: {', '.join(done.kept) or 'none'}")
    for path in done.uncounted:
        print_text(f"  neither deleted nor counted: {path}")


@dataclass(frozen=True)
class StopReport:
    """A run that was requested to stop.

    Attributes:
        savepoint: the savepoint of its last checkpoint; None if none was requested.
    """

    savepoint: SavepointReport | None


@click.command()
@ROOT
@click.option("--savepoint", "with_savepoint", is_flag=True, help="Create a savepoint of the last checkpoint.")
@click.option("--name", default="", help="Name of the savepoint.")
@click.option(
    "--origin",
    type=Members([Origin.STOP, Origin.UPGRADE]),
    default=Origin.STOP.value,
    show_default=True,
    help="Purpose of the savepoint.",
)
@_format_option("the setting savepoint.stop_format")
@click.option(
    "--drain",
    is_flag=True,
    help="Fire every event-time timer before the savepoint; the job cannot continue from it. Without a run, --job is "
    "needed, and a run that reads no input fires them.",
)
@with_options(_REQUEST_OPTIONS)
@with_settings
@with_options(REQUESTER_OPTIONS)
@json_option(StopReport)
@with_request(SavepointRequest)
def stop(
    request: SavepointRequest,
    job_root: str,
    with_savepoint: bool,
    job: Path | None,
    layers: tuple[SettingsLayer, ...],
    as_json: bool,
) -> None:
    """Stop the job's run after its next checkpoint has been committed and published."""
    if not with_savepoint and (request.name or request.drain):
        refuse("the options --name and --drain need --savepoint", "pass --savepoint with them")
    request = _with_job(request, job, layers)
    made = operations.stop(job_root, request, savepoint=with_savepoint, may_run=True)
    if as_json:
        print_json(StopReport(made))
    elif made is None:
        print_text("the run is stopping")
    else:
        outcome = "the run is stopping" if made.made_from == "run" else operations.why_no_run(job_root, request)
        size = human_bytes(made.size_bytes)
        print_text(f"{outcome}; savepoint {made.name}: checkpoint {made.checkpoint_id}, {size}\n  {made.path}")


def _to_time(ctx: click.Context, option: click.Parameter, text: str | None) -> datetime | None:
    try:
        return None if text is None else parse_timestamp(text)
    except ValueError as e:
        raise ConfigError(
            "the value of --at is not in ISO 8601 format", hint="for example 2026-01-31T03:00", given=text
        ) from e


_OUTPUT = click.option(
    "--output",
    required=True,
    metavar="URI",
    help="Folder of the new savepoint, on any storage; repeat a call that was killed.",
)
_NAME = click.option("--name", default="", help="Name of the savepoint; by default, that of its folder.")
_REASON = click.option("--reason", default="", help="Why it is written, for display.")


@click.command()
@JOB_OF_REQUEST
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
    callback=_to_time,
    metavar="TIME",
    help="Time of the savepoint in ISO 8601, in UTC if it has no zone. A time to live begins then for rows "
    "without a column written_at. Default: that of a savepoint which is in the folder already, or now.",
)
@_NAME
@_REASON
@with_settings
@json_option(WrittenSavepoint)
@with_request(WriteRequest)
def write(request: WriteRequest, as_json: bool) -> None:
    """Write a savepoint from files, from which stateflow run --from-savepoint starts the job.

    The job file declares the operators with their keys, the states and the sources. Starts Spark only for state of a
    query of Spark, with the settings of the job, and processes no row. A row that cannot be stored is an error that
    names its key. States whose rows have fields of their values as columns need no column value.
    """
    if not request.states and not request.sources:
        refuse("a savepoint needs state or a position", "pass --state OPERATOR.STATE=FILES, or --source UID=POSITION")
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
@with_settings
@json_option(WrittenSavepoint)
@with_request(ChangeRequest)
def change(request: ChangeRequest, as_json: bool) -> None:
    """Write a copy of a savepoint, given by name or path, without some operators or with other rows.

    The savepoint stays as it is, and so does everything that no option names.
    """
    if not request.remove and not request.transforms:
        refuse("a copy needs a change", "pass --remove UID, or --transform OPERATOR.STATE=FUNCTION")
    _print(change_savepoint(request), as_json)


def _print(made: WrittenSavepoint, as_json: bool) -> None:
    if as_json:
        print_json(made)
        return
    groups = count_of(made.max_parallelism, "key group")
    print_text(one_line(f"savepoint {made.name} of {made.job}: {groups}, {human_bytes(made.size_bytes)}"))
    print_text(f"  {made.path}")
    for state in made.states:
        origin = state.imported_from
        if state.rows is not None:
            origin = f"{count_of(state.rows, 'row')} from {count_of(state.files, 'file')}"
        print_text(one_line(f"  state {state.operator}.{state.state}: {origin}"))
    if not made.states:
        print_text(one_line(f"  operators: {', '.join(made.operators) or 'none'}"))
    for uid, offset in made.offsets.items():
        print_text(one_line(f"  source {uid} at {offset_text(offset)}"))
    for uid in made.without_position:
        print_text(one_line(f"  source {uid} begins at its start"))
