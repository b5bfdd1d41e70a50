"""A program that queries single keys: ``query_connections.py JOB_ROOT KEYS CONNECTIONS RESULT``.

Each of some connections has a request in progress at any time, so that the server never waits for a client. The program
does no more for a request than to write it to a socket and to read the answer, which takes a tenth of the CPU time of
`QueryableStateClient`: it shows what a server can answer. It ends with SIGTERM, and then writes to RESULT when each
answer arrived, and how long it took, in seconds.
"""

from __future__ import annotations

import json
import random
import selectors
import signal
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

from stateflow import QueryableStateClient
from stateflow.clock import SystemClock
from stateflow.serving.lookups import Format
from stateflow.serving.registry import Registry
from stateflow.storage import open_storage

_STATE = "values"
_LARGEST = 1 << 16
_START = timedelta(minutes=2)
"""The time in which the server opens its first checkpoint."""


class Connection:
    """A connection with one request at a time."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._head = f"POST /v1/get HTTP/1.1\r\nhost: {host}\r\naccept: {Format.MSGPACK.value}\r\n"
        self.began = 0.0

    def ask(self, key: int) -> None:
        """Sends a request."""
        body = f'{{"state":"{_STATE}","keys":[[{key}]]}}'
        self.began = time.time()
        self.socket.sendall(f"{self._head}content-length: {len(body)}\r\n\r\n{body}".encode())

    def check_answer(self) -> None:
        """Reads an answer whose first bytes have arrived."""
        answer = self.socket.recv(_LARGEST)
        while b"\r\n\r\n" not in answer:
            answer += self._more()
        head, _, body = answer.partition(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length:")[2].split()[0])
        while len(body) < size:
            body += self._more()
        assert head.startswith(b"HTTP/1.1 200 ") and len(body) == size > 200, answer

    def _more(self) -> bytes:
        data = self.socket.recv(_LARGEST)
        assert data, "the server has closed the connection"
        return data


def main(arguments: list[str]) -> None:
    """Queries until SIGTERM."""
    root, keys, connections, result = arguments
    rng, ended, samples = random.Random(1), [], []

    def end(*_: object) -> None:
        ended.append(True)

    signal.signal(signal.SIGTERM, end)
    with QueryableStateClient(root, timeout=_START) as client:
        client.get(_STATE, 0)
    (lease,) = Registry(open_storage(root), SystemClock()).read()
    address = urlsplit(lease.url)
    with selectors.DefaultSelector() as ready:
        for _ in range(int(connections)):
            connection = Connection(str(address.hostname), address.port or 0)
            ready.register(connection.socket, selectors.EVENT_READ, connection)
            connection.ask(rng.randrange(int(keys)))
        print("ready", flush=True)
        while not ended:
            for key, _ in ready.select(1):
                key.data.check_answer()
                now = time.time()
                samples.append((now, now - key.data.began))
                key.data.ask(rng.randrange(int(keys)))
    Path(result).write_text(json.dumps(samples))


if __name__ == "__main__":
    main(sys.argv[1:])
