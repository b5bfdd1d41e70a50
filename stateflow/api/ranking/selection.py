"""Which rows of a key a ranking keeps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from stateflow.api.functions.vectorized import Array
from stateflow.api.ranking.row_order import SortKey
from stateflow.errors import JobDefinitionError


@dataclass(frozen=True)
class Selection:
    """Which rows of a key are kept.

    Attributes:
        n: number of rows.
        order: what orders them; empty for the order of arrival.
        newest_first: whether of equal rows the one that arrived last comes first, of which one row is kept; otherwise,
            it comes last.
        state: name of the state, which is part of the stored format.

    Raises:
        JobDefinitionError: the number is not a positive int.
    """

    n: int
    order: tuple[SortKey, ...]
    newest_first: bool = False
    state: str = "top-n"

    @property
    def text(self) -> str:
        """What the stored rows depend on."""
        order = ", ".join(f"{key.column}{' desc' if key.descending else ''}" for key in self.order)
        return f"{self.n} by {order or 'arrival'}{', newest first' if self.newest_first else ''}"

    def __post_init__(self) -> None:
        if not isinstance(self.n, int) or self.n < 1:
            raise JobDefinitionError("a top-n needs at least one row", hint="pass n=1 or more", n=repr(self.n))

    def sorted_rows(self, rows: pa.Table, keys: Array) -> Array:
        """Returns the numbers of rows in order of their keys, and of a key in the order of the selection.

        Args:
            rows: rows, in the order of arrival.
            keys: for each row, the number of its key.
        """
        columns = [key.numbers(rows) for key in reversed(self.order)]
        if self.newest_first:
            columns.insert(0, -np.arange(len(rows)))
        # Stable, so that rows that compare equal stay in the order of arrival.
        found: Array = np.lexsort([*columns, keys])
        return found
