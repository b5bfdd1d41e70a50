"""HDFS through WebHDFS, over a real NameNode and DataNode."""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path, PosixPath
from typing import Any

import pytest
import requests
from hdfs import InsecureClient
from urllib3 import Retry

from stateflow import http
from stateflow.clock import Clock, SystemClock
from stateflow.errors import ConfigError, DataError, MissingFile, StateflowError, StorageError
from stateflow.http import BadAnswer, BoundedRetry
from stateflow.storage import Credentials, PutResult, Storage, hdfs, open_storage
from stateflow.storage.hdfs import HdfsStorage, ListLimits, Page, WebHdfs
from stateflow.testing.conformance.storage import StorageConformance, at_once
from tests.servers.faults import ANSWERS, LATE_REQUEST, LOST_ANSWER, LOST_REQUEST, NOT_READY, Faults, fault_proxy
from tests.servers.hdfs import HADOOP_2, HTTP_FS, NAME_NODE, hdfs_server, webhdfs_server
from tests.servers.hostile import Answer, Asked, HostileServer, answer, hostile_server
from tests.servers.running import CANARY, free_port
from tests.storage.savepoints_over_storages import SavepointClaims, SavepointCopies
from tests.support.errors import raises
from tests.support.memory import LIMIT, MemoryPeak
from tests.support.object_stores import bucket_of, serve_hdfs
from tests.support.processes import wait_for
from tests.support.traffic import own_traffic

_numbers = itertools.count()
_DAY_MS = 24 * 60 * 60 * 1000
_ONCE = Retry(total=0)
_QUICK = Retry(total=2, backoff_factor=0.01, allowed_methods=None)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    # Nearly every list takes several pages.
    with hdfs_server(tmp_path_factory.mktemp("hdfs"), page=3) as server:
        yield server.address


@pytest.fixture
def folder() -> str:
    return f"/jobs/{next(_numbers)}"


@pytest.fixture
def storage(address: str, folder: str) -> Storage:
    return open_storage(address + folder)


@pytest.fixture
def client(address: str) -> InsecureClient:
    """The library by itself, by which tests see what is really there."""
    return InsecureClient(address.replace("webhdfs", "http"), "root")


@pytest.mark.slow(reason="the whole suite over a real NameNode, which syncs each file: a minute")
class TestHdfs(SavepointClaims, SavepointCopies, StorageConformance):
    rounds = 5

    @pytest.fixture
    def storage(self, address: str, folder: str) -> Storage:
        return open_storage(address + folder)


@pytest.mark.slow(reason="needs a running NameNode")
def test_a_write_leaves_one_file_without_access_for_others(
    storage: Storage, client: InsecureClient, folder: str, tmp_path: Path
) -> None:
    for name in ("first", "other"):
        (tmp_path / name).write_bytes(name.encode())
    storage.put_new("data/a", b"x")
    assert storage.put_new("data/a", b"y") is PutResult.EXISTS
    for _ in range(2):
        storage.put_file("data/b", tmp_path / "first")
    with raises(StorageError, key="data/b", storage=storage.uri, stored_bytes=5, new_bytes=5):
        storage.put_file("data/b", tmp_path / "other")
    assert client.list(f"{folder}/.aside") == []
    assert client.status(folder)["permission"] == "700"
    assert {status["permission"] for _, status in client.list(f"{folder}/data", status=True)} == {"600"}


@pytest.mark.long(reason="starts HDFS")
def test_files_of_a_killed_writer_are_not_listed_and_removed_after_a_day(
    storage: Storage, client: InsecureClient, folder: str
) -> None:
    storage.remove_abandoned_files()
    assert storage.list("") == []
    storage.put_new("a", b"x")
    for name in ("old", "young"):
        client.write(f"{folder}/.aside/{name}", b"half")
    client.set_times(f"{folder}/.aside/old", modification_time=int(time.time() * 1000) - _DAY_MS - 1000)
    assert [blob.key for blob in storage.list("")] == ["a"]
    storage.remove_abandoned_files()
    assert client.list(f"{folder}/.aside") == ["young"]


