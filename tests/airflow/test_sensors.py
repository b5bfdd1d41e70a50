"""Sensors of a job's freshness, over real job roots: what is fresh, waits or fails, in a worker and deferred."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from airflow.sdk.exceptions import AirflowSensorTimeout, AirflowSkipException, TaskDeferred
from airflow.sdk.serde import deserialize, serialize
from airflow.serialization.decoders import smart_decode_trigger_kwargs

from stateflow import StreamExecutionEnvironment
from stateflow.checkpoint.log.documents import SourceWatermark
from stateflow.checkpoint.log.job_root import JobRoot, NewJob
from stateflow.clock import SystemClock, epoch_milliseconds
from stateflow.errors import StorageError
from stateflow.operations import NewestCheckpoint, ReadInput
from stateflow.runtime.backlog import SourceBacklog, sum_up
from stateflow.storage import BlobInfo, MemoryStorage
from stateflow.storage.locations import register_memory, unregister_memory
from stateflow_airflow.failures import PermanentFailure
from stateflow_airflow.sensors import StateflowBacklogSensor, StateflowCheckpointSensor, StateflowWatermarkSensor
from stateflow_airflow.sensors.sensors import (
    BacklogLimits,
    Check,
    FreshnessTrigger,
    JobSensor,
    Measure,
    compare_backlog,
)
from tests.airflow.fakes import FakeRun, fails
from tests.runtime.timer_jobs import Alarm, Event, Note, timed
from tests.support.cli_fixture import ASKED, CliFixture
from tests.support.local_jobs import LocalJobs

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOW_MS = epoch_milliseconds(NOW)
MINUTE_MS = 60_000
URI = "memory://freshness"


class Unreliable(MemoryStorage):
    """Fails the next LISTs of the log."""

    failures = 0

    def list(self, prefix: str, start_after: str = "") -> list[BlobInfo]:
        if self.failures:
            self.failures -= 1
            raise StorageError("the storage did not respond", storage=self.uri)
        return super().list(prefix, start_after)


@pytest.fixture
def storage() -> Iterator[Unreliable]:
    made = Unreliable(URI)
    register_memory(made)
    yield made
    unregister_memory(URI)


@pytest.fixture
def job(storage: Unreliable, tmp_path: Path) -> Unreliable:
    """A job root whose newest checkpoint was committed just now, after events of ten minutes ago."""
    jobs = LocalJobs(tmp_path, storage=storage, max_parallelism=8)
    event = Event("a", epoch_milliseconds(SystemClock().now()) - 10 * MINUTE_MS)

    def build(env: StreamExecutionEnvironment) -> None:
        notes = timed(env, "events", [event]).key_by("key").process(Alarm(), output=Note, uid="op")
        notes.sink_to(jobs.sink("out"), uid="out")

    jobs.run(build)
    return storage


def by_age(max_age: timedelta | str, **given: Any) -> StateflowCheckpointSensor:
    return StateflowCheckpointSensor(**{"task_id": "wait", "job_root": URI, "max_age": max_age, "timeout": 0, **given})


def by_lag(max_lag: timedelta | str, **given: Any) -> StateflowWatermarkSensor:
    return StateflowWatermarkSensor(**{"task_id": "wait", "job_root": URI, "max_lag": max_lag, "timeout": 0, **given})


def execute(sensor: JobSensor) -> dict[str, Any]:
    return dict(sensor.execute(FakeRun().next_try()))


# -- comparisons ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("age", "status"), [(-5, "fresh"), (59, "fresh"), (60, "fresh"), (61, "stale")])
def test_a_checkpoint_is_fresh_up_to_the_greatest_age(age: int, status: str) -> None:
    newest = NewestCheckpoint(7, NOW - timedelta(seconds=age))
    outcome = Check(Measure.CHECKPOINT, URI, 60).of_checkpoint(newest, NOW)
    assert (outcome.status.value, outcome.facts["checkpoint_id"], outcome.facts["age_ms"]) == (status, 7, age * 1000)


def source(uid: str, minutes: float | None, idle: bool = False) -> SourceWatermark:
    watermark = None if minutes is None else NOW_MS - int(minutes * MINUTE_MS)
    return SourceWatermark(uid=uid, watermark=watermark, active_at=NOW_MS, idle=idle)


@pytest.mark.parametrize(
    ("sources", "only", "status", "lag"),
    [
        ([source("a", 1), source("b", 4)], (), "fresh", 4),
        ([source("a", 1), source("b", 6)], (), "stale", 6),
        ([source("a", 1), source("b", 6)], ("a",), "fresh", 1),
        ([source("a", 1), source("b", 6, idle=True)], (), "fresh", 1),
        ([source("a", 1, idle=True), source("b", 6, idle=True)], (), "stale", 6),
        ([source("a", 1), source("b", None)], (), "stale", None),
        ([source("a", -1)], (), "fresh", -1),
        ([SourceWatermark(uid="a", watermark=-(1 << 63), active_at=0)], (), "stale", (NOW_MS + (1 << 63)) / MINUTE_MS),
        ([source("a", 1)], ("b",), "failed", None),
        ([], (), "failed", None),
    ],
    ids=["all", "lowest", "chosen", "idle", "all-idle", "no-rows-yet", "future", "least", "unknown", "none"],
)
def test_the_lowest_watermark_of_sources_that_are_not_idle_decides(
    sources: list[SourceWatermark], only: tuple[str, ...], status: str, lag: float | None
) -> None:
    outcome = Check(Measure.WATERMARK, URI, 300, only).of_watermarks(ReadInput(3, sources), NOW)
    assert outcome.status.value == status
    assert outcome.facts.get("lag_ms") == (None if lag is None else pytest.approx(lag * 60_000, abs=1))
    assert outcome.code == ("config" if status == "failed" else "")


# -- job roots --------------------------------------------------------------------------------------------------------


def test_a_checkpoint_sensor_succeeds_at_once_or_fails_without_a_fresh_checkpoint(job: Unreliable) -> None:
    found = execute(by_age("1h"))
    assert found["checkpoint_id"] and 0 <= found["age_ms"] < 3_600_000
    assert datetime.fromisoformat(found["committed_at"]).tzinfo
    with pytest.raises(AirflowSensorTimeout, match="the limit is 0:00:00"):
        execute(by_age(timedelta(0)))
    with pytest.raises(AirflowSkipException):
        execute(by_age("0s", soft_fail=True))


def test_a_watermark_sensor_compares_the_event_time_that_was_read(job: Unreliable) -> None:
    found = execute(by_lag("11m", sources="events"))
    assert 600_000 <= found["lag_ms"] < 660_000 and found["idle"] == []
    with pytest.raises(AirflowSensorTimeout):
        execute(by_lag("9m"))
    with fails(PermanentFailure, "config", unknown=["clicks"], known=["events"]):
        execute(by_lag("1h", sources=["clicks"]))


def test_a_job_without_a_checkpoint_is_waited_for_and_a_missing_or_damaged_one_fails(storage: Unreliable) -> None:
    with fails(PermanentFailure, "config"):
        execute(by_age("1h"))
    root = JobRoot.create_or_open(storage, SystemClock(), NewJob("job", 8, {}), "test")
    for sensor in (by_age("1h"), by_lag("1h")):
        with pytest.raises(AirflowSensorTimeout, match="no checkpoint yet"):
            execute(sensor)
    root.claim()
    with pytest.raises(AirflowSensorTimeout, match="no checkpoint yet"):
        execute(by_age("1h"))
    (entry,) = storage.list("log/")
    storage.delete([entry.key])
    storage.put_new(entry.key, b"damaged")
    with fails(PermanentFailure, "corrupt-file"):
        execute(by_age("1h"))


# -- backlog ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("waits", "limits", "status"),
    [
        ({"rows": 100}, {"max_rows": 100}, "fresh"),
        ({"rows": 101}, {"max_rows": 100}, "stale"),
        ({"rows": None, "unknown": "no answer"}, {"max_rows": 100}, "stale"),
        ({"rows": 600, "rate": 10.0}, {"max_catch_up": timedelta(minutes=1)}, "fresh"),
        ({"rows": 601, "rate": 10.0}, {"max_catch_up": timedelta(minutes=1)}, "stale"),
        ({"rows": 1}, {"max_catch_up": timedelta(minutes=1)}, "stale"),
        ({"rows": 0}, {"max_rows": 1, "max_catch_up": timedelta(0), "max_age": timedelta(0)}, "fresh"),
        ({"rows": 1, "age": 60}, {"max_age": timedelta(minutes=1)}, "fresh"),
        ({"rows": 1, "age": 61}, {"max_age": timedelta(minutes=1)}, "stale"),
        ({"rows": 1, "age": 61}, {"max_rows": 5, "max_age": timedelta(minutes=1)}, "stale"),
    ],
    ids=str,
)
def test_a_backlog_is_within_its_limits_if_each_number_is_known_and_not_greater(
    waits: dict[str, Any], limits: dict[str, Any], status: str
) -> None:
    oldest = (NOW - timedelta(seconds=waits["age"])).isoformat() if "age" in waits else None
    of_source = SourceBacklog("rows", waits["rows"], None, None, oldest, exact=True, unknown=waits.get("unknown", ""))
    outcome = compare_backlog(sum_up([of_source], waits.get("rate"), NOW), BacklogLimits(**limits), NOW)
    assert outcome.status.value == status
    assert outcome.facts["rows"] == waits["rows"] and waits.get("unknown", "") in outcome.text


def test_a_backlog_sensor_asks_the_sources_of_the_job_file_while_no_run_is_active(tmp_path: Path) -> None:
    cli = CliFixture(tmp_path)
    cli.write(ASKED)
    cli.run()

    def by_rows(**given: Any) -> StateflowBacklogSensor:
        arguments = {"job": str(cli.job), "job_root": cli.root, "max_rows": 2, "timeout": 0, **given}
        return StateflowBacklogSensor(task_id="wait", settings=cli.settings, **arguments)

    assert execute(by_rows())["rows"] == 0
    (tmp_path / "more.json").write_text("3")
    with pytest.raises(AirflowSensorTimeout, match="rows 3 of at most 2"):
        execute(by_rows())
    found = execute(by_rows(max_rows="3"))
    assert (found["rows"], found["sources"][0]["uid"]) == (3, "rows")
    for wrong in ({"max_rows": None}, {"max_rows": "many"}, {"job": "job.py"}, {"job_root": str(tmp_path / "none")}):
        with fails(PermanentFailure, "config"):
            execute(by_rows(**wrong))


# -- deferred ---------------------------------------------------------------------------------------------------------


def deferred(sensor: StateflowCheckpointSensor) -> tuple[FreshnessTrigger, TaskDeferred]:
    """The trigger as a triggerer makes it, of what a worker and the server store, and what the task asked for."""
    with pytest.raises(TaskDeferred) as caught:
        execute(sensor)
    path, arguments = caught.value.trigger.serialize()
    assert path == "stateflow_airflow.sensors.sensors.FreshnessTrigger"
    stored = json.loads(json.dumps(serialize(serialize(arguments))))
    decoded = {
        name: smart_decode_trigger_kwargs(value) for name, value in cast("dict[str, Any]", deserialize(stored)).items()
    }
    return FreshnessTrigger(**decoded), caught.value


def event_of(trigger: FreshnessTrigger) -> Any:
    async def collect() -> list[Any]:
        return [event.payload async for event in trigger.run()]

    (payload,) = asyncio.run(collect())
    return json.loads(json.dumps(payload))


def resume(sensor: StateflowCheckpointSensor, asked: TaskDeferred, event: Any) -> Any:
    return sensor.resume_execution(asked.method_name, {"event": event}, FakeRun().next_try())


def test_a_deferrable_sensor_defers_only_to_wait_and_survives_a_storage_that_fails(job: Unreliable) -> None:
    sensor = by_age("1h", timeout=60, poke_interval=0, deferrable=True)
    assert execute(sensor)["checkpoint_id"]
    job.failures = 1
    trigger, asked = deferred(sensor)
    # Airflow ends a trigger that hangs, after the trigger would have ended itself.
    assert asked.timeout is not None and cast(timedelta, asked.timeout) > timedelta(seconds=60)
    job.failures = 2
    assert resume(sensor, asked, event_of(trigger))["checkpoint_id"] == execute(sensor)["checkpoint_id"]
    assert job.failures == 0


@pytest.mark.parametrize(
    ("soft_fail", "error"), [(False, AirflowSensorTimeout), (True, AirflowSkipException)], ids=["fails", "skips"]
)
def test_a_deferred_sensor_that_ends_stale_reports_the_last_check(
    job: Unreliable, soft_fail: bool, error: type[Exception]
) -> None:
    sensor = by_age("0s", timeout=0.001, poke_interval=0, deferrable=True, soft_fail=soft_fail)
    trigger, asked = deferred(sensor)
    event = event_of(trigger)
    assert (event["status"], event["facts"]["checkpoint_id"] > 0) == ("stale", True)
    with pytest.raises(error) as caught:
        resume(sensor, asked, event)
    assert soft_fail or event["text"] in str(caught.value)


def test_an_error_that_waiting_does_not_fix_ends_a_deferred_sensor_at_once(job: Unreliable) -> None:
    sensor = by_age("0s", timeout=3600, poke_interval=3600, deferrable=True)
    trigger, asked = deferred(sensor)
    job.delete([blob.key for blob in job.list("")])
    with fails(PermanentFailure, "config"):
        resume(sensor, asked, event_of(trigger))
