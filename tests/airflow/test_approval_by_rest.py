"""The guide's approval by REST: what its commands send is what the client sends that answers a real Airflow."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from flights_demo.client import AirflowClient

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "recover-at-3-am.md"
RUN = "manual__2026-01-31T03:00:00+00:00"


class Recorder(HTTPServer):
    """An Airflow that takes every request, and remembers those that have a token."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[tuple[str, str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Recorder

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Authorization") == "Bearer secret":
            path = self.path.replace("%3A", ":").replace("%2B", "+")
            self.server.requests.append((self.command, path, json.loads(body or b"null")))
        data = json.dumps({"access_token": "secret", "body": "the plan"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PATCH = _answer

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the requests are remembered."""


@pytest.fixture
def airflow() -> Iterator[Recorder]:
    with Recorder() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_the_guide_s_commands_send_what_the_client_sends(airflow: Recorder) -> None:
    client = AirflowClient(airflow.url, "admin", "admin")
    client.answer("flights_recovery", RUN, "approve", "Approve", {"note": "seen"})
    (wanted,) = airflow.requests
    airflow.requests.clear()
    (block,) = re.findall(r"^```bash\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    names = {"AIRFLOW": airflow.url, "TOKEN": "secret", "RUN": RUN, "no_proxy": "*"}
    done = subprocess.run(
        ["bash", "-eu", "-c", block], env={**os.environ, **names}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "the plan" in done.stdout, done.stderr
    look, answer = airflow.requests
    assert answer == wanted
    assert look == ("GET", wanted[1], None)
