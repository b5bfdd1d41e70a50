"""The loser of two runs learns it while it works, and learns from whom."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from stateflow.api.collection import CollectionSource
from stateflow.checkpoint.log.fencing import FenceGuard
from stateflow.checkpoint.log.job_format import NewJob
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.clock import ManualClock, SystemClock
from stateflow.environment import declare
from stateflow.errors import Fenced, StorageError
from stateflow.runtime.driver.fence_watch import FenceWatch
from stateflow.runtime.driver.job_run import JobRun
from stateflow.runtime.job.job import Positions
from stateflow.runtime.job.loader import create_or_open_job
from stateflow.runtime.local.executor import LocalExecutor
from stateflow.runtime.task import store_cache
from stateflow.storage import open_storage
from stateflow.storage.memory import MemoryStorage
from stateflow.testing.sinks import FolderSink
from tests.support.errors import raises
from tests.support.graphs import Row

_SOON = timedelta(milliseconds=1)
_LONG = 30.0


def _root(writer: str) -> JobRoot:
    return JobRoot.create_or_open(MemoryStorage("memory://x"), ManualClock(), NewJob("job", 128, {}), writer)


def _other(root: JobRoot, writer: str) -> JobRoot:
    return JobRoot.open(root.storage, root.clock, writer)


def test_a_newer_run_is_named_with_who_where_and_since_when() -> None:
    root = _root("one:1")
    own = root.claim("nightly/1").entry.generation
    guard = FenceGuard(root.log, own)
    assert guard.find() is None
    guard.check()
    newer = _other(root, "two:2").claim("nightly/2").entry
    found = guard.find()
    assert found is not None
    assert found.facts == {
        "generation": own,
        "newer": newer.generation,
        "by": "nightly/2",
        "where": "two:2",
        "since": newer.at,
    }
    # What the newer run appends later does not hide when it began.
    _other(root, "cli").admin.retain(3)
    again = guard.find()
    assert again is not None and again.facts == found.facts


def test_a_watch_interrupts_what_runs_once_and_says_so_from_then_on() -> None:
    root, interrupted = _root("one:1"), threading.Event()
    watch = FenceWatch(FenceGuard(root.log, root.claim().entry.generation), _SOON, interrupted.set)
    assert not watch.is_fenced()
    watch.check()
    watch.begin()
    _other(root, "two:2").claim()
    assert interrupted.wait(_LONG)
    watch.end()
    with raises(Fenced, where="two:2"):
        watch.check()


class _Fails(MemoryStorage):
    """Fails at its first listings: with an error of ours, then with one that no storage should raise."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.errors: list[Exception] = []

    def list(self, *arguments: Any) -> Any:
        if self.errors:
            raise self.errors.pop()
        return super().list(*arguments)


def test_a_watch_outlives_a_storage_that_fails() -> None:
    storage, interrupted = _Fails("memory://x"), threading.Event()
    root = JobRoot.create_or_open(storage, ManualClock(), NewJob("job", 128, {}), "one:1")
    own = root.claim().entry.generation
    _other(root, "two:2").claim()
    storage.errors = [ValueError("a 403 that nobody translated"), StorageError("no answer")]
    watch = FenceWatch(FenceGuard(root.log, own), _SOON, interrupted.set)
    watch.begin()
    assert interrupted.wait(_LONG)
    watch.end()
    assert not storage.errors


class _Counts(LocalExecutor):
    def __init__(self) -> None:
        super().__init__()
        self.batches = 0
        self.cancelled = threading.Event()

    def execute(self, rows: Any, work: Any) -> Any:
        self.batches += 1
        return super().execute(rows, work)

    def cancel(self) -> None:
        self.cancelled.set()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    store_cache.close_all()


def test_a_run_that_learned_it_begins_no_batch(folder: Path) -> None:
    def build(env: Any) -> None:
        source = CollectionSource([Row("a", 1, 1.0)], Row)
        env.from_source(source, uid="rows").key_by("key").reduce(lambda a, b: b, uid="sum").sink_to(
            FolderSink(folder / "table"), uid="table"
        )

    given = {"local_dir": str(folder / "local"), "requests.fence_interval": "10ms"}
    env, settings = declare(build, "job", (given,))
    executor = _Counts()
    run = JobRun(create_or_open_job(env.graph, settings, open_storage(str(folder / "root")), SystemClock()), executor)
    run.start("mine")
    JobRoot.open(run.job.root.storage, run.job.root.clock, "two:2").claim("theirs")
    assert executor.cancelled.wait(_LONG)
    with raises(Fenced, by="theirs", where="two:2"):
        run.run_batch({"rows": []}, lambda _: Positions([]))
    run.abandon()
    assert executor.batches == 0
