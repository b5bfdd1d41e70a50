"""Forks: killed at every step, tried again after the job went on, of other jobs, into places that are not empty."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import root_files
from tests.support.errors import ReportedError
from tests.support.job_fixture import ASKED, AccountsJob, expected, multiset

STEPS = sorted(n for n in ASKED if n.startswith("fork."))


@pytest.fixture
def job(box: AccountsJob) -> AccountsJob:
    """A job at its 50th event, with its newest checkpoint only."""
    box.settings = {"checkpoints__retained": 1, "checkpoints__collect_every": 1}
    box.deliver(50)
    box.finish()
    return box


def _forked(job: AccountsJob, root: Path) -> AccountsJob:
    """The fork of a job, which writes to shadow tables beside the job's."""
    forked = AccountsJob(job.folder, {**job.settings, "local_dir": root.parent / "local"})
    forked.root_folder = root
    return forked


def _fork(job: AccountsJob, target: str, into: Path, *more: str, failpoint: str = "") -> int:
    arguments = ("fork", target, "--into", str(into), "--shadow", "--by", "ada", *more)
    return job.command(*arguments, failpoint=failpoint).code


@pytest.mark.parametrize("target", ["latest", "mine", "before:2999-01-01"])
@pytest.mark.parametrize("name", STEPS)
def test_one_that_was_killed_is_completed_by_the_same_command(
    job: AccountsJob, tmp_path: Path, name: str, target: str
) -> None:
    """Also when the job went on, and collected, and *latest* is another checkpoint by now."""
    if target == "mine":
        assert job.command("savepoint", "create", "--name", "mine").code == 0
    forked = _forked(job, tmp_path / "fork")
    assert _fork(job, target, forked.root, failpoint=name) == -9
    begun = name != "fork.pinned"
    if begun and name != "fork.adopted":
        refused = forked.run()
        assert (refused.code, refused.error.code) == (2, "config"), str(refused)
        assert refused.error.facts["of"].startswith(_origin(job, target))
    job.deliver(80)
    job.finish()
    assert _fork(job, target, forked.root) == 0
    position = 50 if begun or target == "mine" else 80
    assert root_files.head(forked.root).position == position
    # Nothing is left in the job that it was made of: no pin, and no file that a pin had kept.
    assert root_files.head(job.root).doc["pinned"] == []
    for root in (job.root, forked.root):
        assert [r["kind"] for r in root_files.history(root) if r.get("kind") == "fork"] == ["fork"]
    job.check_results()
    job.check_clean()
    job.deliver(120)
    forked.finish()
    shadow = multiset(root_files.folder_rows(job.folder / "tables" / "movements_shadow"))
    assert shadow == multiset(expected(job.delivered).movements[position:])


def _origin(job: AccountsJob, target: str) -> str:
    """What a fork's format names: the savepoint, or the job and its checkpoint."""
    if target == "mine":
        return str(root_files.savepoints(job.root)["mine"]["id"])
    return f"{_uuid(job)}/"


def _uuid(job: AccountsJob) -> str:
    return str(root_files.unsealed((job.root / "FORMAT").read_bytes())[0]["job_uuid"])


def test_every_step_has_a_failpoint() -> None:
    assert STEPS == ["fork.adopted", "fork.created", "fork.imported", "fork.pinned"]


def test_a_folder_that_holds_something_else_is_refused(job: AccountsJob, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.txt").write_text("years of work")
    into = tmp_path / "thesis"
    refused = job.command("fork", "latest", "--into", str(into))
    facts = {"root": into.as_uri(), "found": "thesis.txt"}
    assert (refused.code, refused.error) == (2, ReportedError("config", facts)), str(refused)
    assert [p.name for p in (tmp_path / "thesis").iterdir()] == ["thesis.txt"]
    assert root_files.head(job.root).doc["pinned"] == []


def test_another_job_s_savepoint_must_be_asked_for_and_brings_its_own_key_groups(
    job: AccountsJob, tmp_path: Path
) -> None:
    other = AccountsJob(tmp_path / "other", {"max_parallelism": 64, "name": "ledger"})
    other.deliver(70)
    other.finish()
    made = json.loads(other.command("savepoint", "create", "--name", "theirs", "--json").out)
    refused = job.command("fork", made["path"], "--into", str(tmp_path / "fork"))
    assert (refused.code, refused.error.code) == (2, "config") and "--from-other-job" in refused.err, str(refused)
    assert (refused.error.facts["job_uuid"], refused.error.facts["this_job"]) == (_uuid(other), _uuid(job))
    assert not (tmp_path / "fork").exists()
    assert _fork(job, made["path"], tmp_path / "fork", "--from-other-job") == 0
    forked = _forked(other, tmp_path / "fork")
    other.deliver(120)
    forked.finish()
    # Each key's state was found again: a row of a key that was not would begin to count anew.
    shadow = multiset(root_files.folder_rows(other.folder / "tables" / "movements_shadow"))
    assert shadow == multiset(expected(other.delivered).movements[70:])
    wrong = _forked(job, tmp_path / "fork").run()
    assert (wrong.code, wrong.error.code) == (2, "wrong-job-root"), str(wrong)
    assert (wrong.error.facts["found"], wrong.error.facts["wanted"]) == ("ledger", "accounts")
    status = json.loads(_forked(other, tmp_path / "fork").command("status", "--json").out)
    assert status["shadow"] and "ledger" in status["origin"] and "theirs" in status["origin"]
