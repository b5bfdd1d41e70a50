"""The last run of a job, from Airflow: every event-time timer fires, also when no run is there that could do it."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from syrupy.assertion import SnapshotAssertion

from stateflow import operations
from stateflow.cli.main import main as cli
from stateflow.errors import Interrupted
from stateflow.launch import RunRequest, run_job
from stateflow.testing.sinks import FolderSink
from stateflow_airflow.failures import TransientFailure
from stateflow_airflow.operators.savepoint import StateflowStopOperator
from stateflow_airflow.spark import SparkSubmit
from tests.airflow.failing import fails
from tests.airflow.jobs import new_run, use_submit
from tests.support import root_files
from tests.support.screens import normalized

JOB = """
import msgspec
from stateflow import KeyedProcessFunction, WatermarkStrategy
from stateflow.api.collection import CollectionSource
from stateflow.testing.sinks import FolderSink

class Event(msgspec.Struct):
    key: str
    at: int

class Growing(CollectionSource):
    bounded = False

class Ends(KeyedProcessFunction[Event, Event]):
    def process_element(self, row, ctx):
        ctx.timer_service().register_event_time_timer(row.at + 3_600_000)
    def on_timer(self, timestamp, ctx):
        yield Event(ctx.get_current_key(), timestamp)

def build(env):
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("at")
    rows = env.from_source(Growing([Event("a", 1), Event("b", 2)], Event), uid="rows")
    ends = rows.assign_timestamps_and_watermarks(strategy).key_by("key").process(Ends(), output=Event, uid="ends")
    ends.sink_to(FolderSink(env.parameters["out"]), uid="out")
"""


@pytest.fixture
def box(tmp_path: Path) -> Path:
    """A folder with a job that has run, and waits for later rows."""
    (tmp_path / "sessions.py").write_text(JOB)
    given = {key: str(value) for key, value in settings(tmp_path).items()}
    run_job(RunRequest(tmp_path / "sessions.py", str(tmp_path / "root"), (given,)))
    assert ends(tmp_path) == []
    return tmp_path


def settings(box: Path) -> dict[str, Any]:
    return {"job.out": str(box / "out"), "local_dir": str(box / "local")}


def ends(box: Path) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in FolderSink(box / "out").rows())


def stop(box: Path, **more: Any) -> StateflowStopOperator:
    return StateflowStopOperator(
        task_id="stop", job_root=str(box / "root"), job=str(box / "sessions.py"), settings=settings(box), **more
    )


def test_a_drain_without_a_run_fires_the_timers_in_the_task(box: Path) -> None:
    run = new_run("2026-01-01")
    # As a template renders it.
    made = stop(box, drain="True", name="last").execute(run.next_try())
    assert made["taken_by"] == "run"
    assert ends(box) == [("a", 3_600_001), ("b", 3_600_002)]
    assert root_files.savepoints(box / "root")["last"]["drained"] is True
    assert stop(box, drain="True", name="last").execute(run.next_try())["id"] == made["id"]


def test_a_stop_without_a_drain_fires_none(box: Path) -> None:
    made = stop(box, drain="False", name="last").execute(new_run("2026-01-01").next_try())
    assert made["taken_by"] == "head" and ends(box) == []


def test_status_shows_that_the_newest_checkpoint_was_drained(box: Path, golden: SnapshotAssertion) -> None:
    def status(*more: str) -> str:
        return CliRunner().invoke(cli, ["status", "--job-root", str(box / "root"), *more]).output

    assert not json.loads(status("--json"))["drained"]
    stop(box, drain="True", name="last").execute(new_run("2026-01-01").next_try())
    assert json.loads(status("--json"))["drained"]
    # The table has milliseconds without a unit.
    assert re.sub(r"(?<=<time>  )\d+", "<ms>", normalized(status())) == golden


def test_a_drain_takes_the_spark_of_the_connection(box: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_submit(box, monkeypatch)
    spark = SparkSubmit(conf={"spark.ui.enabled": "false"}, env_vars={"ONE": "1"})
    seen: dict[str, str] = {}

    def look(*_: object, **__: object) -> None:
        seen.update(os.environ)
        raise Interrupted("enough was seen")

    monkeypatch.setattr(operations, "stop", look)
    before = dict(os.environ)
    with fails(TransientFailure, "interrupted"):
        stop(box, drain=True, spark=spark).execute(new_run("2026-01-01").next_try())
    assert dict(os.environ) == before
    words = shlex.split(seen["PYSPARK_SUBMIT_ARGS"])
    assert words[words.index("--master") + 1] == "local[2,4]"
    assert "spark.ui.enabled=false" in words and words[-1] == "pyspark-shell"
    assert seen["ONE"] == "1"
