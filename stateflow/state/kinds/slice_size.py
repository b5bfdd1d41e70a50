"""The number of keys, or of their windows, whose state is read at once when rows do not determine it, as for timers."""

from __future__ import annotations

from dataclasses import dataclass

MOST = 10_000
"""The largest number of keys."""
MOST_BY_COLUMNS = 200_000
"""The largest number when their state is read as columns."""
_FIRST = 128
_FIRST_BY_COLUMNS = 1 << 10
_GROWTH = 4
_BYTES = 2 << 20
"""What to hold at once, as stored bytes; objects in Python take several times that."""
_BYTES_BY_COLUMNS = 16 << 20
"""The same for columns, which exist several times: stored, decoded, encoded and emitted."""
_ROW_BYTES = 400
"""Assumed size of an emitted row, which is not stored."""


@dataclass
class SliceSize:
    """A number of keys that follows from the size of their state and of what is emitted for them.

    It begins small, since the state of the first keys is not known, and grows to `most` while they need little memory.

    Attributes:
        most: the largest number.
        bytes: what to hold at once, as stored bytes.
    """

    keys: int = _FIRST
    most: int = MOST
    bytes: int = _BYTES

    @classmethod
    def of_columns(cls) -> SliceSize:
        """Returns the size for state that is read as columns, which needs less memory for each key."""
        return cls(_FIRST_BY_COLUMNS, MOST_BY_COLUMNS, _BYTES_BY_COLUMNS)

    def adapt(self, keys: int, state_bytes: int, emitted: int = 0) -> None:
        """Sets the number for the next slice.

        Args:
            keys: how many keys the last slice had.
            state_bytes: the bytes that were read, written or emitted for them.
            emitted: how many rows of unknown size were emitted for them.
        """
        used = max(state_bytes + emitted * _ROW_BYTES, 1)
        self.keys = max(1, min(keys * self.bytes // used, self.keys * _GROWTH, self.most))
