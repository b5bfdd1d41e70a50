"""A real Airflow: events of closed and reopened days, tasks that are killed, and a DAG with a run for each day."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from flights_demo.client import AirflowError
from flights_demo.polling import poll

from tests.airflow.conftest import REPOSITORY
from tests.airflow.system.live_airflow import PATIENCE, QUICK_HEARTBEAT, Client, live_airflow
from tests.airflow.test_guides_of_airflow import blocks
from tests.operations.test_partitions import Totals
from tests.support.local_jobs import restore

pytestmark = [pytest.mark.slow(reason="starts all of Airflow, and kills each task twice"), pytest.mark.airflow]

DAG_FILE = """
from datetime import date
from pathlib import Path
from stateflow_airflow.dags import PartitionEvents, StateflowJob, stateflow_dags
from tests.airflow.system.killed_tasks import kill_each_task

dags = stateflow_dags(
    job=StateflowJob(
        name="my_flights",
        root="{root}",
        partition_events=PartitionEvents(unit="day", since=date(2026, 1, 1)),
    ),
    application="/a.py",
)
kill_each_task([dag for dag in dags if dag.dag_id == "my_flights_partitions"], Path("{deaths}"))
"""
DAG_ID = "my_flights_partitions"
TIMES = ((1, 5), (2, 5), (4, 1), (4, 2))


@pytest.fixture(scope="module")
def totals(tmp_path_factory: pytest.TempPathFactory) -> Totals:
    return Totals(
        tmp_path_factory.mktemp("job"),
        max_parallelism=8,
        parallelism=2,
        source__max_rows_per_batch=1,
        checkpoints__asynchronous="no",
        checkpoints__retained=100,
    )


@pytest.fixture(scope="module")
def client(totals: Totals, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("system")
    dags = folder / "dags"
    dags.mkdir()
    text = DAG_FILE.format(root=totals.folder / "root", deaths=folder / "deaths")
    (dags / "job.py").write_text(text)
    (follower,) = [block for block in blocks("run-from-airflow", "python") if "PartitionedAssetTimetable" in block]
    (dags / "follower.py").write_text(follower)
    environment = {**QUICK_HEARTBEAT, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'plugins'}"}
    with live_airflow(folder, dags, environment) as client:
        client.wait_for_dags(DAG_ID, "report")
        client.unpause("report")
        client.unpause(DAG_ID)
        yield client


def events(client: Client) -> list[tuple[str, bool]]:
    answers: list[dict[str, Any]] = []

    def has_answered() -> bool:
        # Airflow does not answer as long as a run that an event has begun has not started.
        try:
            answers.append(client.call("GET", "assets/events?limit=100&order_by=timestamp"))
        except AirflowError:
            return False
        return True

    assert poll(has_answered, PATIENCE)
    found = answers[-1]["asset_events"]
    mine = [event for event in found if event["name"] == "my_flights.partition"]
    return [(event["partition_key"], event["extra"]["undone"]) for event in mine]


def announce(client: Client, run_id: str) -> None:
    """A DAG run whose tasks are cleared as often as they are killed."""
    client.trigger(DAG_ID, run_id, {})
    for _ in range(6):
        if client.wait_for_end(DAG_ID, run_id) == "success":
            return
        failed = [task for task, state in client.states(DAG_ID, run_id).items() if state == "failed"]
        client.clear(DAG_ID, run_id, failed[0])
        assert poll(lambda: client.run_state(DAG_ID, run_id) != "failed", PATIENCE)
    raise AssertionError(client.states(DAG_ID, run_id))


def reports(client: Client) -> list[tuple[str, Any]]:
    """The partitions of the runs of the guide's DAG, with what its task has returned."""
    runs = client.call("GET", "dags/report/dagRuns?limit=100&order_by=id")["dag_runs"]
    found = []
    for run in runs:
        path = f"dags/report/dagRuns/{quote(run['dag_run_id'])}/taskInstances/build/xcomEntries/return_value"
        found.append((run["partition_key"], client.call("GET", path)["value"] if run["state"] == "success" else None))
    return found


def test_each_day_has_its_event_and_its_run_although_each_task_is_killed(client: Client, totals: Totals) -> None:
    totals.read(*TIMES)
    announce(client, "first")
    days = ["2026-01-01", "2026-01-02", "2026-01-03"]
    assert sorted(events(client)) == [(day, False) for day in days]
    deaths = {path.name for path in (client.home.folders.home.parent / "deaths").iterdir()}
    assert deaths >= {f"{DAG_ID}.{task}" for task in ("reopened.before", "closed.before", "closed.after")}
    assert poll(lambda: sorted(reports(client)) == [(day, "rebuild") for day in days], PATIENCE), reports(client)

    announce(client, "again")
    assert len(events(client)) == 3

    assert totals.progress is not None
    base = totals.progress.checkpoint_id - 1
    restore(totals, lambda env: totals.build(env, TIMES), target=str(base))
    announce(client, "restored")
    reopened = [(day, undone) for undone in (True, False) for day in days[1:]]
    assert sorted(events(client)[3:], key=lambda e: (not e[1], e[0])) == reopened
    assert [undone for day, undone in events(client)[3:]] == [True, True, False, False]
    # One or two runs for each: the events of a day that come before its run has started belong to one run.
    assert poll(lambda: {day for day, _ in reports(client)[3:]} == set(days[1:]), PATIENCE), reports(client)
    assert poll(lambda: all(value for _, value in reports(client)), PATIENCE), reports(client)
    newest = dict(reports(client)[3:])
    assert set(newest.values()) == {"rebuild"}
