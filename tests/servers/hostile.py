"""An HTTP server on loopback that answers each request with the bytes of a test, whatever HTTP allows."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO


@dataclass(frozen=True)
class Asked:
    line: str
    head: str
    body: bytes

    @property
    def operation(self) -> str:
        """WebHDFS's name of the operation."""
        return self.line.partition("op=")[2].partition("&")[0].partition(" ")[0]


Answer = bytes | Iterator[bytes]


@dataclass
class HostileServer:
    """Answers with what `answer` returns for a request; an iterator is sent piece by piece.

    Attributes:
        asked: the requests so far.
    """

    answer: Callable[[Asked], Answer]
    asked: list[Asked] = field(default_factory=list)
    port: int = 0

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"


def answer(status: int, body: bytes = b"", **headers: object) -> bytes:
    """An answer of HTTP; underscores in names of headers are hyphens."""
    given = {"Content-Length": len(body), **{name.replace("_", "-"): value for name, value in headers.items()}}
    lines = [f"HTTP/1.1 {status} Any", *(f"{name}: {value}" for name, value in given.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


@contextlib.contextmanager
def hostile_server(answer: Callable[[Asked], Answer]) -> Iterator[HostileServer]:
    """Listens until the end of the context."""
    server = HostileServer(answer)
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        server.port = listener.getsockname()[1]
        threading.Thread(target=_accept, args=(listener, server), daemon=True).start()
        yield server
        # Ends the thread that waits in accept.
        listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, server: HostileServer) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_serve, args=(connection, server), daemon=True).start()


def _serve(connection: socket.socket, server: HostileServer) -> None:
    with connection, contextlib.suppress(OSError), connection.makefile("rb") as stream:
        while request := _read(stream):
            server.asked.append(request)
            reply = server.answer(request)
            if isinstance(reply, bytes):
                connection.sendall(reply)
                continue
            for piece in reply:
                connection.sendall(piece)
            return


def _read(stream: BinaryIO) -> Asked | None:
    lines: list[str] = []
    while line := stream.readline().decode("latin-1").rstrip("\r\n"):
        lines.append(line)
    if not lines:
        return None
    sizes = [int(line.partition(":")[2]) for line in lines if line.lower().startswith("content-length:")]
    return Asked(lines[0], "\n".join(lines), stream.read(sizes[0]) if sizes else b"")
