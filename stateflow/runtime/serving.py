"""What outsiders ask of a run: savepoints, made beside the batches that go on, a checkpoint, and a stop."""

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
from stateflow.checkpoint.documents import Answer, EntryRef, PublishedOutput, Request, RequestKind
from stateflow.checkpoint.history import ActionRecord, write_action
from stateflow.checkpoint.jobroot import JobRoot
from stateflow.checkpoint.requests import (
    DONE,
    FAILED,
    WITHDRAWN,
    acknowledge,
    answer,
    is_expired,
    is_seen,
    open_requests,
)
from stateflow.checkpoint.savepoint import Order, make_savepoint
from stateflow.checkpoint.savepoint_cleanup import settle_savepoint
from stateflow.checkpoint.stored_savepoints import StoredSavepoint
from stateflow.errors import DataError, Fenced, InternalError, StateflowError
from stateflow.runtime.background import BackgroundWork, Work

log = logging.getLogger(__name__)

_MOST_OUTRUN = 20
"""So often a request is served again because its checkpoint was let go before it was pinned."""


@dataclass(frozen=True)
class Point:
    """A committed and published checkpoint, and where every sink stands with it."""

    checkpoint: EntryRef | None
    sinks: dict[str, PublishedOutput]


class BatchesOnRequest(Protocol):
    """Batches without rows that somebody asked for; each returns where the job stands then, committed and published."""

    def drain(self) -> Point:
        """Fires every event-time timer."""

    def take_full(self) -> Point:
        """Stores all state anew."""


