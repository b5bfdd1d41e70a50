"""Commands about points in time: savepoints, stop, restore, fork, history."""

from __future__ import annotations

import dataclasses
import getpass
import json
import math
import os
import re
import shlex
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from rich.console import Console
from rich.table import Table

from stateflow import ops, recovery
from stateflow.checkpoint.documents import Origin, SinkMode
from stateflow.checkpoint.files import state_bytes
from stateflow.checkpoint.proposal import Proposal, StateAction
from stateflow.checkpoint.retention import SavepointRule
from stateflow.config import parse_assignments, parse_duration, read_toml
from stateflow.errors import ConfigError
from stateflow.recovery import JobCode, SavepointAsk
from stateflow.runtime.proposing import RestoreOptions
from stateflow.runtime.restoring import RestoreOrder
from stateflow.terminal import JSON, ROOT, aligned, human_bytes, or_fail
from stateflow.timeline import draw_timeline

F = TypeVar("F", bound=Callable[..., Any])

_JOB = click.argument("job", type=click.Path(path_type=Path), metavar="JOB.py")
_LONGEST = 10 * 365 * 24 * 3600
_WHO = [
    click.option("--by", default="", metavar="NAME", help="Who asks; by default the user and host."),
    click.option("--reason", default="", help="Why; kept in the job's history."),
]
_SETTINGS = [
    click.option(
        "--config", type=click.Path(path_type=Path), help="Settings of the job in TOML, as for run."
    ),
    click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="One setting, as for run."),
]


class _Seconds(click.FloatRange):
    """A duration that can be waited for: neither ``inf`` nor ``nan``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        return self.fail("not a number", param, ctx) if math.isnan(seconds) else seconds


_SECONDS = _Seconds(min=0, max=_LONGEST)
_ASK = [
    click.option("--job", "job", type=click.Path(path_type=Path), metavar="JOB.py",
                 help="The job file; needed when the last run died before it published its output."),
    click.option("--request-id", default="", metavar="ID", help="Asking again with it gives the same savepoint."),
    click.option("--timeout", type=_SECONDS, default=600, show_default=True, metavar="SECONDS",
                 help="How long to wait for the run's next barrier."),
    click.option("--patience", type=_SECONDS, default=5, show_default=True, metavar="SECONDS",
                 help="How long a run may give no sign before it is taken for dead."),
]  # fmt: skip


def _with(options: list[Callable[[F], F]]) -> Callable[[F], F]:
    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


@click.group()
def savepoint() -> None:
    """Take, look at, check and delete savepoints."""


@savepoint.command()
@ROOT
@click.option("--name", default="", help="By default its origin and the time.")
@click.option("--from-head", is_flag=True,
              help="Do not ask the run: take the newest checkpoint whose output is published.")  # fmt: skip
@click.option("--origin", type=click.Choice([o.value for o in Origin if o is not Origin.STOP]),
              default=Origin.MANUAL.value, show_default=True, help="Why it is taken.")  # fmt: skip
@_with(_ASK)
@_with(_SETTINGS)
@_with(_WHO)
@JSON
def create(job_root: str, as_json: bool, **options: Any) -> None:
    """Take a savepoint: at the run's next barrier, or from the newest checkpoint when there is no run."""
    made = or_fail(lambda: recovery.create_savepoint(job_root, _ask(options)))
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(made)))
        return
    how = "by the run" if made.taken_by == "run" else "from the newest checkpoint, without a run"
    click.echo(f"savepoint {made.name} of {made.job}: checkpoint {made.checkpoint_id}, {human_bytes(made.bytes)}, "
               f"taken {how}\n  {made.path}")  # fmt: skip


@savepoint.command(name="list")
@ROOT
@JSON
def list_(job_root: str, as_json: bool) -> None:
    """List the complete savepoints below a job root."""
    found = or_fail(lambda: recovery.list_all(job_root))
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(s) for s in found]))
        return
    if not found:
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
@ROOT
@click.argument("name")
@JSON
def show(job_root: str, name: str, as_json: bool) -> None:
    """Show what a savepoint, by name or path, holds."""
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
@ROOT
@click.argument("name")
def verify(job_root: str, name: str) -> None:
    """Read every file of a savepoint, by name or path, and compare size and hash."""
    stored = or_fail(lambda: recovery.find(job_root, name))
    read = or_fail(lambda: ops.verify_savepoint(stored))
    click.echo(f"{read.what}: {read.files} files, {human_bytes(read.bytes)}, all as recorded")


