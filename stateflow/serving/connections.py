"""Sockets and connections of an HTTP server that others can reach: its address, and bounds of its connections."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from enum import Enum

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from stateflow.errors import ConfigError

_LONGEST_TOKEN = 4096


def check_address(server: str, host: str, token: str) -> None:
    """Raises ConfigError for a token that clients cannot send, and for an address that is open to other hosts without.

    Args:
        server: the kind of server, for the error.
        host: the address to listen at.
        token: what clients must send; empty for none.
    """
    if not token.isascii() or not token.isprintable() or len(token) > _LONGEST_TOKEN or " " in token:
        raise ConfigError(f"the token of a {server} must be ASCII text without spaces", hint="make a new one")
    if not token and not is_loopback(host):
        raise ConfigError(
            f"a {server} without a token can only listen at a loopback address",
            hint="pass a file with a token, or listen at 127.0.0.1",
            host=host,
        )


def is_loopback(host: str) -> bool:
    """Returns whether only processes of this host can connect to an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def bind(server: str, host: str, port: int) -> socket.socket:
    """Returns a socket that listens at an address; port 0 means any free one. Raises ConfigError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        # Clients may connect as soon as they learn the address.
        listening.listen(128)
    except (OSError, OverflowError) as e:
        listening.close()
        raise ConfigError(
            f"the address of a {server} cannot be used",
            hint="choose another address or port",
            host=host,
            port=port,
            reason=str(e),
        ) from e
    return listening


def url_of(listening: socket.socket) -> str:
    """Returns the URL at which a socket listens."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def bounded_config(app: ASGIApp, connections: int, *, grace_seconds: int = 10) -> Config:
    """Returns the configuration of a server whose connections are bounded.

    Args:
        app: the application.
        connections: maximum number of connections; further ones are answered with status 503.
        grace_seconds: how long requests in progress delay the end.
    """
    return Config(
        _answering_at_the_end(app),
        http=BoundedProtocol,
        access_log=False,
        log_config=None,
        lifespan="off",
        ws="none",
        server_header=False,
        date_header=False,
        limit_concurrency=connections,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=grace_seconds,
    )


def _answering_at_the_end(app: ASGIApp) -> ASGIApp:
    """Returns an application that answers each request that is cancelled by the end of the server with status 503.

    uvicorn reports an application that does not answer as one with a fault, by its traceback.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def send_next(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await app(scope, receive, send_next)
        except asyncio.CancelledError:
            if has_begun:
                raise
            await PlainTextResponse("the server ends", 503)(scope, receive, send)

    return answer


LARGEST_HEAD = 32 << 10
"""Bytes of a request's first line and headers."""
LARGEST_MESSAGE = 4 << 20
"""Bytes of a request as it is sent: with its head, and the framing of chunks and trailers around its body, which is
limited by the application to at most a quarter of it."""


class Phase(Enum):
    """States of a connection."""

    HEAD = "head"
    """The first line and headers of a request, also of the first one."""
    BODY = "body"
    """The rest of a request, with its trailers."""
    ANSWER = "answer"
    """The answer, and the client that reads it."""
    IDLE = "idle"
    """Another request."""


SECONDS = {Phase.HEAD: 10.0, Phase.BODY: 15.0, Phase.ANSWER: 60.0, Phase.IDLE: 30.0}
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
        self.state = Phase.HEAD
        self.since = 0.0
        self._message_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None
        self._may_continue = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._enter(Phase.HEAD)
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._message_bytes += len(data)
        super().data_received(data)
        largest = LARGEST_HEAD if self.state is Phase.HEAD else LARGEST_MESSAGE
        if self._message_bytes > largest and self.state is not Phase.ANSWER:
            self.abort()

    def on_message_begin(self) -> None:
        """Starts a request; called by the parser."""
        if self.state is Phase.ANSWER:
            # Ends the parser, and the connection with status 400: such requests would be queued without a bound.
            raise ValueError("a request was sent before the answer to the one before")
        super().on_message_begin()
        self._enter(Phase.HEAD)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Adds a header; ignores trailers, which no endpoint reads. Called by the parser."""
        if self.state is Phase.HEAD:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Starts to answer the request; called by the parser."""
        self._enter(Phase.BODY)
        super().on_headers_complete()
        # An answer that is sent before the whole request has arrived, such as a refusal, closes the connection: the
        # rest of the request would occupy it.
        self._may_continue, self.cycle.keep_alive = self.cycle.keep_alive, False

    def on_message_complete(self) -> None:
        """Ends the request; called by the parser."""
        if not self.cycle.response_started:
            self.cycle.keep_alive = self._may_continue
        self._enter(Phase.ANSWER)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Starts to wait for the next request, or until the client has read the answer; called by uvicorn."""
        super().on_response_complete()
        self._enter(Phase.ANSWER if self.transport.is_closing() or self.flow.write_paused else Phase.IDLE)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.state is Phase.ANSWER and self.cycle.response_complete and not self.transport.is_closing():
            self._enter(Phase.IDLE)

    def _enter(self, state: Phase) -> None:
        if state in (Phase.HEAD, Phase.IDLE):
            self._message_bytes = 0
        if self._deadline is not None:
            self._deadline.cancel()
        self.state, self.since = state, self.loop.time()
        self._deadline = self.loop.call_later(SECONDS[state], self.abort)

    def _make_room(self) -> None:
        if self.limit_concurrency is None or len(self.connections) < self.limit_concurrency:
            return
        others = [c for c in self.connections if isinstance(c, BoundedProtocol) and c is not self]
        waiting = [c for c in others if c.state is not Phase.ANSWER and not c.transport.is_closing()]
        if waiting:
            min(waiting, key=lambda c: c.since).abort()

    def abort(self) -> None:
        """Closes the connection without waiting for its client."""
        self.transport.abort()
