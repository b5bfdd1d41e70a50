"""Cases of Flink's tests of windows and joins, on Spark and without it, over two runs with different parallelism.

`test_harness_cases.py` runs all tests of these cases on Spark, batch by batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

import pytest

from stateflow import RowKind
from tests.spark.jobs import flink_cases, flink_joins, flink_windows
from tests.spark.jobs.flink_windows import ALL_MS, POWERS, ClockCase
from tests.spark.processes import ModuleJob

# Spark compiles the plan of this many operators longer than it computes a few rows.
UNCOMPILED = {
    "spark__conf__spark.sql.codegen.wholeStage": "false",
    "spark__conf__spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark__conf__spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
TABLES = flink_windows.TABLES | flink_joins.JOINS


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(False, id="local"),
        pytest.param(True, id="spark", marks=[pytest.mark.spark, pytest.mark.slow(reason="starts Spark for its jobs")]),
    ],
)
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleJob]:
    job = ModuleJob(tmp_path_factory.mktemp("cases"), flink_cases, spark=request.param, **UNCOMPILED)
    job.finish(parallelism=2, run__max_batches=2)
    job.finish(parallelism=3, run__drain="yes")
    yield job
    job.close()


def _rows(job: ModuleJob, table: str) -> Counter[tuple[Any, ...]]:
    """The rows of a table, with the keys of Flink's case."""
    return Counter({(key.partition("/")[2], *more): count for (key, *more), count in job.rows(table).items()})


@pytest.mark.parametrize("table", TABLES)
def test_rows_are_those_of_flink(job: ModuleJob, table: str) -> None:
    assert _rows(job, table) == Counter(map(tuple, TABLES[table]))


@pytest.mark.parametrize("how", flink_joins.OUTER)
def test_changes_of_outer_joins_add_up_to_the_rows_of_flink(
    job: ModuleJob, how: Literal["left", "right", "full"]
) -> None:
    changes = _rows(job, f"outer-{how}")
    assert any(RowKind(kind).is_retraction for _, kind, _, _ in changes)
    found: Counter[tuple[int | None, int | None]] = Counter()
    for (_, kind, left, right), count in changes.items():
        found[left, right] += -count if RowKind(kind).is_retraction else count
    assert +found == Counter(flink_joins.OUTER[how]) and not -found


@pytest.mark.parametrize("table", ["all-reduced", "all-processed"])
def test_windows_of_all_keys_have_the_rows_of_all_cases(job: ModuleJob, table: str) -> None:
    sums: Counter[int] = Counter()
    for row in flink_cases.inputs():
        sums[row.at // ALL_MS * ALL_MS] += row.value
    assert len(sums) > 3
    assert _rows(job, table) == Counter(("", total, start, start + ALL_MS) for start, total in sums.items())


@pytest.mark.parametrize(("table", "case"), flink_windows.CLOCK.items())
def test_windows_of_processing_time_have_each_row_as_often_as_its_windows(
    job: ModuleJob, table: str, case: ClockCase
) -> None:
    keys = {row.value: row.key for row in POWERS}
    found: Counter[tuple[str, int]] = Counter()
    for (key, total, start, end), count in _rows(job, table).items():
        if case.slide:
            assert end - start == case.size and start % case.slide == 0
        else:
            assert end - start >= case.size
        found.update({(key, value): count for value in keys if total & value})
    windows = case.size // case.slide if case.slide else 1
    assert found == Counter({(key, value): windows for value, key in keys.items()})
