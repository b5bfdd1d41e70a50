"""Claim modes: who owns a savepoint after a restore or the start of a new job root, and who deletes it, and when."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from tests.recovery.new_roots import NewRoot
from tests.support import root_files
from tests.support.job_fixture import KILLED, AccountsJob, expected, multiset
from tests.support.processes import Ended
from tests.support.restores import ask, begin, check_after, everything, execute, go_back, plan

CLAIM = ("--claim-mode", "claim")
DELETING = ("savepoint.disposing", "savepoint.disposed", "savepoint.collected")


def _path(made: dict[str, Any]) -> Path:
    return Path(unquote(made["path"].removeprefix("file://")))


@pytest.fixture
def savepoint(early: AccountsJob) -> Path:
    """The folder of the job's savepoint, in its job root."""
    (folder,) = (early.root / "savepoints").iterdir()
    return folder


@pytest.fixture
def other(early: AccountsJob, tmp_path: Path) -> AccountsJob:
    """Another job with a few checkpoints, and input up to the 120th event."""
    return _other_job(early, tmp_path, "other")


@pytest.fixture
def roots(job: AccountsJob, tmp_path: Path) -> NewRoot:
    return NewRoot(job, tmp_path)


def _other_job(early: AccountsJob, folder: Path, name: str) -> AccountsJob:
    other = AccountsJob(folder / name, early.settings)
    other.run_to(30)
    other.deliver(120)
    early.processes += other.processes
    return other


def _plan_claim(job: AccountsJob, savepoint: Path | str, *more: str) -> dict[str, Any]:
    return plan(job, str(savepoint), *CLAIM, *more)


def _owned(job: AccountsJob) -> list[int]:
    """For each savepoint that the log names as claimed, the checkpoint that adopted its state; 0 before that."""
    return [claimed["checkpoint"] for claimed in job.head.doc["claimed_savepoints"]]


def _listed(job: AccountsJob, name: str = "early") -> dict[str, Any]:
    savepoints = job.command("savepoint", "list", "--json").check().document
    (found,) = [each for each in savepoints if each["name"] == name]
    return dict(found)


def _release_checkpoint(job: AccountsJob, until: int) -> None:
    """Runs the job so far that it releases every checkpoint that it has now."""
    job.settings = {**job.settings, "checkpoints__retained": 1}
    job.run_to(until)


# -- who deletes what --------------------------------------------------------------------------------------------------


def test_without_a_claim_a_savepoint_is_never_changed_or_deleted(early: AccountsJob, savepoint: Path) -> None:
    before = root_files.digests(savepoint)
    assert go_back(early, "early")["claim_mode"] == "no-claim"
    assert (_owned(early), _listed(early)["claimed_by"]) == ([], "")
    _release_checkpoint(early, 140)
    early.check()
    assert root_files.digests(savepoint) == before


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
    assert status["claimed"] == [{"name": "early", "path": savepoint.as_uri(), "checkpoint": adopted}]
    assert _listed(early)["claimed_by"] == f"accounts {early.job_uuid}"
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


def test_a_pin_of_its_checkpoint_keeps_a_claimed_savepoint(early: AccountsJob, savepoint: Path) -> None:
    _plan_claim(early, "early")
    execute(early).check()
    early.deliver(120)
    assert early.command("savepoint", "create", "--from-head", failpoint="savepoint.pinned").code == KILLED
    _release_checkpoint(early, 140)
    early.collect()
    (pin,) = early.head.doc["pinned"]
    assert (savepoint.exists(), _owned(early)) == (True, [pin["checkpoint"]["id"]])
    early.command("pins", "--drop", pin["id"]).check()
    early.collect()
    assert (savepoint.exists(), _owned(early)) == (False, [])


def test_a_restore_that_undoes_the_claiming_one_releases_its_savepoint(early: AccountsJob, savepoint: Path) -> None:
    older = early.commit_at(40).seq
    _plan_claim(early, "early")
    execute(early).check()
    go_back(early, str(older))
    early.collect()
    assert (savepoint.exists(), _owned(early)) == (False, [])
    check_after(early, since=40)


