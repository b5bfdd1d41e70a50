"""The rows of a batch as Spark frames: the sources as one, and the expressions between them and the tasks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial, reduce

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from stateflow.api.functions import TaskInfo
from stateflow.api.graph import (
    Node,
    PartialNode,
    RowsNode,
    SourceNode,
    TransformNode,
    UnionNode,
    WatermarkNode,
    leaves_of,
)
from stateflow.api.input_files import reason_in
from stateflow.api.rich_functions import RowStep
from stateflow.api.schema import RowSchema
from stateflow.api.source import Source
from stateflow.errors import ConfigError, SchemaMismatch, StateflowError, UserCodeError
from stateflow.runtime.plan import JobPlan
from stateflow.runtime.row_steps import steps_in_frame
from stateflow.runtime.specs import (
    SOURCE,
)
from stateflow.settings import SourceSettings

_WORD = "transform(…, output=Row), which schema=Row means as well"


def source_frame(frames: Sequence[tuple[SourceNode, DataFrame]]) -> DataFrame:
    """The frames of a job's sources as one: a query has one frame, and one line of Spark's offset log per source.

    Args:
        frames: in the order in which positions are kept.
    """
    if len(frames) == 1:
        return frames[0][1]
    payload = [
        (index, name, quoted(f"s{index}_{name}"), kind)
        for index, (node, _) in enumerate(frames)
        for name, kind in ((c.name, c.spark_type) for c in node.schema.columns)
    ]
    union: DataFrame | None = None
    for at, (_, frame) in enumerate(frames):
        columns = [
            f"{quoted(name) if index == at else f'CAST(NULL AS {kind})'} AS {column}"
            for index, name, column, kind in payload
        ]
        tagged = frame.selectExpr(f"{at} AS {SOURCE}", *columns)
        union = tagged if union is None else union.union(tagged)
    assert union is not None
    return union


def split_sources(sources: Sequence[SourceNode], rows: DataFrame) -> dict[Node, DataFrame]:
    """The rows of each source, out of a batch of what `source_frame` made."""
    if len(sources) == 1:
        return {sources[0]: rows}
    return {
        node: rows.where(f"{SOURCE} = {index}").selectExpr(
            *(f"{quoted(f's{index}_{name}')} AS {quoted(name)}" for name in node.schema.names)
        )
        for index, node in enumerate(sources)
    }


class Expressions:
    """The frames of nodes between those whose rows there are and the tasks that take them.

    Args:
        leaf: the frame of a source or of an emitted node; None to leave its rows out.
        info: what row functions are told, but for the number of their partition.
    """

    def __init__(self, leaf: Callable[[Node], DataFrame | None], info: TaskInfo) -> None:
        self._leaf = leaf
        self._info = info

    def frame(self, node: Node) -> DataFrame | None:
        """The rows of `node`, with exactly its columns; None when all were left out."""
        if leaves_of(node) == [node]:
            return self._leaf(node)
        if isinstance(node, WatermarkNode):
            return self.frame(node.parent)
        if isinstance(node, TransformNode):
            before = self.frame(node.parent)
            return (
                None
                if before is None
                else conform(_transformed(node, before), node.schema, name_of(node.function))
            )
        if isinstance(node, RowsNode):
            return self._stepped(node)
        if isinstance(node, PartialNode):
            before = self.frame(node.parent)
            return None if before is None else before.mapInArrow(node.aggregation.apply, node.schema.ddl)
        assert isinstance(node, UnionNode)
        frames = [frame for parent in node.parents if (frame := self.frame(parent)) is not None]
        return reduce(DataFrame.union, frames) if frames else None

    def _stepped(self, node: RowsNode) -> DataFrame | None:
        """One Python function for all row functions behind each other."""
        steps: tuple[RowStep, ...] = ()
        at: Node = node
        while isinstance(at, RowsNode):
            steps = (at.step, *steps)
            at = at.parent
        function = partial(_run_steps, steps, at.schema, self._info)
        before = self.frame(at)
        return None if before is None else before.mapInArrow(function, node.schema.ddl)


def _transformed(node: TransformNode, before: DataFrame) -> DataFrame:
    try:
        return node.function(before)  # type: ignore[no-any-return]
    except StateflowError:
        raise
    except Exception as e:
        raise UserCodeError(f"a transform raised {type(e).__name__}: {str(e)[:1000]}", hint="correct the function",
                            transform=name_of(node.function)) from e  # fmt: skip


def _run_steps(
    steps: tuple[RowStep, ...], schema: RowSchema, info: TaskInfo, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    assert context is not None
    return steps_in_frame(steps, schema, replace(info, subtask=context.partitionId()), batches)


def check_frame(source: Source, spark: SparkSession, limits: SourceSettings) -> None:
    """Makes the source's streaming frame, which reads nothing. Raises ConfigError when Spark cannot."""
    try:
        source.stream(spark, limits)
    except StateflowError:
        raise
    except Exception as e:
        raise ConfigError("Spark cannot read the source", hint="compare path, format and options with what is there",
                          source=source.description, reason=reason_in(e)) from e  # fmt: skip


def check_transforms(spark: SparkSession, plan: JobPlan) -> None:
    """Applies every Spark expression of the job to an empty frame, so that a wrong one is told before a run begins.

    Raises UserCodeError or SchemaMismatch.
    """
    # Nothing runs, so nobody asks what time it is.
    nobody = TaskInfo("", 0, 0, 0, datetime.min.replace(tzinfo=UTC))
    expressions = Expressions(lambda node: spark.createDataFrame([], node.schema.ddl), nobody)
    for level in plan.levels:
        for node in level.inputs:
            expressions.frame(node)


def conform(frame: DataFrame, schema: RowSchema, transform: str) -> DataFrame:
    """The declared columns of `frame`, in order. Raises SchemaMismatch naming the column and the transform."""
    # A transform is a user's function, and may return anything.
    if not isinstance(frame, DataFrame):
        raise SchemaMismatch("a transform returns no DataFrame", hint="return the frame: df.select(…)",
                             transform=transform, found=type(frame).__name__)  # fmt: skip
    found = dict(frame.dtypes)
    for column in schema.columns:
        if column.name not in found:
            raise SchemaMismatch("a transform does not return a declared column", hint="return it, or pass the row "
                                 f"class of what it returns: {_WORD}", transform=transform, column=column.name,
                                 declared=schema.row_class.__name__, found=sorted(found))  # fmt: skip
        if found[column.name] != column.spark_type:
            raise SchemaMismatch("a transform returns a column of another type than declared", hint="cast it in the "
                                 f"transform, or pass the row class of what it returns: {_WORD}", transform=transform,
                                 column=column.name, declared=column.spark_type, found=found[column.name])  # fmt: skip
    return frame.select(*schema.names)


def name_of(function: Callable[..., object]) -> str:
    """A function as a user finds it: its name, and the file and line where it begins."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    code = getattr(function, "__code__", None)
    return f"{name} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})" if code else str(name)


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
