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

from stateflow.clock import SystemClock
from stateflow.environment import StreamExecutionEnvironment, declare
from stateflow.errors import ConfigError
from stateflow.launch import needs_spark
from stateflow.runtime.driver.job_run import JobRun
from stateflow.runtime.job.job import BatchResult
from stateflow.runtime.job.loader import create_or_open_job
from stateflow.runtime.local.executor import LocalExecutor
from stateflow.runtime.local.run_loop import run_local
from stateflow.runtime.task import store_cache
from stateflow.storage import open_storage
from stateflow.testing.sinks import FolderSink
from tests.spark.jobs import joined
from tests.support.errors import raises
from tests.support.graphs import Nothing, Nowhere, Row

ROOT = Path(__file__).parents[2]


class OnSpark(LocalExecutor):
    """Takes positions for Spark's."""

    reads_by_spark = True


class Box:
    """A job root, and runs of a job that unites collections."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results: list[BatchResult] = []

    def run(self, *uids: str, rows: int = 3, executor: LocalExecutor | None = None) -> JobRun:
        def build(env: StreamExecutionEnvironment) -> None:
            first, *others = [
                env.from_collection([Row(uid, n) for n in range(rows + at)], Row, uid=uid)
                for at, uid in enumerate(uids)
            ]
            (first.union(*others) if others else first).sink_to(FolderSink(self.folder / "out"), uid="out")

        settings = {"local_dir": str(self.folder / "local"), "source.max_rows_per_batch": "2"}
        env, resolved = declare(build, "job", (settings,))
        job = create_or_open_job(env.graph, resolved, open_storage(str(self.folder / "root")), SystemClock())
        run = JobRun(job, executor or LocalExecutor())
        try:
            run.start()
            run_local(run, {n.uid: n.source for n in env.graph.sources}, self.results.append)  # type: ignore[misc]
        finally:
            store_cache.close_all()
        return run

    def rows(self) -> Counter[tuple[Any, ...]]:
        return Counter(tuple(r.values())[:2] for r in FolderSink(self.folder / "out").rows())


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


def test_a_batch_has_a_slice_of_each_source_that_has_one(box: Box) -> None:
    run = box.run("a", "b", "c")
    assert [r.rows_in for r in box.results] == [6, 5, 1]
    assert {p.uid: json.loads(p.offset) for p in run.positions} == {"a": {"row": 3}, "b": {"row": 4}, "c": {"row": 5}}


def test_a_run_goes_on_behind_each_source_s_own_position_in_whatever_order_they_are_declared(box: Box) -> None:
    box.run("a", "b")
    box.run("b", "a", rows=6)
    assert box.rows() == Counter([("b", n) for n in range(6)] + [("a", n) for n in range(7)])


def test_a_source_that_had_nothing_yet_begins_at_its_start(box: Box) -> None:
    run = box.run("a", "b", rows=0)
    assert {p.uid: p.offset for p in run.positions} == {"a": "-", "b": '{"row": 1}'}
    box.run("a", "b", rows=1)
    assert box.rows() == Counter([("a", 0), ("b", 0), ("b", 1)])


def test_positions_of_a_run_on_spark_are_not_taken_for_ours(box: Box) -> None:
    box.run("a")
    with raises(ConfigError, sources=["a"], on_spark=False):
        box.run("a", executor=OnSpark())
    box.run("a", rows=4)
    assert box.rows() == Counter(("a", n) for n in range(4))


def test_a_collection_with_a_spark_expression_needs_spark_and_another_local_source_refuses_it() -> None:
    env = StreamExecutionEnvironment({})
    rows = env.from_collection([Row("a", 1)], Row, uid="rows")
    rows.sink_to(Nowhere(), uid="out")
    assert not needs_spark(env.graph)
    rows.transform(lambda frame: frame).sink_to(Nowhere(), uid="more")
    assert needs_spark(env.graph)
    env.from_source(Nothing(), uid="nothing").sink_to(Nowhere(), uid="third")
    assert not needs_spark(env.graph)


@pytest.mark.slow
@pytest.mark.parametrize("failpoint", ["task.sink-closed:5", "commit.after:2", "publish.after:3"])
def test_a_killed_run_is_made_good_for_every_source_and_output(tmp_path: Path, failpoint: str) -> None:
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
    environment = {**os.environ, "PYTHONPATH": str(ROOT)} | ({"STATEFLOW_FAILPOINT": failpoint} if failpoint else {})
    command = [sys.executable, "-m", "stateflow", "run", joined.__file__, "--job-root", str(home / "root")]
    return subprocess.run([*command, *assignments], env=environment, capture_output=True, check=False).returncode
