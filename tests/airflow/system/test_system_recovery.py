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

import pytest
from flights_demo.airflow_home import USER
from flights_demo.polling import poll

from stateflow.requesters import airflow_user
from tests.airflow.conftest import REPOSITORY
from tests.airflow.jobs import ACCOUNTS, install_submit
from tests.airflow.system.live_airflow import PATIENCE, QUICK_HEARTBEAT, REJECTED, Client, live_airflow, stopped_process
from tests.support import root_files
from tests.support.job_fixture import AccountsJob

pytestmark = [pytest.mark.slow(reason="starts all of Airflow, and kills each task twice"), pytest.mark.airflow]

JOBS = ("approved", "rejected", "killed")

DAG_FILE = """
from datetime import timedelta
from pathlib import Path
from airflow.sdk import Param
from stateflow_airflow.dags import StateflowJob, stateflow_dags
from stateflow_airflow.spark import SparkSubmit
from tests.airflow.system.killed_tasks import kill_each_task

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
            self_approval=True,
            run_params={{"failpoint": Param(None, type=["null", "string"])}},
        ),
        application={application!r},
        schedule="@once",
        savepoints=None,
    )
    if name == "killed":
        kill_each_task(dags, Path(f"{folder}/killed/deaths"))
"""


@dataclass(frozen=True)
class System:
    folder: Path
    client: Client

    def job(self, name: str) -> AccountsJob:
        return AccountsJob(self.folder / name)

    def first_run(self, job: str) -> None:
        self.client.unpause(job)
        self.client.wait_for_success(job, self.client.only_run(job, "scheduled"))

    def answer(self, dag_id: str, option: str, note: str) -> str:
        question = self.client.wait_for_question(dag_id, "night")
        self.client.answer(dag_id, "night", "approve", option, {"note": note})
        return question

    def clear_until_done(self, dag_id: str, run_id: str) -> int:
        """Clears whatever fails, and approves whatever is asked; returns how often something was cleared."""
        for cleared in range(20):
            if self._end_or_failure(dag_id, run_id) == "success":
                return cleared
            states = self.client.states(dag_id, run_id)
            failed = [task for task, state in states.items() if state == "failed"]
            assert failed, states
            self.client.clear(dag_id, run_id, failed[0])
        raise AssertionError(self.client.states(dag_id, run_id))

    def _end_or_failure(self, dag_id: str, run_id: str) -> str:
        """How a DAG run ended; questions on the way are answered with a yes."""

        def is_asked() -> bool:
            return self.client.states(dag_id, run_id).get("approve") == "awaiting_input"

        def has_ended() -> bool:
            return self.client.run_state(dag_id, run_id) in ("success", "failed")

        while True:
            assert poll(lambda: is_asked() or has_ended(), PATIENCE), self.client.states(dag_id, run_id)
            if not is_asked():
                return self.client.run_state(dag_id, run_id)
            self.client.wait_for_question(dag_id, run_id)
            self.client.answer(dag_id, run_id, "approve", "Approve", {"note": "yes"})
            assert poll(lambda: not is_asked(), PATIENCE)


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
        **QUICK_HEARTBEAT,
        "PATH": f"{install_submit(folder)}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        # The first task that goes back dies when the log has its intent, and no table has gone back yet.
        "STATEFLOW_FAILPOINT": "rewind.table",
        "STATEFLOW_FAILPOINT_ONCE": str(folder / "restore-killed"),
    }
    with live_airflow(folder, dags, environment) as client:
        client.wait_for_dags(f"{JOBS[-1]}_recovery", "after_savepoint")
        client.unpause("after_savepoint")
        for job in JOBS:
            for suffix in ("_savepoint", "_recovery", "_retention"):
                client.unpause(f"{job}{suffix}")
        yield System(folder, client)


def _events(client: Client, asset: str) -> list[dict[str, Any]]:
    answer = client.call("GET", "assets/events?limit=100&order_by=timestamp")
    return [event["extra"] for event in answer["asset_events"] if event["name"] == asset]


def _check_announced(client: Client, job: AccountsJob, made: dict[str, Any]) -> None:
    """The checkpoint and the savepoint have their events, and the guide's DAG was waiting for one."""
    waiting = client.only_run("after_savepoint", "asset_triggered")
    client.wait_for_success("after_savepoint", waiting)
    assert client.returned("after_savepoint", waiting, "look") == made["path"]

    # Only now: Airflow does not answer as long as a run that an event has begun has not started.
    (event,) = _events(client, "approved.savepoint")
    extra = {"savepoint_id": made["id"], "name": "early", "path": made["path"], "checkpoint_id": made["checkpoint_id"]}
    assert event.items() >= extra.items()
    assert _events(client, "approved.checkpoint")[-1]["checkpoint_id"] == root_files.head(job.root).checkpoint


