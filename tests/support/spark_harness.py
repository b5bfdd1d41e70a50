"""Harnesses whose batches run on Spark, and the rows of a stream without operators as Spark computes them."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from stateflow.api.functions.process import TaskInfo
from stateflow.api.graph import Node, SourceNode
from stateflow.api.schema import RowSchema
from stateflow.api.sink import SinkContext, SinkWriter, Writing
from stateflow.api.streams.data_stream import DataStream
from stateflow.clock import SystemClock
from stateflow.runtime.executor import BatchInfo, BatchWork, Executed, Executor
from stateflow.runtime.planning.physical_plan import JobPlan
from stateflow.runtime.spark.errors import is_alive, translate_spark_errors
from stateflow.runtime.spark.executor import SparkExecutor
from stateflow.runtime.spark.frames import FrameBuilder, empty_frame, source_frame
from stateflow.runtime.task.row_conversion import to_batch
from stateflow.state.handles import Committable
from stateflow.storage import PosixStorage
from stateflow.testing.harness.batches import HarnessRuntime
from stateflow.testing.harness.job import CollectedRows


class SparkRuntime(HarnessRuntime):
    """Runs the batches of harnesses on Spark, with the state and the emitted rows in files.

    Args:
        spark: the session; its Python workers must be able to import the tests.
        folder: for the files.
    """

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder

    def executor(self, arrow_rows: int | None) -> Executor:
        return _RowsOnSpark(self._spark)

    def root(self, name: str) -> str:
        return PosixStorage(self._folder / name).uri

    def sink(self) -> CollectedRows:
        return _RowFiles(self._folder / f"rows-{SystemClock().new_id()}")

    def release(self, root: str) -> None:
        shutil.rmtree(self._folder / root.rpartition("/")[2], ignore_errors=True)


class _RowsOnSpark(Executor):
    """Runs batches over row objects on Spark, and collects what the tasks have written."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._executor = SparkExecutor()

    def empty_rows(self, plan: JobPlan) -> Mapping[str, Sequence[object]]:
        return {}

    def keep_workers_alive(self, plan: JobPlan, info: BatchInfo) -> None:
        """Does nothing: a harness stores its state before a batch ends."""

    def execute(self, rows: Mapping[str, Sequence[object]], work: BatchWork) -> Executed:
        sources = [(node, self._frame(rows.get(node.uid, ()), node.schema)) for node in work.plan.sources]
        with translate_spark_errors(lambda: is_alive(self._spark)):
            executed = self._executor.execute(source_frame(sources), work)
        in_order = sorted(executed.reports, key=lambda report: report.subtask)
        for output in (output for chain in work.plan.chains for output in chain.outputs):
            for node in output.sinks:
                assert isinstance(node.sink, _RowFiles)
                files = [file for report in in_order for file in report.output.get(node.uid, ())]
                node.sink.read(files, output.node.schema)
        return executed

    def _frame(self, rows: Sequence[object], schema: RowSchema) -> DataFrame:
        if not rows:
            return empty_frame(self._spark, schema)
        return self._spark.createDataFrame(pa.Table.from_batches([to_batch(rows, schema)]), schema.ddl)


class _RowFiles(CollectedRows):
    """A sink to which tasks of other processes write files, whose rows the driver adds after the batch."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._files = folder

    def writer(self, context: SinkContext, writing: Writing) -> SinkWriter:
        self._files.mkdir(exist_ok=True)
        return _RowFile(self._files / f"{context.uid}-{writing.ordinal}-{writing.subtask}-{writing.attempt}")

    def read(self, files: Iterable[Committable], schema: RowSchema) -> None:
        """Adds the rows of the files that accepted tasks have written."""
        for file in files:
            with pa.OSFile(file.path) as content, pa.ipc.open_file(content) as batches:
                for number in range(batches.num_record_batches):
                    self.add(batches.get_batch(number), schema)


class _RowFile(SinkWriter):
    def __init__(self, path: Path) -> None:
        self._path = path
        self._batches: list[pa.RecordBatch] = []

    def write(self, rows: pa.RecordBatch) -> None:
        self._batches.append(rows)

    def close(self) -> list[Committable]:
        if not self._batches:
            return []
        with pa.ipc.new_file(str(self._path), self._batches[0].schema) as file:
            for each in self._batches:
                file.write(each)
        rows = sum(map(len, self._batches))
        return [Committable(path=str(self._path), size=self._path.stat().st_size, rows=rows)]


if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def stateless_rows(
    stream: DataStream, given: Mapping[str, Sequence[Any]], spark: SparkSession
) -> list[tuple[Any, ...]]:
    """Returns the rows of a stream. `given`: the rows of the batch by the uid of their source."""

    def leaf(node: Node) -> DataFrame:
        assert isinstance(node, SourceNode)
        return spark.createDataFrame(list(map(msgspec.structs.astuple, given[node.uid])), node.schema.ddl)

    info = TaskInfo("", 0, 0, 0, datetime.min.replace(tzinfo=UTC))
    frame = FrameBuilder(leaf, info).frame(stream._node)
    assert frame is not None
    return [tuple(row) for row in frame.collect()]