@savepoint.command()
@ROOT
@click.argument("name")
@_with(_WHO)
def dispose(job_root: str, name: str, by: str, reason: str) -> None:
    """Delete a savepoint below the job root, by its name or folder; a damaged one by its folder."""
    gone = or_fail(lambda: recovery.dispose(job_root, name, by or _user(), reason))
    click.echo(f"deleted savepoint {gone.name}, {human_bytes(gone.bytes)}")


@savepoint.command()
@ROOT
@click.option("--keep", type=click.IntRange(min=1), metavar="N", help="Keep the N newest periodic ones.")
@click.option("--max-age", default="", metavar="DURATION", help="Delete older ones; like 36h or 30d.")
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@JSON
def prune(job_root: str, keep: int | None, max_age: str, dry_run: bool, as_json: bool) -> None:
    """Delete periodic savepoints that are too many or too old; never the newest of them, and no others."""
    rule = or_fail(lambda: SavepointRule(keep, _age(max_age)))
    done = or_fail(lambda: ops.prune_savepoints(job_root, rule, dry_run=dry_run, by=_user()))
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
@click.option("--drain", is_flag=True, help="The job will not go on from here: fire every event-time timer before "
              "the savepoint.")  # fmt: skip
@_with(_ASK)
@_with(_SETTINGS)
@_with(_WHO)
@JSON
def stop(job_root: str, with_savepoint: bool, as_json: bool, **options: Any) -> None:
    """End the job's run after its next checkpoint, which is committed and published."""
    if not with_savepoint and (options["name"] or options["drain"]):
        or_fail(lambda: _refuse("--name and --drain are about a savepoint", "say --savepoint as well"))
    options |= {"from_head": False}
    made = or_fail(lambda: recovery.stop(job_root, _ask(options), savepoint=with_savepoint))
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(made) if made else {}))
    elif made is None:
        click.echo("the run ends")
    else:
        ended = "the run ends" if made.taken_by == "run" else "no run was there"
        click.echo(f"{ended}; savepoint {made.name}: checkpoint {made.checkpoint_id}, {human_bytes(made.bytes)}"
                   f"\n  {made.path}")  # fmt: skip


@click.command()
@_JOB
@ROOT
@click.option("--plan", "target", metavar="TARGET",
              help="latest, a checkpoint's id, a savepoint's name or path, "
                   "before:TIME or before:SOURCE=OFFSET.")  # fmt: skip
@click.option("--execute", "plan_file", type=click.Path(path_type=Path, exists=True, dir_okay=False),
              metavar="FILE", help="Carry out a plan that --out wrote, exactly.")  # fmt: skip
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the plan there, for --execute."
)
@click.option("--sinks", type=click.Choice([m.value for m in SinkMode]), show_default=SinkMode.RESTORE.value,
              help="Whether tables go back as well, or keep their content.")  # fmt: skip
