"""A collector on loopback that takes what is sent to it by OTLP over HTTP."""

from __future__ import annotations

import contextlib
import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector(HTTPServer):
    """Keeps what was sent, by path."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taker)
        self.taken: list[tuple[str, bytes]] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def text(self, path: str) -> str:
        """All that was sent there; protocol buffers have text as it is."""
        return b"".join(body for sent_to, body in self.taken if sent_to == path).decode(errors="replace")

    def spans(self) -> list[tuple[str, dict[str, Any]]]:
        """Name and attributes of each span that was sent."""
        found = []
        for path, body in list(self.taken):
            if path == "/v1/traces":
                for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                    found += [span for scope in group.scope_spans for span in scope.spans]
        return [(span.name, {each.key: _value(each.value) for each in span.attributes}) for span in found]


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


class _Taker(BaseHTTPRequestHandler):
    server: Collector

    def log_message(self, *_: object) -> None:
        """Says nothing."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.taken.append((self.path, body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()


@contextlib.contextmanager
def otlp_collector() -> Iterator[Collector]:
    """One that listens, for as long as the context."""
    server = Collector()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
