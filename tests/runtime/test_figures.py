"""What a run tells about its batches: the figures that it records, and the time that a function is given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from stateflow import Context, KeyedProcessFunction, StreamExecutionEnvironment
from stateflow.checkpoint.history import read_records
from stateflow.clock import ManualClock
from stateflow.environment import declare
from stateflow.observability.metrics import MemoryRecorder
from stateflow.runtime.driver.checkpointing.record import report_metrics
from stateflow.runtime.driver.job_run import JobRun
from stateflow.runtime.job.job import BatchResult
from stateflow.runtime.job.loader import create_or_open_job
from stateflow.runtime.local.executor import LocalExecutor
from stateflow.runtime.local.run_loop import run_local
from stateflow.runtime.task import store_cache
from stateflow.storage import open_storage
from stateflow.testing.sinks import FolderSink
from stateflow.testing.sources import ScriptedSource

HOUR = timedelta(hours=1)


class Row(msgspec.Struct):
    key: str
    number: int


class Stamped(msgspec.Struct):
    number: int
    at: str


class Stamp(KeyedProcessFunction[Row, Stamped]):
    """Says when it saw a row."""

    def process_element(self, row: Row, ctx: Context) -> Iterator[Stamped]:
        yield Stamped(row.number, ctx.current_processing_time().isoformat())

    def on_batch_end(self, ctx: Context) -> Iterator[Stamped]:
        yield Stamped(-1, ctx.current_processing_time().isoformat())


class Ran:
    """A run over 25 rows, ten to a batch, with an hour between the batches."""

    def __init__(self, folder: Path) -> None:
        self.table = FolderSink(folder / "table")
        self.recorder = MemoryRecorder()
        self.results: list[BatchResult] = []
        self.gauges: list[dict[str, float]] = []
        self.clock = ManualClock()
        source = ScriptedSource(Row, [Row(f"k{i % 3}", i) for i in range(25)], folder / "ledger")

        def build(env: StreamExecutionEnvironment) -> None:
            stream = env.from_source(source, uid="rows").key_by("key")
            stream.process(Stamp(), output=Stamped, uid="stamp").sink_to(self.table, uid="table")

        env, settings = declare(
            build, "job", ({"local_dir": str(folder / "scratch"), "checkpoints.asynchronous": "no"},)
        )
        job = create_or_open_job(env.graph, settings, open_storage(str(folder / "root")), self.clock)
        self.run = JobRun(replace(job, recorder=self.recorder), LocalExecutor())
        self.run.start()
        run_local(self.run, {"rows": source}, self._batch)

    def _batch(self, result: BatchResult) -> None:
        self.results.append(result)
        self.gauges.append(dict(self.recorder.gauges))
        self.clock.sleep(HOUR)


@pytest.fixture
def ran(tmp_path: Path) -> Iterator[Ran]:
    yield Ran(tmp_path)
    store_cache.close_all()


def test_each_batch_is_recorded_with_flinks_names(ran: Ran) -> None:
    assert ran.recorder.counters == {
        "number_of_completed_checkpoints": 3,
        "num_records_in": 25,
        "num_records_out": 25 + 9,
    }
    assert [r.rows_in for r in ran.results] == [10, 10, 5]
    records = read_records(ran.run.job.root.storage)
    assert ran.gauges == [
        {
            "last_completed_checkpoint_id": r.checkpoint_id,
            "last_checkpoint_size": r.increment_bytes,
            "last_checkpoint_compaction_size": 0,
            "last_checkpoint_full_size": r.full_bytes,
            "last_checkpoint_duration": r.seconds,
            "number_of_in_progress_checkpoints": 0,
            "last_checkpoint_manifest_size": told.manifest_bytes,
            "last_checkpoint_files": told.files,
            "last_checkpoint_new_files": told.new_files,
            "last_batch_duration": r.seconds,
            # Where a manual clock begins.
            "last_checkpoint_restore_timestamp": datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000,
        }
        for r, told in zip(ran.results, records, strict=True)
    ]
    first, *_, last = (g["last_completed_checkpoint_id"] for g in ran.gauges)
    assert (first, last) == (2, ran.run.head.checkpoint_id)
    assert all(g["last_checkpoint_full_size"] >= g["last_checkpoint_size"] for g in ran.gauges)


def test_the_size_of_a_checkpoint_has_in_it_what_compaction_wrote(ran: Ran) -> None:
    """What the storage got; tests/recovery/test_checkpoints.py counts it there."""
    recorder, last = MemoryRecorder(), read_records(ran.run.job.root.storage)[-1]
    report_metrics(recorder, msgspec.structs.replace(last, increment_bytes=30, compaction_bytes=12))
    assert recorder.gauges["last_checkpoint_size"] == 42
    assert recorder.gauges["last_checkpoint_compaction_size"] == 12


def test_all_rows_of_a_batch_have_its_processing_time(ran: Ran) -> None:
    start = ManualClock().now()
    expected = {n: start + n // 10 * HOUR for n in range(25)}
    rows = [(row["number"], row["at"]) for row in ran.table.rows()]
    assert sorted(row for row in rows if row[0] >= 0) == [(n, at.isoformat()) for n, at in expected.items()]
    # Three keys in each batch.
    ends = sorted(at for number, at in rows if number < 0)
    assert ends == [(start + batch * HOUR).isoformat() for batch in range(3) for _ in range(3)]
