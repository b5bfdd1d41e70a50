"""The rows that joins keep, as users read them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import stateflow
from stateflow import TimeWindow
from tests.joins.joins_job import JoinsJob


@pytest.fixture
def joins_job(tmp_path: Path) -> Iterator[JoinsJob]:
    job = JoinsJob(tmp_path / "job", {"job__columns": "yes"}, job_name="joins")
    yield job
    job.end_all()


@pytest.mark.long(reason="runs a job as processes")
def test_waiting_rows_are_visible_with_their_columns(joins_job: JoinsJob) -> None:
    job = joins_job
    job.deliver(20)
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
    for row in contents:
        window = TimeWindow.parse(row["namespace"]["value"])
        (at,) = (each["at"] for each in row["value"].values() if each is not None)
        assert row["namespace"]["type"] == "window" and window.start <= at < window.end
