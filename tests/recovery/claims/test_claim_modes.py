"""Claim modes: who owns a savepoint after a restore or the start of a new job root, and who deletes it, and when."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.recovery.claims.claims import CLAIM, listed, owned, path_of, plan_claim, release_checkpoint
from tests.recovery.new_roots import NewRoot
from tests.support import root_files
from tests.support.job_fixture import KILLED, AccountsJob
from tests.support.restores import ask, check_after, everything, execute, go_back, plan

# -- who deletes what -------------------------------------------------------------------------------------------------


def test_without_a_claim_a_savepoint_is_never_changed_or_deleted(early: AccountsJob, savepoint: Path) -> None:
    before = root_files.digests(savepoint)
    assert go_back(early, "early")["claim_mode"] == "no-claim"
    assert (owned(early), listed(early)["claimed_by"]) == ([], "")
    release_checkpoint(early, 140)
    early.check()
    assert root_files.digests(savepoint) == before


def test_a_claimed_savepoint_is_deleted_once_no_retained_checkpoint_has_its_state(
    early: AccountsJob, savepoint: Path, tmp_path: Path
) -> None:
    before = everything(early)
    planned = plan_claim(early, "early")
    assert (planned["claim_mode"], everything(early)) == ("claim", before)
    execute(early).check()
    (adopted,) = owned(early)
    assert adopted == early.head.checkpoint
    status = early.command("status", "--json").check().document
    assert status["claimed"] == [{"name": "early", "path": savepoint.as_uri(), "checkpoint": adopted}]
    assert listed(early)["claimed_by"] == f"accounts {early.job_uuid}"
    # Until then it can be read like any other.
    root_files.check_savepoint(savepoint)
    early.command("savepoint", "verify", "early").check()
    forked = AccountsJob(early.folder, {**early.settings, "local_dir": tmp_path / "local"}, root_folder=tmp_path / "f")
    early.command("fork", "early", "--into", str(forked.root), "--shadow").check()
    early.replace_events(since=50)
    early.finish()
    early.collect()
    assert adopted in {ref["id"] for ref in root_files.kept_refs(early.root)}
    root_files.check_savepoint(savepoint)
    release_checkpoint(early, 140)
    assert (savepoint.exists(), owned(early)) == (False, [])
    (record,) = early.records("dispose")
    assert record["facts"]["savepoint"] == "early"
    (restored,) = early.records("restore")
    assert restored["facts"]["claim_mode"] == "claim"
    # What had been made of it does not depend on it.
    forked.finish()
    assert forked.head.position == len(early.delivered)
    early.command("verify", "--deep").check()


def test_a_pin_of_its_checkpoint_keeps_a_claimed_savepoint(early: AccountsJob, savepoint: Path) -> None:
    plan_claim(early, "early")
    execute(early).check()
    early.deliver(120)
    assert early.command("savepoint", "create", "--from-head", failpoint="savepoint.pinned").code == KILLED
    release_checkpoint(early, 140)
    early.collect()
    (pin,) = early.head.doc["pinned"]
    assert (savepoint.exists(), owned(early)) == (True, [pin["checkpoint"]["id"]])
    early.command("pins", "--drop", pin["id"]).check()
    early.collect()
    assert (savepoint.exists(), owned(early)) == (False, [])


def test_a_restore_that_undoes_the_claiming_one_releases_its_savepoint(early: AccountsJob, savepoint: Path) -> None:
    older = early.commit_at(40).seq
    plan_claim(early, "early")
    execute(early).check()
    go_back(early, str(older))
    early.collect()
    assert (savepoint.exists(), owned(early)) == (False, [])
    check_after(early, since=40)


@pytest.mark.parametrize("place", ["same file system", "other file system"])
def test_a_job_can_claim_a_savepoint_of_another_job(
    early: AccountsJob, other: AccountsJob, request: pytest.FixtureRequest, tmp_path: Path, place: str
) -> None:
    kept = tmp_path if place == "same file system" else request.getfixturevalue("elsewhere")
    savepoint = path_of(early.create_savepoint("theirs", "--into", str(kept / "kept")))
    planned = plan_claim(other, savepoint, "--from-other-job")
    assert planned["savepoint"] == savepoint.as_uri()
    execute(other).check()
    (listed,) = early.shell(f"stateflow savepoint list --in {kept / 'kept'} --json").document
    assert listed["claimed_by"] == f"accounts {other.job_uuid}"
    release_checkpoint(other, 140)
    assert (list((kept / "kept").iterdir()), owned(other)) == ([], [])
    assert other.head.position == 140
    other.check_clean()


def test_a_new_job_root_deletes_its_claimed_savepoint_after_its_first_checkpoint(roots: NewRoot) -> None:
    roots.new.settings = {**roots.new.settings, "checkpoints__retained": 1}
    roots.run_to(50, *CLAIM)
    assert (root_files.claims(roots.savepoint), owned(roots.new)) == ([("claimed", roots.new.job_uuid, 0)], [1])
    roots.run_to(120, *CLAIM)
    assert (roots.savepoint.exists(), owned(roots.new)) == (False, [])
    (record,) = roots.new.records("fork")
    assert record["facts"]["claim_mode"] == "claim"
    # The same command can stay in a schedule.
    roots.run_to(140, *CLAIM)
    roots.new.collect()
    root_files.check_no_orphans(roots.new.root)


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_a_savepoint_cannot_be_claimed_twice(
    early: AccountsJob, other: AccountsJob, savepoint: Path, tmp_path: Path
) -> None:
    """By the same job, by another one, or by a new job root; nothing is changed, and no run is fenced."""
    plan_claim(other, savepoint, "--from-other-job")
    plan_claim(early, "early")
    execute(early).check()
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
    go_back(early, "early")


def test_only_a_savepoint_can_be_claimed(early: AccountsJob, savepoint: Path) -> None:
    ask(early, "latest", *CLAIM).check_error(2, "config", target=f"checkpoint {early.head.checkpoint}")
    early.command("run", early.job_file, *CLAIM, with_job=True).check_error(2, "config")
    plan(early, "early")
    execute(early, *CLAIM).check_error(2, "config")
    assert root_files.claims(savepoint) == []


def test_a_claimed_savepoint_is_disposed_of_by_a_user_only_with_an_option(early: AccountsJob, savepoint: Path) -> None:
    plan_claim(early, "early")
    execute(early).check()
    for name in ("early", savepoint.name, str(savepoint)):
        refused = early.command("savepoint", "dispose", name).check_error(2, "savepoint-claimed")
        assert refused.facts["job_uuid"] == early.job_uuid
    root_files.check_savepoint(savepoint)
    early.command("savepoint", "dispose", "early", "--claimed").check()
    assert (savepoint.exists(), len(owned(early))) == (False, 1)
    release_checkpoint(early, 140)
    assert owned(early) == []
    check_after(early)


def test_retention_neither_deletes_nor_counts_claimed_savepoints(idle_job: AccountsJob) -> None:
    folders = [path_of(idle_job.create_savepoint(name, "--origin", "periodic")) for name in ("p1", "p2", "p3")]
    plan_claim(idle_job, "p3")
    execute(idle_job).check()
    pruned = idle_job.command("savepoint", "prune", "--keep", "1", "--json").check().document
    assert (pruned["deleted"], pruned["uncounted"]) == (["p1"], [folders[2].as_uri()])
    assert [folder.exists() for folder in folders] == [False, True, True]


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
