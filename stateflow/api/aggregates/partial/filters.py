"""Filters of aggregates: bool columns of the rows that count."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateflow.api.functions.vectorized import Array


def is_true(flags: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Returns flags with false in place of null, as in a filter of SQL."""
    return flags.fill_null(False)


def masked(values: pa.Array | pa.ChunkedArray, kept: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Returns values with null where they are not kept; aggregates ignore null."""
    return pc.if_else(kept, values, pa.scalar(None, values.type))


def passed_rows(values: pa.Array, flags: pa.Array | pa.ChunkedArray | None) -> Array:
    """Returns for each row whether it has a value and passes a filter, if there is one."""
    valid: Array = values.is_valid().to_numpy(zero_copy_only=False)
    return valid if flags is None else valid & np.asarray(is_true(flags))