def test_a_savepoint_taken_during_a_run_is_restored_after_an_approval(system: System) -> None:
    client, job = system.client, system.job("approved")
    job.deliver(50)
    system.first_run("approved")

    # The run holds the pool's only slot, and is stopped while a user requests a savepoint.
    job.deliver(120)
    client.trigger("approved", "second", {"failpoint": "batch.begin:3:stop"})
    driver = stopped_process(system.folder / "runs" / "approved")
    client.trigger("approved_savepoint", "one", {"name": "early", "reason": "before version 2"})
    assert poll(lambda: any((job.root / "requests").glob("*")), PATIENCE)
    assert client.task("approved", "second", "run").state == "running"
    os.kill(driver, signal.SIGCONT)
    client.wait_for_success("approved", "second")
    assert client.wait_for_success("approved_savepoint", "one") == {
        "savepoint": "success",
        "approve": "skipped",
        "stop": "skipped",
    }
    made = client.returned("approved_savepoint", "one", "savepoint")
    point = int(made["offsets"]["events"]["row"])
    assert made["made_from"] == "run" and 50 < point < 120
    _check_announced(client, job, made)

    # What came since is wrong; what comes again is right, and can be distinguished from it.
    job.replace_events(since=point)
    wish = {"target": "early", "reason": "version 2 is wrong", "run": True}
    client.trigger("approved_recovery", "night", wish)
    question = system.answer("approved_recovery", "Approve", "seen")
    (movements,) = [line for line in question.splitlines() if f"| {job.table('movements')} |" in line]
    # The number of versions depends on how many batches went into each checkpoint.
    assert f"| {120 - point} |" in movements and "version 2 is wrong" in question
    states = client.wait_for_success("approved_recovery", "night")
    assert states == dict.fromkeys(("plan", "approve", "restore", "verify", "run"), "success")
    assert (system.folder / "restore-killed").exists()
    assert client.task("approved_recovery", "night", "restore").number == 2
    job.check_results()
    (record,) = [r for r in root_files.history(job.root) if r.get("kind") == "restore"]
    # An administrator who asks and approves is one person.
    assert record["by"] == airflow_user(USER) and record["requested_by"] == ""
    assert (record["reason"], record["note"]) == ("version 2 is wrong", "seen")

    # Cleared, it does not go back a second time; the run continues from the head.
    job.deliver(150)
    job.replace_events(since=point)
    client.clear("approved_recovery", "night", "restore")
    client.wait_for_success("approved_recovery", "night")
    assert len([r for r in root_files.history(job.root) if r.get("kind") == "restore"]) == 1
    job.check_results()
    job.check_clean()


def test_a_rejected_plan_changes_nothing_and_can_be_made_and_approved_again(system: System) -> None:
    client, job = system.client, system.job("rejected")
    job.deliver(50)
    system.first_run("rejected")
    oldest = root_files.kept_entries(job.root)[0].seq
    before = root_files.digests(job.root, job.folder / "tables")
    client.trigger("rejected_recovery", "night", {"target": str(oldest), "reason": "to see it"})
    system.answer("rejected_recovery", "Reject", "not now")
    assert client.wait_for_end("rejected_recovery", "night") == "success"
    assert client.states("rejected_recovery", "night") == REJECTED
    assert client.task("rejected_recovery", "night", "approve").number == 1
    (record,) = [r for r in root_files.history(job.root) if r.get("kind") == "rejection"]
    assert (record["by"], record["note"]) == (airflow_user(USER), "not now")
    after = root_files.digests(job.root, job.folder / "tables")
    assert before.items() <= after.items() and len(after) == len(before) + 1

    # On second thoughts: the plan is made, and asked about, once more.
    client.clear("rejected_recovery", "night", "plan")
    system.answer("rejected_recovery", "Approve", "now")
    states = client.wait_for_success("rejected_recovery", "night")
    assert (states["restore"], states["verify"], states["run"]) == ("success", "success", "skipped")
    point = root_files.head(job.root).position
    assert 0 < point < 50
    job.deliver(70)
    job.replace_events(since=point)
    client.trigger("rejected", "next")
    client.wait_for_success("rejected", "next")
    job.check_results()


def test_every_task_completes_after_a_kill_and_a_clear(system: System) -> None:
    """Each task of the family dies before its work, with its worker, and after it; there is no retry, a user clears
    it."""
    client, job = system.client, system.job("killed")
    job.deliver(50)
    client.unpause("killed")
    assert system.clear_until_done("killed", client.only_run("killed", "scheduled")) == 2
    client.trigger("killed_savepoint", "one", {"name": "early"})
    assert system.clear_until_done("killed_savepoint", "one") == 2
    assert set(root_files.savepoints(job.root)) == {"early"}
    client.trigger("killed_retention", "one", {})
    system.clear_until_done("killed_retention", "one")
    assert {name.partition("-")[0] for name in root_files.savepoints(job.root)} == {"early", "manual"}

    job.deliver(120)
    client.trigger("killed", "second", {})
    system.clear_until_done("killed", "second")
    job.replace_events(since=50)
    client.trigger("killed_recovery", "night", {"target": "early", "reason": "wrong", "run": True})
    system.clear_until_done("killed_recovery", "night")
    (record,) = [r for r in root_files.history(job.root) if r.get("kind") == "restore"]
    assert record["by"] == airflow_user(USER)
    client.trigger("killed_savepoint", "two", {"name": "last", "stop": True})
    system.clear_until_done("killed_savepoint", "two")
    assert root_files.savepoints(job.root)["last"]["by"] == airflow_user(USER)
    deaths = {path.name for path in (job.folder / "deaths").iterdir()}
    tasks = [".run", "_savepoint.savepoint", "_savepoint.approve", "_savepoint.stop"]
    tasks += ["_retention.savepoint", "_retention.approve", "_retention.collect"]
    tasks += [f"_recovery.{task}" for task in REJECTED]
    assert deaths >= {f"killed{task}.{moment}" for task in tasks for moment in ("before", "after")}
    job.check_results()
    job.check_clean()