@pytest.mark.parametrize("place", ["same file system", "other file system"])
def test_a_job_can_claim_a_savepoint_of_another_job(
    early: AccountsJob, other: AccountsJob, request: pytest.FixtureRequest, tmp_path: Path, place: str
) -> None:
    kept = tmp_path if place == "same file system" else request.getfixturevalue("elsewhere")
    savepoint = _path(early.create_savepoint("theirs", "--into", str(kept / "kept")))
    planned = _plan_claim(other, savepoint, "--from-other-job")
    assert planned["savepoint"] == savepoint.as_uri()
    execute(other).check()
    (listed,) = early.shell(f"stateflow savepoint list --in {kept / 'kept'} --json").document
    assert listed["claimed_by"] == f"accounts {other.job_uuid}"
    _release_checkpoint(other, 140)
    assert (list((kept / "kept").iterdir()), _owned(other)) == ([], [])
    assert other.head.position == 140
    other.check_clean()


def test_a_new_job_root_deletes_its_claimed_savepoint_after_its_first_checkpoint(roots: NewRoot) -> None:
    roots.new.settings = {**roots.new.settings, "checkpoints__retained": 1}
    roots.run_to(50, *CLAIM)
    assert (root_files.claims(roots.savepoint), _owned(roots.new)) == ([("claimed", roots.new.job_uuid, 0)], [1])
    roots.run_to(120, *CLAIM)
    assert (roots.savepoint.exists(), _owned(roots.new)) == (False, [])
    (record,) = roots.new.records("fork")
    assert record["facts"]["claim_mode"] == "claim"
    # The same command can stay in a schedule.
    roots.run_to(140, *CLAIM)
    roots.new.collect()
    root_files.check_no_orphans(roots.new.root)


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_a_savepoint_cannot_be_claimed_twice(
    early: AccountsJob, other: AccountsJob, savepoint: Path, tmp_path: Path
) -> None:
    """By the same job, by another one, or by a new job root; nothing is changed, and no run is fenced."""
    _plan_claim(other, savepoint, "--from-other-job")
    _plan_claim(early, "early")
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
    _plan_claim(early, "early")
    execute(early).check()
    for name in ("early", savepoint.name, str(savepoint)):
        refused = early.command("savepoint", "dispose", name).check_error(2, "savepoint-claimed")
        assert refused.facts["job_uuid"] == early.job_uuid
    root_files.check_savepoint(savepoint)
    early.command("savepoint", "dispose", "early", "--claimed").check()
    assert (savepoint.exists(), len(_owned(early))) == (False, 1)
    _release_checkpoint(early, 140)
    assert _owned(early) == []
    check_after(early)


def test_retention_neither_deletes_nor_counts_claimed_savepoints(idle_job: AccountsJob) -> None:
    folders = [_path(idle_job.create_savepoint(name, "--origin", "periodic")) for name in ("p1", "p2", "p3")]
    _plan_claim(idle_job, "p3")
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


# -- kills -------------------------------------------------------------------------------------------------------------


BEFORE_THE_INTENT = ("restore.begin", "restore.claimed", "savepoint.claimed", "restore.imported")
AFTER_THE_INTENT = ("restore.intent", "rewind.table", "rewind.tables", "rewind.recorded", "rewind.done")


@pytest.mark.parametrize("name", BEFORE_THE_INTENT)
def test_a_claim_that_is_killed_before_its_intent_is_undone_by_the_next_start(
    early: AccountsJob, savepoint: Path, tmp_path: Path, name: str
) -> None:
    _plan_claim(early, "early")
    assert execute(early, failpoint=name).code == KILLED
    assert _owned(early) == ([] if name == "restore.begin" else [0])
    check_after(early)
    assert (_owned(early), _listed(early)["claimed_by"]) == ([], "")
    # Any job can claim it now.
    other = _other_job(early, tmp_path, "other")
    _plan_claim(other, savepoint, "--from-other-job")
    execute(other).check()
    assert root_files.claims(savepoint)[-1][:2] == ("claimed", other.job_uuid)
    _release_checkpoint(other, 140)
    assert not savepoint.exists()


