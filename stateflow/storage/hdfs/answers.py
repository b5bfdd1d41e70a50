"""Reads answers of WebHDFS servers, which are not trusted: limits size and duration, and uses no text of an answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeVar

import msgspec
import requests
from urllib3 import HTTPResponse
from urllib3.exceptions import HTTPError

from stateflow.clock import Clock
from stateflow.types.bounded_json import decode_json

_CHUNK = 1 << 20
_ANSWER_LIMIT = 32 << 20
"""Bytes of an answer that are read at most: a folder of 100,000 files has about as many."""
_REFUSAL_LIMIT = 64 << 10
_TRANSFER_SECONDS, _BYTES_PER_SECOND = 60.0, 10_000
"""A transfer fails after this time, plus a second for each so many bytes."""
_EXCEPTION = re.compile(r"[A-Za-z]{1,100}")

T = TypeVar("T")


class HdfsRefusal(Exception):
    """An answer that reports a failure.

    Args:
        status: HTTP status.
        exception: name of the Java exception without its package; empty if the answer names none.
    """

    def __init__(self, status: int, exception: str) -> None:
        super().__init__(f"HTTP status {status} {exception}".rstrip())
        self.status = status
        self.exception = exception

    @property
    def is_missing(self) -> bool:
        """Whether the path does not exist, also because it leads through a file."""
        return self.exception in ("FileNotFoundException", "ParentNotDirectoryException")


class BadAnswer(Exception):
    """An answer is too long, too slow, or not of the documented form."""


class _RemoteException(msgspec.Struct):
    exception: str = ""


class _Refusal(msgspec.Struct):
    RemoteException: _RemoteException


def successful(answer: requests.Response, clock: Clock) -> requests.Response:
    """Returns the answer: a success or a redirection. Otherwise closes it and raises HdfsRefusal."""
    if answer.status_code < 300 or answer.is_redirect:
        return answer
    with answer:
        try:
            name = msgspec.json.decode(_content(answer, _REFUSAL_LIMIT, clock), type=_Refusal).RemoteException.exception
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, BadAnswer, HTTPError):
            name = ""
        raise HdfsRefusal(answer.status_code, name if _EXCEPTION.fullmatch(name) else "")


def final(answer: requests.Response, clock: Clock) -> requests.Response:
    """Returns the answer: a success. Otherwise closes it and raises HdfsRefusal, also for a redirection."""
    if answer.is_redirect:
        answer.close()
        raise HdfsRefusal(answer.status_code, "")
    return successful(answer, clock)


def decoded(answer: requests.Response, kind: type[T], clock: Clock) -> T:
    """Returns the document in an answer. Raises BadAnswer if it is too long, too slow, or of another form."""
    try:
        return decode_json(kind, _content(answer, _ANSWER_LIMIT, clock))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise BadAnswer(f"the answer has no {kind.__name__.strip('_')}") from None


def _content(answer: requests.Response, limit: int, clock: Clock) -> bytes:
    return b"".join(pieces(answer, clock, limit))


def pieces(answer: requests.Response, clock: Clock, limit: int) -> Iterator[bytes]:
    """Yields an answer's bytes as they arrive. Raises BadAnswer if they arrive too slowly, or are more than `limit`."""
    raw, received, started = answer.raw, 0, clock.monotonic()
    assert isinstance(raw, HTTPResponse)
    # Each call returns what one read of the socket gives; a whole chunk could take hours.
    while piece := raw.read1(_CHUNK, decode_content=False):
        received += len(piece)
        if received > limit:
            raise BadAnswer(f"the answer is longer than {limit} bytes")
        if clock.monotonic() - started > _TRANSFER_SECONDS + received / _BYTES_PER_SECOND:
            raise BadAnswer(f"the server sends too slowly: {received} bytes so far")
        yield piece
