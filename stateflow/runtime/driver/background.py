"""Work of a run that no result depends on: its errors are reported, and the run continues.

The guarantees of a run depend on checkpoints, publication and the log alone; an error in one of these ends the run.
Everything else goes through `BackgroundWork`: an error is logged, counted by kind, recorded in the history, and
followed by a growing delay, so that a storage that refuses requests is not called at full speed.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

from stateflow.checkpoint.history import BACKGROUND, write_action
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.records import ActionRecord
from stateflow.errors import Fenced, InternalError, StateflowError
from stateflow.observability.metrics import Recorder

log = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = timedelta(seconds=1), timedelta(minutes=5)


class Work(enum.Enum):
    """A kind of background work; its value is part of the name of its failure counter in `metrics.METRICS`."""

    REQUESTS = "request_watch"
    """Polling for requests and answering them."""
    COLLECTION = "collection"
    """Deleting garbage in the job root, abandoned savepoints and temporary files of dead writers."""
    HISTORY = "history"
    """Writing and trimming the history."""
    CLEANUP = "cleanup"
    """Removing old requests, and leftovers of older runs in sinks."""

    @property
    def metric(self) -> str:
        """Name of the counter of its failures."""
        return f"num_{self.value}_failures"


@dataclass(frozen=True)
class Failures:
    """Failures of one kind of work since the start of the run.

    Attributes:
        count: failed attempts.
        in_a_row: failed attempts since the last success.
        last: the last error; None before the first one.
        at: timestamp of `last`, in ISO 8601.
        pause_until: earliest time of the next attempt, in seconds of the monotonic clock.
    """

    count: int = 0
    in_a_row: int = 0
    last: StateflowError | None = None
    at: str = ""
    pause_until: float = 0.0


class BackgroundWork:
    """Attempts the background work of one run; safe to call from all its threads.

    Args:
        root: holds the history that gets the records.
        recorder: counts failures.
        generation: the run's generation.
    """

    def __init__(self, root: JobRoot, recorder: Recorder, generation: int) -> None:
        self._root = root
        self._recorder = recorder
        self._generation = generation
        self._lock = threading.Lock()
        self._failures = dict.fromkeys(Work, Failures())
        self._recorded = dict.fromkeys(Work, Failures())

    def attempt(self, kind: Work, work: Callable[[], object], at_once: bool = False) -> bool:
        """Calls `work`; returns whether it succeeded. An error is only reported.

        Args:
            kind: counts as this kind of work.
            work: raises an error to fail.
            at_once: whether to attempt it during the pause after the last failure; otherwise returns False then.

        Raises:
            Fenced: a newer run has claimed the job, so this run must end whichever work detects it.
        """
        if not at_once and self._root.clock.monotonic() < self.failures(kind).pause_until:
            return False
        try:
            work()
        except Fenced:
            raise
        except Exception as e:
            self._failed(kind, e)
            return False
        with self._lock:
            self._failures[kind] = replace(self._failures[kind], in_a_row=0, pause_until=0.0)
        return True

    def failures(self, kind: Work) -> Failures:
        """Returns the failures of one kind of work so far."""
        with self._lock:
            return self._failures[kind]

    def pause(self, kind: Work, usual: timedelta) -> timedelta:
        """Returns how long to wait before the next attempt: `usual`, and longer after failures."""
        left = self.failures(kind).pause_until - self._root.clock.monotonic()
        return max(usual, timedelta(seconds=left))

    def finish(self) -> None:
        """Records the failures since the last record in the history; called when the run ends."""
        for kind in Work:
            if self.failures(kind).count > self._recorded[kind].count:
                self._record(kind, self.failures(kind))

    def _failed(self, kind: Work, error: Exception) -> None:
        known = error if isinstance(error, StateflowError) else None
        failure = known or InternalError(f"{type(error).__name__}: {error}")
        at = self._root.clock.now().isoformat(timespec="milliseconds")
        with self._lock:
            before = self._failures[kind]
            pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(before.in_a_row, 20))
            now = Failures(
                before.count + 1, before.in_a_row + 1, failure, at, self._root.clock.monotonic() + pause.total_seconds()
            )
            self._failures[kind] = now
        self._recorder.count(kind.metric)
        # Only a bug is logged with its traceback; a failing storage is not.
        log.warning(
            "%s failed (%d in a row), the run continues: %s",
            kind.value,
            now.in_a_row,
            failure,
            exc_info=None if known or isinstance(error, OSError) else error,
        )
        if now.count & (now.count - 1) == 0:  # 1, 2, 4, 8, …: few records, however long the failure lasts
            self._record(kind, now)

    def _record(self, kind: Work, failed: Failures) -> None:
        assert failed.last is not None
        write_action(
            self._root.storage,
            ActionRecord(
                seq=self._generation,
                kind=BACKGROUND,
                at=failed.at,
                by=self._root.requester,
                reason=failed.last.sentence,
                facts={
                    "work": kind.value,
                    "failures": str(failed.count),
                    "code": failed.last.code,
                    "run": str(self._generation),
                },
            ),
            f"{kind.value[:3]}{failed.count:x}",
        )
        self._recorded[kind] = failed
