"""An answer of an endpoint: what it follows from, how current it is, and the answers that are kept."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from starlette.datastructures import Headers
from starlette.responses import Response

from stateflow.errors import (
    ConfigError,
    InternalError,
    NotYetAvailable,
    StateflowError,
    StorageError,
    Unauthorized,
    UnknownJob,
)
from stateflow.helpers import DaemonExecutor
from stateflow.outputs import ErrorReport, Timestamp, encode_json, error_report
from stateflow.ui.openapi import API, ApiError
from stateflow.ui.requests import Call
from stateflow.ui.roots import CatalogJob, Reading
from stateflow.ui.snapshots import Extent, Snapshot

log = logging.getLogger(__name__)

_STATUS: Mapping[type[StateflowError], int] = {
    Unauthorized: 401,
    UnknownJob: 404,
    ConfigError: 422,
    StorageError: 503,
    NotYetAvailable: 503,
}
_THREADS = 4
"""Answers that are made concurrently."""
_WAITING = 256
"""Answers that are being made, or wait for it: the request of a client that has gone away stays."""
_LARGEST_CACHE = 32 << 20
"""Bytes of answers that are kept."""
_OVERHEAD = 2048
"""What an answer takes besides its body, in bytes: many small ones must not fill the memory."""

V = TypeVar("V")


@dataclass(frozen=True)
class Freshness:
    """How current an object is.

    Attributes:
        history_complete: whether all records of the history were read, and for a journal all actions of persons.
            Otherwise older ones are missing, until they are read.
        history_truncated: whether the history has older records than those that are ever read.
        last_read_at: if the job root cannot be read now, when it was last read; null if it is current, and before the
            first time.
        problem: why the job root cannot be read now; null if it is current.
    """

    history_complete: bool
    history_truncated: bool
    last_read_at: Timestamp
    problem: ErrorReport | None


def freshness_of(snapshot: Snapshot | None, *readings: Reading[object], extent: Extent = Extent.WHOLE) -> Freshness:
    """Returns how current an object is that was made of an extent of a snapshot and of these readings."""
    failed = next((each for each in readings if each.problem is not None), None)
    complete, truncated = (snapshot.extent >= extent, snapshot.truncated) if snapshot else (False, False)
    if failed is None or failed.problem is None:
        return Freshness(complete, truncated, "", None)
    return Freshness(complete, truncated, failed.read_at, error_report(failed.problem))


class Refused(Exception):
    """An error with a status of its own."""

    def __init__(self, status: int, error: StateflowError) -> None:
        super().__init__(str(error))
        self.status = status
        self.error = error


@dataclass(frozen=True)
class Answer:
    """An answer of an endpoint, before it is made.

    Attributes:
        versions: what the answer follows from, apart from the address and the program.
        make: makes the answer: an object for JSON, or the text of a table.
    """

    versions: Sequence[str]
    make: Callable[[], object]


Handler = Callable[[Call], Awaitable[Answer]]
"""Answers the requests to an endpoint."""


def value_of(reading: Reading[V], job: CatalogJob) -> V:
    """Returns the value of a call that the parameters of a request decide; an earlier one while the storage fails.

    Raises the error of the call, with the status 422 if the storage has answered: another value may do.
    """
    problem = reading.problem
    is_of_storage = isinstance(problem, StorageError | NotYetAvailable | InternalError)
    if reading.value is not None and (problem is None or is_of_storage):
        return reading.value
    if problem is None:
        raise NotYetAvailable("the answer is not made yet", hint="ask again", job=job.id)
    if is_of_storage:
        raise problem
    raise Refused(422, problem)


def version_of(job: CatalogJob, reading: Reading[Snapshot]) -> str:
    """Identifies what an answer has from a job root."""
    return f"{job.id} {job.job_root} {reading.value.version if reading.value else ''} {state_of(reading)}"


def state_of(reading: Reading[object]) -> str:
    """Identifies whether a reading is current, and since when it is not."""
    return f"{reading.read_at} {reading.problem}" if reading.problem else str(reading.value is not None)


def matches(headers: Headers, tag: str) -> bool:
    """Returns whether the client has the answer with this tag."""
    given = [each.strip().removeprefix("W/") for each in headers.get("if-none-match", "").split(",")]
    return f'"{tag}"' in given


def encode(made: object) -> bytes:
    """Returns the body of an answer: JSON, or a text as it is."""
    # Bytes, because a text that a user wrote may have lone surrogates, which JSON escapes.
    return made.encode("utf-8", "replace") if isinstance(made, str) else encode_json(made).encode()


def error_response(error: Exception) -> Response:
    """Returns the answer to a request that failed."""
    status: int | None = None
    if isinstance(error, Refused):
        status, error = error.status, error.error
    if not isinstance(error, StateflowError):
        log.error("unexpected error while answering a request", exc_info=error)
        error = InternalError("the answer could not be made", hint="report this with the log of the server")
    if status is None:
        status = next((_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS), 500)
    headers = {"cache-control": "no-store", **({"www-authenticate": "Bearer"} if status == 401 else {})}
    body = encode_json(ApiError(error_report(error)))
    return Response(body, status, headers, media_type="application/json")


def nothing_here(status: int) -> Response:
    """Returns the answer to a request for a path that does not exist."""
    hint = f"{API}/openapi.json lists the paths"
    return error_response(Refused(status, ConfigError("there is nothing at this path", hint=hint)))


class Bodies:
    """Makes the bodies of answers in threads, each one once, and keeps the newest, bounded in bytes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads = DaemonExecutor(_THREADS, "stateflow-ui-answers")
        self._making: dict[str, Future[bytes]] = {}
        self._made: OrderedDict[str, bytes] = OrderedDict()
        self._size = 0

    def body(self, tag: str, answer: Answer) -> Future[bytes]:
        """Returns the body with this tag. All requests during the call get it, although some of them may be cancelled.

        Raises NotYetAvailable if too many others are to be made.
        """
        with self._lock:
            if tag in self._made:
                self._made.move_to_end(tag)
                known = Future[bytes]()
                known.set_result(self._made[tag])
                return known
            if tag in self._making:
                return self._making[tag]
            if len(self._making) >= _WAITING:
                raise NotYetAvailable("too many answers are to be made", hint="ask again later", waiting=_WAITING)
            making = self._making[tag] = self._threads.submit(lambda: encode(answer.make()))
        # Without the lock: it is called at once if the body is made already.
        making.add_done_callback(lambda made: self._keep(tag, made))
        return making

    def _keep(self, tag: str, made: Future[bytes]) -> None:
        with self._lock:
            del self._making[tag]
            if made.exception() is not None:
                return
            self._made[tag] = made.result()
            self._size += _size_of(made.result())
            while self._size > _LARGEST_CACHE:
                _, oldest = self._made.popitem(last=False)
                self._size -= _size_of(oldest)


def _size_of(body: bytes) -> int:
    return len(body) + _OVERHEAD
