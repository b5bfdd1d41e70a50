"""Planning and carrying out restores from a terminal, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support import root_files
from tests.support.job_fixture import AccountsJob, JobFixture
from tests.support.processes import Ended, Running


def plan(box: JobFixture, target: str, *more: str) -> dict[str, Any]:
    """The plan, which is written for `execute` as well."""
    planned: dict[str, Any] = ask(box, target, "--json", "--out", str(plan_file(box)), *more).check().document
    return planned


def ask(box: JobFixture, target: str, *more: str) -> Ended:
    """As `plan`, whatever comes of it."""
    return box.command("restore", box.job_file, "--plan", target, *more, with_job=True)


def execute(box: JobFixture, *more: str, failpoint: str = "") -> Ended:
    """Carries the newest plan out."""
    return begin(box, *more, failpoint=failpoint).wait()


def begin(box: JobFixture, *more: str, failpoint: str = "") -> Running:
    """As `execute`, without waiting."""
    arguments = ("restore", box.job_file, "--execute", str(plan_file(box)), *more)
    return box.begin(*arguments, failpoint=failpoint, with_job=True)


def go_back(box: JobFixture, target: str, *more: str) -> dict[str, Any]:
    """Plans and executes; returns the plan."""
    planned = plan(box, target, *more)
    execute(box).check()
    return planned


def plan_file(box: JobFixture) -> Path:
    """Where the newest plan is."""
    return box.folder / "plan.json"


def everything(box: JobFixture) -> dict[str, str]:
    """The files of the job root and of the tables, by their hashes."""
    return root_files.digests(box.root, box.folder / "tables")


def check_after(box: AccountsJob, since: int | None = None) -> None:
    """The next run processes what comes after the target; tables, state and disk are as if nothing else had been.

    Args:
        since: the first event that is replaced by another one, which distinguishes what was undone from what must come.
    """
    if since is not None:
        box.replace_events(since)
    box.finish()
    box.check()
