"""A real Airflow and the real job: what catching up, backfilling, clearing, dying and being stopped come to."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from flights_demo.airflow_home import launches_below
from flights_demo.client import TaskTry
from flights_demo.flights import SCHEMA
from flights_demo.polling import poll

from stateflow_airflow import processes
from tests.airflow.conftest import REPOSITORY
from tests.airflow.system.live_airflow import PATIENCE, QUICK_HEARTBEAT, Client, live_airflow, stopped_process

pytestmark = [pytest.mark.slow(reason="runs DAGs in processes of Airflow"), pytest.mark.airflow, pytest.mark.spark]

ROWS = 10
TODAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)

DAG_FILE = """
from datetime import datetime, timedelta, timezone
from airflow.sdk import DAG
from stateflow_airflow.operators.run import StateflowRunOperator
from stateflow_airflow.spark import SparkSubmit

def flights(dag_id, job, environment=None, file={job!r}, **schedule):
    with DAG(dag_id, max_active_runs=1, **schedule):
        StateflowRunOperator(
            task_id="run",
            job=file,
            job_root=f"{folder}/{{job}}/root",
            settings={{
                "job.flights": f"{folder}/{{job}}/landing",
                "job.tables": f"{folder}/{{job}}/tables",
                "local_dir": "{folder}/local",
            }},
            spark=SparkSubmit(conf={{"spark.ui.enabled": "false"}}, env_vars=environment or {{}}),
            retries=1,
            retry_delay=timedelta(seconds=1),
        )

start = datetime.fromisoformat({start!r})
STOP = {{"STATEFLOW_FAILPOINT": "batch.reported:1:stop", "STATEFLOW_FAILPOINT_ONCE": "../reached"}}
flights("daily", "daily", schedule="@daily", start_date=start + timedelta(days=4), catchup=True)
flights("backfilled", "daily", schedule="@daily", start_date=start, catchup=False)
flights("survivor", "survivor", STOP)
flights("stopped", "stopped", STOP)
flights("modules", "modules", file="{folder}/code/pay.py")
"""
JOB = """
import msgspec
from rates import FACTOR
from stateflow import DeltaSink, FileSource

class Paid(msgspec.Struct):
    name: str
    value: float

def times(row):
    return Paid(row.name, row.value * FACTOR)

def build(env):
    rows = env.from_source(FileSource(env.parameter("flights"), schema=Paid, format="json"), uid="in")
    rows.map(times, output=Paid).sink_to(DeltaSink(env.parameter("tables") + "/paid"), uid="paid")
"""


def _path(dag_id: str, run_id: str) -> str:
    return f"dags/{dag_id}/dagRuns/{quote(run_id)}"


@dataclass(frozen=True)
class System:
    """A running Airflow and the folder its jobs work in."""

    folder: Path
    client: Client

    def arrive(self, job: str, *days: int) -> None:
        """Puts one file for each day into the job's landing folder."""
        landing = self.folder / job / "landing"
        landing.mkdir(parents=True, exist_ok=True)
        route = {"carrier": "UA", "origin": "EWR", "dest": "IAH"}
        for day in days:
            # Times without a zone, as the files of the demo have them.
            times = [datetime(2013, 1, day, n) for n in range(ROWS)]  # noqa: DTZ001
            rows = [
                {**route, "tailnum": f"N{n % 3}", "flight": n, "time": time, "arr_delay": float(n)}
                for n, time in enumerate(times)
            ]
            path = landing / f".{day}.parquet"
            pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path)
            os.utime(path, (0, 1_700_000_000 + day))
            path.rename(landing / f"{day}.parquet")

    def wait_for_results(self, dag_id: str, count: int) -> dict[str, dict[str, Any]]:
        """What the DAG's runs returned, once there are `count` and all have succeeded."""
        poll(lambda: [*self.client.runs(dag_id).values()] == ["success"] * count, PATIENCE)
        runs = self.client.runs(dag_id)
        assert [*runs.values()] == ["success"] * count, runs
        return {run: self.client.returned(dag_id, run, "run") for run in runs}

    def rows(self, job: str) -> int:
        """Rows of the job's table of delays."""
        return int(DeltaTable(self.folder / job / "tables" / "delays").count())

    def stopped_driver(self, dag_id: str) -> processes.Process:
        """The job's driver, once it has stopped itself at its failpoint."""
        driver = processes.find(stopped_process(self.folder / "runs" / dag_id))
        assert driver is not None
        return driver

    def backfill(self, dag_id: str, date: datetime) -> None:
        dates = {"from_date": date.isoformat(), "to_date": date.isoformat()}
        self.client.call("POST", "backfills", {"dag_id": dag_id, "max_active_runs": 1, **dates})


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    folder = tmp_path_factory.mktemp("system")
    dags = folder / "dags"
    dags.mkdir()
    job = str(REPOSITORY / "dags" / "jobs" / "flights.py")
    text = DAG_FILE.format(folder=folder, job=job, start=(TODAY - timedelta(days=5)).isoformat())
    (dags / "flights_tests.py").write_text(text)
    (folder / "code").mkdir()
    for module, code, decoy in (("pay", JOB, "FACTOR = 1"), ("rates", "FACTOR = 100", "FACTOR = 1")):
        (folder / "code" / f"{module}.py").write_text(code)
        # In Airflow, this folder is in the path of modules.
        (dags / f"{module}.py").write_text(decoy)
    with live_airflow(folder, dags, QUICK_HEARTBEAT) as client:
        client.wait_for_dags("stopped", "modules")
        yield System(folder, client)


