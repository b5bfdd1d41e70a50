"""DataFrames of a batch: the sources in one frame, the nodes between sources and tasks, and their Python functions."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial, reduce
from pathlib import Path
from typing import Protocol

import pyarrow as pa
from py4j.java_gateway import JavaObject
from pyspark import TaskContext
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr

from stateflow.api.functions.process import TaskInfo
from stateflow.api.functions.rich import RowStep
from stateflow.api.graph import (
    ColumnsNode,
    Node,
    RecordsNode,
    ReducedNode,
    RowsNode,
    SourceNode,
    TransformNode,
    UnionNode,
    WatermarkNode,
    leaves_of,
    parents_of,
)
from stateflow.api.input_files import reason_in
from stateflow.api.schema import ARRIVED, PLACE, REJECTED, RowSchema
from stateflow.api.source import Source
from stateflow.config.settings import SourceSettings
from stateflow.config.spark_versions import partition_by_id
from stateflow.errors import ConfigError, JobDefinitionError, SchemaMismatch, StateflowError, UserCodeError
from stateflow.helpers import line_of_user
from stateflow.runtime.executor import SOURCE
from stateflow.runtime.planning.physical_plan import JobPlan
from stateflow.runtime.task.row_conversion import check_partition
from stateflow.runtime.task.stateless_functions import ColumnStep, apply_to_partition
from stateflow.types.columns.struct_classes import prepare_struct_classes
from stateflow.types.declared_types import quote_name

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


def compose_functions(functions: Sequence[ArrowFunction]) -> ArrowFunction:
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


_RELATED = "join or compare", "keyed.regular_join, interval_join or temporal_join, or a join in windows"
_OUTER = "keep the rows of a static table that match none of", "the stream on the other side of the join"
_GROUPED = "group", "key_by(…) and a KeyedProcessFunction"
_LIMITED = "limit", "keyed.top_n, or a condition"
_SINGLED = "find duplicates among", "keyed.deduplicate"
_NUMBERED = "number", "keyed.map_with_state, or expr('uuid()')"
_ADDED = "add static rows once to", "a source for these rows, and union"
_UNSEEN = (
    "convert",
    "DataFrames to the end: mapInPandas or mapInArrow in place of toPandas, collect, rdd and checkpoints",
)
_READ = (
    "count, collect or write",
    "DataFrames to the end: mapInPandas or mapInArrow, an operator after key_by(…), or a sink",
)
_READ_MARK = "stateflow: the rows of a stream are read"
_REFUSED = {
    "Aggregate": ("aggregate", "keyed.aggregate_columns, a window, or GROUP BY in env.sql"),
    "AttachDistributedSequence": _NUMBERED,
    "Deduplicate": _SINGLED,
    "DeduplicateWithinWatermark": _SINGLED,
    "Distinct": _SINGLED,
    "EventTimeWatermark": ("declare a watermark of", "assign_timestamps_and_watermarks"),
    "Except": ("subtract", "a left anti join of the stream with the table"),
    "GlobalLimit": _LIMITED,
    "Intersect": ("intersect", "a left semi join of the stream with the table"),
    "LocalLimit": _LIMITED,
    "Offset": _LIMITED,
    "Sample": ("sample", "a condition over a hash, such as where('pmod(xxhash64(id), 100) < 5')"),
    "Sort": ("sort", "key_by(…, order_by=…), or keyed.top_n"),
    "Tail": _LIMITED,
    "Window": ("apply window functions to", "keyed.over_columns, keyed.top_n, or OVER in env.sql"),
}
"""Nodes of Spark's plans whose result for a row depends on other rows: what they do to all rows, and what to use."""
_OF_GROUPS = ("MapGroups", "CoGroups", "TransformWithState")
"""Parts of the names of nodes that call a function with all rows of a key."""
_PER_BATCH = {"MonotonicallyIncreasingID", "SparkPartitionID"}
"""Expressions whose values are the same in each batch; Spark refuses the first for streams, too."""
_JOINED = {True: {"Inner", "Cross", "LeftOuter", "LeftSemi", "LeftAnti"}, False: {"Inner", "Cross", "RightOuter"}}
"""By whether the stream is on the left: joins with a static table that emit rows for rows of the stream only."""
_STREAM = (1 << 62) + 7
"""Start of the range that is in the plan of a transform in place of the rows of the stream."""


