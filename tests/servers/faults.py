"""A proxy in front of a storage server that injects the faults of networks and of overloaded servers."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.servers.listening import QuietHandler, listening

LOST_REQUEST, LOST_ANSWER, LATE_REQUEST = "lost request", "lost answer", "late request"
CUT_ANSWER, SLOW_ANSWER = "cut answer", "slow answer"
BUSY = ("503", "429")
ANSWERS = ("500", "408", "409", *BUSY)
NOT_READY = ("RetriableException", "SafeModeException", "StandbyException")
"""The answers of an HDFS NameNode that has just started, or is not the active one."""
KINDS = (LOST_REQUEST, LOST_ANSWER, LATE_REQUEST, CUT_ANSWER, SLOW_ANSWER, *ANSWERS)
_LATEST_SECONDS, _PIECES = 0.3, 20
_RESET = struct.pack("ii", 1, 0)


@dataclass
class Faults:
    """Which faults are injected into which share of the requests.

    Attributes:
        share: of all requests; may be changed at any time.
        injected: number of faults of each kind.
        late: timers of late requests.
    """

    rng: random.Random
    share: float
    kinds: Sequence[str] = KINDS
    injected: Counter[str] = field(default_factory=Counter)
    late: list[threading.Timer] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def draw(self) -> str:
        """The fault of the next request; empty for none."""
        with self._lock:
            if self.rng.random() >= self.share:
                return ""
            kind = self.rng.choice(self.kinds)
            self.injected[kind] += 1
            return kind


@contextlib.contextmanager
def fault_proxy(upstream: str, faults: Faults, kind: type[ProxyHandler] | None = None) -> Iterator[str]:
    """Listens on loopback in front of ``http://host:port``; yields its own address."""
    try:
        with listening(kind or ProxyHandler, upstream=upstream.removeprefix("http://"), faults=faults) as address:
            yield address
    finally:
        for timer in faults.late:
            timer.join()


@dataclass(frozen=True)
class ProxyAnswer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes


class ProxyHandler(QuietHandler):
    """Passes requests on, and injects faults."""

    upstream: str
    faults: Faults

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        kind = self.faults.draw()
        if kind in ANSWERS:
            self.send(ProxyAnswer(int(kind), [], b"<Error><Code>SlowDown</Code></Error>"))
        elif kind in NOT_READY:
            self.send(ProxyAnswer(403, [("content-type", "application/json")], _remote_exception(kind)))
        elif kind in (LOST_REQUEST, LATE_REQUEST):
            if kind == LATE_REQUEST:
                # A client's own network does so, too: the request arrives when the client has given it up.
                delay = self.faults.rng.uniform(0, _LATEST_SECONDS)
                timer = threading.Timer(delay, self.forward, (body,))
                self.faults.late.append(timer)
                timer.start()
            self.reset()
        else:
            self._deliver(kind, self.forward(body))

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET

    def _deliver(self, kind: str, answer: ProxyAnswer) -> None:
        if kind == LOST_ANSWER:
            self.reset()
        elif kind == CUT_ANSWER and len(answer.body) > 1:
            self.head(answer)
            self.wfile.write(answer.body[: len(answer.body) // 2])
            self.reset()
        elif kind == SLOW_ANSWER:
            self.head(answer)
            size = max(1, len(answer.body) // _PIECES)
            for start in range(0, len(answer.body), size):
                self.wfile.write(answer.body[start : start + size])
                time.sleep(0.005)
        else:
            self.send(answer)

    def forward(self, body: bytes) -> ProxyAnswer:
        with contextlib.closing(http.client.HTTPConnection(self.upstream, timeout=60)) as connection:
            # The signature covers the host that the client knows.
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders(body or None)
            found = connection.getresponse()
            return ProxyAnswer(found.status, found.getheaders(), found.read())

    def send(self, answer: ProxyAnswer) -> None:
        self.head(answer)
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def head(self, answer: ProxyAnswer) -> None:
        """Sends the head of an answer; its own headers replace the length of its body."""
        self.send_response_only(answer.status)
        headers = {"content-length": str(len(answer.body))} | {name.lower(): value for name, value in answer.headers}
        for name, value in headers.items():
            if name not in ("connection", "transfer-encoding"):
                self.send_header(name, value)
        self.end_headers()

    def reset(self) -> None:
        """Ends the connection by RST, as if the host had disappeared."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RD)
        self.connection.close()


def _remote_exception(name: str) -> bytes:
    exception = {"exception": name, "javaClassName": f"org.apache.hadoop.{name}", "message": "not now"}
    return json.dumps({"RemoteException": exception}).encode()
