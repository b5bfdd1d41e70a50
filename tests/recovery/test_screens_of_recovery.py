"""What status, plans and errors show when a restore is half done, a run is silent, or a plan needs warnings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from tests.recovery.other_writer import append
from tests.support import root_files
from tests.support.job_fixture import JOBS, AccountsJob
from tests.support.processes import Ended
from tests.support.restores import ask, check_after, execute, go_back, plan
from tests.support.screens import normalized


@pytest.fixture
def box(tmp_path: Path) -> Iterator[AccountsJob]:
    made = AccountsJob(tmp_path / "job", variables={"COLUMNS": "160"})
    yield made
    made.end_all()


@pytest.fixture
def half_done(early: AccountsJob) -> AccountsJob:
    """A restore that was killed between its two tables."""
    plan(early, "early")
    assert execute(early, "--by", "ada", "--reason", "wrong rows", failpoint="rewind.table:2").code == -9
    early.marker.unlink()
    return early


def _screen(box: AccountsJob, shown: str) -> str:
    """What was shown, with names for what varies, and single blanks, since columns are as wide as what varies."""
    text = re.sub(r"(?<=[!-~]) +", " ", normalized(shown, folder=box.folder.parent, jobs=JOBS))
    return re.sub(r"<time> \d+ ([\d,]+) <size> <size> \d+$", r"<time> <ms> \1 <size> <size> <files>", text, flags=re.M)


def _shown(box: AccountsJob, ended: Ended) -> str:
    assert ended.code == 0, str(ended)
    return _screen(box, ended.out)


def _status(box: AccountsJob, *more: str) -> dict[str, Any]:
    shown = box.begin("status", "--json", *more, with_job=True).wait()
    assert shown.code == 0, str(shown)
    return json.loads(shown.out)  # type: ignore[no-any-return]


# -- a restore that is not completed ----------------------------------------------------------------------------------


def test_status_of_a_restore_that_is_not_completed(half_done: AccountsJob, golden: SnapshotAssertion) -> None:
    assert _shown(half_done, half_done.command("status")) == golden
    job = ("--job", half_done.job_file)
    looked = half_done.begin("status", *job, with_job=True).wait()
    assert _shown(half_done, looked) == golden(name="tables-back")
    status = _status(half_done, *job)
    assert status["restoring"]["tables"] == {"movements": 5, "totals": 5}
    assert status["tables_back"] == {"movements": True, "totals": False}
    half_done.replace_events(since=50)
    check_after(half_done)
    assert _status(half_done)["restoring"] is None


def test_a_savepoint_is_refused_until_the_restore_is_completed(half_done: AccountsJob) -> None:
    refused = half_done.command("savepoint", "create", "--name", "now", "--patience", "0.2")
    assert (refused.code, refused.error.code) == (2, "config"), str(refused)
    assert "tables=['movements', 'totals']" in refused.err and "early" in refused.err
    assert "--job JOB.py" in refused.err
    made = half_done.begin(
        "savepoint", "create", "--name", "now", "--patience", "0.2", "--job", half_done.job_file, with_job=True
    ).wait()
    assert made.code == 0, str(made)
    assert _status(half_done)["restoring"] is None


# -- runs that give no sign -------------------------------------------------------------------------------------------


def test_a_silent_run_is_not_called_dead(box: AccountsJob, golden: SnapshotAssertion) -> None:
    box.deliver(60)
    run = box.start("commit.after:3:stop")
    run.wait_stopped()
    refusals = {
        "savepoint": box.command("savepoint", "create", "--patience", "0.2"),
        "stop": box.command("stop", "--patience", "0.2"),
    }
    for name, refused in refusals.items():
        facts = refused.error.facts
        assert (refused.code, facts["generation"]) == (2, root_files.head(box.root).doc["generation"]), str(refused)
        assert "--patience" in refused.err
        assert _screen(box, refused.err) == golden(name=name)
    made = box.command("savepoint", "create", "--from-head", "--json")
    assert json.loads(made.out)["taken_by"] == "head"
    run.resume()
    assert run.wait().code == 0


# -- status -----------------------------------------------------------------------------------------------------------


def test_status_marks_what_a_restore_has_undone(early: AccountsJob) -> None:
    assert _status(early)["offsets"] == {"events": '{"row": 120}'}
    newest = root_files.head(early.root).checkpoint
    assert not any(_undone(early).values())
    go_back(early, "early")
    assert _undone(early)[newest]
    early.replace_events(since=50)
    early.finish()
    undone = _undone(early)
    assert undone[root_files.head(early.root).checkpoint] is False and True in undone.values()


def _undone(box: AccountsJob) -> dict[int, bool]:
    return {c["checkpoint_id"]: c["undone"] for c in _status(box)["checkpoints"]}


def test_status_of_a_shadow_fork(early: AccountsJob, tmp_path: Path, golden: SnapshotAssertion) -> None:
    of = _status(early)
    assert (of["forked_from"], of["shadow"]) == ("", False)
    for name, options in {"plain": (), "shadow": ("--shadow",)}.items():
        assert early.command("fork", "latest", "--into", str(tmp_path / name), *options).code == 0
        forked = AccountsJob(early.folder, root_folder=tmp_path / name, variables=early.variables)
        status = _status(forked)
        assert status["forked_from"] == f"{of['job_uuid']}/{of['checkpoint_id']}"
        assert status["shadow"] == (name == "shadow")
    assert _shown(early, forked.command("status")) == golden


# -- history ----------------------------------------------------------------------------------------------------------


def test_the_newest_records_are_those_that_happened_last(early: AccountsJob, tmp_path: Path) -> None:
    """A fork of an old checkpoint is recorded under that one's number."""
    assert early.command("fork", "early", "--into", str(tmp_path / "fork"), "--by", "eve").code == 0
    record = json.loads(early.command("history", "--newest", "1", "--json").out)
    assert (record["kind"], record["by"]) == ("fork", "eve")


# -- plans ------------------------------------------------------------------------------------------------------------


def test_a_plan_with_warnings(early: AccountsJob, golden: SnapshotAssertion) -> None:
    """Of others' rows, a table that stays, lost input, dropped state, an open run and checkpoints that are lost."""
    append(early, "movements", number=2)
    early.deliver(130)
    assert early.run("batch.begin:1").code == -9
    early.deliver(80)
    early.settings = {**early.settings, "job__parts": "movements", "parallelism": 3}
    options = ("--drop", "turnovers", "--keep-table", "totals")
    planned = plan(early, "early", *options)
    (movements,) = planned["sinks"]
    assert len(movements["others"]) == 1 and "another writer" in movements["others"][0]
    (source,) = planned["sources"]
    assert (source["now"], source["then"], source["held"]) == ('{"row": 120}', '{"row": 50}', False)
    assert [s["uid"] for s in planned["left"]] == ["totals"] and planned["run_open"]
    assert _shown(early, ask(early, "early", *options)) == golden


def test_a_plan_for_another_job_s_savepoint(early: AccountsJob, tmp_path: Path, golden: SnapshotAssertion) -> None:
    other = AccountsJob(tmp_path / "other", settings=early.settings, variables=early.variables)
    other.deliver(10)
    other.finish()
    (path,) = map(str, (early.root / "savepoints").iterdir())
    planned = plan(other, path, "--from-other-job")
    assert (planned["foreign"], planned["of_job"]) == (True, f"accounts {_status(early)['job_uuid']}")
    assert _shown(other, ask(other, path, "--from-other-job")) == golden