@click.option(
    "--drop", multiple=True, metavar="UID", help="Drop the state of an operator that the job has not."
)
@click.option("--foreign", is_flag=True, help="Take another job's savepoint; tables keep their content.")
@click.option(
    "--leave", multiple=True, metavar="UID", help="Leave the table of a sink that the job has not as it is."
)
@click.option(
    "--request-id",
    default="",
    metavar="ID",
    help="The same one never goes back twice; by default, one plan is one.",
)
@_with(_SETTINGS)
@_with(_WHO)
@JSON
def restore(job: Path, job_root: str, target: str | None, plan_file: Path | None, **options: Any) -> None:
    """Go back to a point in time: state, source positions and tables together.

    First --plan, which changes nothing; then --execute with that plan. The next run goes on from there.
    """
    code = JobCode(job, _layers(options))
    if (target is None) == (plan_file is None):
        or_fail(lambda: _refuse("say either --plan TARGET or --execute FILE"))
    if plan_file is not None:
        or_fail(lambda: _refuse_beside_execute(options))
        _execute(job_root, code, plan_file, options)
        return
    choice = RestoreOptions(SinkMode(options["sinks"] or SinkMode.RESTORE), frozenset(options["drop"]),
                            options["foreign"], frozenset(options["leave"]))  # fmt: skip
    plan = or_fail(lambda: recovery.plan_restore(job_root, code, str(target), choice))
    data = msgspec.json.format(msgspec.json.encode(plan), indent=2)
    if options["out"]:
        options["out"].write_bytes(data + b"\n")
    if options["as_json"]:
        click.echo(data.decode())
        return
    print_plan(plan)
    if options["out"]:
        click.echo(f"\nNothing has changed. To do exactly this:\n  {_command(job, job_root, options)}")


def _command(job: Path, job_root: str, options: dict[str, Any]) -> str:
    """What carries the plan out, for a shell: with the same settings, or it would be refused."""
    words = ["stateflow", "restore", str(job), "--job-root", job_root]
    words += ["--config", str(options["config"])] if options["config"] else []
    for assignment in options["assignments"]:
        words += ["--set", assignment]
    words += ["--by", options["by"]] if options["by"] else []
    return shlex.join([*words, "--execute", str(options["out"]), "--reason", options["reason"] or "…"])


def _refuse_beside_execute(options: dict[str, Any]) -> None:
    given = [f"--{name}" for name in ("sinks", "drop", "foreign", "leave", "out") if options[name]]
    if given:
        raise ConfigError("the plan says all of that already, and is carried out exactly", hint="leave them out, or "
                          "plan again with them", options=given)  # fmt: skip


def _execute(job_root: str, code: JobCode, plan_file: Path, options: dict[str, Any]) -> None:
    plan = or_fail(lambda: _read_plan(plan_file))
    # One plan is one request, unless the caller says otherwise: executing the file twice goes back once.
    request = options["request_id"] or f"restore-{plan.digest}"
    order = RestoreOrder(request, options["by"] or _user(), options["reason"])
    done = or_fail(lambda: recovery.restore(job_root, code, plan, order))
    if options["as_json"]:
        click.echo(json.dumps(dataclasses.asdict(done)))
        return
    if done.repeated:
        click.echo(f"{done.job}: going back to {done.label} was carried out before, and nothing was done now\n"
                   f"  the job stands at {done.stands_at}, generation {done.generation}")  # fmt: skip
        return
    tables = ", ".join(f"{uid} at version {v}" for uid, v in done.tables.items()) or "none"
    click.echo(f"{done.job} is back at {done.label}; tables: {tables}\n  the next run goes on from there")


@click.command()
@ROOT
@click.argument("target")
@click.option("--into", required=True, metavar="URI", help="The new job's root: empty, or not there yet.")
@click.option("--shadow", is_flag=True, help="Every run of the new job publishes to tables named …_shadow.")
@click.option(
    "--foreign", is_flag=True, help="Take another job's savepoint: the new job is a fork of that one."
)
@_with(_WHO)
@JSON
def fork(job_root: str, target: str, as_json: bool, **options: Any) -> None:
    """Make a new job that begins with the state and positions of this one's checkpoint or savepoint."""
    ask = recovery.ForkAsk(
        target, options["into"], options["shadow"], options["by"] or _user(), options["reason"],
        options["foreign"],
    )  # fmt: skip
    made = or_fail(lambda: recovery.fork(job_root, ask))
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(made)))
        return
    click.echo(f"{made.root} is a fork of {made.job} at {made.label}, {human_bytes(made.bytes)}")
    if made.shadow:
        click.echo("  its runs publish to tables whose names end in _shadow")
    else:
        click.echo(
            "  give its runs tables of their own: with the same ones, both jobs' rows would be in them"
        )


