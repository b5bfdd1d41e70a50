"""Google Cloud Storage: the requests that the client sends to a server of this test."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import pytest

from stateflow.storage import PutResult, open_storage


class Bucket(BaseHTTPRequestHandler):
    """Creates an object only under the condition that there is none."""

    objects: dict[str, bytes]

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["x-goog-if-generation-match"] != "0":
            self._answer(400)
        elif self.path in self.objects:
            self._answer(412)
        else:
            self.objects[self.path] = data
            self._answer(200, {"ETag": '"1"', "x-goog-generation": "1"})

    def _answer(self, status: int, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": "0"}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    handler = type("OneBucket", (Bucket,), {"objects": {}})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        account = {
            "gcs_base_url": f"http://127.0.0.1:{server.server_port}",
            "disable_oauth": True,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        }
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(account))
        monkeypatch.setenv("GOOGLE_ALLOW_HTTP", "true")
        yield handler.objects  # type: ignore[attr-defined]
        server.shutdown()
        thread.join()


def test_an_object_is_created_once_and_never_replaced(bucket: dict[str, bytes]) -> None:
    storage = open_storage("gs://bucket/jobs")
    assert storage.put_new("log/1", b"one") is PutResult.CREATED
    assert storage.put_new("log/1", b"two") is PutResult.EXISTS
    assert {unquote(path): data for path, data in bucket.items()} == {"/bucket/jobs/log/1": b"one"}
