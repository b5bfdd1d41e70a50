"""Commands that check a job before it runs: `stateflow check` and `stateflow explain`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from stateflow.checkpoint.restore.plan_document import GraphChanges
from stateflow.cli.common import (
    DROP,
    JOB,
    NO_SPARK,
    graph_options,
    json_option,
    print_json,
    print_text,
    with_options,
    with_settings,
)
from stateflow.config.sources import SettingsLayer
from stateflow.launch import prepare
from stateflow.operations.compatibility import CheckReport, Problem, StateCheck, check_job, code_difference, problem_of
from stateflow.outputs import Inline, OptionalText
from stateflow.runtime.planning.explain import JobExplanation, to_lines
from stateflow.runtime.preflight import Needs
from stateflow.runtime.restore.planner import RestoreOptions
from stateflow.state.schema_compatibility import Fit

MIGRATES, INCOMPATIBLE = 10, 20
"""Exit codes of the two commands; errors have their own."""


@click.command()
@JOB
@click.option(
    "--against",
    metavar="URI",
    help="Job root, for its newest checkpoint, or the folder of a savepoint. Required; explain checks a new job.",
)
@with_options(graph_options())
@DROP
@click.option("--from-other-job", is_flag=True, help="Accept another job's savepoint.")
@with_settings
@click.option("--exact", is_flag=True, help="End with exit code 10 when a state fits only after migration.")
@NO_SPARK
@json_option(CheckReport, has_findings=True)
def check(
    job: Path,
    against: str | None,
    maps: tuple[str, ...],
    sources: tuple[str, ...],
    drop: tuple[str, ...],
    from_other_job: bool,
    layers: tuple[SettingsLayer, ...],
    exact: bool,
    no_spark: bool,
    as_json: bool,
) -> None:
    """Report everything that a run of a job file would be refused for, before it is deployed. Changes nothing.

    Each state is as is, after migration, incompatible, new or dropped. Sources, transforms and the tables of sinks are
    checked as at the start of a run; for a job on Spark, the command starts Spark. It calls `initialize_state` and
    `open` of the functions. A broadcast state that these do not declare cannot be checked before the first row.

    With --map, --source, --drop or --from-other-job, the report is about a restore to the newest checkpoint with these
    options, or about run --from-savepoint.

    Exit codes: 0 the job fits; 10 it fits after migration, with --exact; 20 it does not fit, and a run or a restore
    would be refused; any other is an error, see docs/runbook.md.
    """
    if against is None:
        raise click.UsageError("Missing option '--against'. To check a job that has not run, use stateflow explain.")
    options = RestoreOptions(drop=frozenset(drop), from_other_job=from_other_job, changes=GraphChanges(maps, sources))
    report = check_job(job, against, layers, options, with_spark=not no_spark)
    if as_json:
        print_json(report)
    else:
        _print_report(report)
    if report.fit == Fit.INCOMPATIBLE:
        sys.exit(INCOMPATIBLE)
    if report.fit == Fit.MIGRATION and exact:
        sys.exit(MIGRATES)


@dataclass(frozen=True)
class ExplainedJob:
    """The physical plan of a job, and what a run would be refused for.

    Attributes:
        plan: the plan.
        problems: errors that a run would fail with at its start.
        unchecked: what was not checked.
        warnings: likely mistakes that do not prevent a run.
        code_hash: hash of the job's code.
        code_difference: a sentence if other code made the newest checkpoint; empty if none is known.
    """

    plan: Inline[JobExplanation]
    problems: list[Problem]
    unchecked: list[str]
    warnings: list[str]
    code_hash: OptionalText
    code_difference: OptionalText


@click.command()
@JOB
@click.option("--job-root", metavar="URI", help="Also check whether a run in this job root would be refused.")
@with_settings
@NO_SPARK
@json_option(ExplainedJob, has_findings=True)
def explain(job: Path, job_root: str | None, layers: tuple[SettingsLayer, ...], no_spark: bool, as_json: bool) -> None:
    """Show the physical plan of a job: sources, shuffles, operators with keys and states, and sinks.

    Also reports what a run would be refused for. Processes no row and changes nothing. For a job on Spark, the command
    starts Spark.

    Exit codes: 0 a run would start; 20 it would be refused; any other is an error.
    """
    prepared = prepare(job, job_root, layers)
    explanation = prepared.explanation()
    difference = code_difference(job_root, prepared.code) if job_root is not None else ""
    needs = [Needs.NOTHING, Needs.ROOT, Needs.FILES] if job_root is not None else [Needs.NOTHING]
    if not as_json:
        for line in to_lines(explanation):
            print_text(line)
    found = prepared.examine(needs, with_spark=not no_spark)
    problems = list(dict.fromkeys(problem_of(e) for e in found.refusals))
    unchecked = found.unchecked if job_root is not None else (*found.unchecked, "a job root (needs --job-root)")
    if as_json:
        checks = problems, list(unchecked), list(found.warnings)
        print_json(ExplainedJob(explanation, *checks, prepared.code, difference))
    else:
        if difference:
            print_text(f"  {difference}")
        _print_findings(problems, found.warnings, unchecked)
        so_far = ", as far as it was checked" if unchecked else ""
        print_text("a run would be refused" if problems else f"a run would start{so_far}")
    if problems:
        sys.exit(INCOMPATIBLE)


def _print_findings(problems: Sequence[Problem], warnings: Sequence[str], unchecked: Sequence[str]) -> None:
    for problem in problems:
        print_text(f"  refused [{problem.code}]: {problem.message}\n    hint: {problem.hint}")
    for warning in warnings:
        print_text(f"  warning: {warning}")
    for what in unchecked:
        print_text(f"  not checked: {what}")


def _print_report(report: CheckReport) -> None:
    print_text(f"{report.job} against {report.label}: {_verdict(report)}")
    if report.code_difference:
        print_text(f"  {report.code_difference}")
    for state in report.states:
        _print_state(state)
    for column in report.columns:
        types = " -> ".join(t for t in (column.before, column.now) if t)
        print_text(f"  source {column.source}, column {column.column}: {column.change} ({types})")
    _print_findings(report.problems, report.warnings, report.unchecked)


def _print_state(state: StateCheck) -> None:
    old = f" (was {state.old})" if state.old else ""
    print_text(f"  {state.operator}, {state.kind} {state.state}{old}: {state.fit}")
    for change in () if state.conflicts else state.changes:
        print_text(f"    {change}")
    for conflict in state.conflicts:
        where = f"{conflict.field}: " if conflict.field else ""
        print_text(
            f"    {where}{conflict.reason}; stored: {conflict.stored}; declared: {conflict.declared}\n"
            f"      hint: {conflict.way_out}"
        )


def _verdict(report: CheckReport) -> str:
    """Returns the overall fit; "refused" when all states fit and a run would be refused for another reason."""
    has_misfit = any(state.fit == Fit.INCOMPATIBLE for state in report.states)
    return "refused" if report.fit == Fit.INCOMPATIBLE and not has_misfit else report.fit
