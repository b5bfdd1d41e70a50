"""Aggregation before the shuffle: of each key's rows in one of Spark's partitions, one row goes on.

Only for aggregates whose result does not depend on how the rows were divided: whole numbers, counts and extremes, as in
the first phase of Flink's local-global aggregation. The sum of floats does depend on it, and so does what comes first.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.api.schema import Column, RowSchema

_ROWS = 1 << 19
"""How many rows are aggregated together, and in memory at once."""
_LOW_BITS = 32


class Half(enum.Enum):
    """Of a whole number: sums of halves of fewer than 2^31 numbers cannot overflow."""

    HIGH = "high"
    LOW = "low"

    def of(self, numbers: pa.Array) -> pa.Array:
        """The upper bits with the sign, or the lower ones."""
        if self is Half.HIGH:
            return pc.shift_right(numbers, _LOW_BITS)
        return pc.bit_wise_and(numbers, (1 << _LOW_BITS) - 1)


@dataclass(frozen=True)
class Partial:
    """One column of partial results.

    Attributes:
        name: of the column.
        over: the rows' column.
        function: Arrow's name of the aggregation.
        half: what of the values is aggregated; all of them if None.
        column: of the result.
    """

    name: str
    over: str
    function: str
    arrow_type: pa.DataType
    spark_type: str
    half: Half | None = None

    @property
    def column(self) -> Column:
        """How it is declared; a key without values has none."""
        return Column(self.name, self.spark_type, self.arrow_type, nullable=True)


@dataclass(frozen=True)
class PartialAggregation:
    """What becomes of a partition's rows.

    Attributes:
        keys: the columns of the key.
        partials: the other columns.
    """

    keys: tuple[Column, ...]
    partials: tuple[Partial, ...]

    @cached_property
    def schema(self) -> RowSchema:
        """The columns of the partial results."""
        columns = (*self.keys, *(p.column for p in self.partials))
        return RowSchema(msgspec.defstruct("Partials", [(c.name, Any) for c in columns]), columns)

    def apply(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """A row for each key, out of as many rows as are taken together."""
        for held in _together(batches):
            yield from self._aggregated(held)

    def _aggregated(self, rows: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table = pa.Table.from_batches(rows)
        given = {key.name: table.column(key.name) for key in self.keys}
        for at, partial in enumerate(self.partials):
            values = table.column(partial.over)
            given[_numbered(at)] = values if partial.half is None else partial.half.of(values)
        # With threads the groups come in another order each time.
        groups = pa.table(given).group_by([key.name for key in self.keys], use_threads=False)
        made = groups.aggregate([(_numbered(at), p.function) for at, p in enumerate(self.partials)])
        found = [made.column(key.name) for key in self.keys]
        found += [made.column(f"{_numbered(at)}_{p.function}") for at, p in enumerate(self.partials)]
        columns = [c.cast(field.type) for c, field in zip(found, self.schema.arrow, strict=True)]
        yield from pa.table(columns, schema=self.schema.arrow).combine_chunks().to_batches()


def joined(high: Any, low: Any) -> Any:
    """The sums of both halves together: as an int, or as a column of floats."""
    return high * (1 << _LOW_BITS) + low


def _numbered(at: int) -> str:
    # No column of a row class begins like this.
    return f"_sf_{at}"


def _together(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    held: list[pa.RecordBatch] = []
    for batch in batches:
        if held and sum(map(len, held)) + len(batch) > _ROWS:
            yield held
            held = []
        if len(batch):
            held.append(batch)
    if held:
        yield held
