"""WebHDFS servers that misbehave outside of the bodies of their answers: headers, cookies, waits, and passwords."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stateflow import http
from stateflow.errors import ConfigError, StorageError
from stateflow.http import BoundedRetry
from stateflow.storage.hdfs import HdfsStorage
from tests.servers.hostile import Answer, Asked, HostileServer, answer, hostile_server

_ONCE = BoundedRetry(total=0)
_TWICE = BoundedRetry(total=1, status_forcelist=(503,), allowed_methods=None, raise_on_status=False)
_STATUS = json.dumps({"FileStatus": {"pathSuffix": "", "type": "FILE", "length": 1, "modificationTime": 0}}).encode()
_OK = b"HTTP/1.1 200 OK\r\n"
_PAUSE = 0.05


def _slowly(piece: bytes) -> Iterator[bytes]:
    while True:
        time.sleep(_PAUSE)
        yield piece


def _storage(server: HostileServer, retries: BoundedRetry = _ONCE) -> HdfsStorage:
    return HdfsStorage("webhdfs", server.host, "/jobs/a", retries)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "LINE_SECONDS", 0.5)


_ENDLESS = {
    "interim answers": [_slowly(b"HTTP/1.1 100 Continue\r\n\r\n")],
    "a slow status": [_slowly(b"H")],
    "a slow header": [[_OK + b"X: "], _slowly(b"x")],
    "slow headers": [[_OK], _slowly(b"X: x\r\n")],
    "a slow chunk": [[_OK + b"Transfer-Encoding: chunked\r\n\r\n1;"], _slowly(b"x")],
    "slow trailers": [[_OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n"], _slowly(b"X: x\r\n")],
}


@pytest.mark.parametrize("parts", _ENDLESS.values(), ids=_ENDLESS)
@pytest.mark.usefixtures("impatient")
def test_an_answer_whose_lines_do_not_end_in_time_is_an_error(parts: list[list[bytes]]) -> None:
    started = time.monotonic()
    with hostile_server(lambda _: itertools.chain(*parts)) as server, pytest.raises(StorageError):
        _storage(server).size("x")
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("endless", [b"HTTP/1.1 100 Continue\r\n\r\n", _OK + b"X: " + b"x" * 60_000 + b"\r\n"])
def test_lines_of_an_answer_that_are_too_long_are_an_error(endless: bytes) -> None:
    with hostile_server(lambda _: itertools.repeat(endless, 100_000)) as server, pytest.raises(StorageError):
        _storage(server).size("x")


def test_a_body_in_many_chunks_is_read() -> None:
    chunks = b"".join(b"3;%s\r\nabc\r\n" % (b"x" * 100) for _ in range(5_000))
    body = _OK + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\nTrailer: x\r\n\r\n"
    with hostile_server(lambda _: body) as server:
        assert _storage(server).get("x") == b"abc" * 5_000


def test_an_answer_that_is_retried_is_neither_read_nor_waited_for() -> None:
    def replies(asked: Asked) -> Answer:
        if len(server.asked) > 1:
            return answer(200, _STATUS)
        head = b"HTTP/1.1 503 Busy\r\nRetry-After: 3600\r\nTransfer-Encoding: chunked\r\n\r\n"
        return itertools.chain([head], _slowly(b"1\r\nx\r\n"))

    started = time.monotonic()
    with hostile_server(replies) as server:
        assert _storage(server, _TWICE).size("x") == 1
    assert time.monotonic() - started < 10


def test_cookies_are_not_kept() -> None:
    with hostile_server(lambda _: answer(200, _STATUS, Set_Cookie="hadoop.auth=secret; Path=/")) as server:
        storage = _storage(server)
        assert [storage.size("x") for _ in range(2)] == [1, 1]
    assert not any("cookie" in asked.head.lower() for asked in server.asked)


def test_no_server_gets_a_password_of_netrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("default login ada password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    with hostile_server(lambda _: answer(200, b"data")) as data_node:
        monkeypatch.setenv("WEBHDFS_DATANODE_PORTS", str(data_node.port))
        with hostile_server(lambda _: answer(307, Location=f"http://localhost:{data_node.port}/x")) as server:
            assert _storage(server).get("x") == b"data"
    assert not any("authorization" in asked.head.lower() for asked in [*server.asked, *data_node.asked])


@pytest.mark.parametrize("status", [401, 503])
def test_a_refusal_that_does_not_end_is_an_error(status: int) -> None:
    head = f"HTTP/1.1 {status} No\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    endless = itertools.chain([head], itertools.repeat(b"8\r\naaaaaaaa\r\n"))
    with hostile_server(lambda _: endless) as server, pytest.raises((ConfigError, StorageError)):
        _storage(server, _TWICE).size("x")
