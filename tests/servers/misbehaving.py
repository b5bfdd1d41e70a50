"""A proxy in front of a storage server that answers as a hostile server, or a host that is not one of the storage."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from time import sleep

from tests.servers.faults import Faults, ProxyAnswer, ProxyHandler, fault_proxy

SECRET = "body-of-an-internal-server"
"""In the bodies of answers."""
NOT_ALLOWED = ("401", "403")
REDIRECTED, TOO_SHORT, SLOW, ENDLESS, DROPPED = "redirected", "too short", "slow", "endless", "dropped"
TOO_LONG, GARBAGE = "too long", "garbage"
KINDS = (*NOT_ALLOWED, REDIRECTED, TOO_SHORT, SLOW, ENDLESS, DROPPED)
LIES = (TOO_LONG, GARBAGE)
"""Kinds of answers that are correct HTTP with other bytes than those that are stored."""
_FOLLOWED = 0.7
"""Share of the redirections, where a NameNode redirects as well, to an address that a client without checks follows."""
_SLOW_SECONDS = 0.02
_LONGEST = 20.0
"""Seconds after which a slow answer ends nevertheless."""
_PIECE, _PIECES, _PAUSE = b"10000\r\n" + SECRET.encode().ljust(0x10000, b"x") + b"\r\n", 8000, 0.002
"""Half a gigabyte, thirty megabytes a second."""


@contextlib.contextmanager
def misbehaving_proxy(upstream: str, faults: Faults, elsewhere: str, stolen: float = 0.0) -> Iterator[str]:
    """Listens on loopback in front of a server; yields its own address.

    Args:
        upstream: the server, as ``http://host:port``.
        faults: draws from `KINDS` and `LIES`.
        elsewhere: host and port of another server, to which requests are redirected.
        stolen: share of the faults of requests that a NameNode of WebHDFS redirects which are redirections to the
            other server: hardly any other redirection leads a client there.
    """
    facts = {"elsewhere": elsewhere, "stolen": stolen}
    with fault_proxy(upstream, faults, type("Misbehaving", (_Handler,), facts)) as address:
        yield address


class _Handler(ProxyHandler):
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
                self._stolen(),
                f"http://localhost:{port}/stolen",
                f"//{self.elsewhere}/stolen",
                f"https://{self.elsewhere}/stolen",
                f"http://user:password@{self.elsewhere}/stolen",
                "file:///etc/passwd",
                "",
            ]
        )
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
            sleep(_SLOW_SECONDS)
        self.reset()

    def _send_endless(self, answer: ProxyAnswer) -> None:
        self.send_response_only(answer.status)
        for name, value in _without_length(answer):
            self.send_header(name, value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in itertools.repeat(_PIECE, _PIECES):
            self.wfile.write(piece)
            sleep(_PAUSE)
        self.reset()


def _to_data_node(path: str) -> bool:
    return "op=OPEN" in path or "op=CREATE" in path


def _without_length(answer: ProxyAnswer) -> list[tuple[str, str]]:
    dropped = ("content-length", "connection", "transfer-encoding")
    return [(name, value) for name, value in answer.headers if name.lower() not in dropped]


def _with_length(answer: ProxyAnswer, length: int) -> ProxyAnswer:
    return replace(answer, headers=[*_without_length(answer), ("content-length", str(length))])
