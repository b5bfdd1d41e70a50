"""Calls of Airflow's API while its SQLite database is locked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from flights_demo.client import AirflowClient, AirflowError

LOCKED = (500, {"detail": {"reason": "Database error", "orig_error": "hidden"}})
BROKEN = (500, {"detail": "Internal Server Error"})


class ScriptedAirflow(ThreadingHTTPServer):
    """Gives out a token, then one answer after the other."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[tuple[int, object]] = [(200, {"access_token": "x"})]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: ScriptedAirflow

    def log_message(self, *_: object) -> None:
        """Logs nothing."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, document = self.server.answers.pop(0)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(document).encode())

    do_GET = do_PATCH = do_POST


@pytest.fixture
def airflow() -> Iterator[ScriptedAirflow]:
    with ScriptedAirflow() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_call_is_repeated_while_the_database_is_locked(airflow: ScriptedAirflow) -> None:
    airflow.answers += [LOCKED, LOCKED, (200, {"state": "success"})]
    client = AirflowClient(airflow.url, "admin", "admin")
    assert client.run_state("flights", "one") == "success"
    assert airflow.answers == []


def test_any_other_failure_is_an_error_at_once(airflow: ScriptedAirflow) -> None:
    airflow.answers += [BROKEN, (200, {})]
    client = AirflowClient(airflow.url, "admin", "admin")
    with pytest.raises(AirflowError):
        client.run_state("flights", "one")
    assert len(airflow.answers) == 1