def test_an_upload_of_hours_is_not_removed(storage: Storage, client: InsecureClient, folder: str) -> None:
    """HDFS does not change the time of a file while it is written."""
    aside = f"{folder}/.aside"
    uploads: list[str] = []

    def found() -> list[str]:
        return client.list(aside) if client.status(aside, strict=False) else []

    class Slow(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() == 50:
                wait_for(lambda: bool(found()), lambda: "the file")
                uploads.extend(found())
                hours_ago = int(time.time() * 1000) - _DAY_MS // 4
                client.set_times(f"{aside}/{uploads[0]}", modification_time=hours_ago)
                storage.remove_abandoned_files()
            return super().read(50)

    class SlowFile(PosixPath):
        def open(self, *_: Any, **__: Any) -> Any:
            return Slow(b"x" * 100)

    storage.put_file("data/slow", SlowFile("slow"))
    assert len(uploads) == 1
    assert storage.get("data/slow") == b"x" * 100
    assert client.list(aside) == []


def test_the_next_name_node_is_used_when_the_first_does_not_respond(address: str, folder: str) -> None:
    hosts = f"127.0.0.1:{free_port()},{address.removeprefix('webhdfs://')}"
    storage = HdfsStorage("webhdfs", hosts, folder, _ONCE)
    assert open_storage(f"webhdfs://{hosts}{folder}").uri == storage.uri
    assert storage.put_new("a", b"x") is PutResult.CREATED
    assert open_storage(address + folder).get("a") == b"x"


def test_without_a_name_node_the_error_names_the_address_and_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_USER_NAME", "ada")
    monkeypatch.setenv("WEBHDFS_TOKEN", CANARY)
    passed_on = Credentials.of_process()
    assert {"HADOOP_USER_NAME", "WEBHDFS_TOKEN"} <= dict(passed_on.variables).keys()
    port = free_port()
    monkeypatch.setenv("WEBHDFS_NAMENODES", f"webhdfs://127.0.0.1:{port}")
    storage = HdfsStorage("webhdfs", f"127.0.0.1:{port}", "/jobs/a", _ONCE)
    for use in (lambda: storage.get("a"), lambda: storage.put_new("a", b"x"), lambda: storage.list("")):
        with raises(StorageError, storage=storage.uri) as failed:
            use()
        assert os.strerror(errno.ECONNREFUSED) in str(failed.value.facts["reason"])
        assert CANARY not in str(failed.value) + repr(failed.value.facts) + repr(passed_on)


def test_missing_permission_is_an_error_that_names_the_variable_for_the_user(
    address: str, client: InsecureClient, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.makedirs(folder, permission="700")
    monkeypatch.setenv("HADOOP_USER_NAME", "stranger")
    with raises(ConfigError, storage=address + folder, exception="AccessControlException") as refused:
        open_storage(address + folder).put_new("a", b"x")
    assert "HADOOP_USER_NAME" in refused.value.hint


def test_a_forked_process_opens_its_own_connections(address: str, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    request, used = requests.Session.request, set()

    def noted(session: requests.Session, *arguments: Any, **options: Any) -> requests.Response:
        used.add(session)
        return request(session, *arguments, **options)

    monkeypatch.setattr(requests.Session, "request", noted)
    storage = HdfsStorage("webhdfs", address.removeprefix("webhdfs://"), folder)
    storage.put_new("a", b"x")
    assert storage.get("a") == b"x" and len(used) == 1
    child = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: child)
    assert storage.get("a") == b"x" and len(used) == 2


# --- A network that loses requests and answers ----------------------------------------------------------------------


@pytest.fixture
def faults() -> Faults:
    return Faults(random.Random(1), 0.0, (LOST_REQUEST, LOST_ANSWER, LATE_REQUEST))


@pytest.fixture
def shaken(address: str, folder: str, faults: Faults) -> Iterator[Callable[..., Storage]]:
    """Storages that are reached through a network with faults."""
    with fault_proxy(address.replace("webhdfs", "http"), faults) as proxy:
        host = proxy.removeprefix("http://")
        yield lambda retries=_QUICK: HdfsStorage("webhdfs", host, folder, retries)


def test_an_answer_that_is_not_of_the_name_node_is_an_error_and_no_empty_folder(
    shaken: Callable[[], Storage], storage: Storage, faults: Faults
) -> None:
    """A LIST that omits existing files would let a run begin again."""
    storage.put_new("log/1", b"x")
    remote = shaken()
    assert remote.size("log/1") == 1
    faults.kinds, faults.share = ANSWERS, 1.0
    for use in (
        lambda: remote.list(""),
        lambda: remote.list("log/"),
        lambda: remote.size("log/1"),
        lambda: remote.get("log/1"),
        lambda: remote.delete(["log/1"]),
        remote.remove_abandoned_files,
    ):
        with pytest.raises(StorageError) as failed:
            use()
        assert not isinstance(failed.value, MissingFile)
    assert [blob.key for blob in storage.list("")] == ["log/1"]


def test_the_result_of_a_rename_without_an_answer_is_unknown(
    shaken: Callable[[], Storage], client: InsecureClient, faults: Faults, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_the_rename = iter(["", ""])
    monkeypatch.setattr(faults, "draw", lambda: next(before_the_rename, "500"))
    assert shaken().put_new("a", b"x") is PutResult.UNKNOWN
    assert client.list(folder) == [".aside"]
    assert len(client.list(f"{folder}/.aside")) == 1, "the file was written before the requests failed"


@pytest.mark.slow(reason="waits between tries")
def test_requests_are_retried_while_the_name_node_is_not_ready(
    shaken: Callable[[Retry], Storage], faults: Faults, tmp_path: Path
) -> None:
    faults.kinds, faults.share = NOT_READY, 0.4
    (tmp_path / "file").write_bytes(b"y" * 100)
    remote = shaken(Retry(total=50, backoff_factor=0.001, backoff_max=0.01))
    for number in range(5):
        assert remote.put_new(f"log/{number}", b"x") is PutResult.CREATED
        remote.put_file(f"data/{number}", tmp_path / "file")
        assert remote.get(f"data/{number}") == b"y" * 100
    remote.delete(["log/0"])
    assert [blob.key for blob in remote.list("log/")] == [f"log/{n}" for n in range(1, 5)]
    assert {*faults.injected} == {*NOT_READY}
    faults.kinds, faults.share = ["SafeModeException"], 1.0
    with raises(StorageError, key="a", exception="SafeModeException"):
        shaken(_QUICK).put_new("a", b"x")


def _put(storage: Storage, key: str, data: bytes) -> PutResult:
    try:
        return storage.put_new(key, data)
    except StorageError:
        return PutResult.UNKNOWN


@pytest.mark.slow(reason="many requests that are lost, and tried again")
def test_one_writer_creates_a_key_whatever_requests_and_answers_are_lost(
    shaken: Callable[[], Storage], storage: Storage, faults: Faults
) -> None:
    faults.share = 0.3
    results: Counter[PutResult] = Counter()
    for number in range(15):
        key, contents = f"log/{number}", [f"{racer}".encode() for racer in range(4)]
        returned = at_once([partial(_put, shaken(), key, content) for content in contents])
        results.update(returned)
        if PutResult.CREATED in returned:
            assert returned.count(PutResult.CREATED) == 1
            assert storage.get(key) == contents[returned.index(PutResult.CREATED)]
        elif storage.size(key) is None:
            assert set(returned) == {PutResult.UNKNOWN}
        else:
            unknown = [c for c, result in zip(contents, returned, strict=True) if result is PutResult.UNKNOWN]
            assert storage.get(key) in unknown
    assert results[PutResult.CREATED] and results[PutResult.UNKNOWN] and sum(faults.injected.values()) > 20


@pytest.mark.slow(reason="many requests that are lost, and tried again")
def test_a_file_is_stored_and_read_whole_or_not_at_all(
    shaken: Callable[[], Storage], storage: Storage, faults: Faults, tmp_path: Path
) -> None:
    source, data = tmp_path / "file", random.Random(1).randbytes(100_000)
    source.write_bytes(data)
    # Several in a row, at times more than are tried again.
    faults.share, faults.outage = 0.2, 8
    ends: Counter[str] = Counter()
    for number in range(20):
        key = f"data/{number}"
        try:
            shaken().put_file(key, source)
            assert storage.get(key) == data
            ends["stored"] += 1
            assert shaken().get(key) == data
            ends["read"] += 1
        except MissingFile:
            pytest.fail("an existing file was reported as missing")
        except StorageError:
            assert storage.size(key) in (None, 100_000)
            ends["failed"] += 1
    assert ends["read"] > 2 and ends["failed"]


# -- servers that misbehave: what they get, and what their answers, headers, cookies and waits do ---------------------

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
        "http://127.0.0.1:<port>/x", "http://user@127.0.0.1:9864/x", "https://127.0.0.1:9864/x",
        "ftp://127.0.0.1:9864/x", "file:///etc/passwd", "//127.0.0.1:<port>/x", "http://[/x",
        "http://127.0.0.1:99999/x", "",
    ],
)  # fmt: skip
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
                lambda: hdfs.size("/x"), lambda: list(hdfs.list("/x")), lambda: hdfs.rename("/x", "/y"),
                lambda: hdfs.make_folder("/x"), lambda: hdfs.remove("/x"),
            ]  # fmt: skip
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
BAD_ANSWERS: dict[str, Callable[[Asked], Answer]] = {
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
    return _page([{**_FILE, "pathSuffix": name, "type": "DIRECTORY"}])


def _page(statuses: Sequence[Mapping[str, object]], remaining: int = 0) -> bytes:
    """An answer with entries of a folder; so many follow."""
    batch = {"partialListing": {"FileStatuses": {"FileStatus": statuses}}, "remainingEntries": remaining}
    return _json({"DirectoryListing": batch})


@pytest.mark.parametrize("act", ["list", "size", "delete", "rename"])
@pytest.mark.parametrize("name", BAD_ANSWERS)
def test_a_bad_answer_is_an_error_without_its_text(name: str, act: str) -> None:
    peak = MemoryPeak()
    with hostile_server(BAD_ANSWERS[name]) as server:
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
    with hostile_server(lambda _: answer(200, b"x" * 1001)) as server, raises(DataError, limit_bytes=1000):
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
    page = _page([*folders, *({**_FILE, "pathSuffix": name} for name in files)])
    return lambda _: page


@pytest.mark.parametrize("names", ["a", "ab"])
def test_a_tree_that_leads_back_is_an_error(names: str) -> None:
    with hostile_server(_tree(list(names), ["file"])) as server:
        storage = HdfsStorage("webhdfs", server.host, "/jobs/a", _ONCE, limits=ListLimits(levels=9))
        deepest = "/".join(["data", *names[-1] * 9, names[0]])
        with raises(DataError, storage=storage.uri, folder=deepest, below="data", limit=9):
            storage.list("data/")
    assert len(server.asked) == 10


def test_files_in_many_levels_of_folders_are_listed(tmp_path: Path) -> None:
    keys = ["/".join([*map(str, range(levels)), "file"]) for levels in (1, 9, 32, 64)]
    with bucket_of(serve_hdfs, tmp_path) as address:
        storage = open_storage(address)
        for key in keys:
            storage.put_new(key, b"x")
        assert [blob.key for blob in storage.list("0/")] == sorted(keys)


def test_a_tree_of_empty_folders_is_an_error() -> None:
    with hostile_server(_tree([f"f{n}" for n in range(100)], [])) as server:
        storage = HdfsStorage("webhdfs", server.host, "/jobs/a", _ONCE, limits=ListLimits(empty_folders=250))
        with raises(DataError, storage=storage.uri, below="data", folders=301, files=0, limit=250):
            storage.list("data/")
    assert len(server.asked) == 3


# -- pages ------------------------------------------------------------------------------------------------------------


@pytest.mark.long(reason="starts HDFS")
def test_a_list_continues_after_every_name(storage: Storage) -> None:
    keys = ["a b", "100%", "a%20b", "a+b", "a&b=c", "#?", "ö", "😀 +%2B", "[1]", "~", "é/1", "é/%", "é/ü", "é/z", "é/+"]
    for key in keys:
        storage.put_new(f"in {key}", b"x")
    assert [blob.key for blob in storage.list("")] == sorted(f"in {key}" for key in keys)
    assert {blob.key for blob in storage.list_folder("").files} == {f"in {key}" for key in keys if "/" not in key}


@pytest.mark.long(reason="starts HDFS")
def test_entries_and_folders_may_be_deleted_between_pages(
    storage: Storage, client: InsecureClient, address: str, folder: str
) -> None:
    for number in range(9):
        storage.put_new(f"a/{number}", b"x")
    pages = WebHdfs("webhdfs", address.removeprefix("webhdfs://"), _ONCE, SystemClock()).list(f"{folder}/a")
    assert _names(next(pages)) == ["0", "1", "2"]
    for number in (2, 4):
        client.delete(f"{folder}/a/{number}")
    assert _names(next(pages)) == ["3", "5", "6"]
    client.delete(f"{folder}/a", recursive=True)
    assert list(pages) == []


def _names(page: Page) -> list[str]:
    return [status.pathSuffix for status in page.statuses]


def test_a_folder_whose_list_has_more_bytes_than_an_answer_may_have_is_read_in_pages() -> None:
    count, sent = 110_000, [0]
    # As a NameNode writes it.
    status = {
        **_FILE, "accessTime": 1501770633062, "blockSize": 134217728, "childrenNum": 0, "fileId": 16390,
        "group": "supergroup", "modificationTime": 1501770633062, "owner": "webuser", "pathSuffix": "%08d-%s",
        "permission": "600", "replication": 3, "storagePolicy": 0,
    }  # fmt: skip
    line = json.dumps(status)

    def pages(asked: Asked) -> Answer:
        begin = int(asked.line.partition("startafter=")[2][:8] or -1) + 1
        end = min(begin + 1000, count)
        lines = ",".join(line % (number, "x" * 40) for number in range(begin, end))
        body = f'{{"DirectoryListing": {{"partialListing": {{"FileStatuses": {{"FileStatus": [{lines}]}}}}, '
        sent[0] += len(body)
        return answer(200, f'{body}"remainingEntries": {count - end}}}}}'.encode())

    peak = MemoryPeak()
    with hostile_server(pages) as server:
        listed = WebHdfs("webhdfs", server.host, _ONCE, SystemClock()).list("/jobs/a")
        assert sum(len(page.statuses) for page in listed) == count
    assert len(server.asked) == 110 and sent[0] > 32 << 20 and peak.bytes() < 16 << 20


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], HdfsStorage]]:
    """Storages in the folder ``own`` of servers whose lists are those of a kind of server."""
    monkeypatch.setenv("WEBHDFS_TOKEN", "token")
    with contextlib.ExitStack() as stack:

        def serve(lists: str) -> HdfsStorage:
            host = stack.enter_context(webhdfs_server(tmp_path, "token", lists)).removeprefix("http://")
            monkeypatch.setenv("WEBHDFS_NAMENODES", f"webhdfs://{host}")
            return HdfsStorage("webhdfs", host, "/own", _ONCE)

        yield serve


