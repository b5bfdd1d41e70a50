"""The operators that write savepoints from files and change them: results, retries after kills, and wrong arguments."""

from __future__ import annotations

import multiprocessing
import os
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.sdk import Asset

import stateflow
from stateflow.checkpoint.savepoints.catalog import savepoint_at
from stateflow.launch import RunRequest, run_job
from stateflow.operations import SavepointRequest, create_savepoint
from stateflow.runtime.restore.new_job_root import InitialSavepoint
from stateflow.runtime.task import store_cache
from stateflow.testing.sinks import FolderSink
from stateflow_airflow.failures import PermanentFailure
from stateflow_airflow.operators.bootstrap.write import (
    StateflowChangeSavepointOperator,
    StateflowWriteSavepointOperator,
)
from tests.airflow.fakes import FakeRun, fails
from tests.support import processes, root_files
from tests.support.cli_fixture import CliFixture

_FUNCTIONS = """
import pyarrow.compute as pc


def doubled(batch):
    return batch.set_column(batch.schema.get_field_index("value"), "value", pc.multiply(batch.column("value"), 2))


def broken(batch):
    raise ValueError("no")
"""


@pytest.fixture
def job(tmp_path: Path) -> CliFixture:
    """A job that has not run, with a file of totals and one of functions."""
    job = CliFixture(tmp_path)
    (tmp_path / "rows").mkdir()
    pq.write_table(pa.table({"key": ["a", "b"], "value": [1000, 2000]}), tmp_path / "rows" / "totals.parquet")
    (tmp_path / "code" / "changes_by_a_dag.py").write_text(_FUNCTIONS)
    return job


def _write(job: CliFixture, /, **more: Any) -> StateflowWriteSavepointOperator:
    arguments: dict[str, Any] = {
        "job": str(job.job),
        "into": str(job.folder / "made" / "first"),
        "states": f"sum.total={job.folder}/rows",
        "sources": ['rows={"row": 4}'],
        "settings": job.settings,
        "locations": [str(job.folder / "made"), str(job.folder / "rows")],
        **more,
    }
    return StateflowWriteSavepointOperator(task_id="write", **arguments)


def _change(job: CliFixture, /, **more: Any) -> StateflowChangeSavepointOperator:
    arguments: dict[str, Any] = {
        "savepoint": str(job.folder / "made" / "first"),
        "into": str(job.folder / "made" / "second"),
        "transforms": [f"sum.total={job.folder}/code/changes_by_a_dag.py:doubled"],
        "job": str(job.job),
        "settings": job.settings,
        "locations": [str(job.folder / "made")],
        **more,
    }
    return StateflowChangeSavepointOperator(task_id="change", **arguments)


def _totals(path: object) -> dict[str, int]:
    rows = stateflow.read_state(str(path), "sum", "total").read_all().to_pylist()
    return {row["key"]: row["value"] for row in rows}


def test_a_job_starts_from_the_savepoint_of_a_task_and_retries_return_the_same(job: CliFixture) -> None:
    run, asset = FakeRun(), Asset("savepoint")
    operators = (_write(job, outlets=[asset]), _change(job, outlets=[asset]))
    for operator, totals in zip(operators, ({"a": 1000, "b": 2000}, {"a": 2000, "b": 4000}), strict=True):
        made = operator.execute(run.next_try())
        assert _totals(made["path"]) == totals and run.events[asset].extra == made
        folder = Path(str(made["path"]).removeprefix("file://"))
        complete = root_files.digests(folder)
        assert operator.execute(run.next_try()) == made and root_files.digests(folder) == complete
        assert savepoint_at(str(folder)).document.by.startswith("airflow")
    initial = InitialSavepoint(str(job.folder / "made" / "second"))
    run_job(RunRequest(job.job, job.root, (dict(job.settings),), initial_savepoint=initial))
    store_cache.close_all()
    newest = {row["key"]: row["total"] for row in FolderSink(job.folder / "table").rows()}
    assert newest == {"a": 2000 + 6 + 9, "b": 4000 + 4 + 7 + 10, "c": 5 + 8 + 11}


def _execute(folder: Path, failpoint: str) -> None:
    os.environ["STATEFLOW_FAILPOINT"] = failpoint
    job = object.__new__(CliFixture)
    job.folder, job.job = folder, folder / "code" / "job.py"
    job.settings = {"local_dir": str(folder / "scratch"), "max_parallelism": "128"}
    _write(job).execute(FakeRun().next_try())


