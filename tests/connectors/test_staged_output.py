"""Staged rows of sinks: kept in the job root until they are published, once, in a transactional system."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from stateflow.api.schema import RowSchema
from stateflow.api.sink import SinkContext, Writing
from stateflow.checkpoint.garbage_collector import Collector
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.clock import SystemClock
from stateflow.connectors.staged_output import StagedWriter
from stateflow.errors import CorruptFile, DataError, InternalError
from stateflow.failpoints import NAMES
from stateflow.state.handles import Committable
from stateflow.storage import MemoryStorage, PosixStorage, Storage
from tests.connectors.staged_sqlite import Event, SqliteSink, SqliteTable
from tests.support.job_fixture import ASYNCHRONOUS, KILLED, ON_REQUEST, JobFixture, events, mostly_slow

# The job has no Spark, and no state.
_POINTS = sorted(set(NAMES) - ON_REQUEST - ASYNCHRONOUS - {"start.seeded", "task.snapshot"})
_WRITING = Writing(generation=1, ordinal=2, subtask=3, attempt="a1")


class _Job(JobFixture):
    @property
    def job_file(self) -> str:
        return str(Path(__file__).with_name("staged_sqlite.py"))

    def deliver(self, rows: int) -> None:
        (self.folder / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events(rows)))

    @property
    def published(self) -> list[int]:
        return sorted(number for number, _ in SqliteSink(self.folder / "table.db").rows())

    @property
    def staged(self) -> set[str]:
        return {str(p.relative_to(self.root)) for p in self.root.glob("data/*/*/rows-*")}


@pytest.fixture
def job(tmp_path: Path) -> Iterator[_Job]:
    made = _Job(tmp_path / "job")
    yield made
    made.end_all()


@pytest.mark.parametrize("point", mostly_slow(_POINTS, ["task.sink-closed", "commit.after", "publish.after"]))
def test_rows_are_published_once_although_a_run_is_killed(job: _Job, point: str) -> None:
    job.deliver(30)
    ended = job.run(f"{point}:1", parallelism=3)
    assert (ended.code, job.marker.exists()) == (KILLED, True), ended
    job.finish(parallelism=3)
    assert job.published == list(range(30))
    job.collect()
    assert job.staged == set()


def test_a_collection_keeps_staged_rows_until_they_are_published(job: _Job) -> None:
    job.deliver(20)
    job.run("commit.after:2")
    pending = set(job.head.pending["table"])
    assert pending <= job.staged
    job.command("gc").check()
    assert job.staged == pending
    assert job.published == list(range(10))
    job.finish()
    job.collect()
    assert (job.published, job.staged) == (list(range(20)), set())


def test_staged_rows_of_a_list_outside_of_the_log_entry_are_kept(job: _Job) -> None:
    job.deliver(10)
    job.run("commit.after")
    root = JobRoot.open(PosixStorage(job.root), SystemClock())
    (pending,) = root.head().entry.pending
    root.outputs.sizes = replace(root.outputs.sizes, inline=0)
    (listed,) = root.outputs.store("data/00000000000000000001/0000000001-x/", "output", [pending])
    assert listed.parts and not listed.committables
    entry = msgspec.structs.replace(root.head().entry, pending=[listed])
    live = Collector(root).live(replace(root.head(), entry=entry))
    assert set(job.head.pending["table"]) <= live


def test_lost_rows_are_written_again_from_an_older_checkpoint(job: _Job) -> None:
    job.deliver(20)
    job.run("commit.after:2")
    (job.root / job.head.pending["table"][0]).unlink()
    job.finish()
    assert job.published == list(range(20))


def _context(storage: Storage | None) -> SinkContext:
    return SinkContext("j1", "table", RowSchema.of(Event), storage)


def _rows(count: int, text: str = "a") -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(count)), pa.array([text] * count)], schema=RowSchema.of(Event).arrow)


def _table(context: SinkContext, folder: Path) -> SqliteTable:
    sink = SqliteSink(folder / "table.db")
    sink.prepare(context)
    return SqliteTable(sink.path, context)


def test_staged_rows_are_read_in_order_and_in_small_batches(tmp_path: Path) -> None:
    context = _context(PosixStorage(tmp_path / "root"))
    writer = StagedWriter(context, _WRITING)
    writer.write(_rows(100_000, "long text " * 20))
    writer.write(_rows(0))
    writer.write(_rows(5))
    (written,) = writer.close()
    table = _table(context, tmp_path)
    assert table.missing([written]) == []
    batches = list(table.staged_rows([written]))
    assert [n for b in batches for n in b.column("number").to_pylist()] == [*range(100_000), *range(5)]
    assert max(b.nbytes for b in batches) < 9 << 20
    assert written.rows == 100_005


def test_a_subtask_without_rows_stages_nothing() -> None:
    storage = MemoryStorage("memory://staged")
    writer = StagedWriter(_context(storage), _WRITING)
    writer.write(_rows(0))
    assert (writer.close(), storage.list("")) == ([], [])


def test_missing_and_changed_files_are_named(tmp_path: Path) -> None:
    context = _context(MemoryStorage("memory://staged"))
    table = _table(context, tmp_path)
    written = [_staged(context, subtask) for subtask in range(3)]
    assert context.storage is not None
    context.storage.delete([written[0].path])
    changed = [written[0], msgspec.structs.replace(written[1], size=1), written[2]]
    assert table.missing(changed) == [written[0].path, written[1].path]


def _staged(context: SinkContext, subtask: int = 0) -> Committable:
    writer = StagedWriter(context, replace(_WRITING, subtask=subtask))
    writer.write(_rows(4))
    return writer.close()[0]


@pytest.mark.parametrize(
    "path",
    [
        "../table.db", "/etc/passwd", "FORMAT", "data/00000000000000000001/0000000002-a1/manifest.json",
        "data/00000000000000000001/0000000002-a1/rows-other-0.arrow",
        "data/00000000000000000001/0000000002-a1/rows-table-x.arrow",
        "data/00000000000000000001/0000000002-a1/../rows-table-0.arrow",
    ],
)  # fmt: skip
def test_names_that_the_sink_does_not_write_are_refused(tmp_path: Path, path: str) -> None:
    table = _table(_context(MemoryStorage("memory://staged")), tmp_path)
    forged = Committable(path=path, size=1, rows=1)
    with pytest.raises(DataError):
        table.missing([forged])
    with pytest.raises(DataError):
        list(table.staged_rows([forged]))


def test_a_file_that_is_listed_twice_is_refused(tmp_path: Path) -> None:
    context = _context(MemoryStorage("memory://staged"))
    written = _staged(context)
    with pytest.raises(InternalError):
        list(_table(context, tmp_path).staged_rows([written, written]))


@pytest.mark.parametrize("rows", [None, 3, 5])
def test_damaged_rows_are_refused(tmp_path: Path, rows: int | None) -> None:
    storage = MemoryStorage("memory://staged")
    context = _context(storage)
    written = _staged(context)
    if rows is None:
        data = bytearray(storage.get(written.path))
        data[len(data) // 3 : len(data) // 3 + 40] = b"\xff" * 40
        storage.delete([written.path])
        storage.put_new(written.path, bytes(data))
    else:
        written = msgspec.structs.replace(written, rows=rows)
    with pytest.raises(CorruptFile):
        list(_table(context, tmp_path).staged_rows([written]))
