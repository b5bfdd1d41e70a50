"""Looks now and then whether a newer run has claimed the job, so that a run that is at a long batch learns it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import timedelta

from stateflow.checkpoint.fencing import fenced_by
from stateflow.checkpoint.log import CheckpointLog
from stateflow.errors import Fenced

log = logging.getLogger(__name__)


class FenceWatch:
    """A thread that reads the log's head at an interval: one LIST and one small GET.

    The log alone fences a run, at its next append; this only shortens how long a fenced run works in vain. So a look
    that fails is logged, and the next one follows.

    Args:
        on_fenced: called once, in the thread: interrupts what the run is doing.
    """

    def __init__(
        self, job_log: CheckpointLog, generation: int, interval: timedelta, on_fenced: Callable[[], None]
    ) -> None:
        self._log = job_log
        self._generation = generation
        self._interval = interval
        self._on_fenced = on_fenced
        self._ended = threading.Event()
        self._fenced: Fenced | None = None
        self._thread = threading.Thread(target=self._watch, name="stateflow-fence", daemon=True)

    def begin(self) -> None:
        """Starts looking."""
        self._thread.start()

    def end(self) -> None:
        """Ends the thread; may be called more than once, and before `begin`."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def check(self) -> None:
        """Raises Fenced when a look has found a newer run."""
        if self._fenced is not None:
            raise self._fenced

    def look(self) -> bool:
        """Reads the head once; returns whether the run is fenced."""
        if self._fenced is None:
            self._fenced = fenced_by(self._log, self._generation)
        return self._fenced is not None

    def _watch(self) -> None:
        while not self._ended.wait(self._interval.total_seconds()):
            try:
                if self.look():
                    self._on_fenced()
                    return
            except Exception:
                # Whatever a storage's client raises: the next look may succeed, and the log fences anyway.
                log.warning("the look for a newer run failed", exc_info=True)
