"""Tables in a bucket have what tables on a disk have, such as added columns and rewinds; and what commits cost."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import msgspec
import obstore
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from stateflow import FileSink
from stateflow.api.sink import Sink, Writing
from stateflow.clock import SystemClock, epoch_milliseconds
from stateflow.config.settings import SourceSettings
from stateflow.connectors import DeltaSink
from stateflow.connectors.delta import log
from stateflow.connectors.delta.maintenance import Compaction, vacuum
from stateflow.connectors.delta.source import DeltaSource
from stateflow.connectors.files.sink import LOG_FOLDER as FILES_LOG
from stateflow.connectors.table_folder import open_table_folder
from stateflow.errors import ConfigError, SinkRefused
from stateflow.storage import open_storage
from stateflow.storage.object_store import ObjectStorage
from tests.servers.google import google_server
from tests.servers.running import hasty_s3_server, variables_of
from tests.servers.s3 import Request, noted_requests
from tests.support.delta_tables import Pair, checkpoint, context, entry_path, ids, pairs, put, write
from tests.support.errors import raises
from tests.support.object_stores import copy_of

_ABOUT = context(Pair)


class Wide(msgspec.Struct):
    id: int
    text: str
    more: int | None = None


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The requests to logs of tables that are sent meanwhile."""
    sent: list[str] = []
    for name in ("put", "get", "head", "list", "list_with_delimiter", "delete"):
        call = getattr(obstore, name)

        def counted(store: object, *args: object, _call: object = call, _name: str = name, **more: object) -> object:
            if args and any(folder in str(args[0]) for folder in (log.LOG_FOLDER, FILES_LOG)):
                sent.append(_name)
            return _call(store, *args, **more)  # type: ignore[operator]

        monkeypatch.setattr(obstore, name, counted)
    yield sent


@pytest.mark.parametrize("upsert", [{}, {"mode": "upsert", "keys": "id"}], ids=["append", "upsert"])
def test_a_commit_costs_four_requests_to_the_log_and_a_start_few(
    s3: str, requests: list[str], upsert: dict[str, Any]
) -> None:
    sink = DeltaSink(s3, **upsert)
    sink.prepare(_ABOUT)
    for token in range(1, 12):
        del requests[:]
        put(sink, _ABOUT, token, pairs(token, 1))
        # The first upsert lists the files of the table.
        assert len(requests) <= (4 if token > 1 else 8)
    folder = open_table_folder(s3)
    log.checkpoint(folder, 11, {})
    for token in range(12, 15):
        put(sink, _ABOUT, token, pairs(token, 1))
    del requests[:]
    again = DeltaSink(s3, **upsert)
    again.prepare(_ABOUT)
    assert again.open_table(_ABOUT).token == 14
    assert len(requests) <= 10
    assert ids(s3) == [*range(1, 15)]


def test_a_commit_of_files_costs_four_requests_to_the_log_and_each_tenth_reads_what_is_after_the_last_list(
    s3: str, requests: list[str]
) -> None:
    sink = FileSink(s3)
    sink.prepare(_ABOUT)
    costs = []
    for token in range(1, 32):
        del requests[:]
        put(sink, _ABOUT, token, pairs(token, 1))
        costs.append(len(requests))
    listing = {number for number in range(1, 32) if (number + 1) % 10 == 0}
    assert {cost for token, cost in enumerate(costs, 1) if token not in listing} == {4}
    assert max(costs) <= 15
    del requests[:]
    again = FileSink(s3)
    again.prepare(_ABOUT)
    assert again.open_table(_ABOUT).token == 31
    assert len(requests) <= 10


