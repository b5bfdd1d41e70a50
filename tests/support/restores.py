"""Planning and carrying out restores from a terminal, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support import root_files
from tests.support.job_fixture import KILLED, AccountsJob, JobFixture
from tests.support.processes import Ended, Running

BEFORE_THE_INTENT = ("restore.begin", "restore.claimed", "restore.imported", "restore.intent")
COMPLETING = ("rewind.table:1", "rewind.table:2", "rewind.tables", "rewind.recorded", "rewind.done")


def plan(job: JobFixture, target: str, *more: str) -> dict[str, Any]:
    """The plan, which is written for `execute` as well."""
    planned: dict[str, Any] = ask(job, target, "--json", "--out", str(plan_file(job)), *more).check().document
    return planned


def ask(job: JobFixture, target: str, *more: str) -> Ended:
    """As `plan`, whatever comes of it."""
    return job.command("restore", job.job_file, "--plan", target, *more, with_job=True)


def execute(job: JobFixture, *more: str, failpoint: str = "") -> Ended:
    """Carries the newest plan out."""
    return begin(job, *more, failpoint=failpoint).wait()


def begin(job: JobFixture, *more: str, failpoint: str = "") -> Running:
    """As `execute`, without waiting."""
    arguments = ("restore", job.job_file, "--execute", str(plan_file(job)), *more)
    return job.begin(*arguments, failpoint=failpoint, with_job=True)


def go_back(job: JobFixture, target: str, *more: str) -> dict[str, Any]:
    planned = plan(job, target, *more)
    execute(job).check()
    return planned


def continue_past_savepoint(job: AccountsJob, at: int, until: int) -> AccountsJob:
    """Runs the job to event `at`, creates the savepoint `early`, and runs it to `until` with every checkpoint kept."""
    job.settings = {"checkpoints__retained": 100}
    job.run_to(at)
    job.create_savepoint("early")
    job.run_to(until)
    return job


def plan_file(job: JobFixture) -> Path:
    return job.folder / "plan.json"


def everything(job: JobFixture) -> dict[str, str]:
    """The files of the job root and of the tables, by their hashes."""
    return root_files.digests(job.root, job.folder / "tables")


def check_after(job: AccountsJob, since: int | None = None) -> None:
    """The next run processes what comes after the target; tables, state and disk are as if nothing else had been.

    Args:
        since: the first event that is replaced by another one, which distinguishes what was undone from what must come.
    """
    if since is not None:
        job.replace_events(since)
    job.finish()
    job.check()


def kill_at_each_step(job: JobFixture, planned: dict[str, Any], tables: int = 2) -> None:
    """Until nothing is left to do; the same request does nothing then."""
    for name in BEFORE_THE_INTENT:
        # The request's own CLAIM of the try before does not outdate its plan.
        ended = execute(job, failpoint=name)
        assert ended.code == KILLED, f"{name}: {ended}"
        assert bool(job.head.doc["requests"]) == (name == "restore.intent")
    for name in COMPLETING[:tables] + COMPLETING[2:]:
        # A table that is back stays so: what is left to do gets less.
        job.reach(name)
    assert job.head.doc["rewind"] is None
    assert execute(job, "--json").check().document["repeated"]
    (record,) = job.records("restore")
    base = 0 if planned["foreign"] else planned["target_checkpoint_id"]
    assert record["facts"]["restored_checkpoint_id"] == base, "no matter which process completed it"
