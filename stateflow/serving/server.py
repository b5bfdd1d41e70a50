"""A state server: an HTTP server with bounded connections, and a thread that follows the job and renews the lease."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from types import TracebackType
from typing import Self

import uvicorn
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from stateflow.clock import Clock, SystemClock
from stateflow.errors import ConfigError, StateflowError
from stateflow.observability import log_event
from stateflow.private_files import ScratchFolder
from stateflow.serving.app import AppSettings, StateApp
from stateflow.serving.fetch_process import FetchProcess
from stateflow.serving.follower import Follower, FollowSettings
from stateflow.serving.lookups import LARGEST_REQUEST
from stateflow.serving.registry import Membership, is_url
from stateflow.state.handles import SubtaskState
from stateflow.storage import Storage, open_storage

log = logging.getLogger(__name__)


_LONGEST_TOKEN = 4096


@dataclass(frozen=True)
class ServerSettings:
    """Settings of a state server.

    Attributes:
        host: address to listen at.
        port: port to listen at; 0 for any free one.
        advertise: URL at which clients reach the server; by default made of host and port.
        poll: time between two looks at the job's log; None for 50 ms in a local file system, and 1 s elsewhere.
        lease: duration of the server's lease; other servers take over its key groups after this time.
        connections: maximum number of connections; further ones are answered with status 503.
        app: limits of requests, and the token.
        follow: checkpoints that are kept open, and memory.
        fetches_apart: whether a child process fetches and checks files, so that queries do not wait for it.
    """

    host: str = "127.0.0.1"
    port: int = 0
    advertise: str = ""
    poll: timedelta | None = None
    lease: timedelta = timedelta(seconds=10)
    connections: int = 200
    app: AppSettings = field(default_factory=AppSettings)
    follow: FollowSettings = field(default_factory=FollowSettings)
    fetches_apart: bool = False

    def check(self) -> None:
        """Raises ConfigError for settings that would let any host query the state, or that cannot be used."""
        token = self.app.token
        if not token.isascii() or not token.isprintable() or len(token) > _LONGEST_TOKEN or " " in token:
            raise ConfigError("the token of a state server must be ASCII text without spaces", hint="make a new one")
        if not token and not _is_loopback(self.host):
            raise ConfigError(
                "a state server without a token can only listen at a loopback address",
                hint="pass a file with a token, or listen at 127.0.0.1",
                host=self.host,
            )
        if self.advertise and not is_url(self.advertise):
            raise ConfigError(
                "clients cannot use the URL of the state server",
                hint="pass http:// or https://, and a host, with or without a port and a path",
                advertise=self.advertise,
            )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class StateServer:
    """Serves the committed state of one job until `stop` is called. Use it in a `with` block, which ends its lease.

    Args:
        job_root: the job root; the job may not exist yet.
        settings: address, limits and memory.
        clock: the clock for leases.

    Raises:
        ConfigError: the settings are refused, or the address cannot be used.
    """

    def __init__(
        self, job_root: str | Storage, settings: ServerSettings = ServerSettings(), clock: Clock | None = None
    ) -> None:
        settings.check()
        self._settings = settings
        self._clock = clock or SystemClock()
        self._storage = open_storage(job_root) if isinstance(job_root, str) else job_root
        self._socket = _bound(settings)
        self._scratch = ScratchFolder()
        self._fetching: FetchProcess | None = None
        self.follower = Follower(self._storage, self._scratch.path, self._clock, settings.follow, self._prepare)
        self._membership = Membership(self._storage, self.follower, self._clock, self.url, settings.lease)
        self._http = uvicorn.Server(uvicorn_config(self.follower, settings))
        self._stopping = threading.Event()
        self._failure: BaseException | None = None

    @property
    def url(self) -> str:
        """The URL at which clients reach the server."""
        if self._settings.advertise:
            return self._settings.advertise.rstrip("/")
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self) -> None:
        """Serves requests until `stop` is called, or SIGINT or SIGTERM arrives.

        Raises what made the thread that follows the log fail.
        """
        follower = threading.Thread(target=self._follow, name="stateflow-follower", daemon=True)
        follower.start()
        try:
            self._http.run(sockets=[self._socket])
        finally:
            self._stopping.set()
            follower.join()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Lets `run` return after the requests in progress; may be called by any thread."""
        self._http.should_exit = True

    def close(self) -> None:
        """Ends the lease, closes the stores and removes local files."""
        self._socket.close()
        self.follower.close()
        with _logged("lease-not-ended"):
            self._membership.registration.end()
        self._scratch.remove()

    def step(self) -> None:
        """Looks at the log and at the leases once, as the thread of `run` does periodically."""
        with _logged("lease-not-renewed"):
            self._membership.step()
        self.follower.poll()

    def _follow(self) -> None:
        poll = self._settings.poll or timedelta(seconds=0.05 if self._storage.host_local else 1)
        try:
            # The process ends with the thread that starts it, which is this one.
            if self._settings.fetches_apart:
                self._fetching = FetchProcess(self._storage.uri, self.follower.files)
            while not self._stopping.is_set():
                self.step()
                self._stopping.wait(poll.total_seconds())
        except BaseException as e:
            self._failure = e
            self.stop()
        finally:
            if self._fetching is not None:
                self._fetching.close()

    def _prepare(self, states: Sequence[SubtaskState]) -> None:
        if self._fetching is not None:
            self._fetching.prepare(states)


@contextlib.contextmanager
def _logged(event: str) -> Iterator[None]:
    try:
        yield
    except StateflowError as e:
        log_event(log, logging.WARNING, event, code=e.code, reason=e.sentence)


def _bound(settings: ServerSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((settings.host, settings.port))
        # Clients may connect as soon as the lease names the address.
        listening.listen(128)
    except (OSError, OverflowError) as e:
        listening.close()
        raise ConfigError(
            "the address of a state server cannot be used",
            hint="choose another address or port",
            host=settings.host,
            port=settings.port,
            reason=str(e),
        ) from e
    return listening


def uvicorn_config(follower: Follower, settings: ServerSettings) -> uvicorn.Config:
    """Returns the configuration of the HTTP server that answers from the checkpoints of a follower."""
    return uvicorn.Config(
        StateApp(follower, settings.app).asgi(),
        http=BoundedProtocol,
        access_log=False,
        log_config=None,
        lifespan="off",
        ws="none",
        server_header=False,
        date_header=False,
        limit_concurrency=settings.connections,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=10,
    )


LARGEST_HEAD = 32 << 10
"""Bytes of a request's first line and headers."""
LARGEST_MESSAGE = 4 * LARGEST_REQUEST
"""Bytes of a request as it is sent: with its head, and the framing of chunks and trailers around its body."""


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
