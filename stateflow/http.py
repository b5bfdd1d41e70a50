"""HTTP to servers that are not trusted: connections with limits, and bounded reading of answers.

``http.client`` limits the length of a line and the number of headers, but not the time that they take, nor the number
of interim answers (100 Continue) and of trailers. urllib3 reads an answer that it retries to its end, waits as long as
its header ``Retry-After`` says, and requests accepts any number of cookies.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from collections.abc import Iterator
from http.cookiejar import DefaultCookiePolicy
from io import BufferedReader
from pathlib import Path
from typing import Any, Self

import requests
import urllib3.connection
import urllib3.exceptions
from requests.adapters import HTTPAdapter
from urllib3 import BaseHTTPResponse, HTTPConnectionPool, HTTPResponse, HTTPSConnectionPool, PoolManager, Retry

from stateflow.clock import Clock

_CHUNK = 1 << 20
_TRANSFER_SECONDS, _BYTES_PER_SECOND = 60.0, 10_000
"""A transfer fails after this time, plus a second for each so many bytes."""


_ANSWER_SECONDS = 20.0
"""How long a server may take to connect, and to send each part of an answer of `exchange_json`."""


class BadAnswer(Exception):
    """An answer is too long, too slow, or not of the documented form."""


class LongAnswer(BadAnswer):
    """An answer has more bytes than its limit."""


class UntrustedServer(BadAnswer):
    """The certificate of a server is not accepted.

    Args:
        authorities: the file with the authorities that are trusted.
        reason: why that file cannot be used, or the certificate is not accepted.
    """

    def __init__(self, authorities: str, reason: str) -> None:
        super().__init__(reason)
        self.authorities = authorities


def read_answer(answer: requests.Response, clock: Clock, limit: int) -> bytes:
    """Returns all bytes of an answer; raises as `stream_answer` does."""
    return b"".join(stream_answer(answer, clock, limit))


def stream_answer(answer: requests.Response, clock: Clock, limit: int) -> Iterator[bytes]:
    """Yields an answer's bytes as they arrive.

    Raises:
        LongAnswer: they are more than `limit`.
        BadAnswer: they arrive too slowly.
    """
    raw, received, started = answer.raw, 0, clock.monotonic()
    assert isinstance(raw, HTTPResponse)
    # Each call returns what one read of the socket gives; a whole chunk could take hours.
    while piece := raw.read1(_CHUNK, decode_content=False):
        received += len(piece)
        if received > limit:
            raise LongAnswer(f"the answer is longer than {limit} bytes")
        if clock.monotonic() - started > _TRANSFER_SECONDS + received / _BYTES_PER_SECOND:
            raise BadAnswer(f"the server sends too slowly: {received} bytes so far")
        yield piece


def exchange_json(
    session: requests.Session, method: str, url: str, clock: Clock, *, body: object = None, limit: int = 8 << 20
) -> tuple[int, object]:
    """Sends a request; returns the status of the answer and its document.

    Args:
        body: the document that the request has; None without one. The session has its Content-Type.
        limit: size of the longest answer, in bytes.

    Raises:
        UntrustedServer: its certificate is not accepted.
        BadAnswer: the server cannot be reached, or its answer is too long, too slow, or is not a document of JSON.
    """
    try:
        sent = None if body is None else json.dumps(body)
        with session.request(method, url, data=sent, stream=True, timeout=_ANSWER_SECONDS) as answer:
            data = read_answer(answer, clock, limit)
            return answer.status_code, json.loads(data) if data else None
    except (requests.RequestException, urllib3.exceptions.HTTPError, http.client.HTTPException, OSError) as e:
        raise _untrusted(session, url, e) or BadAnswer(f"the server cannot be reached: {reason_of_failure(e)}") from e
    except (ValueError, RecursionError) as e:
        raise BadAnswer("the answer is not a document of JSON") from e


def reason_of_failure(error: BaseException) -> str:
    """Returns the class of a failed request's exception, and the error of the operating system or of TLS.

    Texts of other exceptions contain URLs, which may contain a token.
    """
    found = next((each for each in _causes(error) if isinstance(each, OSError) and each.strerror), None)
    name = type(error).__name__
    return f"{name}: {found.strerror}" if found is not None else name


def _causes(error: BaseException) -> Iterator[BaseException]:
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or found.__context__


def _untrusted(session: requests.Session, url: str, error: Exception) -> UntrustedServer | None:
    """Returns the error of a certificate that is not accepted; None for any other failure."""
    if not url.startswith("https:"):
        return None
    # What the session has used: its own file, or one that the environment names.
    used = session.merge_environment_settings(url, {}, None, None, None)["verify"]
    authorities = used if isinstance(used, str) else requests.utils.DEFAULT_CA_BUNDLE_PATH
    try:
        if not Path(authorities).is_dir():
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(authorities)
    except OSError as e:
        return UntrustedServer(authorities, e.strerror or type(e).__name__)
    refused = next((each for each in _causes(error) if isinstance(each, ssl.SSLCertVerificationError)), None)
    return None if refused is None else UntrustedServer(authorities, refused.verify_message)


LINE_BYTES = 256 << 10
"""Longest header of an answer, and longest text between two parts of its body. A header of Hadoop has about 1 kB."""
LINE_SECONDS = 120.0
"""How long a server may take for it: the first byte of a header may take a minute (`HdfsSession`)."""


class BoundedRetry(Retry):
    """A policy that waits as long as it says itself, and does not read the answer that it retries."""

    def get_retry_after(self, response: BaseHTTPResponse) -> float | None:
        return None

    def is_retry(self, method: str, status_code: int, has_retry_after: bool = False) -> bool:
        return super().is_retry(method, status_code, False)

    def increment(self, *args: Any, **kwargs: Any) -> Self:
        following = super().increment(*args, **kwargs)
        answer: BaseHTTPResponse | None = kwargs.get("response")
        if answer is not None:
            answer.close()
        return following


class _BoundedLines:
    """The file of a socket, with limits for lines that follow each other without bytes of a body between them."""

    def __init__(self, file: BufferedReader) -> None:
        self._file = file
        self._left = LINE_BYTES
        self._deadline: float | None = None

    def __getattr__(self, name: str) -> object:
        # Other methods of the file, which return bytes of a body: `stream_answer` limits those.
        if name.startswith("read"):
            self._deadline = None
        found: object = getattr(self._file, name)
        return found

    def readline(self, limit: int) -> bytes:
        """Returns the next line, at most `limit` bytes. Raises HTTPException if there are too many, or too slow."""
        if self._deadline is None:
            self._left, self._deadline = LINE_BYTES, time.monotonic() + LINE_SECONDS  # noqa: TID251
        line = b""
        while len(line) < limit and not line.endswith(b"\n"):
            # At most one read of the socket; readline would wait for the end of the line.
            arrived = self._file.peek(1)
            if not arrived:
                break
            end = arrived.find(b"\n") + 1 or len(arrived)
            line += self._file.read(min(end, limit - len(line)))
            if len(line) > self._left or time.monotonic() > self._deadline:  # noqa: TID251
                raise http.client.HTTPException("the header of an answer is too long, or arrives too slowly")
        self._left -= len(line)
        return line


class _Response(http.client.HTTPResponse):
    def __init__(
        self, sock: socket.socket, debuglevel: int = 0, method: str | None = None, url: str | None = None
    ) -> None:
        super().__init__(sock, debuglevel, method, url)
        self.fp: Any = _BoundedLines(self.fp)


class _HttpConnection(urllib3.connection.HTTPConnection):
    response_class = _Response


class _HttpsConnection(urllib3.connection.HTTPSConnection):
    response_class = _Response


class _HttpPool(HTTPConnectionPool):
    ConnectionCls = _HttpConnection


class _HttpsPool(HTTPSConnectionPool):
    ConnectionCls = _HttpsConnection


class _Adapter(HTTPAdapter):
    def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **options: object) -> None:
        super().init_poolmanager(connections, maxsize, block, **options)
        _use_bounded_pools(self.poolmanager)

    def proxy_manager_for(self, proxy: str, **options: object) -> PoolManager:
        manager: PoolManager = super().proxy_manager_for(proxy, **options)
        _use_bounded_pools(manager)
        return manager


def _use_bounded_pools(manager: PoolManager) -> None:
    manager.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}


class BoundedSession(requests.Session):
    """A session without redirections, cookies and passwords of ``~/.netrc``.

    requests reads the body of a redirection and parses its URL. A cookie would be sent to all ports of a host, and
    nothing limits how many a server sets. An entry of ``~/.netrc`` would be sent to a server that another one names.

    Args:
        retries: the policy for requests that fail.
        connections: number of connections that are kept for each server.
    """

    def __init__(self, retries: Retry, connections: int) -> None:
        super().__init__()
        self.auth = _without_password
        self.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))
        adapter = _Adapter(pool_maxsize=connections, max_retries=retries)
        for protocol in ("http://", "https://"):
            self.mount(protocol, adapter)

    def get_redirect_target(self, resp: requests.Response) -> None:
        return None


def _without_password(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request
