"""The accounts job, without Spark, in tasks of Airflow; only spark-submit is a stand-in, which starts the program."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from stateflow_airflow.operators.recovery import StateflowRestorePlanOperator
from stateflow_airflow.operators.run import StateflowRunOperator
from stateflow_airflow.spark import SparkSubmit
from tests.airflow.conftest import REPOSITORY
from tests.airflow.fakes import SPARK_CONNECTION, FakeRun
from tests.support.job_fixture import JOBS, AccountsJob
from tests.support.processes import wait_for

# Everything after the options is the program with its arguments.
SPARK_SUBMIT = f"""#!/bin/sh
while [ "${{1%/__main__.py}}" = "$1" ]; do shift; done
exec "{sys.executable}" "$@"
"""
ACCOUNTS = str(JOBS / "accounts.py")


def install_submit(folder: Path) -> Path:
    program = folder / "bin" / "spark-submit"
    program.parent.mkdir()
    program.write_text(SPARK_SUBMIT)
    program.chmod(0o755)
    return program.parent


def use_submit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{install_submit(folder)}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", SPARK_CONNECTION)


def settings(job: AccountsJob) -> dict[str, Any]:
    """What the operators are given; as in the harness, each batch waits for its checkpoint."""
    given = {"job.folder": str(job.folder), "local_dir": str(job.local), "checkpoints.asynchronous": "no"}
    return given | {name.replace("__", "."): value for name, value in job.settings.items()}


def job_arguments(job: AccountsJob) -> dict[str, Any]:
    return {"job": ACCOUNTS, "job_root": str(job.root), "settings": settings(job)}


def run_task(job: AccountsJob, environment: dict[str, str] | None = None, **more: Any) -> StateflowRunOperator:
    runs, spark = str(job.folder.parent / "runs"), SparkSubmit(env_vars=environment or {})
    return StateflowRunOperator(task_id="run", run_folder=runs, spark=spark, **job_arguments(job), **more)


def plan_restore(job: AccountsJob, target: str, **more: Any) -> dict[str, Any]:
    operator = StateflowRestorePlanOperator(task_id="plan", target=target, **job_arguments(job), **more)
    return operator.execute(FakeRun(task_id="plan").next_try())


def new_run(date: str, **more: Any) -> FakeRun:
    return FakeRun(run_id=f"scheduled__{date}T00:00:00+00:00", **more)


def wait_for_rows(job: AccountsJob, rows: int) -> None:
    wait_for(lambda: any(end == rows for _, end in job.requested()), lambda: f"{rows} rows")
