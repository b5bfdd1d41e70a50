"""Finds requests to a run in its job root, in a thread, and acknowledges them."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import timedelta

from stateflow.checkpoint.log.documents import Request, RequestKind
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.requests.mailbox import acknowledge, is_acknowledged, open_requests
from stateflow.runtime.driver.background import BackgroundWork, Work

_MAX_RETRIES = 20
"""Attempts to serve a request again after its checkpoint was released before it was pinned."""


class RequestPoller:
    """The requests to a run that are not served yet.

    Args:
        root: holds the requests.
        generation: the run's generation.
        interval: time between two polls.
        background: does work whose failure does not end the run.
    """

    def __init__(self, root: JobRoot, generation: int, interval: timedelta, background: BackgroundWork) -> None:
        self._root = root
        self._generation = generation
        self._interval = interval
        self._background = background
        self._retries: Counter[str] = Counter()
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._known: set[str] = set()
        self._waiting: list[Request] = []
        self._thread = threading.Thread(target=self._poll_until_ended, name="stateflow-requests", daemon=True)

    @property
    def is_waiting(self) -> bool:
        """Whether a request is known that is not served yet."""
        return bool(self._waiting)

    @property
    def has_stop(self) -> bool:
        """Whether a request to stop is known that is not served yet."""
        return any(request.kind is RequestKind.STOP for request in self._waiting)

    def open(self) -> None:
        """Polls once, then starts the thread."""
        self.poll()
        self._thread.start()

    def poll(self) -> None:
        """Polls; a request that an error hides is found by a later poll, or by the next run."""
        self._background.attempt(Work.REQUESTS, self._poll, at_once=True)

    def take(self) -> list[Request]:
        """Returns the waiting requests; the caller serves them."""
        with self._lock:
            taken, self._waiting = self._waiting, []
        return taken

    def retry(self, request: Request) -> bool:
        """Lets a taken request wait again. Returns False after too many attempts."""
        with self._lock:
            self._retries[request.id] += 1
            if self._retries[request.id] > _MAX_RETRIES:
                return False
            self._waiting.append(request)
        return True

    def forget(self, request: Request) -> None:
        """Makes a later poll find a request again that got no answer."""
        with self._lock:
            self._known.discard(request.id)

    def close(self) -> None:
        """Ends the thread."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _poll_until_ended(self) -> None:
        pause = self._interval
        while not self._ended.wait(pause.total_seconds()):
            self.poll()
            pause = self._background.pause(Work.REQUESTS, self._interval)

    def _poll(self) -> None:
        with self._lock:
            for request in open_requests(self._root.storage):
                # A waiting requester deletes the acknowledgement from time to time, to learn whether a run is alive.
                if not is_acknowledged(self._root.storage, request.id):
                    acknowledge(self._root.storage, request.id, self._generation)
                if request.id not in self._known:
                    self._known.add(request.id)
                    self._waiting.append(request)
