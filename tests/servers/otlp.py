"""A collector on loopback that receives OTLP over HTTP."""

from __future__ import annotations

import contextlib
import gzip
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.servers.listening import QuietHandler, listening


@dataclass
class Collector:
    """Keeps the bodies of requests, with their paths."""

    address: str = ""
    received: list[tuple[str, bytes]] = field(default_factory=list)

    def text(self, path: str) -> str:
        """All bodies of a path; texts in protocol buffers are readable."""
        return b"".join(body for sent_to, body in self.received if sent_to == path).decode(errors="replace")

    def spans(self) -> list[tuple[str, dict[str, Any]]]:
        """Name and attributes of each span."""
        requests = [ExportTraceServiceRequest.FromString(body) for path, body in self.received if path == "/v1/traces"]
        scopes = [scope for request in requests for group in request.resource_spans for scope in group.scope_spans]
        return [
            (span.name, {a.key: _value(a.value) for a in span.attributes}) for scope in scopes for span in scope.spans
        ]


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


class _Handler(QuietHandler):
    collector: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        is_compressed = self.headers.get("Content-Encoding") == "gzip"
        self.collector.received.append((self.path, gzip.decompress(body) if is_compressed else body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()


@contextlib.contextmanager
def otlp_collector() -> Iterator[Collector]:
    collector = Collector()
    with listening(_Handler, collector=collector) as collector.address:
        yield collector
