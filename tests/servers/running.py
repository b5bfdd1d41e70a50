"""Starts a server, waits until it answers, and stops it by its process."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import httpx
import pytest

_STARTS_WITHIN = 60.0
ROOT = Path(__file__).parents[2]
CANARY = "canary-secret-key"
"""A secret that no test writes down: wherever it is found in a file, somebody has told it."""


def files_with(secret: str, folder: Path) -> list[str]:
    """Files below a folder that have it; read as bytes, and in any number."""
    command = ["grep", "--recursive", "--files-with-matches", "--fixed-strings", "--", secret, str(folder)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    # A file may go while it is looked for.
    return found.stdout.splitlines()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def running(
    command: Sequence[str], port: int, log: Path, cwd: Path = ROOT, environment: Mapping[str, str] | None = None
) -> Iterator[None]:
    """A program that listens on `port`, for as long as the context."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=cwd, env=environment)
    try:
        _wait_for(process, port, log)
        yield
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def s3_server(folder: Path, bucket: str) -> Iterator[dict[str, str]]:
    """An S3 server with one bucket; gives the environment by which clients find it."""
    port = free_port()
    (folder / "data" / bucket).mkdir(parents=True)
    command = [sys.executable, "-m", "tests.servers.s3", str(folder / "data"), str(port)]
    with running(command, port, folder / "log.txt"):
        yield _variables(port)


@contextlib.contextmanager
def careless_s3_server(folder: Path, bucket: str) -> Iterator[dict[str, str]]:
    """s3rver, from npm: it takes the condition of a put, and does not heed it."""
    from tests.servers.node import command

    port = free_port()
    options = [
        "--directory",
        str(folder / "data"),
        "--address",
        "127.0.0.1",
        "--port",
        str(port),
        "--silent",
        "--configure-bucket",
        bucket,
    ]
    (folder / "data").mkdir(parents=True)
    with running([*command("s3rver", "bin/s3rver.js"), *options], port, folder / "log.txt"):
        yield {**_variables(port), "AWS_ACCESS_KEY_ID": "S3RVER", "AWS_SECRET_ACCESS_KEY": "S3RVER"}


@contextlib.contextmanager
def hasty_s3_server(folder: Path, bucket: str) -> Iterator[dict[str, str]]:
    """moto, from PyPI: it looks whether a name is free, and then writes."""
    modules = ROOT / ".venv" / "moto"
    if not modules.exists():
        pytest.skip("moto is not installed: make setup installs it where PyPI can be reached")
    port = free_port()
    command = [sys.executable, str(ROOT / "tests" / "servers" / "moto_program.py"), str(port)]
    environment = {**os.environ, "PYTHONPATH": str(modules)}
    with running(command, port, folder / "log.txt", environment=environment):
        # No request needs a signature there.
        httpx.put(f"http://127.0.0.1:{port}/{bucket}").raise_for_status()
        yield _variables(port)


def _variables(port: int) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": CANARY,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
    }


def _wait_for(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Until it takes connections: each try waits for itself."""
    import time

    ends = time.monotonic() + _STARTS_WITHIN
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        if process.poll() is not None or time.monotonic() > ends:
            raise AssertionError(f"the server did not start:\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.05)
