"""A thread that detects during a long batch that a newer run has claimed the job."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import timedelta

from stateflow.checkpoint.log.fencing import FenceGuard
from stateflow.errors import Fenced

log = logging.getLogger(__name__)


class FenceWatch:
    """Reads the log's head at an interval, in a thread: one LIST and one small GET each time.

    Only the log fences a run, when the run next appends an entry. The watch shortens the time for which a fenced run
    does useless work, so a failed check is logged and the next one follows.

    Args:
        guard: the run's fence guard.
        interval: between two checks.
        on_fenced: called once, in the thread; interrupts what the run is doing.
    """

    def __init__(self, guard: FenceGuard, interval: timedelta, on_fenced: Callable[[], None]) -> None:
        self._guard = guard
        self._interval = interval
        self._on_fenced = on_fenced
        self._ended = threading.Event()
        self._fenced: Fenced | None = None
        self._thread = threading.Thread(target=self._watch, name="stateflow-fence", daemon=True)

    def begin(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def end(self) -> None:
        """Ends the thread. May be called more than once, and before `begin`."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def check(self) -> None:
        """Raises Fenced once the watch has found a newer run."""
        if self._fenced is not None:
            raise self._fenced

    def is_fenced(self) -> bool:
        """Reads the log's head once, unless a newer run is known; returns whether one has claimed the job."""
        if self._fenced is None:
            self._fenced = self._guard.find()
        return self._fenced is not None

    def _watch(self) -> None:
        while not self._ended.wait(self._interval.total_seconds()):
            try:
                if self.is_fenced():
                    self._on_fenced()
                    return
            except Exception:
                # Any error of a storage client: the next check may succeed, and the log fences the run in any case.
                log.warning("the check for a newer run failed", exc_info=True)
