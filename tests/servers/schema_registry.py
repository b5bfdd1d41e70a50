"""A schema registry on loopback with the REST interface of Confluent's, in this process."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from tests.servers.certificates import Certificate


@dataclass
class Registry:
    """What is registered, and what was asked for.

    Attributes:
        documents: answers by path.
        asked: path and header ``Authorization`` of each request.
    """

    address: str
    documents: dict[str, Any] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)

    def register(self, number: int, schema: object, **more: object) -> None:
        """Registers a schema of an id; `more` are further fields of the answer."""
        self.documents[f"/schemas/ids/{number}"] = {"schema": json.dumps(schema), **more}

    def register_version(self, subject: str, version: int, schema: object, **more: object) -> None:
        self.documents[f"/subjects/{subject}/versions/{version}"] = {"schema": json.dumps(schema), **more}


class _Handler(BaseHTTPRequestHandler):
    registry: Registry

    def do_GET(self) -> None:
        path = unquote(self.path)
        self.registry.asked.append((path, self.headers.get("Authorization", "")))
        found = self.registry.documents.get(path)
        if found is None:
            self._send(404, {"error_code": 40403 if path.startswith("/schemas") else 40402, "message": "not found"})
        else:
            self._send(200, found)

    def _send(self, status: int, document: Mapping[str, object]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Prints nothing."""


@contextlib.contextmanager
def schema_registry(tls: Certificate | None = None) -> Iterator[Registry]:
    """Listens until the end of the context; with a certificate for TLS only."""
    handler: Any = type("Handler", (_Handler,), {})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls.key_file)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme = "https" if tls else "http"
        registry = handler.registry = Registry(f"{scheme}://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield registry
        server.shutdown()
        thread.join()
