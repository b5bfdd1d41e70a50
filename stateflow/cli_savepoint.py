"""Commands about savepoints, and the one that stops a run."""

from __future__ import annotations

import dataclasses
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import msgspec

from stateflow import ops, recovery
from stateflow.checkpoint.documents import Origin
from stateflow.checkpoint.files import state_bytes
from stateflow.checkpoint.retention import SavepointRule
from stateflow.config import parse_duration
from stateflow.errors import ConfigError
from stateflow.recovery import JobCode, SavepointAsk
from stateflow.terminal import (
    JSON,
    ROOT,
    ROOT_OF_NAME,
    SECONDS,
    SETTINGS,
    WHO,
    aligned,
    human_bytes,
    layers,
    or_fail,
    refuse,
    user,
    with_options,
)

_ASK = [
    click.option("--job", "job", type=click.Path(path_type=Path), metavar="JOB.py",
                 help="The job file; needed when output is not published, a restore is not completed, or timers are "
                 "to be fired without a run."),
    click.option("--request-id", default="", metavar="ID", help="Asking again with it gives the same savepoint."),
    click.option("--timeout", type=SECONDS, default=600, show_default=True, metavar="SECONDS",
                 help="How long to wait for the run's next barrier."),
    click.option("--patience", type=SECONDS, default=5, show_default=True, metavar="SECONDS",
                 help="How long to wait for a sign of a run; without one it goes on as if there were none."),
]  # fmt: skip


@click.group()
def savepoint() -> None:
    """Take, look at, check and delete savepoints."""


@savepoint.command()
@ROOT
@click.option("--name", default="", help="By default its origin and the time.")
@click.option("--into", default="", metavar="URI",
              help="Write it to a folder of its own there, on any storage, and not below the job root.")  # fmt: skip
@click.option("--from-head", is_flag=True,
              help="Do not ask the run: take the newest checkpoint whose output is published.")  # fmt: skip
@click.option("--origin", type=click.Choice([o.value for o in Origin if o is not Origin.STOP]),
              default=Origin.MANUAL.value, show_default=True, help="Why it is taken.")  # fmt: skip
@with_options(_ASK)
@with_options(SETTINGS)
@with_options(WHO)
@JSON
def create(job_root: str, as_json: bool, **options: Any) -> None:
    """Take a savepoint: at the run's next barrier, or from the newest checkpoint when there is no run.

    A savepoint needs nothing of the job root: stateflow run --from-savepoint starts a job from it in a new one.
    """
    ask, into = _ask(options), options["into"]
    made = or_fail(
        lambda: (
            recovery.create_savepoint_into(job_root, ask, into)
            if into
            else recovery.create_savepoint(job_root, ask)
        )
    )
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(made)))
        return
    how = "by the run"
    if made.taken_by != "run":
        how = f"from the newest checkpoint: {or_fail(lambda: recovery.why_no_run(job_root, ask))}"
    click.echo(f"savepoint {made.name} of {made.job}: checkpoint {made.checkpoint_id}, {human_bytes(made.bytes)}, "
               f"taken {how}\n  {made.path}")  # fmt: skip


@savepoint.command(name="list")
@ROOT_OF_NAME
@click.option(
    "--in", "folder", default="", metavar="URI", help="List those in a folder that --into was given."
)
@JSON
def list_(job_root: str, folder: str, as_json: bool) -> None:
    """List the complete savepoints below a job root, or in another folder."""
    if bool(job_root) == bool(folder):
        refuse("say either --job-root or --in", "--in lists what savepoint create --into wrote")
    found = or_fail(lambda: recovery.list_savepoints_in(folder) if folder else recovery.list_all(job_root))
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(s) for s in found]))
        return
    if not found:
        if job_root:
            or_fail(lambda: ops.require_job(job_root))
        click.echo("no savepoints")
        return
    rows = [("name", "checkpoint", "made (UTC)", "origin", "size")]
    for s in found:
        when = s.made_at[:19].replace("T", " ")
        rows.append((s.name, str(s.checkpoint_id), when, s.origin, human_bytes(s.bytes)))
    title, *lines = aligned(rows)
    click.echo(title)
    for s, line in zip(found, lines, strict=True):
        # On a line of its own: a path is there to be copied.
        click.echo(f"{line}\n  {s.path}")


@savepoint.command()
@ROOT_OF_NAME
@click.argument("name")
@JSON
def show(job_root: str, name: str, as_json: bool) -> None:
    """Show what a savepoint, by name or path, holds."""
    _check_place(job_root, name)
    stored = or_fail(lambda: recovery.find(job_root, name))
    document = stored.document
    if as_json:
        click.echo(msgspec.json.encode(document).decode())
        return
    click.echo(f"savepoint {document.name} ({document.id})\n  {stored.uri}")
    click.echo(f"  job {document.job} ({document.job_uuid}), checkpoint {document.checkpoint_id}, "
               f"max parallelism {document.max_parallelism}")  # fmt: skip
    click.echo(f"  made {document.made_at} by {document.by}, {document.origin.value}"
               + (f": {document.reason}" if document.reason else ""))  # fmt: skip
    for operator in document.manifest.operators:
        size = state_bytes([operator])
        states = ", ".join(
            f"{s.name}: {s.kind} of {s.value_type}" for s in [*operator.states, *operator.operator_states]
        )
        click.echo(
            f"  state of {operator.uid}: {human_bytes(size)}, parallelism {operator.parallelism}; {states}"
        )
    for position in document.manifest.sources:
        click.echo(f"  source {position.uid} at {position.offset}")
    for uid, standing in document.sinks.items():
        version = f"version {standing.version}" if standing.version >= 0 else "version as of its token"
        click.echo(f"  sink {uid}: {version}, checkpoint {standing.checkpoint_id}")


