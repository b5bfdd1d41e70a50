"""Functions in Python between a frame and its consumer, which one pass over the rows applies."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from stateflow.api.functions.process import TaskInfo
from stateflow.api.functions.rich import RowStep
from stateflow.api.graph.nodes import ColumnsNode, Node, ReducedNode, RowsNode, WatermarkNode
from stateflow.api.graph.traversal import leaves_of, parents_of
from stateflow.api.schema import RowSchema
from stateflow.runtime.task.column_functions import ColumnStep
from stateflow.runtime.task.row_conversion import check_partition
from stateflow.runtime.task.row_functions import apply_to_partition

Batches = Iterator[pa.RecordBatch]
ArrowFunction = Callable[[Batches], Batches]
"""A function of `mapInArrow`: takes and returns the Arrow batches of a partition."""


class Observer(Protocol):
    """Observes the event times of rows where their watermarks are assigned."""

    def of_frame(self, node: WatermarkNode, frame: DataFrame) -> DataFrame:
        """Returns `frame`, the rows of `node`, whose event times are observed when it runs."""

    def of_batches(self, node: WatermarkNode) -> ArrowFunction | None:
        """Returns a function that passes the rows of `node` on, and observes their event times; None if not needed."""


def functions_after(
    node: Node, info: TaskInfo, times: Observer | None = None
) -> tuple[Node, tuple[ArrowFunction, ...]]:
    """Returns the node that consecutive functions in Python start from, and these functions in order.

    Args:
        node: the node whose rows the last function returns; itself without functions if it has other rows.
        info: as for `FrameBuilder`.
        times: as for `FrameBuilder`.
    """
    found: list[ArrowFunction] = []
    while leaves_of(node) != [node]:
        if isinstance(node, RowsNode):
            node, function = _row_functions(node, info)
            found.append(function)
        elif isinstance(node, ColumnsNode):
            found.append(ColumnStep(node.function, node.parent.schema, node.schema).apply_to_partition)
            node = node.parent
        elif isinstance(node, ReducedNode):
            found.append(node.reduction.apply)
            node = node.parent
        elif isinstance(node, WatermarkNode):
            observed = None if times is None else times.of_batches(node)
            found += [observed] if observed is not None else ()
            node = node.parent
        else:
            break
    if found:
        # Functions get rows of the declared types, and none of those that are not.
        found.append(partial(check_partition, node.schema))
    return node, tuple(reversed(found))


def leaves_in_frames(node: Node, info: TaskInfo, readers: Collection[Node]) -> list[Node]:
    """Returns the leaves of `node` whose rows are taken from a frame, with duplicates.

    Args:
        readers: sources whose files tasks read, if functions in Python follow.
    """
    start, functions = functions_after(node, info)
    if leaves_of(start) == [start]:
        return [] if functions and start in readers else [start]
    return [leaf for parent in parents_of(start) for leaf in leaves_in_frames(parent, info, readers)]


def composed(functions: Sequence[ArrowFunction]) -> ArrowFunction:
    """Returns one function that applies several, in order."""
    return functions[0] if len(functions) == 1 else partial(_apply_all, tuple(functions))


def _apply_all(functions: tuple[ArrowFunction, ...], batches: Batches) -> Batches:
    for function in functions:
        batches = function(batches)
    return batches


def _row_functions(node: RowsNode, info: TaskInfo) -> tuple[Node, ArrowFunction]:
    """Returns the node before consecutive row functions, and one function that applies all of them to each row."""
    steps: tuple[RowStep, ...] = ()
    at: Node = node
    while isinstance(at, RowsNode):
        steps = (at.step, *steps)
        at = at.parent
    return at, partial(_run_steps, steps, at.schema, info)


def _run_steps(steps: tuple[RowStep, ...], schema: RowSchema, info: TaskInfo, batches: Batches) -> Batches:
    context = TaskContext.get()
    assert context is not None
    return apply_to_partition(steps, schema, replace(info, subtask=context.partitionId()), batches)
