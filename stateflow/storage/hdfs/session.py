"""The HTTP session of a WebHDFS client: which servers get the user or the token, and which redirections it follows."""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO
from urllib.parse import urlsplit

import requests
from urllib3 import Retry

from stateflow.errors import ConfigError
from stateflow.http.connections import BoundedSession

_CONNECTIONS = 32
_TIMEOUT = (5, 60)
"""Longest wait for a connection and for the next bytes, in seconds."""
_DATA_PORTS = frozenset({9864, 9865, 50075, 50475})
"""Default HTTP and HTTPS ports of DataNodes, since Hadoop 3 and before."""


@dataclass(frozen=True)
class HdfsUsers:
    """The user or token of requests to NameNodes, and the ports of DataNodes.

    Attributes:
        query: the part of a URL that names the user or has the token; for NameNodes only.
        data_ports: ports of DataNodes.
    """

    query: Mapping[str, str] = field(repr=False)
    data_ports: frozenset[int] = _DATA_PORTS

    @classmethod
    def of_process(cls, name_nodes: Iterable[str]) -> HdfsUsers:
        """Returns the values of this process's environment.

        Args:
            name_nodes: the NameNodes of an address, such as ``webhdfs://namenode:9870``.

        Raises:
            ConfigError: there is a token, but one of the NameNodes may not get it; or the ports are not numbers.
        """
        token = os.environ.get("WEBHDFS_TOKEN")
        if not token:
            return cls({"user.name": os.environ.get("HADOOP_USER_NAME") or getpass.getuser()}, _data_ports())
        trusted = set(os.environ.get("WEBHDFS_NAMENODES", "").replace(",", " ").split())
        for name_node in name_nodes:
            if name_node not in trusted:
                raise ConfigError(
                    "the NameNode is not one that WEBHDFS_TOKEN may be sent to",
                    hint="add it to WEBHDFS_NAMENODES, such as WEBHDFS_NAMENODES=swebhdfs://namenode:9871; with "
                    "webhdfs:// the token is sent without TLS",
                    name_node=name_node,
                    trusted=sorted(trusted),
                )
        return cls({"delegation": token}, _data_ports())


def _data_ports() -> frozenset[int]:
    given = os.environ.get("WEBHDFS_DATANODE_PORTS", "").replace(",", " ").split()
    if not all(port.isascii() and port.isdecimal() and len(port) < 6 for port in given):
        raise ConfigError(
            "a port of a DataNode is not a number",
            hint="set WEBHDFS_DATANODE_PORTS to numbers, such as 9864,9865",
            given=given,
        )
    return frozenset(map(int, given)) or _DATA_PORTS


class HdfsSession:
    """Sends requests to NameNodes with the user, and follows their redirections to DataNodes without it.

    Args:
        name_nodes: URLs of the NameNodes, such as ``http://namenode:9870``.
        users: the user and the ports of DataNodes.
        retries: the policy for requests that fail.
    """

    def __init__(self, name_nodes: Sequence[str], users: HdfsUsers, retries: Retry) -> None:
        self._name_nodes = frozenset(name_nodes)
        self._users = users
        self._session = BoundedSession(retries, _CONNECTIONS)
        # A compressed answer could be much larger than what was received.
        self._session.headers["Accept-Encoding"] = "identity"
        self._session.headers["Content-Type"] = "application/octet-stream"  # HttpFS requires it

    def to_name_node(self, method: str, url: str, query: Mapping[str, str]) -> requests.Response:
        """Sends a request to a NameNode; the caller closes the response."""
        return self._send(method, url, params={**query, **self._users.query})

    def to_data_node(self, method: str, location: str, data: bytes | IO[bytes] | None = None) -> requests.Response:
        """Sends a request to where a NameNode has redirected it; the caller closes the response.

        Raises:
            ConfigError: the server is neither a DataNode nor a NameNode, or the request would leave TLS.
        """
        self._check(location)
        return self._send(method, location, data=data)

    def _send(
        self, method: str, url: str, params: Mapping[str, str] | None = None, data: bytes | IO[bytes] | None = None
    ) -> requests.Response:
        return self._session.request(
            method, url, params=params, data=data, timeout=_TIMEOUT, allow_redirects=False, stream=True
        )

    def _check(self, location: str) -> None:
        try:
            parts = urlsplit(location)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        protocols = {urlsplit(name_node).scheme for name_node in self._name_nodes}
        server = f"{parts.scheme}://{parts.netloc}"
        is_known = server in self._name_nodes or (port in self._users.data_ports and "@" not in parts.netloc)
        if parts.scheme not in protocols or not is_known:
            raise ConfigError(
                "HDFS redirected a request to a server that is no DataNode",
                hint="if it is one, add its port to WEBHDFS_DATANODE_PORTS, such as 9864,9865",
                server=f"{parts.scheme}://{parts.hostname}:{port}"[:200],
                ports=sorted(self._users.data_ports),
            )
