"""Changes that are not written yet, and taking some of them back."""

from __future__ import annotations

from typing import Any

from stateflow.state.backend import KeyedStateBackend

ABSENT: Any = object()


class Changes(dict[bytes, bytes | None]):
    """Changes by stored key, None removes; those since a mark can be taken back, also when they were written through.

    Only assignment is followed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._before: dict[bytes, Any] | None = None
        """While there is a mark: what entries were at it, `ABSENT` for one without a change."""
        self._written: dict[bytes, bytes | None] = {}
        """What entries were in the store before they were written through."""

    def __setitem__(self, key: bytes, data: bytes | None) -> None:
        if self._before is not None and key not in self._before:
            self._before[key] = self.get(key, ABSENT)
        super().__setitem__(key, data)

    def mark(self) -> None:
        """What is changed from now on may be taken back."""
        self._before = {}
        self._written = {}

    def keep(self) -> None:
        """Ends the mark; its changes stay."""
        self._before = None
        self._written = {}

    def expect_write(self, backend: KeyedStateBackend) -> None:
        """Notes what writing through is going to replace in `backend`."""
        if not self._before:
            return
        for key, old in self._before.items():
            if key not in self._written:
                self._written[key] = backend.get(key) if old is ABSENT else old
        self._before = {}

    def take_back(self) -> None:
        """Ends the mark, and undoes its changes: those that were written through by changes of the other way."""
        before, written = self._before or {}, self._written
        self.keep()
        for key, old in before.items():
            if old is ABSENT:
                self.pop(key, None)
            else:
                self[key] = old
        self.update(written)
