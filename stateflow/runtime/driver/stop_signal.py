"""SIGTERM and SIGINT: the first one ends a continuous run after its current batch, the second one ends it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_Handler = Callable[[int, FrameType | None], object] | int | None
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignal:
    """Records that this process got a signal to end.

    Attributes:
        received: the name of the signal; empty before one arrives.
    """

    def __init__(self) -> None:
        self.received = ""
        self._previous: dict[signal.Signals, _Handler] = {}

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handles the signals while the body runs; a signal that this process ignores stays ignored.

        Has no effect outside of the main thread, in which Python runs handlers.
        """
        if threading.current_thread() is threading.main_thread() and not self.received:
            for number in _SIGNALS:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._previous[number] = signal.signal(number, self._handle)
        try:
            yield
        finally:
            self._restore()

    def receive(self, name: str) -> None:
        """Records a signal."""
        self.received = self.received or name

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.receive(signal.Signals(number).name)
        # The sender of another signal does not want to wait for the end of the batch.
        self._restore()

    def _restore(self) -> None:
        while self._previous:
            signal.signal(*self._previous.popitem())