def test_a_retry_of_a_try_that_has_stored_files_only_leaves_one_complete_savepoint(job: CliFixture) -> None:
    folder, run = job.folder / "made" / "first", FakeRun()
    _write(job).execute(run.next_try())
    (folder / "_savepoint").unlink()
    (job.folder / "rows" / "more.jsonl").write_text('{"key": "c", "value": 3000}\n')
    _write(job).execute(run.next_try())
    _check_complete(folder)


def _check_complete(folder: Path) -> None:
    assert _totals(folder) == {"a": 1000, "b": 2000, "c": 3000}
    (operator,) = savepoint_at(str(folder)).document.manifest.operators
    used = {f"{folder}/{file.handle.key}" for subtask in operator.subtasks for file in subtask.files}
    assert {str(path) for path in (folder / "files").iterdir()} == used


@pytest.mark.slow(reason="runs a task in a process of Airflow")
def test_a_task_that_is_killed_and_run_again_leaves_one_complete_savepoint(job: CliFixture) -> None:
    """Each step of the writer: tests/bootstrap/test_writer_faults.py; a change: tests/cli/test_savepoint_change.py."""
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=_execute, args=(job.folder, "write.stored"), daemon=True)
    process.start()
    process.join(processes.DEADLINE)
    assert process.exitcode == -signal.SIGKILL
    folder = job.folder / "made" / "first"
    assert any((folder / "files").iterdir()) and not (folder / "_savepoint").exists()
    (job.folder / "rows" / "more.jsonl").write_text('{"key": "c", "value": 3000}\n')
    _write(job).execute(FakeRun().next_try())
    _check_complete(folder)


def test_a_savepoint_of_a_job_is_named_and_an_operator_is_removed(job: CliFixture) -> None:
    job.run()
    create_savepoint(job.root, SavepointRequest(name="before", from_head=True))
    made = _change(job, savepoint="before", job_root=job.root, remove="sum\n", transforms=()).execute(
        FakeRun().next_try()
    )
    assert made["operators"] == []


def test_the_time_of_a_savepoint_is_an_argument(job: CliFixture) -> None:
    made = _write(job, at="2026-01-31T03:00", max_parallelism="16", parallelism=2, name="x").execute(
        FakeRun().next_try()
    )
    document = savepoint_at(str(made["path"])).document
    assert datetime.fromisoformat(document.made_at) == datetime(2026, 1, 31, 3, tzinfo=UTC)
    assert (document.max_parallelism, document.name) == (16, "x")


@pytest.mark.parametrize(
    "wrong",
    [
        {"into": "made/first"},
        {"into": "/elsewhere/first"},
        {"states": "sum.total=/etc/passwd"},
        {"states": "sum.totel={folder}/rows"},
        {"sources": "rows=spark:/elsewhere/query"},
        {"columns": ["sum.total.value=1"]},
        {"max_parallelism": "many"},
        {"at": "noon"},
        {"job": "job.py"},
    ],
)
def test_a_wrong_argument_is_not_retried_and_leaves_no_savepoint(job: CliFixture, wrong: dict[str, Any]) -> None:
    given = {
        name: value.format(folder=job.folder) if isinstance(value, str) else value for name, value in wrong.items()
    }
    with fails(PermanentFailure, "config"):
        _write(job, **given).execute(FakeRun().next_try())
    assert not (job.folder / "made").exists()


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"into": "/elsewhere/second"}, "config"),
        ({"savepoint": "/elsewhere/first"}, "config"),
        ({"savepoint": "first"}, "config"),
        ({"remove": ["some"]}, "config"),
        ({"job": ""}, "config"),
        ({"transforms": ["sum.total={folder}/code/changes_by_a_dag.py:broken"]}, "user-code"),
    ],
)
def test_a_wrong_change_is_not_retried_and_leaves_no_savepoint(
    job: CliFixture, wrong: dict[str, Any], code: str
) -> None:
    _write(job).execute(FakeRun().next_try())
    given = {
        name: [each.format(folder=job.folder) for each in value] if isinstance(value, list) else value
        for name, value in wrong.items()
    }
    with fails(PermanentFailure, code):
        _change(job, **given).execute(FakeRun().next_try())
    assert not (job.folder / "made" / "second" / "_savepoint").exists()
