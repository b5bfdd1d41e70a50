"""Commands that choose a checkpoint and then read it, while a run commits, releases and collects checkpoints; and runs
that are paused while commands work."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Generator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from stateflow import operations, read_state
from stateflow.checkpoint.log.completed_checkpoints import AdminEntries, CompletedCheckpoints
from stateflow.checkpoint.log.documents import SavepointFormat
from stateflow.compare.snapshots import diff
from stateflow.errors import ConfigError
from stateflow.operations import ForkRequest, JobCode, RekeyRequest, SavepointRequest, VacuumRequest
from stateflow.operations.state_export import ExportRequest, export_state
from stateflow.query.metadata import read_metadata
from stateflow.query.state import state_entries
from stateflow.replay.run import ReplayRequest, replay
from stateflow.requesters import describe_requester
from stateflow.runtime.restore.planner import RestoreOptions
from tests.support import root_files
from tests.support.job_fixture import KILLED, SLICE, AccountsJob, mostly_slow
from tests.support.restores import go_back
from tests.support.table_jobs import FoldersJob

FAST: dict[str, Any] = {"checkpoints__retained": 1, "checkpoints__collect_every": 1}
Command = Callable[[AccountsJob, Path], object]


def _code(job: AccountsJob) -> JobCode:
    return JobCode(Path(job.job_file), ({"job.folder": str(job.folder)},))


def _read_all(job: AccountsJob) -> None:
    assert read_state(job.job_root, "balances", "account").read_all().num_rows > 0


def _rekey(job: AccountsJob, folder: Path) -> None:
    made = operations.create_savepoint(job.job_root, SavepointRequest(from_head=True))
    copy = operations.rekey_savepoint(RekeyRequest(made.name, 64, str(folder / "rekeyed")), job.job_root)
    assert copy.checkpoint_id == made.checkpoint_id


NEWEST: dict[str, Command] = {
    "verify the next start": lambda job, _: operations.verify_head(job.job_root),
    "entries": lambda job, _: list(state_entries(job.job_root, "balances")),
    "read_state": lambda job, _: _read_all(job),
    "diff": lambda job, _: diff(job.job_root, job.job_root),
    "export": lambda job, folder: export_state(
        ExportRequest(job.job_root, "balances", "account", str(folder / "state.jsonl"))
    ),
    "fork": lambda job, folder: operations.fork(job.job_root, ForkRequest("latest", str(folder / "fork"), shadow=True)),
    "plan": lambda job, _: operations.plan_restore(job.job_root, _code(job), "latest", RestoreOptions()),
    "savepoint": lambda job, _: operations.create_savepoint(job.job_root, SavepointRequest(from_head=True)),
    "rekey": _rekey,
    "fork before": lambda job, folder: operations.fork(
        job.job_root, ForkRequest("before:2999-01-01", str(folder / "fork"), shadow=True)
    ),
    "status": lambda job, _: operations.describe(job.job_root),
    "timeline": lambda job, _: operations.timeline(job.job_root),
    "garbage": lambda job, _: operations.collect_garbage(job.job_root),
    "garbage to come": lambda job, _: operations.collect_garbage(job.job_root, dry_run=True),
    "snapshots": lambda job, _: read_metadata(job.job_root, "snapshots"),
}
"""Of the newest checkpoint, whatever that is by then."""
BY_NUMBER: dict[str, Callable[[AccountsJob, int], object]] = {
    "verify": lambda job, number: operations.verify(job.job_root, checkpoint=number),
    "replay": lambda job, number: replay(ReplayRequest(Path(job.job_file), job.job_root, number, _code(job).layers)),
    "fork": lambda job, number: operations.fork(
        job.job_root, ForkRequest(str(number), str(job.folder / "fork"), shadow=True)
    ),
}
"""Of a checkpoint that is no longer retained when its turn comes."""


@pytest.fixture
def moving_job(job: AccountsJob, monkeypatch: pytest.MonkeyPatch) -> AccountsJob:
    """A job that commits, and deletes the checkpoint before, when a command pins that or reads its manifest."""
    job.run_to(50, **FAST)
    rows, pin, read_manifest = itertools.count(60, 10), AdminEntries.pin, CompletedCheckpoints.read_manifest
    turns = iter(range(3))

    def move() -> None:
        if next(turns, None) is not None:
            job.run_to(next(rows), **FAST)

    def late_pin(*arguments: Any, **more: Any) -> Any:
        move()
        return pin(*arguments, **more)

    def late_manifest(*arguments: Any) -> Any:
        move()
        return read_manifest(*arguments)

    monkeypatch.setattr(AdminEntries, "pin", late_pin)
    monkeypatch.setattr(CompletedCheckpoints, "read_manifest", late_manifest)
    return job


@pytest.mark.parametrize("name", NEWEST)
@pytest.mark.slow(reason="runs a job next to each command")
def test_a_command_reads_the_newest_checkpoint_of_a_job_that_commits_meanwhile(
    moving_job: AccountsJob, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    NEWEST[name](moving_job, tmp_path)
    assert caplog.messages == []
    moving_job.check_results()
    assert moving_job.head.doc["pinned"] == []


@pytest.mark.parametrize("name", mostly_slow(BY_NUMBER, ["verify"]))
def test_a_checkpoint_that_was_released_meanwhile_is_not_reported_as_damaged(
    moving_job: AccountsJob, name: str
) -> None:
    with pytest.raises(ConfigError):
        BY_NUMBER[name](moving_job, moving_job.head.checkpoint)
    moving_job.check_results()


def test_checkpoints_that_were_released_before_their_turn_are_not_verified(moving_job: AccountsJob) -> None:
    assert operations.verify(moving_job.job_root) == []
    assert len(operations.verify(moving_job.job_root)) <= 1
    moving_job.root.joinpath(moving_job.head.doc["manifest"]["key"]).unlink()
    assert moving_job.command("verify").code == 4


PAUSES = ["task.sink-closed", "batch.reported", "commit.after", "publish.before:1", "publish.before:2", "publish.after"]


@pytest.mark.parametrize("pause", mostly_slow(PAUSES, []))
def test_a_run_that_is_paused_while_commands_work_publishes_its_rows_once(tmp_path: Path, pause: str) -> None:
    """The tables are optimized and vacuumed, garbage is collected, and a canonical savepoint is made meanwhile."""
    # The newest checkpoint is not published yet: the savepoint is made from the one before.
    kept = {**FAST, "checkpoints__retained": 2}
    job = FoldersJob.create(tmp_path / "job", "delta")
    for rows in (30, 60):
        job.run_to(rows, **kept)
    job.deliver(90)
    run = job.start(f"{pause if ':' in pause else f'{pause}:1'}:stop", **kept).wait_stopped()
    code = JobCode(Path(job.job_file), ({"job.folder": str(job.folder), "job.sink": "delta"},))
    operations.optimize_tables(job.job_root, code)
    operations.vacuum_tables(job.job_root, code, VacuumRequest(timedelta(0)))
    operations.collect_garbage(job.job_root)
    request = SavepointRequest("meanwhile", from_head=True, format=SavepointFormat.CANONICAL)
    operations.create_savepoint(job.job_root, request)
    run.resume().wait().check()
    job.check_results()
    go_back(job, "meanwhile")
    job.finish(**kept)
    job.check_results()


# -- who needs a file of a job root -----------------------------------------------------------------------------------

_YES, _NO = 0, 6


@pytest.fixture
def two_kept(job: AccountsJob) -> AccountsJob:
    job.settings = {"checkpoints__retained": 2, "checkpoints__collect_every": 1000}
    return job


def _files(job: AccountsJob) -> dict[str, dict[str, Any]]:
    report = job.command("gc", "--dry-run", "--files", "--json").document
    return {file["key"]: file for file in report["files"]}


@pytest.mark.slow(reason="runs a job in several processes")
def test_every_file_of_a_job_root_is_either_needed_or_deletable(two_kept: AccountsJob) -> None:
    two_kept.deliver(8 * SLICE)
    # Killed, so that the run's own collection at its end does not come.
    two_kept.reach("batch.begin:7")
    files = _files(two_kept)
    assert files.keys() == root_files.files_below(two_kept.root).keys()
    live = {os.path.relpath(two_kept.root / path, two_kept.root) for path in root_files.live_files(two_kept.root)}
    assert {key for key, file in files.items() if file["needed_by"]} == live
    goes = [key for key, file in files.items() if file["deletable"]]
    assert goes and not any(files[key]["needed_by"] for key in goes)
    for key in goes:
        assert two_kept.command("can-delete", key).code == _YES
        (two_kept.root / key).unlink()
    two_kept.finish()
    two_kept.check()


@pytest.mark.slow(reason="tries each name of each file of a job root")
def test_a_needed_file_is_not_deletable_under_any_of_its_names(two_kept: AccountsJob) -> None:
    """The file must stay, and a checkpoint that needs it is named. Files elsewhere, and how things would be, are not
    explained."""
    two_kept.run_to(3 * SLICE)
    state = next(key for key, file in _files(two_kept).items() if key.startswith("data/") and file["needed_by"])
    path, link = two_kept.root / state, two_kept.folder / "link"
    link.symlink_to(two_kept.root)
    kept = {str(entry.seq) for entry in root_files.kept_entries(two_kept.root)}
    # A relative path is one as a shell completes it, which is not where the job root is.
    for name in (state, str(path), path.as_uri(), os.path.relpath(path), str(link / state)):
        answer = two_kept.command("can-delete", name)
        assert answer.code == _NO and kept & set(re.findall(r"\d+", answer.out)), str(answer)
    for name in ("FORMAT", f"log/{two_kept.head.seq:020d}"):
        assert two_kept.command("can-delete", name).code == _NO
    for name in ("nothing", "/etc/passwd", "../outside", "s3://bucket/x"):
        answer = two_kept.command("can-delete", name)
        assert answer.code in (2, 4) and answer.out == "", str(answer)
    assert two_kept.command("gc", "--files").code == 2
    assert two_kept.command("gc", "--dry-run", "--files", "--retain", "1").code == 2


def test_a_file_that_a_pin_needs_is_listed_with_owner_and_reason_of_the_pin(two_kept: AccountsJob) -> None:
    two_kept.run_to(SLICE)
    assert two_kept.command("savepoint", "create", "--name", "kept", failpoint="savepoint.pinned").code == KILLED
    two_kept.run_to(5 * SLICE)
    (pin,) = two_kept.head.doc["pinned"]
    needs = [who for file in _files(two_kept).values() for who in file["needed_by"]]
    assert any(describe_requester(pin["owner"]) in who and pin["reason"] in who for who in needs)


@pytest.mark.parametrize("point", ["copied", "complete", "disposing"])
def test_a_dry_run_lists_the_savepoint_files_that_a_collection_deletes(two_kept: AccountsJob, point: str) -> None:
    two_kept.run_to(SLICE)
    if point.startswith("dispos"):
        two_kept.create_savepoint("mine")
        assert two_kept.command("savepoint", "dispose", "mine", failpoint=f"savepoint.{point}").code == KILLED
    else:
        assert two_kept.command("savepoint", "create", "--name", "mine", failpoint=f"savepoint.{point}").code == KILLED
        # While its pin exists, a process may be making it.
        assert not _unfinished(two_kept)
        (pin,) = two_kept.head.doc["pinned"]
        two_kept.command("pins", "--drop", pin["id"]).check()
    listed, before = _unfinished(two_kept), root_files.files_below(two_kept.root).keys()
    assert bool(listed) == (point != "complete")
    assert two_kept.command("can-delete", *sorted(listed)[:1] or ["FORMAT"]).code == _NO
    two_kept.command("gc").check()
    gone = {key for key in before - root_files.files_below(two_kept.root).keys() if key.startswith("savepoints/")}
    # Of a complete one, only the sign that a process was making it.
    assert gone - {key for key in gone if point == "complete" and key.endswith("/_started")} == listed
    assert not _unfinished(two_kept)


def _unfinished(job: AccountsJob) -> set[str]:
    return {key for key, file in _files(job).items() if file["fate"] == "unfinished"}


# -- readers and collections during a run ------------------------------------------------------------------------------


RARE = {"checkpoints__retained": 1, "checkpoints__collect_every": 1}


def test_a_checkpoint_that_a_reader_has_pinned_is_not_collected(two_kept: AccountsJob) -> None:
    """A reader that died has left a pin; its checkpoint is deleted when a user drops the pin, and not before."""
    two_kept.settings = RARE
    two_kept.run_to(20)
    entries = state_entries(str(two_kept.root), "balances")
    next(entries)
    pinned = two_kept.head.checkpoint
    two_kept.run_to(50)
    two_kept.collect()
    root_files.check_no_orphans(two_kept.root)
    assert pinned in {entry.seq for entry in root_files.kept_entries(two_kept.root)}
    (pin,) = two_kept.head.doc["pinned"]
    assert isinstance(entries, Generator)
    entries.close()
    assert two_kept.command("pins", "--drop", pin["id"]).code in (0, 2)
    two_kept.check()
    assert pinned not in {entry.seq for entry in root_files.kept_entries(two_kept.root)}
