"""Files of a batch that are missing or changed are found before Spark reads them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from stateflow.replay.spark import lost_files


def _log(number: int, *files: Path) -> bytes:
    lines = [
        json.dumps({"path": file.as_uri(), "timestamp": file.stat().st_mtime_ns // 1_000_000, "batchId": number})
        for file in files
    ]
    return "\n".join(["v1", *lines]).encode()


def _offset(number: int) -> str:
    return json.dumps({"logOffset": number})


def test_missing_and_changed_files_of_the_batch_are_reported_and_no_others(tmp_path: Path) -> None:
    files = [tmp_path / f"{name} 1.json" for name in "abcd"]
    for file in files:
        file.write_text("{}")
    before, missing, changed, after = files
    logs = [_log(0, before), _log(1, missing, changed), _log(2, after)]
    assert lost_files(logs, "-", _offset(2)) == []
    for file in (before, missing, after):
        file.unlink()
    os.utime(changed, (1, 1))
    found = lost_files(logs, _offset(0), _offset(1))
    assert [each.startswith(f"{file}: ") for each, file in zip(found, (missing, changed), strict=True)] == [True, True]
    assert len(lost_files(logs, "-", _offset(0))) == 1


def test_files_on_other_file_systems_are_left_to_spark() -> None:
    line = json.dumps({"path": "s3a://bucket/file.json", "timestamp": 1, "batchId": 0})
    assert lost_files([f"v1\n{line}".encode()], "-", _offset(0)) == []
