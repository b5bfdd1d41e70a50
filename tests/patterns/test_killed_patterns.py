"""A job with partial matches and timers that is killed at each failpoint; its matches are those of plain Python."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import stateflow
from tests.patterns.patterns_job import PatternsJob
from tests.recovery.test_failpoints import HERE
from tests.support.job_fixture import KILLED, mostly_slow

_QUICK = ("commit.after",)
_TABLES = ("falls", "lows", "pairs", "timed-out")


@pytest.fixture
def patterns_job(tmp_path: Path) -> Iterator[PatternsJob]:
    job = PatternsJob(
        tmp_path / "job", {"checkpoints__collect_every": 2, "checkpoints__retained": 2}, job_name="patterns"
    )
    yield job
    job.end_all()


@pytest.mark.parametrize("name", mostly_slow(HERE, _QUICK))
def test_patterns_survive_a_kill_at_each_failpoint(patterns_job: PatternsJob, name: str) -> None:
    job = patterns_job
    job.deliver(40)
    job.finish()
    opened = {table: job.matches(table).total() for table in _TABLES}
    job.deliver(80)
    job.reach(f"{name}:{4 if name.startswith('task.') else 1}", KILLED)
    job.deliver(120)
    job.finish(parallelism=3)
    # Rows and partial matches wait at the end of each run: only the end of the input ends the last ones.
    assert any(opened.values()) and all(job.matches(table).total() >= opened[table] for table in _TABLES)
    job.finish(run__drain="yes")
    job.check(*_TABLES)
    assert all(job.matches(table) for table in _TABLES)
    assert sum(job.matches(table).total() for table in _TABLES) > sum(opened.values())


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


@pytest.mark.slow
@pytest.mark.spark
def test_patterns_on_spark_have_the_matches_of_plain_python(patterns_job: PatternsJob) -> None:
    job = patterns_job
    for count in (60, 120):
        job.deliver(count)
        job.finish(job__spark="yes")
    job.finish(job__spark="yes", run__drain="yes")
    job.check(*_TABLES)
