"""The loser of two runs learns it while it works, and learns from whom."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from stateflow.api.collection import CollectionSource
from stateflow.checkpoint.fencing import fenced_by
from stateflow.checkpoint.job_format import NewJob
from stateflow.checkpoint.jobroot import JobRoot
from stateflow.clock import ManualClock, SystemClock
from stateflow.environment import declare
from stateflow.errors import Fenced, StorageError
from stateflow.runtime import stores
from stateflow.runtime.assembly import assemble
from stateflow.runtime.fence_watch import FenceWatch
from stateflow.runtime.job import Positions
from stateflow.runtime.local import LocalExecutor
from stateflow.runtime.run import JobRun
from stateflow.storage import open_storage
from stateflow.storage.memory import MemoryStorage
from stateflow.testing.sinks import FolderSink
from tests.unit.kit import Row

_SOON = timedelta(milliseconds=1)
_LONG = 30.0


def _root(writer: str) -> JobRoot:
    return JobRoot.create_or_open(MemoryStorage("memory://x"), ManualClock(), NewJob("job", 128, {}), writer)


def _other(root: JobRoot, writer: str) -> JobRoot:
    return JobRoot.open(root.storage, root.clock, writer)


def test_a_newer_run_is_named_with_who_where_and_since_when() -> None:
    root = _root("one:1")
    own = root.claim("nightly/1").entry.generation
    assert fenced_by(root.log, own) is None
    newer = _other(root, "two:2").claim("nightly/2").entry
    found = fenced_by(root.log, own)
    assert found is not None
    assert found.facts == {
        "generation": own, "newer": newer.generation, "by": "nightly/2", "where": "two:2", "since": newer.at,
    }  # fmt: skip
    # What the newer run appends later does not hide when it began.
    _other(root, "cli").retain(3)
    again = fenced_by(root.log, own)
    assert again is not None and again.facts == found.facts


def test_a_watch_interrupts_what_runs_once_and_says_so_from_then_on() -> None:
    root, interrupted = _root("one:1"), threading.Event()
    watch = FenceWatch(root.log, root.claim().entry.generation, _SOON, interrupted.set)
    assert not watch.look()
    watch.check()
    watch.begin()
    _other(root, "two:2").claim()
    assert interrupted.wait(_LONG)
    watch.end()
    with pytest.raises(Fenced):
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
    watch = FenceWatch(root.log, own, _SOON, interrupted.set)
    watch.begin()
    assert interrupted.wait(_LONG)
    watch.end()
    assert not storage.errors


class _Counts(LocalExecutor):
    batches = 0
    cancelled = 0

    def execute(self, rows: Any, work: Any) -> Any:
        self.batches += 1
        return super().execute(rows, work)

    def cancel(self) -> None:
        self.cancelled += 1


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    stores.close_all()


def test_a_run_that_learned_it_begins_no_batch(folder: Path) -> None:
    def build(env: Any) -> None:
        source = CollectionSource([Row("a", 1, 1.0)], Row)
        env.from_source(source, uid="rows").key_by("key").reduce(lambda a, b: b, uid="sum").sink_to(
            FolderSink(folder / "table"), uid="table"
        )

    # A look a day: it is this test that looks.
    given = {"local_dir": str(folder / "local"), "requests.fence_interval": "1d"}
    env, settings = declare(build, "job", (given,))
    executor = _Counts()
    run = JobRun(assemble(env.graph, settings, open_storage(str(folder / "root")), SystemClock()), executor)
    run.start("mine")
    JobRoot.open(run.job.root.storage, run.job.root.clock, "two:2").claim("theirs")
    fence = run._fence
    assert fence is not None and fence.look()
    with pytest.raises(Fenced) as ended:
        run.run_batch({"rows": []}, lambda _: Positions([]))
    run.abandon()
    assert executor.batches == 0
    assert (ended.value.facts["by"], ended.value.facts["where"]) == ("theirs", "two:2")
