"""HTTP connections of a state server with bounds: for the size of a request, and for every state of a connection.

uvicorn bounds neither the head nor the trailers of a request nor the time in which they arrive, and waits for a client
that does not read its answer.
"""

from __future__ import annotations

import asyncio
from enum import Enum

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from stateflow.serving.requests import LARGEST_REQUEST

LARGEST_HEAD = 32 << 10
"""Bytes of a request's first line and headers."""
LARGEST_MESSAGE = 4 * LARGEST_REQUEST
"""Bytes of a request as it is sent: with its head, and the framing of chunks and trailers around its body."""


class State(Enum):
    """States of a connection."""

    HEAD = "head"
    """The first line and headers of a request, also of the first one."""
    BODY = "body"
    """The rest of a request, with its trailers."""
    ANSWER = "answer"
    """The answer, and the client that reads it."""
    IDLE = "idle"
    """Another request."""


SECONDS = {State.HEAD: 10.0, State.BODY: 15.0, State.ANSWER: 60.0, State.IDLE: 30.0}
"""How long a connection may be in a state before it is closed, whatever arrives meanwhile.

For a body, longer than an endpoint waits for it, so that the client gets an answer that says so.
"""


class BoundedProtocol(HttpToolsProtocol):
    """A connection that is closed when a request is too large or too slow, or an answer is not read.

    When the server has no room for another connection, the one that has waited longest for its client is closed:
    connections that send nothing cannot keep others out.

    Attributes:
        state: what it waits for.
        since: since when, by the clock of the event loop.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.state = State.HEAD
        self.since = 0.0
        self._message_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None
        self._may_continue = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._enter(State.HEAD)
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._message_bytes += len(data)
        super().data_received(data)
        largest = LARGEST_HEAD if self.state is State.HEAD else LARGEST_MESSAGE
        if self._message_bytes > largest and self.state is not State.ANSWER:
            self.abort()

    def on_message_begin(self) -> None:
        """Starts a request; called by the parser."""
        if self.state is State.ANSWER:
            # Ends the parser, and the connection with status 400: such requests would be queued without a bound.
            raise ValueError("a request was sent before the answer to the one before")
        super().on_message_begin()
        self._enter(State.HEAD)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Adds a header; ignores trailers, which no endpoint reads. Called by the parser."""
        if self.state is State.HEAD:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Starts to answer the request; called by the parser."""
        self._enter(State.BODY)
        super().on_headers_complete()
        # An answer that is sent before the whole request has arrived, such as a refusal, closes the connection: the
        # rest of the request would occupy it.
        self._may_continue, self.cycle.keep_alive = self.cycle.keep_alive, False

    def on_message_complete(self) -> None:
        """Ends the request; called by the parser."""
        if not self.cycle.response_started:
            self.cycle.keep_alive = self._may_continue
        self._enter(State.ANSWER)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Starts to wait for the next request, or until the client has read the answer; called by uvicorn."""
        super().on_response_complete()
        self._enter(State.ANSWER if self.transport.is_closing() or self.flow.write_paused else State.IDLE)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.state is State.ANSWER and self.cycle.response_complete and not self.transport.is_closing():
            self._enter(State.IDLE)

    def _enter(self, state: State) -> None:
        if state in (State.HEAD, State.IDLE):
            self._message_bytes = 0
        if self._deadline is not None:
            self._deadline.cancel()
        self.state, self.since = state, self.loop.time()
        self._deadline = self.loop.call_later(SECONDS[state], self.abort)

    def _make_room(self) -> None:
        if self.limit_concurrency is None or len(self.connections) < self.limit_concurrency:
            return
        others = [c for c in self.connections if isinstance(c, BoundedProtocol) and c is not self]
        waiting = [c for c in others if c.state is not State.ANSWER and not c.transport.is_closing()]
        if waiting:
            min(waiting, key=lambda c: c.since).abort()

    def abort(self) -> None:
        """Closes the connection without waiting for its client."""
        self.transport.abort()
