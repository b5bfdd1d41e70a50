"""The number of keys whose state is read at once when rows do not determine it, as for timers."""

from __future__ import annotations

from dataclasses import dataclass

MOST = 10_000
"""The largest number of keys."""
_FIRST = 128
_GROWTH = 4
_BYTES = 2 << 20
"""What to hold at once, as stored bytes; objects in Python take several times that."""
_ROW_BYTES = 400
"""Assumed size of an emitted row, which is not stored."""


@dataclass
class SliceSize:
    """A number of keys that follows from the size of their state and of what is emitted for them.

    It begins small, since the state of the first keys is not known, and grows to `MOST` while they need little memory.
    """

    keys: int = _FIRST

    def adapt(self, keys: int, state_bytes: int, emitted: int = 0) -> None:
        """Sets the number for the next slice.

        Args:
            keys: how many keys the last slice had.
            state_bytes: the bytes that were read and written for them.
            emitted: how many rows were emitted for them.
        """
        used = max(state_bytes + emitted * _ROW_BYTES, 1)
        self.keys = max(1, min(keys * _BYTES // used, self.keys * _GROWTH, MOST))
