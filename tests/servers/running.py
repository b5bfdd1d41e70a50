"""Starts a server, waits until it answers, and stops it by its process."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_STARTS_WITHIN = 60.0
ROOT = Path(__file__).parents[2]


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def running(
    command: Sequence[str],
    port: int,
    log: Path,
    cwd: Path = ROOT,
    environment: Mapping[str, str] | None = None,
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
        yield {
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "canary-secret-key",
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
