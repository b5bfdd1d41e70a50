"""WebHDFS servers that misbehave: what they get, and what their answers, headers, cookies and waits do."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from urllib3 import Retry

from stateflow import http
from stateflow.clock import Clock
from stateflow.errors import ConfigError, DataError, StateflowError, StorageError
from stateflow.http import BadAnswer, BoundedRetry
from stateflow.storage import open_storage
from stateflow.storage.hdfs import HdfsStorage, WebHdfs
from tests.servers.hostile import Answer, Asked, HostileServer, answer, hostile_server
from tests.servers.running import CANARY
from tests.support.errors import raises
from tests.support.memory import LIMIT, MemoryPeak

_ONCE = Retry(total=0)
_FILE = {"pathSuffix": "", "type": "FILE", "length": 1, "modificationTime": 0}


def _json(document: object, status: int = 200) -> bytes:
    return answer(status, json.dumps(document).encode(), Content_Type="application/json")


def _storage(server: HostileServer, scheme: str = "webhdfs") -> HdfsStorage:
    return HdfsStorage(scheme, server.host, "/jobs/a", _ONCE)


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("WEBHDFS_TOKEN", CANARY)
    monkeypatch.delenv("WEBHDFS_NAMENODES", raising=False)
    return CANARY


# -- tokens -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trusted", ["", "webhdfs://other:9870", "swebhdfs://<host>", "webhdfs://<host>0"])
def test_a_token_is_not_sent_to_a_name_node_that_is_not_configured(
    token: str, monkeypatch: pytest.MonkeyPatch, trusted: str
) -> None:
    with hostile_server(lambda _: answer(200)) as server:
        monkeypatch.setenv("WEBHDFS_NAMENODES", trusted.replace("<host>", server.host))
        with raises(ConfigError, name_node=f"webhdfs://{server.host}") as refused:
            open_storage(f"webhdfs://{server.host}/jobs/a").get("x")
    assert server.asked == [] and "WEBHDFS_NAMENODES" in refused.value.hint and token not in str(refused.value)


def test_all_name_nodes_of_an_address_must_be_configured(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBHDFS_NAMENODES", "webhdfs://one:9870,webhdfs://two:9870")
    assert HdfsStorage("webhdfs", "one:9870,two:9870", "/jobs/a", _ONCE)
    with raises(ConfigError, name_node="webhdfs://evil:9870"):
        HdfsStorage("webhdfs", "one:9870,evil:9870", "/jobs/a", _ONCE)


@pytest.mark.parametrize("act", ["read", "write"])
def test_a_data_node_gets_neither_token_nor_user(token: str, monkeypatch: pytest.MonkeyPatch, act: str) -> None:
    with hostile_server(lambda _: answer(201)) as data_node:
        location = f"http://{data_node.host}/webhdfs/v1/jobs/a/x?op=OPEN"
        with hostile_server(lambda _: answer(307, Location=location)) as server:
            monkeypatch.setenv("WEBHDFS_NAMENODES", f"webhdfs://{server.host}")
            monkeypatch.setenv("WEBHDFS_DATANODE_PORTS", str(data_node.port))
            hdfs = WebHdfs("webhdfs", server.host, _ONCE, _Ticking())
            if act == "read":
                assert list(hdfs.read("/jobs/a/x", 0, 10)) == []
            else:
                hdfs.write("/jobs/a/x", b"content")
    (asked,) = data_node.asked
    assert token in server.asked[0].line
    assert token not in asked.head and "user.name" not in asked.head
    assert asked.body == (b"content" if act == "write" else b"")


# -- redirections -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.1:<port>/x",
        "http://user@127.0.0.1:9864/x",
        "https://127.0.0.1:9864/x",
        "ftp://127.0.0.1:9864/x",
        "file:///etc/passwd",
        "//127.0.0.1:<port>/x",
        "http://[/x",
        "http://127.0.0.1:99999/x",
        "",
    ],
)
def test_a_request_is_redirected_to_data_nodes_only(location: str) -> None:
    with hostile_server(lambda _: answer(201)) as other:
        location = location.replace("<port>", str(other.port))
        with hostile_server(lambda _: answer(307, Location=location)) as server:
            for act in (lambda: _storage(server).get("x"), lambda: _storage(server).put_new("x", b"secret")):
                with pytest.raises((ConfigError, StorageError)):
                    act()
    assert other.asked == []


@pytest.mark.parametrize("status", [302, 307])
def test_other_requests_are_not_redirected(status: int) -> None:
    with hostile_server(lambda _: answer(201)) as other:
        location = f"http://{other.host}/x"
        with hostile_server(lambda _: answer(status, Location=location)) as server:
            hdfs = WebHdfs("webhdfs", server.host, _ONCE, _Ticking())
            acts: list[Callable[[], object]] = [
                lambda: hdfs.size("/x"),
                lambda: hdfs.list("/x"),
                lambda: hdfs.rename("/x", "/y"),
                lambda: hdfs.make_folder("/x"),
                lambda: hdfs.remove("/x"),
            ]
            for act in acts:
                with pytest.raises(Exception, match=str(status)):
                    act()
    assert other.asked == []


# -- answers ----------------------------------------------------------------------------------------------------------


class _Ticking(Clock):
    """A clock whose time passes with each look at it."""

    def __init__(self, seconds: float = 0) -> None:
        self._seconds, self._now = seconds, 0.0

    def monotonic(self) -> float:
        self._now += self._seconds
        return self._now

    def now(self) -> Any:
        raise NotImplementedError

    def sleep(self, delay: timedelta) -> None:
        raise NotImplementedError

    def new_id(self) -> str:
        raise NotImplementedError


def _endless(head: bytes) -> Iterator[bytes]:
    yield head
    for _ in itertools.count():
        yield b"10000\r\n" + b"x" * 0x10000 + b"\r\n"


_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
_SECRET = b"body-of-the-internal-server"
ANSWERS: dict[str, Callable[[Asked], Answer]] = {
    "401": lambda _: answer(401, _SECRET),
    "403": lambda _: answer(403, _SECRET),
    "403 of HDFS": lambda _: _json({"RemoteException": {"exception": "X", "message": _SECRET.decode()}}, 403),
    "a name that is a text": lambda _: _json({"RemoteException": {"exception": _SECRET.decode() + " \x1b[2J"}}, 500),
    "500": lambda _: answer(500, _SECRET),
    "no HTTP": lambda _: iter([b"SSH-2.0-" + _SECRET + b"\r\n\r\n"]),
    "nothing": lambda _: iter([]),
    "no JSON": lambda _: answer(200, _SECRET),
    "another document": lambda _: _json({"boolean": _SECRET.decode()}),
    "nested JSON": lambda _: answer(200, b"[" * 500_000),
    "endless JSON": lambda _: _endless(_CHUNKED),
    "endless refusal": lambda _: _endless(_CHUNKED.replace(b"200", b"403")),
    "endless header": lambda _: iter([b"HTTP/1.1 200 OK\r\n", *[b"X: " + b"x" * 60_000 + b"\r\n"] * 200]),
    "too short": lambda _: iter([b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + _SECRET]),
    "negative length": lambda _: iter([b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n" + _SECRET]),
    "a folder above": lambda _: _folder(".."),
    "a folder itself": lambda _: _folder(""),
    "a redirection with an endless body": lambda _: _endless(
        _CHUNKED.replace(b"200 OK", b"307 OK\r\nLocation: http://[")
    ),
}
"""By what is wrong with them."""


def _folder(name: str) -> bytes:
    return _json({"FileStatuses": {"FileStatus": [{**_FILE, "pathSuffix": name, "type": "DIRECTORY"}]}})


@pytest.mark.parametrize("act", ["list", "size", "delete", "rename"])
@pytest.mark.parametrize("name", ANSWERS)
def test_a_bad_answer_is_an_error_without_its_text(name: str, act: str) -> None:
    peak = MemoryPeak()
    with hostile_server(ANSWERS[name]) as server:
        storage = _storage(server)
        acts: dict[str, Callable[[], object]] = {
            "list": lambda: storage.list(""),
            "size": lambda: storage.size("x"),
            "delete": lambda: storage.delete(["x"]),
            "rename": lambda: storage.put_new("x", b"x"),
        }
        failed: StateflowError | None = None
        try:
            acts[act]()
        except StateflowError as e:
            failed = e
    assert failed is None or failed.code in ("config", "storage")
    assert failed or act == "rename"
    assert _SECRET.decode() not in str(failed) and "\x1b" not in str(failed)
    assert peak.bytes() <= LIMIT


def _object(size: int, content: Callable[[], Answer]) -> Callable[[Asked], Answer]:
    """Answers of a server that states a size and sends a content."""
    status = _json({"FileStatus": {**_FILE, "length": size}})
    return lambda asked: status if asked.operation == "GETFILESTATUS" else content()


_CONTENTS: dict[str, Callable[[], Answer]] = {
    "endless": lambda: _endless(_CHUNKED),
    "longer": lambda: answer(200, b"x" * 1001),
    "cut": lambda: iter([b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nabc"]),
    "cut in a chunk": lambda: iter([_CHUNKED + b"1000\r\nabc"]),
}


@pytest.mark.parametrize("content", _CONTENTS)
def test_an_object_with_more_or_fewer_bytes_than_stated_is_an_error(tmp_path: Path, content: str) -> None:
    with hostile_server(_object(1000, _CONTENTS[content])) as server:
        storage = _storage(server)
        acts: list[Callable[[], object]] = [
            lambda: list(storage.chunks("x")),
            lambda: storage.fetch("x", tmp_path / "copy"),
            lambda: storage.fetch_part("x", 0, 1000, tmp_path / "copy"),
        ]
        for act in acts:
            with pytest.raises(StorageError):
                act()
            assert not (tmp_path / "copy").exists()


def test_an_object_is_read_up_to_the_limit() -> None:
    with hostile_server(lambda _: answer(200, b"x" * 1001)) as server, raises(DataError, limit=1000):
        _storage(server).get("x", 1000)
    with hostile_server(lambda _: _endless(_CHUNKED)) as server, pytest.raises(StorageError):
        _storage(server).get("x", 1000)


def test_a_transfer_that_is_too_slow_is_an_error() -> None:
    with hostile_server(lambda _: _endless(_CHUNKED)) as server:
        hdfs = WebHdfs("webhdfs", server.host, _ONCE, _Ticking(seconds=200))
        with pytest.raises(BadAnswer):
            for _ in hdfs.read("/x", 0, 1 << 40):
                pass


# -- listings without end ---------------------------------------------------------------------------------------------


def _tree(names: list[str], files: list[str]) -> Callable[[Asked], Answer]:
    """Answers of a NameNode each of whose folders contains these folders and files."""
    folders = [{**_FILE, "pathSuffix": name, "type": "DIRECTORY"} for name in names]
    listing = _json({"FileStatuses": {"FileStatus": [*folders, *({**_FILE, "pathSuffix": name} for name in files)]}})
    return lambda _: listing


@pytest.mark.parametrize("names", ["a", "ab"])
def test_a_listing_descends_no_deeper_than_a_job_root(names: str) -> None:
    with hostile_server(_tree(list(names), ["file"])) as server:
        found = _storage(server).list("data/")
    assert len(found) == len(server.asked) == sum(len(names) ** level for level in range(9))


def test_a_tree_of_empty_folders_is_an_error() -> None:
    with hostile_server(_tree([f"f{n}" for n in range(100)], [])) as server:
        storage = HdfsStorage("webhdfs", server.host, "/jobs/a", _ONCE, most_empty_folders=50)
        with raises(DataError, folder="data", folders=51, files=0):
            storage.list("data/")
    assert len(server.asked) == 50


_BOUNDED_ONCE = BoundedRetry(total=0)
_TWICE = BoundedRetry(total=1, status_forcelist=(503,), allowed_methods=None, raise_on_status=False)
_STATUS = json.dumps({"FileStatus": {"pathSuffix": "", "type": "FILE", "length": 1, "modificationTime": 0}}).encode()
_OK = b"HTTP/1.1 200 OK\r\n"
_PAUSE = 0.05


def _slowly(piece: bytes) -> Iterator[bytes]:
    while True:
        time.sleep(_PAUSE)
        yield piece


def _bounded(server: HostileServer, retries: BoundedRetry = _BOUNDED_ONCE) -> HdfsStorage:
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
        _bounded(server).size("x")
    assert time.monotonic() - started < 10


def test_a_body_in_many_chunks_is_read() -> None:
    chunks = b"".join(b"3;%s\r\nabc\r\n" % (b"x" * 100) for _ in range(5_000))
    body = _OK + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\nTrailer: x\r\n\r\n"
    with hostile_server(lambda _: body) as server:
        assert _bounded(server).get("x") == b"abc" * 5_000


def test_an_answer_that_is_retried_is_neither_read_nor_waited_for() -> None:
    def replies(asked: Asked) -> Answer:
        if len(server.asked) > 1:
            return answer(200, _STATUS)
        head = b"HTTP/1.1 503 Busy\r\nRetry-After: 3600\r\nTransfer-Encoding: chunked\r\n\r\n"
        return itertools.chain([head], _slowly(b"1\r\nx\r\n"))

    started = time.monotonic()
    with hostile_server(replies) as server:
        assert _bounded(server, _TWICE).size("x") == 1
    assert time.monotonic() - started < 10


def test_cookies_are_not_kept() -> None:
    with hostile_server(lambda _: answer(200, _STATUS, Set_Cookie="hadoop.auth=secret; Path=/")) as server:
        storage = _bounded(server)
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
            assert _bounded(server).get("x") == b"data"
    assert not any("authorization" in asked.head.lower() for asked in [*server.asked, *data_node.asked])
