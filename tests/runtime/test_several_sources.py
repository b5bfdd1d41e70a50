"""Jobs with several sources, without Spark: positions over restarts, kills, and changes of the job file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stateflow.environment import StreamExecutionEnvironment
from stateflow.errors import ConfigError
from stateflow.launch import needs_spark
from stateflow.runtime.driver.job_run import JobRun
from stateflow.runtime.local_run import LocalExecutor
from stateflow.testing.sinks import FolderSink
from tests.spark.jobs import joined
from tests.support.errors import raises
from tests.support.graphs import Nothing, Nowhere, Row
from tests.support.local_jobs import LocalJobs

ROOT = Path(__file__).parents[2]


class OnSpark(LocalExecutor):
    """Takes positions for Spark's."""

    reads_by_spark = True


def _run(jobs: LocalJobs, *uids: str, rows: int = 3, executor: LocalExecutor | None = None) -> JobRun:
    """Unites one collection for each uid, each with one row more than the one before."""

    def build(env: StreamExecutionEnvironment) -> None:
        first, *others = [
            env.from_collection([Row(uid, n) for n in range(rows + at)], Row, uid=uid) for at, uid in enumerate(uids)
        ]
        (first.union(*others) if others else first).sink_to(jobs.sink("out"), uid="out")

    run = jobs.prepare(build, executor, source__max_rows_per_batch=2)
    jobs.execute(run)
    return run


def _rows(jobs: LocalJobs) -> Counter[tuple[Any, ...]]:
    return Counter(row[:2] for row in jobs.rows())


def test_a_batch_has_a_slice_of_each_source_that_has_one(jobs: LocalJobs) -> None:
    run = _run(jobs, "a", "b", "c")
    assert [r.rows_in for r in jobs.results] == [6, 5, 1]
    assert {p.uid: json.loads(p.offset) for p in run.positions} == {"a": {"row": 3}, "b": {"row": 4}, "c": {"row": 5}}


def test_rows_in_are_those_of_the_sources_before_filters_each_once(jobs: LocalJobs) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        rows = [env.from_collection([Row(uid, n) for n in range(15_000)], Row, uid=uid) for uid in "ab"]
        both = rows[0].union(rows[1])
        for uid in ("first", "second"):
            both.filter(lambda row: row.number < 440).sink_to(jobs.sink(uid), uid=uid)
        rows[0].filter(lambda row: False).sink_to(jobs.sink("none"), uid="none")

    jobs.run(build, source__max_rows_per_batch=10_000)
    assert [r.rows_in for r in jobs.results] == [20_000, 10_000]
    assert sum(r.rows_out.get("first", 0) for r in jobs.results) == 880


def test_a_run_continues_at_the_position_of_each_source_whatever_their_order(jobs: LocalJobs) -> None:
    run = _run(jobs, "a", "b", rows=0)
    assert {p.uid: p.offset for p in run.positions} == {"a": "-", "b": '{"row": 1}'}
    _run(jobs, "a", "b")
    _run(jobs, "b", "a", rows=6)
    assert _rows(jobs) == Counter([("b", n) for n in range(6)] + [("a", n) for n in range(7)])


def test_positions_without_spark_and_on_spark_are_not_mixed(jobs: LocalJobs) -> None:
    _run(jobs, "a")
    with raises(ConfigError, sources=["a"], on_spark=False):
        _run(jobs, "a", executor=OnSpark())
    _run(jobs, "a", rows=4)
    assert _rows(jobs) == Counter(("a", n) for n in range(4))


def test_a_job_of_collections_needs_spark_only_for_expressions() -> None:
    env = StreamExecutionEnvironment({})
    rows = env.from_collection([Row("a", 1)], Row, uid="rows")
    rows.sink_to(Nowhere(), uid="out")
    assert not needs_spark(env.graph)
    rows.transform(lambda frame: frame).sink_to(Nowhere(), uid="more")
    assert needs_spark(env.graph)
    # A source that cannot be read on Spark.
    env.from_source(Nothing(), uid="nothing").sink_to(Nowhere(), uid="third")
    assert not needs_spark(env.graph)


@pytest.mark.slow(reason="runs of a job that are killed")
@pytest.mark.parametrize("failpoint", ["task.sink-closed:5", "commit.after:2", "publish.after:3"])
def test_after_a_kill_every_source_and_output_is_complete(tmp_path: Path, failpoint: str) -> None:
    """The job of tests/spark with all kinds of edges; killed at the failpoint, then run again."""
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    assert _joined(killed, failpoint) == -9
    assert _joined(killed) == _joined(whole) == 0
    for name in ("events", "thirds", "counted", "shouted", "rated", "union", "late"):
        rows = [Counter(tuple(r.values()) for r in FolderSink(home / name).rows()) for home in (killed, whole)]
        assert rows[0] == rows[1] and rows[0], name


def _joined(home: Path, failpoint: str = "") -> int:
    home.mkdir(exist_ok=True)
    settings = {"job.home": str(home), "job.spark": "no", "local_dir": str(home / "local"), "parallelism": "2"}
    assignments = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "STATEFLOW_FAILPOINT": failpoint}
    command = [sys.executable, "-m", "stateflow", "run", joined.__file__, "--job-root", str(home / "root")]
    return subprocess.run([*command, *assignments], env=environment, capture_output=True, check=False).returncode
