"""Cases of Flink's tests of windows and joins, on Spark and without it, over two runs with different parallelism."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.spark.jobs import flink_cases
from tests.spark.jobs.flink_cases import JOINS, LATE_ROWS, WINDOWS
from tests.spark.processes import ModuleJob

TABLES = {f"{name}-{method}": case.expected for name, case in WINDOWS.items() for method in ("reduced", "processed")}
TABLES |= {**JOINS, "late-reduced": LATE_ROWS, "late-processed": LATE_ROWS}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(False, id="local"),
        pytest.param(True, id="spark", marks=[pytest.mark.spark, pytest.mark.slow]),
    ],
)
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleJob]:
    job = ModuleJob(tmp_path_factory.mktemp("cases"), flink_cases, spark=request.param)
    job.finish(parallelism=2, run__max_batches=2)
    job.finish(parallelism=3, run__drain="yes")
    yield job
    job.close()


@pytest.mark.parametrize("table", TABLES)
def test_rows_are_those_of_flink(job: ModuleJob, table: str) -> None:
    assert job.rows(table) == Counter(map(tuple, TABLES[table]))
