"""The partition columns of a sink: which columns they may be, which ones data files have, and how rows are stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from stateflow.api.schema import RowSchema
from stateflow.connectors.columns.store_assignment import assign, has_length, nullable
from stateflow.connectors.delta.column_types import check_rows, to_stored
from stateflow.connectors.delta.partitions.values import check_values
from stateflow.errors import JobDefinitionError
from stateflow.types.columns.conversion import with_nullable_parts
from stateflow.types.columns.shapes import Leaf

_TARGET = b"stateflow.target"
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


def data_columns(stored: pa.Schema, partition_by: Sequence[str]) -> pa.Schema:
    """Returns the columns of data files in Arrow: all but the partition columns."""
    return pa.schema([field for field in stored if field.name not in partition_by])


def mismatches(partition_by: Sequence[str], existing: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields each column by which only the sink or only its table is partitioned, with the reason for a refusal."""
    for column in existing:
        if column not in partition_by:
            yield column, "it is partitioned by a column that partition_by does not name"
    for column in partition_by:
        if column not in existing:
            yield column, "it is not partitioned by a column of partition_by"


@dataclass(frozen=True)
class StoredRows:
    """How a table stores emitted rows.

    Attributes:
        schema: columns of the rows.
        target: the same columns as the table has them; see `target_schema`.
        uid: uid of the sink, for errors.
        partition_by: the partition columns, of which an empty text is null.
    """

    schema: RowSchema
    target: pa.Schema
    uid: str
    partition_by: Sequence[str] = ()

    @property
    def file_schema(self) -> pa.Schema:
        """The columns of data files. Where the table limits their values, the metadata says how."""
        columns = data_columns(nullable(self.target), self.partition_by)
        if not any(map(_is_limited, self.target)):
            return columns
        return columns.with_metadata({_TARGET: self.target.to_string(truncate_metadata=False).encode()})

    def were_written_for(self, found: pa.Schema) -> bool:
        """Returns whether the rows of a data file were checked for the limits that the table has now."""
        wanted = (self.file_schema.metadata or {}).get(_TARGET)
        return wanted is None or (found.metadata or {}).get(_TARGET) == wanted

    def of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Returns rows with the types of data files.

        Raises:
            SchemaMismatch: they are not rows of `schema`, or the table cannot store a value.
        """
        check_rows(rows, self.schema, self.uid)
        columns = [
            empty_as_null(column) if name in self.partition_by else column
            for name, column in zip(rows.schema.names, map(to_stored, rows.columns), strict=True)
        ]
        stored = pa.RecordBatch.from_arrays(columns, names=rows.schema.names)
        return assign(stored, self.target, {"uid": self.uid})

    def of_upsert(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Returns rows whose partitions are made when they are published. Raises DataError as `check_values`, too."""
        stored = self.of(rows)
        check_values(stored, self.partition_by)
        return stored


def _is_limited(field: pa.Field) -> bool:
    """Returns whether a column may lack nulls, or long texts."""
    return not field.nullable or has_length(field) or not field.type.equals(with_nullable_parts(field.type))


def empty_as_null(column: pa.Array) -> pa.Array:
    """Returns the values of a partition column as a table has them: an empty text is null."""
    if not pa.types.is_string(column.type):
        return column
    return pc.if_else(pc.equal(column, ""), pa.scalar(None, column.type), column)
