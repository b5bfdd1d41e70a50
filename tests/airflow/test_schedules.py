"""Runs that take longer than their schedule, and deadlines for the next checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.models.asset import AssetEvent, AssetModel
from airflow.sdk import DAG, Asset, CronTriggerTimetable
from airflow.sdk.definitions.callback import AsyncCallback
from airflow.serialization.serialized_objects import DagSerialization
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from stateflow_airflow.dags import StateflowJob, stateflow_dags
from stateflow_airflow.deadlines import LastCheckpointDeadline, no_checkpoint_for
from stateflow_airflow.operators.run import StateflowRunOperator, interval_after
from tests.airflow.fakes import FakeRun, FakeSpark

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("schedule", "due", "interval"),
    [
        ("*/10 * * * *", START, timedelta(minutes=10)),
        ("0 8,18 * * *", START + timedelta(hours=18), timedelta(hours=14)),
        (timedelta(minutes=7), START, timedelta(minutes=7)),
        # The clock is put forward on 29 March.
        (
            CronTriggerTimetable("@daily", timezone="Europe/Berlin"),
            datetime(2026, 3, 28, 23, tzinfo=UTC),
            timedelta(hours=23),
        ),
        (None, START, None),
        ("@once", START, None),
        ("@continuous", START, None),
        ([Asset("other")], START, None),
    ],
    ids=["cron", "gap", "delta", "zone", "none", "once", "continuous", "asset"],
)
def test_the_interval_is_the_time_until_the_next_scheduled_run(
    schedule: Any, due: datetime, interval: timedelta | None
) -> None:
    dag = DAG("a_dag", schedule=schedule, start_date=START, max_active_runs=1)
    assert interval_after(dag.timetable, due) == interval


@pytest.mark.parametrize(
    ("schedule", "run_type", "warnings"),
    [
        (timedelta(milliseconds=50), "scheduled", 1),
        (timedelta(minutes=1), "scheduled", 0),
        ("@continuous", "scheduled", 0),
        (timedelta(milliseconds=50), "manual", 0),
    ],
    ids=["longer", "shorter", "continuous", "manual"],
)
def test_a_scheduled_run_that_takes_longer_than_its_interval_logs_one_warning(
    spark: FakeSpark, tmp_path: Path, caplog: pytest.LogCaptureFixture, schedule: Any, run_type: str, warnings: int
) -> None:
    spark.script("finish")
    (tmp_path / "job.py").touch()
    paths: dict[str, Any] = {
        "job": str(tmp_path / "job.py"),
        "job_root": str(tmp_path / "root"),
        "run_folder": str(tmp_path / "runs"),
    }
    with DAG("a_dag", schedule=schedule, start_date=START, max_active_runs=1):
        operator = StateflowRunOperator(task_id="run", **paths)
    run = FakeRun()
    run.run_type = run_type
    with caplog.at_level(logging.WARNING, "airflow.task"):
        assert operator.execute(run.next_try())["duration_ms"] == 100
    assert len([record for record in caplog.records if record.funcName == "warn_if_longer"]) == warnings


async def notify(**_: object) -> None:
    """A callback."""


@pytest.fixture
def session() -> Iterator[Session]:
    """The tables of Airflow's database that a deadline reads."""
    engine = create_engine("sqlite://")
    for model in (AssetModel, AssetEvent):
        model.metadata.tables[model.__tablename__].create(engine)
    with Session(engine) as session:
        yield session
    engine.dispose()


def test_the_deadline_counts_from_the_newest_event_of_the_job_s_checkpoint_asset(session: Session) -> None:
    alert = no_checkpoint_for("orders", timedelta(minutes=90), AsyncCallback(notify))
    reference = alert.reference
    assert isinstance(reference, LastCheckpointDeadline)
    restored = LastCheckpointDeadline.deserialize_reference(reference.serialize_reference())
    assert restored == reference
    before = datetime.now(UTC)
    assert restored._evaluate_with(session=session) >= before
    for number, name in enumerate(("orders", "other"), 1):
        asset = StateflowJob(name=name, root="/r").checkpoint
        session.add(AssetModel(id=number, name=asset.name, uri=asset.uri, group="asset"))
        for hour in (3, 5, 4):
            event = AssetEvent(asset_id=number, timestamp=START + timedelta(hours=hour * number))
            session.add(event)
    session.flush()
    assert restored._evaluate_with(session=session) == START + timedelta(hours=5)


def test_only_the_dag_that_runs_the_job_has_its_deadlines() -> None:
    alert = no_checkpoint_for("orders", timedelta(minutes=90), AsyncCallback(notify))
    job = StateflowJob(name="orders", root="/data/orders", deadlines=[alert])
    stored = {dag.dag_id: DagSerialization.to_dict(dag)["dag"].get("deadline") for dag in stateflow_dags(job, "/a.py")}
    (deadline,) = stored.pop("orders")
    reference = deadline["reference"]
    # Airflow finds the class by this path among those that the plugin registers.
    assert reference["__class_path"] == "stateflow_airflow.deadlines.LastCheckpointDeadline"
    assert reference["asset_uri"] == job.checkpoint.uri
    assert not any(stored.values())
