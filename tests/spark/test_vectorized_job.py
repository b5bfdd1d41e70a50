"""A job with vectorized functions, on Spark and without it, that changes between rows and columns at each start."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stateflow.testing.sinks import FolderSink
from tests.spark.jobs import vectorized

ROOT = Path(__file__).parents[2]


def _run(home: Path, runner: str, columns: str, *more: str) -> None:
    settings = (
        f"job.home={home}",
        f"job.spark={'yes' if runner == 'spark' else 'no'}",
        f"job.columns={columns}",
        f"local_dir={home / 'local'}",
        "source.max_rows_per_batch=5",
        "parallelism=2",
        *more,
    )
    assignments = [word for each in settings for word in ("--set", each)]
    command = [sys.executable, "-m", "stateflow", "run", vectorized.__file__, "--job-root", str(home / "root")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*command, *assignments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-6000:]


def _rows(folder: Path) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in FolderSink(folder).rows()]


@pytest.mark.spark
def test_rows_that_do_not_fit_into_memory_are_sorted_all_the_same(tmp_path: Path) -> None:
    _run(
        tmp_path,
        "spark",
        "yes",
        "shuffle.sort_memory_bytes=1",
        "source.max_rows_per_batch=1000",
        "spark.conf.spark.sql.execution.arrow.maxRecordsPerBatch=3",
    )
    sums: Counter[int] = Counter()
    wanted = []
    for pair in vectorized.PAIRS:
        sums[pair.key] += pair.value
        wanted.append((pair.key, sums[pair.key]))
    # In the order in which a key's rows came: another order would give other sums on the way.
    assert Counter(_rows(tmp_path / "sums")) == Counter(wanted)


@pytest.mark.parametrize("runner", ["local", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.slow])])
def test_rows_and_columns_go_on_with_one_state(runner: str, tmp_path: Path) -> None:
    starts = [("no", 1), ("yes", 2), ("no", 1), ("yes", 99)] if runner == "local" else [("no", 2), ("yes", 99)]
    for columns, batches in starts:
        _run(tmp_path, runner, columns, f"run.max_batches={batches}")

    sums: Counter[int] = Counter()
    wanted = []
    for pair in vectorized.PAIRS:
        sums[pair.key] += pair.value
        wanted.append((pair.key, sums[pair.key]))
    assert Counter(_rows(tmp_path / "sums")) == Counter(wanted)
    newest = {parity: (rows, largest) for parity, rows, largest, _ in sorted(_rows(tmp_path / "totals"))}
    assert newest == {p: (sum(k % 2 == p for k, _ in wanted), max(v for k, v in wanted if k % 2 == p)) for p in (0, 1)}
    different = {parity: count for parity, _, _, count in sorted(_rows(tmp_path / "totals"))}
    assert different == {p: len({v for k, v in wanted if k % 2 == p}) for p in (0, 1)}
    for uid, pairs in (("given", [(p.key, p.value) for p in vectorized.PAIRS]), ("made", wanted)):
        exact = {row[0]: row[1:] for row in sorted(_rows(tmp_path / uid), key=lambda row: row[1])}
        of = {p: [v for k, v in pairs if k % 2 == p] for p in (0, 1)}
        assert exact == {p: (len(v), sum(v), sum(v) / len(v), min(v)) for p, v in of.items()}
