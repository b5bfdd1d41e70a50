"""Starts a server, waits until it answers, and stops it by its process."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

_STARTS_WITHIN = 60.0
ROOT = Path(__file__).parents[2]
CANARY = "canary-secret-key"
"""A secret that no test writes to a file: a file that contains it has it from the product."""

JDBC_JARS = sorted(str(path) for path in (Path(sys.prefix) / "jdbc").glob("*.jar"))
"""The driver with which Spark reads tables of PostgreSQL; empty if the set-up did not get it."""


def files_with(secret: str, folder: Path) -> list[str]:
    """Files below a folder that contain the secret."""
    command = ["grep", "--recursive", "--files-with-matches", "--fixed-strings", "--", secret, str(folder)]
    # A file may be deleted during the search, which grep reports by its exit code.
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def options(**values: object) -> list[str]:
    return [word for name, value in values.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def node_program(package: str, script: str) -> list[str]:
    """The command of a script from npm (``tests/servers/package.json``); the test is skipped if it is not installed."""
    node, path = shutil.which("node"), ROOT / ".venv" / "node" / "node_modules" / package / script
    if node is None or not path.exists():
        pytest.skip(f"{package} is not installed: make setup installs it if Node is available")
    return [node, str(path)]


@contextlib.contextmanager
def running(
    command: Sequence[str],
    port: int,
    log: Path,
    cwd: Path = ROOT,
    environment: Mapping[str, str] | None = None,
    *,
    within: float = _STARTS_WITHIN,
) -> Iterator[None]:
    """Runs a program that listens on `port`."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=cwd, env=environment)
    try:
        _wait_for(process, port, log, within)
        yield
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def s3_server(folder: Path, bucket: str, delay_ms: int = 0) -> Iterator[dict[str, str]]:
    port = free_port()
    (folder / "data" / bucket).mkdir(parents=True)
    command = [sys.executable, "-m", "tests.servers.s3", str(folder / "data"), str(port), str(delay_ms)]
    with running(command, port, folder / "log.txt"):
        yield variables_of(f"http://127.0.0.1:{port}")


@contextlib.contextmanager
def careless_s3_server(folder: Path, bucket: str) -> Iterator[dict[str, str]]:
    """s3rver, from npm, which accepts the condition of a put and ignores it."""
    port, data = free_port(), folder / "data"
    given = options(directory=data, address="127.0.0.1", port=port, configure_bucket=bucket)
    command = [*node_program("s3rver", "bin/s3rver.js"), "--silent", *given]
    data.mkdir(parents=True)
    with running(command, port, folder / "log.txt"):
        yield {
            **variables_of(f"http://127.0.0.1:{port}"),
            "AWS_ACCESS_KEY_ID": "S3RVER",
            "AWS_SECRET_ACCESS_KEY": "S3RVER",
        }


@contextlib.contextmanager
def hasty_s3_server(folder: Path, bucket: str) -> Iterator[dict[str, str]]:
    """moto, from PyPI, which checks whether a name is free and then writes, in two steps."""
    modules = ROOT / ".venv" / "moto"
    if not modules.exists():
        pytest.skip("moto is not installed: make setup installs it if PyPI can be reached")
    port = free_port()
    command = [sys.executable, str(ROOT / "tests" / "servers" / "moto_program.py"), str(port)]
    with running(command, port, folder / "log.txt", environment={**os.environ, "PYTHONPATH": str(modules)}):
        # Its requests need no signature.
        httpx.put(f"http://127.0.0.1:{port}/{bucket}").raise_for_status()
        yield variables_of(f"http://127.0.0.1:{port}")


def variables_of(endpoint: str) -> dict[str, str]:
    """Returns the environment variables of clients of an S3 server."""
    return {
        "AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": CANARY, "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true",
    }  # fmt: skip


def _wait_for(process: subprocess.Popen[bytes], port: int, log: Path, within: float) -> None:
    ends = time.monotonic() + within
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        if process.poll() is not None or time.monotonic() > ends:
            raise AssertionError(f"the server did not start:\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.05)


# -- Azure ------------------------------------------------------------------------------------------------------------

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
    node, program = node_program("azurite", "dist/src/blob/main.js")
    corrected = ["--require", str(ROOT / "tests" / "servers" / "azurite_blocks.js")]
    command = [node, *corrected, program, *flags, *given]
    environment = {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{_KEY}", "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    with running(command, port, folder / "log.txt", environment=environment):
        azure_request(address, "PUT", container, {"restype": "container"}).raise_for_status()
        yield {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": _KEY,
            "AZURE_ENDPOINT": address,
            "AZURE_ALLOW_HTTP": "true",
        }


def azure_request(
    address: str, method: str, path: str, query: Mapping[str, str] = {}, content: bytes = b"", **headers: str
) -> httpx.Response:
    """Sends a request to a server of Azure's API.

    Args:
        address: of the server, with the account.
        path: container and name of the blob, encoded.
        query: parameters, not encoded.
        headers: those whose names begin with ``x-ms-``; underscores are hyphens.
    """
    date = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    given = {"x-ms-date": date, "x-ms-version": "2021-08-06"}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    named = "".join(f"{name}:{value}\n" for name, value in sorted(given.items()))
    # The account comes twice: by itself, and in the path of a server without host names.
    resource = f"/{ACCOUNT}/{ACCOUNT}/{path}" + "".join(f"\n{name}:{query[name]}" for name in sorted(query))
    signed = f"{method}\n\n\n{len(content) or ''}" + "\n" * 9 + named + resource
    digest = hmac.new(base64.b64decode(_KEY), signed.encode(), hashlib.sha256).digest()
    given["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    return httpx.request(method, f"{address}/{path}", params=query, headers=given, content=content, timeout=30)
