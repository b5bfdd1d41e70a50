"""Checkpoints beside the batches: what goes on meanwhile, in which order, and what an aborted one leaves."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from stateflow import (
    Context,
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from stateflow.checkpoint.documents import SourcePosition
from stateflow.checkpoint.history import read_records
from stateflow.checkpoint.jobroot import JobRoot
from stateflow.clock import SystemClock
from stateflow.environment import declare
from stateflow.errors import BatchFailed, Fenced, StorageError
from stateflow.metrics import MemoryRecorder
from stateflow.runtime import committing, stores
from stateflow.runtime.assembly import assemble
from stateflow.runtime.job import BatchResult, Positions
from stateflow.runtime.local import LocalExecutor
from stateflow.runtime.local_run import run_local
from stateflow.runtime.run import JobRun
from stateflow.storage import MemoryStorage, locate
from stateflow.testing.sinks import FolderSink
from stateflow.testing.sources import ScriptedSource
from tests.recovery.process import wait_for

SLICE = 10


class Row(msgspec.Struct):
    key: str
    number: int


class Numbered(msgspec.Struct):
    key: str
    number: int
    seen: int


class Count(KeyedProcessFunction[Row, Numbered]):
    """Numbers the rows of a key."""

    def open(self, ctx: RuntimeContext) -> None:
        self.seen = ctx.get_state(ValueStateDescriptor("seen", int, default=0))

    def process_element(self, row: Row, ctx: Context) -> Iterator[Numbered]:
        self.seen.update(self.seen.value() + 1)
        yield Numbered(row.key, row.number, self.seen.value())


class Gate(MemoryStorage):
    """A storage that stores files of state when it is open, and fails meanwhile if it is told to.

    The manifest and the log are not files: they are stored at any time.
    """

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.opened = threading.Event()
        self.fails = False
        self.refuses_manifests = False
        self.tries = 0

    def put_file(self, key: str, source: Path) -> None:
        self.tries += 1
        if not self.opened.is_set() and self.fails:
            raise StorageError("the storage is down", key=key)
        self.opened.wait()
        super().put_file(key, source)

    def put_new(self, key: str, data: bytes) -> object:  # type: ignore[override]
        if self.refuses_manifests and key.endswith("manifest.json"):
            raise StorageError("the storage is down", key=key)
        return super().put_new(key, data)


class Job:
    """Runs over rows that a test gives, one slice at a time."""

    def __init__(self, folder: Path, gate: Gate) -> None:
        self.folder = folder
        self.gate = gate
        self.recorder = MemoryRecorder()
        self.rows = [Row(f"k{n % 3}", n) for n in range(12 * SLICE)]
        self.runs: list[JobRun] = []

    def start(self, **settings: str) -> JobRun:
        given = {f"checkpoints.{name}": value for name, value in {"asynchronous": "yes", **settings}.items()}
        env, resolved = declare(self.build, "job", ({"local_dir": str(self.folder / "local"), **given},))
        job = assemble(env.graph, resolved, self.gate, SystemClock())
        self.runs.append(JobRun(replace(job, recorder=self.recorder), LocalExecutor()))
        self.runs[-1].start()
        return self.runs[-1]

    def build(self, env: StreamExecutionEnvironment) -> None:
        stream = env.from_source(self.source(), uid="rows").key_by("key")
        stream.process(Count(), output=Numbered, uid="count").sink_to(self.table(), uid="table")

    def source(self) -> ScriptedSource:
        return ScriptedSource(Row, self.rows, self.folder / "ledger", SLICE)

    def table(self) -> FolderSink:
        return FolderSink(self.folder / "table")

    def batch(self, run: JobRun) -> BatchResult:
        ((uid, description),) = run.job.sources
        before = run.positions[0].offset if run.positions else None
        found = self.source().read(before, run.job.settings.source)
        assert found is not None
        position = SourcePosition(uid=uid, description=description, offset=found.position)
        return run.run_batch({"rows": found.rows}, lambda _: Positions([position]))

    def published(self) -> int:
        return len(self.table().rows())

    def check(self, rows: int) -> None:
        """The table has what the first rows give, each once."""
        expected = [(f"k{n % 3}", n, n // 3 + 1) for n in range(rows)]
        assert sorted((tuple(r.values()) for r in self.table().rows()), key=lambda r: r[1]) == expected


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    gate = Gate("memory://gated")
    monkeypatch.setitem(locate._memory, gate.uri, gate)
    made = Job(tmp_path, gate)
    yield made
    gate.opened.set()
    for run in made.runs:
        run.abandon()
    stores.close_all()


def test_batches_go_on_while_a_checkpoint_waits_for_its_files(job: Job) -> None:
    run = job.start()
    results = [job.batch(run) for _ in range(4)]
    assert [r.committed for r in results] == [False] * 4
    assert run.head.checkpoint is None and job.published() == 0
    assert json.loads(run.positions[0].offset)["row"] == 4 * SLICE
    job.gate.opened.set()
    run.finish()
    assert run.head.entry.sources == run.positions
    job.check(4 * SLICE)


def test_what_was_put_off_is_one_checkpoint(job: Job) -> None:
    run = job.start()
    for _ in range(5):
        job.batch(run)
    job.gate.opened.set()
    run.finish()
    assert [(r.ordinal, r.rows_in) for r in read_records(job.gate)] == [(1, SLICE), (5, 4 * SLICE)]


def test_as_many_are_on_their_way_as_settings_allow_and_they_end_in_order(job: Job) -> None:
    run = job.start(max_in_flight="3")
    for _ in range(5):
        job.batch(run)
    job.gate.opened.set()
    run.finish()
    assert [r.ordinal for r in read_records(job.gate)] == [1, 2, 3, 5]
    assert [r.rows_in for r in read_records(job.gate)] == [SLICE, SLICE, SLICE, 2 * SLICE]
    job.check(5 * SLICE)


def test_a_run_that_is_let_go_commits_nothing_that_was_not_stored_and_the_next_one_replays(job: Job) -> None:
    run = job.start()
    for _ in range(3):
        job.batch(run)
    run.abandon()
    assert run.head.checkpoint is None
    job.gate.opened.set()
    stores.close_all()
    run_local(job.start(), {"rows": job.source()}, lambda _: None)
    job.check(len(job.rows))


def test_a_checkpoint_whose_files_do_not_come_in_time_fails_the_run(job: Job) -> None:
    run = job.start(timeout="50ms")
    job.batch(run)
    with pytest.raises(BatchFailed, match="were not stored in time") as caught:
        run.finish()
    assert caught.value.retryable and "checkpoints.timeout" in str(caught.value)
    assert job.recorder.counters["number_of_failed_checkpoints"] == 1


def test_the_next_checkpoint_has_what_an_aborted_one_would_have_published(job: Job) -> None:
    run = job.start(timeout="50ms", tolerable_failures="100")
    job.batch(run)
    wait_for(lambda: job.recorder.counters["number_of_failed_checkpoints"] == 1, lambda: "an abort")
    job.gate.opened.set()
    job.batch(run)
    run.finish()
    aborted, completed = read_records(job.gate)
    assert (aborted.status, aborted.ordinal, aborted.rows_in) == ("aborted", 1, SLICE)
    assert "were not stored in time" in aborted.failure
    assert (completed.status, completed.ordinal, completed.rows_in) == ("completed", 2, 2 * SLICE)
    job.check(2 * SLICE)


def test_a_run_does_not_end_with_an_aborted_checkpoint_when_it_may_try_again(job: Job) -> None:
    job.gate.opened.set()
    job.gate.refuses_manifests = True
    run = job.start(tolerable_failures="100")
    job.batch(run)
    wait_for(lambda: job.recorder.counters["number_of_failed_checkpoints"] == 1, lambda: "an abort")
    job.gate.refuses_manifests = False
    run.finish()
    job.check(SLICE)


def test_a_run_whose_files_never_come_ends_when_more_tries_have_failed_than_are_borne(job: Job) -> None:
    run = job.start(timeout="50ms", tolerable_failures="2")
    job.batch(run)
    with pytest.raises(BatchFailed, match="were not stored in time"):
        run.finish()
    assert job.recorder.counters["number_of_failed_checkpoints"] == 3


@pytest.mark.parametrize("asynchronous", ["yes", "no"])
def test_behind_a_checkpoint_that_was_tried_again_barriers_become_checkpoints_as_before(
    job: Job, asynchronous: str
) -> None:
    job.gate.opened.set()
    job.gate.refuses_manifests = True
    run = job.start(tolerable_failures="100", asynchronous=asynchronous)
    job.batch(run)
    wait_for(lambda: job.recorder.counters["number_of_failed_checkpoints"] == 1, lambda: "an abort")
    job.gate.refuses_manifests = False
    run.settle()
    assert job.recorder.gauges["number_of_in_progress_checkpoints"] == 0
    for _ in range(3):
        job.batch(run)
        # What was asked for does not count: each is one by itself.
        wait_for(lambda: run.head.entry.ordinal == run._ordinal, lambda: "its checkpoint")
    job.check(4 * SLICE)


@pytest.mark.parametrize("asynchronous", ["yes", "no"])
@pytest.mark.parametrize("tolerable", [0, 2])
def test_one_failure_more_than_is_borne_fails_the_run_with_its_reason(
    job: Job, tolerable: int, asynchronous: str
) -> None:
    job.gate.opened.set()
    run = job.start(tolerable_failures=str(tolerable), asynchronous=asynchronous)
    job.batch(run)
    run.settle()
    job.gate.refuses_manifests = True
    with pytest.raises(StorageError, match="the storage is down"):
        for _ in range(tolerable + 1):
            job.batch(run)
            wait_for(lambda: not run._committer._running or run._committer._running[0].done(), lambda: "it")
            run._committer.check()
    assert job.recorder.counters["number_of_failed_checkpoints"] == tolerable + 1
    job.check(SLICE)


def test_a_run_that_waits_for_files_learns_that_it_is_fenced(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files may have been collected; it does not wait until the timeout for them."""
    monkeypatch.setattr(committing, "_LOOK_SECONDS", 0.05)
    run = job.start()
    job.batch(run)
    newer = JobRoot.open(job.gate, SystemClock(), "another run").claim()
    with pytest.raises(Fenced) as caught:
        run.finish()
    assert caught.value.facts["newer"] == newer.entry.generation


def test_a_storage_that_fails_is_tried_again_until_the_time_is_over(job: Job) -> None:
    job.gate.fails = True
    run = job.start()
    job.batch(run)
    wait_for(lambda: job.gate.tries >= 2, lambda: "a second try")
    job.gate.opened.set()
    run.finish()
    job.check(SLICE)


def test_nothing_is_left_of_what_was_on_its_way(job: Job) -> None:
    job.gate.opened.set()
    run_local(job.start(), {"rows": job.source()}, lambda _: None)
    job.check(len(job.rows))
    wait_for(lambda: not list(job.folder.glob("local/**/.uploads/*")), lambda: "an empty outbox")
