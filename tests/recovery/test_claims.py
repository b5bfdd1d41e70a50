"""Claim modes: who owns a savepoint after a restore or the start of a new job root, and who deletes it, and when.

The row *canonical-claim* of the scoreboard kills claims at each step, and lets them race with starts and deletions.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from tests.recovery.savepoints import NewRoot
from tests.support import root_files
from tests.support.job_fixture import KILLED, AccountsJob
from tests.support.restores import ask, check_after, everything, execute, go_back, plan

CLAIM = ("--claim-mode", "claim")


@pytest.fixture
def savepoint(early: AccountsJob) -> Path:
    """The folder of the job's savepoint, in its job root."""
    (folder,) = (early.root / "savepoints").iterdir()
    return folder


@pytest.fixture
def other(early: AccountsJob, tmp_path: Path) -> AccountsJob:
    """Another job with a few checkpoints, and input up to the 120th event."""
    other = AccountsJob(tmp_path / "other", early.settings)
    other.run_to(30)
    other.deliver(120)
    early.processes += other.processes
    return other


def _path(made: dict[str, Any]) -> Path:
    return Path(unquote(made["path"].removeprefix("file://")))


def _plan_claim(job: AccountsJob, savepoint: Path | str, *more: str) -> dict[str, Any]:
    return plan(job, str(savepoint), *CLAIM, *more)


def _claim(job: AccountsJob, savepoint: Path | str, *more: str) -> dict[str, Any]:
    planned = _plan_claim(job, savepoint, *more)
    execute(job).check()
    return planned


def _owned(job: AccountsJob) -> list[int]:
    """For each savepoint that the log names as claimed, the checkpoint that adopted its state; 0 before that."""
    return [claimed["checkpoint"] for claimed in job.head.doc["claimed_savepoints"]]


def _release_checkpoint(job: AccountsJob, until: int) -> None:
    """Runs the job so far that it releases every checkpoint that it has now."""
    job.settings = {**job.settings, "checkpoints__retained": 1}
    job.run_to(until)


# -- who deletes what -------------------------------------------------------------------------------------------------


@pytest.mark.slow(reason="needs as many runs as retained checkpoints")
def test_a_claimed_savepoint_is_deleted_once_no_retained_checkpoint_has_its_state(
    early: AccountsJob, savepoint: Path, tmp_path: Path
) -> None:
    before = everything(early)
    planned = _plan_claim(early, "early")
    assert (planned["claim_mode"], everything(early)) == ("claim", before)
    execute(early).check()
    (adopted,) = _owned(early)
    assert adopted == early.head.checkpoint
    status = early.command("status", "--json").check().document
    (claimed,) = status["claimed_savepoints"]
    assert claimed == {"name": "early", "path": savepoint.as_uri(), "checkpoint_id": adopted}
    (listed,) = early.command("savepoint", "list", "--json").check().document
    assert listed["claimed_by"] == {"job": "accounts", "job_uuid": early.job_uuid}
    # Until then it can be read like any other.
    early.command("savepoint", "verify", "early").check()
    forked = AccountsJob(early.folder, {**early.settings, "local_dir": tmp_path / "local"}, root_folder=tmp_path / "f")
    early.command("fork", "early", "--into", str(forked.root), "--shadow").check()
    early.replace_events(since=50)
    early.finish()
    early.collect()
    assert adopted in {ref["id"] for ref in root_files.kept_refs(early.root)}
    root_files.check_savepoint(savepoint)
    _release_checkpoint(early, 140)
    assert (savepoint.exists(), _owned(early)) == (False, [])
    (record,) = early.records("dispose")
    assert record["facts"]["savepoint"] == "early"
    (restored,) = early.records("restore")
    assert restored["facts"]["claim_mode"] == "claim"
    # What had been made of it does not depend on it.
    forked.finish()
    assert forked.head.position == len(early.delivered)
    early.command("verify", "--deep").check()


@pytest.mark.slow(reason="runs jobs many times")
def test_a_pin_of_its_checkpoint_keeps_a_claimed_savepoint(early: AccountsJob, savepoint: Path) -> None:
    _claim(early, "early")
    early.deliver(120)
    assert early.command("savepoint", "create", "--from-head", failpoint="savepoint.pinned").code == KILLED
    _release_checkpoint(early, 140)
    early.collect()
    (pin,) = early.head.doc["pinned"]
    assert (savepoint.exists(), _owned(early)) == (True, [pin["checkpoint"]["id"]])
    early.command("pins", "--drop", pin["id"]).check()
    early.collect()
    assert (savepoint.exists(), _owned(early)) == (False, [])


@pytest.mark.slow(reason="runs jobs many times")
def test_a_restore_that_undoes_the_claiming_one_releases_its_savepoint(early: AccountsJob, savepoint: Path) -> None:
    older = early.commit_at(40).seq
    _claim(early, "early")
    go_back(early, str(older))
    early.collect()
    assert (savepoint.exists(), _owned(early)) == (False, [])
    check_after(early, since=40)


def test_a_new_job_root_deletes_its_claimed_savepoint_after_its_first_checkpoint(roots: NewRoot) -> None:
    """A start that was killed is completed by the same command, which can stay in a schedule."""
    roots.new.settings = {**roots.new.settings, "checkpoints__retained": 1}
    assert roots.run(*CLAIM, failpoint="begin.imported").code == KILLED
    roots.run_to(50, *CLAIM)
    assert (root_files.claims(roots.savepoint), _owned(roots.new)) == ([("claimed", roots.new.job_uuid, 0)], [1])
    roots.run_to(120, *CLAIM)
    assert (roots.savepoint.exists(), _owned(roots.new)) == (False, [])
    (record,) = roots.new.records("fork")
    assert record["facts"]["claim_mode"] == "claim"
    roots.run_to(140, *CLAIM)
    roots.new.collect()
    root_files.check_no_orphans(roots.new.root)


