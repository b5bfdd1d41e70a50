"""Corrupt input files on Spark: a run that ends with their name, and runs that skip them as a whole."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from stateflow import operations
from stateflow.testing.sinks import FolderSink
from tests.spark.jobs import corrupt

ROOT = Path(__file__).parents[2]
_PARQUET = "a b"

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def _parquet(home: Path, name: str, numbers: range) -> Path:
    path = home / _PARQUET / f"{name}.parquet"
    path.parent.mkdir(exist_ok=True)
    return _write(path, numbers)


def _write(path: Path, numbers: range) -> Path:
    parquet.write_table(pa.table({"name": ["p"] * len(numbers), "number": [*numbers]}), path)
    return path


def _type(home: Path, begin: str, file: str) -> None:
    """Types a command of the runbook's steps for a corrupt file."""
    text = (ROOT / "docs" / "runbook.md").read_text().partition("## A corrupt input file")[2]
    blocks = map(textwrap.dedent, re.findall(r"^ *```\n(.*?)^ *```$", text, re.M | re.S))
    (block,) = [block for block in blocks if block.startswith(begin)]
    names = {"FOLDER": str(home / _PARQUET), "FILE": file}
    subprocess.run(["bash", "-euc", block], env={**os.environ, **names}, cwd=home, check=True)


def _json(home: Path, name: str, numbers: range, more: str = "") -> Path:
    path = home / "json" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps({"name": "j", "number": n}) + "\n" for n in numbers) + more)
    return path


def _truncate(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def _garble(path: Path) -> None:
    """Keeps the footer: nobody sees it before the pages are read."""
    data = bytearray(path.read_bytes())
    data[4:60] = b"\xff" * 56
    path.write_bytes(data)


def _run(home: Path, *more: str, failpoint: str = "") -> subprocess.CompletedProcess[str]:
    settings = [w for s in more for w in ("--set", s)]
    return _stateflow(home, "run", *settings, "--result-file", str(home / "result.json"), failpoint=failpoint)


def _stateflow(home: Path, word: str, *more: str, failpoint: str = "") -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "stateflow",
        word,
        corrupt.__file__,
        "--job-root",
        str(home / "root"),
        "--set",
        f"job.home={home}",
        "--set",
        f"local_dir={home / 'local'}",
        *more,
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "STATEFLOW_FAILPOINT": failpoint}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def _result(home: Path) -> dict[str, Any]:
    return json.loads((home / "result.json").read_text())  # type: ignore[no-any-return]


def _rows(home: Path) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in FolderSink(home / "out").rows())


def test_a_corrupt_file_ends_the_run_once_with_its_name(tmp_path: Path) -> None:
    _parquet(tmp_path, "good", range(5))
    bad = _parquet(tmp_path, "z bad", range(5, 9))
    _garble(bad)
    _json(tmp_path, "one", range(3))
    again = ("restart.strategy=fixed-delay", "restart.fixed_delay.attempts=5", "restart.fixed_delay.delay=1s")
    ended = _run(tmp_path, "job.corrupt=fail", *again)
    assert ended.returncode == 4, ended.stderr[-5000:]
    error = _result(tmp_path)["error"]
    assert (error["code"], error["retryable"]) == ("corrupt-input", False)
    assert error["facts"]["file"] == str(bad)
    # The reason comes once, and no stack of Java's; Spark's own lines are in a file.
    assert len(ended.stderr.splitlines()) < 15 and "\tat " not in ended.stderr, ended.stderr
    (log,) = (tmp_path / "local" / "spark-logs").iterdir()
    assert "FAILED_READ_FILE" in log.read_text()
    # Spark's lines have the times of the run's own ones, in UTC; and the run says when Spark has started.
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ", log.read_text())
    assert re.search(r"Z INFO .*\bSpark\b.*\b\d+ s\b", ended.stderr)
    # Nothing of the batch exists; with a sound file under the same name the next run reads all.
    assert not _rows(tmp_path)
    _write(tmp_path / "repaired.json", range(5, 9))
    _type(tmp_path, 'mv repaired.json "$FOLDER/$FILE"', bad.name)
    assert _run(tmp_path, "job.corrupt=fail").returncode == 0
    assert _rows(tmp_path) == Counter([("p", n) for n in range(9)] + [("j", n) for n in range(3)])


def test_corrupt_files_are_skipped_as_a_whole_and_recorded_once(tmp_path: Path) -> None:
    _parquet(tmp_path, "good", range(5))
    # Its first rows are read before the corrupt ones: none of them may stay.
    bad = [_parquet(tmp_path, "a truncated", range(50, 60)), _parquet(tmp_path, "garbled", range(60, 70))]
    _truncate(bad[0])
    _garble(bad[1])
    _json(tmp_path, "one", range(3))
    bad.append(_json(tmp_path, "bad", range(70, 75), more='{"name": "x", "numb'))
    # The first attempt dies after its decision and before its commit; the next one decides the same.
    assert _run(tmp_path, failpoint="batch.reported:1").returncode == -9
    ended = _run(tmp_path)
    assert ended.returncode == 0, ended.stderr[-5000:]
    expected = Counter([("p", n) for n in range(5)] + [("j", n) for n in range(3)])
    assert _rows(tmp_path) == expected
    result = _result(tmp_path)
    assert result["quarantined_count"] == 3
    assert sorted(q["file"] for q in result["quarantined"]) == sorted(map(str, bad))
    assert "3" in ended.stdout.split(), ended.stdout
    # Neither does a worker whose connection Spark has closed say so.
    assert "Traceback" not in ended.stderr and "BrokenPipe" not in ended.stderr, ended.stderr
    first = operations.describe(str(tmp_path / "root")).checkpoint_id
    # A later batch does not read them, keeps the records, and adds its own.
    _parquet(tmp_path, "later", range(5, 7))
    bad.append(_parquet(tmp_path, "later bad", range(80, 90)))
    _truncate(bad[-1])
    assert _run(tmp_path).returncode == 0
    assert _rows(tmp_path) == expected + Counter([("p", n) for n in range(5, 7)])
    found = operations.describe(str(tmp_path / "root"))
    assert found.quarantined_count == 4
    assert Counter(q.file for q in found.quarantined) == Counter(map(str, bad))
    assert {q.source for q in found.quarantined} == {"parquet", "json"} and all(q.error for q in found.quarantined)
    # As the runbook says: a repaired file is read under a new name, and not under its own.
    _write(bad[1], range(60, 70))
    _write(tmp_path / "repaired.json", range(80, 90))
    _type(tmp_path, 'mv repaired.json "$FOLDER/repaired-', bad[-1].name)
    assert _run(tmp_path).returncode == 0
    expected += Counter([("p", n) for n in [5, 6, *range(80, 90)]])
    assert _rows(tmp_path) == expected
    # And a restore to before both reads both again.
    plan = str(tmp_path / "plan.json")
    for words in (["--plan", str(first), "--out", plan], ["--execute", plan]):
        restored = _stateflow(tmp_path, "restore", *words)
        assert restored.returncode == 0, restored.stderr
    assert _run(tmp_path).returncode == 0
    assert _rows(tmp_path) == expected
    assert operations.describe(str(tmp_path / "root")).quarantined_count == 4
