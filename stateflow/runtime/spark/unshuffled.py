"""The input of sinks on a source's rows without a shuffle, which would copy each row to divide them by number.

Such rows may go to any task. If Spark reads a batch in at least as many partitions as there are tasks, and cannot run
more tasks than that at once, each task takes whole partitions. What the shuffle adds otherwise, the order of a row and
the barrier, the task adds itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Protocol

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from stateflow.api.functions.process import TaskInfo
from stateflow.api.graph.nodes import SourceNode
from stateflow.api.graph.traversal import leaves_of
from stateflow.runtime.planning.physical_plan import JobPlan
from stateflow.runtime.spark.frames import FrameBuilder
from stateflow.runtime.spark.inputs import Inputs
from stateflow.runtime.spark.python_functions import ArrowFunction, Batches, composed, functions_after
from stateflow.runtime.task.barriers import BarrierMessage
from stateflow.runtime.task_spec import BARRIER_ORDER, CONTROL, ORDER, PHASE_SHIFT, SOURCE_PHASE, input_prefix
from stateflow.types.spark_sql import quoted

_KEEPS_PARTITIONS = frozenset({"RDDScanExec", "ProjectExec", "FilterExec", "GenerateExec", "CollectMetricsExec"})
"""Spark's physical operators that keep rows in the partitions of a batch's input.

Planning them runs nothing, unless an expression contains a subquery.
"""


class _Seq(Protocol):
    """A sequence of the JVM."""

    def size(self) -> int: ...

    def apply(self, index: int) -> _Plan: ...


class _Class(Protocol):
    def getSimpleName(self) -> str: ...


class _Plan(Protocol):
    """A physical operator in the JVM."""

    def getClass(self) -> _Class: ...

    def children(self) -> _Seq: ...

    def containsPattern(self, pattern: object) -> bool: ...


def written_rows(plan: JobPlan, inputs: Inputs, info: TaskInfo) -> DataFrame | None:
    """Returns the rows that a job writes if it has one sink, on rows of a source, and nothing else; else None."""
    if not _writes_rows_of_one_source(plan):
        return None
    (node,) = plan.levels[0].inputs
    return FrameBuilder(inputs.frame, info, inputs.begin).frame(node)


def files_read_by_tasks(plan: JobPlan, inputs: Inputs, info: TaskInfo) -> tuple[DataFrame, ArrowFunction] | None:
    """Returns a frame with a partition for each task, and a function that yields the rows of the task's files.

    Returns None unless the job only writes such rows, and needs no shuffle.
    """
    level = plan.levels[0]
    if not _writes_rows_of_one_source(plan) or inputs.cores > level.targets:
        return None
    (node,) = level.inputs
    start, functions = functions_after(node, info)
    if not isinstance(start, SourceNode) or start not in inputs.read_by_tasks:
        return None
    frame, read = inputs.begin_in(start, level.targets)
    return frame, composed((read, *functions, partial(_renamed, node.schema.names)))


def unshuffled_input(plan: JobPlan, written: DataFrame) -> DataFrame | None:
    """Returns the rows of the first level's tasks, one partition for each task; None if they need a shuffle.

    Args:
        written: the frame of `written_rows`.
    """
    level = plan.levels[0]
    # For a shuffle, Spark reads with a task for each partition: faster if there are more cores than tasks here.
    if written.sparkSession.sparkContext.defaultParallelism > level.targets or _partitions(written) < level.targets:
        return None
    (node,) = level.inputs
    prefix = input_prefix(0)
    columns = [f"{quoted(name)} AS {quoted(prefix + name)}" for name in node.schema.names]
    return written.selectExpr(*columns).coalesce(level.targets)


def with_order(barrier: BarrierMessage, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a task as the shuffle would deliver them: with their order, and the barrier after them."""
    for batch in batches:
        order = np.full(len(batch), SOURCE_PHASE << PHASE_SHIFT, np.int64)
        yield batch.append_column(ORDER, pa.array(order))
    control = msgspec.msgpack.encode(barrier)
    yield pa.RecordBatch.from_pydict({ORDER: [BARRIER_ORDER], CONTROL: [control]})


def _renamed(names: tuple[str, ...], batches: Batches) -> Batches:
    renamed = [input_prefix(0) + name for name in names]
    for batch in batches:
        yield pa.RecordBatch.from_arrays(batch.columns, names=renamed)


def _writes_rows_of_one_source(plan: JobPlan) -> bool:
    """Returns whether the job has one sink, on rows of a source, and nothing else."""
    if len(plan.levels) != 1 or len(plan.sources) != 1 or len(plan.chains) != 1:
        return False
    (chain,) = plan.chains
    if chain.operator is not None or chain.is_relay or len(leaves_of(chain.inputs[0].node)) != 1:
        return False
    # A sink by key needs all rows of a key in one task.
    return not any(sink.sink.ordering_key for output in chain.outputs for sink in output.sinks)


def _partitions(frame: DataFrame) -> int:
    """Returns how many partitions a frame has; 0 if that is known only after a part of it has run."""
    execution = frame._jdf.queryExecution()  # noqa: SLF001 - only the JVM's object has the plan
    operator = execution.sparkPlan()
    if not _keeps_partitions(operator) or _has_subquery(frame.sparkSession, operator):
        return 0
    count: int = execution.toRdd().getNumPartitions()
    return count


def _has_subquery(spark: SparkSession, operator: _Plan) -> bool:
    """Returns whether an expression contains a subquery, which `toRdd` would run."""
    jvm = spark._jvm  # noqa: SLF001 - only the JVM has the patterns
    assert jvm is not None
    return operator.containsPattern(jvm.org.apache.spark.sql.catalyst.trees.TreePattern.PLAN_EXPRESSION())


def _keeps_partitions(operator: _Plan) -> bool:
    if operator.getClass().getSimpleName() not in _KEEPS_PARTITIONS:
        return False
    children = operator.children()
    return all(_keeps_partitions(children.apply(at)) for at in range(children.size()))
