"""Rankings before the shuffle: rows that cannot be among the kept ones of their key are not shuffled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

import numpy as np
import pyarrow as pa

from stateflow.api.aggregates.partial.key_numbers import BYTES_AT_ONCE, ROWS_AT_ONCE, held_together, key_numbers, ranks
from stateflow.api.functions.vectorized import Array
from stateflow.api.ranking.selection import Selection
from stateflow.api.schema import RowSchema


@dataclass(frozen=True)
class PartialRanking:
    """The rows of a partition that a ranking may keep, in their order.

    A row that is not kept of the rows that are ranked together, which are some of its key, is not kept of all of them.

    Attributes:
        keys: names of the key columns.
        selection: which rows of a key are kept.
        schema: columns of the rows.
        rows_at_once, bytes_at_once: number and size of the rows that are ranked together, in memory.
    """

    keys: tuple[str, ...]
    selection: Selection
    schema: RowSchema
    # Less than aggregates hold, because the kept rows are copied. Equal keys are often near one another.
    rows_at_once: int = ROWS_AT_ONCE // 4
    bytes_at_once: int = BYTES_AT_ONCE // 4

    name: ClassVar[str] = "partial ranking"

    def apply(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the rows."""
        for held in held_together(batches, self.rows_at_once, self.bytes_at_once):
            kept = self._kept(pa.Table.from_batches(held))
            ends = accumulate(map(len, held))
            for batch, end in zip(held, ends, strict=True):
                yield batch.filter(pa.array(kept[end - len(batch) : end]))

    def _kept(self, rows: pa.Table) -> Array:
        """Returns for each row whether it is one of the kept rows of its key."""
        numbers = key_numbers(rows, self.keys)
        in_order = self.selection.sorted_rows(rows, numbers)
        kept: Array = np.zeros(len(rows), bool)
        kept[in_order[ranks(np.bincount(numbers)) < self.selection.n]] = True
        return kept
