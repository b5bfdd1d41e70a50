"""Serves requests to a run: savepoints, which are made while batches run, checkpoints, and stops."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from stateflow import failpoints
from stateflow.checkpoint.history import write_action
from stateflow.checkpoint.job_requests import (
    DONE,
    FAILED,
    WITHDRAWN,
    acknowledge,
    is_acknowledged,
    is_expired,
    open_requests,
    post_answer,
)
from stateflow.checkpoint.log.documents import (
    ActionRecord,
    EntryRef,
    PublishedOutput,
    Request,
    RequestAnswer,
    RequestKind,
    SavepointFormat,
)
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.savepoints.canonical.worker_pool import SavepointWorkers
from stateflow.checkpoint.savepoints.catalog import StoredSavepoint
from stateflow.checkpoint.savepoints.cleanup import finish_savepoint
from stateflow.checkpoint.savepoints.create import SavepointSpec, make_savepoint
from stateflow.config.settings import Settings
from stateflow.errors import DataError, Fenced, InternalError, StateflowError
from stateflow.runtime.driver.background import BackgroundWork, Work
from stateflow.runtime.job import NullObserver, RunObserver

log = logging.getLogger(__name__)


STOPPED, TAKEN_OVER = "stopped", "taken-over"
"""Kinds of a stop: requested for the job, or by the newer run that continues it."""


@dataclass(frozen=True)
class PublishedCheckpoint:
    """A committed and published checkpoint.

    Attributes:
        checkpoint: None before the job's first checkpoint.
        sinks: the output that is published with it, by uid of the sink.
    """

    checkpoint: EntryRef | None
    sinks: dict[str, PublishedOutput]


class RequestedBatches(Protocol):
    """Runs batches without rows for requests; each returns its checkpoint once that is committed and published.

    Attributes:
        savepoint_workers: the workers that write canonical savepoints, also while a batch runs.
    """

    savepoint_workers: SavepointWorkers

    def drain(self) -> PublishedCheckpoint:
        """Fires every event-time timer."""

    def take_full_snapshot(self) -> PublishedCheckpoint:
        """Stores all state again."""


class RequestServer:
    """Serves requests between two batches.

    Savepoints are made in another thread, while batches run and the checkpoint is pinned in the log. The pin ends with
    the next CLAIM, so a savepoint that dies with the run leaves nothing that an operator must clean up.

    Args:
        root: holds the requests and their answers.
        generation: the run's generation.
        settings: the interval between two polls, and how savepoints are written.
        batches: runs batches for requests.
        background: does work whose failure does not end the run.
        observer: is told about savepoints.

    Attributes:
        stopped: `STOPPED` or `TAKEN_OVER` once a request to stop was answered, so that the run must end; else empty.
    """

    def __init__(
        self,
        root: JobRoot,
        generation: int,
        settings: Settings,
        batches: RequestedBatches,
        background: BackgroundWork,
        *,
        observer: RunObserver | None = None,
    ) -> None:
        self.stopped = ""
        self._observer = observer or NullObserver()
        self._root = root
        self._generation = generation
        self._batches = batches
        self._background = background
        self._settings = settings.savepoint
        self._poller = RequestPoller(root, generation, settings.requests.interval, background)
        self._savepoint_pool = ThreadPoolExecutor(1, thread_name_prefix="stateflow-savepoint")
        self._savepoints: list[Future[None]] = []

    def open(self, point: PublishedCheckpoint) -> None:
        """Starts polling. A stop that an earlier run left unanswered is served before the first batch.

        Args:
            point: the restored checkpoint.
        """
        self._poller.open()
        try:
            if self._poller.has_stop:
                self.serve(point)
        except BaseException:
            self.abandon()
            raise

    @property
    def is_waiting(self) -> bool:
        """Whether a request is known that is not served yet."""
        return self._poller.is_waiting

    def serve(self, point: PublishedCheckpoint) -> None:
        """Serves the waiting requests.

        Args:
            point: the checkpoint of the newest barrier.
        """
        self._savepoints = [s for s in self._savepoints if not s.done() or s.exception() is not None]
        for request in self._poller.take():
            if request.kind is RequestKind.SAVEPOINT:
                self._savepoints.append(self._savepoint_pool.submit(self._try_to_answer, request, point))
            elif request.kind is RequestKind.STOP:
                # Not as background work: the answer may be stored although the storage reports an error, and after a
                # confirmed stop the run must not continue.
                self._answer(request, point)
            else:
                self._try_to_answer(request, point)

    def close(self, current: Callable[[], PublishedCheckpoint]) -> None:
        """Serves all requests that are left, waits for unfinished savepoints, and ends polling.

        Args:
            current: returns the newest checkpoint. A request can run a batch of its own, after which an older
                checkpoint may no longer be retained when the next request is served.
        """
        # The poller continues until all is served: its acknowledgements show the requesters that the run is alive.
        self._poller.poll()
        self._serve_all(current)
        self._poller.close()
        self._poller.poll()
        self._serve_all(current)

    def abandon(self) -> None:
        """Ends polling without waiting for unfinished savepoints; for a run that fails."""
        self._poller.close()
        self._savepoint_pool.shutdown(wait=False, cancel_futures=True)

    def _serve_all(self, current: Callable[[], PublishedCheckpoint]) -> None:
        # Terminates, because the poller limits how often a request is served again.
        while self._poller.is_waiting or self._savepoints:
            self.serve(current())
            self._wait_for_savepoints()

    def _wait_for_savepoints(self) -> None:
        submitted, self._savepoints = self._savepoints, []
        for savepoint in submitted:
            savepoint.result()

    def _try_to_answer(self, request: Request, point: PublishedCheckpoint) -> None:
        """Serves a request; without an answer it stays open for a later poll or the next run."""
        answered = self._background.attempt(Work.REQUESTS, lambda: self._answer(request, point), at_once=True)
        if not answered:
            self._poller.forget(request)

    def _answer(self, request: Request, point: PublishedCheckpoint) -> None:
        """Carries a request out, and stores the answer."""
        if is_expired(request, self._root.clock.now()):
            log.warning("request %s is withdrawn: it expired at %s", request.id, request.until)
            self._post_answer(request, None, None, WITHDRAWN)
            return
        if request.generation and request.generation != self._generation:
            self._refuse(request)
            return
        began = self._root.clock.monotonic()
        try:
            point = self._point_for(request, point)
            savepoint = self._make_savepoint(request, point)
        except Fenced as e:
            log.warning("request %s stays open for the newer run: %s", request.id, e)
            return
        except StateflowError as e:
            if not self._is_retried(request, point):
                self._post_answer(request, None, e)
            return
        except Exception as e:
            log.exception("request %s failed", request.id)
            self._post_answer(request, None, InternalError(f"{type(e).__name__}: {e}"))
            return
        failpoints.hit("request.made")
        self._conclude(request, point, savepoint, began)

    def _refuse(self, request: Request) -> None:
        """Withdraws a request to an older run; leaves one to a newer run open, which has fenced this one."""
        if request.generation < self._generation:
            log.info("request %s is withdrawn: it is for the run of generation %d", request.id, request.generation)
            self._post_answer(request, None, None, WITHDRAWN)

    def _conclude(
        self, request: Request, point: PublishedCheckpoint, savepoint: StoredSavepoint | None, began: float
    ) -> None:
        """Stores the answer of a request that was carried out, and completes its savepoint or stop.

        Args:
            point: the checkpoint that the request got.
            savepoint: the savepoint that the request asked for, if any.
            began: when the request was begun, in seconds of the monotonic clock.
        """
        counts = self._post_answer(request, savepoint, None, at=point.checkpoint)
        if request.kind is RequestKind.STOP and counts.status == DONE:
            # Not before: if the stop was withdrawn meanwhile, its requester knows that the run continues.
            # A user's stop is not undone by the newer run that has requested one, too.
            self.stopped = TAKEN_OVER if request.takes_over and self.stopped != STOPPED else STOPPED
        if savepoint is not None:
            # If another answer was first, the requester never learned of this savepoint, and it is removed.
            duration_ms = round((self._root.clock.monotonic() - began) * 1000, 1)
            finish_savepoint(self._root, savepoint, counts, duration_ms)
            if counts.savepoint_id == savepoint.document.id:
                self._observer.on_savepoint(savepoint.document)
        elif counts.status == DONE and request.kind is RequestKind.STOP:
            self._record_stop(request, point)

    def _point_for(self, request: Request, point: PublishedCheckpoint) -> PublishedCheckpoint:
        """Returns the checkpoint that a request gets: `point`, or that of a batch of its own."""
        if request.drain and request.savepoint:
            return self._batches.drain()
        return self._batches.take_full_snapshot() if request.full else point

    def _record_stop(self, request: Request, point: PublishedCheckpoint) -> None:
        """Adds a stop without a savepoint to the history; with one, the savepoint's record shows the stop."""
        checkpoint_id = point.checkpoint.id if point.checkpoint else 0
        write_action(
            self._root.storage,
            ActionRecord(
                seq=checkpoint_id,
                kind="stop",
                ended_at=self._root.clock.now().isoformat(timespec="milliseconds"),
                by=request.by,
                requested_by=request.requested_by,
                reason=request.reason,
                note=request.note,
                facts={"generation": self._generation, "request_id": request.id},
            ),
            request.id,
        )

    def _is_retried(self, request: Request, point: PublishedCheckpoint) -> bool:
        """Returns whether the next barrier or a newer run serves the request again.

        That is so when it failed only because its checkpoint was released before it was pinned, or because a newer run
        claimed the job. After too many attempts the requester gets the error.
        """
        head = self._root.head()
        if head.entry.generation != self._generation:
            return True
        if point.checkpoint is None or point.checkpoint in self._root.checkpoints.list_kept(head):
            return False
        return self._poller.retry(request)

    def _make_savepoint(self, request: Request, point: PublishedCheckpoint) -> StoredSavepoint | None:
        if not request.savepoint:
            return None
        if point.checkpoint is None:
            raise DataError(
                "the job has no checkpoint to make a savepoint of", hint="request it again after the first batch"
            )
        return make_savepoint(
            self._root,
            SavepointSpec(
                name=request.savepoint,
                checkpoint=point.checkpoint,
                sinks=point.sinks,
                origin=request.origin,
                by=request.by,
                requested_by=request.requested_by,
                reason=request.reason,
                note=request.note,
                request=request.id,
                drained=request.drain,
                format=request.format or self._default_format(request.kind),
                settings=self._settings,
                generation=self._generation,
            ),
            self._batches.savepoint_workers,
        )

    def _default_format(self, kind: RequestKind) -> SavepointFormat:
        return SavepointFormat(self._settings.stop_format) if kind is RequestKind.STOP else SavepointFormat.NATIVE

    def _post_answer(
        self,
        request: Request,
        savepoint: StoredSavepoint | None,
        error: StateflowError | None,
        status: str = DONE,
        at: EntryRef | None = None,
    ) -> RequestAnswer:
        """Stores the answer; returns the one that counts, which is another when that was stored first."""
        document = savepoint.document if savepoint else None
        return post_answer(
            self._root.storage,
            RequestAnswer(
                id=request.id,
                status=FAILED if error else status,
                checkpoint_id=document.checkpoint_id if document else at.id if at else 0,
                savepoint_id=document.id if document else "",
                savepoint=savepoint.uri if savepoint else "",
                code=error.code if error else "",
                message=error.sentence if error else "",
                by=self._root.writer,
                at=self._root.clock.now().isoformat(timespec="milliseconds"),
            ),
        )


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
