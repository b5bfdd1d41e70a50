"""Rich functions, the short forms on keyed streams, collections and print, on Spark and without it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stateflow.errors import UserCodeError
from tests.spark.jobs import short_forms
from tests.spark.processes import ModuleJob

EXPECTED: dict[str, list[tuple[Any, ...]]] = {
    "map": [(1, "1: 3"), (2, "1: 10"), (1, "2: 5"), (1, "3: 7"), (2, "2: 30"), (1, "4: 4"), (1, "5: 2")],
    "filter": [(1, 3), (2, 10), (1, 5), (1, 7), (2, 30)],
    "reduce": [(1, 3), (2, 10), (1, 8), (1, 15), (2, 40), (1, 19), (1, 21)],
    "aggregate": [(1, "3/1"), (2, "10/1"), (1, "8/2"), (1, "15/3"), (2, "40/2"), (1, "19/4"), (1, "21/5")],
    "map_with_state": [(1, "None 3"), (2, "None 10"), (1, "3 5"), (1, "5 7"), (2, "10 30"), (1, "7 4"), (1, "4 2")],
    "flat_map_with_state": 2 * [(1, 5), (2, 30), (1, 4)],
    "filter_with_state": [(1, 5), (2, 30), (1, 4)],
}


@pytest.fixture(
    params=[
        "local",
        pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.slow(reason="starts Spark for its jobs")]),
    ]
)
def job(request: pytest.FixtureRequest, tmp_path: Path) -> ModuleJob:
    on_spark = request.param == "spark"
    return ModuleJob(tmp_path, short_forms, spark=on_spark, source__max_rows_per_batch=2, parallelism=2)


def test_each_form_has_state_per_key_over_batches_and_runs(job: ModuleJob) -> None:
    printed = []
    for bound in ({"run__max_batches": 2}, {}):
        ended = job.finish(**bound)
        printed.append([line for line in ended.out.splitlines() if line.startswith("(")])
    # CountWindowAverage: the first pair of values is in one batch, the second ends in another run.
    assert printed == [["(1,4)"], ["(1,5)"]]
    assert {name: job.rows(name) for name in EXPECTED} == {name: Counter(rows) for name, rows in EXPECTED.items()}


def test_a_row_function_that_fails_names_itself_and_the_row(job: ModuleJob) -> None:
    # With asynchronous checkpoints, the failure may come before the first batch is published.
    ended = job.run(job__fails="yes", checkpoints__asynchronous="no")
    assert (ended.code, ended.error.code) == (UserCodeError.exit_code, UserCodeError.code), str(ended)
    assert (ended.error.facts["function"], ended.error.facts["row"]) == ("refuse_seven", "Pair(key=1, value=7)")
    assert "ValueError" in ended.err and "seven is not welcome" in ended.err
    # Of the batch that failed nothing is published.
    assert job.rows("reduce") == Counter([(1, 3), (2, 10)])
