"""What outsiders ask of a job's run, and its answers: small create-only files below ``requests/``.

A request is open until `<id>.done` exists. The first to write that decides: the run with its answer, or the asker who
withdraws. `<id>.seen` only tells the asker that there is a run at all.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from stateflow.checkpoint.documents import Answer, Request
from stateflow.checkpoint.envelope import seal, unseal
from stateflow.errors import CorruptFile, MissingFile, StorageError
from stateflow.ids import check_name
from stateflow.storage import PutResult, Storage
from stateflow.storage.paths import REQUESTS, request, request_done, request_seen

log = logging.getLogger(__name__)

T = TypeVar("T", bound=msgspec.Struct)
DONE, FAILED, WITHDRAWN = "done", "failed", "withdrawn"
KEEP = 1000
"""How many answered requests are kept."""
LIMIT = 1 << 20
"""Largest request or answer, in bytes."""
_SPARE = 10
"""Answers are read to find the oldest, so a part of them is removed at once, not one each time: a tenth."""
_MESSAGE = 10_000
"""Characters of an error that an answer has."""


def post(storage: Storage, asked: Request) -> Request:
    """Asks. Returns the request of this id: the same one when it was asked before, as by a retried task.

    Raises TooLarge for one that no run could read.
    """
    check_name("a request's id", asked.id)
    data, _ = seal(asked, LIMIT)
    if storage.put_new(request(asked.id), data) is not PutResult.CREATED:
        found = _read(storage, request(asked.id), Request)
        if found is None:
            raise StorageError(
                "the storage does not say whether a request was written", hint="try again", id=asked.id
            )
        return found
    return asked


def open_requests(storage: Storage) -> list[Request]:
    """Requests without an answer, oldest first. A damaged one is told in the log of this process and left alone."""
    keys = {blob.key for blob in storage.list(REQUESTS)}
    ids = [k.removeprefix(REQUESTS) for k in keys if not k.endswith((".seen", ".done"))]
    found = []
    for request_id in ids:
        if request_done(request_id) not in keys:
            try:
                found.append(_read(storage, request(request_id), Request))
            except CorruptFile as e:
                log.warning("a request is left alone: %s", e)
    return sorted((r for r in found if r), key=lambda r: (r.at, r.id))


def acknowledge(storage: Storage, request_id: str, generation: int) -> None:
    """Tells the asker that a run has seen the request."""
    storage.put_new(request_seen(request_id), f"{generation}\n".encode())


def forget_seen(storage: Storage, request_id: str) -> None:
    """Takes back a run's word that it has seen the request: a run that is there gives it again."""
    storage.delete([request_seen(request_id)])


def is_expired(asked: Request, now: datetime) -> bool:
    """Whether nobody waits for the request any more."""
    if not asked.until:
        return False
    until = datetime.fromisoformat(asked.until)
    return now > (until if until.tzinfo else until.replace(tzinfo=UTC))


def is_seen(storage: Storage, request_id: str) -> bool:
    """Whether some run has seen the request."""
    return storage.size(request_seen(request_id)) is not None


def is_posted(storage: Storage, request_id: str) -> bool:
    """Whether there is such a request."""
    return storage.size(request(request_id)) is not None


def answer(storage: Storage, given: Answer) -> Answer:
    """Writes the answer; returns the one that counts, which is another when somebody was first."""
    if len(given.message) > _MESSAGE:
        given = replace(given, message=given.message[:_MESSAGE] + "…")
    data, _ = seal(given, LIMIT)
    if storage.put_new(request_done(given.id), data) is PutResult.CREATED:
        return given
    found = read_answer(storage, given.id)
    if found is None:
        raise StorageError(
            "the storage does not say whether an answer was written", hint="try again", id=given.id
        )
    return found


def read_answer(storage: Storage, request_id: str) -> Answer | None:
    """What became of a request; None while it is open."""
    return _read(storage, request_done(request_id), Answer)


def trim_requests(storage: Storage, keep: int = KEEP) -> None:
    """Removes all but the newest answered requests."""
    keys = [blob.key for blob in storage.list(REQUESTS)]
    ids = [k.removeprefix(REQUESTS).removesuffix(".done") for k in keys if k.endswith(".done")]
    if len(ids) <= keep + keep // _SPARE:
        return
    answers = sorted((a for i in ids if (a := read_answer(storage, i))), key=lambda a: (a.at, a.id))
    for old in answers[: len(answers) - keep]:
        # The answer goes last: without it the request would be open again.
        storage.delete([request_seen(old.id), request(old.id)])
        storage.delete([request_done(old.id)])


def _read(storage: Storage, key: str, kind: type[T]) -> T | None:
    try:
        return unseal(storage.get(key, LIMIT), kind, key)[0]
    except MissingFile:
        return None
