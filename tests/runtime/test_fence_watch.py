"""A fenced run detects it while it works, and reports which run fenced it."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

from stateflow.checkpoint.log.fencing import FenceGuard
from stateflow.checkpoint.log.job_root import JobRoot, NewJob
from stateflow.clock import ManualClock
from stateflow.errors import Fenced, StorageError
from stateflow.runtime.driver.job_run import FenceWatch
from stateflow.runtime.job import Positions
from stateflow.runtime.local_run import LocalExecutor
from stateflow.runtime.task import store_cache
from stateflow.storage.memory import MemoryStorage
from tests.support.errors import raises
from tests.support.graphs import Row
from tests.support.local_jobs import LocalJobs

_SOON = timedelta(milliseconds=1)
_LONG = 30.0


class Unreliable(MemoryStorage):
    """Fails at its next listings with the given errors."""

    def __init__(self) -> None:
        super().__init__("memory://x")
        self.errors: list[Exception] = []

    def list(self, *arguments: Any) -> Any:
        if self.errors:
            raise self.errors.pop()
        return super().list(*arguments)


def _root(storage: MemoryStorage) -> JobRoot:
    return JobRoot.create_or_open(storage, ManualClock(), NewJob("job", 128, {}), "one:1")


def _other(root: JobRoot, writer: str) -> JobRoot:
    return JobRoot.open(root.storage, root.clock, writer)


def test_a_newer_run_is_named_with_its_note_its_host_and_its_time() -> None:
    root = _root(MemoryStorage("memory://x"))
    own = root.claim("nightly/1").entry.generation
    guard = FenceGuard(root.log, own)
    assert guard.find() is None
    guard.check()
    newer = _other(root, "two:2").claim("nightly/2").entry
    facts = {"generation": own, "newer": newer.generation, "by": "nightly/2", "where": "two:2", "claimed_at": newer.at}
    found = guard.find()
    assert found is not None and found.facts == facts
    # A later entry of another command does not hide the claim.
    _other(root, "cli").admin.retain(3)
    again = guard.find()
    assert again is not None and again.facts == facts


def test_a_watch_survives_storage_errors_interrupts_once_and_then_reports_the_fence() -> None:
    storage, interrupted = Unreliable(), threading.Event()
    root = _root(storage)
    watch = FenceWatch(FenceGuard(root.log, root.claim().entry.generation), _SOON, interrupted.set)
    assert not watch.is_fenced()
    watch.check()
    _other(root, "two:2").claim()
    storage.errors = [ValueError("an untranslated 403"), StorageError("no answer")]
    watch.begin()
    assert interrupted.wait(_LONG)
    watch.end()
    assert not storage.errors
    with raises(Fenced, where="two:2"):
        watch.check()


class CountingExecutor(LocalExecutor):
    def __init__(self) -> None:
        super().__init__()
        self.batches = 0
        self.cancelled = threading.Event()

    def execute(self, rows: Any, work: Any) -> Any:
        self.batches += 1
        return super().execute(rows, work)

    def cancel(self) -> None:
        self.cancelled.set()


def test_a_run_that_detected_a_fence_begins_no_batch(jobs: LocalJobs) -> None:
    def build(env: Any) -> None:
        rows = env.from_collection([Row("a", 1, 1.0)], Row, uid="rows").key_by("key")
        rows.reduce(lambda a, b: b, uid="sum").sink_to(jobs.sink("out"), uid="out")

    executor = CountingExecutor()
    run = jobs.prepare(build, executor, requests__fence_interval="10ms")
    run.start("mine")
    _other(run.job.root, "two:2").claim("theirs")
    assert executor.cancelled.wait(_LONG)
    with raises(Fenced, by="theirs", where="two:2"):
        run.run_batch({"rows": []}, lambda _: Positions([]))
    run.abandon()
    store_cache.close_all()
    assert executor.batches == 0
