"""Both families in a real browser, with real runs: a run, a recovery that is rejected, one that is approved."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
from flights_demo.airflow_home import USER
from flights_demo.flights import prepare

from stateflow.requesters import airflow_user
from tests.airflow.conftest import REPOSITORY
from tests.airflow.system.browser import AirflowPages, Question, TriggerForm, chromium, open_page
from tests.airflow.system.live_airflow import REJECTED, Client, live_airflow
from tests.support import root_files

pytestmark = [
    pytest.mark.slow(reason="runs DAGs in processes of Airflow"),
    pytest.mark.airflow,
    pytest.mark.spark,
    pytest.mark.skipif(chromium() is None, reason="there is no Chromium: `make setup` installs it"),
]

TABLES = {"flights": ("delays", "routes"), "fleet": ("aircraft_days", "carrier_days", "late_flights")}


@dataclass(frozen=True)
class Recovery:
    """A recovery that waits for an answer: what its approver is asked in Markdown, and the page that asks it."""

    run_id: str
    target: int
    asked: str
    question: Question


@dataclass(frozen=True)
class Operator:
    """An operator in front of Airflow, whose DAGs are those of this repository."""

    folder: Path
    client: Client
    pages: AirflowPages

    def send(self, form: TriggerForm, dag_id: str) -> str:
        """Sends a form; returns the DAG run that it has made."""
        before = self.client.runs(dag_id)
        assert form.can_send()
        form.send()
        (run,) = self.client.runs(dag_id).keys() - before
        return run

    def receive(self, files: int) -> int:
        """Lets the next files arrive; returns how many there are now."""
        landing = self.folder / "landing"
        there = len(list(landing.iterdir()))
        for path in sorted((self.folder / "staging").iterdir())[there : there + files]:
            shutil.copy2(path, landing)
        return there + files

    def run(self, name: str) -> None:
        """Runs a job by its form."""
        run_id = self.send(self.pages.open_form(name), name)
        self.client.wait_for_success(name, run_id)

    def recover(self, name: str, reason: str) -> Recovery:
        """Fills in the recovery form with the oldest kept checkpoint, and opens the question."""
        dag_id = f"{name}_recovery"
        form = self.pages.open_form(dag_id)
        form.fields(["target", "reason"])
        target = root_files.kept_entries(self.folder / "jobs" / name)[0].seq
        form.fill("target", str(target))
        form.fill("reason", reason)
        run_id = self.send(form, dag_id)
        asked = self.client.wait_for_question(dag_id, run_id)
        return Recovery(run_id, target, asked, self.pages.open_question(dag_id, run_id, "approve"))


def words(text: str) -> set[str]:
    """Words and numbers, whatever the layout."""
    return set(re.findall(r"\w+", text))


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    folder = tmp_path_factory.mktemp("operator")
    prepare(folder / "staging")
    (folder / "landing").mkdir()
    environment = {
        "STATEFLOW_HOME": str(folder),
        "STATEFLOW_RETENTION_SCHEDULE": "",
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3",
    }
    with live_airflow(folder, REPOSITORY / "dags", environment) as client:
        client.wait_for_dags(*(f"{name}_recovery" for name in TABLES))
        with open_page(folder / "chromium") as page:
            pages = AirflowPages(page, client.home.url)
            pages.log_in(USER, client.home.password)
            yield Operator(folder, client, pages)


@pytest.mark.parametrize("name", TABLES)
def test_a_recovery_can_be_rejected_and_another_one_approved_in_the_browser(operator: Operator, name: str) -> None:
    operator.receive(2)
    # No pool was made: the run begins nevertheless.
    operator.run(name)
    landed = operator.receive(1)
    operator.run(name)
    # `flights` takes one file a batch; `fleet` takes all of them.
    files = {"flights": landed - 1, "fleet": 1}[name]
    root = operator.folder / "jobs" / name
    newest = root_files.head(root).checkpoint
    recovery, client = operator.recover(name, "to see it"), operator.client
    dag_id, run_id = f"{name}_recovery", recovery.run_id
    assert recovery.target < newest
    planned = client.returned(dag_id, run_id, "plan")
    assert planned["plan"]["target_checkpoint"] == recovery.target and not planned["dag"]["paused"]
    assert sum(source["files"] for source in planned["plan"]["sources"]) == files
    # The page has all that a person decides by.
    assert words(recovery.asked) >= words(planned["markdown"]) | words("to see it")
    assert words(recovery.question.text) >= words(recovery.asked)
    for table in TABLES[name]:
        assert str(operator.folder / "tables" / table) in recovery.question.text
    recovery.question.answer("Reject", "not tonight")
    assert client.wait_for_end(dag_id, run_id) == "success"
    assert client.states(dag_id, run_id) == REJECTED
    run = f"dags/{dag_id}/runs/{quote(run_id)}"
    assert "not tonight" in operator.pages.read(f"{run}/tasks/approve", "rejected the request")
    assert root_files.head(root).checkpoint == newest
    (record,) = [r for r in root_files.history(root) if r.get("kind") == "rejection"]
    assert (record["by"], record["reason"]) == (airflow_user(USER), "not tonight")

    recovery = operator.recover(name, "version 2 is wrong")
    recovery.question.answer("Approve", "seen")
    assert client.wait_for_success(dag_id, recovery.run_id)["restore"] == "success"
    assert root_files.head(root).checkpoint == recovery.target
    (record,) = [r for r in root_files.history(root) if r.get("kind") == "restore"]
    assert record["by"] == airflow_user(USER)
    assert "version 2 is wrong" in record["reason"] and "seen" in record["reason"]


def test_a_wrong_failpoint_is_refused_with_the_known_failpoints(operator: Operator) -> None:
    form = operator.pages.open_form("flights")
    form.fields(["failpoint"])
    form.fill("failpoint", "batch.reprted:3")
    run_id = operator.send(form, "flights")
    assert operator.client.wait_for_end("flights", run_id) == "failed"
    text = operator.pages.read(f"dags/flights/runs/{quote(run_id)}/tasks/run", "[config]")
    assert "batch.reprted" in text and "batch.reported" in text and "schema" not in text
