"""The sinks keep the contract of sinks; staged rows stay in the job root until a system has them, once."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from stateflow.api.schema import RowSchema
from stateflow.api.sink import Sink, SinkContext, SinkRewind, SinkTable, Writing
from stateflow.checkpoint.garbage_collector import Collector
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.clock import SystemClock
from stateflow.connectors import DeltaSink
from stateflow.connectors.files.sink import FileSink
from stateflow.connectors.foreach_batch import ForeachBatchSink, OutputBatch
from stateflow.connectors.staged_output import StagedWriter
from stateflow.errors import (
    ConfigError,
    CorruptFile,
    DataError,
    InternalError,
    JobDefinitionError,
    SinkDiverged,
    SinkRefused,
    StorageError,
)
from stateflow.failpoints import NAMES
from stateflow.state.handles import Committable
from stateflow.storage import MemoryStorage, PosixStorage, Storage, open_storage
from stateflow.testing.conformance.sink import SinkConformance
from stateflow.testing.conformance.sink_table import PublishingJob, TableUnderTest
from stateflow.testing.sinks import FolderSink, _Table
from tests.connectors.staged_sqlite import Event, SqliteSink, SqliteTable
from tests.support import delta_tables, file_tables, folder_tables
from tests.support.errors import raises
from tests.support.job_fixture import ASYNCHRONOUS, KILLED, ON_REQUEST, JobFixture, events, mostly_slow
from tests.support.object_stores import copy_of


class Other(msgspec.Struct):
    id: int
    text: float


def folder_sink(address: str) -> Sink:
    return FolderSink(address)


def delta_append(address: str) -> Sink:
    return DeltaSink(address)


def delta_upsert(address: str) -> Sink:
    return DeltaSink(address, mode="upsert", keys="id")


def delta_partitions(address: str) -> Sink:
    return DeltaSink(address, mode="upsert", keys="id", partition_by="text")


def file_sink(address: str) -> Sink:
    return FileSink(address)


def partitioned_json(address: str) -> Sink:
    return FileSink(address, format="json", partition_by="text")


@pytest.mark.long(reason="draws many histories of a table")
class InFolder(SinkConformance):
    @pytest.fixture
    def address(self, tmp_path: Path) -> str:
        return str(tmp_path / "table")

    def remove(self, table: TableUnderTest, committable: Committable, folder: Path) -> None:
        if "://" in table.address:
            open_storage(table.address).delete([committable.path])
        else:
            super().remove(table, committable, folder)


class TestFolderSink(InFolder):
    has_slow_drivers = True
    factory = staticmethod(folder_sink)
    checks_columns = False

    def read(self, sink: Sink) -> Iterable[Mapping[str, Any]]:
        return folder_tables.rows(Path(sink.location))

    def test_a_version_whose_files_are_gone_is_refused(self, published: TableUnderTest) -> None:
        to_version = published.open().plan_rewind(2).to_version
        for path in (Path(published.sink.location) / "data").iterdir():
            path.unlink()
        with raises(SinkDiverged, version=to_version):
            published.open().plan_rewind(2)
        with raises(SinkDiverged, version=to_version):
            published.open().rewind(to_version, 9)


class TestDeltaAppends(InFolder):
    factory = staticmethod(delta_append)

    def read(self, sink: Sink) -> Iterable[Mapping[str, Any]]:
        return delta_tables.visible(sink.location)


class TestDeltaUpserts(TestDeltaAppends):
    actions = 15
    has_slow_drivers = True
    factory = staticmethod(delta_upsert)


@pytest.mark.slow(reason="runs the suite of sinks in stores")
class TestDeltaAppendsInS3(TestDeltaAppends):
    @pytest.fixture
    def address(self, s3: str) -> str:
        return s3


class TestDeltaUpsertsInS3(TestDeltaAppendsInS3):
    actions = 15
    factory = staticmethod(delta_upsert)


@pytest.mark.slow(reason="runs the suite of sinks in stores")
class TestDeltaAppendsInAzure(TestDeltaAppends):
    @pytest.fixture
    def address(self, azure: str) -> str:
        return azure


class TestDeltaUpsertsInAzure(TestDeltaAppendsInAzure):
    actions = 15
    factory = staticmethod(delta_upsert)


@pytest.mark.slow(reason="runs the suite of sinks in stores")
class TestDeltaAppendsInHdfs(InFolder):
    factory = staticmethod(delta_append)

    @pytest.fixture
    def address(self, hdfs: str) -> str:
        return hdfs

    def read(self, sink: Sink) -> Iterable[Mapping[str, Any]]:
        with tempfile.TemporaryDirectory() as copy:
            return delta_tables.visible(copy_of(sink.location, Path(copy)))


class TestDeltaUpsertsInHdfs(TestDeltaAppendsInHdfs):
    actions = 15
    factory = staticmethod(delta_upsert)


class TestDeltaAppendsInGoogle(TestDeltaAppendsInHdfs):
    actions = 15

    @pytest.fixture
    def address(self, google: str) -> str:
        return google


class TestDeltaUpsertsInGoogle(TestDeltaAppendsInGoogle):
    factory = staticmethod(delta_upsert)


@pytest.mark.slow(reason="runs the suite of sinks once more")
class TestDeltaPartitions(InFolder):
    factory = staticmethod(delta_partitions)

    def read(self, sink: Sink) -> Iterable[Mapping[str, Any]]:
        rows: list[dict[str, Any]] = DeltaTable(sink.location).to_pyarrow_table().to_pylist()
        return rows

    def test_a_table_with_other_columns_is_refused(self, table: TableUnderTest) -> None:
        """Its other column would be a partition of floats."""
        with pytest.raises(JobDefinitionError):
            table.sink.check(replace(table.context, schema=RowSchema.of(Other)))


class TestFileSink(InFolder):
    has_slow_drivers = True
    factory = staticmethod(file_sink)

    def read(self, sink: Sink) -> Iterable[Mapping[str, Any]]:
        return file_tables.rows(Path(sink.location))


class TestPartitionedFiles(TestFileSink):
    factory = staticmethod(partitioned_json)


@pytest.mark.slow(reason="runs the suite of sinks in stores")
class TestFileSinkInS3(InFolder):
    actions = 15
    factory = staticmethod(file_sink)

    @pytest.fixture
    def address(self, s3: str) -> str:
        return s3

    def read(self, sink: Sink) -> Iterable[Mapping[str, Any]]:
        return file_tables.rows_in_store(sink.location)


class TestFileSinkInHdfs(TestFileSinkInS3):
    @pytest.fixture
    def address(self, hdfs: str) -> str:
        return hdfs


class TestFileSinkInGoogle(TestFileSinkInS3):
    @pytest.fixture
    def address(self, google: str) -> str:
        return google


class TestPartitionedFilesInAzure(TestFileSinkInS3):
    factory = staticmethod(partitioned_json)

    @pytest.fixture
    def address(self, azure: str) -> str:
        return azure


# -- the conformance suite of sinks finds planted bugs ----------------------------------------------------------------


class _NeverStale(_Table):
    """Reads the version again when it commits, so that a paused driver publishes."""

    def commit(self, token: int, committables: list[Committable]) -> int | None:
        return _Table(self._folder, self._application).commit(token, committables)


class _TwoSteps(_Table):
    """Publishes the rows before the token."""

    def commit(self, token: int, committables: list[Committable]) -> int | None:
        if committables and _Table.commit(self, self.token or 0, committables) is None:
            return None
        return _Table(self._folder, self._application)._append(token, {"paths": []})


class _Broken(FolderSink):
    table: type[_Table]

    def open_table(self, context: SinkContext) -> SinkTable:
        return self.table(self.folder, context.application)


class NeverStale(_Broken):
    table = _NeverStale


class TwoSteps(_Broken):
    table = _TwoSteps


class SweepsAll(FolderSink):
    def sweep(self, context: SinkContext, is_leftover: Callable[[int, int, str], bool]) -> list[str]:
        return super().sweep(context, lambda *_: True)


def never_stale(address: str) -> Sink:
    return NeverStale(address)


def two_steps(address: str) -> Sink:
    return TwoSteps(address)


def sweeps_all(address: str) -> Sink:
    return SweepsAll(address)


class _Suite(SinkConformance):
    checks_columns = False
    steps = 40

    def read(self, sink: Sink) -> Iterable[Mapping[str, Any]]:
        return folder_tables.rows(Path(sink.location))


class NeverStaleSuite(_Suite):
    factory = staticmethod(never_stale)


class TwoStepsSuite(_Suite):
    factory = staticmethod(two_steps)


class SweepsAllSuite(_Suite):
    factory = staticmethod(sweeps_all)


def _table(suite: SinkConformance, folder: Path) -> TableUnderTest:
    return TableUnderTest(type(suite).factory, str(folder / "table"), suite.context(folder), suite.read)


def test_a_handle_that_is_never_out_of_date(tmp_path: Path) -> None:
    table = _table(NeverStaleSuite(), tmp_path)
    table.sink.prepare(table.context)
    with pytest.raises(AssertionError):
        NeverStaleSuite().test_of_two_handles_one_commits(table)


def test_a_sweep_that_removes_pending_output(tmp_path: Path) -> None:
    table = _table(SweepsAllSuite(), tmp_path)
    table.sink.prepare(table.context)
    with pytest.raises(AssertionError):
        SweepsAllSuite().test_a_sweep_removes_only_leftovers(table)


@pytest.mark.slow(reason="a driver is killed at 40 lines; the bug that it finds is in the handle of the other test")
def test_rows_and_token_in_two_steps(tmp_path: Path) -> None:
    suite = TwoStepsSuite()
    with pytest.raises(AssertionError):
        suite.test_drivers_that_are_interrupted_neither_lose_nor_repeat_a_row(
            _table(suite, tmp_path), tmp_path, "killed"
        )


# -- a function that receives the rows of each checkpoint: at least once, and with what it needs to be idempotent -----


class Appends:
    """Appends rows to a file, one write for each batch."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, rows: pa.Table, batch: OutputBatch) -> None:
        lines = [
            json.dumps({"batch": batch.checkpoint_id, "attempt": batch.attempt, **row}) for row in rows.to_pylist()
        ]
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(file, "".join(f"{line}\n" for line in lines).encode())
        os.close(file)