def _create(folder: Path, names: Iterable[str]) -> list[str]:
    """Creates files in a new folder, and returns their keys in order."""
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    return sorted(f"{folder.name}/{name}" for name in names)


@pytest.mark.parametrize(("lists", "first"), [(NAME_NODE, 1), (HTTP_FS, 1), (HADOOP_2, 2)])
def test_a_small_folder_is_listed_by_one_request_to_every_server(
    fake: Callable[[str], HdfsStorage], lists: str, first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that does not know pages is asked for them once."""
    traffic, storage = own_traffic("stateflow.storage.hdfs", monkeypatch), fake(lists)
    keys = _create(tmp_path / "own" / "log", [f"{number:05d}" for number in range(20)])
    for after, requests_sent in (("", first), ("log/00007", 1), ("", 1)):
        before = traffic.now()
        assert [blob.key for blob in storage.list("log/", after)] == [key for key in keys if key > after]
        assert (traffic.now() - before).requests == requests_sent
    assert storage.list("none/") == []


def test_a_list_of_numbered_names_begins_near_the_one_that_is_asked_for(
    fake: Callable[[str], HdfsStorage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traffic, storage = own_traffic("stateflow.storage.hdfs", monkeypatch), fake(NAME_NODE)
    keys = _create(tmp_path / "own" / "log", [f"{number:020d}" for number in range(2_500)])
    for prefix, after, pages in (("log/", "", 3), ("log/", keys[2_449], 1), (keys[2_499], "", 1)):
        before = traffic.now()
        wanted = [key for key in keys if key.startswith(prefix) and key > after]
        assert [blob.key for blob in storage.list(prefix, after)] == wanted
        assert (traffic.now() - before).requests == pages


def test_a_list_after_a_numbered_name_has_all_keys_after_it(fake: Callable[[str], HdfsStorage], tmp_path: Path) -> None:
    names = ["1", "12.json", "12/a", "12.x/a", "120", "13", "1a", "2", "20", "12-/a", "_last", "a", "é", ".x"]
    keys = _create(tmp_path / "own" / "log", names)
    storage = fake(NAME_NODE)
    for after in (*keys, "log/", "log/12", "log/12/", "log/12.", "log/123", "log0", "a", "m"):
        found = [blob.key for blob in storage.list("log/", after)]
        assert [key for key in found if key.isascii()] == [key for key in keys if key > after and key.isascii()]


def test_a_list_that_is_too_long_for_one_answer_is_an_error_with_the_way_out(
    fake: Callable[[str], HdfsStorage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdfs, "_ANSWER_LIMIT", 1000)
    _create(tmp_path / "own" / "log", map(str, range(20)))
    for lists in (HTTP_FS, HADOOP_2):
        storage = fake(lists)
        with raises(StorageError, storage=storage.uri, folder="/own/log", limit_bytes=1000) as failed:
            storage.list("log/")
        assert "NameNode" in failed.value.hint


@pytest.mark.parametrize(("names", "most"), [([], 1), ([""], 1), (["a"], 2), (["a", "b"], 2)], ids=str)
def test_a_page_that_the_same_one_follows_is_an_error(
    names: list[str], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdfs, "_MOST_ENTRIES", 20)
    page = _page([{**_FILE, "pathSuffix": name} for name in names], remaining=1)
    with hostile_server(lambda _: page) as server, raises(StorageError, storage=f"webhdfs://{server.host}/jobs/a"):
        _storage(server).list("")
    assert len(server.asked) == most


def test_pages_without_end_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdfs, "_MOST_ENTRIES", 20)
    pages = (_page([{**_FILE, "pathSuffix": str(number)}], remaining=1) for number in range(100))
    with hostile_server(lambda _: next(pages)) as server, raises(StorageError):
        _storage(server).list("")
    assert len(server.asked) == 21


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
