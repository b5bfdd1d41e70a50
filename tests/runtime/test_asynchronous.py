"""Asynchronous checkpoints: what happens while one is stored, their order, and what an aborted one leaves."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stateflow import Context, KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment, ValueStateDescriptor
from stateflow.checkpoint.history import read_records
from stateflow.checkpoint.log.documents import BatchRecord, Manifest, SourcePosition
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.errors import BatchFailed, Fenced, StorageError
from stateflow.observability import MemoryRecorder
from stateflow.runtime.driver.checkpointing import BatchRecords, PendingCheckpoint
from stateflow.runtime.driver.job_run import JobRun
from stateflow.runtime.job import BatchResult, Positions
from stateflow.runtime.task import store_cache
from stateflow.storage import MemoryStorage, PutResult, register_memory, unregister_memory
from tests.support.errors import raises
from tests.support.graphs import Row
from tests.support.local_jobs import Growing, LocalJobs
from tests.support.processes import wait_for

SLICE = 10
ROWS = [Row(f"k{n % 3}", n) for n in range(12 * SLICE)]


class Count(KeyedProcessFunction[Row, Row]):
    def open(self, ctx: RuntimeContext) -> None:
        self.seen = ctx.get_state(ValueStateDescriptor("seen", int, default=0))

    def process_element(self, row: Row, ctx: Context) -> Iterator[Row]:
        self.seen.update((self.seen.value() or 0) + 1)
        yield Row(row.key, row.number, float(self.seen.value() or 0))


class GatedStorage(MemoryStorage):
    """Stores files of state only while it is open; stores manifests and log entries at any time.

    Attributes:
        fails: `put_file` fails while the gate is closed, instead of waiting.
        refuses_manifests: storing a manifest fails.
    """

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.opened = threading.Event()
        self.fails = self.refuses_manifests = False
        self.tries = 0

    def put_file(self, key: str, source: Path) -> None:
        self.tries += 1
        if not self.opened.is_set() and self.fails:
            raise StorageError("the storage is down", key=key)
        self.opened.wait()
        super().put_file(key, source)

    def put_new(self, key: str, data: bytes) -> PutResult:
        if self.refuses_manifests and key.endswith("manifest.json"):
            raise StorageError("the storage is down", key=key)
        return super().put_new(key, data)


class GatedJob(LocalJobs):
    """A job on a `GatedStorage`, whose batches a test runs one by one."""

    def __init__(self, folder: Path, gate: GatedStorage) -> None:
        super().__init__(folder, storage=gate, source__max_rows_per_batch=SLICE, checkpoints__asynchronous="yes")
        self.gate = gate
        self.recorder = self.metrics = MemoryRecorder()
        self.source = Growing(ROWS, Row)
        self.runs: list[JobRun] = []

    def new_run(self, **settings: Any) -> JobRun:
        self.runs.append(self.prepare(self.build, **{"requests__fence_interval": "5s", **settings}))
        return self.runs[-1]

    def start(self, **settings: Any) -> JobRun:
        run = self.new_run(**settings)
        run.start()
        return run

    def build(self, env: StreamExecutionEnvironment) -> None:
        stream = env.from_source(self.source, uid="rows").key_by("key")
        stream.process(Count(), output=Row, uid="count").sink_to(self.sink("out"), uid="out")

    def batch(self, run: JobRun) -> BatchResult:
        ((uid, description),) = run.job.sources
        found = self.source.read(run.positions[0].offset if run.positions else None, run.job.settings.source)
        assert found is not None
        position = SourcePosition(uid=uid, description=description, offset=found.position)
        return run.run_batch({"rows": found.rows}, lambda _: Positions([position]))

    def wait_for_failures(self, number: int) -> None:
        failed = self.metrics.counters
        wait_for(lambda: failed["number_of_failed_checkpoints"] == number, lambda: f"failure {number}")

    def check(self, rows: int) -> None:
        """The table has the result of the first rows, each once."""
        expected = [(f"k{n % 3}", n, n // 3 + 1) for n in range(rows)]
        assert sorted(self.rows(), key=lambda row: row[1]) == expected


@pytest.fixture
def job(tmp_path: Path) -> Iterator[GatedJob]:
    gate = GatedStorage("memory://gated")
    register_memory(gate)
    made = GatedJob(tmp_path, gate)
    yield made
    gate.opened.set()
    for run in made.runs:
        run.abandon()
    store_cache.close_all()
    unregister_memory(gate.uri)


@pytest.mark.parametrize(
    ("in_flight", "checkpoints"),
    [(1, [(1, SLICE), (5, 4 * SLICE)]), (3, [(1, SLICE), (2, SLICE), (3, SLICE), (5, 2 * SLICE)])],
)
def test_batches_continue_while_checkpoints_are_stored_and_later_barriers_become_one_checkpoint(
    job: GatedJob, in_flight: int, checkpoints: list[tuple[int, int]]
) -> None:
    run = job.start(checkpoints__max_in_flight=in_flight)
    assert not any(job.batch(run).committed for _ in range(5))
    assert run.head.checkpoint is None and job.rows() == []
    assert json.loads(run.positions[0].offset)["row"] == 5 * SLICE
    job.gate.opened.set()
    run.finish()
    assert run.head.entry.sources == run.positions
    assert [(r.ordinal, r.rows_in) for r in read_records(job.gate)] == checkpoints
    job.check(5 * SLICE)


def test_an_abandoned_run_commits_nothing_that_is_not_stored_and_the_next_run_replays(job: GatedJob) -> None:
    run = job.start()
    for _ in range(3):
        job.batch(run)
    run.abandon()
    assert run.head.checkpoint is None
    job.gate.opened.set()
    store_cache.close_all()
    job.execute(job.new_run())
    job.check(len(ROWS))
    wait_for(lambda: not list(job.folder.glob("local/**/.uploads/*")), lambda: "the removal of all uploads")


@pytest.mark.parametrize(("tolerable", "facts"), [(0, {"barrier": 1}), (2, {})])
def test_a_run_whose_files_are_not_stored_in_time_fails_after_the_tolerable_failures(
    job: GatedJob, tolerable: int, facts: dict[str, int]
) -> None:
    run = job.start(checkpoints__timeout="50ms", checkpoints__tolerable_failures=tolerable)
    with raises(BatchFailed, setting="checkpoints.timeout", **facts) as caught:
        # On a busy host, the batch itself ends after the timeout.
        job.batch(run)
        run.finish()
    assert caught.value.retryable
    assert job.metrics.counters["number_of_failed_checkpoints"] == tolerable + 1


def test_the_next_checkpoint_publishes_the_output_of_an_aborted_one(job: GatedJob) -> None:
    run = job.start(checkpoints__timeout="50ms", checkpoints__tolerable_failures=100)
    job.batch(run)
    job.wait_for_failures(1)
    job.gate.opened.set()
    job.batch(run)
    run.finish()
    aborted, completed = read_records(job.gate)
    assert (aborted.status, aborted.ordinal, aborted.rows_in) == ("aborted", 1, SLICE)
    assert "setting='checkpoints.timeout'" in aborted.failure
    assert (completed.status, completed.ordinal, completed.rows_in) == ("completed", 2, 2 * SLICE)
    job.check(2 * SLICE)


@pytest.mark.parametrize("asynchronous", ["yes", "no"])
def test_an_aborted_checkpoint_is_retried_and_later_barriers_become_checkpoints(
    job: GatedJob, asynchronous: str
) -> None:
    job.gate.opened.set()
    run = job.start(checkpoints__tolerable_failures=100, checkpoints__asynchronous=asynchronous)

    def abort(failures: int) -> None:
        job.gate.refuses_manifests = True
        job.batch(run)
        job.wait_for_failures(failures)
        job.gate.refuses_manifests = False

    def wait_for_rows(rows: int) -> None:
        wait_for(lambda: len(job.rows()) == rows, lambda: "the rows of the batch")

    abort(1)
    run.commit_pending()
    assert job.metrics.gauges["number_of_in_progress_checkpoints"] == 0
    for batches in (2, 3, 4):
        result = job.batch(run)
        wait_for_rows(batches * SLICE)
        assert run.head.entry.ordinal == result.ordinal
    abort(2)
    run.finish()
    job.check(5 * SLICE)


@pytest.mark.parametrize("asynchronous", ["yes", "no"])
@pytest.mark.parametrize("tolerable", [0, 2])
def test_one_failure_more_than_tolerable_fails_the_run_with_its_reason(
    job: GatedJob, tolerable: int, asynchronous: str
) -> None:
    job.gate.opened.set()
    run = job.start(checkpoints__tolerable_failures=tolerable, checkpoints__asynchronous=asynchronous)
    job.batch(run)
    run.commit_pending()
    job.gate.refuses_manifests = True
    with raises(StorageError) as caught:
        for number in range(1, tolerable + 2):
            job.batch(run)
            job.wait_for_failures(number)
        run.finish()
    assert str(caught.value.facts["key"]).endswith("manifest.json")
    assert job.metrics.counters["number_of_failed_checkpoints"] == tolerable + 1
    job.check(SLICE)


def test_a_fenced_run_detects_the_newer_run_while_waiting_for_files(job: GatedJob) -> None:
    """Its files may have been collected; it does not wait until the timeout for them."""
    run = job.start(requests__fence_interval="50ms")
    job.batch(run)
    newer = JobRoot.open(job.gate, job.clock, "another run").claim()
    with raises(Fenced, newer=newer.entry.generation):
        run.finish()


# -- records of batches between two checkpoints -----------------------------------------------------------------------


def _record(ordinal: int, position: str = "7") -> BatchRecord:
    return BatchRecord(ordinal=ordinal, processing_time="", checkpoint_id=0, offsets=[position], spark_time=ordinal)


def _after(count: int, position: str = "7") -> BatchRecords:
    records = BatchRecords()
    for ordinal in range(count):
        records.add([_record(ordinal, position)])
    return records


def test_the_last_batch_has_its_position_in_the_manifest() -> None:
    first, last = _after(2).stored
    assert (first.offsets, first.spark_time) == (["7"], 0)
    assert (last.offsets, last.spark_time) == ([], None)
    assert _after(1, "x" * (2 << 20)).stored[0].ordinal == 0


def test_more_batches_than_a_manifest_records_take_no_memory() -> None:
    assert len(_after(1000).stored) == 1000
    for many in (_after(1002), _after(3, "x" * (1 << 20))):
        assert many.stored == many.records == []


def test_an_aborted_checkpoint_passes_its_batches_on() -> None:
    def pending(records: BatchRecords) -> PendingCheckpoint:
        manifest = Manifest(job_uuid="", generation=1, ordinal=1, operators=[], sources=[])
        return PendingCheckpoint(manifest, batches=records)

    both = pending(_after(2)).merged_after(pending(_after(3)))
    assert [record.ordinal for record in both.document.batches] == [0, 1, 2, 0, 1]
    assert pending(_after(2)).merged_after(pending(_after(1002))).document.batches == []
