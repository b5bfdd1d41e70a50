"""Timers in whole runs: killed, resumed, rescaled and drained, on Spark and without it, against plain Python."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.spark.timed_oracle import TimedJob
from tests.support import root_files
from tests.support.job_fixture import mostly_slow

ON_SPARK = [pytest.mark.spark, pytest.mark.slow(reason="starts Spark for its jobs")]
KILLS = [
    *("task.fired:9", "task.fired:21", "task.fired:51", "task.processed:30", "task.uploaded:15"),
    *("batch.reported:9", "commit.after:12", "publish.after:9"),
]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[TimedJob]:
    with closing(TimedJob(tmp_path)) as job:
        yield job


@pytest.fixture
def on_spark(tmp_path: Path) -> Iterator[TimedJob]:
    with closing(TimedJob(tmp_path, spark=True)) as job:
        yield job


@pytest.fixture(params=["local", pytest.param("spark", marks=ON_SPARK)])
def any_job(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TimedJob]:
    with closing(TimedJob(tmp_path, spark=request.param == "spark")) as job:
        yield job


def test_windows_and_visits_are_those_of_plain_python_at_any_parallelism(any_job: TimedJob) -> None:
    for share, parallelism in ((0.3, 1), (0.7, 3), (1, 2)):
        any_job.deliver(share)
        any_job.finish(parallelism=parallelism)
        any_job.check()
    assert any_job.oracle.late and len(any_job.oracle.totals) > 5
    assert any_job.watermark() == any_job.oracle.watermark


def test_the_last_windows_fire_in_tick_batches_and_not_when_none_are_left(job: TimedJob) -> None:
    job.deliver(1)
    job.finish(run__max_batches=12)
    assert len(job.oracle.counts) > len(job.rows("counts"))
    for _ in range(2):
        job.finish()
        job.check()
        assert len(root_files.history(job.root)) == 13


@pytest.mark.parametrize("failpoint", mostly_slow(KILLS, ["task.uploaded:15"]))
def test_a_kill_while_timers_fire_changes_nothing(job: TimedJob, failpoint: str) -> None:
    job.deliver(1)
    job.reach(failpoint, -9)
    job.finish()
    job.check()


@pytest.mark.spark
@pytest.mark.slow(reason="starts Spark for its jobs")
def test_kills_of_drivers_and_workers_while_timers_fire_on_spark_change_nothing(on_spark: TimedJob) -> None:
    on_spark.deliver(0.6)
    for failpoint in ("batch.reported:2", "commit.after:1", "publish.after:4"):
        on_spark.reach(failpoint, -9)
    # A worker dies before the rows of sources, then one after them; Spark repeats their tasks.
    on_spark.reach("task.fired:1", 0)
    on_spark.check()
    on_spark.deliver(1)
    on_spark.reach("task.uploaded:3", 0)
    on_spark.check()
    assert on_spark.oracle.late
    assert on_spark.watermark() == on_spark.oracle.watermark


# -- draining ---------------------------------------------------------------------------------------------------------


def _rest_with_open_windows(job: TimedJob) -> root_files.Entry:
    """Processes half of the rows; returns the newest entry. The other rows arrive after that."""
    job.deliver(0.5)
    job.finish()
    assert len(job.oracle.windows) > len(job.oracle.counts)
    job.deliver_later(1)
    return root_files.head(job.root)


def _check_drained(job: TimedJob, before: root_files.Entry) -> None:
    """Every timer has fired, the watermark and the sources are where they were, and the savepoint has the result."""
    job.check_drained()
    assert job.watermark() == job.oracle.watermark
    assert root_files.head(job.root).doc["sources"] == before.doc["sources"]
    last = root_files.savepoints(job.root)["last"]
    assert (last["drained"], last["origin"], last["checkpoint_id"] > before.seq) == (True, "stop", True)


@pytest.mark.parametrize(
    ("any_job", "kills"),
    [
        pytest.param("local", (), id="local"),
        pytest.param("local", ("batch.reported:1", "task.fired:2", "commit.after:1"), id="killed"),
        pytest.param("spark", (), id="spark", marks=ON_SPARK),
    ],
    indirect=["any_job"],
)
def test_a_run_that_is_asked_to_drain_fires_every_timer_once_before_the_savepoint(
    any_job: TimedJob, kills: tuple[str, ...]
) -> None:
    before = _rest_with_open_windows(any_job)
    common = {"id": "r1", "kind": "stop", "origin": "stop", "by": "ada", "reason": "", "at": "2026-01-01T00:00:00Z"}
    (any_job.root / "requests").mkdir(exist_ok=True)
    request = root_files.sealed({**common, "savepoint": "last", "drain": True})
    (any_job.root / "requests" / "r1").write_bytes(request)
    for failpoint in kills:
        any_job.reach(failpoint, -9)
    any_job.finish()
    _check_drained(any_job, before)


def _stop(job: TimedJob, failpoint: str = "", code: int = 0) -> None:
    words = ("stop", "--savepoint", "--drain", "--name", "last", "--request-id", "r1", "--job", job.job_file)
    ended = job.begin(*words, failpoint=failpoint, with_job=True).wait()
    assert ended.code == code, str(ended)


def test_a_stop_that_drains_without_a_run_runs_the_job_for_that_alone(any_job: TimedJob) -> None:
    before = _rest_with_open_windows(any_job)
    refused = any_job.command("stop", "--savepoint", "--drain")
    assert (refused.code, refused.error.code) == (2, "config") and "--job" in refused.err
    _stop(any_job)
    _check_drained(any_job, before)
    # No timer is left, so that another savepoint needs no run.
    assert any_job.command("stop", "--savepoint", "--drain").code == 0


def test_a_stop_that_drains_and_is_killed_is_completed_by_the_next_one(job: TimedJob) -> None:
    before = _rest_with_open_windows(job)
    _stop(job, failpoint="commit.after:1", code=-9)
    _stop(job)
    _check_drained(job, before)


def test_the_option_drain_drains_at_the_end_of_the_input_and_an_earlier_end_is_logged(job: TimedJob) -> None:
    job.deliver(1)
    result = job.folder / "result.json"
    for more, reason in ((["--set", "run.max_batches=1"], "batches"), ([], "drained")):
        words = ("run", job.job_file, "--drain", "--result-file", str(result), *more)
        ended = job.begin(*words, with_job=True).wait()
        stopped = json.loads(result.read_text())["stopped_because"]
        assert (ended.code, stopped, "drain" in ended.err) == (0, reason, reason != "drained"), str(ended)
    job.check_drained()
