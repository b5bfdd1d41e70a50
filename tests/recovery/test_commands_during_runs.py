"""Commands that choose a checkpoint and then read it, while a run commits, releases and collects checkpoints; and runs
that are paused while commands work."""

from __future__ import annotations

import itertools
from collections.abc import Callable
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
from stateflow.runtime.restore.planner import RestoreOptions
from tests.support.job_fixture import AccountsJob, mostly_slow
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
    job = FoldersJob.create(tmp_path / "job", "delta")
    for rows in (30, 60):
        job.run_to(rows, **FAST)
    job.deliver(90)
    run = job.start(f"{pause if ':' in pause else f'{pause}:1'}:stop", **FAST).wait_stopped()
    code = JobCode(Path(job.job_file), ({"job.folder": str(job.folder), "job.sink": "delta"},))
    operations.optimize_tables(job.job_root, code)
    operations.vacuum_tables(job.job_root, code, VacuumRequest(timedelta(0)))
    operations.collect_garbage(job.job_root)
    request = SavepointRequest("meanwhile", from_head=True, format=SavepointFormat.CANONICAL)
    operations.create_savepoint(job.job_root, request)
    run.resume().wait().check()
    job.check_results()
    go_back(job, "meanwhile")
    job.finish(**FAST)
    job.check_results()
