"""S3 servers that misbehave: nothing of their answers' texts is in an error or in the log."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import pytest

from stateflow.errors import StateflowError
from stateflow.storage import PutResult
from stateflow.storage.object_store import ObjectStorage
from tests.servers.hostile import Answer, Asked, HostileServer, answer, hostile_server

if TYPE_CHECKING:
    from obstore.store import RetryConfig

_ONCE: RetryConfig = {"max_retries": 0}
_SECRET = b"body-of-the-internal-server"
_XML = b"<Error><Code>X</Code><Message>" + _SECRET + b"</Message></Error>"


def _refuse(status: int, _: Asked) -> Answer:
    return answer(status, _XML)


ANSWERS: dict[str, Callable[[Asked], Answer]] = {
    **{str(status): partial(_refuse, status) for status in (400, 401, 403, 404, 409, 412, 500)},
    "control characters": lambda _: answer(400, b"\x1b[2J" + _SECRET),
    "several lines": lambda _: answer(403, b"\n\n" + _SECRET),
    "no document": lambda _: answer(200, _SECRET, ETag="x"),
    "no HTTP": lambda _: iter([b"SSH-2.0-" + _SECRET + b"\r\n\r\n"]),
    "cut": lambda _: iter([b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nETag: x\r\n\r\n" + _SECRET]),
}


def _configure(server: HostileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"ENDPOINT_URL": f"http://{server.host}", "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b"}
    more = {"REGION": "us-east-1", "ALLOW_HTTP": "true", "SESSION_TOKEN": "c"}
    for variable, value in {**variables, **more}.items():
        monkeypatch.setenv(f"AWS_{variable}", value)


@pytest.mark.parametrize("act", ["get", "list", "put", "delete"])
@pytest.mark.parametrize("name", ANSWERS)
def test_a_bad_answer_is_an_error_without_its_text(
    name: str, act: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with hostile_server(ANSWERS[name]) as server:
        _configure(server, monkeypatch)
        bucket = ObjectStorage("s3", "bucket", "p", _ONCE)
        acts: dict[str, Callable[[], object]] = {
            "get": lambda: bucket.size("x"),
            "list": lambda: bucket.list(""),
            "put": lambda: bucket.put_new("x", b"y"),
            "delete": lambda: bucket.delete(["x"]),
        }
        try:
            shown = str(acts[act]())
        except StateflowError as e:
            assert e.code in ("config", "storage", "missing-file")
            shown = str(e)
        else:
            assert act != "list" and shown in ("None", "27", "1000", *map(str, PutResult)), shown
    assert _SECRET.decode() not in shown + caplog.text
    assert "\x1b" not in shown + caplog.text


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_server_that_a_request_is_redirected_to_gets_no_signature_and_no_content(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hostile_server(lambda _: answer(200, _SECRET, ETag="x")) as other:
        location = f"http://localhost:{other.port}/bucket/p/x"
        with hostile_server(lambda _: answer(status, Location=location)) as server:
            _configure(server, monkeypatch)
            bucket = ObjectStorage("s3", "bucket", "p", _ONCE)
            acts: list[Callable[[], object]] = [
                lambda: bucket.get("x"),
                lambda: bucket.size("x"),
                lambda: bucket.list(""),
                lambda: bucket.put_new("x", b"the content"),
                lambda: bucket.delete(["x"]),
            ]
            for act in acts:
                with contextlib.suppress(StateflowError):
                    act()
    assert server.asked
    for asked in other.asked:
        assert "authorization" not in asked.head.lower()
        assert b"the content" not in asked.body
