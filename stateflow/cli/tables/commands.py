"""Commands that optimize and vacuum the Delta tables of a job's sinks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stateflow import operations
from stateflow.cli.common import JOB, JSON, ROOT, SETTINGS_OPTIONS, print_json, settings_layers, with_options
from stateflow.cli.formatting import count_of, human_bytes, print_text
from stateflow.config.durations import parse_duration
from stateflow.errors import ConfigError
from stateflow.operations import JobCode, VacuumRequest

if TYPE_CHECKING:
    from stateflow.connectors.delta.maintenance.compaction import CompactionReport
    from stateflow.connectors.delta.maintenance.vacuum import VacuumReport

_TABLE = click.option(
    "--table", "uids", multiple=True, metavar="UID", help="Only the table of this sink; repeatable. Default: all."
)
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Report what would be done, without doing it.")


@click.group()
def tables() -> None:
    """Optimize or vacuum the Delta tables of a job's sinks."""


@tables.command()
@JOB
@ROOT
@_TABLE
@_DRY_RUN
@with_options(SETTINGS_OPTIONS)
@JSON
def optimize(
    job: Path,
    job_root: str,
    uids: tuple[str, ...],
    dry_run: bool,
    config: Path | None,
    assignments: tuple[str, ...],
    as_json: bool,
) -> None:
    """Combine small data files of each partition, without a change of rows.

    Runs of the job may continue meanwhile. A restore does not count the commit as one that changed rows.
    """
    code = JobCode(job, settings_layers(config, assignments))
    reports = operations.optimize_tables(job_root, code, uids, dry_run=dry_run)
    if as_json:
        print_json([dataclasses.asdict(report) for report in reports])
        return
    for report in reports:
        print_text(f"{report.uid}: {_optimized(report)}; {report.table} at version {report.version}")
    _print_none(reports)


def _optimized(report: CompactionReport) -> str:
    files = f"{count_of(report.files_before, 'file')}, {human_bytes(report.bytes_before)}"
    if report.files_after is None:
        return f"would combine {files}"
    skipped = f"; {count_of(report.skipped, 'file')} skipped" if report.skipped else ""
    return f"combined {files}, to {count_of(report.files_after, 'file')}{skipped}"


@tables.command()
@JOB
@ROOT
@_TABLE
@click.option(
    "--older-than",
    default="7d",
    show_default=True,
    metavar="DURATION",
    help="Keep files that were removed from their table after this; a duration such as 12h or 7d.",
)
@click.option(
    "--ignore-other-jobs",
    is_flag=True,
    help="Also vacuum tables that other jobs write to, whose checkpoints are unknown.",
)
@_DRY_RUN
@with_options(SETTINGS_OPTIONS)
@JSON
def vacuum(
    job: Path,
    job_root: str,
    uids: tuple[str, ...],
    older_than: str,
    ignore_other_jobs: bool,
    dry_run: bool,
    config: Path | None,
    assignments: tuple[str, ...],
    as_json: bool,
) -> None:
    """Delete data files that were removed from the tables, and that no checkpoint or savepoint needs.

    Reports which checkpoint or savepoint holds which version. Runs of the job may continue meanwhile.
    """
    request = VacuumRequest(_duration(older_than), uids, dry_run, ignore_other_jobs)
    reports = operations.vacuum_tables(job_root, JobCode(job, settings_layers(config, assignments)), request)
    if as_json:
        print_json([dataclasses.asdict(report) for report in reports])
        return
    for report in reports:
        _print_vacuum(report, "would delete" if dry_run else "deleted")
    _print_none(reports)


def _duration(text: str) -> timedelta:
    try:
        return parse_duration(text)
    except (ValueError, OverflowError) as e:
        raise ConfigError(
            "the value of --older-than is not a duration", hint="pass one such as 12h or 7d", given=text
        ) from e


def _print_vacuum(report: VacuumReport, verb: str) -> None:
    print_text(
        f"{report.uid}: {verb} {count_of(report.files, 'file')}, {human_bytes(report.bytes_freed)}; "
        f"{report.table} at version {report.version}"
    )
    for held in report.held:
        print_text(
            f"  version {held.version} is needed by {', '.join(held.holders)}: "
            f"{count_of(held.files, 'file')} kept, {human_bytes(held.bytes)}"
        )
    for label in report.lost:
        print_text(f"  {label}: the table can no longer be restored to its version")


def _print_none(reports: Sequence[object]) -> None:
    if not reports:
        print_text("the job has no Delta tables")
