"""A real Airflow and a job without Spark: a savepoint during a run, and the runbook, approved and rejected."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from flights_demo.airflow_home import USER, AirflowHome, Folders
from flights_demo.client import AirflowClient
from flights_demo.polling import poll

from tests.airflow.conftest import REPOSITORY
from tests.airflow.jobs import ACCOUNTS, install_submit
from tests.support import root_files
from tests.support.job_fixture import AccountsJob

pytestmark = [pytest.mark.slow, pytest.mark.airflow]

PATIENCE = 300.0
JOBS = ("approved", "rejected", "killed")

DAG_FILE = """
from datetime import timedelta
from pathlib import Path
from airflow.sdk import Param
from stateflow_airflow.dags import StateflowJob, stateflow_dags
from stateflow_airflow.spark import SparkSubmit
from tests.airflow.killed_tasks import kill_each_task

for name in {names!r}:
    dags = stateflow_dags(
        job=StateflowJob(
            name=name,
            root=f"{folder}/{{name}}/root",
            settings={{
                "job.folder": f"{folder}/{{name}}",
                "local_dir": f"{folder}/{{name}}/local",
                "requests.interval": "20ms",
                "checkpoints.retained": 100,
            }},
            spark=SparkSubmit(env_vars={{
                "STATEFLOW_FAILPOINT": "{{{{ params.get('failpoint') or '' }}}}",
                "STATEFLOW_FAILPOINT_ONCE": "../reached",
            }}),
            run={{"retries": 0}},
            run_params={{"failpoint": Param(None, type=["null", "string"])}},
        ),
        application={application!r},
        schedule="@once",
        savepoints=None,
    )
    if name == "killed":
        kill_each_task(dags, Path(f"{folder}/killed/deaths"))
"""


class Client(AirflowClient):
    """The calls that only these tests make."""

    def states(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        """Every task of a DAG run with its state."""
        answer = self.call("GET", f"dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances")
        return {task["task_id"]: task["state"] for task in answer["task_instances"]}

    def wait_for(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        """Waits until a DAG run has succeeded."""

        def ended() -> bool:
            return self.run_state(dag_id, run_id) in ("success", "failed")

        assert poll(ended, PATIENCE), self.states(dag_id, run_id)
        assert self.run_state(dag_id, run_id) == "success", self.states(dag_id, run_id)
        return self.states(dag_id, run_id)

    def scheduled_run(self, dag_id: str) -> str:
        """The id of the schedule's only run, as soon as there is one."""

        def runs() -> list[str]:
            return [run["dag_run_id"] for run in self.call("GET", f"dags/{dag_id}/dagRuns")["dag_runs"]]

        assert poll(lambda: len(runs()) == 1, PATIENCE)
        assert runs()[0].startswith("scheduled__")
        return runs()[0]

    def triggered_run(self, dag_id: str) -> str:
        """The id of the only run, which an asset's event has begun, as soon as there is one."""

        def runs() -> list[str]:
            return [run["dag_run_id"] for run in self.call("GET", f"dags/{dag_id}/dagRuns")["dag_runs"]]

        assert poll(lambda: len(runs()) == 1, PATIENCE)
        assert runs()[0].startswith("asset_triggered__")
        return runs()[0]

    def clear_until_done(self, dag_id: str, run_id: str) -> int:
        """Clears whatever fails, and approves whatever is asked; returns how often something was cleared."""
        for cleared in range(20):
            if self._ended_or_asked(dag_id, run_id) == "success":
                return cleared
            failed = [task for task, state in self.states(dag_id, run_id).items() if state == "failed"]
            assert failed, self.states(dag_id, run_id)
            self.clear(dag_id, run_id, failed[0])
        raise AssertionError(self.states(dag_id, run_id))

    def _ended_or_asked(self, dag_id: str, run_id: str) -> str:
        """How a DAG run ended; questions on the way are answered with a yes."""
        while True:
            assert poll(lambda: self._stands(dag_id, run_id) != "", PATIENCE), self.states(dag_id, run_id)
            found = self._stands(dag_id, run_id)
            if found != "asked":
                return found
            self.wait_for_question(dag_id, run_id)
            self.answer(dag_id, run_id, "Approve", "yes")
            assert poll(lambda: self._stands(dag_id, run_id) != "asked", PATIENCE)

    def _stands(self, dag_id: str, run_id: str) -> str:
        if self.states(dag_id, run_id).get("approve") == "awaiting_input":
            return "asked"
        state = self.run_state(dag_id, run_id)
        return state if state in ("success", "failed") else ""

    def wait_for_question(self, dag_id: str, run_id: str) -> dict[str, Any]:
        """What a person is asked."""

        def asked() -> bool:
            return self.states(dag_id, run_id)["approve"] == "awaiting_input"

        assert poll(asked, PATIENCE), self.states(dag_id, run_id)
        # An answer within seconds can meet a worker that has not ended yet, and then counts as a failure.
        poll(lambda: False, 6)
        return self.call("GET", self._question(dag_id, run_id))

    def answer(self, dag_id: str, run_id: str, option: str, note: str) -> None:
        body = {"chosen_options": [option], "params_input": {"note": note}}
        self.call("PATCH", self._question(dag_id, run_id), body)

    def clear(self, dag_id: str, run_id: str, task_id: str) -> None:
        """Clears a task with all that follow."""
        body = {
            "dry_run": False,
            "dag_run_id": run_id,
            "task_ids": [task_id],
            "include_downstream": True,
            "only_failed": False,
            "reset_dag_runs": True,
        }
        self.call("POST", f"dags/{dag_id}/clearTaskInstances", body)

    def events(self, asset: str) -> list[dict[str, Any]]:
        """What the events of an asset carry, oldest first."""
        answer = self.call("GET", "assets/events?limit=100&order_by=timestamp")
        return [event["extra"] for event in answer["asset_events"] if event["name"] == asset]

    def _question(self, dag_id: str, run_id: str) -> str:
        return f"dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances/approve/-1/hitlDetails"


