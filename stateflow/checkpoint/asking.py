"""Asking a job's run for something, waiting for its answer, and taking back what nobody waits for any more."""

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
"""How much the clocks of an asker and a run may differ before a request is withdrawn too early."""


@dataclass(frozen=True)
class Patience:
    """How long to wait for a sign that there is a run at all, the first one and each later one, and for its answer."""

    sign: timedelta
    answer: timedelta


def ask_run(root: JobRoot, asked: Request, patience: Patience) -> Answer | None:
    """The run's answer; None when there is no run.

    Asking again with the same id, as a retried task does, gives the same answer. What was withdrawn or refused by then
    is asked anew, under an id that is made from the first.

    Raises RequestTimeout when the run did not answer in time, DataError when it could not do it.
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
            # The run may have died since. One that lives says so again.
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
        # An earlier try that died has asked it, and no run will look at it any more.
        if _withdraw(root, posted.id).status == DONE:
            return posted


def is_same(asked: str, first: str) -> bool:
    """Whether `asked` is the id of a request, or one under which that was asked anew."""
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
            "the request was withdrawn before the run got to it", hint="ask again", id=given.id
        )
    raise DataError(f"the run could not do it: {given.message}", hint="ask again when the reason is gone",
                    code=given.code)  # fmt: skip
