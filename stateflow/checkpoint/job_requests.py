"""Requests to a job's run and their answers, as small create-only files in ``requests/``.

`RequestClient` is the side of a requester: it posts a request, waits for its answer, and withdraws it on a timeout.

A request is open until `<id>.done` exists. Its first writer decides the outcome: the run with its answer, or the
requester by withdrawing. `<id>.seen` only acknowledges that a run has seen the request.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import count, islice
from typing import TypeVar

from msgspec.structs import replace

from stateflow.checkpoint.log.documents import Request, RequestAnswer
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import seal, unseal
from stateflow.clock import is_timestamp, to_milliseconds
from stateflow.errors import CorruptFile, DataError, MissingFile, RequestTimeout, StorageError
from stateflow.helpers import check_name
from stateflow.storage import PutResult, Storage
from stateflow.storage.paths import REQUESTS, request_done_key, request_key, request_seen_key

log = logging.getLogger(__name__)


M = TypeVar("M", Request, RequestAnswer)
DONE, FAILED, WITHDRAWN = "done", "failed", "withdrawn"
KEEP = 1000
"""How many answered requests are kept."""
LIMIT = 128 << 10
"""Size of the largest request or answer, in bytes."""
_MOST_READ = 500
"""How many open requests are read at once; the others are read after these were answered."""
_TRIM_FRACTION = 10
"""Finding the oldest answers requires reading all, so a tenth of them is deleted at once."""
_MAX_MESSAGE = 10_000
"""Maximum number of characters of an answer's error message."""


def post(storage: Storage, request: Request) -> Request:
    """Posts a request; returns the stored request with its id, which is an earlier one if the id was posted before.

    Raises TooLarge for a request that no run could read, and StorageError when the storage does not confirm it.
    """
    check_name("a request's id", request.id)
    data, _ = seal(request, LIMIT)
    if storage.put_new(request_key(request.id), data) is not PutResult.CREATED:
        found = _read(storage, request_key(request.id), Request)
        if found is None:
            raise StorageError(
                "the storage does not confirm whether a request was written", hint="try again", id=request.id
            )
        return found
    return request


def open_requests(storage: Storage) -> list[Request]:
    """Returns the requests without an answer, oldest first. Damaged requests are logged and skipped."""
    keys = {blob.key for blob in storage.list(REQUESTS)}
    ids = [k.removeprefix(REQUESTS) for k in sorted(keys) if not k.endswith((".seen", ".done"))]
    found = islice(_readable(storage, (i for i in ids if request_done_key(i) not in keys)), _MOST_READ)
    return sorted(found, key=lambda r: (r.at, r.id))


def _readable(storage: Storage, ids: Iterable[str]) -> Iterator[Request]:
    for request_id in ids:
        try:
            found = _read(storage, request_key(request_id), Request)
        except DataError as e:
            _log_skipped(str(e))
        else:
            if found is not None:
                yield found


def find_damaged_requests(storage: Storage) -> list[str]:
    """Returns the keys of open requests that cannot be read: runs skip them, and never answer or delete them."""
    keys = {blob.key for blob in storage.list(REQUESTS)}
    damaged = []
    for key in sorted(k for k in keys if not k.endswith((".seen", ".done")) and f"{k}.done" not in keys):
        try:
            _read(storage, key, Request)
        except DataError:
            damaged.append(key)
    return damaged


@lru_cache(maxsize=1000)
def _log_skipped(reason: str) -> None:
    """Logs a damaged request once per process: a run reads the open requests every second."""
    log.warning("skipped a damaged request: %s", reason)


def acknowledge(storage: Storage, request_id: str, generation: int) -> None:
    """Confirms to the requester that a run has seen the request."""
    storage.put_new(request_seen_key(request_id), f"{generation}\n".encode())


def clear_acknowledgement(storage: Storage, request_id: str) -> None:
    """Deletes the acknowledgement of a request; a live run acknowledges the request again."""
    storage.delete([request_seen_key(request_id)])


def is_expired(request: Request, now: datetime) -> bool:
    """Returns whether the requester has stopped waiting."""
    return bool(request.until) and now > datetime.fromisoformat(request.until)


def is_acknowledged(storage: Storage, request_id: str) -> bool:
    """Returns whether a run has seen the request."""
    return storage.size(request_seen_key(request_id)) is not None


