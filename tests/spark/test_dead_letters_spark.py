"""Dead letters on Spark: of an operator, and of a row function that Spark's workers run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from stateflow.testing.sinks import FolderSink
from tests.runtime.jobs import letters

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.spark


def _run(home: Path, *more: str) -> subprocess.CompletedProcess[str]:
    settings = {"job.home": home, "job.spark": "yes", "local_dir": home / "local", "parallelism": 2}
    assignments = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "stateflow", "run", letters.__file__, "--job-root", str(home / "root")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([*command, *assignments], env=environment, capture_output=True, text=True, check=False)


def test_bad_rows_are_committed_apart(tmp_path: Path) -> None:
    ended = _run(tmp_path)
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = [(row["operator"], json.loads(row["row"])["number"]) for row in FolderSink(tmp_path / "letters").rows()]
    assert sorted(number for _, number in found) == letters.BAD
    assert {operator for operator, number in found if number % 11 == 10} == {"refuse_tens"}
    out = Counter(tuple(row.values()) for row in FolderSink(tmp_path / "out").rows())
    assert out == letters.expected()
