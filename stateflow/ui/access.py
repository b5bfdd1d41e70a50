"""The viewers of the pages, and who may read which job."""

from __future__ import annotations

import hmac
from typing import Protocol

from starlette.requests import Request as HttpRequest

from stateflow.errors import Unauthorized
from stateflow.ui.roots import CatalogJob


class Viewer(Protocol):
    """The user or client of a request."""

    def may_read(self, job: CatalogJob) -> bool:
        """Returns whether it may read a job. For the viewer, others do not exist."""

    async def may_read_code(self, job: CatalogJob) -> bool:
        """Returns whether it may read the source of a job that it may read: the text of its job files."""


class AccessPolicy(Protocol):
    """Decides who may read.

    Attributes:
        serves_files_to_all: whether the files of the pages, which are the same everywhere, are served to anybody.
    """

    serves_files_to_all: bool

    async def admit(self, request: HttpRequest) -> Viewer:
        """Returns the viewer of a request. Raises Unauthorized unless the viewer may read something."""


class _ReadsAll:
    def may_read(self, job: CatalogJob) -> bool:
        return True

    async def may_read_code(self, job: CatalogJob) -> bool:
        return True


class TokenPolicy:
    """Everybody who knows a token reads everything; without a token, everybody who reaches the server.

    Args:
        token: the token; empty for none.
    """

    serves_files_to_all = True
    """A browser cannot send the token with the address of a page; the page asks for it, and sends it to the API."""

    def __init__(self, token: str = "") -> None:
        self._expected = f"Bearer {token}".encode() if token else b""

    async def admit(self, request: HttpRequest) -> Viewer:
        """Returns a viewer who may read everything. Raises Unauthorized without the token."""
        given = request.headers.get("authorization", "").encode()
        if self._expected and not hmac.compare_digest(given, self._expected):
            raise Unauthorized(
                "the token is wrong" if given else "the server requires a token",
                hint="send the token in the server's --token-file as Authorization: Bearer TOKEN",
            )
        return _ReadsAll()
