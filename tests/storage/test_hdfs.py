"""HDFS through WebHDFS, over a real NameNode and DataNode."""

from __future__ import annotations

import errno
import io
import itertools
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PosixPath
from typing import Any

import pytest
import requests
from hdfs import InsecureClient
from urllib3 import Retry

from stateflow.errors import ConfigError, MissingFile, StorageError
from stateflow.storage import Credentials, PutResult, Storage, open_storage
from stateflow.storage.hdfs import HdfsStorage
from stateflow.testing.conformance.storage import StorageConformance, at_once
from tests.servers.faults import ANSWERS, LATE_REQUEST, LOST_ANSWER, LOST_REQUEST, NOT_READY, Faults, fault_proxy
from tests.servers.hdfs import hdfs_server
from tests.servers.running import CANARY, free_port
from tests.storage.savepoints_over_storages import SavepointClaims, SavepointCopies
from tests.support.errors import raises
from tests.support.processes import wait_for

_numbers = itertools.count()
_DAY_MS = 24 * 60 * 60 * 1000
_ONCE = Retry(total=0)
_QUICK = Retry(total=2, backoff_factor=0.01, allowed_methods=None)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with hdfs_server(tmp_path_factory.mktemp("hdfs")) as server:
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
    faults.share = 0.3
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
