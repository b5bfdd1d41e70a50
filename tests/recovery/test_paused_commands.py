"""Commands that are paused at any line while a run commits, releases and collects; runs that are paused while a command
works. The one that is late neither harms the other nor reports damage."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import stateflow
from stateflow import operations
from stateflow.checkpoint.log.documents import SavepointFormat
from stateflow.clock import SystemClock
from stateflow.errors import StorageError
from stateflow.operations import JobCode, RekeyRequest, SavepointRequest, VacuumRequest
from stateflow.serving.follower import Follower, FollowSettings
from stateflow.storage import open_storage
from stateflow.testing.conformance.sink_drivers import LineTracer
from tests.support import root_files
from tests.support.job_fixture import KILLED, mostly_slow
from tests.support.restores import go_back
from tests.support.table_jobs import FoldersJob

PACKAGE = Path(stateflow.__file__).parent
FAST: dict[str, Any] = {"checkpoints__retained": 2, "checkpoints__collect_every": 1}
LINES = 4
"""At how many lines a command is paused."""


@pytest.fixture
def job(tmp_path: Path) -> FoldersJob:
    """A job with an upserted Delta table, a savepoint, and a run that was killed."""
    job = FoldersJob.create(tmp_path / "job", "delta")
    for rows in (30, 60):
        job.run_to(rows, **FAST)
    job.create_savepoint("early")
    job.deliver(90)
    assert job.run("batch.end:2", **FAST).code == KILLED
    return job


def _code(job: FoldersJob) -> JobCode:
    return JobCode(Path(job.job_file), ({"job.folder": str(job.folder), "job.sink": "delta"},))


def _savepoint(job: FoldersJob, **more: Any) -> None:
    """A command waits for a run until none has confirmed its request in a short time."""
    request = SavepointRequest("now", code=_code(job), acknowledge_timeout=timedelta(seconds=0.1), **more)
    made = operations.create_savepoint(job.job_root, request)
    operations.verify_savepoint(operations.find(job.job_root, made.name))


def _serve(job: FoldersJob) -> None:
    follower = Follower(open_storage(job.job_root), job.folder / "served", SystemClock(), FollowSettings())
    follower.poll()
    found, problem = follower.newest, follower.problem
    follower.close()
    assert found is not None and problem is None, problem


def _rekey(job: FoldersJob) -> None:
    made = operations.rekey_savepoint(RekeyRequest("early", 64, str(job.folder / "rekeyed")), job.job_root)
    operations.verify_savepoint(operations.find("", made.path))


def _vacuum(job: FoldersJob) -> None:
    operations.vacuum_tables(job.job_root, _code(job), VacuumRequest(timedelta(0)))


@dataclass(frozen=True)
class Command:
    """A command, and the folders and modules of its code."""

    execute: Callable[[FoldersJob], object]
    parts: tuple[str, ...]


COMMANDS = {
    "vacuum": Command(_vacuum, ("connectors/delta/maintenance.py", "operations/tables/")),
    "optimize": Command(
        lambda job: operations.optimize_tables(job.job_root, _code(job)), ("connectors/delta/maintenance.py",)
    ),
    "canonical savepoint": Command(
        lambda job: _savepoint(job, format=SavepointFormat.CANONICAL), ("checkpoint/savepoints/",)
    ),
    "savepoint request": Command(_savepoint, ("checkpoint/requests/", "operations/savepoints/")),
    "stop": Command(
        lambda job: operations.stop(
            job.job_root,
            SavepointRequest("last", code=_code(job), acknowledge_timeout=timedelta(seconds=0.1)),
            savepoint=True,
        ),
        ("checkpoint/requests/", "operations/savepoints/"),
    ),
    "gc": Command(lambda job: operations.collect_garbage(job.job_root), ("checkpoint/gc/", "checkpoint/savepoints/")),
    "gc preview": Command(lambda job: operations.collect_garbage(job.job_root, dry_run=True), ("checkpoint/gc/",)),
    "serve": Command(_serve, ("serving/", "state/files/")),
    "rekey": Command(_rekey, ("operations/savepoints/", "runtime/restore/")),
    "status": Command(lambda job: operations.describe(job.job_root), ("operations/",)),
    "timeline": Command(lambda job: operations.timeline(job.job_root), ("operations/", "checkpoint/")),
}


@pytest.mark.parametrize("name", mostly_slow(COMMANDS, ["gc preview"]))
def test_a_command_that_is_paused_while_a_run_continues_harms_nothing_and_reports_no_damage(
    job: FoldersJob, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    command, numbers = COMMANDS[name], count()
    folders = tuple(f"{PACKAGE}/{part}" for part in command.parts)
    tracer = LineTracer(folders)
    _traced(tracer, command, _copy(job, tmp_path, next(numbers)))
    lines = list(tracer.lines)
    for step in range(LINES):
        copy = _copy(job, tmp_path, next(numbers))
        line = lines[step * (len(lines) - 1) // (LINES - 1)]
        caplog.clear()
        try:
            _traced(LineTracer(folders, line, partial(_go_on, copy)), command, copy)
        except StorageError:
            pass  # a retry is safe
        assert [record.getMessage() for record in caplog.records if "damage" in record.getMessage()] == [], line
        copy.finish(**FAST)
        copy.check_results()
        operations.verify(copy.job_root)
        root_files.check_no_orphans(copy.root)
        go_back(copy, str(copy.head.doc["retained"][0]["id"]))
        copy.finish(**FAST)
        copy.check_results()
        shutil.rmtree(copy.folder)


def _go_on(job: FoldersJob) -> None:
    job.run_to(120, **FAST)


def _copy(job: FoldersJob, folder: Path, number: int) -> FoldersJob:
    shutil.copytree(job.folder, folder / f"copy-{number}")
    return replace(job, folder=folder / f"copy-{number}")


def _traced(tracer: LineTracer, command: Command, job: FoldersJob) -> None:
    sys.settrace(tracer)
    try:
        command.execute(job)
    finally:
        sys.settrace(None)


PAUSES = ["task.sink-closed", "batch.reported", "commit.after", "publish.before:1", "publish.before:2", "publish.after"]


@pytest.mark.parametrize("pause", mostly_slow(PAUSES, ["publish.before:2"]))
def test_a_run_that_is_paused_while_commands_work_publishes_its_rows_once(job: FoldersJob, pause: str) -> None:
    """The tables are optimized and vacuumed, garbage is collected, and a canonical savepoint is made meanwhile."""
    job.deliver(120)
    point = pause if ":" in pause else f"{pause}:1"
    run = job.start(f"{point}:stop", **FAST).wait_stopped()
    for name in ("optimize", "vacuum", "gc", "optimize"):
        COMMANDS[name].execute(job)
    operations.create_savepoint(
        job.job_root, SavepointRequest("meanwhile", from_head=True, format=SavepointFormat.CANONICAL)
    )
    run.resume().wait().check()
    job.check_results()
    go_back(job, "meanwhile")
    job.finish(**FAST)
    job.check_results()
