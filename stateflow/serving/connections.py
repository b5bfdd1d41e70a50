"""HTTP connections of a state server with bounds: for the size of a request's head, and for every duration.

uvicorn bounds neither the head of a request nor the time in which it arrives, and waits for a client that does not read
its answer.
"""

from __future__ import annotations

import asyncio

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

LARGEST_HEAD = 32 << 10
"""Bytes of a request's first line and headers."""
HEAD_SECONDS = 10.0
"""How long the head of a request may take, also that of a connection's first request."""


class BoundedProtocol(HttpToolsProtocol):
    """A connection that is closed when a request's head is too large or too slow, or an answer is not read."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._head_bytes = 0
        self._is_in_head = True
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._is_in_head and self._head_bytes > LARGEST_HEAD:
            self.transport.abort()

    def on_message_begin(self) -> None:
        """Starts the time of a request's head; called by the parser."""
        super().on_message_begin()
        self._begin_head()

    def on_headers_complete(self) -> None:
        """Ends the time of a request's head; called by the parser."""
        self._end_head()
        super().on_headers_complete()

    def timeout_keep_alive_handler(self) -> None:
        """Closes an idle connection, whether or not the client has read the answer."""
        if not self.transport.is_closing():
            self.transport.abort()

    def _begin_head(self) -> None:
        self._end_head()
        self._is_in_head = True
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._abort)

    def _end_head(self) -> None:
        self._head_bytes, self._is_in_head = 0, False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _abort(self) -> None:
        self.transport.abort()