def is_posted(storage: Storage, request_id: str) -> bool:
    """Returns whether the request was posted."""
    return storage.size(request_key(request_id)) is not None


def post_answer(storage: Storage, given: RequestAnswer) -> RequestAnswer:
    """Writes an answer; returns the answer that counts, which is another one if that was written first.

    Raises StorageError when the storage does not confirm it.
    """
    if len(given.message) > _MAX_MESSAGE:
        given = replace(given, message=given.message[:_MAX_MESSAGE] + "…")
    data, _ = seal(given, LIMIT)
    if storage.put_new(request_done_key(given.id), data) is PutResult.CREATED:
        return given
    found = read_answer(storage, given.id)
    if found is None:
        raise StorageError("the storage does not confirm whether an answer was written", hint="try again", id=given.id)
    return found


def read_request(storage: Storage, request_id: str) -> Request | None:
    """Returns a posted request; None without one."""
    return _read(storage, request_key(request_id), Request)


def read_answer(storage: Storage, request_id: str) -> RequestAnswer | None:
    """Returns the answer to a request; None while the request is open."""
    return _read(storage, request_done_key(request_id), RequestAnswer)


def trim_requests(storage: Storage, keep: int = KEEP) -> None:
    """Deletes all but the newest `keep` answered requests, once there are a tenth more."""
    keys = [blob.key for blob in storage.list(REQUESTS)]
    ids = [k.removeprefix(REQUESTS).removesuffix(".done") for k in keys if k.endswith(".done")]
    if len(ids) <= keep + keep // _TRIM_FRACTION:
        return
    answers = sorted(_readable_answers(storage, ids), key=lambda a: (a.at, a.id))
    for old in answers[: len(answers) - keep]:
        # Delete the answer last: without it the request would be open again.
        storage.delete([request_seen_key(old.id), request_key(old.id)])
        storage.delete([request_done_key(old.id)])


def _readable_answers(storage: Storage, ids: Iterable[str]) -> Iterator[RequestAnswer]:
    for request_id in ids:
        try:
            if (found := read_answer(storage, request_id)) is not None:
                yield found
        except DataError as e:
            _log_skipped(str(e))


def _read(storage: Storage, key: str, kind: type[M]) -> M | None:
    try:
        found = unseal(storage.get(key, LIMIT), kind, key)[0]
    except MissingFile:
        return None
    # The answer to a request with another id would not answer it, so each run would serve it again, without an end.
    if key not in (request_key(found.id), request_done_key(found.id)):
        raise CorruptFile("a request or answer has another id than its file", file=key, id=found.id[:100])
    for field, text in (("at", found.at), ("until", found.until if isinstance(found, Request) else "")):
        if text and not is_timestamp(text):
            raise CorruptFile("a time in a request or answer is not valid", file=key, field=field)
    return found


_POLL = timedelta(seconds=0.1)
_REPEAT = "-again"
_CLOCK_SKEW = timedelta(minutes=1)
"""Tolerated difference between the clocks of a requester and a run; a larger one makes requests expire early."""


@dataclass(frozen=True)
class RequestTimeouts:
    """Time limits of a requester.

    Attributes:
        acknowledge: how long a run may take to confirm that it has seen the request, initially and on each re-check.
        answer: how long a run may take to answer.
    """

    acknowledge: timedelta = timedelta(seconds=5)
    answer: timedelta = timedelta(minutes=10)


