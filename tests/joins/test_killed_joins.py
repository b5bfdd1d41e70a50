"""A job with joins that is killed at each failpoint; its pairs are those of nested loops."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import stateflow
from tests.joins.joins_job import JoinsJob
from tests.recovery.test_failpoints import HERE
from tests.support.job_fixture import KILLED, mostly_slow

_QUICK = ("commit.after",)
_SETTINGS = {"checkpoints__collect_every": 2, "checkpoints__retained": 2, "job__columns": "yes"}


@pytest.fixture
def joins_job(tmp_path: Path) -> Iterator[JoinsJob]:
    job = JoinsJob(tmp_path / "job", _SETTINGS, job_name="joins")
    yield job
    job.end_all()


@pytest.mark.parametrize("name", mostly_slow(HERE, _QUICK))
def test_joins_survive_a_kill_at_each_failpoint(joins_job: JoinsJob, name: str) -> None:
    job = joins_job
    job.deliver(40)
    # By rows; from now on by columns.
    job.finish(job__columns="no")
    opened = job.matches("window")
    job.deliver(80)
    job.reach(f"{name}:{4 if name.startswith('task.') else 1}", KILLED)
    job.deliver(120)
    job.finish(parallelism=3)
    # Rows wait at the end of each run: only the end of the input fires the last windows.
    assert 0 < opened.total() < job.matches("window").total() < job.window().total()
    job.check("interval", "regular")
    assert job.matches("window") <= job.window() and job.matches("temporal") < job.temporal()
    job.finish(run__drain="yes")
    job.check("interval", "regular", "window", "temporal")


def test_waiting_rows_are_visible_with_their_columns(joins_job: JoinsJob) -> None:
    job = joins_job
    job.deliver(40)
    job.finish()
    buffered = stateflow.read_state(str(job.root), "interval", "left-buffer").read_all().to_pylist()
    orders = {(row["customer"], row["map_key"], each["number"]) for row in buffered for each in row["value"]}
    assert orders and orders <= set(job.orders)
    contents = stateflow.read_state(str(job.root), "window", "window-contents").read_all().to_pylist()
    kept = stateflow.read_state(str(job.root), "regular", "right-records").read_all().to_pylist()
    assert {tuple(row["value"].values()) for row in kept} == set(job.payments)
    versions = stateflow.read_state(str(job.root), "temporal", "versions").read_all().to_pylist()
    assert versions and {tuple(row["value"].values()) for row in versions} <= set(job.payments)
    sides = {"left": job.orders, "right": job.payments}
    for side, columns in (("left", ("customer", "at", "number")), ("right", ("payer", "at", "amount"))):
        rows = [row["value"][side] for row in contents if row["value"][side] is not None]
        assert rows and {tuple(row[name] for name in columns) for row in rows} <= set(sides[side])


@pytest.mark.slow
@pytest.mark.spark
def test_joins_on_spark_equal_nested_loops(joins_job: JoinsJob) -> None:
    job = joins_job
    for count in (60, 120):
        job.deliver(count)
        job.finish(job__spark="yes")
    job.finish(job__spark="yes", run__drain="yes")
    job.check("interval", "regular", "window", "temporal")
