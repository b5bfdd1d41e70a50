"""A job whose source in Python is read by Spark's tasks, one for each split."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ledger_job import LedgerJob
from tests.support.ledgers import entry, write

pytestmark = pytest.mark.spark


@pytest.fixture
def job(tmp_path: Path) -> Iterator[LedgerJob]:
    job = LedgerJob(tmp_path)
    (tmp_path / "in").mkdir()
    yield job
    job.close()


def test_runs_read_each_row_once_also_after_a_kill(job: LedgerJob) -> None:
    job.send("a", 25)
    job.send("b", 4)
    # Of several batches, the killed run has committed the first; its tasks read the others for nothing.
    job.reach("batch.reported:2", source__max_rows_per_batch=10)
    job.send("b", 8)
    job.send("c", 5)
    job.finish(job__arrow="yes")
    job.check_rows()
    assert job.finish().result["idle"]


@pytest.mark.slow(reason="starts Spark for its jobs")
def test_a_bad_row_or_an_exception_ends_the_run_with_its_place(job: LedgerJob) -> None:
    job.send("a", 4)
    write(job.folder / "in", "a", "{")
    job.run().check_error(4, "corrupt-input", topic="a", offset="4", value="{")
    write(job.folder / "in", "b", "raise")
    error = job.run(job__budget=2).check_error(5, "batch-failed", reason="LookupError: line 0", split="b [0, 1)")
    file, _, line = error.facts["where"].rpartition(":")
    assert "raise LookupError" in Path(file).read_text().splitlines()[int(line) - 1]


@pytest.mark.slow(reason="starts Spark for its jobs")
def test_bad_rows_are_dead_letters_and_a_restore_sets_the_position(job: LedgerJob) -> None:
    job.send("slow", 4)
    job.send("fast", 4, at=1000)
    write(job.folder / "in", "fast", "{", {**entry("n0", 1), "number": "x"})
    assert job.finish(job__budget=2).result["rows_in"] == 10
    job.check_rows()
    records = [json.loads(letter["row"]) for letter in job.table_rows("letters")]
    assert sorted((record["topic"], record["offset"]) for record in records) == [("fast", 4), ("fast", 5)]
    # The watermark is that of the slow partition, one millisecond before its last entry.
    assert {-row["count"] for row in job.table_rows("counts") if row["count"] < 0} == {1, 2}
    (job.folder / "in" / "slow.first").write_text("3")
    _restore(job, '{"slow":1,"fast":6}')
    job.run(job__budget=2).check_error(4, "input-lost", source=f"Ledgers[{job.folder / 'in'}]")
    _restore(job, '{"slow":3,"fast":6}')
    job.finish(job__budget=2)
    assert Counter(row["number"] for row in job.table_rows("entries")) == Counter([*range(8), 3])


def _restore(job: LedgerJob, position: str) -> None:
    """Sets the source to a position, with the state of the newest checkpoint."""
    plan = str(job.folder / "plan.json")
    words = ["--plan", "latest", "--out", plan, "--source", f"entries={position}"]
    job.begin("restore", job.job_file, *words, with_job=True).wait().check()
    job.begin("restore", job.job_file, "--execute", plan, with_job=True).wait().check()
