"""Retentions of checkpoints in a job's history."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stateflow import operations
from stateflow.checkpoint.log.documents import ActionRecord
from stateflow.operations.garbage import RetentionOrder
from tests.operations.test_restore_previews import Job


@pytest.fixture
def job(tmp_path: Path) -> Job:
    job = Job(tmp_path)
    for _ in range(3):
        job.grow()
    return job


def retentions(job: Job) -> list[ActionRecord]:
    return [action for action in job.known.actions if action.kind == "retention"]


def test_a_retention_is_recorded_with_who_why_and_what(job: Job) -> None:
    root = str(job.folder / "root")
    ids = [ref.id for ref in job.root.checkpoints.restorable(job.root.head())]
    order = RetentionOrder("airflow-user:ann", "airflow-user:bob", "disk is full", "agreed")
    operations.collect_garbage(root, retain=1, dry_run=True, order=order)
    operations.collect_garbage(root, retain=len(ids), order=order)
    assert retentions(job) == []
    operations.collect_garbage(root, retain=1, upto=ids[-2], order=order)
    operations.collect_garbage(root, retain=1, order=order)
    (record,) = retentions(job)
    assert (record.by, record.requested_by, record.reason, record.note) == tuple(vars(order).values())
    assert record.facts == {"retain": 1, "checkpoints": len(ids) - 1, "upto_checkpoint_id": ids[-2]}


def test_a_retention_that_is_killed_before_it_releases_a_checkpoint_is_recorded_once(job: Job) -> None:
    root = str(job.folder / "root")
    before = [ref.id for ref in job.root.checkpoints.restorable(job.root.head())]
    code = (
        "from stateflow.operations.garbage import RetentionOrder, collect_garbage; "
        f"collect_garbage({root!r}, retain=1, order=RetentionOrder('airflow-user:ann'))"
    )
    killed = subprocess.run([sys.executable, "-c", code], env={**os.environ, "STATEFLOW_FAILPOINT": "gc.recorded"})
    assert killed.returncode == -signal.SIGKILL
    assert [ref.id for ref in job.root.checkpoints.restorable(job.root.head())] == before
    (record,) = retentions(job)
    assert record.facts["checkpoints"] == len(before) - 1
    operations.collect_garbage(root, retain=1, order=RetentionOrder("airflow-user:ann"))
    assert retentions(job) == [record]


def test_a_retention_releases_only_what_is_recorded_although_a_run_makes_checkpoints(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = str(job.folder / "root")
    before = [ref.id for ref in job.root.checkpoints.restorable(job.root.head())]
    monkeypatch.setattr("stateflow.failpoints.hit", lambda name: job.grow() if name == "gc.recorded" else None)
    operations.collect_garbage(root, retain=1)
    (record,) = retentions(job)
    assert record.facts["upto_checkpoint_id"] == before[-2]
    assert before[-1] in [ref.id for ref in job.root.checkpoints.restorable(job.root.head())]
