"""A real Airflow over a folder of DAG files, and the calls of its REST API that tests make."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from flights_demo.airflow_home import USER, AirflowHome, Folders
from flights_demo.client import AirflowClient
from flights_demo.polling import poll

from stateflow_airflow import processes
from tests.airflow.conftest import REPOSITORY
from tests.airflow.fakes import SPARK_CONNECTION

PATIENCE = 900.0
ALL = ("api-server", "scheduler", "dag-processor", "triggerer")
QUICK_HEARTBEAT = {
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "5",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
}
"""Lets Airflow miss a worker that was killed soon."""
QUICK_ADOPTION = {"AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5"}
"""Lets a scheduler repeat the tasks of one that was killed soon after half a minute; by default within five minutes."""
REJECTED = {"plan": "success", "approve": "success"} | dict.fromkeys(("restore", "verify", "run"), "skipped")
"""The tasks of a recovery that a person has rejected, with their states."""


class Client(AirflowClient):
    def __init__(self, home: AirflowHome) -> None:
        super().__init__(home.url, USER, home.password)
        self.home = home

    def kill(self, component: str) -> None:
        """Kills a component with all of its child processes, as the end of its host does."""
        launcher = self.home.launcher(component)
        launch = launcher.active()
        assert launch is not None
        while members := launcher.members(launch):
            for member in members:
                processes.send(member, signal.SIGKILL)
            processes.wait_for_all(members, PATIENCE)

    def pause(self, dag_id: str) -> None:
        self.call("PATCH", f"dags/{dag_id}", {"is_paused": True})

    def wait_for_dags(self, *dag_ids: str) -> None:
        assert poll(lambda: all(map(self.has_dag, dag_ids)), PATIENCE)

    def runs(self, dag_id: str) -> dict[str, str]:
        answer = self.call("GET", f"dags/{dag_id}/dagRuns?limit=100&order_by=logical_date")
        return {run["dag_run_id"]: run["state"] for run in answer["dag_runs"]}

    def only_run(self, dag_id: str, kind: str) -> str:
        """The id of the DAG's only run, as soon as there is one; it begins with `kind`."""
        assert poll(lambda: len(self.runs(dag_id)) == 1, PATIENCE)
        (run,) = self.runs(dag_id)
        assert run.startswith(f"{kind}__")
        return run

    def states(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        answer = self.call("GET", f"dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances")
        return {task["task_id"]: task["state"] for task in answer["task_instances"]}

    def wait_for_end(self, dag_id: str, run_id: str) -> str:
        ended = ("success", "failed")
        assert poll(lambda: self.run_state(dag_id, run_id) in ended, PATIENCE), self.states(dag_id, run_id)
        return self.run_state(dag_id, run_id)

    def wait_for_success(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        assert self.wait_for_end(dag_id, run_id) == "success", self.states(dag_id, run_id)
        return self.states(dag_id, run_id)

    def wait_for_question(self, dag_id: str, run_id: str) -> str:
        planned = ("awaiting_input", "upstream_failed")
        assert poll(lambda: self.states(dag_id, run_id)["approve"] in planned, PATIENCE), self.states(dag_id, run_id)
        assert self.states(dag_id, run_id)["approve"] == "awaiting_input", self.states(dag_id, run_id)
        # An answer within seconds can meet a worker that has not ended yet, and then counts as a failure.
        poll(lambda: False, 6)
        path = f"dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances/approve/-1/hitlDetails"
        return str(self.call("GET", path)["body"])

    def clear(self, dag_id: str, run_id: str, task_id: str) -> None:
        body = {"dry_run": False, "dag_run_id": run_id, "task_ids": [task_id], "only_failed": False}
        follow = {"include_downstream": True, "reset_dag_runs": True}
        self.call("POST", f"dags/{dag_id}/clearTaskInstances", body | follow)


def stopped_process(folder: Path) -> int:
    """Process id of the launch below a folder that has stopped itself at its failpoint, as soon as there is one."""

    def markers() -> list[str]:
        return [text for path in folder.rglob("reached") if (text := path.read_text())]

    assert poll(lambda: bool(markers()), PATIENCE)
    return int(markers()[0])


@contextmanager
def live_airflow(
    folder: Path,
    dags: Path,
    environment: Mapping[str, str],
    components: Sequence[str] = ALL,
    users: Mapping[str, str] | None = None,
) -> Iterator[Client]:
    """An Airflow with the DAG files of a folder; `users` are further users with their roles."""
    given = {
        "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'plugins'}",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "AIRFLOW_CONN_SPARK_DEFAULT": SPARK_CONNECTION,
        **environment,
    }
    folders = Folders(folder / "airflow", dags, REPOSITORY / "plugins", folder / "runs")
    everyone = {USER: "admin", **(users or {})}
    with AirflowHome(folders, given, components=components, users=everyone) as airflow:
        airflow.migrate()
        airflow.start()
        airflow.wait_until_healthy(PATIENCE)
        yield Client(airflow)
