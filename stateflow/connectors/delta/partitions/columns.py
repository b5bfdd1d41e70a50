"""The partition columns of a sink: which columns they may be, and which ones data files have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from stateflow.api.schema import RowSchema
from stateflow.errors import JobDefinitionError
from stateflow.types.columns.shapes import Leaf

_WITHOUT_EXACT_TEXT = ("double", "binary")


def check_columns(partition_by: Sequence[str], schema: RowSchema) -> None:
    """Raises JobDefinitionError if a table with the columns of `schema` cannot be partitioned in this way."""
    for name in partition_by:
        column = schema.column(name)
        if not isinstance(column.shape, Leaf) or column.spark_type in _WITHOUT_EXACT_TEXT:
            raise JobDefinitionError(
                "a Delta table cannot be partitioned by a column",
                hint="use columns that are neither float nor bytes, and not a class, list or dict",
                column=name,
                type=column.spark_type,
            )
    if len(set(partition_by)) < len(partition_by) or len(partition_by) == len(schema.columns):
        raise JobDefinitionError(
            "partition columns of a Delta table must be distinct, and not all of its columns",
            hint="data files do not contain the partition columns, and need at least one other column",
            partition_by=list(partition_by),
            columns=list(schema.names),
        )


def data_columns(schema: RowSchema, partition_by: Sequence[str]) -> RowSchema:
    """Returns the columns of data files: all but the partition columns."""
    return replace(schema, columns=tuple(c for c in schema.columns if c.name not in partition_by))


def mismatches(partition_by: Sequence[str], existing: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields each column by which only the sink or only its table is partitioned, with the reason for a refusal."""
    for column in existing:
        if column not in partition_by:
            yield column, "it is partitioned by a column that partition_by does not name"
    for column in partition_by:
        if column not in existing:
            yield column, "it is not partitioned by a column of partition_by"