Begin = Callable[[Node], tuple[DataFrame, ArrowFunction] | None]
_KEY, _RANK, _ROW = "_sf_key", "_sf_rank", "_sf_row"
_DECLARATION = "transform(…, output=Row), or schema=Row"


def source_frame(frames: Sequence[tuple[SourceNode, DataFrame]]) -> DataFrame:
    """Combines the frames of a job's sources: a query has one frame, and a line of Spark's offset log per source.

    Args:
        frames: the frames, in the order in which positions are stored.
    """
    if len(frames) == 1:
        return frames[0][1]
    payload = [
        (index, column.name, quote_name(_tagged(index, column.name)), column.spark_type)
        for index, (node, _) in enumerate(frames)
        for column in node.schema.columns
    ]
    union: DataFrame | None = None
    for at, (_, frame) in enumerate(frames):
        columns = [
            f"{quote_name(name) if index == at else f'CAST(NULL AS {kind})'} AS {column}"
            for index, name, column, kind in payload
        ]
        tagged = frame.selectExpr(f"{at} AS {SOURCE}", *columns)
        union = tagged if union is None else union.union(tagged)
    assert union is not None
    return union


def empty_rows(spark: SparkSession, sources: Sequence[SourceNode]) -> DataFrame:
    """Returns an empty frame with the columns of all sources, as `source_frame` combines them."""
    return source_frame([(node, empty_frame(spark, node.schema)) for node in sources])


def empty_frame(spark: SparkSession, schema: RowSchema, number: int = 0) -> DataFrame:
    """Returns a frame with columns of a schema, and without rows; `number` identifies it in plans.

    `createDataFrame` would read its rows with a Python function, for which Spark starts a second worker daemon.
    """
    columns = [f"CAST(NULL AS {column.spark_type}) AS {quote_name(column.name)}" for column in schema.columns]
    return spark.range(number, number).selectExpr(*columns)


def rows_of_source(sources: Sequence[SourceNode], rows: DataFrame, node: SourceNode) -> DataFrame:
    """Returns the rows of a source, from a batch of what `source_frame` returned."""
    if len(sources) == 1:
        return rows
    at = sources.index(node)
    columns = (f"{quote_name(_tagged(at, name))} AS {quote_name(name)}" for name in node.schema.names)
    return rows.where(f"{SOURCE} = {at}").selectExpr(*columns)


def _tagged(source: int, name: str) -> str:
    """Returns the name of a source's column in the frame of all sources."""
    return f"s{source}_{name}"


def sort_by_arrival(files: Sequence[str], rows: DataFrame) -> DataFrame:
    """Returns rows with the hidden column `ARRIVED` in the order of arrival, without the column.

    Spark reads files in the order of their sizes. So the rows are shuffled to partitions that have consecutive files,
    and sorted there. A row of a file that the order does not name fails the batch.

    Args:
        files: the files of the batch in order, as `arrival_place` names them.
    """
    names = [quote_name(name) for name in rows.columns if name != ARRIVED]
    if len(files) == 1:
        # The parts of one file are read in order.
        return rows.select(*names)
    spark = rows.sparkSession
    partitions = max(1, min(spark.sparkContext.defaultParallelism, len(files)))
    table = pa.table({_KEY: pa.array(files, pa.string()), _RANK: pa.array(range(len(files)), pa.int64())})
    numbered = rows.selectExpr("*", f"{PLACE} AS {_KEY}", f"monotonically_increasing_id() AS {_ROW}")
    ranked = numbered.join(spark.createDataFrame(table).hint("broadcast"), _KEY, "left")
    unknown = f"raise_error(concat('the order of the files of a batch lacks ', {_KEY}))"
    placed = ranked.withColumn(_RANK, expr(f"coalesce({_RANK}, CAST({unknown} AS BIGINT))"))
    share = f"CAST({_RANK} * {partitions} DIV {max(1, len(files))} AS INT)"
    shuffled = partition_by_id(placed, partitions, expr(share))
    in_partitions = shuffled.sortWithinPartitions(_RANK, expr(f"{ARRIVED}.block"), _ROW)
    # A condition on the partition, because Spark drops a sort below a join or an aggregate if nothing depends on it.
    return in_partitions.where("spark_partition_id() >= 0").select(*names)


