"""Takes the rows whose keys exceed the limit out of an operator's input, before the function or a store sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from stateflow.config.state_settings import EntryLimits
from stateflow.runtime.task.operators.calls.row_caller import RowCaller
from stateflow.runtime.task.operators.input_reader import KeyedRows
from stateflow.runtime.task_spec import Numbers
from stateflow.state.entry_limits import key_too_large


@dataclass(frozen=True)
class InputRows:
    """Sorted rows of one phase, as Arrow columns.

    Attributes:
        order: the `ORDER` of each row.
        columns: the columns of all inputs, one input after the other.
        inputs: the number of each row's input; None if all rows are of the first.
        origins: the number of each row's source; None if it is not known.
    """

    order: Numbers
    columns: Sequence[pa.Array]
    inputs: Numbers | None
    origins: Numbers | None

    def without_large_keys(self, read: KeyedRows, limits: EntryLimits, rows: RowCaller) -> InputRows:
        """Returns the other rows, after each row with a large key has become a dead letter.

        Args:
            read: the same rows, as row objects.
            rows: makes the dead letters.

        Raises:
            EntryTooLarge: the operator has no dead letters.
        """
        kept = np.ones(len(self.order), np.bool_)
        for key, own in read.by_key():
            if len(key[1]) > limits.key_bytes:
                kept[own] = False
                rows.refuse(key[2], read.rows[own], key_too_large(len(key[1]), limits))
        columns = [column.filter(pa.array(kept)) for column in self.columns]
        inputs, origins = (None if each is None else each[kept] for each in (self.inputs, self.origins))
        return InputRows(self.order[kept], columns, inputs, origins)
