"""The command `stateflow check`: arguments in, sentences and an exit code out; the rest is in `compatibility`."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import click

from stateflow.compatibility import CheckReport, StateCheck, check_job
from stateflow.config import parse_assignments, read_toml
from stateflow.state.evolution import Fit
from stateflow.terminal import JSON, or_fail

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
@click.option("--config", type=click.Path(path_type=Path), help="Settings in TOML, as of the job's runs.")
@click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="One setting, as of the job's runs."
)
@click.option("--exact", is_flag=True, help="End with 10 when something fits only after migration.")
@JSON
def check(job: Path, against: str, exact: bool, as_json: bool, **options: Any) -> None:
    """Say whether a job file fits what is stored, before it is deployed; changes nothing.

    Each state is as is, after migration, incompatible, new or dropped. The functions' `initialize_state` and `open`
    are called once. A broadcast state that they do not ask for is known with the first row only.

    Exit codes: 0 it fits; 10 it fits after migration, with --exact; 20 it does not fit, and a run or a restore would be
    refused; any other is an error: see docs/runbook.md.
    """
    config = options["config"]
    layers = ((read_toml(config),) if config else ()) + (parse_assignments(options["assignments"]),)
    report = or_fail(lambda: check_job(job, against, layers))
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report)))
    else:
        _print(report)
    if report.fit == Fit.INCOMPATIBLE:
        sys.exit(INCOMPATIBLE)
    if report.fit == Fit.MIGRATION and exact:
        sys.exit(MIGRATES)


def _print(report: CheckReport) -> None:
    click.echo(f"{report.job} against {report.at}: {report.fit}")
    for state in report.states:
        _print_state(state)
    for column in report.columns:
        types = " -> ".join(t for t in (column.before, column.now) if t)
        click.echo(f"  source {column.source}, column {column.column}: {column.change} ({types})")
    for problem in report.problems:
        click.echo(f"  refused [{problem.code}]: {problem.message}\n    way out: {problem.hint}")


def _print_state(state: StateCheck) -> None:
    click.echo(f"  {state.operator}, {state.kind} {state.state}: {state.fit}")
    for change in () if state.conflicts else state.changes:
        click.echo(f"    {change}")
    for conflict in state.conflicts:
        where = f"{conflict.field}: " if conflict.field else ""
        click.echo(f"    {where}{conflict.reason}; stored: {conflict.stored}; declared: {conflict.declared}\n"
                   f"      way out: {conflict.way_out}")  # fmt: skip