def test_catch_up_backfill_and_clear_never_count_twice(system: System) -> None:
    system.arrive("daily", 1, 2, 3)
    system.client.unpause("daily")
    first, second = system.wait_for_results("daily", 2).items()
    assert (first[1]["rows_in"], second[1]["rows_in"]) == (3 * ROWS, 0)
    assert second[1]["started_from"] == second[1]["checkpoint_id"] == first[1]["checkpoint_id"]

    system.arrive("daily", 4)
    system.client.clear("daily", first[0], "run")
    assert system.wait_for_results("daily", 2)[first[0]]["rows_in"] == ROWS
    assert system.rows("daily") == 4 * ROWS

    # Unpausing begins the newest interval; the older one that is backfilled waits for it.
    system.client.unpause("backfilled")
    system.backfill("backfilled", TODAY - timedelta(days=4))
    assert [result["rows_in"] for result in system.wait_for_results("backfilled", 2).values()] == [0, 0]
    assert system.rows("daily") == 4 * ROWS


def test_next_try_waits_for_the_driver_of_a_dead_worker(system: System) -> None:
    system.arrive("survivor", 1, 2)
    system.client.unpause("survivor")
    system.client.trigger("survivor", "one")
    driver = system.stopped_driver("survivor")
    worker = int(system.client.call("GET", f"{_path('survivor', 'one')}/taskInstances/run")["pid"])
    for pid in (os.getpgid(worker), worker):
        os.kill(pid, signal.SIGKILL)
    assert poll(lambda: system.client.task("survivor", "one", "run") == TaskTry("running", 2), PATIENCE)
    os.kill(driver.pid, signal.SIGCONT)
    assert system.wait_for_results("survivor", 1)["one"]["rows_in"] == 2 * ROWS
    assert len(launches_below(system.folder / "runs" / "survivor")) == 1
    assert system.rows("survivor") == 2 * ROWS


def test_marking_the_task_failed_ends_its_driver(system: System) -> None:
    system.arrive("stopped", 1)
    system.client.unpause("stopped")
    system.client.trigger("stopped", "one")
    # A stopped process does not even see SIGTERM.
    driver = system.stopped_driver("stopped")
    system.client.call("PATCH", f"{_path('stopped', 'one')}/taskInstances/run", {"new_state": "failed"})
    assert processes.wait_for_end(driver, PATIENCE)
    (launch,) = launches_below(system.folder / "runs" / "stopped")
    assert poll(lambda: not processes.session_members(launch.pid), PATIENCE)


def test_a_job_of_two_modules_is_that_of_its_folder(system: System) -> None:
    landing = system.folder / "modules" / "landing"
    landing.mkdir(parents=True)
    (landing / "1.json").write_text('{"name": "ann", "value": 3.0}\n')
    system.client.unpause("modules")
    system.client.trigger("modules", "one")
    assert system.wait_for_results("modules", 1)["one"]["rows_in"] == 1
    assert DeltaTable(system.folder / "modules" / "tables" / "paid").to_pyarrow_table()["value"].to_pylist() == [300.0]
