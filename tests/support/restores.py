"""Planning and carrying out restores from a terminal, for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.job_fixture import AccountsJob
from tests.support.processes import Ended, Running


def plan(box: AccountsJob, target: str, *more: str) -> dict[str, Any]:
    """The plan, which is written for `execute` as well."""
    ended = ask(box, target, "--json", "--out", str(plan_file(box)), *more)
    assert ended.code == 0, str(ended)
    return json.loads(ended.out)  # type: ignore[no-any-return]


def ask(box: AccountsJob, target: str, *more: str) -> Ended:
    """As `plan`, whatever comes of it."""
    return box.begin("restore", box.job_file, "--plan", target, *more, with_job=True).wait()


def execute(box: AccountsJob, *more: str, failpoint: str = "") -> Ended:
    """Carries the newest plan out."""
    return begin(box, *more, failpoint=failpoint).wait()


def begin(box: AccountsJob, *more: str, failpoint: str = "") -> Running:
    """As `execute`, without waiting."""
    return box.begin(
        "restore", box.job_file, "--execute", str(plan_file(box)), *more, failpoint=failpoint, with_job=True
    )


def go_back(box: AccountsJob, target: str, *more: str) -> None:
    """Plans and executes."""
    plan(box, target, *more)
    ended = execute(box)
    assert ended.code == 0, str(ended)


def plan_file(box: AccountsJob) -> Path:
    """Where the newest plan is."""
    return box.folder / "plan.json"


def check_after(box: AccountsJob) -> None:
    """The next run works off what comes behind the point; tables, state and disk are as if nothing else had been."""
    box.finish()
    box.check_results()
    box.check_clean()
