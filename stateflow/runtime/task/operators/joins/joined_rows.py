"""Reads the rows of two inputs of a join as columns, with the number of each row's key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from stateflow.api.functions.vectorized import Array
from stateflow.api.joins.pairs import Side
from stateflow.runtime.task.operators.input_reader import KeyedInputs
from stateflow.runtime.task.row_conversion import event_times, group_starts
from stateflow.runtime.task_spec import GROUP_MASK, GROUP_SHIFT, ChainSpec, Numbers
from stateflow.state.columnar.key_encoding import comparable


@dataclass(frozen=True)
class JoinedRows:
    """Sorted rows of two inputs.

    Attributes:
        keys: the distinct keys, in the order of their rows.
        groups: the key group of each key, 2 bytes.
        starts: the position of the first row of each key.
        sides: the rows of the left and of the right input.
    """

    keys: pa.RecordBatch
    groups: list[bytes]
    starts: Array
    sides: tuple[Side, Side]


class JoinedInputs:
    """Reads the rows of two inputs.

    Args:
        has_times: whether the event times of rows are read.
    """

    def __init__(self, spec: ChainSpec, *, has_times: bool) -> None:
        assert spec.keying is not None
        self._names = spec.keying.columns
        self._inputs = KeyedInputs(spec)
        self._types = [pa.struct(list(each.schema.arrow)) for each in spec.inputs]
        self._has_times = has_times

    def read(self, order: Numbers, columns: Sequence[pa.Array], inputs: Numbers) -> JoinedRows:
        """Returns rows of one phase; arguments as for `KeyedInputs.read`, errors as for its nulls."""
        parts, keys = self._inputs.split(columns, inputs)
        starts = np.array(group_starts(order, [comparable(key) for key in keys]))
        at = pa.array(starts)
        firsts = pa.RecordBatch.from_arrays([key.take(at) for key in keys], names=self._names)
        groups = (order[starts] >> GROUP_SHIFT & GROUP_MASK).astype(">u2").view("V2").tolist()
        of = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(order)))
        left, right = (self._side(number, parts.get(number), of) for number in (0, 1))
        return JoinedRows(firsts, groups, starts, (left, right))

    def event_times(self, columns: Sequence[pa.Array], inputs: Numbers) -> Numbers:
        """Returns the event time of each row, for inputs that both have one."""
        return self._inputs.event_times(columns, inputs)

    def _side(self, number: int, part: tuple[Numbers, Sequence[pa.Array]] | None, of: Array) -> Side:
        kind, given = self._types[number], self._inputs[number]
        has_times = self._has_times and given.time is not None
        if part is None:
            none = np.empty(0, np.int64)
            return Side(none, pa.array([], kind), none if has_times else None)
        positions, columns = part
        times = None
        if has_times and given.time is not None:
            times = event_times(columns[given.time - given.columns.start])
        return Side(of[positions], pa.StructArray.from_arrays(columns, fields=list(kind)), times)
