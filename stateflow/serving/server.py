"""A state server: an HTTP server with bounded connections, and a thread that follows the job and renews the lease."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Self

import uvicorn

from stateflow.clock import Clock, SystemClock
from stateflow.errors import ConfigError, StateflowError
from stateflow.observability import log_event
from stateflow.private_files import ScratchFolder
from stateflow.serving.app import AppSettings, StateApp
from stateflow.serving.connections import bind, bounded_config, check_address, url_of
from stateflow.serving.fetch_process import FetchProcess
from stateflow.serving.follower import Follower, FollowSettings
from stateflow.serving.registry import Membership, is_url
from stateflow.state.handles import SubtaskState
from stateflow.storage import Storage, open_storage

log = logging.getLogger(__name__)


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
        check_address("state server", self.host, self.app.token)
        if self.advertise and not is_url(self.advertise):
            raise ConfigError(
                "clients cannot use the URL of the state server",
                hint="pass http:// or https://, and a host, with or without a port and a path",
                advertise=self.advertise,
            )


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
        self._socket = bind("state server", settings.host, settings.port)
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
        return url_of(self._socket)

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


def uvicorn_config(follower: Follower, settings: ServerSettings) -> uvicorn.Config:
    """Returns the configuration of the HTTP server that answers from the checkpoints of a follower."""
    return bounded_config(StateApp(follower, settings.app).asgi(), settings.connections)
