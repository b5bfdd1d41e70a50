"""A job on Spark that waits for more input: later files, timers and requests while idle, and how it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from stateflow.operations import describe
from tests.spark.continuous_job import ContinuousJob
from tests.support import root_files

pytestmark = pytest.mark.spark


@pytest.fixture
def job(tmp_path: Path) -> Iterator[ContinuousJob]:
    job = ContinuousJob(tmp_path)
    yield job
    job.close()


@pytest.mark.slow(reason="starts Spark in a process of its own, and waits for input")
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


def _entries_after(job: ContinuousJob, seq: int) -> list[root_files.Entry]:
    return [entry for entry in root_files.entries(job.root) if entry.seq > seq]
