"""Partial matches and their rows, as users read them, and patterns on Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import stateflow
from tests.patterns.patterns_job import PatternsJob


@pytest.fixture
def patterns_job(tmp_path: Path) -> Iterator[PatternsJob]:
    job = PatternsJob(tmp_path / "job", job_name="patterns")
    yield job
    job.end_all()


@pytest.mark.long(reason="runs a job as processes")
def test_partial_matches_and_their_rows_are_visible(patterns_job: PatternsJob) -> None:
    job = patterns_job
    job.deliver(80)
    job.finish()
    rows = {}
    for state in ("waiting-rows", "matched-rows", "partial-matches"):
        rows[state] = stateflow.read_state(str(job.root), "falls", state).read_all().to_pylist()
    known = {tuple(row) for row in job.rows}
    waiting = [each for row in rows["waiting-rows"] for each in row["value"]]
    assert waiting and {tuple(each.values()) for each in waiting} <= known
    matched = {(row["sensor"], row["map_key"]): row["value"] for row in rows["matched-rows"]}
    assert matched and {tuple(row.values()) for row in matched.values()} <= known
    assert rows["partial-matches"]
    for row in rows["partial-matches"]:
        stored = row["value"]
        assert stored["pattern"] == "next first, next down {1,} (next)"
        assert stored["partial"] and stored["completed"] == []
        # A row is stored once, whatever the number of its partial matches.
        numbers = {number for sensor, number in matched if sensor == row["sensor"]}
        assert {node["row"] for _, node in stored["nodes"]} == {number for number, _ in stored["rows"]} == numbers
