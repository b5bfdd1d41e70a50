"""Positions of the file source that skip files by their modification times."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from stateflow.connectors.files.source import skip_files
from stateflow.errors import ConfigError
from tests.support.errors import raises

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def _write(path: Path, seconds_after_noon: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    time = (NOON + timedelta(seconds=seconds_after_noon)).timestamp()
    os.utime(path, (time, time))


def _skipped(folder: Path, until: datetime = NOON) -> list[str]:
    found = skip_files(str(folder), folder, until)
    if found.offset == "-":
        assert not found.logs
        return []
    assert found.offset == '{"logOffset":0}' and list(found.logs) == ["0"]
    version, *lines = found.logs["0"].split(b"\n")
    assert version == b"v1"
    files = [msgspec.json.decode(line) for line in lines]
    assert {file["batchId"] for file in files} == {0}
    return [file["path"] for file in files]


def test_files_from_before_the_time_are_skipped_as_spark_lists_them(tmp_path: Path) -> None:
    for name in ("b 1.json", "a.json", "day=1/c.json", "_day=2/d.json"):
        _write(tmp_path / name, -1)
    for name in (".hidden", "_SUCCESS", "_temporary/e.json", ".f/g.json", "h._COPYING_"):
        _write(tmp_path / name, -1)
    _write(tmp_path / "at.json", 0)
    _write(tmp_path / "after.json", 1)
    listed = ["_day=2/d.json", "a.json", "b%201.json", "day=1/c.json"]
    assert _skipped(tmp_path) == [f"{tmp_path.as_uri()}/{name}" for name in listed]
    assert len(_skipped(tmp_path, NOON + timedelta(seconds=1))) == 5


def test_a_pattern_skips_only_matching_files(tmp_path: Path) -> None:
    _write(tmp_path / "x1" / "a.json", -1)
    _write(tmp_path / "y1" / "b.json", -1)
    assert _skipped(tmp_path / "x*") == [f"{tmp_path.as_uri()}/x1/a.json"]
    assert _skipped(tmp_path / "x1" / "*.json") == [f"{tmp_path.as_uri()}/x1/a.json"]


def test_no_file_is_skipped_when_none_is_old(tmp_path: Path) -> None:
    _write(tmp_path / "a.json", 1)
    assert _skipped(tmp_path) == []


def test_the_text_differs_when_other_files_are_skipped(tmp_path: Path) -> None:
    _write(tmp_path / "a.json", -1)
    texts = [skip_files(str(tmp_path), tmp_path, NOON).text]
    _write(tmp_path / "a.json", -2)
    texts.append(skip_files(str(tmp_path), tmp_path, NOON).text)
    assert len(set(texts)) == 2


@pytest.mark.parametrize("local", [None, Path("/data/{a,b}")])
def test_files_that_only_spark_can_list_are_refused(local: Path | None) -> None:
    with raises(ConfigError, path="s3://bucket/in"):
        skip_files("s3://bucket/in", local, NOON)
