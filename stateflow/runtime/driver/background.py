"""Work that a run does besides its batches and that no result depends on: it survives errors and reports them.

What a run promises is at stake in checkpoints, publication and the log alone; errors there end the run. Everything else
is tried through `BackgroundWork`: an error is logged, counted by kind, recorded in the history, and followed by a pause
that grows, so that a storage that refuses is not asked at full speed.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

from stateflow.checkpoint.history import BACKGROUND, ActionRecord, write_action
from stateflow.checkpoint.jobroot import JobRoot
from stateflow.errors import Fenced, InternalError, StateflowError
from stateflow.metrics import Recorder

log = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = timedelta(seconds=1), timedelta(minutes=5)


class Work(enum.Enum):
    """The kinds of background work; each value is a counter of `metrics.METRICS` without its prefix."""

    REQUESTS = "request_watch"
    """Looking for requests to the run."""
    COLLECTION = "collection"
    """Deleting garbage in the job root, abandoned savepoints and files that writers left aside."""
    HISTORY = "history"
    """Writing and trimming the history."""
    CLEANUP = "cleanup"
    """Removing old requests, and leftovers of older runs in sinks."""

    @property
    def metric(self) -> str:
        """The counter of its failures."""
        return f"num_{self.value}_failures"


@dataclass(frozen=True)
class Failures:
    """What went wrong with one kind of work since the run began.

    Attributes:
        count: how many tries failed.
        in_a_row: how many of them since it last succeeded.
        last: the last error; None before there was one.
        at: when that was, in ISO 8601.
        pause_until: before then it is not tried again; in seconds of the clock that never goes back.
    """

    count: int = 0
    in_a_row: int = 0
    last: StateflowError | None = None
    at: str = ""
    pause_until: float = 0.0


class BackgroundWork:
    """Tries the background work of one run, from any of its threads.

    Args:
        root: gives the clock, and the history that gets the records.
        recorder: counts failures.
        generation: of the run.
    """

    def __init__(self, root: JobRoot, recorder: Recorder, generation: int) -> None:
        self._root = root
        self._recorder = recorder
        self._generation = generation
        self._lock = threading.Lock()
        self._failures = dict.fromkeys(Work, Failures())
        self._recorded = dict.fromkeys(Work, Failures())

    def attempt(self, kind: Work, work: Callable[[], object], at_once: bool = False) -> bool:
        """Does `work`; whether it succeeded. An error is counted, and nothing else comes of it.

        Args:
            at_once: whether it is tried although the pause after the last failure is not over.

        Raises Fenced: the run must end, whoever finds that out.
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
        """What went wrong so far."""
        with self._lock:
            return self._failures[kind]

    def pause(self, kind: Work, usual: timedelta) -> timedelta:
        """How long to wait before the next try: `usual`, and longer after failures."""
        left = self.failures(kind).pause_until - self._root.clock.monotonic()
        return max(usual, timedelta(seconds=left))

    def finish(self) -> None:
        """Records in the history what failed since the last record; the run ends."""
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
                before.count + 1, before.in_a_row + 1, failure, at,
                self._root.clock.monotonic() + pause.total_seconds(),
            )  # fmt: skip
            self._failures[kind] = now
        self._recorder.count(kind.metric)
        # A bug is logged with its traceback, a storage that fails is not.
        log.warning("%s failed (%d in a row), the run goes on: %s", kind.value, now.in_a_row, failure,
                    exc_info=None if known or isinstance(error, OSError) else error)  # fmt: skip
        if now.count & (now.count - 1) == 0:  # 1, 2, 4, 8, …: few records, however long it lasts
            self._record(kind, now)

    def _record(self, kind: Work, failed: Failures) -> None:
        assert failed.last is not None
        write_action(self._root.storage, ActionRecord(
            seq=self._generation, kind=BACKGROUND, at=failed.at, by=self._root.writer, reason=failed.last.sentence,
            facts={"work": kind.value, "failures": str(failed.count), "code": failed.last.code,
                   "run": str(self._generation)},
        ), f"{kind.value[:3]}{failed.count:x}")  # fmt: skip
        self._recorded[kind] = failed
