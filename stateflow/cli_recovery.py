"""Commands about going back in time: restore, fork, history."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table

from stateflow import ops, recovery
from stateflow.checkpoint.documents import SinkMode
from stateflow.checkpoint.proposal import Proposal, cautions, replayed
from stateflow.decoders import json_decoder
from stateflow.errors import ConfigError
from stateflow.recovery import JobCode
from stateflow.runtime.proposing import RestoreOptions
from stateflow.runtime.restoring import RestoreOrder
from stateflow.terminal import (
    JOB,
    JSON,
    ROOT,
    SETTINGS,
    WHO,
    human_bytes,
    in_utc,
    layers,
    or_fail,
    refuse,
    short_offset,
    user,
    with_options,
)
from stateflow.timeline import draw_timeline


@click.command()
@JOB
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
    "--drop", multiple=True, metavar="UID", help="Drop the state of an operator that is no longer in the job."
)
@click.option("--foreign", is_flag=True, help="Take another job's savepoint; tables keep their content.")
@click.option(
    "--leave",
    multiple=True,
    metavar="UID",
    help="Keep the table of a sink that is no longer in the job as it is.",
)
@click.option(
    "--request-id",
    default="",
    metavar="ID",
    help="A repeated restore with this id does nothing; by default, each plan file has its own id.",
)
@with_options(SETTINGS)
@with_options(WHO)
@JSON
def restore(job: Path, job_root: str, target: str | None, plan_file: Path | None, **options: Any) -> None:
    """Restore a job to a point in time: state, source positions and tables together.

    First --plan, which changes nothing; then --execute with that plan. The next run continues from there.
    """
    code = JobCode(job, layers(options))
    if (target is None) == (plan_file is None):
        refuse("give either --plan TARGET or --execute FILE", "stateflow restore --help")
    if plan_file is not None:
        or_fail(lambda: _refuse_with_execute(options))
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
    else:
        click.echo("\nNothing has changed. To carry it out, write the plan with --out FILE, then execute it with "
                   "--execute FILE")  # fmt: skip


def _command(job: Path, job_root: str, options: dict[str, Any]) -> str:
    """The shell command that executes the plan, with the settings it was made with: others are refused."""
    words = ["stateflow", "restore", str(job), "--job-root", job_root]
    words += ["--config", str(options["config"])] if options["config"] else []
    for assignment in options["assignments"]:
        words += ["--set", assignment]
    words += ["--by", options["by"]] if options["by"] else []
    words += ["--reason", options["reason"]] if options["reason"] else []
    return shlex.join([*words, "--execute", str(options["out"])])


def _refuse_with_execute(options: dict[str, Any]) -> None:
    given = [f"--{name}" for name in ("sinks", "drop", "foreign", "leave", "out") if options[name]]
    if given:
        raise ConfigError("a plan is executed exactly as it was written", hint="omit these options, or write a new "
                          "plan with them", options=given)  # fmt: skip


def _asked_reason() -> str:
    """The reason, prompted for on a terminal; empty in a script."""
    if not sys.stdin.isatty():
        return ""
    reason: str = click.prompt("why? It is kept in the job's history", err=True)
    return reason


def _execute(job_root: str, code: JobCode, plan_file: Path, options: dict[str, Any]) -> None:
    plan = or_fail(lambda: _read_plan(plan_file))
    # One plan is one request, unless the caller says otherwise: executing the file twice goes back once.
    request = options["request_id"] or f"restore-{plan.digest}"
    order = RestoreOrder(request, options["by"] or user(), options["reason"] or _asked_reason())
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
@with_options(WHO)
@JSON
def fork(job_root: str, target: str, as_json: bool, **options: Any) -> None:
    """Make a new job that begins with the state and positions of this one's checkpoint or savepoint."""
    ask = recovery.ForkAsk(
        target, options["into"], options["shadow"], options["by"] or user(), options["reason"],
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
        f"{plan.job}: from checkpoint {plan.checkpoint_id} back to {plan.label}, of {in_utc(plan.target_at)}"
    )
    if plan.job_file:
        click.echo(f"job file: {plan.job_file}, of {in_utc(plan.job_file_changed_at)}")
    state = Table("state of", "", "size now", "size then", "parallelism", box=None, pad_edge=False)
    for s in plan.states:
        change = f"{s.from_parallelism or '-'} → {s.to_parallelism or '-'}"
        same = s.from_parallelism == s.to_parallelism
        now = "unknown" if s.bytes_now is None else human_bytes(s.bytes_now)
        state.add_row(
            s.uid, s.action.value, now, human_bytes(s.bytes), str(s.to_parallelism) if same else change
        )
    source = Table("source", "now", "then", "files since", "still there", box=None, pad_edge=False)
    for c in plan.sources:
        held = {True: "yes", False: "NO", None: "cannot tell"}[c.held]
        files = "-" if c.files is None else f"{c.files:,}"
        source.add_row(c.uid, short_offset(c.now), short_offset(c.then), files, held)
    sink = Table("table of", "now", "then", "rows since", "rows restored", box=None, pad_edge=False)
    for t in plan.sinks:
        then = (
            "kept" if t.mode is SinkMode.KEEP else f"version {t.then}" if t.then is not None else "as it is"
        )
        sink.add_row(t.uid, f"version {t.now}", then, _count(t.rows_removed), _count(t.rows_returned))
    for table in (state, source, sink):
        click.echo()
        console.print(table)
    for t in plan.sinks:
        if t.table:
            click.echo(f"  {t.uid}: {t.table}")
    click.echo(f"\n{replayed(plan)}")
    for caution in cautions(plan):
        click.echo(f"  WARNING{f' {caution.about}' if caution.about else ''}: {caution.says}")


def _read_plan(path: Path) -> Proposal:
    try:
        return json_decoder(Proposal).decode(path.read_bytes())
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise ConfigError("the file is not a restore plan", hint="write one with stateflow restore --plan TARGET --out "
                          "FILE", path=str(path), reason=str(e)) from e  # fmt: skip


def _count(rows: int | None) -> str:
    return "unknown" if rows is None else f"{rows:,}"
