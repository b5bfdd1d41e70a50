"""Functions over the rows of many keys at once, as Arrow columns."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.api.functions import KeyedFunction
from stateflow.state.cell import Cell
from stateflow.state.many_keys import ManyKeys
from stateflow.state.map_state import MapState

Array = np.ndarray[Any, Any]


class VectorState:
    """Given with a batch: its keys, and their state.

    Attributes:
        keys: the key columns, with each key once, in the order in which the batch has them. A key's place here is its
            number.
        starts: where each key's rows begin in the batch. They lie together: numpy's ``ufunc.reduceat`` takes this.
    """

    def __init__(self, keys: pa.RecordBatch, starts: Array, rows: int, states: ManyKeys) -> None:
        self.keys = keys
        self.starts = starts
        self._rows = rows
        self._states = states

    def __len__(self) -> int:
        """Number of keys."""
        return len(self.starts)

    @cached_property
    def counts(self) -> Array:
        """How many rows each key has: one or more."""
        return np.diff(self.starts, append=self._rows)

    @cached_property
    def key_of_row(self) -> Array:
        """For each row, the number of its key."""
        return np.repeat(np.arange(len(self)), self.counts)

    def read(self, state: Cell[Any]) -> pa.Array:
        """A column with each key's value; null, or the state's default, where it has none.

        A class is a struct. Of an aggregating state these are accumulators.

        Raises:
            StateError: the state is of a kind that is not read like this.
            JobDefinitionError: the declared type has no columns.
        """
        return self._states.read(state)

    def write(self, state: Cell[Any], values: pa.Array | Array, where: Array | None = None) -> None:
        """Sets each key's value; null clears it.

        Args:
            where: for which keys, as booleans; for all if None.

        Raises:
            SchemaMismatch: another length or type, or a null in a field that is declared without it.
        """
        self._states.write(state, values, where)

    def read_entries(self, state: MapState[Any, Any], of: Array, keys: pa.Array | Array) -> pa.Array:
        """A column with entries of maps; null where there is none.

        Args:
            of: for each wanted entry, the number of the key whose map it is in.
            keys: the map's keys.
        """
        return self._states.read_entries(state, of, keys)

    def write_entries(
        self, state: MapState[Any, Any], of: Array, keys: pa.Array | Array, values: pa.Array | Array
    ) -> None:
        """Sets entries of maps; null removes one; of several for one entry the last counts."""
        self._states.write_entries(state, of, keys, values)

    def all_entries(self, state: MapState[Any, Any]) -> tuple[Array, pa.Array, pa.Array]:
        """Every entry of every key's map, as (number of the key, map's key, value), in order of both.

        They are all in memory then; `read_entries` reads those that are needed.
        """
        return self._states.all_entries(state)


class VectorizedKeyedFunction(KeyedFunction[Any]):
    """A function over the rows of many keys of a keyed stream at once.

    It shares its state with the row API: a job may go from one to the other with what is stored.
    """

    def process_batch(self, batch: pa.RecordBatch, state: VectorState) -> pa.RecordBatch | pa.Table | None:
        """Called with some of the batch's keys and all their rows; a key comes once in a batch.

        Args:
            batch: the rows, key after key, each key's rows in the order that `key_by` declares.
            state: which rows are of which key, and the keys' state.

        Returns:
            Rows with the columns of the declared output class, in any order.
        """
        raise NotImplementedError(f"{type(self).__name__} has no process_batch")
