"""Columns of texts and binary data that are parts of larger data."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def slices(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    kind: pa.DataType,
    nulls: NDArray[np.bool_] | None = None,
) -> pa.Array:
    """Returns a column of parts of data, which follow each other in less than 2 GiB.

    Args:
        data: the data.
        starts, ends: where each part begins and ends.
        kind: the type of the column, ``string`` or ``binary``.
        nulls: the rows that are null instead; None for none.

    Raises:
        pa.ArrowException: a text is not valid UTF-8.
    """
    bounds = np.empty(2 * len(starts), np.int32)
    bounds[::2], bounds[1::2] = starts, ends
    # Arrow copies every second part: the others are what is between them.
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    parts = pa.Array.from_buffers(pa.binary(), max(0, len(bounds) - 1), buffers)
    return parts.take(pa.array(np.arange(0, len(bounds), 2), mask=nulls)).cast(kind)
