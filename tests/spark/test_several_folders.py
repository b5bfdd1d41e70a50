"""Several sources of Spark's own in one job: each has its files, its log and its position over runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from stateflow.testing.sinks import FolderSink
from tests.spark.jobs import folders

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def _deliver(home: Path, folder: str, file: str, numbers: range) -> None:
    (home / folder).mkdir(exist_ok=True)
    rows = "".join(json.dumps({"name": folder, "number": n}) + "\n" for n in numbers)
    (home / folder / f"{file}.json").write_text(rows)


def _run(home: Path, root: str, *more: str) -> subprocess.CompletedProcess[str]:
    assignments = [w for s in (f"job.home={home}", f"local_dir={home / 'local'}", *more) for w in ("--set", s)]
    command = [sys.executable, "-m", "stateflow", "run", folders.__file__, "--job-root", str(home / root)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([*command, *assignments], env=environment, capture_output=True, text=True, check=False)


def _ended(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr[-5000:]


def test_each_source_goes_on_behind_its_own_files_whatever_the_order_in_the_job_file_is(tmp_path: Path) -> None:
    _deliver(tmp_path, "a", "one", range(5))
    _deliver(tmp_path, "b", "one", range(100, 103))
    _ended(_run(tmp_path, "root"))
    _deliver(tmp_path, "a", "two", range(5, 7))
    _deliver(tmp_path, "b", "two", range(103, 110))
    _ended(_run(tmp_path, "root", "job.swapped=yes"))
    rows = Counter(tuple(r.values()) for r in FolderSink(tmp_path / "out").rows())
    expected = {"a": range(7), "b": range(100, 110), "listed": range(2)}
    assert rows == Counter((name, n) for name, numbers in expected.items() for n in numbers)
    sums = {r["name"]: 0 for r in FolderSink(tmp_path / "sums").rows()}
    for row in FolderSink(tmp_path / "sums").rows():
        sums[row["name"]] = max(sums[row["name"]], row["number"])
    assert sums == {name: sum(numbers) for name, numbers in expected.items()}


def test_two_sources_of_one_folder_are_two(tmp_path: Path) -> None:
    _deliver(tmp_path, "a", "one", range(5))
    _ended(_run(tmp_path, "root", "job.twice=yes"))
    rows = Counter(tuple(r.values()) for r in FolderSink(tmp_path / "out").rows())
    assert rows == Counter({("a", n): 2 for n in range(5)} | {("listed", n): 1 for n in range(2)})
