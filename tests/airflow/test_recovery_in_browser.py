"""Both families in a real browser, with real runs: a run, a recovery that is rejected, one that is approved."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from flights_demo.airflow_home import USER, AirflowHome, Folders
from flights_demo.client import AirflowClient
from flights_demo.flights import prepare
from flights_demo.polling import poll

from tests.airflow.browser import AirflowPages, Question, TriggerForm, chromium, open_page
from tests.airflow.conftest import REPOSITORY
from tests.support import root_files

pytestmark = [
    pytest.mark.slow,
    pytest.mark.airflow,
    pytest.mark.spark,
    pytest.mark.skipif(chromium() is None, reason="there is no Chromium: `make setup` installs it"),
]

PATIENCE = 900.0
TABLES = {"flights": ("delays", "routes"), "fleet": ("aircraft_days", "carrier_days", "late_flights")}


@dataclass(frozen=True)
class Desk:
    """An operator in front of Airflow, whose DAGs are those of this repository."""

    folder: Path
    client: AirflowClient
    pages: AirflowPages

    def send(self, form: TriggerForm, dag_id: str) -> str:
        """Sends a form; returns the DAG run that it has made."""
        before = {run["dag_run_id"] for run in self._runs(dag_id)}
        assert form.can_send()
        form.send()
        (run,) = [run["dag_run_id"] for run in self._runs(dag_id) if run["dag_run_id"] not in before]
        return str(run)

    def receive(self, files: int) -> int:
        """Lets the next files arrive; returns how many there are now."""
        landing = self.folder / "landing"
        there = len(list(landing.iterdir()))
        for path in sorted((self.folder / "staging").iterdir())[there : there + files]:
            shutil.copy2(path, landing)
        return there + files

    def run(self, name: str) -> None:
        """Runs a job by its form."""
        assert self.wait(name, self.send(self.pages.open_form(name), name)) == "success"

    def wait(self, dag_id: str, run_id: str) -> str:
        """How a DAG run ended."""

        def ended() -> bool:
            return self.client.run_state(dag_id, run_id) in ("success", "failed")

        assert poll(ended, PATIENCE), self.states(dag_id, run_id)
        return self.client.run_state(dag_id, run_id)

    def states(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        """Every task of a DAG run with its state."""
        answer = self.client.call("GET", f"dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances")
        return {task["task_id"]: task["state"] for task in answer["task_instances"]}

    def recover(self, name: str, reason: str) -> tuple[str, int, Question]:
        """Fills in the recovery form with the oldest checkpoint that it suggests, and opens the question."""
        dag_id = f"{name}_recovery"
        form = self.pages.open_form(dag_id)
        form.fields(["target", "reason"])
        target = min(int(point) for point in form.suggestions("target") if point.isdigit())
        form.fill("target", str(target))
        form.fill("reason", reason)
        run_id = self.send(form, dag_id)

        def planned() -> bool:
            return self.states(dag_id, run_id)["approve"] in ("awaiting_input", "upstream_failed")

        assert poll(planned, PATIENCE), self.states(dag_id, run_id)
        assert self.states(dag_id, run_id)["approve"] == "awaiting_input", self.states(dag_id, run_id)
        # An answer within seconds can meet a worker that has not ended yet, and then counts as a failure.
        poll(lambda: False, 6)
        return run_id, target, self.pages.open_question(dag_id, run_id, "approve")

    def asked(self, dag_id: str, run_id: str) -> str:
        """What the recovery's approver is asked, in Markdown."""
        path = f"dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances/approve/-1/hitlDetails"
        return str(self.client.call("GET", path)["body"])

    def suggests(self, name: str) -> list[str]:
        """What the recovery form suggests, as Airflow has it."""
        params = self.client.call("GET", f"dags/{name}_recovery/details")["params"]
        return list(params["target"]["schema"]["examples"])

    def _runs(self, dag_id: str) -> list[dict[str, Any]]:
        return list(self.client.call("GET", f"dags/{dag_id}/dagRuns")["dag_runs"])


