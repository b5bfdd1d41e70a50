"""HDFS through WebHDFS, over a real NameNode and DataNode."""

from __future__ import annotations

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
from tests.storage.savepoint_copies import SavepointCopies
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


class TestHdfs(SavepointCopies, StorageConformance):
    rounds = 5

    @pytest.fixture
    def storage(self, address: str, folder: str) -> Storage:
        return open_storage(address + folder)


def test_nothing_stays_aside_and_nobody_else_may_read(
    storage: Storage, client: InsecureClient, folder: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"x")
    storage.put_new("data/a", b"x")
    storage.put_file("data/b", tmp_path / "file")
    assert storage.put_new("data/a", b"y") is PutResult.EXISTS
    assert client.list(f"{folder}/.aside") == []
    assert client.status(folder)["permission"] == "700"
    assert {status["permission"] for _, status in client.list(f"{folder}/data", status=True)} == {"600"}


def test_what_a_killed_writer_left_aside_is_not_listed_and_goes_in_time(
    storage: Storage, client: InsecureClient, folder: str
) -> None:
    storage.put_new("a", b"x")
    for name in ("old", "young"):
        client.write(f"{folder}/.aside/{name}", b"half")
    client.set_times(f"{folder}/.aside/old", modification_time=int(time.time() * 1000) - _DAY_MS - 1000)
    assert [blob.key for blob in storage.list("")] == ["a"]
    storage.remove_abandoned_files()
    assert client.list(f"{folder}/.aside") == ["young"]


