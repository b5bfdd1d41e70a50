"""Requests to a job's run and their answers, as small create-only files in ``requests/``.

A request is open until `<id>.done` exists. Its first writer decides the outcome: the run with its answer, or the
requester by withdrawing. `<id>.seen` only acknowledges that a run has seen the request.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import lru_cache
from itertools import islice
from typing import TypeVar

from msgspec.structs import replace

from stateflow.checkpoint.log.documents import Answer, Request
from stateflow.checkpoint.log.sealed_json import seal, unseal
from stateflow.clock import is_timestamp
from stateflow.errors import CorruptFile, DataError, MissingFile, StorageError
from stateflow.ids import check_name
from stateflow.storage import PutResult, Storage
from stateflow.storage.paths import REQUESTS, request_done, request_key, request_seen

log = logging.getLogger(__name__)

M = TypeVar("M", Request, Answer)
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
    found = islice(_readable(storage, (i for i in ids if request_done(i) not in keys)), _MOST_READ)
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


def damaged_requests(storage: Storage) -> list[str]:
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
    storage.put_new(request_seen(request_id), f"{generation}\n".encode())


def clear_acknowledgement(storage: Storage, request_id: str) -> None:
    """Deletes the acknowledgement of a request; a live run acknowledges the request again."""
    storage.delete([request_seen(request_id)])


def is_expired(request: Request, now: datetime) -> bool:
    """Returns whether the requester has stopped waiting."""
    return bool(request.until) and now > datetime.fromisoformat(request.until)


def is_acknowledged(storage: Storage, request_id: str) -> bool:
    """Returns whether a run has seen the request."""
    return storage.size(request_seen(request_id)) is not None


def is_posted(storage: Storage, request_id: str) -> bool:
    """Returns whether the request was posted."""
    return storage.size(request_key(request_id)) is not None


def post_answer(storage: Storage, given: Answer) -> Answer:
    """Writes an answer; returns the answer that counts, which is another one if that was written first.

    Raises StorageError when the storage does not confirm it.
    """
    if len(given.message) > _MAX_MESSAGE:
        given = replace(given, message=given.message[:_MAX_MESSAGE] + "…")
    data, _ = seal(given, LIMIT)
    if storage.put_new(request_done(given.id), data) is PutResult.CREATED:
        return given
    found = read_answer(storage, given.id)
    if found is None:
        raise StorageError("the storage does not confirm whether an answer was written", hint="try again", id=given.id)
    return found


def read_request(storage: Storage, request_id: str) -> Request | None:
    """Returns a posted request; None without one."""
    return _read(storage, request_key(request_id), Request)


def read_answer(storage: Storage, request_id: str) -> Answer | None:
    """Returns the answer to a request; None while the request is open."""
    return _read(storage, request_done(request_id), Answer)


def trim_requests(storage: Storage, keep: int = KEEP) -> None:
    """Deletes all but the newest `keep` answered requests, once there are a tenth more."""
    keys = [blob.key for blob in storage.list(REQUESTS)]
    ids = [k.removeprefix(REQUESTS).removesuffix(".done") for k in keys if k.endswith(".done")]
    if len(ids) <= keep + keep // _TRIM_FRACTION:
        return
    answers = sorted(_readable_answers(storage, ids), key=lambda a: (a.at, a.id))
    for old in answers[: len(answers) - keep]:
        # Delete the answer last: without it the request would be open again.
        storage.delete([request_seen(old.id), request_key(old.id)])
        storage.delete([request_done(old.id)])


def _readable_answers(storage: Storage, ids: Iterable[str]) -> Iterator[Answer]:
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
    if key not in (request_key(found.id), request_done(found.id)):
        raise CorruptFile("a request or answer has another id than its file", file=key, id=found.id[:100])
    for field, text in (("at", found.at), ("until", found.until if isinstance(found, Request) else "")):
        if text and not is_timestamp(text):
            raise CorruptFile("a time in a request or answer is not valid", file=key, field=field)
    return found
