"""Workers of savepoints in other processes, and the number of files that they write."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from stateflow.checkpoint.log.documents import SavepointFormat
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.savepoints.canonical.worker_pool import LocalWorkers, SavepointWorkers
from stateflow.checkpoint.savepoints.create import SavepointSpec, make_savepoint
from stateflow.clock import SystemClock
from stateflow.config.settings import SavepointSettings
from stateflow.errors import CorruptFile, InternalError
from stateflow.runtime.spark.executor import SparkWorkers
from stateflow.storage import PosixStorage
from tests.support import root_files, stored_state
from tests.support.errors import raises
from tests.support.job_fixture import AccountsJob
from tests.support.restores import check_after, go_back

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL = SavepointSettings(worker_bytes=1)


def _workers() -> SavepointWorkers:
    """Workers that do not share a process, however small the state is."""
    made = LocalWorkers()
    made.worth_a_worker = 0
    return made


def _make(job: AccountsJob, settings: SavepointSettings, by: SavepointWorkers | None = None) -> Path:
    root = JobRoot.open(PosixStorage(job.root), SystemClock(), "a test")
    checkpoint = root.head().checkpoint
    assert checkpoint is not None
    spec = SavepointSpec(
        "mine", checkpoint, root.head().entry.published, format=SavepointFormat.CANONICAL, settings=settings
    )
    made = make_savepoint(root, spec, by or _workers())
    return job.root / made.folder


def _document(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = root_files.unsealed((folder / "_savepoint").read_bytes())[0]
    return document


def _entries(root: Path, manifest: dict[str, Any]) -> Sequence[tuple[bytes, bytes]]:
    return sorted(
        entry
        for operator in manifest["operators"]
        for subtask in operator["subtasks"]
        for entry in stored_state.stored_entries(root, subtask)
    )


def test_workers_in_other_processes_write_all_entries_into_few_files(job: AccountsJob) -> None:
    job.run_to(60)
    before = _entries(job.root, job.manifest)
    settings = SavepointSettings(worker_bytes=1, max_workers=3)
    folder = _make(job, settings)
    manifest = _document(folder)["manifest"]
    assert _entries(folder, manifest) == before
    stored = [len(s["files"]) for o in manifest["operators"] for s in o["subtasks"]]
    assert set(stored) == {3}
    root_files.check_savepoint(folder)
    job.run_to(90)
    go_back(job, "mine")
    check_after(job)


def test_small_shares_of_one_worker_are_one_file(job: AccountsJob) -> None:
    job.run_to(60)
    job.create_savepoint("merged", "--format", "canonical")
    (folder,) = (job.root / "savepoints").glob("merged-*")
    manifest = _document(folder)["manifest"]
    assert _entries(folder, manifest) == _entries(job.root, job.manifest)
    assert len({f["handle"]["key"] for o in manifest["operators"] for s in o["subtasks"] for f in s["files"]}) == 1


@pytest.mark.parametrize("files", [1, 3])
def test_files_of_a_native_savepoint_are_merged(job: AccountsJob, files: int) -> None:
    job.run_to(60)
    job.create_savepoint("mine", "--set", f"savepoint.native_files={files}")
    (folder,) = (job.root / "savepoints").glob("mine-*")
    manifest = _document(folder)["manifest"]
    keys = {f["handle"]["key"] for o in manifest["operators"] for s in o["subtasks"] for f in s["files"]}
    assert len(keys) == files
    assert _entries(folder, manifest) == _entries(job.root, job.manifest)
    job.command("savepoint", "verify", "mine").check()
    job.run_to(90)
    go_back(job, "mine")
    check_after(job)


def test_a_damaged_file_is_an_error_of_the_worker(job: AccountsJob) -> None:
    job.run_to(60)
    (file, *_) = [f for o in job.manifest["operators"] for s in o["subtasks"] for f in s["files"]]
    path = job.root / file["handle"]["key"]
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CorruptFile):
        _make(job, SMALL)
    assert not list((job.root / "savepoints").glob("*/_savepoint"))


def test_a_killed_worker_fails_the_savepoint(job: AccountsJob, monkeypatch: pytest.MonkeyPatch) -> None:
    job.run_to(60)
    monkeypatch.setenv("STATEFLOW_FAILPOINT", "savepoint.share:1:kill")
    with raises(InternalError, exit_code=-signal.SIGKILL):
        _make(job, SMALL)
    assert not list((job.root / "savepoints").glob("*/_savepoint"))
    monkeypatch.delenv("STATEFLOW_FAILPOINT")
    job.command("gc").check()
    assert not list((job.root / "savepoints").glob("*/files/*"))


@pytest.mark.spark
def test_workers_run_in_spark_tasks(job: AccountsJob, spark_session: SparkSession) -> None:
    job.run_to(60)
    before = _entries(job.root, job.manifest)
    on_spark = SparkWorkers()
    on_spark.worth_a_worker = 0
    on_spark.context = spark_session.sparkContext
    folder = _make(job, SavepointSettings(worker_bytes=1, max_workers=2), on_spark)
    assert _entries(folder, _document(folder)["manifest"]) == before
    assert spark_session.sparkContext.statusTracker().getJobIdsForGroup("stateflow-savepoint")
    root_files.check_savepoint(folder)


@pytest.mark.spark
def test_a_killed_worker_of_a_spark_task_fails_the_savepoint(
    job: AccountsJob, spark_session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.run_to(60)
    on_spark = SparkWorkers()
    on_spark.worth_a_worker = 0
    on_spark.context = spark_session.sparkContext
    monkeypatch.setitem(spark_session.sparkContext.environment, "STATEFLOW_FAILPOINT", "savepoint.share:2:kill")
    with raises(InternalError, exit_code=str(-signal.SIGKILL)):
        _make(job, SavepointSettings(worker_bytes=1, max_workers=2), on_spark)
    assert not list((job.root / "savepoints").glob("*/_savepoint"))
