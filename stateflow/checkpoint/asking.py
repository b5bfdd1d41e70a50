"""The client side of requests to a job's run: posts a request, waits for its answer, withdraws it on a timeout."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from itertools import count

from msgspec.structs import replace

from stateflow.checkpoint.documents import Answer, Request
from stateflow.checkpoint.jobroot import JobRoot
from stateflow.checkpoint.requests import (
    DONE,
    WITHDRAWN,
    answer,
    forget_seen,
    is_expired,
    is_posted,
    is_seen,
    post,
    read_answer,
)
from stateflow.errors import DataError, RequestTimeout
from stateflow.storage import Storage

_POLL = timedelta(seconds=0.1)
_AGAIN = "-again"
_GRACE = timedelta(minutes=1)
"""How far the clocks of a requester and a run may differ before a request expires too early."""


@dataclass(frozen=True)
class Patience:
    """Time limits of a requester.

    Attributes:
        sign: until a run confirms that it has seen the request, at first and again and again.
        answer: until the run has answered.
    """

    sign: timedelta
    answer: timedelta


def ask_run(root: JobRoot, asked: Request, patience: Patience) -> Answer | None:
    """Posts a request and returns the run's answer; None when there is no run.

    A repeated request with the same id, as a retried task sends, gets the same answer. A request that was withdrawn or
    refused is posted again, under an id derived from the first.

    Raises RequestTimeout when the run did not answer in time, and DataError when the request failed.
    """
    return wait_for_answer(root, post_request(root, asked, patience), patience)


def wait_for_answer(root: JobRoot, asked: Request, patience: Patience) -> Answer | None:
    """The answer to a request that was posted; returns and raises as `ask_run` does."""
    clock = root.clock
    began = signed = clock.monotonic()

    def waited(since: float) -> timedelta:
        return timedelta(seconds=clock.monotonic() - since)

    while (given := read_answer(root.storage, asked.id)) is None:
        if not is_seen(root.storage, asked.id):
            if waited(signed) >= patience.sign:
                given = _withdraw(root, asked.id)
                return None if given.status == WITHDRAWN else _good(given)
        elif waited(began) >= patience.answer:
            given = _withdraw(root, asked.id)
            if given.status == WITHDRAWN:
                raise RequestTimeout("the run did not reach a barrier in time, and the request was withdrawn",
                                     hint="allow more time: --timeout; or take the newest checkpoint: "
                                     "stateflow savepoint create --from-head",
                                     seconds=patience.answer.total_seconds())  # fmt: skip
            break
        elif waited(signed) >= patience.sign:
            # The run may have died since. A live one confirms again.
            forget_seen(root.storage, asked.id)
            signed = clock.monotonic()
        clock.sleep(_POLL)
    return _good(given)


def post_request(root: JobRoot, asked: Request, patience: Patience) -> Request:
    """Posts a request that expires when its requester stops waiting; returns it as it was posted."""
    wait = patience.sign + patience.answer
    until = (root.clock.now() + wait + _GRACE).isoformat(timespec="milliseconds")
    first = asked.id
    while True:
        asked = replace(asked, id=_next_id(root.storage, first), until=until)
        posted = post(root.storage, asked)
        if not is_expired(posted, root.clock.now()):
            return posted
        # An earlier try posted it and died; it has expired, so no run will answer it.
        if _withdraw(root, posted.id).status == DONE:
            return posted


def is_same(asked: str, first: str) -> bool:
    """Whether `asked` is the id `first` of a request, or an id under which that request was posted again."""
    base, again, number = asked.rpartition(_AGAIN)
    return asked == first or (bool(again) and base == first and number.isdigit())


def take_back(root: JobRoot, request: str) -> bool:
    """Withdraws a request that has no answer yet, so that no run carries it out; whether there was one."""
    newest = _next_id(root.storage, request)
    if not is_posted(root.storage, newest) or read_answer(root.storage, newest) is not None:
        return False
    return _withdraw(root, newest).status == WITHDRAWN


def _next_id(storage: Storage, request: str) -> str:
    for number in count(2):
        given = read_answer(storage, request)
        if given is None or given.status == DONE:
            break
        request = f"{request.partition(_AGAIN)[0]}{_AGAIN}{number}"
    return request


def _withdraw(root: JobRoot, request: str) -> Answer:
    at = root.clock.now().isoformat(timespec="milliseconds")
    return answer(root.storage, Answer(id=request, status=WITHDRAWN, by=root.writer, at=at))


def _good(given: Answer) -> Answer:
    if given.status == DONE:
        return given
    if given.status == WITHDRAWN:
        raise RequestTimeout(
            "the request was withdrawn before the run answered it", hint="repeat the request", id=given.id
        )
    raise DataError(f"the request failed: {given.message}", hint="fix the cause, then repeat the request",
                    code=given.code)  # fmt: skip
