"""A real Airflow and jobs that stay up on Spark: their starts, deaths, renewals, clears and ends."""

from __future__ import annotations

import json
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from flights_demo.airflow_home import launches_below
from flights_demo.client import TaskTry
from flights_demo.polling import poll

from stateflow_airflow import processes
from tests.airflow.system.live_airflow import PATIENCE, QUICK_ADOPTION, Client, live_airflow
from tests.spark.continuous_job import ContinuousJob

pytestmark = [
    pytest.mark.slow(reason="starts all of Airflow, and kills parts of it"),
    pytest.mark.airflow,
    pytest.mark.spark,
]

NAMES = ("a", "b", "c")
QUIET_SECONDS = 20.0
"""How long Airflow is observed. An unpaused DAG starts its next run within a few seconds."""

PATIENT_WORKERS = {"AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60"}
"""Lets a task start on a busy machine; after 5 s without an answer, Airflow lets it fail."""
QUICK_TRIGGERERS = {"AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "15"}
"""Lets a triggerer soon get the triggers of one that does not respond."""

DAG_FILE = """
from datetime import timedelta
from pathlib import Path
from stateflow_airflow.dags import StateflowJob, stateflow_dags
from stateflow_airflow import renewal
from stateflow_airflow.spark import SparkSubmit

age = renewal._age

def age_or_old(launch):
    "Adds hours to the age of the launch that the test has named."
    old = Path("{folder}/old") / Path(launch.folder).relative_to("{folder}/runs")
    return age(launch) + timedelta(hours=9 if old.exists() else 0)

renewal._age = age_or_old

def continuous(name, run, **more):
    home = f"{folder}/{{name}}"
    stateflow_dags(
        job=StateflowJob(
            name=name,
            root=f"{{home}}/root",
            mode="continuous",
            settings={{"job.home": home, "job.delay": 10**9, "local_dir": f"{{home}}/local"}},
            spark=SparkSubmit(conf={{"spark.ui.enabled": "false"}}),
            run={{"retry_delay": timedelta(seconds=1), **run}},
            **more,
        ),
        application={job!r},
        savepoints=None,
    )

continuous("kept", {{}}, renew_after=timedelta(hours=8))
continuous("deferred", {{"deferrable": True}})
"""


class FedJob(ContinuousJob):
    """A job to which a thread adds a row about once a second."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.fed = 0
        self._end = threading.Event()

    @contextmanager
    def fed_steadily(self) -> Iterator[None]:
        self._end.clear()
        feeder = threading.Thread(target=self._feed)
        feeder.start()
        try:
            yield
        finally:
            self._end.set()
            feeder.join()

    def wait_for_new_rows(self) -> None:
        """Waits until the rows that exist now, and one that does not, are in the table."""
        self.wait_for_count(self.fed + 1)

    def wait_for_count(self, rows: int) -> None:
        assert poll(lambda: self.count() >= rows, PATIENCE), (self.count(), rows)

    def count(self) -> int:
        return self.rows("out").total() if (self.folder / "out" / "versions").is_dir() else 0

    def check_rows(self) -> None:
        """Each row is in the table once, with its number among the rows of its name."""
        numbered = Counter((NAMES[n % len(NAMES)], n // len(NAMES) + 1) for n in range(self.fed))
        assert self.rows("out") == numbered

    def _feed(self) -> None:
        while not self._end.wait(1.0):
            self.add(NAMES[self.fed % len(NAMES)])
            self.fed += 1


def task_path(dag_id: str, run_id: str) -> str:
    return f"dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances/run"


@dataclass(frozen=True)
class System:
    folder: Path
    client: Client

    def make_old(self, launch: Path) -> None:
        (self.folder / "old" / launch.relative_to(self.folder / "runs")).mkdir(parents=True)

    def launches(self, dag_id: str) -> list[Path]:
        return [Path(launch.folder) for launch in launches_below(self.folder / "runs" / dag_id)]

    def wait_for_launch(self, dag_id: str, number: int) -> None:
        assert poll(lambda: len(self.launches(dag_id)) >= number, PATIENCE), self.launches(dag_id)
        assert len(self.launches(dag_id)) == number

    def wait_for_result(self, launch: Path) -> dict[str, Any]:
        assert poll((launch / "exit").exists, PATIENCE), (launch / "driver.log").read_text()[-4000:]
        result: dict[str, Any] = json.loads((launch / "result.json").read_text())
        assert result["status"] == "finished", result
        found: dict[str, Any] = result["result"]
        return found

    def wait_for_try(self, dag_id: str, run_id: str, state: str, after: int = 0) -> TaskTry:
        """Waits for the state of a later try of the task that runs the job, and returns the try.

        On a busy machine, Airflow believes that a worker is dead, and starts more tries than the test.
        """

        def is_there() -> bool:
            found = self.task(dag_id, run_id)
            return found.state == state and found.number > after

        assert poll(is_there, PATIENCE), self.task(dag_id, run_id)
        return self.task(dag_id, run_id)

    def task(self, dag_id: str, run_id: str) -> TaskTry:
        return self.client.task(dag_id, run_id, "run")

    def details(self, dag_id: str, run_id: str) -> dict[str, Any]:
        return self.client.call("GET", task_path(dag_id, run_id))

    def restart_triggerer(self, dag_id: str, run_id: str) -> None:
        """Kills the triggerer, and waits until a new one has the trigger of the task."""
        with self.trigger_moves(dag_id, run_id):
            self.restart("triggerer")

    def hang_triggerer(self, dag_id: str, run_id: str) -> None:
        """Stops the triggerer until another one has the trigger of the task, and then lets it continue."""
        launcher = self.client.home.launcher("triggerer")
        launch = launcher.active()
        assert launch is not None
        members = launcher.members(launch)
        with self.trigger_moves(dag_id, run_id):
            for member in members:
                processes.send(member, signal.SIGSTOP)
            self.client.home.start_component("triggerer", "another-triggerer")
        for member in members:
            processes.send(member, signal.SIGCONT)

    @contextmanager
    def trigger_moves(self, dag_id: str, run_id: str) -> Iterator[None]:
        """Waits for the triggerer that has the trigger of the task, and after the block for another one."""

        def triggerer() -> object:
            trigger = self.details(dag_id, run_id)["trigger"]
            return trigger and trigger["triggerer_id"]

        assert poll(lambda: triggerer() is not None, PATIENCE)
        before = triggerer()
        yield
        assert poll(lambda: triggerer() not in (None, before), PATIENCE), self.details(dag_id, run_id)

    def restart(self, component: str) -> None:
        self.client.kill(component)
        self.client.home.start_component(component)

    def stays_as_it_is(self, dag_id: str, runs: int) -> bool:
        """Whether no further DAG run begins, and no launch begins or ends."""

        def launches() -> list[tuple[Path, bool]]:
            return [(launch, (launch / "exit").exists()) for launch in self.launches(dag_id)]

        before = launches()
        return not poll(lambda: len(self.client.runs(dag_id)) != runs or launches() != before, QUIET_SECONDS)


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    folder = tmp_path_factory.mktemp("continuous")
    dags = folder / "dags"
    dags.mkdir()
    job = FedJob(folder / "unused").job_file
    (dags / "continuous_tests.py").write_text(DAG_FILE.format(folder=folder, job=job))
    with live_airflow(folder, dags, QUICK_ADOPTION | QUICK_TRIGGERERS | PATIENT_WORKERS) as client:
        client.wait_for_dags("kept", "deferred")
        yield System(folder, client)


def test_a_job_survives_its_worker_is_renewed_cleared_and_stopped(system: System) -> None:
    job = FedJob(system.folder / "kept")
    with job.fed_steadily():
        system.client.unpause("kept")
        run = system.client.only_run("kept", "scheduled")
        job.wait_for_new_rows()
        first = system.wait_for_try("kept", run, "running")

        system.restart("scheduler")
        second = system.wait_for_try("kept", run, "running", first.number)
        job.wait_for_new_rows()
        assert len(system.launches("kept")) == 1

        system.make_old(system.launches("kept")[0])
        system.wait_for_launch("kept", 2)
        system.wait_for_result(system.launches("kept")[0])
        job.wait_for_new_rows()
        assert system.task("kept", run).state == "running"

        system.client.clear("kept", run, "run")
        system.wait_for_launch("kept", 3)
        job.wait_for_new_rows()
        system.wait_for_try("kept", run, "running", second.number)
    job.wait_for_count(job.fed)
    system.client.pause("kept")
    job.command("stop").check()
    assert system.client.wait_for_success("kept", run) == {"run": "success"}
    assert system.stays_as_it_is("kept", 1)
    job.check_rows()
    check_chain(system, "kept", ["taken-over", "signal", "stopped"])


def check_chain(system: System, dag_id: str, ends: list[str]) -> None:
    """Each launch has continued from the last checkpoint of the one before it."""
    results = [system.wait_for_result(launch) for launch in system.launches(dag_id)]
    assert [result["stopped_because"] for result in results] == ends
    checkpoints = [result["checkpoint_id"] for result in results]
    assert [result["start_checkpoint_id"] for result in results][1:] == checkpoints[:-1]


def test_a_deferred_job_has_no_worker_and_survives_its_triggerer(system: System) -> None:
    job = FedJob(system.folder / "deferred")
    with job.fed_steadily():
        system.client.unpause("deferred")
        run = system.client.only_run("deferred", "scheduled")
        system.wait_for_try("deferred", run, "deferred")
        job.wait_for_new_rows()
        assert processes.find(int(system.details("deferred", run)["pid"])) is None
        assert system.client.call("GET", "pools/default_pool")["occupied_slots"] == 0

        system.restart_triggerer("deferred", run)
        job.wait_for_new_rows()
        system.hang_triggerer("deferred", run)
        assert system.stays_as_it_is("deferred", 1)
        job.wait_for_new_rows()
        job.command("stop").check()
        assert system.client.wait_for_success("deferred", run) == {"run": "success"}
        assert system.client.returned("deferred", run, "run")["stopped_because"] == "stopped"

        assert poll(lambda: len(system.client.runs("deferred")) == 2, PATIENCE), system.client.runs("deferred")
        following = list(system.client.runs("deferred"))[-1]
        system.wait_for_try("deferred", following, "deferred")
        job.wait_for_new_rows()
    job.wait_for_count(job.fed)
    system.client.pause("deferred")
    system.client.call("PATCH", task_path("deferred", following), {"new_state": "failed"})
    system.wait_for_result(system.launches("deferred")[1])
    assert system.client.wait_for_end("deferred", following) == "failed"
    assert system.stays_as_it_is("deferred", 2)
    job.check_rows()
    check_chain(system, "deferred", ["stopped", "signal"])
