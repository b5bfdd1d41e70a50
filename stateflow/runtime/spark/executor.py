"""The executor on Spark: runs the whole graph in one Spark action per batch."""

from __future__ import annotations

import gc
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import SparkContext, TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from stateflow.api.graph import Node
from stateflow.api.input_files import CannotRead, FileChanged, local_path
from stateflow.checkpoint.barriers import Failure
from stateflow.checkpoint.savepoints.canonical.worker import WorkerResult, WorkerTask
from stateflow.checkpoint.savepoints.canonical.worker_pool import LocalWorkers, RunningWorker, SavepointWorkers
from stateflow.errors import StateflowError
from stateflow.runtime.executor import (
    REPORT,
    BatchInfo,
    BatchWork,
    Executed,
    Executor,
    LevelSpec,
    decode_reports,
    level_specs,
)
from stateflow.runtime.planning.physical_plan import JobPlan
from stateflow.runtime.spark.errors import to_stateflow_error
from stateflow.runtime.spark.frames import compose_functions, empty_rows
from stateflow.runtime.spark.inputs import BatchFiles, Inputs, SourceRows
from stateflow.runtime.spark.observations import Observations, SeenByTasks
from stateflow.runtime.spark.shuffle import (
    exchange_of,
    files_read_by_tasks,
    find_unshuffled_input,
    find_written_rows,
    first_exchange,
    next_exchange,
    reads_by_source,
    reads_once,
    with_order,
)
from stateflow.runtime.spark.sorting import SortSettings, sort_input
from stateflow.runtime.task import store_cache
from stateflow.runtime.task.outputs import BarrierMessage
from stateflow.runtime.task.task import run_level
from stateflow.state.handles import StateFile
from stateflow.storage import Credentials
from stateflow.types.columns.struct_classes import prepare_struct_classes

log = logging.getLogger(__name__)


_READING = re.compile(f"(?:{CannotRead.__name__}|{FileChanged.__name__}): |Python worker exited unexpectedly")
"""Errors of reading files, and Spark's message after a crash, which a file can cause that Arrow does not expect."""


