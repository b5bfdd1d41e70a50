"""An Azure Blob Storage server: Azurite, from npm, in the folder that the set-up made for it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.client
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from tests.servers.node import command
from tests.servers.running import CANARY, free_port, running

ACCOUNT = "tests"
_KEY = base64.b64encode(CANARY.encode().ljust(64, b"-")).decode()
_VERSION = "2021-08-06"


@contextlib.contextmanager
def azure_server(folder: Path, container: str) -> Iterator[dict[str, str]]:
    """A server with one container; gives the environment by which clients find it."""
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    program = command("azurite", "dist/src/blob/main.js")
    options = [
        "--blobHost",
        "127.0.0.1",
        "--blobPort",
        str(port),
        "--location",
        str(folder / "data"),
        "--silent",
        "--disableTelemetry",
        "--skipApiVersionCheck",
    ]
    environment = {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{_KEY}", "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    with running([*program, *options], port, folder / "log.txt", environment=environment):
        _make_container(port, container)
        yield {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": _KEY,
            "AZURE_ENDPOINT": f"http://127.0.0.1:{port}/{ACCOUNT}",
            "AZURE_ALLOW_HTTP": "true",
        }


def _make_container(port: int, container: str) -> None:
    date = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    headers = {"x-ms-date": date, "x-ms-version": _VERSION, "Content-Length": "0"}
    told = "".join(f"{name}:{headers[name]}\n" for name in ("x-ms-date", "x-ms-version"))
    # The account stands twice: as such, and in the path of a server without names of hosts.
    lines = "\n" * 12
    signed = f"PUT{lines}{told}/{ACCOUNT}/{ACCOUNT}/{container}\nrestype:container"
    digest = hmac.new(base64.b64decode(_KEY), signed.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("PUT", f"/{ACCOUNT}/{container}?restype=container", headers=headers)
        answer = connection.getresponse()
        assert answer.status == 201, answer.read().decode()
    finally:
        connection.close()
