"""A proxy in front of a server of any protocol on TCP, which cuts connections and loses answers."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

_RESET = struct.pack("ii", 1, 0)
_BYTES = 1 << 16


class TcpProxy:
    """Listens on loopback and passes everything on.

    Args:
        upstream: the server's port on loopback.

    Attributes:
        port: its own port on loopback.
        loses_answers: whether bytes of the server are dropped instead of being passed on.
    """

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = int(self._listener.getsockname()[1])
        self.loses_answers = False
        self._open: set[tuple[socket.socket, socket.socket]] = set()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut(self) -> int:
        """Resets all connections; returns their number."""
        with self._lock:
            pairs = list(self._open)
        for pair in pairs:
            for side in pair:
                _shut(side)
        return len(pairs)

    def close(self) -> None:
        """Resets all connections, and listens no longer."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self.cut()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._upstream))
            except OSError:
                client.close()
                continue
            for side in (client, server):
                side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            thread = threading.Thread(target=self._connect, args=(client, server), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _connect(self, client: socket.socket, server: socket.socket) -> None:
        """Passes bytes on in both directions until one side ends."""
        pair = (client, server)
        with self._lock:
            self._open.add(pair)
        answers = threading.Thread(target=self._pass_on, args=(server, client, True), daemon=True)
        answers.start()
        self._pass_on(client, server, False)
        answers.join()
        with self._lock:
            self._open.remove(pair)
        for side in pair:
            side.close()

    def _pass_on(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while received := source.recv(_BYTES):
                if not (is_answer and self.loses_answers):
                    target.sendall(received)
        for side in (source, target):
            _shut(side)


def _shut(side: socket.socket) -> None:
    with contextlib.suppress(OSError):
        side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        side.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def tcp_proxy(upstream: int) -> Iterator[TcpProxy]:
    proxy = TcpProxy(upstream)
    try:
        yield proxy
    finally:
        proxy.close()
