"""The order of binary keys, for many keys at once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stateflow.state.columnar.binary_columns import Bytes, Numbers, parts_of

_WORD_BYTES = 8


def sorted_rows(keys: pa.LargeBinaryArray) -> Numbers:
    """Returns the rows of a column without nulls in ascending order of their bytes; equal ones stay in their order."""
    data, offsets = parts_of(keys)
    width = int(offsets[1] - offsets[0]) if len(keys) else 0
    if width and (np.diff(offsets) == width).all():
        words = _distinctive_words(data[offsets[0] : offsets[-1]].reshape(-1, width))
        # Sorting numbers takes a tenth of the time that sorting bytes takes.
        rows: Numbers = np.argsort(words)
        ordered = words[rows]
        if (ordered[1:] != ordered[:-1]).all():
            return rows
    found: Numbers = pc.sort_indices(keys).to_numpy().view(np.int64)
    return found


def _distinctive_words(keys: Bytes) -> NDArray[np.uint64]:
    """Returns the first 8 of the bytes in which keys of one size differ, as a number for each key.

    Different numbers have the order of their keys; the keys of equal ones may differ.

    Args:
        keys: the bytes of each key, as a row.
    """
    differing = np.flatnonzero((keys != keys[0]).any(axis=0))[:_WORD_BYTES]
    words = np.zeros((len(keys), _WORD_BYTES), np.uint8)
    words[:, _WORD_BYTES - len(differing) :] = keys[:, differing]
    return words.view(">u8").ravel().astype(np.uint64)