@savepoint.command()
@ROOT_OF_NAME
@click.argument("name")
def verify(job_root: str, name: str) -> None:
    """Read every file of a savepoint, by name or path, and compare size and hash."""
    _check_place(job_root, name)
    stored = or_fail(lambda: recovery.find(job_root, name))
    read = or_fail(lambda: ops.verify_savepoint(stored))
    click.echo(f"{read.what}: {read.files} files, {human_bytes(read.bytes)}, all as recorded")


@savepoint.command()
@ROOT_OF_NAME
@click.argument("name")
@with_options(WHO)
def dispose(job_root: str, name: str, by: str, reason: str) -> None:
    """Delete a savepoint: by its name or folder below the job root, or by its path, wherever it is.

    One that is damaged is deleted by its folder or path, one that --into has not completed by its path.
    """
    _check_place(job_root, name)
    by = by or user()
    is_path = "/" in name
    gone = or_fail(
        lambda: (
            recovery.dispose_path(name, by, reason)
            if is_path
            else recovery.dispose(job_root, name, by, reason)
        )
    )
    click.echo(f"deleted savepoint {gone.name}, {human_bytes(gone.bytes)}")


def _check_place(job_root: str, name: str) -> None:
    if not job_root and "/" not in name:
        refuse(
            "a savepoint's name says nothing without a job root", "give --job-root, or the savepoint's path"
        )


@savepoint.command()
@ROOT
@click.option("--keep", type=click.IntRange(min=1), metavar="N", help="Keep the N newest periodic ones.")
@click.option("--max-age", default="", metavar="DURATION", help="Delete older ones; like 36h or 30d.")
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@JSON
def prune(job_root: str, keep: int | None, max_age: str, dry_run: bool, as_json: bool) -> None:
    """Delete periodic savepoints that are too many or too old; never the newest of them, and no others."""
    rule = or_fail(lambda: SavepointRule(keep, _age(max_age)))
    done = or_fail(lambda: ops.prune_savepoints(job_root, rule, dry_run=dry_run, by=user()))
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(done)))
        return
    names = ", ".join(done.deleted) or "nothing"
    click.echo(f"{'would delete' if dry_run else 'deleted'} {names}, {human_bytes(done.bytes_freed)}; "
               f"kept: {', '.join(done.kept) or 'none'}")  # fmt: skip


@click.command()
@ROOT
@click.option("--savepoint", "with_savepoint", is_flag=True, help="Make a savepoint of the last checkpoint.")
@click.option("--name", default="", help="Of the savepoint.")
@click.option("--origin", type=click.Choice([Origin.STOP.value, Origin.UPGRADE.value]), default=Origin.STOP.value,
              show_default=True, help="Why the savepoint is taken.")  # fmt: skip
@click.option("--drain", is_flag=True, help="Fire every event-time timer before the savepoint: the job does not go on "
              "from here. Without a run it needs --job, and fires them in a run that reads no input.")  # fmt: skip
@with_options(_ASK)
@with_options(SETTINGS)
@with_options(WHO)
@JSON
def stop(job_root: str, with_savepoint: bool, as_json: bool, **options: Any) -> None:
    """End the job's run after its next checkpoint, which is committed and published."""
    if not with_savepoint and (options["name"] or options["drain"]):
        refuse("--name and --drain are about a savepoint", "say --savepoint as well")
    options |= {"from_head": False}
    ask = _ask(options)
    made = or_fail(lambda: recovery.stop(job_root, ask, savepoint=with_savepoint, may_run=True))
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(made) if made else {}))
    elif made is None:
        click.echo("the run ends")
    else:
        ran = made.taken_by == "run"
        ended = "the run ends" if ran else or_fail(lambda: recovery.why_no_run(job_root, ask))
        click.echo(f"{ended}; savepoint {made.name}: checkpoint {made.checkpoint_id}, {human_bytes(made.bytes)}"
                   f"\n  {made.path}")  # fmt: skip


def _ask(options: dict[str, Any]) -> SavepointAsk:
    code = JobCode(options["job"], layers(options)) if options["job"] else None
    return SavepointAsk(
        name=options["name"], origin=Origin(options["origin"]), by=options["by"] or user(), reason=options["reason"],
        request=options["request_id"], from_head=options["from_head"], code=code, drain=options.get("drain", False),
        timeout=timedelta(seconds=options["timeout"]), patience=timedelta(seconds=options["patience"]),
    )  # fmt: skip


def _age(text: str) -> timedelta | None:
    try:
        return parse_duration(text) if text else None
    except (ValueError, OverflowError) as e:
        raise ConfigError(
            "the age is no duration", hint="--max-age takes one like 36h or 30d", given=text
        ) from e
