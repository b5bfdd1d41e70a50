"""Airflow in a folder of its own, before anything imports it; nothing here needs its database."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
_HOME = tempfile.mkdtemp(prefix="stateflow-airflow-")

# Settings, connections and variables of whoever runs the tests are not those of the tests.
for _name in [name for name in os.environ if name.startswith("AIRFLOW_")]:
    del os.environ[_name]
os.environ["AIRFLOW_HOME"] = _HOME
os.environ["AIRFLOW__CORE__UNIT_TEST_MODE"] = "True"
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"

# Airflow reads its home when it is first imported.
from tests.airflow.fakes import SPARK_CONNECTION, FakeSpark  # noqa: E402
from tests.support.job_fixture import AccountsJob  # noqa: E402


def pytest_sessionfinish() -> None:
    shutil.rmtree(_HOME, ignore_errors=True)


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSpark]:
    """A spark-submit first on the PATH, and a connection for it; whatever it leaves running is ended."""
    fake = FakeSpark(tmp_path / "fake-spark")
    monkeypatch.setenv("PATH", f"{fake.bin}:{os.environ['PATH']}")
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", SPARK_CONNECTION)
    monkeypatch.setenv("STATEFLOW_FAKE_SPARK", str(fake.folder))
    yield fake
    fake.end_all()


@pytest.fixture
def background() -> Iterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(2)
    yield pool
    # A try that hangs ends with the processes that it waits for.
    pool.shutdown(wait=False)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[AccountsJob]:
    """A job without Spark that keeps its checkpoints; whatever it leaves running is ended."""
    job = AccountsJob(tmp_path / "job", {"checkpoints__retained": 100})
    yield job
    job.end_all()


@pytest.fixture
def idle_job(job: AccountsJob) -> AccountsJob:
    job.deliver(50)
    job.finish()
    return job


@pytest.fixture
def saved(idle_job: AccountsJob) -> AccountsJob:
    """A job with five checkpoints, three periodic savepoints, `p1` to `p3`, and one that a user has requested."""
    from stateflow_airflow.operators.savepoint import StateflowSavepointOperator
    from tests.airflow.jobs import new_run

    for day, name in enumerate(("p1", "p2", "p3", "mine"), 1):
        origin = "manual" if name == "mine" else "periodic"
        operator = StateflowSavepointOperator(
            task_id="savepoint", job_root=str(idle_job.root), name=name, origin=origin
        )
        operator.execute(new_run(f"2026-01-0{day}").next_try())
    return idle_job
