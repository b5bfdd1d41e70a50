"""Dead letters on Spark: of an operator, and of a row function that Spark's workers run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stateflow.testing.sinks import FolderSink
from tests.runtime.jobs import letters
from tests.spark.processes import ModuleJob


@pytest.mark.spark
def test_bad_rows_on_spark_are_committed_as_dead_letters(tmp_path: Path) -> None:
    job = ModuleJob(tmp_path, letters, parallelism=2)
    job.finish()
    found = [(row["operator"], json.loads(row["row"])["number"]) for row in FolderSink(tmp_path / "letters").rows()]
    assert sorted(number for _, number in found) == letters.BAD
    assert {operator for operator, number in found if number % 11 == 10} == {"refuse_tens"}
    assert job.rows("out") == letters.expected()
