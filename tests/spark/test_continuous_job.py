"""A job on Spark that waits for more input: later files, timers and requests while idle, and how it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.clock import SystemClock
from stateflow.operations import describe
from stateflow.storage import open_storage
from tests.spark.continuous_job import ContinuousJob
from tests.support import root_files, stored_state
from tests.support.processes import wait_for

pytestmark = pytest.mark.spark


@pytest.fixture
def job(tmp_path: Path) -> Iterator[ContinuousJob]:
    job = ContinuousJob(tmp_path)
    yield job
    job.close()


def test_a_run_waits_for_input_fires_timers_serves_requests_and_ends_at_sigterm(job: ContinuousJob) -> None:
    job.add("a", "b")
    run = job.start()
    job.wait_for_rows(run, ("a", 1), ("b", 1), ("a", -1), ("b", -1))
    idle = job.head.seq
    savepoint = job.create_savepoint("idle")
    # A pin and its removal; no checkpoint without a batch.
    assert savepoint["checkpoint_id"] <= idle and not any(e.doc["kind"] == "commit" for e in _entries_after(job, idle))
    job.add("a")
    job.wait_for_rows(run, ("a", 1), ("b", 1), ("a", -1), ("b", -1), ("a", 2), ("a", -2))
    os.kill(run.pid, signal.SIGTERM)
    ended = run.wait().check()
    assert ended.result["stopped_because"] == "signal" and ended.result["rows_in"] == 3
    assert not describe(job.job_root).run_open
    assert job.finish(run__until="input-ends").result["batches"] == 0


@pytest.mark.slow(reason="starts Spark for its jobs")
def test_a_run_continues_after_a_bounded_source_keeps_few_of_sparks_files_and_ends_when_fenced(
    job: ContinuousJob,
) -> None:
    settings: dict[str, Any] = {"job__listed": "yes", "job__delay": 10**9, "requests__fence_interval": "100ms"}
    settings["spark__conf__spark.sql.streaming.minBatchesToRetain"] = 2
    run = job.start(**settings)
    job.wait_for_rows(run, ("listed", 1))
    expected = [("listed", 1)]
    for number in range(10):
        job.add("a")
        expected.append(("a", number + 1))
        job.wait_for_rows(run, *expected)
    for folder in ("offsets", "commits"):
        kept = [path.name for path in (job.root / "spark").glob(f"*/{folder}/*") if path.name.isdigit()]
        assert 2 <= len(kept) <= 5, kept
    JobRoot.open(open_storage(job.job_root), SystemClock(), "two:2").claim("theirs")
    run.wait().check_error(3, "fenced", by="theirs")


@pytest.mark.slow(reason="starts Spark for its jobs")
def test_a_run_without_input_removes_expired_state(job: ContinuousJob) -> None:
    run = job.start(job__delay=10**9, job__ttl=1000, state__ttl_cleanup_interval="1s", parallelism=3)
    job.add("a", "b", "c")
    job.wait_for_rows(run, ("a", 1), ("b", 1), ("c", 1))
    # Of each name its count and its timer; no longer its last row and the expiry entry of that.
    wait_for(lambda: _stored_entries(job) == 6, lambda: f"{_stored_entries(job)} entries: {run.errors}")
    os.kill(run.pid, signal.SIGTERM)
    result = run.wait().check().result
    # One batch with rows. Those without are a second apart, and the subtasks share them.
    assert result["rows_in"] == 3 and 2 <= result["batches"] <= 4


def _stored_entries(job: ContinuousJob) -> int:
    (operator,) = job.manifest["operators"]
    return sum(len(list(stored_state.stored_entries(job.root, state))) for state in operator["subtasks"])


def _entries_after(job: ContinuousJob, seq: int) -> list[root_files.Entry]:
    return [entry for entry in root_files.entries(job.root) if entry.seq > seq]
