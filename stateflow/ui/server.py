"""The server of the pages: the application with bounded connections."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import uvicorn

from stateflow.errors import ConfigError
from stateflow.serving.connections import bind, bounded_config, check_address, is_loopback, url_of
from stateflow.ui.access import TokenPolicy
from stateflow.ui.app import make_app
from stateflow.ui.catalog import RootCatalog
from stateflow.ui.roots import RootLimits, Roots

_SERVER = "server of pages"
_SHORTEST_TOKEN = 16
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class PagesSettings:
    """Settings of a server of pages.

    Attributes:
        host: address to listen at.
        port: port to listen at; 0 for any free one.
        token: what clients must send; empty for none.
        allowed_hosts: names of hosts by which clients may reach the server, in addition to the names of a loopback
            address; empty for any, if it listens at another address.
        connections: maximum number of connections; further ones are answered with status 503.
        limits: memory, threads and time of following job roots.
    """

    host: str = "127.0.0.1"
    port: int = 0
    token: str = ""
    allowed_hosts: frozenset[str] = frozenset()
    connections: int = 200
    limits: RootLimits = field(default_factory=RootLimits)


class PagesServer:
    """Serves the pages of job roots until `stop` is called. Use it in a `with` block.

    Args:
        catalog: the job roots.
        settings: address and limits.

    Raises ConfigError: the settings are refused, or the address cannot be used.
    """

    def __init__(self, catalog: RootCatalog, settings: PagesSettings = PagesSettings()) -> None:
        check_address(_SERVER, settings.host, settings.token)
        if 0 < len(settings.token) < _SHORTEST_TOKEN:
            raise ConfigError(
                f"the token of a {_SERVER} has fewer than {_SHORTEST_TOKEN} characters: others could guess it",
                hint="openssl rand -hex 32 prints one that cannot be guessed",
                characters=len(settings.token),
            )
        self._catalog = catalog
        self._socket = bind(_SERVER, settings.host, settings.port)
        hosts = settings.allowed_hosts | (_LOOPBACK_NAMES if is_loopback(settings.host) else frozenset())
        app = make_app(catalog, TokenPolicy(settings.token), roots=Roots(settings.limits), hosts=hosts)
        # A request may wait for a storage that hangs, and repeating one changes nothing.
        self._http = uvicorn.Server(bounded_config(app, settings.connections, grace_seconds=1))

    @property
    def url(self) -> str:
        """The URL at which it listens."""
        return url_of(self._socket)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._catalog.stop()
        self._socket.close()

    def run(self) -> None:
        """Serves requests until `stop` is called, or SIGINT or SIGTERM arrives."""
        self._catalog.start()
        self._http.run(sockets=[self._socket])

    def stop(self) -> None:
        """Lets `run` return after the requests in progress; may be called by any thread."""
        self._http.should_exit = True


def check_hosts(hosts: Set[str]) -> None:
    """Raises ConfigError for a text that is not the name of a host."""
    for host in hosts:
        if not host or (any(each in host for each in "/:@ ") and not host.count(":") > 1):
            raise ConfigError(
                "an allowed host is not a name", hint="pass the name alone, without scheme and port", host=host
            )