class FrameBuilder:
    """Builds DataFrames for the nodes between a source, or an emitted stream, and the tasks that read them.

    Args:
        leaf: returns the frame of a source or an emitted stream; None to leave out its rows.
        info: the `TaskInfo` of row functions, without the number of their partition.
        begin: as `Inputs.begin`, for a leaf that functions in Python follow.
        on_transformed: called with each transform and what it returns.
        times: observes the event times of rows where their watermarks are assigned; None if they are not needed.
    """

    def __init__(
        self,
        leaf: Callable[[Node], DataFrame | None],
        info: TaskInfo,
        begin: Begin = lambda _: None,
        on_transformed: Callable[[TransformNode, DataFrame], None] = lambda node, frame: None,
        *,
        times: Observer | None = None,
    ) -> None:
        self._leaf = leaf
        self._info = info
        self._begin = begin
        self._on_transformed = on_transformed
        self._times = times

    def frame(self, node: Node) -> DataFrame | None:
        """Returns the rows of `node`, with exactly its columns; None when all rows were left out."""
        if leaves_of(node) == [node]:
            return self._leaf(node)
        if isinstance(node, WatermarkNode):
            before = self.frame(node.parent)
            return before if before is None or self._times is None else self._times.of_frame(node, before)
        if isinstance(node, RecordsNode):
            before = self.frame(node.parent)
            return None if before is None else _records(node, before)
        if isinstance(node, TransformNode):
            before = self.frame(node.parent)
            if before is None:
                return None
            made = select_declared(_transformed(node, before), node.schema, describe_function(node.function))
            self._on_transformed(node, made)
            return made
        if isinstance(node, RowsNode | ColumnsNode | ReducedNode):
            return self._by_functions(node)
        assert isinstance(node, UnionNode)
        frames = [frame for parent in node.parents if (frame := self.frame(parent)) is not None]
        return reduce(DataFrame.union, frames) if frames else None

    def _by_functions(self, node: Node) -> DataFrame | None:
        """Applies consecutive functions in Python in one pass, which also reads the files if tasks may read them."""
        start, functions = functions_after(node, self._info, self._times)
        begun = self._begin(start)
        if begun is not None:
            before, functions = begun[0], (begun[1], *functions)
        elif (found := self.frame(start)) is not None:
            before = found
        else:
            return None
        return before.mapInArrow(compose_functions(functions), node.schema.ddl)


def _records(node: RecordsNode, before: DataFrame) -> DataFrame:
    names = [quote_name(name) for name in node.schema.names]
    if node.rejected:
        return before.where(f"{REJECTED} IS NOT NULL").selectExpr(*(f"{REJECTED}.{name}" for name in names))
    has_rejected = REJECTED in node.parent.schema.names
    return (before.where(f"{REJECTED} IS NULL") if has_rejected else before).selectExpr(*names)


def _transformed(node: TransformNode, before: DataFrame) -> DataFrame:
    try:
        return node.function(before)
    except StateflowError:
        raise
    except Exception as e:
        raise UserCodeError(
            f"a transform raised {type(e).__name__}: {str(e)[:1000]}",
            hint="correct the function",
            transform=describe_function(node.function),
            where=line_of_user(e),
        ) from e


