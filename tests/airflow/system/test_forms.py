"""The trigger form of every DAG, in a real browser: it can be filled in and sent, and what was entered arrives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from flights_demo.airflow_home import USER

from tests.airflow.conftest import REPOSITORY
from tests.airflow.system.browser import AirflowPages, chromium, open_page
from tests.airflow.system.live_airflow import Client, live_airflow

pytestmark = [
    pytest.mark.slow(reason="starts Airflow and a browser"),
    pytest.mark.airflow,
    pytest.mark.skipif(chromium() is None, reason="there is no Chromium: `make setup` installs it"),
]

DAGS = [
    f"{name}{suffix}"
    for name in ("flights", "fleet", "aircraft")
    for suffix in ("", "_savepoint", "_retention", "_recovery")
]
DEFAULTS: dict[str, dict[str, Any]] = {
    "flights": {"drain": False, "failpoint": None},
    "fleet": {"drain": False},
    "aircraft": {"drain": False, "failpoint": None},
    "savepoint": {"name": None, "reason": None, "origin": "manual", "format": "default", "stop": False, "drain": False},
    "retention": {"retain": None, "savepoints": 7, "preview": False},
    "recovery": {
        "sinks": "restore",
        "drop": None,
        "keep_tables": None,
        "from_other_job": False,
        "run": False,
        "new_names": None,
        "source_positions": None,
        "claim_mode": "no-claim",
    },
}
"""Conf of a DAG run whose form was sent as it was; of the families' DAGs under their suffix."""
ENTRIES = {
    "flights": {"failpoint": "batch.reported:3"},
    "flights_savepoint": {"name": "before-v2", "reason": "an upgrade"},
    "flights_recovery": {"target": "before-v2", "reason": "wrong\nsince 3", "drop": "old", "keep_tables": "older"},
    "fleet_recovery": {"target": "latest", "reason": "to see it"},
    "aircraft_recovery": {"target": "latest", "reason": "to see it"},
}
"""What is entered; into the other forms nothing."""


@dataclass(frozen=True)
class Web:
    """Airflow with the DAGs of this repository, and a browser; no DAG run begins."""

    client: Client
    pages: AirflowPages

    def newest_conf(self, dag_id: str) -> dict[str, Any]:
        runs = self.client.call("GET", f"dags/{dag_id}/dagRuns?order_by=-run_after&limit=1")["dag_runs"]
        return dict(runs[0]["conf"])


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    folder = tmp_path_factory.mktemp("forms")
    environment = {"STATEFLOW_HOME": str(folder), "STATEFLOW_RETENTION_SCHEDULE": ""}
    with (
        live_airflow(folder, REPOSITORY / "dags", environment, ("api-server", "dag-processor")) as client,
        open_page(folder / "chromium") as page,
    ):
        client.wait_for_dags(*DAGS)
        pages = AirflowPages(page, client.home.url)
        pages.log_in(USER, client.home.password)
        yield Web(client, pages)


@pytest.mark.parametrize("dag_id", DAGS)
def test_a_form_can_be_sent_and_what_was_entered_arrives(web: Web, dag_id: str) -> None:
    name, _, suffix = dag_id.partition("_")
    wanted = DEFAULTS[suffix or name] | ENTRIES.get(dag_id, {})
    form = web.pages.open_form(dag_id)
    assert form.fields(wanted) == set(wanted)
    # Only what a recovery goes back to, and why, has to be entered.
    assert form.can_send() is (suffix != "recovery")
    for entry, value in ENTRIES.get(dag_id, {}).items():
        form.fill(entry, value)
    assert form.can_send()
    # What has no schedule is not paused: a trigger of a fresh Airflow starts it.
    if suffix in ("", "retention"):
        form.leave_paused()
    else:
        assert not form.asks_to_unpause()
    form.send()
    assert web.newest_conf(dag_id) == wanted


def test_every_pool_that_a_task_needs_exists(web: Web) -> None:
    pools = {pool["name"] for pool in web.client.call("GET", "pools")["pools"]}
    needed = {task["pool"] for dag in DAGS for task in web.client.call("GET", f"dags/{dag}/tasks")["tasks"]}
    assert needed and needed <= pools
