"""Reads answers of WebHDFS servers, which are not trusted: no text of an answer is used."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec
import requests
from urllib3.exceptions import HTTPError

from stateflow.clock import Clock
from stateflow.http.answers import BadAnswer, content
from stateflow.types.bounded_json import decode_json

_ANSWER_LIMIT = 32 << 20
"""Bytes of an answer that are read at most: a folder of 100,000 files has about as many."""
_REFUSAL_LIMIT = 64 << 10
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
            name = msgspec.json.decode(content(answer, clock, _REFUSAL_LIMIT), type=_Refusal).RemoteException.exception
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
        return decode_json(kind, content(answer, clock, _ANSWER_LIMIT))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise BadAnswer(f"the answer has no {kind.__name__.strip('_')}") from None
