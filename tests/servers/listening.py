"""An HTTP server in a thread of this process."""

from __future__ import annotations

import contextlib
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.servers.certificates import Certificate


class QuietHandler(BaseHTTPRequestHandler):
    """Keeps connections open, and logs nothing."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: Any) -> None:
        """Ignores clients that were killed during a request."""


@contextlib.contextmanager
def listening(handler: type[QuietHandler], tls: Certificate | None = None, **facts: object) -> Iterator[str]:
    """Listens on loopback; yields the address, as ``http://host:port``, or ``https://host:port`` with a certificate.

    Args:
        handler: answers requests.
        facts: attributes of the handler.
    """
    server = _Server(("127.0.0.1", 0), type("Handler", (handler,), facts))
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls.key_file)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
