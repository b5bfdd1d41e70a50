"""Pending changes of keyed state, with one savepoint that they can be rolled back to."""

from __future__ import annotations

from enum import Enum
from typing import Final

from stateflow.state.backends.base import KeyedStateBackend


class Absent(Enum):
    """Type of `ABSENT`."""

    ABSENT = "absent"


ABSENT: Final = Absent.ABSENT
"""An entry that is not known; None means that it is known not to exist."""


class WriteBuffer(dict[bytes, bytes | None]):
    """Pending changes by stored key; None removes the entry.

    `rollback` also undoes changes that were written through to the backend. Only item assignment is tracked.
    """

    def __init__(self) -> None:
        super().__init__()
        self._before: dict[bytes, bytes | Absent | None] | None = None
        """Pending changes at the savepoint by changed key, `ABSENT` where there was none; None without a savepoint."""
        self._overwritten: dict[bytes, bytes | None] = {}
        """Entries of the backend before they were overwritten since the savepoint."""

    def __setitem__(self, key: bytes, data: bytes | None) -> None:
        if self._before is not None and key not in self._before:
            self._before[key] = self.get(key, ABSENT)
        super().__setitem__(key, data)

    def savepoint(self) -> None:
        """Marks the point that `rollback` returns to."""
        self._before = {}
        self._overwritten = {}

    def commit(self) -> None:
        """Keeps the changes since the savepoint and removes the savepoint."""
        self._before = None
        self._overwritten = {}

    def record_overwritten(self, backend: KeyedStateBackend) -> None:
        """Records the entries of `backend` that writing the pending changes will overwrite."""
        if not self._before:
            return
        for key, old in self._before.items():
            if key not in self._overwritten:
                self._overwritten[key] = backend.get(key) if old is ABSENT else old
        self._before = {}

    def rollback(self) -> None:
        """Undoes the changes since the savepoint and removes it.

        Changes that were written through are undone by pending changes that restore the overwritten entries.
        """
        before, overwritten = self._before or {}, self._overwritten
        self.commit()
        for key, old in before.items():
            if old is ABSENT:
                self.pop(key, None)
            else:
                self[key] = old
        self.update(overwritten)