class SparkExecutor(Executor):
    """Builds the DataFrames of a batch and collects its task reports."""

    reads_by_spark = True

    def __init__(self) -> None:
        self._group = ""
        self._workers = SparkWorkers()
        self._by_spark: set[str] = set()
        self._seen = SeenByTasks()

    @property
    def savepoint_workers(self) -> SavepointWorkers:
        """Workers in Spark tasks."""
        return self._workers

    def cancel(self) -> None:
        """Cancels the Spark jobs of the running batch, which then fails."""
        if self._group:
            SparkSession.active().sparkContext.cancelJobGroup(self._group)

    def empty_rows(self, plan: JobPlan) -> DataFrame:
        """Returns an empty DataFrame with the columns of all sources."""
        return empty_rows(SparkSession.active(), plan.sources)

    def execute(self, rows: DataFrame | SourceRows, work: BatchWork) -> Executed:
        """Runs the batch.

        Args:
            rows: the rows of all sources, as `source_frame` combines them, or these with the files that have them.
        """
        given = rows if isinstance(rows, SourceRows) else SourceRows(rows)
        files = given.files()
        for uid in self._by_spark & files.keys():
            files = {**files, uid: replace(files[uid], format=None)}
        by_source: dict[Node, BatchFiles] = {node: files[node.uid] for node in work.plan.sources if node.uid in files}
        inputs = Inputs(work.plan.sources, given.frame, by_source, given.ranks)
        if inputs.read_by_tasks:
            try:
                return self._run(inputs, work)
            except Exception as e:
                if not _is_of_reading(e):
                    raise
                # Spark reads more than tasks do, and its errors name the fault of a file. But it reads a file that
                # is not divided into lines at once, so that a large one fails.
                others = {uid for uid, own in files.items() if _is_of_content(e, own)}
                self._by_spark |= others
                what = f"all further files of {', '.join(sorted(others))}" if others else "the files of this batch"
                log.info("Spark reads %s: %s", what, _reason_of_reading(e))
        return self._run(inputs.by_spark(), work)

    def _run(self, inputs: Inputs, work: BatchWork) -> Executed:
        prepare_struct_classes()
        specs = level_specs(work)
        context = inputs.spark.sparkContext
        self._workers.context = context
        self._group = job_group(context, work.info.id.generation)
        inputs, observed = self._observe_inputs(inputs, work.plan)
        with ExitStack() as persisted:
            frame = self._first_frame(inputs, work, specs[0], observed, persisted)
            for at, level in enumerate(work.plan.levels[1:], 1):
                # Without persisting, Spark would run the tasks again for each reader.
                frame = frame if reads_once(level) else _persist(frame, persisted)
                before = work.plan.levels[at - 1]
                frame = _level_frame(next_exchange(level, before, frame, work.info, observed), specs[at])
            reports = decode_reports(bytes(row[0]) for row in observed.collect(frame.select(REPORT)))
            return Executed(reports, observed.latest(inputs, work.info), observed.rows(inputs))

    def keep_workers_alive(self, plan: JobPlan, info: BatchInfo) -> None:
        """Runs a task on each worker, which also takes over files that dead workers have not stored.

        Spark terminates Python workers that were idle for a minute, also while they upload files in the background.
        """
        frame = SparkSession.active().range(0, plan.parallelism, 1, plan.parallelism)
        frame.mapInArrow(partial(_keep_alive, info), frame.schema).collect()

    def warm_up(self, plan: JobPlan) -> None:
        """Starts a Python worker for each task of a batch, and lets Spark load its classes, by a job without rows."""
        count = max(level.targets for level in plan.levels)
        numbers = SparkSession.active().range(0, count, 1, count)
        shuffled = numbers.union(numbers).repartition(count, "id")
        shuffled.mapInArrow(_drop_rows, shuffled.schema).collect()

    def _first_frame(
        self, inputs: Inputs, work: BatchWork, spec: LevelSpec, observed: Observations, persisted: ExitStack
    ) -> DataFrame:
        info, task = work.info.task_info(), partial(_run_unshuffled_task, spec, _barrier(work))
        read = files_read_by_tasks(work.plan, inputs, info)
        if read is not None:
            frame, function = read
            return _with_tasks(frame, spec, compose_functions((function, task)))
        # Built once for both ways: it calls the transforms of the user.
        written = find_written_rows(work.plan, inputs, info)
        unshuffled = None if written is None else find_unshuffled_input(work.plan, written)
        if unshuffled is not None:
            return _with_tasks(unshuffled, spec, task)
        if written is not None:
            return _level_frame(exchange_of(work.plan.levels[0], written, _barrier(work), work.info), spec)
        return _level_frame(self._first(inputs, work, observed, persisted), spec)

    def _observe_inputs(self, inputs: Inputs, plan: JobPlan) -> tuple[Inputs, Observations]:
        """Returns the rows of a batch, and what observes them."""
        observed = Observations(plan, *self._seen.next_attempt(inputs.spark.sparkContext))
        return replace(inputs, counter=observed), observed

    def _first(self, inputs: Inputs, work: BatchWork, observed: Observations, persisted: ExitStack) -> DataFrame:
        level, rows = work.plan.levels[0], inputs.rows
        reads = reads_by_source(level, work.info, inputs.read_by_tasks)
        # Spark computes the rows of all sources without files together.
        if sum(count for node, count in reads.items() if node not in inputs.files) > 1 and not rows.is_cached:
            inputs = replace(inputs, rows=_persist(rows, persisted))
        for node in inputs.files:
            if reads[node] > 1:
                persisted.callback(inputs.persist(node).unpersist)
        return first_exchange(level, inputs, _barrier(work), work.info, observed)


def _is_of_reading(error: Exception) -> bool:
    """Returns whether a batch may have failed because its tasks could not read a file that Spark may read."""
    return isinstance(error, FileNotFoundError | PermissionError) or _READING.search(str(error)) is not None


