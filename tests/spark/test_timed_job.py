"""Windows by timers on two levels, on Spark and without it, against a computation in plain Python."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.timed_oracle import TimedJob
from tests.support import root_files


def _box(folder: Path, spark: bool = False) -> Iterator[TimedJob]:
    box = TimedJob(folder, spark)
    yield box
    box.end_all()
    for process in box.processes:
        process.wait_family()


@pytest.fixture
def box(tmp_path: Path) -> Iterator[TimedJob]:
    yield from _box(tmp_path)


@pytest.fixture
def on_spark(tmp_path: Path) -> Iterator[TimedJob]:
    yield from _box(tmp_path, spark=True)


@pytest.fixture(params=["local", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.slow])])
def any_box(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TimedJob]:
    yield from _box(tmp_path, spark=request.param == "spark")


def _run_twice(box: TimedJob) -> None:
    for share in (0.6, 1):
        box.oracle.run(box.deliver(share))
        box.finish()
        box.check()
    assert box.oracle.late
    assert len(box.oracle.totals) > 5
    assert box.watermark() == box.oracle.watermark


def test_windows_of_two_sources_on_two_levels_are_what_plain_python_says(box: TimedJob) -> None:
    _run_twice(box)


@pytest.mark.spark
@pytest.mark.slow
def test_on_spark_too_behind_expressions_and_with_tick_batches(on_spark: TimedJob) -> None:
    _run_twice(on_spark)


def test_the_last_windows_fire_in_tick_batches_and_not_when_none_are_left(box: TimedJob) -> None:
    box.oracle.run(box.deliver(1))
    box.finish(run__max_batches=12)
    assert len(box.oracle.counts) > len(box.rows("counts"))
    box.finish()
    box.check()
    batches = len(root_files.history(box.root))
    assert batches == 13
    box.finish()
    assert len(root_files.history(box.root)) == batches


@pytest.mark.slow
@pytest.mark.parametrize(
    "failpoint",
    [
        "task.fired:21",
        "task.processed:30",
        "task.uploaded:15",
        "batch.reported:9",
        "commit.after:12",
        "publish.after:9",
        "task.fired:51",
    ],
)
def test_a_kill_while_timers_fire_changes_nothing(box: TimedJob, failpoint: str) -> None:
    box.oracle.run(box.deliver(1))
    box.reach(failpoint, -9)
    box.finish()
    box.check()


@pytest.mark.spark
@pytest.mark.slow
def test_kills_of_drivers_and_workers_while_timers_fire_on_spark_change_nothing(on_spark: TimedJob) -> None:
    on_spark.oracle.run(on_spark.deliver(0.6))
    for failpoint in ("batch.reported:2", "commit.after:1", "publish.after:4"):
        on_spark.reach(failpoint, -9)
    # A worker dies before the rows of sources, then one behind them; Spark tries their tasks again.
    on_spark.reach("task.fired:1", 0)
    on_spark.check()
    on_spark.oracle.run(on_spark.deliver(1))
    on_spark.reach("task.uploaded:3", 0)
    on_spark.check()
    assert on_spark.oracle.late
    assert on_spark.watermark() == on_spark.oracle.watermark


def test_timers_move_with_their_keys_to_another_parallelism(box: TimedJob) -> None:
    for share, parallelism in ((0.3, 1), (0.7, 3), (1, 2)):
        box.oracle.run(box.deliver(share))
        box.finish(parallelism=parallelism)
        box.check()


def test_draining_fires_every_window_before_the_savepoint_and_the_watermark_stays(any_box: TimedJob) -> None:
    box = any_box
    reached, before = _rest_with_open_windows(box)
    _ask_to_drain(box.root)
    box.deliver(1)
    box.finish()
    _check_drained(box, reached, before)
    assert root_files.savepoints(box.root)["last"]["checkpoint_id"] > before.seq


def test_a_draining_batch_that_is_killed_fires_every_window_once(box: TimedJob) -> None:
    reached, before = _rest_with_open_windows(box)
    _ask_to_drain(box.root)
    box.deliver(1)
    for failpoint in ("batch.reported:1", "task.fired:2", "commit.after:1"):
        box.reach(failpoint, -9)
    box.finish()
    _check_drained(box, reached, before)


def test_without_a_run_nothing_can_be_drained_while_timers_are_pending(box: TimedJob) -> None:
    box.oracle.run(box.deliver(0.2))
    box.finish()
    refused = box.command("stop", "--savepoint", "--drain")
    assert (refused.code, refused.error.code) == (2, "config") and "--job" in refused.err
    assert box.command("stop", "--savepoint").code == 0


def _rest_with_open_windows(box: TimedJob) -> tuple[int, root_files.Entry]:
    """The watermark and the newest entry of a job that is caught up."""
    box.oracle.run(box.deliver(0.5))
    box.finish()
    assert len(box.oracle.windows) > len(box.oracle.counts)
    return box.watermark(), root_files.head(box.root)


def _check_drained(box: TimedJob, reached: int, before: root_files.Entry) -> None:
    assert box.watermark() == reached
    box.oracle.watermark = 1 << 62
    box.check()
    assert root_files.head(box.root).doc["sources"] == before.doc["sources"]
    assert root_files.savepoints(box.root)["last"]["drained"] is True


def _ask_to_drain(root: Path) -> None:
    document = {
        "id": "r1",
        "kind": "stop",
        "savepoint": "last",
        "origin": "stop",
        "by": "ada",
        "reason": "",
        "drain": True,
        "at": "2026-01-01",
    }
    (root / "requests").mkdir(exist_ok=True)
    (root / "requests" / "r1").write_bytes(root_files.sealed(document))
