"""Claims that are killed at each step are completed or undone, by the same command or by the next start."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recovery.claims.claims import CLAIM, listed, make_other_job, owned, path_of, plan_claim, release_checkpoint
from tests.recovery.new_roots import NewRoot
from tests.support import root_files
from tests.support.job_fixture import KILLED, AccountsJob
from tests.support.restores import check_after, execute

BEFORE_THE_INTENT = ("restore.begin", "restore.claimed", "savepoint.claimed", "restore.imported")
DELETING = ("savepoint.disposing", "savepoint.disposed", "savepoint.collected")
AFTER_THE_INTENT = ("restore.intent", "rewind.table", "rewind.tables", "rewind.recorded", "rewind.done")


@pytest.mark.parametrize("name", BEFORE_THE_INTENT)
def test_a_claim_that_is_killed_before_its_intent_is_undone_by_the_next_start(
    early: AccountsJob, savepoint: Path, tmp_path: Path, name: str
) -> None:
    plan_claim(early, "early")
    assert execute(early, failpoint=name).code == KILLED
    assert owned(early) == ([] if name == "restore.begin" else [0])
    check_after(early)
    assert (owned(early), listed(early)["claimed_by"]) == ([], "")
    # Any job can claim it now.
    other = make_other_job(early, tmp_path, "other")
    plan_claim(other, savepoint, "--from-other-job")
    execute(other).check()
    assert root_files.claims(savepoint)[-1][:2] == ("claimed", other.job_uuid)
    release_checkpoint(other, 140)
    assert not savepoint.exists()


@pytest.mark.parametrize("name", ["savepoint.claimed", "restore.imported", *AFTER_THE_INTENT])
def test_a_killed_claim_is_completed_by_the_same_command(early: AccountsJob, savepoint: Path, name: str) -> None:
    plan_claim(early, "early")
    assert execute(early, failpoint=name).code == KILLED
    execute(early).check()
    assert owned(early) == [early.head.checkpoint]
    early.replace_events(since=50)
    release_checkpoint(early, 140)
    assert (savepoint.exists(), owned(early)) == (False, [])
    assert early.head.position == 140


@pytest.mark.parametrize("name", AFTER_THE_INTENT)
def test_a_claim_that_is_killed_after_its_intent_is_completed_by_the_next_start(
    early: AccountsJob, savepoint: Path, name: str
) -> None:
    plan_claim(early, "early")
    assert execute(early, failpoint=name).code == KILLED
    (adopted,) = owned(early)
    early.finish()
    assert (owned(early), listed(early)["claimed_by"]) == ([adopted], f"accounts {early.job_uuid}")
    release_checkpoint(early, 140)
    assert (savepoint.exists(), owned(early)) == (False, [])
    early.check()


@pytest.mark.parametrize("is_of_a_run", [True, False], ids=["run", "command"])
def test_a_killed_undoing_of_a_claim_is_completed(early: AccountsJob, savepoint: Path, is_of_a_run: bool) -> None:
    plan_claim(early, "early")
    assert execute(early, failpoint="savepoint.claimed").code == KILLED
    early.reach("savepoint.released")
    assert owned(early) == [0]
    if is_of_a_run:
        early.finish()
    else:
        early.collect()
    assert (owned(early), root_files.claims(savepoint)[-1][0]) == ([], "released")
    check_after(early)


@pytest.mark.parametrize("place", ["job root", "outside"])
@pytest.mark.parametrize("name", DELETING)
def test_a_killed_deletion_of_a_claimed_savepoint_is_completed_by_the_next_start(
    early: AccountsJob, tmp_path: Path, name: str, place: str
) -> None:
    into = () if place == "job root" else ("--into", str(tmp_path / "kept"))
    savepoint = path_of(early.create_savepoint("mine", *into))
    plan_claim(early, savepoint)
    execute(early).check()
    early.deliver(140)
    early.reach(name, checkpoints__retained=1)
    assert len(owned(early)) == 1
    # New rows make each subtask replace what the killed run left on this host.
    early.run_to(160, checkpoints__retained=1)
    assert (savepoint.exists(), owned(early)) == (False, [])
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
    assert owned(roots.new) == ([1] if is_claimed else [])
    states = [state for state, *_ in root_files.claims(roots.savepoint)]
    assert states[-1:] == (["claimed"] if is_claimed else ["released"] if states else [])
    roots.new.settings = {**roots.new.settings, "checkpoints__retained": 1}
    roots.run_to(140, *again)
    assert roots.savepoint.exists() != is_claimed
    if not is_claimed:
        root_files.check_savepoint(roots.savepoint)
