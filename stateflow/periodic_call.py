"""Calls a function at an interval while other code runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta


@contextmanager
def call_periodically(interval: timedelta, call: Callable[[], object]) -> Iterator[None]:
    """Calls `call` in a thread at this interval until the body ends, and never after that."""
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(interval.total_seconds()):
            call()

    thread = threading.Thread(target=work, name="stateflow-periodic-call", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
