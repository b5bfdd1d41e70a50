"""Which locations a user may name, by the job root and the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from stateflow.errors import ConfigError
from stateflow.storage import check_location, open_location
from stateflow.storage.locations import VARIABLE
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


def test_without_the_variable_everything_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert open_location(str(tmp_path)).uri == tmp_path.as_uri()
    monkeypatch.setenv(VARIABLE, "")
    assert open_location(str(tmp_path / "x"), tmp_path.as_uri())
    with raises(ConfigError, allowed=[]):
        open_location(str(tmp_path))
