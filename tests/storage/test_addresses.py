"""Addresses of storages, which of them a user may name, and names below a job root."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stateflow.errors import ConfigError, DataError
from stateflow.helpers import check_name
from stateflow.storage import (
    MemoryStorage,
    PosixStorage,
    Storage,
    check_address,
    check_location,
    open_location,
    open_storage,
    paths,
)
from stateflow.storage.locations import VARIABLE
from stateflow.storage.paths import DataKey
from stateflow.testing.conformance.storage import StorageConformance
from tests.storage.savepoints_over_storages import SavepointClaims, SavepointCopies
from tests.support.cli_fixture import contents
from tests.support.errors import raises

_S3 = ["s3://", "s3:///a", "s3://key:canary@bucket/a", "s3://bucket/../a", "s3://bucket/a?x=canary"]
_WEBHDFS = [
    "webhdfs://host/jobs", "webhdfs://host:1", "webhdfs://host:1/", "webhdfs://u:canary@host:1/jobs",
    "webhdfs://host:1/../a", "webhdfs://host:1/a?user.name=canary", "webhdfs:///jobs", "webhdfs://a:1,/jobs",
]  # fmt: skip


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


_WITHOUT_SERVER = [
    "s3//bucket/t", "AZ//container/t", "webhdfs//namenode:9870/t",
    "s3:/bucket/t", "S3:/bucket/t", "s3:bucket", "s3a:/bucket/t", "gs:/bucket/t", "dbfs:/mnt/t", "hdfs:/data/t",
    "c:/data", "arn:aws:s3:::bucket/t", "https:/host/t", "memory:x", "abfss:/container/t",
]  # fmt: skip


@pytest.mark.parametrize("address", _WITHOUT_SERVER)
def test_an_address_without_a_server_is_not_a_folder(address: str, tmp_path: Path) -> None:
    for act in (open_storage, check_address, lambda uri: check_location(uri, [str(tmp_path)])):
        with raises(ConfigError, uri=address) as refused:
            act(address)
        assert "s3://" in refused.value.hint and "./" in refused.value.hint
    with raises(ConfigError) as refused:
        open_storage("s3:/key:canary@bucket/t")
    assert "canary" not in str(refused.value)


def test_a_folder_may_have_a_colon_in_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for address in ("./s3:/bucket", "12:30", "a:b", "a b:/c", "./arn:x", f"file:{tmp_path}/s3:/x", "file:///s3:/x"):
        check_address(address)
        assert isinstance(open_storage(address), PosixStorage)


@pytest.mark.parametrize(
    "address",
    ["s3://user:canary@bucket/t", "s3://canary@bucket/t", "webhdfs://u:canary@host:1/t", "https://u:canary@host/t"],
)
def test_an_address_with_a_password_is_refused_before_it_is_opened(address: str) -> None:
    with raises(ConfigError) as refused:
        check_address(address)
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize(
    "address", ["s3://bucket/a@b/{x,y}*", "abfss://container@account.dfs.core.windows.net/x", "/a@b:c", "s3://bucket"]
)
def test_an_address_without_a_password_is_accepted(address: str) -> None:
    check_address(address)


@pytest.mark.parametrize("name", ["plain", "with space", "100%", "ä#?x", "a:b"])
def test_a_uri_and_a_path_lead_to_the_same_folder(tmp_path: Path, name: str) -> None:
    storage = PosixStorage(tmp_path / name)
    for address in (storage.uri, str(tmp_path / name)):
        again = open_storage(address)
        assert isinstance(again, PosixStorage) and (again.root, again.uri) == (storage.root, storage.uri)


def test_a_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for path, wanted in (("root", tmp_path / "root"), ("~/root", tmp_path / "home/root")):
        storage = open_storage(path)
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


ALLOWED = ["/data/jobs/flights", "file:///mnt/save%20points", "s3://backup/savepoints", "webhdfs://NN:9870/flights"]


@pytest.mark.parametrize(
    "uri",
    [
        "/data/jobs/flights", "/data/jobs/flights/savepoints/x", "file:///data/jobs/flights/savepoints/x/",
        "file://localhost/data/jobs/flights/x", "/data/jobs/other/../flights/x", "/mnt/save points/x",
        "s3://backup/savepoints/x", "webhdfs://nn:9870/flights/x",
    ],
)  # fmt: skip
def test_a_location_below_an_allowed_one_is_allowed(uri: str) -> None:
    check_location(uri, ALLOWED)


@pytest.mark.parametrize(
    "uri",
    [
        "/data/jobs", "/data/jobs/flights2", "/data/jobs/flights/../other", "file:///data/jobs/flights/%2e%2e/other",
        "file://elsewhere/data/jobs/flights", "s3://backup/savepoints2", "s3://backup/savepoints/../secrets",
        "s3://other/savepoints/x", "gs://backup/savepoints/x", "s3://user:password@backup/savepoints",
        "webhdfs://nn:80/flights/x", "swebhdfs://nn:9870/flights/x", "webhdfs://evil,nn:9870/flights",
        "memory://backup/savepoints", "//server/share",
        *("s3://[", "http://[::1", "a\0b", "/" + "a" * 5000, "file://[x", "file:///a%00b"),
    ],
)  # fmt: skip
def test_any_other_location_is_not_allowed(uri: str) -> None:
    with raises(ConfigError) as refused:
        check_location(uri, ALLOWED)
    assert refused.value.facts.keys() <= {"location", "uri"} and "password" not in str(refused.value)


def test_a_link_does_not_lead_out_of_an_allowed_location(tmp_path: Path) -> None:
    (tmp_path / "allowed").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "allowed" / "link").symlink_to(tmp_path / "other")
    (tmp_path / "way").symlink_to(tmp_path / "allowed")
    allowed = [str(tmp_path / "allowed")]
    check_location(str(tmp_path / "way" / "savepoint"), allowed)
    with raises(ConfigError):
        check_location(str(tmp_path / "allowed" / "link" / "savepoint"), allowed)


@pytest.fixture
def allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the environment allows, with ``inner/folder/object``, and its neighbour ``other`` with the same."""
    for name in ("allowed", "other"):
        PosixStorage(tmp_path / name).put_new("inner/folder/object", name.encode())
    monkeypatch.setenv(VARIABLE, str(tmp_path / "allowed"))
    return tmp_path / "allowed"


