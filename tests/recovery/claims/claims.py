"""Claims of savepoints: commands, and what the log and the savepoint say about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote

from tests.support.job_fixture import AccountsJob
from tests.support.restores import plan

CLAIM = ("--claim-mode", "claim")


def path_of(made: dict[str, Any]) -> Path:
    return Path(unquote(made["path"].removeprefix("file://")))


def make_other_job(early: AccountsJob, folder: Path, name: str) -> AccountsJob:
    other = AccountsJob(folder / name, early.settings)
    other.run_to(30)
    other.deliver(120)
    early.processes += other.processes
    return other


def plan_claim(job: AccountsJob, savepoint: Path | str, *more: str) -> dict[str, Any]:
    return plan(job, str(savepoint), *CLAIM, *more)


def owned(job: AccountsJob) -> list[int]:
    """For each savepoint that the log names as claimed, the checkpoint that adopted its state; 0 before that."""
    return [claimed["checkpoint"] for claimed in job.head.doc["claimed_savepoints"]]


def listed(job: AccountsJob, name: str = "early") -> dict[str, Any]:
    savepoints = job.command("savepoint", "list", "--json").check().document
    (found,) = [each for each in savepoints if each["name"] == name]
    return dict(found)


def release_checkpoint(job: AccountsJob, until: int) -> None:
    """Runs the job so far that it releases every checkpoint that it has now."""
    job.settings = {**job.settings, "checkpoints__retained": 1}
    job.run_to(until)