@dataclass(frozen=True)
class System:
    """A running Airflow and the folder its jobs work in."""

    folder: Path
    airflow: AirflowHome
    client: Client

    def box(self, job: str) -> AccountsJob:
        return AccountsJob(self.folder / job)

    def first_run(self, job: str) -> None:
        """The schedule's run, which begins when the DAG is unpaused."""
        self.client.unpause(job)
        self.client.wait_for(job, self.client.scheduled_run(job))

    def run(self, dag_id: str, run_id: str, conf: dict[str, Any] | None = None) -> dict[str, str | None]:
        """One DAG run from its beginning to its end."""
        self.client.trigger(dag_id, run_id, conf)
        return self.client.wait_for(dag_id, run_id)

    def stopped_driver(self, job: str) -> int:
        """Process id of the run that has stopped itself at its failpoint."""

        def markers() -> list[str]:
            return [path.read_text() for path in (self.folder / "runs" / job).rglob("reached")]

        assert poll(lambda: any(markers()), PATIENCE)
        return int(next(filter(None, markers())))


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    folder = tmp_path_factory.mktemp("system")
    dags = folder / "dags"
    dags.mkdir()
    text = DAG_FILE.format(folder=folder, names=JOBS, application=ACCOUNTS)
    (dags / "families.py").write_text(text)
    guide = (REPOSITORY / "docs" / "guides" / "run-from-airflow.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```\w*\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    (waiting,) = [block for block in blocks if "after_savepoint" in block]
    (dags / "waiting.py").write_text(waiting.replace("my_flights", JOBS[0]))
    environment = {
        "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'plugins'}",
        "PATH": f"{install_submit(folder)}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "AIRFLOW_CONN_SPARK_DEFAULT": '{"conn_type": "spark", "host": "local[2,4]"}',
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "5",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
        # The first task that goes back dies when the log has its intent, and no table has gone back yet.
        "STATEFLOW_FAILPOINT": "rewind.table",
        "STATEFLOW_FAILPOINT_ONCE": str(folder / "restore-killed"),
    }
    folders = Folders(folder / "airflow", dags, REPOSITORY / "plugins", folder / "runs")
    with AirflowHome(folders, environment) as airflow:
        airflow.migrate()
        airflow.start()
        airflow.wait_until_healthy(PATIENCE)
        client = Client(airflow.url, USER, airflow.password)
        for dag_id in (f"{JOBS[-1]}_recovery", "after_savepoint"):
            assert poll(lambda dag_id=dag_id: client.has_dag(dag_id), PATIENCE)
        client.unpause("after_savepoint")
        for job in JOBS:
            for suffix in ("_savepoint", "_recovery", "_retention"):
                client.unpause(f"{job}{suffix}")
        yield System(folder, airflow, client)


def _check_announced(client: Client, box: AccountsJob, made: dict[str, Any]) -> None:
    """The checkpoint and the savepoint have their events, and the guide's DAG was waiting for one."""
    waiting = client.triggered_run("after_savepoint")
    client.wait_for("after_savepoint", waiting)
    assert client.returned("after_savepoint", waiting, "look") == made["path"]

    # Only now: Airflow does not answer as long as a run that an event has begun has not started.
    (event,) = client.events("approved.savepoint")
    extra = {"savepoint_id": made["id"], "name": "early", "path": made["path"], "checkpoint_id": made["checkpoint_id"]}
    assert event.items() >= extra.items()
    assert client.events("approved.checkpoint")[-1]["checkpoint_id"] == root_files.head(box.root).checkpoint


def test_a_savepoint_during_a_run_and_back_to_it_with_an_approval(system: System) -> None:
    client, box = system.client, system.box("approved")
    box.deliver(50)
    system.first_run("approved")

    # The run holds the pool's only slot, and stands still while somebody asks for a savepoint.
    box.deliver(120)
    client.trigger("approved", "second", {"failpoint": "batch.begin:3:stop"})
    driver = system.stopped_driver("approved")
    client.trigger("approved_savepoint", "one", {"name": "early", "reason": "before version 2"})
    assert poll(lambda: any((box.root / "requests").glob("*")), PATIENCE)
    assert client.task("approved", "second", "run").state == "running"
    os.kill(driver, signal.SIGCONT)
    client.wait_for("approved", "second")
    assert client.wait_for("approved_savepoint", "one") == {"savepoint": "success", "stop": "skipped"}
    made = client.returned("approved_savepoint", "one", "savepoint")
    point = int(made["offsets"]["events"]["row"])
    assert made["taken_by"] == "run" and 50 < point < 120
    _check_announced(client, box, made)

    # What came since is wrong; what comes again is right, and can be distinguished from it.
    box.replace_events(since=point)
    wish = {"target": "early", "reason": "version 2 is wrong", "run": True}
    client.trigger("approved_recovery", "night", wish)
    question = client.wait_for_question("approved_recovery", "night")
    (movements,) = [line for line in question["body"].splitlines() if f"| {box.table('movements')} |" in line]
    # The number of versions depends on how many batches went into each checkpoint.
    assert f"| {120 - point} |" in movements and "version 2 is wrong" in question["body"]
    client.answer("approved_recovery", "night", "Approve", "seen")
    states = client.wait_for("approved_recovery", "night")
    assert states == dict.fromkeys(("plan", "approve", "restore", "verify", "run"), "success")
    assert (system.folder / "restore-killed").exists()
    assert client.task("approved_recovery", "night", "restore").number == 2
    box.check_results()
    (record,) = [r for r in root_files.history(box.root) if r.get("kind") == "restore"]
    # An administrator who asks and approves is one person.
    assert record["by"] == USER and USER not in record["reason"]
    assert re.fullmatch("version 2 is wrong.+seen", record["reason"])

    # Cleared, it does not go back a second time; the run goes on from the head.
    box.deliver(150)
    box.replace_events(since=point)
    client.clear("approved_recovery", "night", "restore")
    client.wait_for("approved_recovery", "night")
    assert len([r for r in root_files.history(box.root) if r.get("kind") == "restore"]) == 1
    box.check_results()
    box.check_clean()


def test_a_rejection_changes_nothing_and_can_be_thought_over(system: System) -> None:
    client, box = system.client, system.box("rejected")
    box.deliver(50)
    system.first_run("rejected")
    oldest = root_files.kept_entries(box.root)[0].seq
    before = root_files.digests(box.root, box.folder / "tables")
    client.trigger("rejected_recovery", "night", {"target": str(oldest), "reason": "to see it"})
    client.wait_for_question("rejected_recovery", "night")
    client.answer("rejected_recovery", "night", "Reject", "not now")
    assert poll(lambda: client.run_state("rejected_recovery", "night") == "failed", PATIENCE)
    assert client.states("rejected_recovery", "night") == {
        "plan": "success",
        "approve": "failed",
        "restore": "upstream_failed",
        "verify": "upstream_failed",
        "run": "upstream_failed",
    }
    assert client.task("rejected_recovery", "night", "approve").number == 1
    (record,) = [r for r in root_files.history(box.root) if r.get("kind") == "rejection"]
    assert (record["by"], record["reason"]) == (USER, "not now")
    after = root_files.digests(box.root, box.folder / "tables")
    assert before.items() <= after.items() and len(after) == len(before) + 1

    # On second thoughts: the plan is made, and asked about, once more.
    client.clear("rejected_recovery", "night", "plan")
    client.wait_for_question("rejected_recovery", "night")
    client.answer("rejected_recovery", "night", "Approve", "now")
    states = client.wait_for("rejected_recovery", "night")
    assert (states["restore"], states["verify"], states["run"]) == ("success", "success", "skipped")
    point = root_files.head(box.root).position
    assert 0 < point < 50
    box.deliver(70)
    box.replace_events(since=point)
    system.run("rejected", "next")
    box.check_results()


def test_every_task_is_killed_and_cleared(system: System) -> None:
    """Each task of the family dies before its work, with its worker, and after it; there is no retry, somebody clears
    it."""
    client, box = system.client, system.box("killed")
    box.deliver(50)
    client.unpause("killed")
    assert client.clear_until_done("killed", client.scheduled_run("killed")) == 2
    client.trigger("killed_savepoint", "one", {"name": "early"})
    assert client.clear_until_done("killed_savepoint", "one") == 2
    assert set(root_files.savepoints(box.root)) == {"early"}
    client.trigger("killed_retention", "one", {})
    client.clear_until_done("killed_retention", "one")
    assert {name.partition("-")[0] for name in root_files.savepoints(box.root)} == {"early", "periodic"}

    box.deliver(120)
    client.trigger("killed", "second", {})
    client.clear_until_done("killed", "second")
    box.replace_events(since=50)
    client.trigger("killed_recovery", "night", {"target": "early", "reason": "wrong", "run": True})
    client.clear_until_done("killed_recovery", "night")
    (record,) = [r for r in root_files.history(box.root) if r.get("kind") == "restore"]
    assert record["by"] == USER
    client.trigger("killed_savepoint", "two", {"name": "last", "stop": True})
    client.clear_until_done("killed_savepoint", "two")
    assert "last" in root_files.savepoints(box.root)
    deaths = {path.name for path in (box.folder / "deaths").iterdir()}
    tasks = [
        "killed.run",
        "killed_savepoint.savepoint",
        "killed_savepoint.stop",
        "killed_retention.savepoint",
        "killed_retention.collect",
    ]
    tasks += [f"killed_recovery.{task}" for task in ("plan", "approve", "restore", "verify", "run")]
    assert deaths >= {f"{task}.{moment}" for task in tasks for moment in ("before", "after")}
    box.check_results()
    box.check_clean()
