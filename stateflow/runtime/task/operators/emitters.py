"""Records which key emitted which row, for errors about emitted rows."""

from __future__ import annotations

from bisect import bisect_right

from stateflow.runtime.task.operators.key_types import Key


class Emitters:
    """The keys that emitted the rows of one list, in the order of the rows."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._keys: list[Key] = []

    def begin(self) -> None:
        """Begins a new list."""
        self._starts.clear()
        self._keys.clear()

    def add(self, position: int, key: Key) -> None:
        """Records that rows from this position on are emitted by this key."""
        self._starts.append(position)
        self._keys.append(key)

    def key_of(self, position: int) -> Key | None:
        """Returns the key that emitted the row at a position; None for a row without a key."""
        found = bisect_right(self._starts, position)
        return self._keys[found - 1] if found else None
