"""A task whose run stays up on Spark, with the real spark-submit."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from stateflow_airflow.launch import Launcher
from stateflow_airflow.operators.run import StateflowRunOperator
from tests.airflow.conftest import REPOSITORY
from tests.airflow.fakes import DEADLINE, SPARK_CONNECTION
from tests.airflow.jobs import new_run
from tests.spark.continuous_job import ContinuousJob
from tests.support.processes import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow(reason="runs DAGs in processes of Airflow")]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ContinuousJob]:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", SPARK_CONNECTION)
    job = ContinuousJob(tmp_path)
    yield job
    job.close()


def _task(job: ContinuousJob, **more: Any) -> StateflowRunOperator:
    settings = {name.replace("__", "."): value for name, value in job.settings.items()}
    settings |= {"local_dir": str(job.local), "checkpoints.interval": "1h", "job.delay": 10**9}
    paths: dict[str, Any] = {"job": job.job_file, "job_root": job.job_root, "run_folder": str(job.folder / "runs")}
    return StateflowRunOperator(task_id="run", settings=settings, **paths, **more)


def _read_files(job: ContinuousJob, files: int) -> bool:
    """Whether Spark has planned a batch with this many files."""
    return len(list((job.root / "spark").glob("*/commits/*"))) >= files


def test_a_killed_task_ends_its_run_on_spark_with_a_checkpoint(
    job: ContinuousJob, background: ThreadPoolExecutor
) -> None:
    job.add("a", "b")
    task = _task(job)
    running = background.submit(task.execute, new_run("2026-01-01").next_try())
    wait_for(lambda: running.done() or _read_files(job, 1), lambda: "the first batch")
    assert not running.done(), running.exception()
    task.on_kill()
    ended = running.result(DEADLINE)
    assert (ended["stopped_because"], ended["rows_in"]) == ("signal", 2)
    assert job.rows("out") == Counter([("a", 1), ("b", 1)])
    launcher = Launcher(next((job.folder / "runs").rglob("launch-1")).parent)
    assert not any(map(launcher.members, launcher.launches()))
