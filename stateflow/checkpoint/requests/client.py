"""The client side of requests to a job's run: posts a request, waits for its answer, withdraws it on a timeout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import count

from msgspec.structs import replace

from stateflow.checkpoint.log.documents import Answer, Request
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.requests.mailbox import (
    DONE,
    WITHDRAWN,
    clear_acknowledgement,
    is_acknowledged,
    is_expired,
    is_posted,
    post,
    post_answer,
    read_answer,
    read_request,
)
from stateflow.errors import DataError, RequestTimeout

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

    def wait(self, request: Request) -> Answer | None:
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

    def _give_up_waiting(self, request: Request) -> Answer:
        """Withdraws a request on its timeout; returns the run's answer if that was written first."""
        answer = self._withdraw(request.id)
        if answer.status == WITHDRAWN:
            raise RequestTimeout(
                "the run did not reach a barrier in time, and the request was withdrawn",
                hint="allow more time: --timeout; or take the newest checkpoint: "
                "stateflow savepoint create --from-head",
                seconds=self._timeouts.answer.total_seconds(),
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

    def _withdraw(self, request_id: str) -> Answer:
        at = self._root.clock.now().isoformat(timespec="milliseconds")
        return post_answer(self._storage, Answer(id=request_id, status=WITHDRAWN, by=self._root.writer, at=at))


def is_same_request(request_id: str, first: str) -> bool:
    """Returns whether `request_id` is the id `first`, or an id under which that request was posted again."""
    base, repeat, number = request_id.rpartition(_REPEAT)
    return request_id == first or (bool(repeat) and base == first and number.isdigit())


def _checked(answer: Answer) -> Answer:
    if answer.status == DONE:
        return answer
    if answer.status == WITHDRAWN:
        raise RequestTimeout(
            "the request was withdrawn before the run answered it", hint="repeat the request", id=answer.id
        )
    raise DataError(
        f"the request failed: {answer.message}", hint="fix the cause, then repeat the request", code=answer.code
    )
