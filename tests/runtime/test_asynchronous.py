"""Checkpoints beside the batches: what goes on meanwhile, in which order, and what an aborted one leaves."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from stateflow import Context, KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment, ValueStateDescriptor
from stateflow.checkpoint.history import read_records
from stateflow.checkpoint.log.documents import SourcePosition
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.clock import SystemClock
from stateflow.environment import declare
from stateflow.errors import BatchFailed, Fenced, StorageError
from stateflow.observability.metrics import MemoryRecorder
from stateflow.runtime.driver.job_run import JobRun
from stateflow.runtime.job.job import BatchResult, Positions
from stateflow.runtime.job.loader import create_or_open_job
from stateflow.runtime.local.executor import LocalExecutor
from stateflow.runtime.local.run_loop import run_local
from stateflow.runtime.task import store_cache
from stateflow.storage import MemoryStorage, register_memory, unregister_memory
from stateflow.testing.sinks import FolderSink
from stateflow.testing.sources import ScriptedSource
from tests.support.errors import raises
from tests.support.processes import wait_for

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

    def start(self, fence_interval: str = "5s", **settings: str) -> JobRun:
        given = {f"checkpoints.{name}": value for name, value in {"asynchronous": "yes", **settings}.items()}
        given["requests.fence_interval"] = fence_interval
        env, resolved = declare(self.build, "job", ({"local_dir": str(self.folder / "local"), **given},))
        job = create_or_open_job(env.graph, resolved, self.gate, SystemClock())
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
def job(tmp_path: Path) -> Iterator[Job]:
    gate = Gate("memory://gated")
    register_memory(gate)
    made = Job(tmp_path, gate)
    yield made
    gate.opened.set()
    for run in made.runs:
        run.abandon()
    store_cache.close_all()
    unregister_memory(gate.uri)


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
    store_cache.close_all()
    run_local(job.start(), {"rows": job.source()}, lambda _: None)
    job.check(len(job.rows))


def test_a_checkpoint_whose_files_do_not_come_in_time_fails_the_run(job: Job) -> None:
    run = job.start(timeout="50ms")
    job.batch(run)
    with raises(BatchFailed, setting="checkpoints.timeout", barrier=1) as caught:
        run.finish()
    assert caught.value.retryable
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
    assert "setting='checkpoints.timeout'" in aborted.failure
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
    with raises(BatchFailed, setting="checkpoints.timeout"):
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
    for published in (2, 3, 4):
        result = job.batch(run)
        # What was asked for does not count: each is one by itself.
        wait_for(lambda rows=published * SLICE: job.published() == rows, lambda: "its rows")
        assert run.head.entry.ordinal == result.ordinal
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
    failed = job.recorder.counters
    with raises(StorageError) as caught:
        for number in range(1, tolerable + 2):
            job.batch(run)
            wait_for(lambda n=number: failed["number_of_failed_checkpoints"] == n, lambda: "a failure")
        run.finish()
    assert str(caught.value.facts["key"]).endswith("manifest.json")
    assert job.recorder.counters["number_of_failed_checkpoints"] == tolerable + 1
    job.check(SLICE)


def test_a_run_that_waits_for_files_learns_that_it_is_fenced(job: Job) -> None:
    """Its files may have been collected; it does not wait until the timeout for them."""
    run = job.start(fence_interval="50ms")
    job.batch(run)
    newer = JobRoot.open(job.gate, SystemClock(), "another run").claim()
    with raises(Fenced, newer=newer.entry.generation):
        run.finish()


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
