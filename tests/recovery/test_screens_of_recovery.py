"""What status, plans and errors show when a restore is half done, a run is silent, or a plan needs warnings."""

from __future__ import annotations

import re
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from tests.recovery.other_writer import append
from tests.support.job_fixture import JOBS, KILLED, AccountsJob
from tests.support.restores import ask, check_after, execute, plan
from tests.support.screens import normalized


@pytest.fixture
def job(job: AccountsJob) -> AccountsJob:
    job.variables = {"COLUMNS": "160"}
    return job


@pytest.fixture
def early(early: AccountsJob) -> AccountsJob:
    early.variables = {"COLUMNS": "160"}
    return early


@pytest.fixture
def half_done(early: AccountsJob) -> AccountsJob:
    """A restore that was killed between its two tables."""
    plan(early, "early")
    assert execute(early, "--by", "ada", "--reason", "wrong rows", failpoint="rewind.table:2").code == KILLED
    return early


def _screen(job: AccountsJob, shown: str) -> str:
    """What was shown, with names for what varies, and single blanks, since columns are as wide as what varies."""
    text = re.sub(r"(?<=[!-~]) +", " ", normalized(shown, folder=job.folder.parent, jobs=JOBS))
    return re.sub(r"<time> \d+ ([\d,]+) <size> <size> \d+$", r"<time> <ms> \1 <size> <size> <files>", text, flags=re.M)


def _status(job: AccountsJob, *more: str) -> dict[str, Any]:
    shown: dict[str, Any] = job.command("status", "--json", *more, with_job=True).check().document
    return shown


def test_status_shows_a_restore_that_is_not_completed(half_done: AccountsJob, golden: SnapshotAssertion) -> None:
    assert _screen(half_done, half_done.command("status").check().out) == golden
    job = ("--job", half_done.job_file)
    looked = half_done.command("status", *job, with_job=True).check()
    assert _screen(half_done, looked.out) == golden(name="tables-back")
    status = _status(half_done, *job)
    assert status["restoring"]["tables"] == {"movements": 5, "totals": 5}
    assert status["tables_back"] == {"movements": True, "totals": False}
    check_after(half_done, since=50)
    assert _status(half_done)["restoring"] is None


def test_a_savepoint_is_refused_until_the_restore_is_completed(half_done: AccountsJob) -> None:
    create = ("savepoint", "create", "--name", "now", "--acknowledge-timeout", "0.2")
    refused = half_done.command(*create)
    refused.check_error(2, "config")
    assert "tables=['movements', 'totals']" in refused.err and "early" in refused.err
    assert "--job JOB.py" in refused.err
    half_done.command(*create, "--job", half_done.job_file, with_job=True).check()
    assert _status(half_done)["restoring"] is None


def test_a_silent_run_is_not_called_dead(job: AccountsJob, golden: SnapshotAssertion) -> None:
    job.deliver(60)
    run = job.start("commit.after:3:stop").wait_stopped()
    for name, command in {"savepoint": ("savepoint", "create"), "stop": ("stop",)}.items():
        refused = job.command(*command, "--acknowledge-timeout", "0.2")
        facts = refused.error.facts
        assert (refused.code, facts["generation"]) == (2, job.head.doc["generation"]), str(refused)
        assert "--acknowledge-timeout" in refused.err
        assert _screen(job, refused.err) == golden(name=name)
    assert job.create_savepoint("head", "--from-head")["taken_by"] == "head"
    run.resume().wait().check()


def test_a_plan_shows_each_of_its_warnings(early: AccountsJob, golden: SnapshotAssertion) -> None:
    """Of others' rows, a table that stays, lost input, dropped state, an open run and checkpoints that are lost."""
    append(early, "movements", number=2)
    early.deliver(130)
    early.reach("batch.begin:1")
    early.deliver(80)
    early.settings = {**early.settings, "job__parts": "movements", "parallelism": 3}
    options = ("--drop", "turnovers", "--keep-table", "totals")
    planned = plan(early, "early", *options)
    (movements,) = planned["sinks"]
    assert len(movements["others"]) == 1 and "another writer" in movements["others"][0]
    (source,) = planned["sources"]
    assert (source["now"], source["then"], source["held"]) == ('{"row": 120}', '{"row": 50}', False)
    assert [s["uid"] for s in planned["left"]] == ["totals"] and planned["run_open"]
    assert _screen(early, ask(early, "early", *options).check().out) == golden
