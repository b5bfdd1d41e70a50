"""Forks: killed at every step, tried again after the job went on, of other jobs, into places that are not empty."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import root_files
from tests.support.errors import ReportedError
from tests.support.job_fixture import ASKED, KILLED, AccountsJob, expected, multiset
from tests.support.processes import Ended

STEPS = sorted(n for n in ASKED if n.startswith("fork."))
SHADOW = ("--shadow", "--by", "ada")


@pytest.fixture
def job(box: AccountsJob) -> AccountsJob:
    """A job at its 50th event, with its newest checkpoint only."""
    box.settings = {"checkpoints__retained": 1, "checkpoints__collect_every": 1}
    box.run_to(50)
    return box


def _forked(job: AccountsJob, root: Path) -> AccountsJob:
    """The fork of a job, which writes to shadow tables beside the job's."""
    return AccountsJob(job.folder, {**job.settings, "local_dir": root.parent / "local"}, root_folder=root)


def _fork(job: AccountsJob, target: str, into: Path, *more: str, failpoint: str = "") -> Ended:
    return job.command("fork", target, "--into", str(into), *more, failpoint=failpoint)


def _check_shadow(job: AccountsJob, since: int) -> None:
    """The fork's own table has what came after its start."""
    assert multiset(job.rows("movements_shadow")) == multiset(expected(job.delivered).movements[since:])


@pytest.mark.parametrize("target", ["latest", "mine", "before:2999-01-01"])
@pytest.mark.parametrize("name", STEPS)
def test_one_that_was_killed_is_completed_by_the_same_command(
    job: AccountsJob, tmp_path: Path, name: str, target: str
) -> None:
    """Also when the job went on, and collected, and *latest* is another checkpoint by now."""
    origin = job.create_savepoint("mine")["id"] if target == "mine" else f"{job.job_uuid}/"
    forked = _forked(job, tmp_path / "fork")
    assert _fork(job, target, forked.root, *SHADOW, failpoint=name).code == KILLED
    begun = name != "fork.pinned"
    if begun and name != "fork.adopted":
        assert str(forked.run().check_error(2, "config").facts["of"]).startswith(origin)
    job.run_to(80)
    _fork(job, target, forked.root, *SHADOW).check()
    position = 50 if begun or target == "mine" else 80
    assert forked.head.position == position
    # Nothing is left in the job that it was made of: no pin, and no file that a pin had kept.
    assert job.head.doc["pinned"] == []
    assert len(job.records("fork")) == len(forked.records("fork")) == 1
    job.check()
    job.deliver(120)
    forked.finish()
    _check_shadow(job, since=position)


def test_every_step_has_a_failpoint() -> None:
    assert STEPS == ["fork.adopted", "fork.created", "fork.imported", "fork.pinned"]


@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["same file system", "other file system"])
def test_it_goes_its_own_way(
    early: AccountsJob, tmp_path: Path, request: pytest.FixtureRequest, is_elsewhere: bool
) -> None:
    """It changes nothing of the job's."""
    folder = request.getfixturevalue("elsewhere") if is_elsewhere else tmp_path
    forked = _forked(early, folder / "fork")
    own = (early.root / "log", early.root / "data", early.folder / "tables")
    before = root_files.digests(*own)
    _fork(early, "early", forked.root, *SHADOW).check()
    assert forked.job_uuid != early.job_uuid
    forked.finish()
    assert forked.head.position == 120
    _check_shadow(early, since=50)
    assert {p: d for p, d in root_files.digests(*own).items() if "_shadow/" not in p} == before
    early.check()


def _thesis(folder: Path) -> dict[str, object]:
    (folder / "thesis.txt").write_text("years of work")
    return {"found": "thesis.txt"}


def _another_job(folder: Path) -> dict[str, object]:
    AccountsJob(folder.parent / "other", root_folder=folder).run_to(10)
    return {"job": "accounts"}


@pytest.mark.parametrize("fill", [_thesis, _another_job])
def test_a_folder_that_holds_something_else_is_refused(
    job: AccountsJob, tmp_path: Path, fill: Callable[[Path], dict[str, object]]
) -> None:
    into = tmp_path / "into"
    into.mkdir()
    facts = {"root": into.as_uri(), **fill(into)}
    before = root_files.digests(into)
    refused = _fork(job, "latest", into)
    assert (refused.code, refused.error) == (2, ReportedError("config", facts)), str(refused)
    assert root_files.digests(into) == before
    assert job.head.doc["pinned"] == []


def test_another_job_s_savepoint_must_be_asked_for_and_brings_its_own_key_groups(
    job: AccountsJob, tmp_path: Path
) -> None:
    other = AccountsJob(tmp_path / "other", {"max_parallelism": 64, "name": "ledger"})
    other.run_to(70)
    theirs, into = other.create_savepoint("theirs")["path"], tmp_path / "fork"
    refused = _fork(job, theirs, into)
    refused.check_error(2, "config", job_uuid=other.job_uuid, this_job=job.job_uuid)
    assert "--from-other-job" in refused.err and not into.exists()
    _fork(job, theirs, into, *SHADOW, "--from-other-job").check()
    other.deliver(120)
    forked = _forked(other, into)
    forked.finish()
    # Each key's state was found again: a row of a key that was not would begin to count anew.
    _check_shadow(other, since=70)
    _forked(job, into).run().check_error(2, "wrong-job-root", found="ledger", wanted="accounts")
    status = forked.command("status", "--json").document
    assert status["shadow"] and "ledger" in status["origin"] and "theirs" in status["origin"]
