"""Two runs of one job: the newer one asks the active one to end; the older one detects that it is fenced."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import timedelta

from stateflow import failpoints
from stateflow.checkpoint.job_requests import RequestClient, RequestTimeouts
from stateflow.checkpoint.log.documents import Origin, Request, RequestKind
from stateflow.checkpoint.log.fencing import FenceGuard
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.errors import DataError, Fenced, RequestTimeout

log = logging.getLogger(__name__)


_POLL = timedelta(seconds=0.1)
_ACKNOWLEDGE = timedelta(seconds=5)
"""How long an active run may take to confirm that it has seen the request."""


def end_active_run(root: JobRoot, timeout: timedelta, note: str) -> bool:
    """Requests the active run of a job to end with a checkpoint, and waits for that; returns whether none is active.

    The request is addressed to one generation: if this process dies before it claims the job, no other run ends by it.
    Only the CLAIM that follows protects the job; without an end in time, that fences the run.

    Args:
        root: the job root.
        timeout: how long the run may take to end.
        note: the requester of the newer run.

    Raises:
        StorageError: the log or the requests cannot be read or written.
    """
    deadline = root.clock.monotonic() + timeout.total_seconds()
    while (generation := active_generation(root)) and (remaining := deadline - root.clock.monotonic()) > 0:
        if not _submit(root, generation, timedelta(seconds=remaining), note):
            break
        while active_generation(root) == generation and root.clock.monotonic() < deadline:
            root.clock.sleep(_POLL)
    return not generation


def active_generation(root: JobRoot) -> int:
    """Returns the generation of the newest run if it has not recorded its end; 0 otherwise."""
    head = root.log.read_head()
    return 0 if head is None or head.entry.ended else head.entry.generation


def _submit(root: JobRoot, generation: int, timeout: timedelta, note: str) -> bool:
    """Requests a stop of one run, and waits for its answer; returns False if that run does not end by it."""
    client = RequestClient(root, RequestTimeouts(min(_ACKNOWLEDGE, timeout), timeout))
    request = client.submit(
        Request(
            id=root.clock.new_id(),
            kind=RequestKind.STOP,
            savepoint="",
            origin=Origin.STOP,
            by=root.requester,
            reason=f"taken over by a newer run: {note}".removesuffix(": "),
            at=root.clock.now().isoformat(timespec="milliseconds"),
            generation=generation,
            takes_over=True,
        )
    )
    failpoints.hit("request.posted")
    try:
        answer = client.wait(request)
    except RequestTimeout as e:
        # A run that has restarted has another generation, and withdraws the request; then it is repeated.
        log.warning("the active run has not ended: generation=%d: %s", generation, e)
        return True
    except DataError as e:
        log.warning("the active run could not end with a checkpoint: generation=%d: %s", generation, e)
        return False
    return answer is not None


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
