"""Runs the tasks of a job on Spark in this process: Spark only moves rows and evaluates expressions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import count

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from stateflow.runtime.executor import BatchWork, Executed, decode_reports, level_specs
from stateflow.runtime.spark.executor import SparkExecutor
from stateflow.runtime.spark.inputs import Inputs
from stateflow.runtime.spark.observations import Observations
from stateflow.runtime.spark.shuffle import next_exchange
from stateflow.runtime.spark.sorting import SortSettings, sorted_input
from stateflow.runtime.task.task import run_level
from stateflow.runtime.task_spec import REPORT, ChainSpec, LevelSpec

_PACKED = "partition int, data binary"


class InProcessExecutor(SparkExecutor):
    """Collects the input of each task, so that functions run in this process, which has the terminal.

    Args:
        adapt: called with each task's own copy of its chain; returns the one to run.
    """

    def __init__(self, adapt: Callable[[ChainSpec], ChainSpec]) -> None:
        super().__init__()
        self._adapt = adapt
        self._attempts = count()

    def _run(self, inputs: Inputs, work: BatchWork) -> Executed:
        specs, spark = level_specs(work), inputs.spark
        inputs, observed = self._observed(inputs, work.plan)
        with ExitStack() as persisted:
            emitted = self._run_level(self._first(inputs, work, observed, persisted), specs[0], observed)
            for at, level in enumerate(work.plan.levels[1:], 1):
                frame = _frame_of(spark, emitted, specs[at - 1])
                exchanged = next_exchange(level, work.plan.levels[at - 1], frame, work.info, observed)
                emitted = self._run_level(exchanged, specs[at], observed)
            reports = decode_reports(value for batch in emitted for value in batch.column(REPORT).to_pylist())
            return Executed(reports, observed.latest(inputs, work.info), observed.rows(inputs))

    def _run_level(self, exchanged: DataFrame, spec: LevelSpec, observed: Observations) -> list[pa.RecordBatch]:
        """Runs the tasks of a level one after another; returns all that they emit."""
        result: list[pa.RecordBatch] = []
        for partition, batches in sorted(_collected(exchanged, observed).items()):
            number = partition // spec.parallelism
            chain = self._adapt(copy.deepcopy(spec.chains[number]))
            settings = SortSettings(spec.batch.settings.sort_memory_bytes, spec.batch.environment.local_folder)
            rows = sorted_input(chain, settings, iter(batches))
            result += run_level(spec.with_chain(number, chain), partition, f"p{next(self._attempts)}", rows)
        return result


def _collected(exchanged: DataFrame, observed: Observations) -> Mapping[int, list[pa.RecordBatch]]:
    """Returns the input of each task as the task would receive it, by its number."""
    found: dict[int, list[pa.RecordBatch]] = {}
    for partition, data in observed.collect(exchanged.mapInArrow(_pack, _PACKED)):
        found.setdefault(partition, []).extend(pa.ipc.open_stream(bytes(data)))
    return found


def _pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    assert context is not None
    for batch in batches:
        target = pa.BufferOutputStream()
        with pa.ipc.new_stream(target, batch.schema) as stream:
            stream.write_batch(batch)
        columns = {
            "partition": pa.array([context.partitionId()], pa.int32()),
            "data": pa.array([target.getvalue().to_pybytes()], pa.binary()),
        }
        yield pa.RecordBatch.from_pydict(columns)


def _frame_of(spark: SparkSession, emitted: list[pa.RecordBatch], spec: LevelSpec) -> DataFrame:
    table = pa.Table.from_batches(emitted, schema=spec.output_schema)
    return spark.createDataFrame(table, from_arrow_schema(spec.output_schema, prefer_timestamp_ntz=True))
