"""HTTP servers in a thread of this process, and their certificate; among them a registry of schemas."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Certificate:
    """PEM files: a certificate that is its own authority, and both it and its private key in PKCS #8."""

    ca_file: Path
    key_file: Path


def certificate(folder: Path) -> Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    start = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, start, start.replace(year=2060))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    public = signed.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    made = Certificate(folder / "ca.pem", folder / "key.pem")
    made.ca_file.write_bytes(public)
    made.key_file.write_bytes(private + public)
    return made


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


# -- a schema registry ------------------------------------------------------------------------------------------------


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