def _replace_by_link(folder: Path, target: Path) -> None:
    folder.rename(folder.with_name("moved"))
    folder.symlink_to(target)


USES: dict[str, Callable[[Storage], object]] = {
    "get": lambda storage: storage.get("object"),
    "size": lambda storage: storage.size("object"),
    "list": lambda storage: storage.list(""),
    "put": lambda storage: storage.put_new("new", b"x"),
    "put into a folder": lambda storage: storage.put_new("a/b", b"x"),
    "delete": lambda storage: storage.delete(["object"]),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", ["inner", "inner/folder"])
def test_a_link_that_replaces_a_folder_after_the_check_is_not_followed(
    allowed: Path, tmp_path: Path, name: str, use: str
) -> None:
    storage, before = open_location(str(allowed / "inner/folder")), contents(tmp_path / "other")
    _replace_by_link(allowed / name, tmp_path / "other" / name)
    with raises(ConfigError, path=str(allowed / name)):
        USES[use](storage)
    assert contents(tmp_path / "other") == before


def test_the_outermost_allowed_location_is_the_one_that_is_trusted(
    allowed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, f"{allowed}/inner/folder {allowed} {allowed}/inner")
    storage = open_location(f"{allowed}/inner/folder")
    _replace_by_link(allowed / "inner", tmp_path / "other/inner")
    with raises(ConfigError):
        storage.get("object")


def test_a_new_folder_in_an_allowed_location_is_private(
    allowed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = open_location(str(allowed / "a/b"))
    storage.put_new("c/object", b"x")
    assert {path.stat().st_mode & 0o777 for path in (allowed / "a", allowed / "a/b", allowed / "a/b/c")} == {0o700}
    storage.delete(["c/object"])
    assert list((allowed / "a").iterdir()) == [allowed / "a/b"]
    monkeypatch.setenv(VARIABLE, str(tmp_path / "missing"))
    open_location(str(tmp_path / "missing/a")).put_new("object", b"x")
    assert (tmp_path / "missing/a/object").read_bytes() == b"x"


def test_without_the_variable_everything_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert open_location(str(tmp_path)).uri == tmp_path.as_uri()
    monkeypatch.setenv(VARIABLE, "")
    assert open_location(str(tmp_path / "x"), tmp_path.as_uri())
    with raises(ConfigError, location=str(tmp_path)):
        open_location(str(tmp_path))


seqs = st.integers(0, 10**20 - 1)
ordinals = st.integers(0, 10**10 - 1)
attempts = st.from_regex(r"[A-Za-z0-9]{1,64}", fullmatch=True)
names = st.from_regex(r"[A-Za-z0-9._-]{1,200}", fullmatch=True).filter(lambda name: name not in (".", ".."))
anything = st.text(max_size=60) | st.from_regex(r"(log|data|spark|probe)/[0-9]{19,21}(/.{0,9})?", fullmatch=True)


@given(seqs, seqs)
def test_log_entries_sort_as_their_numbers(a: int, b: int) -> None:
    assert paths.entry_seq(paths.log_entry(a)) == a
    assert (paths.log_entry(a) < paths.log_entry(b)) == (a < b)


@given(seqs, ordinals, attempts, names)
def test_a_file_s_name_has_its_writer(generation: int, ordinal: int, attempt: str, name: str) -> None:
    key = f"{paths.data_folder(generation, ordinal, attempt)}{name}"
    assert paths.parse_data(key) == DataKey(generation, ordinal, attempt, name)
    assert paths.check_key(key) == key
    assert paths.find_owned_generation(f"{paths.spark_location(generation)}/{name}") == generation
    assert paths.find_owned_generation(paths.probe_key(generation, name)) == generation


@given(anything)
@example("log/" + "٣" * 20)
@example("data/11111111111111111111/1-a/x")
@example("data/11111111111111111111/0000000001-a/b/c")
@example("log/11111111111111111111\n")
def test_a_name_has_at_most_one_meaning_which_builds_the_same_name(key: str) -> None:
    seq, data, generation = paths.entry_seq(key), paths.parse_data(key), paths.find_owned_generation(key)
    assert [seq, data, generation].count(None) >= 2
    if seq is not None:
        assert paths.log_entry(seq) == key
    if data is not None:
        assert f"{paths.data_folder(data.generation, data.ordinal, data.attempt)}{data.name}" == key
    if generation is not None:
        assert key.startswith((f"{paths.spark_location(generation)}/", paths.probe_key(generation, "")))


DOTS, CHARACTERS = ".. ../x a/../b a/.. ./a a/./b", ["a\0b", "a b", "a\n", "ü", "~/x", "a\\b", "%2e%2e/x"]


@pytest.mark.parametrize(
    "key", ["", "/", "/etc/passwd", "a//b", "a/", *DOTS.split(), *CHARACTERS, "a/" * 8 + "a", "x" * 201]
)
def test_a_stored_name_that_could_lead_elsewhere_is_refused(key: str) -> None:
    with raises(DataError, key=key):
        paths.check_key(key)


@given(st.text(max_size=8) | st.sampled_from(["a", "0", "orders-v1.2_x", "A" * 100]))
def test_an_accepted_name_is_one_segment_of_a_path(name: str) -> None:
    try:
        assert check_name("a uid", name) == name
    except ConfigError as e:
        assert e.facts == {"name": name} and "a uid" in e.message
        assert name not in ("a", "0", "orders-v1.2_x", "A" * 100)
    else:
        assert name.isascii() and "/" not in name and name not in (".", "..") and name.strip() == name != ""
