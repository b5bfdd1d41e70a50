"""Proxies in front of a storage server: with the faults of networks and overloaded servers, or with hostile answers."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

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
        outage: how many requests are lost, at most, after one that was lost: more than a client repeats.
        injected: number of faults of each kind.
        late: timers of late requests.
    """

    rng: random.Random
    share: float
    kinds: Sequence[str] = KINDS
    outage: int = 0
    injected: Counter[str] = field(default_factory=Counter)
    late: list[threading.Timer] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _losing: int = 0

    def draw(self) -> str:
        """The fault of the next request; empty for none."""
        with self._lock:
            if self._losing and self.share:
                self._losing -= 1
                kind = LOST_REQUEST
            elif self.rng.random() >= self.share:
                return ""
            else:
                kind = self.rng.choice(self.kinds)
                self._losing = self.rng.randint(0, self.outage) if kind in (LOST_REQUEST, LOST_ANSWER) else 0
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


SECRET = "body-of-an-internal-server"
"""In the bodies of answers."""
NOT_ALLOWED = ("401", "403")
REDIRECTED, TOO_SHORT, SLOW, ENDLESS, DROPPED = "redirected", "too short", "slow", "endless", "dropped"
TOO_LONG, GARBAGE = "too long", "garbage"
HOSTILE_KINDS = (*NOT_ALLOWED, REDIRECTED, TOO_SHORT, SLOW, ENDLESS, DROPPED)
LIES = (TOO_LONG, GARBAGE)
"""Kinds of answers that are correct HTTP with other bytes than those that are stored."""
_FOLLOWED = 0.7
"""Share of the redirections, where a NameNode redirects as well, to an address that a client without checks follows."""
_SLOW_SECONDS = 0.02
_LONGEST = 20.0
"""Seconds after which a slow answer ends nevertheless."""
_PIECE, _ENDLESS_PIECES, _PAUSE = b"10000\r\n" + SECRET.encode().ljust(0x10000, b"x") + b"\r\n", 8000, 0.002
"""Half a gigabyte, thirty megabytes a second."""


@contextlib.contextmanager
def misbehaving_proxy(upstream: str, faults: Faults, elsewhere: str, stolen: float = 0.0) -> Iterator[str]:
    """Listens on loopback in front of a server; yields its own address.

    Args:
        upstream: the server, as ``http://host:port``.
        faults: draws from `HOSTILE_KINDS` and `LIES`.
        elsewhere: host and port of another server, to which requests are redirected.
        stolen: share of the faults of requests that a NameNode of WebHDFS redirects which are redirections to the
            other server: hardly any other redirection leads a client there.
    """
    facts = {"elsewhere": elsewhere, "stolen": stolen}
    with fault_proxy(upstream, faults, type("Misbehaving", (_HostileHandler,), facts)) as address:
        yield address


class _HostileHandler(ProxyHandler):
    elsewhere: str
    stolen: float

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        kind = self.faults.draw()
        if kind and _to_data_node(self.path) and self.faults.rng.random() < self.stolen:
            self.send(ProxyAnswer(307, [("location", self._stolen())], SECRET.encode()))
        elif kind in NOT_ALLOWED:
            self.send(ProxyAnswer(int(kind), [("content-type", "text/html")], f"<h1>{SECRET}</h1>".encode()))
        elif kind == REDIRECTED:
            self._redirect(self.faults.rng)
        elif kind == DROPPED:
            self.reset()
        else:
            # The request has done its work; only the answer is wrong.
            self._answer(kind, self.forward(body))

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET

    def _redirect(self, rng: random.Random) -> None:
        port = self.elsewhere.rpartition(":")[2]
        location = rng.choice(
            [
                self._stolen(), f"http://localhost:{port}/stolen", f"//{self.elsewhere}/stolen",
                f"https://{self.elsewhere}/stolen", f"http://user:password@{self.elsewhere}/stolen",
                "file:///etc/passwd", "",
            ]
        )  # fmt: skip
        if _to_data_node(self.path) and rng.random() < _FOLLOWED:
            location = self._stolen()
        self.send(ProxyAnswer(rng.choice([301, 302, 303, 307, 308]), [("location", location)], SECRET.encode()))

    def _stolen(self) -> str:
        return f"http://{self.elsewhere}/webhdfs/v1/stolen?op=OPEN"

    def _answer(self, kind: str, answer: ProxyAnswer) -> None:
        # The length in the answer to HEAD is what is asked for.
        if not kind or self.command == "HEAD":
            self.send(answer)
        elif kind == GARBAGE:
            garbage = self.faults.rng.choice([SECRET.encode(), b"", b"[" * 100_000, b"\0" * 5000, b"<a>" * 9999])
            self.send(replace(answer, headers=_without_length(answer), body=garbage))
        elif kind == TOO_LONG:
            self.head(_with_length(answer, len(answer.body) // 2))
            self.wfile.write(answer.body)
            self.close_connection = True
        elif kind == TOO_SHORT:
            self.head(_with_length(answer, max(len(answer.body), 1000)))
            self.wfile.write(answer.body[: len(answer.body) // 2])
            self.close_connection = True
        elif kind == SLOW:
            self._drip(answer)
        else:
            self._send_endless(answer)

    def _drip(self, answer: ProxyAnswer) -> None:
        self.head(_with_length(answer, 1_000_000))
        for number in range(int(_LONGEST / _SLOW_SECONDS)):
            self.wfile.write(answer.body[number : number + 1] or b" ")
            self.wfile.flush()
            time.sleep(_SLOW_SECONDS)
        self.reset()

    def _send_endless(self, answer: ProxyAnswer) -> None:
        self.send_response_only(answer.status)
        for name, value in _without_length(answer):
            self.send_header(name, value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in itertools.repeat(_PIECE, _ENDLESS_PIECES):
            self.wfile.write(piece)
            time.sleep(_PAUSE)
        self.reset()


def _to_data_node(path: str) -> bool:
    return "op=OPEN" in path or "op=CREATE" in path


def _without_length(answer: ProxyAnswer) -> list[tuple[str, str]]:
    dropped = ("content-length", "connection", "transfer-encoding")
    return [(name, value) for name, value in answer.headers if name.lower() not in dropped]


def _with_length(answer: ProxyAnswer, length: int) -> ProxyAnswer:
    return replace(answer, headers=[*_without_length(answer), ("content-length", str(length))])
