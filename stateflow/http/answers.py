"""Reads answers of servers that are not trusted: limits size and duration."""

from __future__ import annotations

from collections.abc import Iterator

import requests
from urllib3 import HTTPResponse

from stateflow.clock import Clock

_CHUNK = 1 << 20
_TRANSFER_SECONDS, _BYTES_PER_SECOND = 60.0, 10_000
"""A transfer fails after this time, plus a second for each so many bytes."""


class BadAnswer(Exception):
    """An answer is too long, too slow, or not of the documented form."""


def content(answer: requests.Response, clock: Clock, limit: int) -> bytes:
    """Returns all bytes of an answer; raises as `pieces` does."""
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
