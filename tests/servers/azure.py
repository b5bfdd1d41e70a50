"""An Azure Blob Storage server: Azurite, from npm."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx

from tests.servers.running import CANARY, free_port, node_program, options, running

ACCOUNT = "tests"
_KEY = base64.b64encode(CANARY.encode().ljust(64, b"-")).decode()


@contextlib.contextmanager
def azure_server(folder: Path, container: str) -> Iterator[dict[str, str]]:
    """A server with one container; yields the environment variables of its clients."""
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    address = f"http://127.0.0.1:{port}/{ACCOUNT}"
    flags = ["--silent", "--disableTelemetry", "--skipApiVersionCheck"]
    given = options(blobHost="127.0.0.1", blobPort=port, location=folder / "data")
    command = [*node_program("azurite", "dist/src/blob/main.js"), *flags, *given]
    environment = {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{_KEY}", "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    with running(command, port, folder / "log.txt", environment=environment):
        headers = _signed(container)
        httpx.put(f"{address}/{container}?restype=container", headers=headers, timeout=30).raise_for_status()
        yield {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": _KEY,
            "AZURE_ENDPOINT": address,
            "AZURE_ALLOW_HTTP": "true",
        }


def _signed(container: str) -> dict[str, str]:
    date = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    headers = {"x-ms-date": date, "x-ms-version": "2021-08-06"}
    named = "".join(f"{name}:{value}\n" for name, value in headers.items())
    # The account comes twice: by itself, and in the path of a server without host names.
    signed = "PUT" + "\n" * 12 + f"{named}/{ACCOUNT}/{ACCOUNT}/{container}\nrestype:container"
    digest = hmac.new(base64.b64decode(_KEY), signed.encode(), hashlib.sha256).digest()
    return {**headers, "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"}
