"""The server of the pages: who reaches it, and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from stateflow.errors import ConfigError
from stateflow.private_files import write_private
from stateflow.serving.connections import LARGEST_HEAD
from stateflow.ui.catalog import RootCatalog
from stateflow.ui.server import PagesServer, PagesSettings
from tests.support.cli_fixture import invoke
from tests.support.errors import raises
from tests.ui.pages_job import PagesJob

TOKEN = "s3cret-token-of-pages"


@contextlib.contextmanager
def serving(job_root: str, **settings: Any) -> Iterator[PagesServer]:
    with PagesServer(RootCatalog([job_root]), PagesSettings(**settings)) as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            yield server
        finally:
            server.stop()
            thread.join()


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> PagesJob:
    job = PagesJob(tmp_path_factory.mktemp("job"))
    job.grow()
    return job


def test_at_a_loopback_address_only_its_names_are_accepted(job: PagesJob) -> None:
    with serving(job.address, allowed_hosts=frozenset({"Pages.Example"})) as server:
        path = f"{server.url}/api/v1/jobs"
        assert httpx.get(path).json()["jobs"][0]["job"] == "job"
        for host in ("localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:80", "pages.example", "pages.example:443"):
            assert httpx.get(path, headers={"host": host}).status_code == 200, host
        # The page of a site whose name resolves to this address.
        for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "", "0.0.0.0", "[::2]", "a@b"):
            for target in ("/api/v1/jobs", "/", "/api/v1/openapi.json"):
                answer = httpx.get(f"{server.url}{target}", headers={"host": host})
                assert answer.status_code in (400, 421) and "flights" not in answer.text, host
                assert answer.status_code == 400 or answer.headers["x-content-type-options"] == "nosniff"
        status, _ = _raw(server, b"GET /api/v1/jobs HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n\r\n")
        assert status in (b"400", b"421")


def _raw(server: PagesServer, request: bytes) -> tuple[bytes, bytes]:
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=10) as raw:
        received = b""
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            raw.sendall(request)
            while b"\r\n\r\n" not in received and (piece := raw.recv(1 << 16)):
                received += piece
    return (received.split(b" ")[1] if received else b""), received


def test_beyond_loopback_a_token_is_required(job: PagesJob) -> None:
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.com"):
        with raises(ConfigError, host=host):
            PagesServer(RootCatalog([job.address]), PagesSettings(host=host))
    for token in ("a b", "a\n", "é", "x" * 5000, "x" * 15):
        with raises(ConfigError):
            PagesServer(RootCatalog([job.address]), PagesSettings(token=token))
    with serving(job.address, host="0.0.0.0", token=TOKEN) as server:
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        first = httpx.get(f"{url}/api/v1/jobs")
        wrong = httpx.get(f"{url}/api/v1/jobs", headers={"authorization": "Bearer x"})
        assert (first.status_code, wrong.status_code) == (401, 401)
        # Who has not sent one yet has not sent a wrong one.
        assert first.json()["error"]["message"] != wrong.json()["error"]["message"]
        assert httpx.get(f"{url}/api/v1/jobs", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
        # The token decides, whatever name the host has.
        given = {"authorization": f"Bearer {TOKEN}", "host": "pages.example"}
        assert httpx.get(f"{url}/api/v1/jobs", headers=given).status_code == 200
        # The page itself, which asks for the token, and is the same for every job root.
        page = httpx.get(url)
        assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
        assert job.address not in page.text


def test_requests_that_are_too_large_or_hostile_end(job: PagesJob) -> None:
    with serving(job.address) as server:
        large = b"GET /api/v1/jobs HTTP/1.1\r\nhost: localhost\r\nx: " + b"x" * 100 * LARGEST_HEAD
        assert _raw(server, large)[0] == b""
        assert _raw(server, b"\0\r\n\r\n")[0] == b"400"
        assert _raw(server, b"GET //evil.example/ HTTP/1.1\r\nhost: localhost\r\n\r\n")[1].count(b"location") == 0
        assert httpx.get(f"{server.url}/api/v1/jobs").status_code == 200


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    token = folder / "token"
    token.unlink(missing_ok=True)
    write_private(token, f"{TOKEN}\n".encode())
    command = [sys.executable, "-m", "stateflow", "ui", "--port", "0", "--token-file", str(token), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ})


@pytest.mark.long(reason="starts a process")
def test_the_command_serves_until_sigterm(job: PagesJob, tmp_path: Path) -> None:
    with start(tmp_path, "--job-root", job.address, "--roots", str(job.folder)) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        assert httpx.get(f"{url}/api/v1/jobs").status_code == 401
        answer = httpx.get(f"{url}/api/v1/jobs", headers={"authorization": f"Bearer {TOKEN}"})
        # The root that is found is the one that is given.
        assert [row["job_root"] for row in answer.json()["jobs"]] == [job.address]
        assert TOKEN not in answer.text
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == -signal.SIGTERM or process.returncode == 0


_HANGING = """
import sys, threading
from stateflow.process_limits import ends_at_sigterm
from stateflow.storage.paths import HISTORY
from stateflow.ui.catalog import RootCatalog
from stateflow.ui.roots import CatalogJob
from stateflow.ui.server import PagesServer
from tests.ui.test_roots import Switch, new_root

class Hanging(Switch):
    def get(self, key, limit=1 << 30):
        if key.startswith(HISTORY):
            print("hangs", flush=True)
            threading.Event().wait()
        return super().get(key, limit)

storage = Hanging()
new_root(storage, 300)

class Catalog(RootCatalog):
    def jobs(self):
        return {"stuck": CatalogJob("stuck", storage.uri, lambda: storage)}

with PagesServer(Catalog([])) as server, ends_at_sigterm(server.stop):
    print(server.url, flush=True)
    server.run()
"""


@pytest.mark.long(reason="starts a process")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_server_answers_and_ends_although_a_storage_hangs(number: signal.Signals) -> None:
    command = [sys.executable, "-c", _HANGING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url, answered = process.stdout.readline().strip(), []

        def ask() -> None:
            answered.append(httpx.get(f"{url}/api/v1/jobs/stuck", timeout=60).status_code)

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            assert process.stdout.readline().strip() == "hangs"
            process.send_signal(number)
            # A second of grace for requests, and some for a busy machine. The request itself would wait five.
            process.wait(4)
        finally:
            process.kill()
            asking.join()
        assert process.stderr is not None
        assert answered == [503] and "ASGI" not in process.stderr.read()


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--job-root", "x", "--host", "0.0.0.0"],
        ["--job-root", "x", "--token-file", "/nowhere/token"],
        ["--job-root", "x", "--allowed-host", "http://a"],
        ["--job-root", "x", "--allowed-host", "a:80"],
        ["--roots", "s3:bucket"],
    ],
)
def test_a_wrong_command_is_refused(words: list[str]) -> None:
    ended = invoke("ui", "--port", "0", *words)
    assert ended.exit_code == 2 and "hint:" in ended.stderr


def test_a_token_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o644)
    ended = invoke("ui", "--job-root", str(tmp_path), "--port", "0", "--token-file", str(token))
    assert ended.exit_code == 2 and json.dumps(str(token))[1:-1] in ended.stderr