@contextmanager
def errors_of_spark(source: Source) -> Iterator[None]:
    """Raises ConfigError for an error of Spark in the body, which asks it for the source."""
    try:
        yield
    except StateflowError:
        raise
    except Exception as e:
        raise ConfigError(
            "Spark cannot read the source",
            hint="check path, format and options of the source, and that Spark has the JARs for its storage",
            source=source.description,
            reason=reason_in(e),
        ) from e


def check_frame(source: Source, spark: SparkSession, limits: SourceSettings) -> None:
    """Creates the source's streaming frame, without reading it. Raises ConfigError when Spark cannot create it."""
    # The source may send rows of classes that the job has made.
    prepare_struct_classes()
    with errors_of_spark(source):
        # The frame is not read: nothing is written to the folder.
        frame = source.stream_files(spark, limits, Path()) or source.stream(spark, limits)
    walk = _PlanWalk(lambda plan: bool(plan.isStreaming()))
    walk.reads_stream(_analyzed(frame))
    # The number of a partition is known to sources, and no row depends on other rows by it.
    refused = [each for each in walk.refused if each != _NUMBERED]
    if refused:
        operation, instead = refused[0]
        raise JobDefinitionError(
            f"a source cannot {operation} its rows: no checkpoint contains Spark's own state",
            hint=f"use {instead}",
            source=source.description,
        )


def _analyzed(frame: DataFrame) -> JavaObject:
    return frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - PySpark shows plans as text only


def check_transforms(spark: SparkSession, plan: JobPlan) -> None:
    """Applies every Spark expression of the job to an empty frame, to find errors before a run starts.

    Raises:
        JobDefinitionError: a transform would need rows of other batches.
        UserCodeError: a transform raised an exception.
        SchemaMismatch: a transform does not return the declared columns.
    """
    # Nothing runs, so no function uses the time.
    info = TaskInfo("", 0, 0, 0, datetime.min.replace(tzinfo=UTC))
    expressions = FrameBuilder(lambda node: _unread_frame(spark, node.schema), info, on_transformed=_check_stateless)
    for level in plan.levels:
        for node in level.inputs:
            try:
                expressions.frame(node)
            except UserCodeError as e:
                # The text of an error of Spark's analysis has the plan, and so the mark.
                if isinstance(e.__cause__, AnalysisException) or _READ_MARK not in str(e.__cause__):
                    raise
                raise _refusal(*_READ, str(e.facts["transform"])) from e


def _unread_frame(spark: SparkSession, schema: RowSchema) -> DataFrame:
    """Returns a frame whose rows cannot be read: a transform may not count or collect them."""
    error = f"raise_error('{_READ_MARK}')"
    # Of constants, Spark would compute conditions without a row.
    columns = [f"CAST({error} AS {column.spark_type}) AS {quote_name(column.name)}" for column in schema.columns]
    rows = spark.range(_STREAM, _STREAM + 1).where(f"CASE WHEN id > 0 THEN {error} ELSE TRUE END")
    return rows.selectExpr(*columns)


def _check_stateless(node: TransformNode, frame: DataFrame) -> None:
    """Raises JobDefinitionError if what a transform returns for a row depends on other rows of its batch."""
    walk = _PlanWalk(lambda plan: _kind(plan) == "Range" and plan.start() == _STREAM)
    reads_stream = walk.reads_stream(_analyzed(frame))
    if walk.refused or not reads_stream:
        operation, instead = walk.refused[0] if walk.refused else _UNSEEN
        raise _refusal(operation, instead, describe_function(node.function))


def _refusal(operation: str, instead: str, transform: str) -> JobDefinitionError:
    return JobDefinitionError(
        f"a transform gets the rows of one batch, so it cannot {operation} the rows of a stream",
        hint=f"use {instead}. Static tables may be aggregated, and be joined with the stream",
        transform=transform,
    )