def words(text: str) -> set[str]:
    """Words and numbers, whatever the layout."""
    return set(re.findall(r"\w+", text))


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    folder = tmp_path_factory.mktemp("desk")
    prepare(folder / "staging")
    (folder / "landing").mkdir()
    folders = Folders(folder / "airflow", REPOSITORY / "dags", REPOSITORY / "plugins", folder / "runs")
    environment = {
        "STATEFLOW_HOME": str(folder),
        "STATEFLOW_RETENTION_SCHEDULE": "",
        "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'plugins'}",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "AIRFLOW_CONN_SPARK_DEFAULT": '{"conn_type": "spark", "host": "local[2,4]"}',
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3",
    }
    with AirflowHome(folders, environment) as airflow:
        airflow.migrate()
        airflow.start()
        airflow.wait_until_healthy(PATIENCE)
        client = airflow.client()
        assert poll(lambda: all(client.has_dag(f"{name}_recovery") for name in TABLES), PATIENCE)
        with open_page(folder / "chromium") as page:
            pages = AirflowPages(page, airflow.url)
            pages.log_in(USER, airflow.password)
            yield Desk(folder, client, pages)


@pytest.mark.parametrize("name", TABLES)
def test_two_runs_then_a_recovery_that_is_rejected_and_one_that_is_approved(desk: Desk, name: str) -> None:
    desk.receive(2)
    # No pool was made: the run begins all the same.
    desk.run(name)
    landed = desk.receive(1)
    desk.run(name)
    # `flights` takes one file a batch; `fleet` takes all that are there.
    files = {"flights": landed - 1, "fleet": 1}[name]
    root = desk.folder / "jobs" / name
    newest = root_files.head(root).checkpoint
    # What the form suggested before this run may be gone by now.
    assert poll(lambda: str(newest) in desk.suggests(name), PATIENCE)

    run_id, target, question = desk.recover(name, "to see it")
    assert target < newest
    planned = desk.client.returned(f"{name}_recovery", run_id, "plan")
    assert planned["plan"]["target_checkpoint"] == target and not planned["dag"]["paused"]
    assert sum(source["files"] for source in planned["plan"]["sources"]) == files
    # The page has all that a person decides by.
    assert words(desk.asked(f"{name}_recovery", run_id)) >= words(planned["markdown"]) | words("to see it")
    assert words(question.text) >= words(desk.asked(f"{name}_recovery", run_id))
    for table in TABLES[name]:
        assert str(desk.folder / "tables" / table) in question.text
    question.answer("Reject", "not tonight")
    assert desk.wait(f"{name}_recovery", run_id) == "failed"
    assert desk.states(f"{name}_recovery", run_id) == {
        "plan": "success",
        "approve": "failed",
        "restore": "upstream_failed",
        "verify": "upstream_failed",
        "run": "upstream_failed",
    }
    run = f"dags/{name}_recovery/runs/{quote(run_id)}"
    assert "Failed" in desk.pages.read(run, "Failed")
    assert "not tonight" in desk.pages.read(f"{run}/tasks/approve", "[rejected]")
    assert root_files.head(root).checkpoint == newest
    (record,) = [r for r in root_files.history(root) if r.get("kind") == "rejection"]
    assert (record["by"], record["reason"]) == (USER, "not tonight")

    run_id, target, question = desk.recover(name, "version 2 is wrong")
    question.answer("Approve", "seen")
    assert desk.wait(f"{name}_recovery", run_id) == "success"
    assert desk.states(f"{name}_recovery", run_id)["restore"] == "success"
    assert root_files.head(root).checkpoint == target
    (record,) = [r for r in root_files.history(root) if r.get("kind") == "restore"]
    assert record["by"] == USER and "version 2 is wrong" in record["reason"] and "seen" in record["reason"]


def test_a_wrong_failpoint_is_answered_with_those_that_there_are(desk: Desk) -> None:
    form = desk.pages.open_form("flights")
    form.fields(["failpoint"])
    form.fill("failpoint", "batch.reprted:3")
    run_id = desk.send(form, "flights")
    assert desk.wait("flights", run_id) == "failed"
    text = desk.pages.read(f"dags/flights/runs/{quote(run_id)}/tasks/run", "[config]")
    assert "batch.reprted" in text and "batch.reported" in text and "schema" not in text
