"""Operator state on Spark: written by workers, restored at another parallelism."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.recovery.test_operator_state import check_collected, check_rated
from tests.spark.processes import observed_runs
from tests.support.job_fixture import AccountsJob

pytestmark = pytest.mark.spark


def test_it_is_written_by_workers_and_redistributed(tmp_path: Path) -> None:
    box = AccountsJob(tmp_path, job="checkpointed")
    box.deliver(40)
    settings = {"job.folder": str(box.folder), "job.spark": "yes", "job.pad": "1500", "local_dir": str(box.local)}
    observed_runs(
        Path(box.job_file),
        box.root,
        {**settings, "parallelism": "2", "run.max_batches": "3"},
        {**settings, "parallelism": "3"},
    )
    check_collected(box)
    check_rated(box)
    assert [json.loads(line) for line in (box.folder / "ledger.jsonl").read_text().splitlines()]
