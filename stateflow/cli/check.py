"""The commands `stateflow check` and `stateflow plan`: arguments in, sentences and an exit code out."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from stateflow.compatibility import CheckReport, Problem, StateCheck, check_job, problem_of
from stateflow.environment import prepare
from stateflow.runtime.drawing import as_text
from stateflow.runtime.preflight import Needs
from stateflow.state.evolution import Fit
from stateflow.terminal import JSON, NO_SPARK, SETTINGS, layers, or_fail, with_options

MIGRATES, INCOMPATIBLE = 10, 20
"""Exit codes beside 0; errors have their own."""


@click.command()
@click.argument("job", type=click.Path(path_type=Path), metavar="JOB.py")
@click.option(
    "--against",
    required=True,
    metavar="URI",
    help="A job root, for its newest checkpoint; or a savepoint's folder.",
)
@with_options(SETTINGS)
@click.option("--exact", is_flag=True, help="End with 10 when something fits only after migration.")
@NO_SPARK
@JSON
def check(job: Path, against: str, exact: bool, as_json: bool, **options: Any) -> None:
    """Find everything that a run of a job file would be refused for, before it is deployed; changes nothing.

    Each state is as is, after migration, incompatible, new or dropped. Sources, transforms and the sinks' tables are
    checked as a start does it; for a job on Spark, that starts Spark. The functions' `initialize_state` and `open`
    are called. A broadcast state that they do not ask for is known with the first row only.

    Exit codes: 0 it fits; 10 it fits after migration, with --exact; 20 it does not fit, and a run or a restore would be
    refused; any other is an error: see docs/runbook.md.
    """
    given, with_spark = layers(options), not options["no_spark"]
    report = or_fail(lambda: check_job(job, against, given, with_spark=with_spark))
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report)))
    else:
        _print(report)
    if report.fit == Fit.INCOMPATIBLE:
        sys.exit(INCOMPATIBLE)
    if report.fit == Fit.MIGRATION and exact:
        sys.exit(MIGRATES)


@click.command()
@click.argument("job", type=click.Path(path_type=Path), metavar="JOB.py")
@click.option("--job-root", metavar="URI", help="Also check what a run in this job root would refuse.")
@with_options(SETTINGS)
@NO_SPARK
@JSON
def plan(job: Path, job_root: str | None, no_spark: bool, as_json: bool, **options: Any) -> None:
    """Show how a job would run: sources, shuffles, operators with keys and states, sinks; and what a run would be
    refused for. Processes nothing and changes nothing.

    For a job on Spark, that starts Spark. Exit codes: 0 a run would start; 20 it would be refused; any other is an
    error.
    """
    given = layers(options)
    prepared = or_fail(lambda: prepare(job, job_root, given))
    drawing = or_fail(prepared.drawing)
    needs = [Needs.NOTHING, Needs.ROOT, Needs.FILES] if job_root is not None else [Needs.NOTHING]
    if not as_json:
        for line in as_text(drawing):
            click.echo(line)
    found = or_fail(lambda: prepared.examine(needs, with_spark=not no_spark))
    problems = [problem_of(e) for e in found.refusals]
    unchecked = (
        found.unchecked if job_root is not None else (*found.unchecked, "a job root (needs --job-root)")
    )
    if as_json:
        more = {"problems": [dataclasses.asdict(p) for p in problems], "unchecked": list(unchecked),
                "warnings": list(found.warnings)}  # fmt: skip
        click.echo(json.dumps({**dataclasses.asdict(drawing), **more}))
    else:
        _print_found(problems, found.warnings, unchecked)
        so_far = ", as far as it was checked" if unchecked else ""
        click.echo("a run would be refused" if problems else f"a run would start{so_far}")
    if problems:
        sys.exit(INCOMPATIBLE)


def _print_found(problems: Sequence[Problem], warnings: Sequence[str], unchecked: Sequence[str]) -> None:
    for problem in problems:
        click.echo(f"  refused [{problem.code}]: {problem.message}\n    way out: {problem.hint}")
    for warning in warnings:
        click.echo(f"  warning: {warning}")
    for what in unchecked:
        click.echo(f"  not checked: {what}")


def _print(report: CheckReport) -> None:
    click.echo(f"{report.job} against {report.at}: {_verdict(report)}")
    for state in report.states:
        _print_state(state)
    for column in report.columns:
        types = " -> ".join(t for t in (column.before, column.now) if t)
        click.echo(f"  source {column.source}, column {column.column}: {column.change} ({types})")
    _print_found(report.problems, report.warnings, report.unchecked)


def _print_state(state: StateCheck) -> None:
    click.echo(f"  {state.operator}, {state.kind} {state.state}: {state.fit}")
    for change in () if state.conflicts else state.changes:
        click.echo(f"    {change}")
    for conflict in state.conflicts:
        where = f"{conflict.field}: " if conflict.field else ""
        click.echo(f"    {where}{conflict.reason}; stored: {conflict.stored}; declared: {conflict.declared}\n"
                   f"      way out: {conflict.way_out}")  # fmt: skip


def _verdict(report: CheckReport) -> str:
    """The fit in a word: a job whose states fit, and that a run would refuse for another reason, is no misfit."""
    misfits = any(state.fit == Fit.INCOMPATIBLE for state in report.states)
    return "refused" if report.fit == Fit.INCOMPATIBLE and not misfits else report.fit
