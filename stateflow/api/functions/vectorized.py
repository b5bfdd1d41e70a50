"""Vectorized functions, which process the rows of many keys at once as Arrow columns."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.api.functions.process import KeyedFunction
from stateflow.state.kinds.keyed_state_batch import AnyMapState, AnySingleValueState, KeyedStateBatch

Array = np.ndarray[Any, Any]


class VectorState:
    """The keys of a batch and their state.

    Attributes:
        keys: the key columns, one row per key, in the order of the batch. The row number is the number of the key.
        starts: for each key, the index of its first row in the batch. The rows of a key are contiguous, so this is an
            argument for numpy's ``ufunc.reduceat``.
        states: for the runtime only: the states of the keys.
    """

    def __init__(self, keys: pa.RecordBatch, starts: Array, rows: int, states: KeyedStateBatch) -> None:
        self.keys = keys
        self.starts = starts
        self._rows = rows
        self.states = states

    def __len__(self) -> int:
        """Number of keys."""
        return len(self.starts)

    @cached_property
    def counts(self) -> Array:
        """For each key, its number of rows, which is at least one."""
        return np.diff(self.starts, append=self._rows)

    @cached_property
    def key_of_row(self) -> Array:
        """For each row, the number of its key."""
        return np.repeat(np.arange(len(self)), self.counts)

    def read(self, state: AnySingleValueState) -> pa.Array:
        """Returns each key's value as a column; the state's default, or null, for a key without a value.

        A class is a struct. For an aggregating state, the values are accumulators.

        Raises:
            StateError: the kind of state is not supported.
            JobDefinitionError: the declared type is not supported in columns.
        """
        return self.states.read(state)

    def write(self, state: AnySingleValueState, values: pa.Array | Array, where: Array | None = None) -> None:
        """Sets each key's value; null clears it.

        Args:
            state: the state.
            values: one per key.
            where: for each key, whether its value is set; None for all keys.

        Raises:
            SchemaMismatch: `values` has another length or type, or a null in a field that is not nullable.
        """
        self.states.write(state, values, where)

    def read_entries(self, state: AnyMapState, of: Array, keys: pa.Array | Array) -> pa.Array:
        """Returns entries of maps as a column; null for a missing entry.

        Args:
            state: the map state.
            of: for each entry, the number of the key whose map contains it.
            keys: for each entry, its key in the map.
        """
        return self.states.read_entries(state, of, keys)

    def write_entries(self, state: AnyMapState, of: Array, keys: pa.Array | Array, values: pa.Array | Array) -> None:
        """Sets entries of maps; null removes an entry. The last of several values for one entry is stored."""
        self.states.write_entries(state, of, keys, values)

    def all_entries(self, state: AnyMapState) -> tuple[Array, pa.Array, pa.Array]:
        """Returns every entry of every key's map, as (number of the key, key in the map, value), in order of both keys.

        Loads all entries into memory; use `read_entries` to read some of them.
        """
        return self.states.all_entries(state)


class VectorizedKeyedFunction(KeyedFunction[object]):
    """A function that processes the rows of many keys of a keyed stream at once.

    Its state has the same stored format as the state of row functions, so a job can switch between both.
    """

    def process_batch(self, batch: pa.RecordBatch, state: VectorState) -> pa.RecordBatch | pa.Table | None:
        """Called with some of the batch's keys and all their rows; each key occurs in one call per batch.

        Args:
            batch: the rows, grouped by key, each key's rows in the order that `key_by` declares.
            state: the keys, their rows and their state.

        Returns:
            Rows with the columns of the declared output class, in any order.
        """
        raise NotImplementedError(f"{type(self).__name__} has no process_batch")


ColumnsFunction = Callable[[pa.RecordBatch], pa.RecordBatch | pa.Table | None]
"""Takes some rows of a stream as Arrow columns, and returns any number of rows; None for no rows."""
