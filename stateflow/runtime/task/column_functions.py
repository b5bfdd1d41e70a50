"""Applies functions over Arrow batches of an unkeyed stream: in a Spark DataFrame, in a task, or in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from stateflow.api.functions.columns import ColumnsFunction
from stateflow.api.functions.returned import InvalidReturnValue, message_and_hint
from stateflow.api.schema import RowSchema
from stateflow.checkpoint.barrier.task_report import message_with
from stateflow.errors import StateflowError, UserCodeError
from stateflow.runtime.task.column_conversion import conform
from stateflow.runtime.user_code import innermost
from stateflow.types.columns.conversion import with_type

_CALLED = "the function of transform_columns"


@dataclass(frozen=True)
class ColumnStep:
    """A function over Arrow batches, with the columns that it takes and returns."""

    function: ColumnsFunction
    given: RowSchema
    output: RowSchema

    def apply(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the rows that the function returns.

        Raises:
            UserCodeError: the function raised an exception, or returned something else than rows.
            SchemaMismatch: the rows do not have the declared columns.
        """
        for batch in batches:
            if len(batch):
                returned = self._call(self._given(batch))
                if returned is not None:
                    yield from conform(returned, self.output, _CALLED, function=_name(self.function))

    def apply_to_partition(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """As `apply`, for a function that Spark calls.

        Raises:
            RuntimeError: the function failed. Its message contains the encoded error: Spark forwards only messages.
        """
        try:
            yield from self.apply(batches)
        except StateflowError as e:
            raise RuntimeError(message_with(e)) from e

    def _given(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [with_type(batch.column(c.name), c.arrow_type) for c in self.given.columns]
        return pa.RecordBatch.from_arrays(columns, schema=self.given.arrow)

    def _call(self, batch: pa.RecordBatch) -> pa.RecordBatch | pa.Table | None:
        try:
            returned = self.function(batch)
            if returned is not None and not isinstance(returned, pa.RecordBatch | pa.Table):
                raise InvalidReturnValue(
                    self.function,
                    returned,
                    "return rows as Arrow columns, or None",
                    "return one pyarrow.RecordBatch or pyarrow.Table, and do not yield",
                )
        except StateflowError:
            raise
        except Exception as e:
            what, hint = message_and_hint(e, _CALLED)
            raise UserCodeError(
                what,
                hint=f"{hint}; nothing of this batch was committed",
                function=_name(self.function),
                where=innermost(e),
            ) from e
        return returned


def _name(function: ColumnsFunction) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))
