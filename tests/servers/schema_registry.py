"""A schema registry on loopback with the REST interface of Confluent's, in this process."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from tests.servers.certificates import Certificate
from tests.servers.listening import QuietHandler, listening


@dataclass
class Registry:
    """What is registered, and what was asked for.

    Attributes:
        documents: answers by path.
        asked: path and header ``Authorization`` of each request.
    """

    address: str = ""
    documents: dict[str, Any] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)

    def register(self, number: int, schema: object, **more: object) -> None:
        """Registers a schema of an id; `more` are further fields of the answer."""
        self.documents[f"/schemas/ids/{number}"] = {"schema": json.dumps(schema), **more}

    def register_version(self, subject: str, version: int, schema: object, **more: object) -> None:
        self.documents[f"/subjects/{subject}/versions/{version}"] = {"schema": json.dumps(schema), **more}


class _Handler(QuietHandler):
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


@contextlib.contextmanager
def schema_registry(tls: Certificate | None = None) -> Iterator[Registry]:
    """Listens until the end of the context; with a certificate for TLS only."""
    registry = Registry()
    with listening(_Handler, tls, registry=registry) as registry.address:
        yield registry