def foreach(address: str) -> Sink:
    return ForeachBatchSink(Appends(Path(address)))


def received(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class TestForeachBatch(SinkConformance):
    factory = staticmethod(foreach)
    exactly_once = False
    checks_columns = False
    sweeps = False
    has_slow_drivers = True

    @pytest.fixture
    def address(self, tmp_path: Path) -> str:
        return str(tmp_path / "received")

    def read(self, sink: Sink) -> Iterable[Mapping[str, Any]]:
        assert isinstance(sink, ForeachBatchSink) and isinstance(sink._function, Appends)
        return received(sink._function.path)


def test_a_repeated_call_has_the_same_rows_and_checkpoint(tmp_path: Path) -> None:
    target = tmp_path / "received"
    job = PublishingJob(ForeachBatchSink(Appends(target)), tmp_path / "root")
    job.run(1)
    pending = job.commit(job.root.claim(), 2)
    for _ in range(2):
        PublishingJob(ForeachBatchSink(Appends(target)), tmp_path / "root").publisher.publish_pending(pending)
    rows = received(target)
    assert [row["id"] for row in rows] == [2, 3, 4, 5, 4, 5]
    assert {row["batch"] for row in rows[2:]} == {pending.checkpoint_id}
    assert len({row["attempt"] for row in rows}) == 3


def test_a_function_that_raises_is_named_and_called_again(tmp_path: Path) -> None:
    def broken(rows: pa.Table, batch: OutputBatch) -> None:
        raise OSError("no route to host")

    job = PublishingJob(ForeachBatchSink(broken), tmp_path / "root")
    with raises(StorageError, sink="out", checkpoint_id=2, reason="OSError: no route to host") as failed:
        job.run(1)
    assert failed.value.retryable and "broken" in str(failed.value.facts["function"])
    PublishingJob(foreach(str(tmp_path / "received")), tmp_path / "root").run(1)
    assert [row["id"] for row in received(tmp_path / "received")] == [2, 3]


def test_a_restore_is_refused_in_its_plan_unless_the_rows_are_to_be_kept(tmp_path: Path) -> None:
    job = PublishingJob(foreach(str(tmp_path / "received")), tmp_path / "root")
    job.run(2)
    with raises(SinkRefused, sink="out"):
        job.sink.open_table(job.context).plan_rewind(2)
    keeping = ForeachBatchSink(Appends(tmp_path / "received"), on_rewind="keep").open_table(job.context)
    assert keeping.plan_rewind(2) == SinkRewind(keeping.version, None, 0, 0, ())
    assert keeping.rewind(None, 9) is not None


def test_arguments_are_checked() -> None:
    with raises(JobDefinitionError, found="str"):
        ForeachBatchSink("print")  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        ForeachBatchSink(print, on_rewind="ignore")  # type: ignore[arg-type]


# -- staged output ----------------------------------------------------------------------------------------------------

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


@pytest.mark.long(reason="runs jobs as processes")
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


def _context(storage: Storage | None) -> SinkContext:
    return SinkContext("j1", "table", RowSchema.of(Event), storage)


def _rows(count: int, text: str = "a") -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(count)), pa.array([text] * count)], schema=RowSchema.of(Event).arrow)


def _staged_table(context: SinkContext, folder: Path) -> SqliteTable:
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
    table = _staged_table(context, tmp_path)
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
    table = _staged_table(_context(MemoryStorage("memory://staged")), tmp_path)
    forged = Committable(path=path, size=1, rows=1)
    with pytest.raises(DataError):
        table.missing([forged])
    with pytest.raises(DataError):
        list(table.staged_rows([forged]))


def test_a_file_that_is_listed_twice_is_refused(tmp_path: Path) -> None:
    context = _context(MemoryStorage("memory://staged"))
    written = _staged(context)
    with pytest.raises(InternalError):
        list(_staged_table(context, tmp_path).staged_rows([written, written]))


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
        list(_staged_table(context, tmp_path).staged_rows([written]))
