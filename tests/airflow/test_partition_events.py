"""Asset events of closed and reopened days: what a task emits, whatever Airflow has stored before."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowSkipException
from airflow.sdk.execution_time.context import OutletEventAccessors
from airflow.serialization.serialized_objects import DagSerialization

from stateflow.clock import ManualClock
from stateflow.operations.partitions import Announcement, Unit
from stateflow_airflow.dags import PartitionEvents, StateflowJob, stateflow_dags
from stateflow_airflow.failures import PermanentFailure
from stateflow_airflow.operators.partitions import StateflowPartitionEventsOperator, read_position
from stateflow_airflow.versions import UnsupportedVersion, require_partition_keys
from tests.airflow.fakes import FakeRun, fails
from tests.operations.test_partitions import Totals
from tests.support.json_outputs import check
from tests.support.local_jobs import restore

ASSET = StateflowJob(name="orders", root="/r").partition
START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class StoredEvent:
    extra: dict[str, Any]
    timestamp: datetime
    key: str | None = None


@dataclass
class Events:
    """The stored events of an asset, and the query of them by which tasks read them."""

    stored: list[StoredEvent] = field(default_factory=list)
    _ascending: bool = True
    _limit: int | None = None
    _before: datetime | None = None

    def add(self, extra: dict[str, Any], key: str | None = None, at: datetime | None = None) -> None:
        self.stored.append(StoredEvent(extra, at or START + timedelta(seconds=len(self.stored)), key))

    def ascending(self, ascending: bool = True) -> Self:
        self._ascending = ascending
        return self

    def limit(self, limit: int) -> Self:
        self._limit = limit
        return self

    def before(self, before: str) -> Self:
        self._before = datetime.fromisoformat(before)
        return self

    def __iter__(self) -> Any:
        found = [e for e in self.stored if self._before is None or e.timestamp <= self._before]
        return iter(sorted(found, key=lambda e: e.timestamp, reverse=not self._ascending)[: self._limit])

    def of(self, key: str) -> list[bool]:
        return [event.extra["undone"] for event in self.stored if event.key == key]


class Task:
    """The two tasks of a DAG run, over the events that Airflow has stored."""

    def __init__(self, root: Path, partitions: PartitionEvents) -> None:
        self.events = Events()
        self._given: dict[str, Any] = {"job_root": str(root), "asset": ASSET, "partitions": partitions}

    def run(self, *, undone: bool, is_killed: bool = False) -> dict[str, Any]:
        operator = StateflowPartitionEventsOperator(task_id="closed", undone=undone, **self._given)
        outlets = OutletEventAccessors()
        context = FakeRun().next_try() | {
            "inlet_events": defaultdict(Events, {ASSET: Events(self.events.stored)}),
            "outlet_events": outlets,
        }
        returned: dict[str, Any] = operator.execute(context)
        check(Announcement, returned)
        event = outlets[ASSET]
        if not is_killed:
            for key in sorted(event.partition_keys):
                self.events.add(dict(event.extra), key)
        return returned

    def run_both(self) -> list[list[str]]:
        found = []
        for undone in (True, False):
            try:
                found.append(self.run(undone=undone)["partitions"])
            except AirflowSkipException:
                found.append([])
        return found


@pytest.fixture
def totals(tmp_path: Path) -> Totals:
    clock = ManualClock()
    return Totals(
        tmp_path, clock, max_parallelism=8, parallelism=2, source__max_rows_per_batch=1, checkpoints__asynchronous="no"
    )


@pytest.fixture
def task(totals: Totals) -> Task:
    return Task(totals.folder / "root", PartitionEvents(unit="day", since=date(2026, 1, 1)))


TIMES = ((1, 5), (2, 5), (4, 1), (4, 2))


def test_a_closed_day_has_one_event_and_a_task_without_events_is_skipped(totals: Totals, task: Task) -> None:
    with fails(PermanentFailure, "config"):
        task.run(undone=False)
    totals.read(*TIMES[:1])
    assert task.run_both() == [[], []]
    totals.read(*TIMES)
    assert task.run_both() == [[], ["2026-01-01", "2026-01-02", "2026-01-03"]]
    extra = task.events.stored[0].extra
    position = extra.pop("position")
    assert (position["number"], position["through_at"]) == (1, "2026-01-04T00:00:00.000Z")
    assert extra == {
        "unit": "day",
        "zone": "UTC",
        "undone": False,
        "checkpoint_id": totals.progress.checkpoint_id if totals.progress else 0,
        "watermark_at": "2026-01-04T00:59:59.999Z",
    }
    assert task.run_both() == [[], []]


def test_a_task_that_was_killed_before_its_success_loses_and_repeats_nothing(totals: Totals, task: Task) -> None:
    totals.read(*TIMES)
    killed = task.run(undone=False, is_killed=True)
    assert task.events.stored == []
    assert task.run(undone=False)["partitions"] == killed["partitions"]
    assert task.run_both() == [[], []]


@pytest.mark.parametrize(
    ("unit", "first", "reopened_keys"),
    [
        ("day", "2026-01-01", ["2026-01-02", "2026-01-03"]),
        # From the hour of the row at which the restored checkpoint's watermark is.
        ("hour", "2026-01-01T00", [f"{START + timedelta(hours=hour):%Y-%m-%dT%H}" for hour in range(29, 73)]),
    ],
)
def test_a_restore_reopens_days_and_hours_before_they_are_closed_again(
    totals: Totals, unit: Unit, first: str, reopened_keys: list[str]
) -> None:
    task = Task(totals.folder / "root", PartitionEvents(unit=unit, since=date(2026, 1, 1)))
    totals.read(*TIMES, checkpoints__retained=100)
    task.run_both()
    assert totals.progress is not None
    base = totals.progress.checkpoint_id - 1
    restore(totals, lambda env: totals.build(env, TIMES), target=str(base))
    # The task of closed days waits for the other one, which Airflow may repeat.
    with pytest.raises(AirflowSkipException):
        task.run(undone=False)
    reopened = task.run(undone=True)
    assert (reopened["partitions"], reopened["checkpoint_id"]) == (reopened_keys, base)
    assert task.run_both() == [[], reopened_keys]
    assert task.events.of(first) == [False]
    assert all(task.events.of(key) == [False, True, False] for key in reopened_keys)
    assert task.run_both() == [[], []]


def test_hours_and_days_of_a_time_zone_have_their_keys(totals: Totals) -> None:
    totals.read((1, 5), (1, 7), (1, 7))
    hours = Task(totals.folder / "root", PartitionEvents(unit="hour", since=date(2026, 1, 1)))
    assert hours.run(undone=False)["partitions"] == [f"2026-01-01T0{hour}" for hour in range(7)]
    days = Task(totals.folder / "root", PartitionEvents(unit="day", zone="Asia/Tokyo", since=date(2025, 12, 31)))
    assert days.run(undone=False)["partitions"] == ["2025-12-31"]


def test_the_position_is_the_one_with_the_highest_number_whatever_users_and_clocks_add() -> None:
    events = Events()
    assert read_position(events) is None  # type: ignore[arg-type]

    def position(number: int) -> dict[str, Any]:
        at = "2026-01-02T00:00:00.000Z"
        return {"position": {"number": number, "job_uuid": "u", "seq": number, "first_at": at, "through_at": at}}

    # The clock of the server that stored the first one was ahead.
    for at, number in ((5, 1), (3, 2)):
        events.add(position(number), at=START + timedelta(seconds=at))
    for second in range(700):
        events.add({"from_rest_api": True, "position": "soon"}, at=START + timedelta(minutes=1, seconds=second))
    found = read_position(events)  # type: ignore[arg-type]
    assert found is not None and found.number == 2
    same = Events([StoredEvent({}, START)] * 600)
    assert read_position(same) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {"unit": "week"},
        {"unit": "hour", "zone": "Europe/Berlin"},
        {"unit": "day", "since": date(1, 1, 1)},
        {"unit": "day", "since": datetime(2026, 1, 1, tzinfo=UTC)},
    ],
    ids=["unit", "hours-of-a-zone", "year", "time"],
)
def test_partitions_that_cannot_be_are_refused_when_the_dag_is_made(wrong: dict[str, Any]) -> None:
    job = StateflowJob(name="orders", root="/data/orders", partition_events=PartitionEvents(**wrong))
    with fails(PermanentFailure, "config"):
        stateflow_dags(job=job, application="/a.py")


def test_an_unknown_time_zone_fails_the_task(totals: Totals) -> None:
    totals.read(*TIMES)
    with fails(PermanentFailure, "config", zone="Mars/Base"):
        Task(totals.folder / "root", PartitionEvents(unit="day", zone="Mars/Base")).run(undone=False)


@pytest.mark.parametrize("mode", ["scheduled", "continuous"])
def test_a_job_with_partition_events_has_a_dag_that_follows_its_runs(mode: Any) -> None:
    job = StateflowJob(name="orders", root="/data/orders", mode=mode, partition_events="day")
    dags = {dag.dag_id: dag for dag in stateflow_dags(job=job, application="/a.py")}
    dag = dags["orders_partitions"]
    assert [(task.task_id, task.undone) for task in dag.topological_sort()] == [("reopened", True), ("closed", False)]
    for task in dag.tasks:
        assert ([a.uri for a in task.inlets], [a.uri for a in task.outlets]) == ([ASSET.uri], [ASSET.uri])
        assert (task.max_active_tis_per_dag, task.trigger_rule) == (1, "none_failed")
    assert (dag.max_active_runs, dag.catchup) == (1, False)
    timetable: Any = dag.timetable
    assert [asset.uri for asset in timetable.asset_condition.objects] == [job.checkpoint.uri]
    assert timetable.timetable.expression == ("*/10 * * * *" if mode == "continuous" else "0 * * * *")
    DagSerialization.to_dict(dag)
    # No other task has the asset: it would store events without a position.
    others = [t for name, each in dags.items() if name != dag.dag_id for t in each.tasks]
    assert all(asset.uri != ASSET.uri for t in others for asset in t.outlets if isinstance(asset, Asset))
    assert len(stateflow_dags(job=StateflowJob(name="orders", root="/r"), application="/a.py")) == len(dags) - 1


def test_an_airflow_whose_tasks_have_no_partition_keys_is_refused() -> None:
    require_partition_keys("3.3.0")
    with pytest.raises(UnsupportedVersion) as caught:
        require_partition_keys("3.2.2")
    assert caught.value.installed == "3.2.2"
