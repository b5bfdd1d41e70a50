"""Commands that check stored checkpoints, and the machine and storage of a job."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import click

from stateflow import operations
from stateflow.cli.common import JSON, ROOT, print_json
from stateflow.cli.formatting import count_of, human_bytes, print_text
from stateflow.clock import SystemClock
from stateflow.config.settings import Settings
from stateflow.operations import Verified
from stateflow.operations.doctor import Finding, Health, examine

_HAS_PROBLEM = 6
"""Exit code of doctor when a check failed."""


@click.command()
@ROOT
@click.option("--deep", is_flag=True, help="Also decode every key and value of the state.")
@click.option("--checkpoint", type=click.IntRange(min=1), metavar="ID", help="Verify only this checkpoint.")
@JSON
def verify(job_root: str, deep: bool, checkpoint: int | None, as_json: bool) -> None:
    """Read all files of the retained checkpoints, and the history, and compare them with their recorded hashes.

    Can be used while the job runs. Exit codes: 0 all files are intact; 4 a file is missing, damaged or changed.
    """
    found = operations.verify(job_root, deep, checkpoint, _print_nothing if as_json else _print_verified)
    if as_json:
        print_json([dataclasses.asdict(verified) for verified in found])
    if checkpoint is None:
        number = operations.verify_history(job_root)
        if not as_json:
            print_text(f"history: {count_of(number, 'object')}, hashes match")


def _print_nothing(_: Verified) -> None:
    """JSON is printed once, at the end."""


def _print_verified(verified: Verified) -> None:
    decoded = "" if verified.entries is None else f"; {verified.entries:,} entries decode, each in its key group"
    print_text(
        f"checkpoint {verified.checkpoint_id}: {count_of(verified.files, 'file')}, {human_bytes(verified.bytes)}, "
        f"sizes and hashes match{decoded}{f'; code {verified.code}' if verified.code else ''}"
    )


@click.command()
@click.option(
    "--job-root", default="", metavar="URI", envvar="STATEFLOW_JOB_ROOT", help="Also check this job root's storage."
)
@click.option("--local-dir", type=click.Path(path_type=Path), help="Scratch folder, for a job that sets local_dir.")
@JSON
def doctor(job_root: str, local_dir: Path | None, as_json: bool) -> None:
    """Check whether this machine, and the storage of a job root, meet the requirements of a run.

    Can be used while the job runs. The check writes below probe/ in the storage and removes what it wrote.

    Exit codes: 0 no problem, although there may be warnings; 6 there is a problem.
    """
    findings = examine(job_root, local_dir or Settings().local_folder, SystemClock())
    if as_json:
        print_json([{**dataclasses.asdict(f), "health": f.health.value} for f in findings])
    else:
        _print_findings(findings)
    if any(f.health is Health.BAD for f in findings):
        sys.exit(_HAS_PROBLEM)


def _print_findings(findings: list[Finding]) -> None:
    width = max(len(f.what) for f in findings)
    for f in findings:
        print_text(f"{f.health.value:9}{f.what:{width}}  {f.found}")
        if f.hint:
            print_text(f"{'':5}{'':{width}}  hint: {f.hint}")
