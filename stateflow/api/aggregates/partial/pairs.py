"""Distinct pairs of key and value."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from stateflow.api.functions.vectorized import Array


@dataclass(frozen=True)
class Pairs:
    """The distinct pairs of key and value of some rows, in the order of keys.

    Attributes:
        of: the number of each pair's key.
        values: the value of each pair.
        pair_of_row: for each row, the number of its pair; -1 without one.
    """

    of: Array
    values: pa.Array
    pair_of_row: Array

    @classmethod
    def in_rows(cls, values: pa.Array, keys: Array, chosen: Array) -> Pairs:
        """Returns the pairs of the chosen rows.

        Args:
            values: a value for each row; not null for a chosen one.
            keys: the number of each row's key.
            chosen: whether a row is chosen.
        """
        rows = np.flatnonzero(chosen)
        encoded = values.take(pa.array(rows)).dictionary_encode()
        size = max(len(encoded.dictionary), 1)
        # By a hash table, and then sorted: there are fewer pairs than rows.
        codes = pa.array(keys[rows] * size + encoded.indices.to_numpy()).dictionary_encode()
        found = codes.dictionary.to_numpy()
        order = np.argsort(found)
        number = np.empty(len(order), np.int64)
        number[order] = np.arange(len(order))
        pair_of_row = np.full(len(values), -1)
        pair_of_row[rows] = number[codes.indices.to_numpy()]
        found = found[order]
        return cls(found // size, encoded.dictionary.take(pa.array(found % size)), pair_of_row)

    def first_rows(self, passed: Array) -> Array:
        """Returns for each pair the first of its rows that pass a filter; -1 without one."""
        rows = np.flatnonzero(passed)[::-1]
        first = np.full(len(self.of), -1)
        # Of several values for one position, the last one is stored: that of the first row.
        first[self.pair_of_row[rows]] = rows
        return first