@pytest.mark.parametrize("name", ["savepoint.claimed", "restore.imported", *AFTER_THE_INTENT])
def test_a_killed_claim_is_completed_by_the_same_command(early: AccountsJob, savepoint: Path, name: str) -> None:
    _plan_claim(early, "early")
    assert execute(early, failpoint=name).code == KILLED
    execute(early).check()
    assert _owned(early) == [early.head.checkpoint]
    early.replace_events(since=50)
    _release_checkpoint(early, 140)
    assert (savepoint.exists(), _owned(early)) == (False, [])
    assert early.head.position == 140


@pytest.mark.parametrize("name", AFTER_THE_INTENT)
def test_a_claim_that_is_killed_after_its_intent_is_completed_by_the_next_start(
    early: AccountsJob, savepoint: Path, name: str
) -> None:
    _plan_claim(early, "early")
    assert execute(early, failpoint=name).code == KILLED
    (adopted,) = _owned(early)
    early.finish()
    assert (_owned(early), _listed(early)["claimed_by"]) == ([adopted], f"accounts {early.job_uuid}")
    _release_checkpoint(early, 140)
    assert (savepoint.exists(), _owned(early)) == (False, [])
    early.check()


@pytest.mark.parametrize("is_of_a_run", [True, False], ids=["run", "command"])
def test_a_killed_undoing_of_a_claim_is_completed(early: AccountsJob, savepoint: Path, is_of_a_run: bool) -> None:
    _plan_claim(early, "early")
    assert execute(early, failpoint="savepoint.claimed").code == KILLED
    early.reach("savepoint.released")
    assert _owned(early) == [0]
    if is_of_a_run:
        early.finish()
    else:
        early.collect()
    assert (_owned(early), root_files.claims(savepoint)[-1][0]) == ([], "released")
    check_after(early)


@pytest.mark.parametrize("place", ["job root", "outside"])
@pytest.mark.parametrize("name", DELETING)
def test_a_killed_deletion_of_a_claimed_savepoint_is_completed_by_the_next_start(
    early: AccountsJob, tmp_path: Path, name: str, place: str
) -> None:
    into = () if place == "job root" else ("--into", str(tmp_path / "kept"))
    savepoint = _path(early.create_savepoint("mine", *into))
    _plan_claim(early, savepoint)
    execute(early).check()
    early.deliver(140)
    early.reach(name, checkpoints__retained=1)
    assert len(_owned(early)) == 1
    # New rows make each subtask replace what the killed run left on this host.
    early.run_to(160, checkpoints__retained=1)
    assert (savepoint.exists(), _owned(early)) == (False, [])
    early.check()


@pytest.mark.parametrize("name", ["begin.created", "savepoint.claimed", "begin.imported", "begin.adopted"])
@pytest.mark.parametrize("again", [CLAIM, ()], ids=["claim", "no-claim"])
def test_a_killed_start_that_claims_is_completed_or_undone_by_the_same_command(
    roots: NewRoot, name: str, again: tuple[str, ...]
) -> None:
    """As the repeated command says; a complete job root has claimed its savepoint, whatever is said later."""
    roots.new.deliver(120)
    roots.new.settings = {**roots.new.settings, "checkpoints__retained": 100}
    assert roots.run(*CLAIM, failpoint=name).code == KILLED
    roots.run_to(120, *again)
    is_claimed = bool(again) or name == "begin.adopted"
    assert _owned(roots.new) == ([1] if is_claimed else [])
    states = [state for state, *_ in root_files.claims(roots.savepoint)]
    assert states[-1:] == (["claimed"] if is_claimed else ["released"] if states else [])
    roots.new.settings = {**roots.new.settings, "checkpoints__retained": 1}
    roots.run_to(140, *again)
    assert roots.savepoint.exists() != is_claimed
    if not is_claimed:
        root_files.check_savepoint(roots.savepoint)


