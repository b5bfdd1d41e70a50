"""Addresses of storages, and the storage in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stateflow.errors import ConfigError
from stateflow.storage import MemoryStorage, PosixStorage, Storage, open_storage
from stateflow.testing.conformance.storage import StorageConformance
from tests.storage.savepoint_claims import SavepointClaims
from tests.storage.savepoint_copies import SavepointCopies
from tests.support.errors import raises

_S3 = ["s3://", "s3:///a", "s3://key:canary@bucket/a", "s3://bucket/../a", "s3://bucket/a?x=canary"]
_WEBHDFS = [
    "webhdfs://host/jobs",
    "webhdfs://host:1",
    "webhdfs://host:1/",
    "webhdfs://u:canary@host:1/jobs",
    "webhdfs://host:1/../a",
    "webhdfs://host:1/a?user.name=canary",
    "webhdfs:///jobs",
    "webhdfs://a:1,/jobs",
]


@pytest.mark.parametrize(
    ("address", "facts"),
    [
        *((address, {"scheme": "s3"}) for address in _S3),
        *((address, {"scheme": "webhdfs"}) for address in _WEBHDFS),
        *(
            (address, {"uri": address})
            for address in ("hdfs://namenode:8020/x", "file://host/x", "http://x", "ftp://host")
        ),
    ],
)
def test_a_malformed_or_unknown_address_is_refused_and_its_credentials_are_not_shown(
    address: str, facts: dict[str, str]
) -> None:
    with raises(ConfigError, **facts) as refused:
        open_storage(address)
    assert "canary" not in str(refused.value)
    if address.startswith("hdfs:"):
        assert "webhdfs://namenode:9870" in refused.value.hint


@pytest.mark.parametrize("name", ["plain", "with space", "100%", "ä#?x", "a:b"])
def test_a_uri_and_a_path_lead_to_the_same_folder(tmp_path: Path, name: str) -> None:
    storage = PosixStorage(tmp_path / name)
    for address in (storage.uri, str(tmp_path / name)):
        again = open_storage(address)
        assert isinstance(again, PosixStorage) and (again.root, again.uri) == (storage.root, storage.uri)


def test_a_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for given, wanted in (("root", tmp_path / "root"), ("~/root", tmp_path / "home/root")):
        storage = open_storage(given)
        assert isinstance(storage, PosixStorage) and storage.root == wanted


class TestMemoryStorage(SavepointClaims, SavepointCopies, StorageConformance):
    @pytest.fixture
    def storage(self) -> Storage:
        return MemoryStorage()


def test_a_name_in_memory_is_one_storage_in_a_process_which_copies_stored_bytes() -> None:
    first, again, other = (open_storage(uri) for uri in ("memory://a", "memory://a", "memory://b"))
    data: Any = bytearray(b"1")
    first.put_new("x", data)
    data[0] = 0
    assert again.get("x") == b"1" and other.list("") == []
    assert first.local_path("x") is None
