"""Operator state on Spark: written by workers, restored at another parallelism."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recovery.test_operator_state import check_collected, check_rated
from tests.spark.processes import observed_runs
from tests.support.job_fixture import AccountsJob


@pytest.mark.spark
def test_operator_state_on_spark_is_written_by_workers_and_redistributed(tmp_path: Path) -> None:
    settings = {"job__folder": tmp_path, "job__spark": "yes", "job__pad": 1500}
    job = AccountsJob(tmp_path, settings, job_name="checkpointed")
    job.deliver(40)
    observed_runs(job, {"parallelism": 2, "run__max_batches": 3}, {"parallelism": 3})
    check_collected(job)
    check_rated(job)
    assert job.requested()
