"""Polling with a timeout."""

from __future__ import annotations

import time
from collections.abc import Callable


def poll(condition: Callable[[], bool], seconds: float, interval: float = 0.3) -> bool:
    """Waits until `condition` holds; returns False if `seconds` elapse first."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(interval)
    return True


class Stopwatch:
    """Measures the seconds since its creation."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the creation."""
        return time.monotonic() - self._began