class RequestClient:
    """Submits requests to a job's run, waits for their answers, and withdraws them.

    Args:
        root: the job root whose mailbox carries the requests.
        timeouts: time limits of every request of this client.
    """

    def __init__(self, root: JobRoot, timeouts: RequestTimeouts = RequestTimeouts()) -> None:
        self._root = root
        self._storage = root.storage
        self._timeouts = timeouts

    def submit(self, request: Request) -> Request:
        """Posts a request that expires when this client would stop waiting; returns it as it was posted.

        A request with the same id as an earlier one, as a retried task submits, returns the earlier one. A request
        that was withdrawn or refused is posted again, under an id derived from the first.

        Raises:
            TooLarge: the request exceeds what a run reads.
            StorageError: the storage does not confirm the request.
        """
        wait = self._timeouts.acknowledge + self._timeouts.answer
        until = (self._root.clock.now() + wait + _CLOCK_SKEW).isoformat(timespec="milliseconds")
        first = request.id
        while True:
            request = replace(request, id=self._next_id(first), until=until)
            posted = post(self._storage, request)
            if not is_expired(posted, self._root.clock.now()):
                return posted
            # An earlier attempt posted it and died; it has expired, so no run will answer it.
            if self._withdraw(posted.id).status == DONE:
                return posted

    def wait(self, request: Request) -> RequestAnswer | None:
        """Waits for the answer to a submitted request; returns None when no run has acknowledged it in time.

        Raises:
            RequestTimeout: the run did not answer in time, or the request was withdrawn.
            DataError: the run answered that the request failed.
        """
        clock = self._root.clock
        submitted_at = checked_at = clock.monotonic()
        while (answer := read_answer(self._storage, request.id)) is None:
            if not is_acknowledged(self._storage, request.id):
                if self._elapsed(checked_at) >= self._timeouts.acknowledge:
                    answer = self._withdraw(request.id)
                    return None if answer.status == WITHDRAWN else _checked(answer)
            elif self._elapsed(submitted_at) >= self._timeouts.answer:
                return self._give_up_waiting(request)
            elif self._elapsed(checked_at) >= self._timeouts.acknowledge:
                # The run may have died since it acknowledged. A live one acknowledges again.
                clear_acknowledgement(self._storage, request.id)
                checked_at = clock.monotonic()
            clock.sleep(_POLL)
        return _checked(answer)

    def withdraw(self, request_id: str) -> bool:
        """Withdraws a request that has no answer yet, so that no run carries it out; returns whether there was one."""
        newest = self._next_id(request_id)
        if not is_posted(self._storage, newest) or read_answer(self._storage, newest) is not None:
            return False
        return self._withdraw(newest).status == WITHDRAWN

    def is_for_any_run(self, request_id: str) -> bool:
        """Returns whether this request was posted, by an earlier try, without the run that it is for."""
        posted = (read_request(self._storage, each) for each in self._ids(request_id))
        return any(request is not None and not request.generation for request in posted)

    def _give_up_waiting(self, request: Request) -> RequestAnswer:
        """Withdraws a request on its timeout; returns the run's answer if that was written first."""
        answer = self._withdraw(request.id)
        if answer.status == WITHDRAWN:
            raise RequestTimeout(
                "the run did not reach a barrier in time, and the request was withdrawn",
                hint="allow more time: --timeout; or take the newest checkpoint: "
                "stateflow savepoint create --from-head",
                timeout_ms=to_milliseconds(self._timeouts.answer.total_seconds()),
            )
        return _checked(answer)

    def _elapsed(self, since: float) -> timedelta:
        return timedelta(seconds=self._root.clock.monotonic() - since)

    def _next_id(self, request_id: str) -> str:
        """Returns the first id of this request that was neither withdrawn nor refused."""
        *_, newest = self._ids(request_id)
        return newest

    def _ids(self, request_id: str) -> Iterator[str]:
        """Yields the ids of this request, up to the first one that was neither withdrawn nor refused."""
        for number in count(2):
            yield request_id
            answer = read_answer(self._storage, request_id)
            if answer is None or answer.status == DONE:
                return
            request_id = f"{request_id.partition(_REPEAT)[0]}{_REPEAT}{number}"

    def _withdraw(self, request_id: str) -> RequestAnswer:
        at = self._root.clock.now().isoformat(timespec="milliseconds")
        return post_answer(self._storage, RequestAnswer(id=request_id, status=WITHDRAWN, by=self._root.writer, at=at))


def is_same_request(request_id: str, first: str) -> bool:
    """Returns whether `request_id` is the id `first`, or an id under which that request was posted again."""
    base, repeat, number = request_id.rpartition(_REPEAT)
    return request_id == first or (bool(repeat) and base == first and number.isdigit())


def _checked(answer: RequestAnswer) -> RequestAnswer:
    if answer.status == DONE:
        return answer
    if answer.status == WITHDRAWN:
        raise RequestTimeout(
            "the request was withdrawn before the run answered it", hint="repeat the request", id=answer.id
        )
    raise DataError(
        f"the request failed: {answer.message}", hint="fix the cause, then repeat the request", code=answer.code
    )