def test_a_file_that_takes_hours_to_upload_is_not_tidied_away(
    storage: Storage, client: InsecureClient, folder: str
) -> None:
    """HDFS does not change the time of a file while it is written."""
    aside = f"{folder}/.aside"
    tidied = []

    def written() -> list[str]:
        return client.list(aside) if client.status(aside, strict=False) else []

    class Slow(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() == 50:
                wait_for(lambda: bool(written()), lambda: "the file")
                (name,) = written()
                client.set_times(f"{aside}/{name}", modification_time=int(time.time() * 1000) - _DAY_MS // 4)
                storage.remove_abandoned_files()
                tidied.append(name)
            return super().read(50)

    class SlowFile(PosixPath):
        def open(self, *_: Any, **__: Any) -> Any:
            return Slow(b"x" * 100)

    storage.put_file("data/slow", SlowFile("slow"))
    assert len(tidied) == 1
    assert storage.get("data/slow") == b"x" * 100
    assert client.list(aside) == []


def test_there_is_nothing_to_tidy_where_nothing_was_written(storage: Storage) -> None:
    storage.remove_abandoned_files()
    assert storage.list("") == []


def test_a_file_takes_the_name_that_it_has_already(storage: Storage, tmp_path: Path) -> None:
    for name in ("first", "other"):
        (tmp_path / name).write_bytes(name.encode())
    storage.put_file("a", tmp_path / "first")
    storage.put_file("a", tmp_path / "first")
    with raises(StorageError, key="a", storage=storage.uri, stored_bytes=5, new_bytes=5):
        storage.put_file("a", tmp_path / "other")


def test_another_name_node_answers_when_the_first_does_not(address: str, folder: str) -> None:
    hosts = f"127.0.0.1:{free_port()},{address.removeprefix('webhdfs://')}"
    storage = HdfsStorage("webhdfs", hosts, folder, _ONCE)
    assert open_storage(f"webhdfs://{hosts}{folder}").uri == storage.uri
    assert storage.put_new("a", b"x") is PutResult.CREATED
    assert open_storage(address + folder).get("a") == b"x"


def test_a_name_node_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBHDFS_TOKEN", CANARY)
    port = free_port()
    storage = HdfsStorage("webhdfs", f"127.0.0.1:{port}", "/jobs/a", _ONCE)
    for use in (lambda: storage.get("a"), lambda: storage.put_new("a", b"x"), lambda: storage.list("")):
        with raises(StorageError, storage=storage.uri) as failed:
            use()
        assert str(port) in str(failed.value.facts["reason"])
        assert CANARY not in str(failed.value) + repr(failed.value.facts)


def test_who_may_not_write_is_told_how_to_become_another(
    address: str, client: InsecureClient, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.makedirs(folder, permission="700")
    monkeypatch.setenv("HADOOP_USER_NAME", "stranger")
    with raises(ConfigError, storage=address + folder, exception="AccessControlException") as refused:
        open_storage(address + folder).put_new("a", b"x")
    assert "HADOOP_USER_NAME" in refused.value.hint


def test_user_and_token_go_to_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_USER_NAME", "somebody")
    monkeypatch.setenv("WEBHDFS_TOKEN", CANARY)
    found = Credentials.of_process()
    assert {"HADOOP_USER_NAME", "WEBHDFS_TOKEN"} <= dict(found.variables).keys()
    assert "WEBHDFS_TOKEN" in repr(found) and CANARY not in repr(found)


@pytest.mark.parametrize(
    "uri",
    [
        "webhdfs://host/jobs",
        "webhdfs://host:1",
        "webhdfs://host:1/",
        "webhdfs://u:canary@host:1/jobs",
        "webhdfs://host:1/../a",
        "webhdfs://host:1/a?user.name=canary",
        "webhdfs:///jobs",
        "webhdfs://a:1,/jobs",
    ],
)
def test_an_address_that_is_not_name_node_port_and_path_is_refused_and_not_shown(uri: str) -> None:
    with raises(ConfigError, scheme="webhdfs") as refused:
        open_storage(uri)
    assert "canary" not in str(refused.value)


def test_an_address_of_hadoop_itself_leads_to_the_right_one() -> None:
    with raises(ConfigError, uri="hdfs://namenode:8020/jobs") as refused:
        open_storage("hdfs://namenode:8020/jobs")
    assert "webhdfs://namenode:9870" in refused.value.hint


def test_a_child_does_not_speak_on_its_parents_connections(
    address: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Noted(requests.Session):
        def request(self, *arguments: Any, **options: Any) -> requests.Response:
            used.add(self)
            return super().request(*arguments, **options)

    used: set[Noted] = set()
    monkeypatch.setattr(requests, "Session", Noted)
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
    """Storages behind a network that loses what it likes."""
    with fault_proxy(address.replace("webhdfs", "http"), faults) as proxy:
        host = proxy.removeprefix("http://")
        yield lambda retries=_QUICK: HdfsStorage("webhdfs", host, folder, retries)


def test_an_answer_that_is_not_the_name_nodes_is_no_empty_folder(
    shaken: Callable[[], Storage], storage: Storage, faults: Faults
) -> None:
    """A LIST that hides what is there would let a run begin anew."""
    storage.put_new("log/1", b"x")
    behind = shaken()
    assert behind.size("log/1") == 1
    faults.kinds, faults.share = ANSWERS, 1.0
    for use in (
        lambda: behind.list(""),
        lambda: behind.list("log/"),
        lambda: behind.size("log/1"),
        lambda: behind.get("log/1"),
        lambda: behind.delete(["log/1"]),
        behind.remove_abandoned_files,
    ):
        with pytest.raises(StorageError) as failed:
            use()
        assert not isinstance(failed.value, MissingFile)
    assert [blob.key for blob in storage.list("")] == ["log/1"]


def test_a_rename_whose_answer_is_somebody_elses_is_unknown(
    shaken: Callable[[], Storage],
    storage: Storage,
    faults: Faults,
    client: InsecureClient,
    folder: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before_the_rename = iter(["", ""])
    monkeypatch.setattr(faults, "draw", lambda: next(before_the_rename, "500"))
    assert shaken().put_new("a", b"x") is PutResult.UNKNOWN
    assert storage.size("a") is None
    assert len(client.list(f"{folder}/.aside")) == 1, "the file was written before the requests failed"


def test_a_name_node_that_is_not_ready_is_asked_again(
    shaken: Callable[[Retry], Storage], faults: Faults, tmp_path: Path
) -> None:
    faults.kinds, faults.share = NOT_READY, 0.4
    (tmp_path / "file").write_bytes(b"y" * 100)
    behind = shaken(Retry(total=50, backoff_factor=0.001, backoff_max=0.01))
    for number in range(5):
        assert behind.put_new(f"log/{number}", b"x") is PutResult.CREATED
        behind.put_file(f"data/{number}", tmp_path / "file")
        assert behind.get(f"data/{number}") == b"y" * 100
    behind.delete(["log/0"])
    assert [blob.key for blob in behind.list("log/")] == [f"log/{n}" for n in range(1, 5)]
    assert {*faults.injected} == {*NOT_READY}


def test_a_name_node_that_does_not_get_ready_is_told(
    shaken: Callable[[], Storage], storage: Storage, faults: Faults
) -> None:
    behind = shaken()
    faults.kinds, faults.share = ["SafeModeException"], 1.0
    with raises(StorageError, key="a", exception="SafeModeException"):
        behind.put_new("a", b"x")
    assert storage.size("a") is None


def _put(storage: Storage, key: str, data: bytes) -> PutResult:
    try:
        return storage.put_new(key, data)
    except StorageError:
        return PutResult.UNKNOWN


def test_one_gets_a_name_however_many_requests_and_answers_are_lost(
    shaken: Callable[[], Storage], storage: Storage, faults: Faults
) -> None:
    faults.share = 0.3
    results: Counter[PutResult] = Counter()
    for number in range(15):
        key, bids = f"log/{number}", [f"{racer}".encode() for racer in range(4)]
        said = at_once([partial(_put, shaken(), key, bid) for bid in bids])
        results.update(said)
        if PutResult.CREATED in said:
            assert said.count(PutResult.CREATED) == 1
            assert storage.get(key) == bids[said.index(PutResult.CREATED)]
        elif storage.size(key) is None:
            assert set(said) == {PutResult.UNKNOWN}
        else:
            assert storage.get(key) in [
                bid for bid, result in zip(bids, said, strict=True) if result is PutResult.UNKNOWN
            ]
    assert results[PutResult.CREATED] and results[PutResult.UNKNOWN] and sum(faults.injected.values()) > 20


def test_a_file_is_stored_once_or_not_at_all(
    shaken: Callable[[], Storage], storage: Storage, faults: Faults, tmp_path: Path
) -> None:
    source = tmp_path / "file"
    source.write_bytes(random.Random(1).randbytes(100_000))
    faults.share = 0.2
    ends: Counter[str] = Counter()
    for number in range(20):
        try:
            shaken().put_file(f"data/{number}", source)
            assert storage.get(f"data/{number}") == source.read_bytes()
            ends["stored"] += 1
        except StorageError:
            assert storage.size(f"data/{number}") in (None, 100_000)
            ends["failed"] += 1
    assert ends["stored"] > 5


def test_reading_through_it_gives_what_is_there_or_fails(
    shaken: Callable[[], Storage], storage: Storage, faults: Faults
) -> None:
    storage.put_new("a", b"x" * 1000)
    faults.share = 0.4
    ends: Counter[str] = Counter()
    for _ in range(20):
        try:
            assert shaken().get("a") == b"x" * 1000
            ends["read"] += 1
        except MissingFile:
            pytest.fail("what is there was said to be missing")
        except StorageError:
            ends["failed"] += 1
    assert ends["read"] > 5
