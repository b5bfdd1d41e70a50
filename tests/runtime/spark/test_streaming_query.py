"""Runs of Spark's streaming queries."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from stateflow import FileSource, StreamExecutionEnvironment
from stateflow.errors import StorageError
from stateflow.runtime.driver.termination import CAUGHT_UP, RunBounds
from stateflow.runtime.spark.errors import note_log_file, to_stateflow_error
from stateflow.runtime.spark.executor import SparkExecutor
from stateflow.runtime.spark.streaming_query import SparkRun
from tests.support.errors import raises
from tests.support.graphs import Row
from tests.support.local_jobs import LocalJobs


@pytest.mark.spark
@pytest.mark.long(reason="runs streaming queries of Spark")
def test_no_batch_follows_one_that_failed_and_the_next_run_continues(
    spark_session: SparkSession, tmp_path: Path
) -> None:
    jobs = LocalJobs(tmp_path, source__max_files_per_batch=1)
    del jobs.settings["source__max_rows_per_batch"]
    (tmp_path / "in").mkdir()
    for number in range(2):
        (tmp_path / "in" / f"{number}.json").write_text(json.dumps({"key": "a", "number": number}))
    source = FileSource(tmp_path / "in", schema=Row, format="json")

    def build(env: StreamExecutionEnvironment) -> None:
        env.from_source(source, uid="rows").sink_to(jobs.sink("out"), uid="out")

    def execute(on_batch: Callable[[Any], None]) -> str:
        run = jobs.prepare(build, SparkExecutor())
        run.start()
        bounds = RunBounds(run.job.settings.run, run.job.root.clock)
        return SparkRun(spark_session, run, {"rows": source}, on_batch, bounds).run()

    def fail(_: Any) -> None:
        raise StorageError("as after a batch whose result cannot be reported")

    with raises(StorageError):
        execute(fail)
    assert len(jobs.rows()) == 1
    assert execute(jobs.results.append) == CAUGHT_UP
    assert sorted(row[1] for row in jobs.rows()) == [0, 1]


def test_an_error_of_spark_names_the_log_file_that_has_its_stack_trace(tmp_path: Path) -> None:
    try:
        note_log_file(tmp_path / "flights-1.log")
        assert str(tmp_path / "flights-1.log") in to_stateflow_error(RuntimeError("lost")).hint
    finally:
        note_log_file(None)
    assert str(tmp_path) not in to_stateflow_error(RuntimeError("lost")).hint
