"""Jobs with several sources, without Spark: positions over restarts, kills, and changes of the job file."""

from __future__ import annotations

from collections import Counter
from typing import Any

from stateflow.environment import StreamExecutionEnvironment
from stateflow.errors import ConfigError
from stateflow.launch import needs_spark
from stateflow.runtime.driver.job_run import JobRun
from stateflow.runtime.local_run import LocalExecutor
from tests.support.errors import raises
from tests.support.graphs import Nothing, Nowhere, Row
from tests.support.local_jobs import LocalJobs


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


def test_rows_in_are_those_of_the_sources_before_filters_each_once(jobs: LocalJobs) -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        rows = [env.from_collection([Row(uid, n) for n in range(1_500)], Row, uid=uid) for uid in "ab"]
        both = rows[0].union(rows[1])
        for uid in ("first", "second"):
            both.filter(lambda row: row.number < 44).sink_to(jobs.sink(uid), uid=uid)
        rows[0].filter(lambda row: False).sink_to(jobs.sink("none"), uid="none")

    jobs.run(build, source__max_rows_per_batch=1_000)
    assert [r.rows_in for r in jobs.results] == [2_000, 1_000]
    assert sum(r.rows_out.get("first", 0) for r in jobs.results) == 88


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