@pytest.mark.parametrize("point", ["savepoint.claimed", "restore.intent"])
def test_a_killed_claim_is_undone_or_completed_by_the_next_start(
    early: AccountsJob, savepoint: Path, point: str
) -> None:
    """Until the restore's intent is written, a start undoes the claim, and any job can claim the savepoint."""
    is_intended = point == "restore.intent"
    _plan_claim(early, "early")
    assert execute(early, failpoint=point).code == KILLED
    early.finish()
    assert bool(_owned(early)) == is_intended
    if not is_intended:
        _claim(early, "early")
    _release_checkpoint(early, 140)
    assert (savepoint.exists(), _owned(early)) == (False, [])
    early.check()


# -- concurrent runs and deletions ------------------------------------------------------------------------------------


@pytest.mark.slow(reason="runs jobs many times")
def test_a_run_continues_when_the_deletion_of_a_claimed_savepoint_fails(early: AccountsJob, tmp_path: Path) -> None:
    """The deletion is tried again by each start and collection."""
    savepoint = _path(early.create_savepoint("mine", "--into", str(tmp_path / "kept")))
    _claim(early, savepoint)
    allowed = early.variables
    early.variables = {**allowed, "STATEFLOW_ALLOWED_LOCATIONS": str(tmp_path / "nothing")}
    _release_checkpoint(early, 140)
    root_files.check_savepoint(savepoint)
    assert len(_owned(early)) == 1
    early.variables = allowed
    early.collect()
    assert (savepoint.exists(), _owned(early)) == (False, [])


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_a_savepoint_cannot_be_claimed_twice(
    early: AccountsJob, other: AccountsJob, savepoint: Path, tmp_path: Path
) -> None:
    """By the same job, by another one, or by a new job root; nothing is changed, and no run is fenced."""
    _plan_claim(other, savepoint, "--from-other-job")
    _claim(early, "early")
    before = everything(other), root_files.digests(savepoint)
    facts = {"savepoint": savepoint.as_uri(), "job_uuid": early.job_uuid, "job_root": early.root.as_uri()}
    execute(other).check_error(2, "savepoint-claimed", **facts)
    ask(other, str(savepoint), *CLAIM, "--from-other-job").check_error(2, "savepoint-claimed", **facts)
    ask(early, "early", *CLAIM).check_error(2, "savepoint-claimed", savepoint=savepoint.as_uri())
    new = AccountsJob(early.folder, early.settings, root_folder=tmp_path / "new")
    begun = ("run", new.job_file, "--from-savepoint", str(savepoint), "--set", f"job.tables={tmp_path / 'tables'}")
    new.command(*begun, *CLAIM, with_job=True).check_error(2, "savepoint-claimed", **facts)
    assert (everything(other), root_files.digests(savepoint), new.root.exists()) == (*before, False)
    # Without a claim it can be used as long as it exists.
    new.command(*begun, with_job=True).check()
    go_back(other, str(savepoint), "--from-other-job")


def test_only_a_savepoint_can_be_claimed(early: AccountsJob, savepoint: Path) -> None:
    ask(early, "latest", *CLAIM).check_error(2, "config", target=f"checkpoint {early.head.checkpoint}")
    early.command("run", early.job_file, *CLAIM, with_job=True).check_error(2, "config")
    plan(early, "early")
    execute(early, *CLAIM).check_error(2, "config")
    assert root_files.claims(savepoint) == []


def test_a_claimed_savepoint_is_disposed_of_by_a_user_only_with_an_option(early: AccountsJob, savepoint: Path) -> None:
    _claim(early, "early")
    for name in ("early", savepoint.name, str(savepoint)):
        refused = early.command("savepoint", "dispose", name).check_error(2, "savepoint-claimed")
        assert refused.facts["job_uuid"] == early.job_uuid
    root_files.check_savepoint(savepoint)
    early.command("savepoint", "dispose", "early", "--claimed").check()
    assert (savepoint.exists(), len(_owned(early))) == (False, 1)
    _release_checkpoint(early, 140)
    assert _owned(early) == []


def test_retention_neither_deletes_nor_counts_claimed_savepoints(idle_job: AccountsJob) -> None:
    folders = [_path(idle_job.create_savepoint(name, "--origin", "periodic")) for name in ("p1", "p2", "p3")]
    _claim(idle_job, "p3")
    pruned = idle_job.command("savepoint", "prune", "--keep", "1", "--json").check().document
    assert (pruned["deleted"], pruned["uncounted"]) == (["p1"], [folders[2].as_uri()])
    assert [folder.exists() for folder in folders] == [False, True, True]


@pytest.mark.slow(reason="runs jobs many times")
def test_the_savepoint_of_a_deleted_job_root_can_be_used_and_deleted(roots: NewRoot) -> None:
    """The job that claimed it no longer exists to delete it."""
    roots.run_to(50, *CLAIM)
    claimed_by = roots.new.job_uuid
    shutil.rmtree(roots.new.root)
    shutil.rmtree(roots.tables)
    roots.run(*CLAIM).check_error(2, "savepoint-claimed", job_uuid=claimed_by, job_root=roots.new.root.as_uri())
    roots.run_to(120)
    dispose = ("savepoint", "dispose", str(roots.savepoint))
    roots.new.command(*dispose).check_error(2, "savepoint-claimed", job_uuid=claimed_by)
    roots.new.command(*dispose, "--claimed").check()
    assert not roots.savepoint.exists()
