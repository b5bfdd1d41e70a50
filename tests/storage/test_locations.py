"""Which locations a user may name, by the job root and the environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stateflow.errors import ConfigError
from stateflow.storage import PosixStorage, Storage, check_location, open_if_allowed, open_location
from stateflow.storage.locations import VARIABLE
from tests.support.cli_fixture import contents
from tests.support.errors import raises

ALLOWED = ["/data/jobs/flights", "file:///mnt/save%20points", "s3://backup/savepoints", "webhdfs://NN:9870/flights"]


@pytest.mark.parametrize(
    "uri",
    [
        "/data/jobs/flights",
        "/data/jobs/flights/savepoints/x",
        "file:///data/jobs/flights/savepoints/x/",
        "file://localhost/data/jobs/flights/x",
        "/data/jobs/other/../flights/x",
        "/mnt/save points/x",
        "s3://backup/savepoints/x",
        "webhdfs://nn:9870/flights/x",
    ],
)
def test_a_location_below_an_allowed_one_is_allowed(uri: str) -> None:
    check_location(uri, ALLOWED)


@pytest.mark.parametrize(
    "uri",
    [
        "/data/jobs",
        "/data/jobs/flights2",
        "/data/jobs/flights/../other",
        "file:///data/jobs/flights/%2e%2e/other",
        "file://elsewhere/data/jobs/flights",
        "s3://backup/savepoints2",
        "s3://backup/savepoints/../secrets",
        "s3://other/savepoints/x",
        "gs://backup/savepoints/x",
        "s3://user:password@backup/savepoints",
        "webhdfs://nn:80/flights/x",
        "swebhdfs://nn:9870/flights/x",
        "webhdfs://evil,nn:9870/flights",
        "memory://backup/savepoints",
        "//server/share",
    ],
)
def test_any_other_location_is_not_allowed(uri: str) -> None:
    with raises(ConfigError) as refused:
        check_location(uri, ALLOWED)
    assert refused.value.facts["allowed"] == ALLOWED and "password" not in str(refused.value)


@pytest.mark.parametrize("uri", ["s3://[", "http://[::1", "a\0b", "/" + "a" * 5000, "file://[x", "file:///a%00b"])
def test_an_address_that_cannot_be_parsed_is_not_allowed(uri: str) -> None:
    with raises(ConfigError):
        check_location(uri, ALLOWED)


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


def test_a_link_after_the_check_is_not_followed_for_a_location_above_a_named_one(allowed: Path, tmp_path: Path) -> None:
    storage = open_if_allowed((allowed / "inner").as_uri())
    assert storage is not None and storage.get("folder/object") == b"allowed"
    _replace_by_link(allowed / "inner", tmp_path / "other/inner")
    with raises(ConfigError):
        storage.get("folder/object")
    assert open_if_allowed(str(tmp_path / "other")) is None


def test_a_location_is_opened_through_links_that_stay_in_an_allowed_one(allowed: Path, tmp_path: Path) -> None:
    (tmp_path / "way").symlink_to(allowed)
    (allowed / "link").symlink_to("inner")
    for path in (tmp_path / "way/inner/folder", allowed / "link/folder"):
        storage = open_location(str(path))
        assert storage.get("object") == b"allowed" and storage.uri == path.as_uri()
        assert [found.key for found in storage.list("")] == ["object"]


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
    with raises(ConfigError, allowed=[]):
        open_location(str(tmp_path))