class RequestDesk:
    """Looks for requests now and then, and serves them between two batches.

    Savepoints are made in a thread: batches go on meanwhile, and the checkpoint is pinned in the log. The pin ends with
    the next CLAIM, so a savepoint that dies with the run leaves nothing that anybody must clean by hand.

    Args:
        generation: of the run.
        interval: between two looks.
        batches: what runs batches of its own.
        background: tries what may fail without harm to the run.
    """

    def __init__(
        self, root: JobRoot, generation: int, interval: timedelta, batches: BatchesOnRequest,
        background: BackgroundWork,
    ) -> None:  # fmt: skip
        self.stopped = False
        self._root = root
        self._generation = generation
        self._interval = interval
        self._batches = batches
        self._background = background
        self._outrun: Counter[str] = Counter()
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._known: set[str] = set()
        self._waiting: list[Request] = []
        self._watcher = threading.Thread(target=self._watch, name="stateflow-requests", daemon=True)
        self._maker = ThreadPoolExecutor(1, thread_name_prefix="stateflow-savepoint")
        self._making: list[Future[None]] = []

    def open(self, point: Point) -> None:
        """Begins. A stop that an earlier run did not get to answer is carried out before any batch."""
        self._try_to_look()
        self._watcher.start()
        if any(r.kind is RequestKind.STOP for r in self._waiting):
            self.serve(point)

    @property
    def is_waiting(self) -> bool:
        """Whether something was asked for that is not served yet."""
        return bool(self._waiting)

    def serve(self, point: Point) -> None:
        """Serves what is waiting, at a barrier that is committed and published."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for asked in waiting:
            if asked.kind is RequestKind.SAVEPOINT:
                self._making.append(self._maker.submit(self._try_to_answer, asked, point))
            elif asked.kind is RequestKind.STOP:
                # An answer may be stored although the storage reports an error: the run must not go on after that.
                self._answer(asked, point)
            else:
                self._try_to_answer(asked, point)

    def close(self, current: Callable[[], Point]) -> None:
        """Serves what is left, and waits for every savepoint in the making; the run ends.

        Args:
            current: where the job stands. A request may run a batch of its own, and the checkpoint before that may not
                be retained any more when the next request is served.
        """
        # Until nothing is left to do, the watcher goes on telling the askers that there is a run.
        self._try_to_look()
        self._serve_all(current)
        self._end_watch()
        self._try_to_look()
        self._serve_all(current)

    def _serve_all(self, current: Callable[[], Point]) -> None:
        # It ends: each request is served again at most `_MOST_OUTRUN` times.
        while self._waiting or self._making:
            self.serve(current())
            self._wait()

    def _wait(self) -> None:
        making, self._making = self._making, []
        for made in making:
            made.result()

    def abandon(self) -> None:
        """Takes nothing more, and does not wait for long: the run ends anyhow."""
        self._end_watch()
        self._maker.shutdown(wait=False, cancel_futures=True)

    def _end_watch(self) -> None:
        self._ended.set()
        if self._watcher.is_alive():
            self._watcher.join()

    def _watch(self) -> None:
        pause = self._interval
        while not self._ended.wait(pause.total_seconds()):
            self._try_to_look()
            pause = self._background.pause(Work.REQUESTS, self._interval)

    def _try_to_look(self) -> None:
        """What is not found now is found at a later look, or by the next run."""
        self._background.attempt(Work.REQUESTS, self._look, at_once=True)

    def _try_to_answer(self, asked: Request, point: Point) -> None:
        """A request that gets no answer stays open: a later look finds it again, or the next run does."""
        answered = self._background.attempt(Work.REQUESTS, lambda: self._answer(asked, point), at_once=True)
        if not answered:
            with self._lock:
                self._known.discard(asked.id)

    def _look(self) -> None:
        with self._lock:
            for asked in open_requests(self._root.storage):
                # An asker who waits takes our word back now and then, to learn whether there still is a run.
                if not is_seen(self._root.storage, asked.id):
                    acknowledge(self._root.storage, asked.id, self._generation)
                if asked.id not in self._known:
                    self._known.add(asked.id)
                    self._waiting.append(asked)

    def _answer(self, asked: Request, point: Point) -> None:
        clock = self._root.clock
        if is_expired(asked, clock.now()):
            log.warning("request %s is not carried out: nobody waits for it since %s", asked.id, asked.until)
            self._give(asked, None, None, WITHDRAWN)
            return
        began = clock.monotonic()
        try:
            point = self._point_of(asked, point)
            made = self._made(asked, point)
        except Fenced as e:
            # The newer run finds the request open, and serves it.
            log.warning("a request is left to the newer run: %s", e)
            return
        except StateflowError as e:
            if not self._is_outrun(asked, point):
                self._give(asked, None, e)
            return
        except Exception as e:
            log.exception("a request failed")
            self._give(asked, None, InternalError(f"{type(e).__name__}: {e}"))
            return
        failpoints.hit("request.made")
        counts = self._give(asked, made, None, at=point.checkpoint)
        if asked.kind is RequestKind.STOP and counts.status == DONE:
            # Only now: of a stop that was withdrawn meanwhile, the asker was told that nothing happens.
            self.stopped = True
        if made is not None:
            # A withdrawn request, or one that another run answered: whoever asked was not told of this savepoint.
            settle_savepoint(self._root, made, counts, round((clock.monotonic() - began) * 1000, 1))
        elif counts.status == DONE and asked.kind is RequestKind.STOP:
            self._note_stop(asked, point)

    def _point_of(self, asked: Request, point: Point) -> Point:
        """Where what was asked for is to be found: as the job stands, or behind a batch of its own."""
        if asked.drain and asked.savepoint:
            return self._batches.drain()
        return self._batches.take_full() if asked.full else point

    def _note_stop(self, asked: Request, point: Point) -> None:
        """A stop with a savepoint is in the history as that savepoint."""
        at = point.checkpoint.id if point.checkpoint else 0
        write_action(self._root.storage, ActionRecord(
            seq=at, kind="stop", at=self._root.clock.now().isoformat(timespec="milliseconds"), by=asked.by,
            reason=asked.reason, facts={"run": str(self._generation), "request": asked.id},
        ), asked.id)  # fmt: skip

    def _is_outrun(self, asked: Request, point: Point) -> bool:
        """Whether a request failed only because the job went on; then the next barrier or the newer run serves it.

        Not for ever: after `_MOST_OUTRUN` tries the asker gets the error.
        """
        head = self._root.head()
        if head.entry.generation != self._generation:
            return True
        if point.checkpoint is None or point.checkpoint in self._root.kept(head):
            return False
        with self._lock:
            self._outrun[asked.id] += 1
            if self._outrun[asked.id] > _MOST_OUTRUN:
                return False
            self._waiting.append(asked)
        return True

    def _made(self, asked: Request, point: Point) -> StoredSavepoint | None:
        if not asked.savepoint:
            return None
        if point.checkpoint is None:
            raise DataError(
                "the job has no checkpoint to make a savepoint of", hint="ask again after its first batch"
            )
        return make_savepoint(self._root, Order(
            name=asked.savepoint, checkpoint=point.checkpoint, sinks=point.sinks, origin=asked.origin, by=asked.by,
            reason=asked.reason, request=asked.id, drained=asked.drain, generation=self._generation,
        ))  # fmt: skip

    def _give(
        self,
        asked: Request,
        made: StoredSavepoint | None,
        error: StateflowError | None,
        status: str = DONE,
        at: EntryRef | None = None,
    ) -> Answer:
        reached = made.document.checkpoint_id if made else at.id if at else 0
        return answer(self._root.storage, Answer(
            id=asked.id, status=FAILED if error else status,
            checkpoint_id=reached,
            savepoint_id=made.document.id if made else "", savepoint=made.uri if made else "",
            code=error.code if error else "", message=error.sentence if error else "", by=self._root.writer,
            at=self._root.clock.now().isoformat(timespec="milliseconds"),
        ))  # fmt: skip