@click.command()
@ROOT
@click.option("--newest", type=click.IntRange(min=1), default=50, show_default=True, help="How many records.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object per record instead, for programs."
)
def history(job_root: str, newest: int, as_json: bool) -> None:
    """Show what happened to a job: checkpoints, savepoints, restores, forks, as a timeline with branches."""
    records = or_fail(lambda: ops.timeline(job_root, newest))
    if as_json:
        for record in records:
            click.echo(msgspec.json.encode(record).decode())
        return
    width = Console().width if sys.stdout.isatty() else None
    for line in draw_timeline(records, width):
        click.echo(line)


def print_plan(plan: Proposal) -> None:
    """A restore's plan as tables."""
    console = Console()
    click.echo(
        f"{plan.job}: from checkpoint {plan.checkpoint_id} back to {plan.label}, of {plan.target_at[:19]}"
    )
    state = Table("state of", "", "size", "parallelism", box=None, pad_edge=False)
    for s in plan.states:
        change = f"{s.from_parallelism or '-'} → {s.to_parallelism or '-'}"
        same = s.from_parallelism == s.to_parallelism
        state.add_row(s.uid, s.action.value, human_bytes(s.bytes), str(s.to_parallelism) if same else change)
    source = Table("source", "now", "then", "still there", box=None, pad_edge=False)
    for c in plan.sources:
        held = {True: "yes", False: "NO", None: "cannot tell"}[c.held]
        source.add_row(c.uid, _short(c.now), _short(c.then), held)
    sink = Table("table of", "now", "then", "rows that go", "rows that come back", box=None, pad_edge=False)
    for t in plan.sinks:
        then = (
            "kept" if t.mode is SinkMode.KEEP else f"version {t.then}" if t.then is not None else "as it is"
        )
        sink.add_row(t.uid, f"version {t.now}", then, _count(t.rows_removed), _count(t.rows_returned))
    for table in (state, source, sink):
        click.echo()
        console.print(table)
    for t in plan.sinks:
        for other in t.others:
            click.echo(f"  WARNING {t.uid}: would be undone as well: {other}")
    for left in plan.left:
        click.echo(f"  WARNING {left.uid}: the job has no such sink, so its table keeps what came since; a version "
                   "that has it would write those rows a second time")  # fmt: skip
    if any(s.action is StateAction.DROPPED for s in plan.states):
        click.echo("  WARNING: dropped state is gone for the job; the target still has it")
    if plan.dropped_checkpoints:
        undone = ", ".join(map(str, plan.dropped_checkpoints))
        click.echo(f"  checkpoints that cannot be gone back to any more: {undone}")


def _ask(options: dict[str, Any]) -> SavepointAsk:
    code = JobCode(options["job"], _layers(options)) if options["job"] else None
    return SavepointAsk(
        name=options["name"], origin=Origin(options["origin"]), by=options["by"] or _user(), reason=options["reason"],
        request=options["request_id"], from_head=options["from_head"], code=code, drain=options.get("drain", False),
        timeout=timedelta(seconds=options["timeout"]), patience=timedelta(seconds=options["patience"]),
    )  # fmt: skip


def _layers(options: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    config = options["config"]
    return ((or_fail(lambda: read_toml(config)),) if config else ()) + (
        or_fail(lambda: parse_assignments(options["assignments"])),
    )


def _read_plan(path: Path) -> Proposal:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Proposal)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise ConfigError("the file is not a restore's plan", hint="stateflow restore --plan TARGET --out FILE writes "
                          "one", path=str(path), reason=str(e)) from e  # fmt: skip


def _age(text: str) -> timedelta | None:
    try:
        return parse_duration(text) if text else None
    except (ValueError, OverflowError) as e:
        raise ConfigError(
            "the age is no duration", hint="--max-age takes one like 36h or 30d", given=text
        ) from e


def _refuse(what: str, hint: str = "stateflow restore --help") -> None:
    raise ConfigError(what, hint=hint)


def _short(offset: str) -> str:
    return re.sub(r'[{}"\s]', "", offset)[:60] or "-"


def _count(rows: int | None) -> str:
    return "unknown" if rows is None else f"{rows:,}"


def _user() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        name = str(os.getuid())
    return f"{name}@{os.uname().nodename}"
