"""Counts of the requests that a test itself sends to storage."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from stateflow.storage.base import Traffic

if TYPE_CHECKING:
    import pytest


class _ThreadTraffic(Traffic):
    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    def add(self, requests: int = 0, *, read: int = 0, written: int = 0) -> None:
        if threading.get_ident() == self._thread:
            super().add(requests, read=read, written=written)


def own_traffic(module: str, monkeypatch: pytest.MonkeyPatch) -> Traffic:
    """Returns the counts of a storage module in this thread: threads of earlier tests may still send requests."""
    traffic = _ThreadTraffic()
    monkeypatch.setattr(f"{module}.TRAFFIC", traffic)
    return traffic
