"""Stateless steps of queries: Spark expressions over the rows of sources, and row functions after operators."""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from stateflow.api.changelog import after_filter, after_map, row_kind_of
from stateflow.api.functions.rich import RowStep, StepKind
from stateflow.api.graph.event_time import event_time_of
from stateflow.api.graph.nodes import RowsNode, TransformNode
from stateflow.api.graph.traversal import level_of
from stateflow.api.schema import RowSchema
from stateflow.api.sql.expressions.rows import ComputeRows, KeepRows
from stateflow.api.sql.expressions.spark import spark_sql
from stateflow.api.sql.expressions.sql_types import Field, SqlType, row_class
from stateflow.api.sql.expressions.tree import Expression, Ref
from stateflow.api.streams.data_stream import DataStream
from stateflow.types.spark_sql import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from stateflow.api.changelog import Changelog

Items = tuple[tuple[str, Expression], ...]


class SelectColumns:
    """Computes the columns of a DataFrame.

    Args:
        columns: each in Spark SQL, with its name.
    """

    def __init__(self, columns: list[str]) -> None:
        self._columns = columns

    def __call__(self, frame: DataFrame) -> DataFrame:
        """Returns the columns."""
        return frame.selectExpr(*self._columns)


class SelectRows:
    """Filters a DataFrame.

    Args:
        condition: in Spark SQL.
    """

    def __init__(self, condition: str) -> None:
        self._condition = condition

    def __call__(self, frame: DataFrame) -> DataFrame:
        """Returns the rows for which the condition is true."""
        return frame.where(self._condition)


def computed(stream: DataStream, items: Items, *, is_keyed: bool) -> DataStream:
    """Returns computed columns, and the kinds of the rows if the stream has them.

    Args:
        is_keyed: whether an operator takes the rows. It needs the event time of the rows of sources, and no upsert key
            if replaced rows are retracted.

    Raises:
        JobDefinitionError: the stream is a changelog, and columns of its upsert key are missing.
    """
    names = [name for name, _ in items]
    time = event_time_of(stream._node) if is_keyed and not level_of(stream._node) else ""
    more = [name for name in (row_kind_of(stream.schema), time) if name and name not in names]
    if _is_same(stream.schema, items, more):
        return stream
    hints = typing.get_type_hints(stream.schema.row_class, include_extras=True)
    fields = [Field(name, expression.type) for name, expression in items]
    row = row_class("Columns", fields, [(name, hints[name]) for name in more])
    every = (*items, *((name, Ref(name, SqlType("other"))) for name in more))
    step = RowStep(StepKind.MAP, ComputeRows(row, every), RowSchema.of(row))
    before = stream._changelog
    if before is not None and before.retracts and is_keyed and not set(before.keys) <= set(names):
        before = replace(before, keys=())
    changelog = after_map(before, stream.schema, step.schema)
    if level_of(stream._node):
        return DataStream(stream._graph, stream._graph.add_rows(RowsNode(stream._node, step)), changelog)
    columns = [f"{spark_sql(each)} AS {quoted(name)}" for name, each in every]
    return _transformed(stream, SelectColumns(columns), step, changelog)


def filtered(stream: DataStream, condition: Expression) -> DataStream:
    """Returns the rows for which a condition is true.

    Raises:
        JobDefinitionError: the rows are upserts.
    """
    function = KeepRows(condition)
    if level_of(stream._node):
        return stream.filter(function)
    step = RowStep(StepKind.FILTER, function, stream.schema)
    return _transformed(stream, SelectRows(spark_sql(condition)), step, after_filter(stream._changelog))


def _transformed(
    stream: DataStream, function: Callable[[DataFrame], DataFrame], step: RowStep, changelog: Changelog | None
) -> DataStream:
    return DataStream(stream._graph, TransformNode(stream._node, function, step.schema, step), changelog)


def _is_same(schema: RowSchema, items: Items, more: list[str]) -> bool:
    """Returns whether the columns are those that the rows have already, in the same order."""
    if [*(name for name, _ in items), *more] != list(schema.names):
        return False
    given = {column.name: column for column in schema.columns}
    return all(
        isinstance(each, Ref) and each.name == name and each.type.nullable == given[name].nullable
        for name, each in items
    )
