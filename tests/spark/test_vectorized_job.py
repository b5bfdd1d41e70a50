"""A job with vectorized functions, on Spark and without it, that changes between rows and columns at each start."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.spark.jobs import vectorized
from tests.spark.processes import ModuleJob


def _running_sums() -> list[tuple[int, int]]:
    """In the order in which a key's rows came: another order would give other sums."""
    sums: Counter[int] = Counter()
    found = []
    for pair in vectorized.PAIRS:
        sums[pair.key] += pair.value
        found.append((pair.key, sums[pair.key]))
    return found


def _by_parity(pairs: list[tuple[int, int]]) -> dict[int, list[int]]:
    return {parity: [value for key, value in pairs if key % 2 == parity] for parity in (0, 1)}


@pytest.mark.spark
def test_rows_that_do_not_fit_into_memory_are_sorted(tmp_path: Path) -> None:
    memory: dict[str, Any] = {
        "shuffle__sort_memory_bytes": 1,
        "spark__conf__spark.sql.execution.arrow.maxRecordsPerBatch": 3,
    }
    job = ModuleJob(tmp_path, vectorized, parallelism=2, job__columns="yes", **memory)
    job.finish()
    assert job.rows("sums") == Counter(_running_sums())


@pytest.mark.parametrize(
    "runner",
    ["local", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.slow(reason="starts Spark for its jobs")])],
)
def test_rows_and_columns_continue_with_one_state(runner: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"source__max_rows_per_batch": 5, "parallelism": 2}
    job = ModuleJob(tmp_path, vectorized, spark=runner == "spark", **settings)
    starts = [("no", 1), ("yes", 2), ("no", 1), ("yes", 99)] if runner == "local" else [("no", 2), ("yes", 99)]
    for columns, batches in starts:
        job.finish(job__columns=columns, run__max_batches=batches)

    sums = _running_sums()
    assert job.rows("sums") == Counter(sums)
    of_sums, of_source = (_by_parity(pairs) for pairs in (sums, [(p.key, p.value) for p in vectorized.PAIRS]))
    # Each table has the newest row of a parity last: its number of rows only grows.
    totals = {row[0]: row[1:] for row in sorted(job.rows("totals"))}
    assert totals == {p: (len(v), max(v), len(set(v))) for p, v in of_sums.items()}
    for uid, values in (("given", of_source), ("made", of_sums)):
        exact = {row[0]: row[1:] for row in sorted(job.rows(uid))}
        assert exact == {p: (len(v), sum(v), sum(v) / len(v), min(v)) for p, v in values.items()}
