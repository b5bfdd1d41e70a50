"""Waiting for something that cannot call back."""

from __future__ import annotations

import time
from collections.abc import Callable


def poll(condition: Callable[[], bool], seconds: float, interval: float = 0.3) -> bool:
    """Asks until `condition` holds, and then returns True; False when `seconds` are over first."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(interval)
    return True


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began
