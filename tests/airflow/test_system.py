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
from flights_demo.airflow_home import USER, AirflowHome, Folders, launches_below
from flights_demo.client import AirflowClient, AirflowError
from flights_demo.flights import SCHEMA
from flights_demo.polling import poll

from stateflow_airflow.launches import processes
from tests.airflow.conftest import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.airflow, pytest.mark.spark]

PATIENCE = 300.0
ROWS = 10
TODAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)

DAG_FILE = """
from datetime import datetime, timedelta, timezone
from airflow.sdk import DAG
from stateflow_airflow.operators.run import StateflowRunOperator
from stateflow_airflow.spark import SparkSubmit

def flights(dag_id, job, environment=None, **schedule):
    with DAG(dag_id, max_active_runs=1, **schedule):
        StateflowRunOperator(
            task_id="run",
            job={job!r},
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
"""


class Client(AirflowClient):
    """The calls that only these tests make."""

    def runs(self, dag_id: str) -> dict[str, str]:
        """The DAG's runs with their states, in the order of their logical dates."""
        answer = self.call("GET", f"dags/{dag_id}/dagRuns?limit=100&order_by=logical_date")
        return {run["dag_run_id"]: run["state"] for run in answer["dag_runs"]}

    def wait_for_runs(self, dag_id: str, count: int) -> list[str]:
        """The ids of the DAG's runs, once there are `count` and all have succeeded."""
        poll(lambda: [*self.runs(dag_id).values()] == ["success"] * count, PATIENCE)
        assert self.runs(dag_id) == dict.fromkeys(self.runs(dag_id), "success")
        assert len(self.runs(dag_id)) == count
        return [*self.runs(dag_id)]

    def clear(self, dag_id: str, run_id: str) -> None:
        self.call("POST", f"dags/{dag_id}/dagRuns/{quote(run_id)}/clear", {"dry_run": False})

    def backfill(self, dag_id: str, first: datetime, last: datetime) -> None:
        dates = {"from_date": first.isoformat(), "to_date": last.isoformat()}

        def accepted() -> bool:
            try:
                self.call("POST", "backfills", {"dag_id": dag_id, "max_active_runs": 1, **dates})
            except AirflowError as error:
                # On SQLite this call does not wait for the scheduler's own writing to end.
                assert "Database is locked" in str(error)
                return False
            return True

        assert poll(accepted, PATIENCE, interval=1)

    def mark_failed(self, dag_id: str, run_id: str) -> None:
        self.call("PATCH", f"dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances/run", {"new_state": "failed"})

    def worker(self, dag_id: str, run_id: str) -> int:
        """Process id of the task's own process."""
        return int(self.call("GET", f"dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances/run")["pid"])


