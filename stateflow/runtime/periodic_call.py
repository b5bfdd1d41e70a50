"""Calls a function from time to time while something slow is under way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta


@contextmanager
def repeated(every: timedelta, call: Callable[[], object]) -> Iterator[None]:
    """Calls `call` in a thread, at this interval, until the body has ended; never after that."""
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(every.total_seconds()):
            call()

    thread = threading.Thread(target=work, name="stateflow-repeated", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
