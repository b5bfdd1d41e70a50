"""Output columns with the bounds of a window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from stateflow.api.functions.vectorized import Array
from stateflow.api.schema import Column, RowSchema
from stateflow.errors import JobDefinitionError, SchemaMismatch
from stateflow.types.columns.conversion import first_time_out_of_range

BOUNDS = ("window_start", "window_end", "window_time")
"""What an output column may have: start, end, and the last instant of the window, as in Flink SQL."""


@dataclass(frozen=True)
class BoundColumns:
    """The output columns with bounds of the window.

    Attributes:
        bounds: the bound by output column.
        declared: the declared output columns.
    """

    bounds: Mapping[str, str]
    declared: Mapping[str, Column]

    @classmethod
    def of(cls, wanted: Mapping[str, Sequence[str]], output: RowSchema) -> BoundColumns:
        """Returns the columns that a job declares as ``(bound,)``.

        Raises:
            JobDefinitionError: a column is neither an int nor a datetime.
        """
        bounds = {name: spec[0] for name, spec in wanted.items() if is_bound(spec)}
        declared = {column.name: column for column in output.columns if column.name in bounds}
        for column in declared.values():
            if column.spark_type != "bigint" and not pa.types.is_timestamp(column.arrow_type):
                raise JobDefinitionError(
                    "a column for a bound of a window has another type",
                    hint="declare it as int, for milliseconds since 1970, or as datetime",
                    column=column.name,
                    declared=column.spark_type,
                )
        return cls(bounds, declared)

    def made(self) -> dict[str, tuple[str, bool]]:
        """Returns the Spark type of each column, none of which is null."""
        return {
            name: (self.declared[name].spark_type if name in self.declared else "bigint", False) for name in self.bounds
        }

    def columns(self, starts: Array, ends: Array) -> dict[str, pa.Array]:
        """Returns the columns of windows."""
        values = dict(zip(BOUNDS, (starts, ends, ends - 1), strict=True))
        return {name: _column(values[bound], self.declared[name]) for name, bound in self.bounds.items()}


def is_bound(spec: Sequence[str]) -> bool:
    """Returns whether a declared aggregate is a bound of the window."""
    return not isinstance(spec, str) and len(spec) == 1 and spec[0] in BOUNDS


def _column(milliseconds: Array, column: Column) -> pa.Array:
    kind = column.arrow_type
    if not pa.types.is_timestamp(kind):
        return pa.array(milliseconds, pa.int64())
    found = pa.array(milliseconds * 1000, pa.int64()).view(pa.timestamp("us", kind.tz)).cast(kind)
    at = first_time_out_of_range(found)
    if at is not None:
        raise SchemaMismatch(
            "a window ends after the year 9999, or begins before the year 1, which a datetime cannot be",
            hint="declare the column as int, for milliseconds since 1970; or filter such rows",
            column=column.name,
            milliseconds=int(milliseconds[at]),
        )
    return found