@dataclass(frozen=True)
class System:
    """A running Airflow and the folder its jobs work in."""

    folder: Path
    airflow: AirflowHome
    client: Client

    def arrive(self, job: str, *days: int) -> None:
        """Puts one file for each day into the job's landing folder."""
        landing = self.folder / job / "landing"
        landing.mkdir(parents=True, exist_ok=True)
        for day in days:
            rows = [
                {
                    "tailnum": f"N{number % 3}",
                    "carrier": "UA",
                    "origin": "EWR",
                    "dest": "IAH",
                    "flight": number,
                    "time": datetime(2013, 1, day, number),  # noqa: DTZ001
                    "arr_delay": float(number),
                }
                for number in range(ROWS)
            ]
            path = landing / f".{day}.parquet"
            pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path)
            os.utime(path, (0, 1_700_000_000 + day))
            path.rename(landing / f"{day}.parquet")

    def returned(self, dag_id: str, run_id: str) -> dict[str, Any]:
        return self.client.returned(dag_id, run_id, "run")

    def rows(self, job: str) -> int:
        """Rows of the job's table of delays."""
        return int(DeltaTable(self.folder / job / "tables" / "delays").count())

    def wait_for_stop(self, dag_id: str) -> processes.Process:
        """The job's driver, once it has stopped itself at its failpoint."""
        folder = self.airflow.folders.runs / dag_id

        def reached() -> Path | None:
            return next((path for path in folder.rglob("reached") if path.read_text()), None)

        assert poll(lambda: reached() is not None, PATIENCE)
        marker = reached()
        assert marker is not None
        driver = processes.find(int(marker.read_text()))
        assert driver is not None
        return driver


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    folder = tmp_path_factory.mktemp("system")
    dags = folder / "dags"
    dags.mkdir()
    job = str(REPOSITORY / "dags" / "jobs" / "flights.py")
    text = DAG_FILE.format(folder=folder, job=job, start=(TODAY - timedelta(days=5)).isoformat())
    (dags / "flights_tests.py").write_text(text)
    environment = {
        "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'plugins'}",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "AIRFLOW_CONN_SPARK_DEFAULT": '{"conn_type": "spark", "host": "local[2,4]"}',
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "5",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
    }
    folders = Folders(folder / "airflow", dags, REPOSITORY / "plugins", folder / "runs")
    with AirflowHome(folders, environment) as airflow:
        airflow.migrate()
        airflow.start()
        airflow.wait_until_healthy(PATIENCE)
        client = Client(airflow.url, USER, airflow.password)
        assert poll(lambda: client.has_dag("stopped"), PATIENCE)
        yield System(folder, airflow, client)


def test_catch_up_backfill_and_clear_never_count_twice(system: System) -> None:
    system.arrive("daily", 1, 2, 3)
    system.client.unpause("daily")
    runs = system.client.wait_for_runs("daily", 2)
    results = [system.returned("daily", run) for run in runs]
    assert [result["rows_in"] for result in results] == [3 * ROWS, 0]
    assert results[1]["started_from"] == results[1]["checkpoint_id"] == results[0]["checkpoint_id"]

    system.arrive("daily", 4)
    system.client.clear("daily", runs[0])
    system.client.wait_for_runs("daily", 2)
    assert system.returned("daily", runs[0])["rows_in"] == ROWS
    assert system.rows("daily") == 4 * ROWS

    # Unpausing begins the newest interval; the older one that is backfilled waits for it.
    system.client.unpause("backfilled")
    system.client.backfill("backfilled", TODAY - timedelta(days=4), TODAY - timedelta(days=4))
    for run in system.client.wait_for_runs("backfilled", 2):
        assert system.returned("backfilled", run)["rows_in"] == 0
    assert system.rows("daily") == 4 * ROWS


def test_next_try_waits_for_the_driver_of_a_dead_worker(system: System) -> None:
    system.arrive("survivor", 1, 2)
    system.client.unpause("survivor")
    system.client.trigger("survivor", "one")
    driver = system.wait_for_stop("survivor")
    worker = system.client.worker("survivor", "one")
    for pid in (os.getpgid(worker), worker):
        os.kill(pid, signal.SIGKILL)

    def second_try_runs() -> bool:
        task = system.client.task("survivor", "one", "run")
        return task.number == 2 and task.state == "running"

    assert poll(second_try_runs, PATIENCE)
    os.kill(driver.pid, signal.SIGCONT)
    system.client.wait_for_runs("survivor", 1)
    assert system.returned("survivor", "one")["rows_in"] == 2 * ROWS
    assert len(launches_below(system.airflow.folders.runs / "survivor")) == 1
    assert system.rows("survivor") == 2 * ROWS


def test_marking_the_task_failed_ends_its_driver(system: System) -> None:
    system.arrive("stopped", 1)
    system.client.unpause("stopped")
    system.client.trigger("stopped", "one")
    # A stopped process does not even see SIGTERM.
    driver = system.wait_for_stop("stopped")
    system.client.mark_failed("stopped", "one")
    assert processes.wait_for_end(driver, PATIENCE)
    launch = launches_below(system.airflow.folders.runs / "stopped")[0]
    assert poll(lambda: not processes.session_members(launch.pid), PATIENCE)
