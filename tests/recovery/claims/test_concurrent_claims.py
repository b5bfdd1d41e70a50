"""Claims concurrent with runs, with other claims and with deletions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recovery.claims.claims import make_other_job, owned, path_of, plan_claim, release_checkpoint
from tests.support import root_files
from tests.support.job_fixture import AccountsJob, expected, multiset
from tests.support.processes import Ended
from tests.support.restores import begin, check_after, execute


@pytest.mark.parametrize("name", ["restore.claimed", "savepoint.claimed", "restore.imported"])
def test_a_claim_that_a_start_has_undone_does_not_return_when_its_process_wakes(
    early: AccountsJob, savepoint: Path, name: str
) -> None:
    plan_claim(early, "early")
    claiming = begin(early, failpoint=f"{name}:1:stop").wait_stopped()
    early.finish()
    before = root_files.claims(savepoint)
    assert before[-1][0] == "released"
    claiming.resume().wait().check_error(3, "fenced")
    assert (root_files.claims(savepoint), owned(early)) == (before, [])
    check_after(early)


@pytest.mark.parametrize("name", ["commit.after:3", "gc.listed:2", "batch.begin:3"])
def test_an_old_run_resumed_after_a_claim_neither_releases_nor_deletes_the_savepoint(
    early: AccountsJob, savepoint: Path, name: str
) -> None:
    early.deliver(200)
    early.settings = {**early.settings, "checkpoints__collect_every": 1}
    sleeper = early.start(f"{name}:stop").wait_stopped()
    plan_claim(early, "early")
    execute(early).check()
    before = root_files.digests(savepoint), owned(early)
    sleeper.resume().wait().check_error(3, "fenced")
    assert (root_files.digests(savepoint), owned(early)) == before
    check_after(early, since=50)


def test_one_of_two_jobs_that_claim_a_savepoint_concurrently_owns_the_savepoint(
    early: AccountsJob, savepoint: Path, tmp_path: Path
) -> None:
    jobs = [make_other_job(early, tmp_path, f"other-{number}") for number in range(2)]
    for job in jobs:
        plan_claim(job, savepoint, "--from-other-job")
    claiming = [begin(job, failpoint="restore.claimed:1:stop").wait_stopped() for job in jobs]
    for process in claiming:
        process.resume()
    ended = [process.wait() for process in claiming]
    assert sorted(each.code for each in ended) == [0, 2]
    (winner,) = [job for job, each in zip(jobs, ended, strict=True) if each.code == 0]
    (loser,) = [job for job in jobs if job is not winner]
    (refused,) = [each for each in ended if each.code == 2]
    refused.check_error(2, "savepoint-claimed", job_uuid=winner.job_uuid)
    # The one continues as if it had not been asked, the other from the savepoint.
    check_after(loser)
    assert (root_files.claims(savepoint), owned(loser)) == (
        [("claimed", winner.job_uuid, winner.head.doc["claimed_savepoints"][0]["generation"])],
        [],
    )
    release_checkpoint(winner, 140)
    assert not savepoint.exists()


def _dispose(job: AccountsJob, savepoint: Path, *more: str) -> Ended:
    return job.command("savepoint", "dispose", str(savepoint), *more)


def test_a_deletion_that_comes_before_a_claim_wins(early: AccountsJob, savepoint: Path) -> None:
    plan_claim(early, "early")
    claiming = begin(early, failpoint="restore.claimed:1:stop").wait_stopped()
    deleting = early.begin("savepoint", "dispose", "early", failpoint="savepoint.disposing:1:stop").wait_stopped()
    claiming.resume().wait().check_error(2, "config", savepoint=savepoint.as_uri())
    deleting.resume().wait().check()
    assert not savepoint.exists()
    check_after(early)
    assert owned(early) == []


@pytest.mark.parametrize("is_forced", [False, True])
def test_a_claim_that_comes_before_a_deletion_wins_and_needs_no_file_after_its_intent(
    early: AccountsJob, savepoint: Path, is_forced: bool
) -> None:
    plan_claim(early, "early")
    claiming = begin(
        early, failpoint=f"{'restore.imported' if is_forced else 'savepoint.claimed'}:1:stop"
    ).wait_stopped()
    if is_forced:
        _dispose(early, savepoint, "--claimed").check()
    else:
        _dispose(early, savepoint).check_error(2, "savepoint-claimed", job_uuid=early.job_uuid)
    claiming.resume().wait().check()
    assert (savepoint.exists(), early.head.position) == (not is_forced, 50)
    assert multiset(early.rows("movements")) == multiset(expected(early.delivered[:50]).movements)
    check_after(early, since=50)


def test_a_forced_deletion_during_a_claim_fails_the_restore_and_loses_nothing_else(
    early: AccountsJob, savepoint: Path
) -> None:
    plan_claim(early, "early")
    claiming = begin(early, failpoint="savepoint.claimed:1:stop").wait_stopped()
    _dispose(early, savepoint, "--claimed").check()
    claiming.resume().wait().check_error(4, "missing-file")
    check_after(early)
    assert (savepoint.exists(), owned(early)) == (False, [])


def test_a_run_continues_when_the_deletion_of_a_claimed_savepoint_fails(early: AccountsJob, tmp_path: Path) -> None:
    """The deletion is tried again by each start and collection."""
    savepoint = path_of(early.create_savepoint("mine", "--into", str(tmp_path / "kept")))
    plan_claim(early, savepoint)
    execute(early).check()
    allowed = early.variables
    early.variables = {**allowed, "STATEFLOW_ALLOWED_LOCATIONS": str(tmp_path / "nothing")}
    release_checkpoint(early, 140)
    root_files.check_savepoint(savepoint)
    assert len(owned(early)) == 1
    early.variables = allowed
    early.collect()
    assert (savepoint.exists(), owned(early)) == (False, [])