def _is_of_content(error: Exception, files: BatchFiles) -> bool:
    """Returns whether a batch has failed because only Spark may be able to read the content of one of `files`."""
    text = str(error)
    return f"{CannotRead.__name__}: " in text and any((local_path(uri) or uri) in text for uri in files.uris)


def _reason_of_reading(error: Exception) -> str:
    """Returns the reason of an error of reading as one line, without the traceback that Spark puts before it."""
    text = str(error)
    found = list(_READING.finditer(text))
    return " ".join(text[found[-1].end() if found else 0 :].split())[-300:]


def _barrier(work: BatchWork) -> BarrierMessage:
    return BarrierMessage(work.info.id.generation, work.info.id.ordinal)


def job_group(context: SparkContext, generation: int) -> str:
    """Returns the job group of this thread: that of the streaming query, or a new one for a batch without a query."""
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
    return _with_tasks(exchanged, spec, partial(_run_task, spec))


def _with_tasks(
    rows: DataFrame, spec: LevelSpec, task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
) -> DataFrame:
    return rows.mapInArrow(task, from_arrow_schema(spec.output_schema, prefer_timestamp_ntz=True))


def _run_task(spec: LevelSpec, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    _freeze_loaded()
    context = TaskContext.get()
    assert context is not None
    chain = spec.chains[context.partitionId() // spec.parallelism]
    settings = SortSettings(spec.batch.settings.sort_memory_bytes, spec.batch.environment.local_folder)
    rows = sort_input(chain, settings, batches)
    return run_level(spec, context.partitionId(), f"t{context.taskAttemptId()}", rows)


def _run_unshuffled_task(
    spec: LevelSpec, barrier: BarrierMessage, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    _freeze_loaded()
    context = TaskContext.get()
    assert context is not None
    return run_level(spec, context.partitionId(), f"t{context.taskAttemptId()}", with_order(barrier, batches))


def _keep_alive(info: BatchInfo, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    store_cache.adopt_uploads(info)
    for batch in batches:
        yield batch.slice(0, 0)


def _drop_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.slice(0, 0)


@cache
def _freeze_loaded() -> None:
    """Excludes all objects that a worker process has loaded from garbage collection, once per process.

    PySpark's worker collects garbage after every task, and would traverse 90,000 objects of libraries each time, for 50
    ms that delay its next task.
    """
    gc.collect()
    gc.freeze()


_GROUP = "stateflow-savepoint"


class SparkWorkers(SavepointWorkers):
    """Workers in Spark tasks, which occupy at most half of the slots, so that batches have the others.

    Attributes:
        context: the context of the run; None before its first batch, when the workers are child processes.
    """

    def __init__(self) -> None:
        self.context: SparkContext | None = None

    def run(self, tasks: Sequence[WorkerTask]) -> list[list[StateFile]]:
        """See `SavepointWorkers.run`."""
        if self.context is None:
            return LocalWorkers().run(tasks)
        # The group of this thread: one that a batch uses would be cancelled with the batch.
        self.context.setJobGroup(_GROUP, "a canonical savepoint of stateflow")
        slots = max(1, self.context.defaultParallelism // 2)
        try:
            work = self.context.parallelize(tasks, min(len(tasks), slots))
            results = work.mapPartitions(partial(_do_partition, Credentials.of_process())).collect()
        except (Py4JError, PySparkException) as e:
            raise to_stateflow_error(e) from e
        return [result.get_files() for result in results]


def _do_partition(credentials: Credentials, tasks: Iterable[WorkerTask]) -> Iterator[WorkerResult]:
    """Yields the results of tasks up to the first failure."""
    credentials.adopt()
    # A process of its own: Spark's worker cannot lower its priority for one task.
    with RunningWorker() as worker:
        for task in tasks:
            try:
                result = worker.run(task)
            except StateflowError as e:
                # Not raised, because Spark would run the partition again.
                result = WorkerResult(failure=Failure.of(e))
            yield result
            if result.failure:
                return