# -- concurrent processes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["restore.claimed", "savepoint.claimed", "restore.imported"])
def test_a_claim_that_a_start_has_undone_does_not_return_when_its_process_wakes(
    early: AccountsJob, savepoint: Path, name: str
) -> None:
    _plan_claim(early, "early")
    claiming = begin(early, failpoint=f"{name}:1:stop").wait_stopped()
    early.finish()
    before = root_files.claims(savepoint)
    assert before[-1][0] == "released"
    claiming.resume().wait().check_error(3, "fenced")
    assert (root_files.claims(savepoint), _owned(early)) == (before, [])
    check_after(early)


@pytest.mark.parametrize("name", ["commit.after:3", "gc.listed:2", "batch.begin:3"])
def test_an_old_run_resumed_after_a_claim_neither_releases_nor_deletes_the_savepoint(
    early: AccountsJob, savepoint: Path, name: str
) -> None:
    early.deliver(200)
    early.settings = {**early.settings, "checkpoints__collect_every": 1}
    sleeper = early.start(f"{name}:stop").wait_stopped()
    _plan_claim(early, "early")
    execute(early).check()
    before = root_files.digests(savepoint), _owned(early)
    sleeper.resume().wait().check_error(3, "fenced")
    assert (root_files.digests(savepoint), _owned(early)) == before
    check_after(early, since=50)


def test_one_of_two_jobs_that_claim_a_savepoint_concurrently_owns_the_savepoint(
    early: AccountsJob, savepoint: Path, tmp_path: Path
) -> None:
    jobs = [_other_job(early, tmp_path, f"other-{number}") for number in range(2)]
    for job in jobs:
        _plan_claim(job, savepoint, "--from-other-job")
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
    assert (root_files.claims(savepoint), _owned(loser)) == (
        [("claimed", winner.job_uuid, winner.head.doc["claimed_savepoints"][0]["generation"])],
        [],
    )
    _release_checkpoint(winner, 140)
    assert not savepoint.exists()


def _dispose(job: AccountsJob, savepoint: Path, *more: str) -> Ended:
    return job.command("savepoint", "dispose", str(savepoint), *more)


def test_a_deletion_that_comes_before_a_claim_wins(early: AccountsJob, savepoint: Path) -> None:
    _plan_claim(early, "early")
    claiming = begin(early, failpoint="restore.claimed:1:stop").wait_stopped()
    deleting = early.begin("savepoint", "dispose", "early", failpoint="savepoint.disposing:1:stop").wait_stopped()
    claiming.resume().wait().check_error(2, "config", savepoint=savepoint.as_uri())
    deleting.resume().wait().check()
    assert not savepoint.exists()
    check_after(early)
    assert _owned(early) == []


@pytest.mark.parametrize("is_forced", [False, True])
def test_a_claim_that_comes_before_a_deletion_wins_and_needs_no_file_after_its_intent(
    early: AccountsJob, savepoint: Path, is_forced: bool
) -> None:
    _plan_claim(early, "early")
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
    _plan_claim(early, "early")
    claiming = begin(early, failpoint="savepoint.claimed:1:stop").wait_stopped()
    _dispose(early, savepoint, "--claimed").check()
    claiming.resume().wait().check_error(4, "missing-file")
    check_after(early)
    assert (savepoint.exists(), _owned(early)) == (False, [])


def test_a_run_continues_when_the_deletion_of_a_claimed_savepoint_fails(early: AccountsJob, tmp_path: Path) -> None:
    """The deletion is tried again by each start and collection."""
    savepoint = _path(early.create_savepoint("mine", "--into", str(tmp_path / "kept")))
    _plan_claim(early, savepoint)
    execute(early).check()
    allowed = early.variables
    early.variables = {**allowed, "STATEFLOW_ALLOWED_LOCATIONS": str(tmp_path / "nothing")}
    _release_checkpoint(early, 140)
    root_files.check_savepoint(savepoint)
    assert len(_owned(early)) == 1
    early.variables = allowed
    early.collect()
    assert (savepoint.exists(), _owned(early)) == (False, [])
