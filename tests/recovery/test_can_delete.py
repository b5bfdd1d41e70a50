"""Who needs a file of a job root; readers and collections during a run."""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from typing import Any

import pytest

from stateflow.query import state_entries
from stateflow.requesters import describe_requester
from tests.support import root_files
from tests.support.job_fixture import KILLED, SLICE, AccountsJob

_YES, _NO = 0, 6


@pytest.fixture
def job(job: AccountsJob) -> AccountsJob:
    job.settings = {"checkpoints__retained": 2, "checkpoints__collect_every": 1000}
    return job


def _files(job: AccountsJob) -> dict[str, dict[str, Any]]:
    report = job.command("gc", "--dry-run", "--files", "--json").document
    return {file["key"]: file for file in report["each"]}


@pytest.mark.slow(reason="runs a job in several processes")
def test_every_file_of_a_job_root_is_either_needed_or_deletable(job: AccountsJob) -> None:
    job.deliver(8 * SLICE)
    # Killed, so that the run's own collection at its end does not come.
    job.reach("batch.begin:7")
    files = _files(job)
    assert files.keys() == root_files.files_below(job.root).keys()
    live = {os.path.relpath(job.root / path, job.root) for path in root_files.live_files(job.root)}
    assert {key for key, file in files.items() if file["needed_by"]} == live
    goes = [key for key, file in files.items() if file["is_deletable"]]
    assert goes and not any(files[key]["needed_by"] for key in goes)
    for key in goes:
        assert job.command("can-delete", key).code == _YES
        (job.root / key).unlink()
    job.finish()
    job.check()


@pytest.mark.slow(reason="tries each name of each file of a job root")
def test_a_needed_file_is_not_deletable_under_any_of_its_names(job: AccountsJob) -> None:
    """The file must stay, and a checkpoint that needs it is named. Files elsewhere, and how things would be, are not
    explained."""
    job.run_to(3 * SLICE)
    state = next(key for key, file in _files(job).items() if key.startswith("data/") and file["needed_by"])
    path, link = job.root / state, job.folder / "link"
    link.symlink_to(job.root)
    kept = {str(entry.seq) for entry in root_files.kept_entries(job.root)}
    # A relative path is one as a shell completes it, which is not where the job root is.
    for name in (state, str(path), path.as_uri(), os.path.relpath(path), str(link / state)):
        answer = job.command("can-delete", name)
        assert answer.code == _NO and kept & set(re.findall(r"\d+", answer.out)), str(answer)
    for name in ("FORMAT", f"log/{job.head.seq:020d}"):
        assert job.command("can-delete", name).code == _NO
    for name in ("nothing", "/etc/passwd", "../outside", "s3://bucket/x"):
        answer = job.command("can-delete", name)
        assert answer.code in (2, 4) and answer.out == "", str(answer)
    assert job.command("gc", "--files").code == 2
    assert job.command("gc", "--dry-run", "--files", "--retain", "1").code == 2


def test_a_file_that_a_pin_needs_is_listed_with_owner_and_reason_of_the_pin(job: AccountsJob) -> None:
    job.run_to(SLICE)
    assert job.command("savepoint", "create", "--name", "kept", failpoint="savepoint.pinned").code == KILLED
    job.run_to(5 * SLICE)
    (pin,) = job.head.doc["pinned"]
    needs = [who for file in _files(job).values() for who in file["needed_by"]]
    assert any(describe_requester(pin["owner"]) in who and pin["reason"] in who for who in needs)


@pytest.mark.parametrize("point", ["copied", "complete", "disposing"])
def test_a_dry_run_lists_the_savepoint_files_that_a_collection_deletes(job: AccountsJob, point: str) -> None:
    job.run_to(SLICE)
    if point.startswith("dispos"):
        job.create_savepoint("mine")
        assert job.command("savepoint", "dispose", "mine", failpoint=f"savepoint.{point}").code == KILLED
    else:
        assert job.command("savepoint", "create", "--name", "mine", failpoint=f"savepoint.{point}").code == KILLED
        # While its pin exists, a process may be making it.
        assert not _unfinished(job)
        (pin,) = job.head.doc["pinned"]
        job.command("pins", "--drop", pin["id"]).check()
    listed, before = _unfinished(job), root_files.files_below(job.root).keys()
    assert bool(listed) == (point != "complete")
    assert job.command("can-delete", *sorted(listed)[:1] or ["FORMAT"]).code == _NO
    job.command("gc").check()
    gone = {key for key in before - root_files.files_below(job.root).keys() if key.startswith("savepoints/")}
    # Of a complete one, only the sign that a process was making it.
    assert gone - {key for key in gone if point == "complete" and key.endswith("/_started")} == listed
    assert not _unfinished(job)


def _unfinished(job: AccountsJob) -> set[str]:
    return {key for key, file in _files(job).items() if file["fate"] == "unfinished"}


# -- readers and collections during a run ------------------------------------------------------------------------------


RARE = {"checkpoints__retained": 1, "checkpoints__collect_every": 1}


def test_a_checkpoint_that_a_reader_has_pinned_is_not_collected(job: AccountsJob) -> None:
    """A reader that died has left a pin; its checkpoint is deleted when a user drops the pin, and not before."""
    job.settings = RARE
    job.run_to(20)
    entries = state_entries(str(job.root), "balances")
    next(entries)
    pinned = job.head.checkpoint
    job.run_to(50)
    job.collect()
    root_files.check_no_orphans(job.root)
    assert pinned in {entry.seq for entry in root_files.kept_entries(job.root)}
    (pin,) = job.head.doc["pinned"]
    assert isinstance(entries, Generator)
    entries.close()
    assert job.command("pins", "--drop", pin["id"]).code in (0, 2)
    job.check()
    assert pinned not in {entry.seq for entry in root_files.kept_entries(job.root)}
