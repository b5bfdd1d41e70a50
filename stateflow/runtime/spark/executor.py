"""The executor on Spark: one action per batch, for the whole graph."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache, partial

import pyarrow as pa
from pyspark import SparkContext, TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from stateflow.checkpoint.reports import TaskReport
from stateflow.runtime import stores
from stateflow.runtime.exchange import first_exchange, next_exchange, reads_of_source, reads_once
from stateflow.runtime.executors import BatchWork, Executor, decode_reports, level_specs
from stateflow.runtime.frames import source_frame, split_sources
from stateflow.runtime.plan import JobPlan
from stateflow.runtime.sorting import SortSpace, sorted_input
from stateflow.runtime.specs import REPORT, BatchInfo, LevelSpec
from stateflow.runtime.task import Barrier, run_level


class SparkExecutor(Executor):
    """Builds the frames of a batch and collects its reports."""

    reads_by_spark = True

    def __init__(self) -> None:
        self._group = ""

    def cancel(self) -> None:
        """Cancels the jobs of the batch that runs, which then fails."""
        if self._group:
            SparkSession.active().sparkContext.cancelJobGroup(self._group)

    def no_rows(self, plan: JobPlan) -> DataFrame:
        """An empty frame of the sources' columns."""
        spark = SparkSession.active()
        return source_frame([(node, spark.createDataFrame([], node.schema.ddl)) for node in plan.sources])

    def execute(self, rows: DataFrame, work: BatchWork) -> list[TaskReport]:
        """Runs the batch over the frame `rows`, which must be what the sources give for it."""
        specs = level_specs(work)
        self._group = job_group(rows.sparkSession.sparkContext, work.info.generation)
        with ExitStack() as persisted:
            frame = _level_frame(self._first(rows, work, persisted), specs[0])
            for at, level in enumerate(work.plan.levels[1:], 1):
                # Unpersisted, each reader would run the tasks again.
                frame = frame if reads_once(level) else _persist(frame, persisted)
                before = work.plan.levels[at - 1]
                frame = _level_frame(next_exchange(level, before, frame, work.info), specs[at])
            collected = frame.select(REPORT).collect()
        return decode_reports(bytes(row[0]) for row in collected)

    def tend(self, plan: JobPlan, info: BatchInfo) -> None:
        """Spark ends Python processes that had nothing to do for a minute, also those that are storing files: this is
        something to do, and it takes over what others left."""
        frame = SparkSession.active().range(0, plan.parallelism, 1, plan.parallelism)
        frame.mapInArrow(partial(_tend, info), frame.schema).collect()

    def _first(self, rows: DataFrame, work: BatchWork, persisted: ExitStack) -> DataFrame:
        level = work.plan.levels[0]
        source = _persist(rows, persisted) if reads_of_source(level) > 1 else rows
        barrier = Barrier(work.info.generation, work.info.ordinal)
        return first_exchange(level, split_sources(work.plan.sources, source), barrier, work.info)


def job_group(context: SparkContext, generation: int) -> str:
    """The group of the jobs that this thread starts: the query's, or our own for a batch without a query."""
    group = context.getLocalProperty("spark.jobGroup.id")
    if not group:
        group = f"stateflow-{generation}"
        context.setJobGroup(group, "a batch of stateflow")
    return str(group)


def _persist(frame: DataFrame, stack: ExitStack) -> DataFrame:
    persisted = frame.persist()
    stack.callback(persisted.unpersist)
    return persisted


def _level_frame(exchanged: DataFrame, spec: LevelSpec) -> DataFrame:
    return exchanged.mapInArrow(
        _task_function(spec), from_arrow_schema(spec.output, prefer_timestamp_ntz=True)
    )


def _task_function(spec: LevelSpec) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    return partial(_run_task, spec)


def _run_task(spec: LevelSpec, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    _freeze_loaded()
    context = TaskContext.get()
    assert context is not None
    unit = spec.units[context.partitionId() // spec.parallelism]
    space = SortSpace(spec.batch.sort_memory_bytes, spec.batch.local_folder)
    rows = sorted_input(unit, space, batches)
    return run_level(spec, context.partitionId(), f"t{context.taskAttemptId()}", rows)


def _tend(info: BatchInfo, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    stores.adopt_orphans(info)
    for batch in batches:
        yield batch.slice(0, 0)


@cache
def _freeze_loaded() -> None:
    """Takes all that a worker process has loaded out of Python's garbage collection, once.

    PySpark's worker collects garbage behind every task, and would go through 90,000 objects of libraries each time: 50
    ms, for which the worker's next task waits.
    """
    gc.collect()
    gc.freeze()