class _PlanWalk:
    """A walk through an analyzed plan of Spark, from its leaves, which include the rows of the stream.

    Args:
        is_stream: returns whether a leaf has the rows of the stream.

    Attributes:
        refused: what each operation does to all rows whose result for a row depends on other rows of the stream, and
            what to use instead.
    """

    def __init__(self, is_stream: Callable[[JavaObject], bool]) -> None:
        self._is_stream = is_stream
        self.refused: list[tuple[str, str]] = []
        self._of_with: dict[int, bool] = {}

    def reads_stream(self, plan: JavaObject) -> bool:
        """Returns whether rows of the stream determine which rows a plan has."""
        kind = _kind(plan)
        if kind == "CTERelationRef":
            return self._of_with[plan.cteId()]
        reading = [self.reads_stream(child) for child in _sequence(plan.children())]
        related = [self.reads_stream(query) for query in _sequence(plan.subqueries())]
        if any(related):
            self.refused.append(_RELATED)
        reads = any(reading) or (not reading and self._is_stream(plan))
        if kind == "CTERelationDef":
            self._of_with[plan.id()] = reads
        if reads:
            self._check(kind, plan, reading)
        return reads

    def _check(self, kind: str, plan: JavaObject, reading: Sequence[bool]) -> None:
        if kind in _REFUSED:
            self.refused.append(_REFUSED[kind])
        elif any(part in kind for part in _OF_GROUPS):
            self.refused.append(_GROUPED)
        elif kind in ("Join", "AsOfJoin") and not _keeps_rows(plan, reading):
            self.refused.append(_RELATED if all(reading) else _OUTER)
        elif kind == "Union" and not all(reading):
            self.refused.append(_ADDED)
        elif not plan.deterministic() and any(map(_is_per_batch, _sequence(plan.expressions()))):
            self.refused.append(_NUMBERED)


def _kind(plan: JavaObject) -> str:
    return str(plan.getClass().getSimpleName())


def _sequence(found: JavaObject) -> list[JavaObject]:
    return [found.apply(at) for at in range(found.size())]


def _keeps_rows(join: JavaObject, reading: Sequence[bool]) -> bool:
    """Returns whether a join relates each row of the stream to a static table, and emits no row without one of them."""
    if all(reading):
        return False
    return str(join.joinType().getClass().getSimpleName()).rstrip("$") in _JOINED[reading[0]]


def _is_per_batch(expression: JavaObject) -> bool:
    kind = str(expression.getClass().getSimpleName())
    return kind in _PER_BATCH or any(map(_is_per_batch, _sequence(expression.children())))


def select_declared(frame: DataFrame, schema: RowSchema, transform: str) -> DataFrame:
    """Returns the declared columns of `frame`, in order.

    Args:
        transform: describes the transform that returned `frame`, for errors.

    Raises:
        SchemaMismatch: a column is missing or has another type; names the column and the transform.
    """
    # A transform is user code and may return anything.
    if not isinstance(frame, DataFrame):
        raise SchemaMismatch(
            "a transform does not return a DataFrame",
            hint="return a frame, such as df.select(…)",
            transform=transform,
            found=type(frame).__name__,
        )
    found = dict(frame.dtypes)
    for column in schema.columns:
        if column.name not in found:
            raise SchemaMismatch(
                "a transform does not return a declared column",
                hint=f"return it, or declare the row class that it returns: {_DECLARATION}",
                transform=transform,
                column=column.name,
                declared=schema.row_class.__name__,
                found=sorted(found),
            )
        if found[column.name] != column.dtype:
            raise SchemaMismatch(
                "a transform returned a column of another type than declared",
                hint=f"cast it in the transform, or declare the row class that it returns: {_DECLARATION}",
                transform=transform,
                column=column.name,
                declared=column.dtype,
                found=found[column.name],
            )
    return frame.select(*schema.names)


def describe_function(function: Callable[..., object]) -> str:
    """Returns the name of a function, with the file and line of its definition."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    code = getattr(function, "__code__", None)
    return f"{name} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})" if code else str(name)
