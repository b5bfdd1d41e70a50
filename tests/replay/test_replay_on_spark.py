"""Batches of a job on Spark run again: in Spark's tasks, and with a key in the driver's process."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.replay.spark_replays import replays
from tests.spark.jobs import folders
from tests.spark.processes import ModuleJob
from tests.support import folder_tables

pytestmark = [pytest.mark.spark, pytest.mark.slow]
_WRITTEN = 1_700_000_000


@pytest.mark.parametrize("more", [{}, {"job.key": '["n1"]'}], ids=["in-tasks", "in-process"])
def test_each_batch_of_a_job_over_files_leads_to_its_state_and_rows(tmp_path: Path, more: dict[str, object]) -> None:
    job = ModuleJob(tmp_path, folders, parallelism=2)
    (tmp_path / folders.PARQUET).mkdir()
    (tmp_path / "json").mkdir()
    for number in range(3):
        rows = [{"name": f"n{number % 2}", "number": 10 * number + at} for at in range(4)]
        file = tmp_path / "json" / f"{number}.json"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        # Batches read files in the order of these times: files written within a tick of the clock would have one time.
        os.utime(file, (_WRITTEN + number, _WRITTEN + number))
    found = replays(job, {"source__max_files_per_batch": 1, **more})
    assert [each.get("error", "") for each in found] == [""] * 3, found
    for number, each in enumerate(found):
        assert (each["same"], each["deviation"]) == (True, ""), each
        for sink, table in (("out", "out"), ("sums", "sums")):
            published = folder_tables.by_token(tmp_path / table).get(each["batch"], [])
            assert sorted(map(str, each["rows"][sink])) == sorted(map(str, published)), (sink, each)
        if more:
            (calls,) = each["calls"]
            assert len(calls) == (4 if number == 1 else 0)
