"""Commands that restore a job and fork it."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table

from stateflow import operations
from stateflow.checkpoint.log.documents import SinkMode
from stateflow.checkpoint.restore.plan_document import (
    GraphChanges,
    RestorePlan,
    cautions,
    describe_graph,
    describe_replay,
    describe_target,
    rows_removed_text,
)
from stateflow.checkpoint.savepoints.claim_slots import ClaimMode
from stateflow.cli.common import (
    CLAIM_MODE,
    DROP,
    JOB,
    REQUESTER_OPTIONS,
    ROOT,
    SETTINGS_OPTIONS,
    add_row,
    graph_options,
    human_bytes,
    in_utc,
    json_option,
    print_json,
    print_text,
    refuse,
    settings_layers,
    short_offset,
    with_options,
    with_request,
)
from stateflow.errors import ConfigError
from stateflow.operations import JobCode
from stateflow.private_files import open_private
from stateflow.requesters import os_user
from stateflow.runtime.restore.plan_execution import RestoreRequest
from stateflow.runtime.restore.planner import RestoreOptions
from stateflow.types.decoders import decode_json


@dataclass(frozen=True)
class _Invocation:
    """Arguments of `restore` that planning and execution share."""

    job: Path
    job_root: str
    config: Path | None
    assignments: tuple[str, ...]
    by: str
    reason: str

    @property
    def code(self) -> JobCode:
        return JobCode(self.job, settings_layers(self.config, self.assignments))

    def execute_command(self, plan_file: Path) -> str:
        """Returns the shell command that executes a plan with the same settings; it is refused with others."""
        words = ["stateflow", "restore", str(self.job), "--job-root", self.job_root]
        words += ["--config", str(self.config)] if self.config else []
        for assignment in self.assignments:
            words += ["--set", assignment]
        words += ["--by", self.by] if self.by else []
        words += ["--reason", self.reason] if self.reason else []
        return shlex.join([*words, "--execute", str(plan_file)])


RestoreOutput = RestorePlan | operations.RestoreReport
"""With ``--plan`` and with ``--execute``."""


@click.command()
@JOB
@ROOT
@click.option(
    "--plan",
    "target",
    metavar="TARGET",
    help="latest, a checkpoint's id, a savepoint's name or path, before:TIME (in UTC, or with an offset) or "
    "before:SOURCE=OFFSET.",
)
@click.option(
    "--execute",
    "plan_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Execute a plan that --out has written, exactly as it is.",
)
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the plan to this file, for --execute."
)
@click.option(
    "--sinks",
    type=click.Choice([m.value for m in SinkMode]),
    help="Restore the tables of the sinks as well (the default), or keep their content.",
)
@DROP
@click.option("--from-other-job", is_flag=True, help="Accept another job's savepoint; tables keep their content.")
@click.option(
    "--keep-table",
    "keep_tables",
    multiple=True,
    metavar="UID",
    help="Keep the table of this sink as it is, while others are restored; repeatable. A sink of the job, or one that "
    "it no longer has.",
)
@click.option(
    "--claim-mode",
    type=CLAIM_MODE,
    help="no-claim (the default) leaves the savepoint to you; with claim the job owns it, and deletes it once the "
    "restored state is no longer one of its retained checkpoints.",
)
@click.option(
    "--request-id",
    default="",
    metavar="ID",
    help="Id of the request; each request is executed at most once. By default, an id derived from the plan.",
)
@with_options(graph_options())
@with_options(SETTINGS_OPTIONS)
@with_options(REQUESTER_OPTIONS)
@json_option(RestoreOutput)
def restore(
    job: Path,
    job_root: str,
    target: str | None,
    plan_file: Path | None,
    out: Path | None,
    sinks: str | None,
    drop: tuple[str, ...],
    from_other_job: bool,
    keep_tables: tuple[str, ...],
    claim_mode: str | None,
    request_id: str,
    maps: tuple[str, ...],
    sources: tuple[str, ...],
    config: Path | None,
    assignments: tuple[str, ...],
    by: str,
    reason: str,
    as_json: bool,
) -> None:
    """Restore a job to an earlier point: state, source positions and tables together.

    First run it with --plan, which changes nothing, then with --execute and that plan. The next run continues from the
    restored point.
    """
    invocation = _Invocation(job, job_root, config, assignments, by, reason)
    if plan_file is not None and target is None:
        given = {"sinks": sinks, "drop": drop, "from-other-job": from_other_job, "keep-table": keep_tables, "out": out}
        given |= {"map": maps, "source": sources, "claim-mode": claim_mode}
        _refuse_with_execute([f"--{name}" for name, value in given.items() if value])
        _execute(invocation, plan_file, request_id, as_json)
    elif target is not None and plan_file is None:
        mode = SinkMode(sinks or SinkMode.RESTORE)
        changes, claim = GraphChanges(maps, sources), ClaimMode(claim_mode or ClaimMode.NO_CLAIM)
        options = RestoreOptions(mode, frozenset(drop), from_other_job, frozenset(keep_tables), changes, claim)
        plan = operations.plan_restore(job_root, invocation.code, target, options)
        _show_plan(invocation, plan, out, as_json)
    else:
        refuse("restore needs either --plan TARGET or --execute FILE", "see stateflow restore --help")


def _show_plan(invocation: _Invocation, plan: RestorePlan, out: Path | None, as_json: bool) -> None:
    if out:
        with open_private(out) as file:
            file.write(msgspec.json.format(msgspec.json.encode(plan), indent=2) + b"\n")
    if as_json:
        print_json(plan)
        return
    _print_plan(plan)
    if out:
        print_text(f"\nNothing has changed. To execute this plan:\n  {invocation.execute_command(out)}")
    else:
        print_text("\nNothing has changed. To execute the plan, write it with --out FILE, then pass --execute FILE")


def _refuse_with_execute(options: list[str]) -> None:
    if options:
        raise ConfigError(
            "a plan is executed exactly as it was written",
            hint="omit these options, or write a new plan with them",
            options=options,
        )


def _prompt_for_reason() -> str:
    """Returns the reason that the user types on a terminal; empty without a terminal."""
    if not sys.stdin.isatty():
        return ""
    reason: str = click.prompt("Reason, stored in the job's history", default="", show_default=False, err=True)
    return reason


def _execute(invocation: _Invocation, plan_file: Path, request_id: str, as_json: bool) -> None:
    plan = _read_plan(plan_file)
    # A plan is one request unless the caller gives an id: executing the file twice restores once.
    request = RestoreRequest(
        request_id or f"restore-{plan.digest}", os_user(invocation.by), invocation.reason or _prompt_for_reason()
    )
    done = operations.restore(invocation.job_root, invocation.code, plan, request)
    if as_json:
        print_json(done)
    elif done.repeated:
        print_text(
            f"{done.job}: the restore to {done.target_label} was already executed; nothing changed\n"
            f"  the job is at {done.label}"
        )
    else:
        tables = ", ".join(f"{uid} at version {v}" for uid, v in done.tables.items()) or "none"
        print_text(
            f"{done.job} is restored to {done.target_label}; tables: {tables}\n  the next run continues from there"
        )


@click.command()
@ROOT
@click.argument("target")
@click.option("--into", required=True, metavar="URI", help="Root of the new job; must be empty or not exist.")
@click.option("--shadow", is_flag=True, help="Every run of the new job publishes to tables named …_shadow.")
@click.option("--from-other-job", is_flag=True, help="Accept another job's savepoint, and fork that job.")
@with_options(REQUESTER_OPTIONS)
@json_option(operations.ForkReport)
@with_request(operations.ForkRequest)
def fork(request: operations.ForkRequest, job_root: str, as_json: bool) -> None:
    """Create a new job from the state and source positions of a checkpoint or savepoint of this job."""
    made = operations.fork(job_root, request)
    if as_json:
        print_json(made)
        return
    print_text(f"{made.job_root} is a fork of {made.job} at {made.target_label}, {human_bytes(made.size_bytes)}")
    if made.shadow:
        print_text("  its runs publish to tables whose names end in _shadow")
    else:
        print_text("  configure other tables for its runs: otherwise both jobs write to the same ones")


def _print_plan(plan: RestorePlan) -> None:
    """Prints a restore plan as tables, followed by its warnings."""
    console = Console()
    print_text(f"{plan.job}: from checkpoint {plan.checkpoint_id} to {plan.target_label} ({describe_target(plan)})")
    if plan.savepoint_path:
        print_text(f"savepoint: {plan.savepoint_path} (claim mode {plan.claim_mode.value})")
    other = f"; {plan.code_difference}" if plan.code_difference else ""
    print_text(f"job file: {plan.job_file} (modified {in_utc(plan.job_file_changed_at or '')}){other}")
    for table in (_state_table(plan), _source_table(plan), _sink_table(plan)):
        print_text()
        console.print(table)
    for line in describe_graph(plan):
        print_text(f"  {line}")
    for sink in plan.sinks:
        if sink.table:
            print_text(f"  {sink.uid}: {sink.table}")
    print_text(f"\n{describe_replay(plan)}")
    for caution in cautions(plan):
        print_text(f"  WARNING{f' {caution.about}' if caution.about else ''}: {caution.text}")


def _state_table(plan: RestorePlan) -> Table:
    table = Table("state of", "", "current size", "target size", "parallelism", box=None, pad_edge=False)
    for s in plan.states:
        change = f"{s.current_parallelism or '-'} → {s.target_parallelism or '-'}"
        parallelism = str(s.target_parallelism) if s.current_parallelism == s.target_parallelism else change
        now = "unknown" if s.current_bytes is None else human_bytes(s.current_bytes)
        add_row(table, s.uid, s.action.value, now, human_bytes(s.target_bytes), parallelism)
    return table


def _source_table(plan: RestorePlan) -> Table:
    table = Table("source", "current", "target", "files after target", "input available", box=None, pad_edge=False)
    for c in plan.sources:
        held = {True: "yes", False: "NO", None: "unknown"}[c.available]
        files = "-" if c.files is None else f"{c.files:,}"
        add_row(table, c.uid, short_offset(c.current_offset), short_offset(c.target_offset), files, held)
    return table


def _sink_table(plan: RestorePlan) -> Table:
    table = Table("sink", "current", "target", "rows after target", "rows restored", box=None, pad_edge=False)
    for t in plan.sinks:
        then = (
            "kept"
            if t.mode is SinkMode.KEEP
            else f"version {t.target_version}"
            if t.target_version is not None
            else "unchanged"
        )
        add_row(table, t.uid, f"version {t.current_version}", then, rows_removed_text(t), _count(t.rows_returned))
    return table


def _count(rows: int | None) -> str:
    return "unknown" if rows is None else f"{rows:,}"


def _read_plan(path: Path) -> RestorePlan:
    try:
        return decode_json(RestorePlan, path.read_bytes())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise ConfigError(
            "the file is not a restore plan",
            hint="write one with stateflow restore --plan TARGET --out FILE",
            path=str(path),
            reason=str(e),
        ) from e
