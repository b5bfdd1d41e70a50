"""The retention operator over a real job root."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from stateflow.checkpoint.log.job_format import NewJob
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.clock import ManualClock
from stateflow.storage import open_storage
from stateflow.storage.paths import data_folder
from stateflow_airflow.failures import PermanentFailure
from stateflow_airflow.operators.retention import StateflowRetentionOperator
from stateflow_airflow.retry import RetryByErrorCode
from tests.airflow.failing import fails
from tests.airflow.fakes import FakeRun

GARBAGE = b"what a run wrote that did not live to commit it"


@pytest.fixture
def job_root(tmp_path: Path) -> Path:
    """A job whose first run left a file behind, and whose second run has claimed it."""
    path = tmp_path / "flights"
    storage = open_storage(str(path))
    root = JobRoot.create_or_open(storage, ManualClock(), NewJob("flights", 128, {}), "a test")
    first = root.claim()
    storage.put_new(data_folder(first.entry.generation, 1, "a") + "state", GARBAGE)
    root.claim()
    (path / "data" / "notes.txt").write_text("mine")
    return path


def run(**arguments: Any) -> dict[str, Any]:
    operator = StateflowRetentionOperator(task_id="collect", **arguments)
    return dict(operator.execute(FakeRun().next_try()))


def garbage(job_root: Path) -> list[Path]:
    return [path for path in (job_root / "data").rglob("*") if path.name == "state"]


def _past_bytes(job_root: Path) -> int:
    """The file that the first run left behind, and its CLAIM."""
    return len(GARBAGE) + min((job_root / "log").iterdir()).stat().st_size


def test_collects_and_returns_what_it_did(job_root: Path) -> None:
    freed = _past_bytes(job_root)
    assert run(job_root=str(job_root)) == {
        "job": "flights",
        "head_seq": 2,
        "retained": [],
        "files": 2,
        "bytes_freed": freed,
        "dry_run": False,
        "unknown": ["data/notes.txt"],
        "savepoints_deleted": [],
        "savepoints_kept": [],
        "savepoints_bytes_freed": 0,
    }
    assert garbage(job_root) == []
    assert (job_root / "data" / "notes.txt").exists()


@pytest.mark.parametrize("preview", [True, "True", "true"])
def test_dry_run_returns_the_same_and_deletes_nothing(job_root: Path, preview: bool | str) -> None:
    report = run(job_root=str(job_root), preview=preview)
    assert (report["files"], report["bytes_freed"], report["dry_run"]) == (2, _past_bytes(job_root), True)
    assert len(garbage(job_root)) == 1


@pytest.mark.parametrize("retain", [1, "1", None, "None", ""])
def test_number_of_checkpoints_may_come_from_a_template(job_root: Path, retain: int | str | None) -> None:
    assert run(job_root=str(job_root), retain=retain)["retained"] == []


@pytest.mark.parametrize("arguments", [{"retain": 0}, {"retain": "many"}, {"preview": "perhaps"}])
def test_wrong_arguments_change_nothing(job_root: Path, arguments: dict[str, Any]) -> None:
    with fails(PermanentFailure, "config", **arguments):
        run(job_root=str(job_root), **arguments)
    assert len(garbage(job_root)) == 1


def test_missing_job_root_is_a_clear_error_and_not_made(tmp_path: Path) -> None:
    nothing = tmp_path / "nothing"
    with fails(PermanentFailure, "config", storage=nothing.as_uri()):
        run(job_root=str(nothing))
    assert not nothing.exists()


def test_templates_and_retries() -> None:
    with DAG("a_dag"):
        task = StateflowRetentionOperator(
            task_id="collect", job_root="{{ root }}", retain="{{ keep }}", preview="{{ look }}"
        )
    context: Any = {"root": "/jobs/flights", "keep": 5, "look": True}
    task.render_template_fields(context)
    assert (task.job_root, task.retain, task.preview) == ("/jobs/flights", "5", "True")
    assert isinstance(task.retry_policy, RetryByErrorCode)