Read = Callable[[str], list[dict[str, Any]]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Returns the rows of a table in any store, in order, as delta-rs reads them in a copy."""
    copies = itertools.count()

    def read(address: str) -> list[dict[str, Any]]:
        copy = copy_of(address, tmp_path / f"copy-{next(copies)}")
        found: list[dict[str, Any]] = DeltaTable(str(copy)).to_pyarrow_table().sort_by("id").to_pylist()
        return found

    return read


def test_a_column_is_added_and_files_are_partitioned(each_store: str, read: Read) -> None:
    sink = DeltaSink(each_store, partition_by="text")
    sink.prepare(_ABOUT)
    put(sink, _ABOUT, 1, [Pair(1, "a b/%"), Pair(2, "ä"), Pair(3, "")])
    wide, about = DeltaSink(each_store, partition_by="text", schema_evolution="add-columns"), context(Wide)
    wide.prepare(about)
    put(wide, about, 2, [Wide(4, "ä", 7)])
    assert [tuple(row.values()) for row in read(each_store)] == [
        (1, "a b/%", None), (2, "ä", None), (3, None, None), (4, "ä", 7),
    ]  # fmt: skip


@pytest.mark.parametrize("partitions", [{}, {"partition_by": "text"}], ids=["plain", "partitioned"])
def test_an_upsert_is_rewound(each_store: str, read: Read, partitions: dict[str, Any]) -> None:
    sink = DeltaSink(each_store, mode="upsert", keys="id", **partitions)
    sink.prepare(_ABOUT)
    put(sink, _ABOUT, 1, [Pair(1, "first"), Pair(2, "first é/%")])
    put(sink, _ABOUT, 2, [Pair(2, "second"), Pair(3, "second")])
    assert [row["text"] for row in read(each_store)] == ["first", "second", "second"]
    plan = sink.open_table(_ABOUT).plan_rewind(1)
    assert plan.to_version == 1
    assert sink.open_table(_ABOUT).rewind(plan.to_version, 5) == 3
    assert [row["text"] for row in read(each_store)] == ["first", "first é/%"]


def test_small_files_are_combined_and_old_ones_deleted(each_store: str, read: Read) -> None:
    sink = DeltaSink(each_store)
    sink.prepare(_ABOUT)
    for token in range(1, 6):
        put(sink, _ABOUT, token, pairs(token, 1))
    report = Compaction(sink.own_table(_ABOUT)).run()
    assert (report.combined_files, report.new_files) == (5, 1)
    assert [row["id"] for row in read(each_store)] == [*range(1, 6)]
    later = epoch_milliseconds(SystemClock().now() + timedelta(days=1))
    freed = vacuum(sink.own_table(_ABOUT), [], now=later, older_than=0)
    assert freed.deleted_files == 5
    assert [row["id"] for row in read(each_store)] == [*range(1, 6)]
    assert len([f for f in open_table_folder(each_store).files("") if f.key.endswith(".parquet")]) == 1


def test_a_sweep_removes_files_that_no_version_has(each_store: str, read: Read) -> None:
    sink = DeltaSink(each_store)
    sink.prepare(_ABOUT)
    put(sink, _ABOUT, 1, pairs(1, 1))
    left = write(sink, _ABOUT, pairs(9, 1), Writing(1, 9, 0, "x"))
    swept = sink.sweep(_ABOUT, lambda generation, ordinal, path: True)
    assert swept == [file.path for file in left]
    assert [row["id"] for row in read(each_store)] == [1]


@pytest.mark.long(reason="writes 25 MB")
def test_a_file_above_the_size_of_one_request_is_published_whole(
    each_store: str, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stateflow.connectors.data_files._COMPRESSION", "none")
    sink = DeltaSink(each_store)
    sink.prepare(_ABOUT)
    rows = [Pair(number, f"{number:0100000d}") for number in range(250)]
    (file,) = put(sink, _ABOUT, 1, rows)
    assert file.size > 16 << 20
    assert [row["id"] for row in read(each_store)] == [*range(250)]


def test_expired_entries_are_removed_up_to_a_checkpoint_that_expired_as_well(each_store: str, read: Read) -> None:
    sink = DeltaSink(each_store)
    sink.prepare(_ABOUT)
    folder = open_table_folder(each_store)
    for token in range(1, 4):
        put(sink, _ABOUT, token, pairs(token, 1))
    log.checkpoint(folder, 2, {"delta.logRetentionDuration": "interval 0 seconds"})
    # All are expired, and version 2 has a checkpoint now: the entries before it are not needed.
    put(sink, _ABOUT, 4, pairs(4, 1))
    log.checkpoint(folder, 4, {"delta.logRetentionDuration": "interval 1 week"})
    assert min(log.list_log(folder).entries) == 2
    assert [row["id"] for row in read(each_store)] == [1, 2, 3, 4]


def test_delta_rs_writes_the_same_table_at_the_same_time(s3: str) -> None:
    """With its defaults, under which its commits are conditional puts as well."""
    sink = DeltaSink(s3)
    sink.prepare(_ABOUT)

    def ours() -> None:
        for token in range(1, 9):
            files = write(sink, _ABOUT, pairs(token, 1), Writing(1, token, 0, "a"))
            while sink.open_table(_ABOUT).commit(token, files) is None:
                pass

    def theirs() -> None:
        for number in range(101, 109):
            write_deltalake(s3, pa.table({"id": pa.array([number], pa.int64()), "text": ["x"]}), mode="append")

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(ours), pool.submit(theirs)]:
            done.result()
    assert ids(s3) == [*range(1, 9), *range(101, 109)]
    assert DeltaTable(s3).version() == 16


def test_a_new_job_knows_the_tokens_of_others_after_each_commit_of_a_table_that_it_has_read(s3: str) -> None:
    first, second, third = (context(Pair, job=digit * 32) for digit in "123")
    DeltaSink(s3).prepare(first)
    put(DeltaSink(s3), first, 1, pairs(1, 1))
    sink = DeltaSink(s3)
    assert sink.other_jobs(third) == {first.job_uuid}
    put(DeltaSink(s3), second, 1, pairs(2, 1))
    assert sink.other_jobs(third) == {first.job_uuid, second.job_uuid}


_SINKS: list[Callable[[str], Sink]] = [DeltaSink, FileSink]


@pytest.mark.parametrize("new_sink", _SINKS)
def test_a_first_start_that_was_killed_while_it_probed_the_bucket_is_repeated(
    s3: str, new_sink: Callable[[str], Sink], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(storage: ObjectStorage, keys: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(ObjectStorage, "delete", die)
        with pytest.raises(Killed):
            new_sink(s3).prepare(_ABOUT)
    assert open_storage(s3).list(".stateflow-probe/")
    # As of runs with a table whose log another program has deleted since.
    new_sink(s3).begin_run(_ABOUT, 1)
    sink = new_sink(s3)
    assert sink.check(_ABOUT) is None
    assert sink.prepare(_ABOUT) == sink.check(_ABOUT)


@pytest.mark.parametrize("new_sink", _SINKS)
def test_a_folder_with_files_of_others_is_refused(s3: str, new_sink: Callable[[str], Sink]) -> None:
    open_storage(s3).put_new("data.csv", b"1")
    with raises(SinkRefused, found=["data.csv"]):
        new_sink(s3).check(_ABOUT)


_MARKERS = ("_delta_log/_sidecars/", ".stateflow-runs/", "text=a/", "text=b/")
"""Names of empty objects that consoles create in place of folders, within a table."""
_LOGS: list[tuple[Callable[..., Sink], str]] = [(DeltaSink, "_delta_log/"), (FileSink, "_spark_metadata/")]


def _check_marked(table: str, new_sink: Callable[..., Sink], mark: Callable[[str], object]) -> None:
    sink = new_sink(table, partition_by="text")
    sink.prepare(_ABOUT)
    for name in _MARKERS:
        mark(name)
    for generation in (1, 2, 3):
        sink.begin_run(_ABOUT, generation)
        put(sink, _ABOUT, generation, [Pair(generation, "a")], generation)
        left = write(sink, _ABOUT, [Pair(9, "a")], Writing(generation, 9, 0, "x"))
        assert sink.sweep(_ABOUT, lambda written, ordinal, path: True) == [file.path for file in left]
    assert new_sink(table, partition_by="text").open_table(_ABOUT).token == 3


@pytest.mark.parametrize(("new_sink", "log_marker"), _LOGS)
def test_markers_of_folders_are_not_files_of_a_table(new_sink: Callable[..., Sink], log_marker: str) -> None:
    objects = {f"/bucket/tables/t/{name}": b"" for name in ("", log_marker)}
    with google_server(objects) as variables, mock.patch.dict("os.environ", variables):
        _check_marked("gs://bucket/tables/t", new_sink, lambda name: objects.update({f"/bucket/tables/t/{name}": b""}))


@pytest.mark.long(reason="starts a server")
@pytest.mark.parametrize(("new_sink", "log_marker"), _LOGS)
def test_markers_of_folders_in_s3_are_not_files_of_a_table(
    tmp_path: Path, new_sink: Callable[..., Sink], log_marker: str
) -> None:
    with hasty_s3_server(tmp_path, "bucket") as variables, mock.patch.dict("os.environ", variables):

        def mark(name: str) -> None:
            httpx.put(f"{variables['AWS_ENDPOINT_URL']}/bucket/tables/t/{name}", content=b"").raise_for_status()

        mark("")
        mark(log_marker)
        # The server is refused for its races, which are not the subject here.
        with mock.patch("stateflow.connectors.table_folder.check_put_if_absent"):
            _check_marked("s3://bucket/tables/t", new_sink, mark)


@pytest.mark.parametrize("new_sink", _SINKS)
@pytest.mark.parametrize("address", ["s3://bucket", "s3://bucket//", "az://container/", "gs://bucket", "/", "file:///"])
def test_a_table_at_the_root_of_a_bucket_or_file_system_has_no_shadow(
    address: str, new_sink: Callable[[str], Any], s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "none")
    with raises(ConfigError):
        new_sink(address).shadow()


@pytest.mark.parametrize("new_sink", _SINKS)
@pytest.mark.parametrize("address", ["s3://bucket/a", "s3://bucket/a/b", "/a", "webhdfs://namenode:9870/a"])
def test_a_shadow_is_next_to_its_table(address: str, new_sink: Callable[[str], Any], s3: str) -> None:
    assert new_sink(address).shadow().location == f"{address}_shadow"


_VERSIONS = 10_000


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Request]]:
    """Serves ``s3://bucket/long``: a table with data files and 10,000 versions, the last 50 after a checkpoint."""
    folder = tmp_path_factory.mktemp("long")
    table = folder / "bucket" / "long"
    sink = DeltaSink(table, partition_by="text")
    sink.prepare(_ABOUT)
    for token in range(1, 6):
        put(sink, _ABOUT, token, [Pair(token, "a"), Pair(token, "B")])
    lines = [json.loads(line) for line in entry_path(table, 5).read_text().splitlines()]
    others = [line for line in lines if "add" not in line]
    for version in range(6, _VERSIONS):
        for line in others:
            if "txn" in line:
                line["txn"]["version"] = version
        entry_path(table, version).write_text("\n".join(map(json.dumps, others)))
        if version == _VERSIONS - 50:
            checkpoint(table)
    with noted_requests(folder) as (endpoint, received), mock.patch.dict("os.environ", variables_of(endpoint)):
        yield received


def _to_log(received: list[Request]) -> int:
    """Returns the number of requests that the server has received for the log, and of pages with names of the log."""
    count = sum(request.is_about(log.LOG_FOLDER) for request in received)
    received.clear()
    return count


@pytest.mark.long(reason="10,000 versions of a table")
def test_a_start_with_a_long_log_sends_few_requests_to_it(long_log: list[Request]) -> None:
    """Also the first one of a job, and with runs that are registered."""
    for generation in range(_VERSIONS, _VERSIONS + 4):
        long_log.clear()
        sink = DeltaSink("s3://bucket/long", partition_by="text")
        sink.check(_ABOUT)
        sink.prepare(_ABOUT)
        sink.begin_run(_ABOUT, generation)
        assert sink.open_table(_ABOUT).token == _VERSIONS - 1
        assert sink.sweep(_ABOUT, lambda written, ordinal, path: ordinal >= _VERSIONS) == []
        assert _to_log(long_log) <= 10, generation


@pytest.mark.long(reason="10,000 versions of a table")
def test_a_new_job_reads_each_entry_since_the_checkpoint_once(long_log: list[Request]) -> None:
    long_log.clear()
    sink, about = DeltaSink("s3://bucket/long", partition_by="text"), context(Pair, job="0" * 32)
    sink.check(about)
    assert sink.other_jobs(about) == {_ABOUT.job_uuid}
    # It looks for its own tokens in the last ones before.
    assert 49 <= _to_log(long_log) <= 49 + 20


@pytest.mark.long(reason="10,000 versions of a table")
def test_a_source_of_a_table_with_a_long_log_begins_with_few_requests_to_it(long_log: list[Request]) -> None:
    long_log.clear()
    source = DeltaSource("s3://bucket/long", schema=Pair)
    source.check_settings(SourceSettings())
    assert _to_log(long_log) <= 10
