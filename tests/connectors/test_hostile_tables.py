"""Delta and Iceberg tables of attackers: no wait, no crash, no code, bounded memory, always an error with a code."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import write_manifest_list
from pyiceberg.schema import Schema
from pyiceberg.table.locations import SimpleLocationProvider
from pyiceberg.types import LongType, NestedField, StringType

from stateflow.api.input_files import FileShare
from stateflow.api.schema import RowSchema
from stateflow.config.settings import SourceSettings
from stateflow.connectors import DeltaSink
from stateflow.connectors.batch_table import BatchTable
from stateflow.connectors.data_files import own_names
from stateflow.connectors.delta.log import (
    LOG_FOLDER,
    DeletionVectors,
    DeltaHead,
    Metadata,
    find_unreferenced_files,
    maintain_log,
    read_head,
    read_transactions,
)
from stateflow.connectors.delta.maintenance import Compaction, vacuum
from stateflow.connectors.delta.source import DeltaSource
from stateflow.connectors.delta.versions import Divergence, Rewinder, read_entry
from stateflow.connectors.files.parquet_files import ParquetFormat
from stateflow.connectors.iceberg.catalog import CatalogConnection
from stateflow.connectors.iceberg.target import IcebergSettings
from stateflow.connectors.table_folder import DiskFolder
from stateflow.errors import CorruptFile, CorruptInput, SinkDiverged, SinkRefused, StorageError
from tests.support.delta_reads import batches_of
from tests.support.delta_tables import Pair, checkpoint, context, damage_one, entry_path, pairs, put, snapshot, write
from tests.support.errors import raises
from tests.support.job_fixture import mostly_slow
from tests.support.memory import CPU_SECONDS, LIMIT, MemoryPeak
from tests.support.staged_tables import IcebergTable, catalog_in

_ABOUT = context()
_NAME = "stateflow-job-uid-g1-o1-s1-attempt-1.zstd.parquet"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    sink = DeltaSink(tmp_path / "table")
    sink.prepare(_ABOUT)
    put(sink, _ABOUT, 1, pairs(0, 3))
    return tmp_path / "table"


ACTS: dict[str, Callable[[Path], object]] = {
    "the newest version": lambda table: read_head(DiskFolder(table), "app"),
    "an entry": lambda table: read_entry(DiskFolder(table), 2),
    "references": lambda table: find_unreferenced_files(DiskFolder(table), "app", {_NAME: 1}),
}


@pytest.mark.parametrize("act", ACTS)
def test_a_fifo_in_the_log_is_an_error_at_once(table: Path, act: str) -> None:
    known = read_head(DiskFolder(table), "app")
    os.mkfifo(entry_path(table, 2))
    for read in (ACTS[act], lambda table: read_head(DiskFolder(table), "app", known)):
        with raises(CorruptFile, file=str(entry_path(table, 2))):
            read(table)


@pytest.mark.parametrize(
    "name",
    [
        "_last_checkpoint", f"{0:020d}.checkpoint.parquet", "unknown", "_sidecars/x.parquet",
        "_staged_commits/x.parquet", "other/x.parquet",
    ],
)  # fmt: skip
def test_a_fifo_among_the_other_files_is_an_error_at_once(table: Path, name: str) -> None:
    fifo = table / LOG_FOLDER / name
    fifo.parent.mkdir(exist_ok=True)
    os.mkfifo(fifo)
    with raises(CorruptFile, file=str(fifo)):
        read_head(DiskFolder(table), "app")


CONTENTS = {
    "a line": b'{"commitInfo":{"x":"',
    "zeros": b"",
    "empty lines": b"\n" * (3 << 20),
    "small lines": b"{}\n" * (2 << 20),
}


@pytest.mark.long(reason="writes 400 MB")
@pytest.mark.parametrize("name", mostly_slow(CONTENTS, ["a line", "empty lines"], reason="runs a job on Spark"))
def test_a_log_file_of_400_megabytes_is_refused_soon_and_takes_no_memory(table: Path, name: str) -> None:
    known, path = read_head(DiskFolder(table), "app"), entry_path(table, 2)
    path.write_bytes(CONTENTS[name])
    os.truncate(path, 400 << 20)
    peak = MemoryPeak()
    for act in (lambda: read_head(DiskFolder(table), "app", known), lambda: read_entry(DiskFolder(table), 2)):
        started = time.process_time()
        with raises(CorruptFile, file=str(path)):
            act()
        assert time.process_time() - started < CPU_SECONDS
    assert peak.bytes() <= LIMIT


def test_names_are_found_in_linear_time() -> None:
    started = time.process_time()
    assert list(own_names(b"stateflow-" * 1_600_000)) == []
    assert time.process_time() - started < CPU_SECONDS
    text = b'{"add":{"path":"a=1/' + _NAME.encode() + b'"}} x' + _NAME.encode()
    assert list(own_names(text)) == [_NAME.encode()]


MALFORMED = [
    b'{"metaData":"\xff"}', b'{"add":{"dataChange":true}}', b'{"add":{"dataChange":true,"path":1}}',
    b'{"remove":{"dataChange":true,"path":"x","deletionVector":{"storageType":"u"}}}',
    b'{"add":{"dataChange":true,"path":"x","stats":"[]"}}', b'{"add":{"dataChange":true,"path":"x","size":"1"}}',
]  # fmt: skip


@pytest.mark.parametrize("line", MALFORMED)
def test_a_malformed_action_is_a_corrupt_file(table: Path, line: bytes) -> None:
    entry_path(table, 2).write_bytes(line)
    with raises(CorruptFile, file=str(entry_path(table, 2))):
        read_entry(DiskFolder(table), 2)


@pytest.mark.parametrize("schema", ["", "{}", "[" * 5000, '{"fields":[{}]}', '{"fields":[{"name":1,"type":"long"}]}'])
def test_a_malformed_schema_is_a_corrupt_file(schema: str) -> None:
    with raises(CorruptFile, table_id="t"):
        Metadata("t", schema).fields()


# -- paths that lead out of the table ----------------------------------------------------------------------------------


class _Victim(msgspec.Struct):
    """A table next to the attacker's, with a row that must not appear anywhere else."""

    folder: Path
    file: Path


@pytest.fixture
def victim(tmp_path: Path) -> _Victim:
    sink = DeltaSink(tmp_path / "victim")
    sink.prepare(_ABOUT)
    put(sink, _ABOUT, 1, [Pair(7, "secret")])
    (file,) = (tmp_path / "victim").glob("*.parquet")
    return _Victim(tmp_path / "victim", file)


def _through_link(table: Path, victim: _Victim) -> str:
    (table / "linked").symlink_to(victim.folder)
    return f"linked/{victim.file.name}"


def _link(table: Path, victim: _Victim) -> str:
    (table / "a.parquet").symlink_to(victim.file)
    return "a.parquet"


def _fifo(table: Path, victim: _Victim) -> str:
    os.mkfifo(table / "a.parquet")
    return "a.parquet"


_PATHS: dict[str, Callable[[Path, _Victim], str]] = {
    "absolute": lambda table, victim: str(victim.file), "a URL": lambda table, victim: f"file://{victim.file}",
    "a bucket": lambda table, victim: "s3://bucket/a.parquet",
    "parent": lambda table, victim: f"../victim/{victim.file.name}",
    "encoded parent": lambda table, victim: f"%2e%2e/victim/{victim.file.name}",
    "encoded slash": lambda table, victim: f"..%2Fvictim%2F{victim.file.name}",
    "parent within": lambda table, victim: f"x/../../victim/{victim.file.name}",
    "encoded root": lambda table, victim: f"%2F{victim.file}", "NUL": lambda table, victim: "a%00.parquet",
    "the log": lambda table, victim: "_delta_log/00000000000000000000.json", "through a link": _through_link,
    "a link": _link, "a FIFO": _fifo,
}  # fmt: skip


def _upsert(table: Path) -> None:
    put(DeltaSink(table, mode="upsert", keys="id"), context(uid="other"), 1, [Pair(7, "new")])


def _batch_table(table: Path) -> None:
    class Row(Pair, kw_only=True):
        deleted: bool = False

    BatchTable(table, schema=Row, refresh=timedelta(minutes=1)).read(None, SourceSettings())


def _delta_source(table: Path, first: int = 1, *, changes: bool = False) -> None:
    source = DeltaSource(table, schema=Pair, changes=changes)
    for _ in batches_of(source, start=source._offset_at(first)):
        pass


_READERS: dict[str, Callable[[Path], object]] = {
    "upsert": _upsert,
    "from_table": _batch_table,
    "DeltaSource": _delta_source,
    "optimize": lambda table: Compaction(DeltaSink(table).own_table(_ABOUT)).run(),
}


def _logged(table: Path, *actions: dict[str, object]) -> None:
    version = max(int(path.stem) for path in (table / LOG_FOLDER).glob("*.json")) + 1
    entry_path(table, version).write_text("\n".join(map(json.dumps, actions)))


def _add(path: str, **more: object) -> dict[str, object]:
    action = {"path": path, "partitionValues": {}, "size": 10, "modificationTime": 0, "dataChange": True, **more}
    return {"add": action}


def _content(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.rglob("*") if each.is_file()}


@pytest.mark.parametrize("reader", _READERS)
@pytest.mark.parametrize("path", _PATHS)
def test_a_path_that_leads_out_of_a_table_is_refused_and_nothing_is_copied(
    table: Path, victim: _Victim, path: str, reader: str
) -> None:
    _logged(table, _add(_PATHS[path](table, victim)))
    before = _content(victim.folder)
    with pytest.raises((CorruptFile, StorageError)) as caught:
        _READERS[reader](table)
    assert path in ("a bucket", "NUL") or type(caught.value) is CorruptFile, caught.value
    assert _content(victim.folder) == before
    copies = [each for each in table.glob("*.parquet") if each.is_file() and not each.is_symlink()]
    assert not any("secret" in str(pq.read_table(each).to_pylist()) for each in copies)


@pytest.mark.parametrize("path", _PATHS)
def test_a_file_of_changes_outside_of_a_table_is_refused(table: Path, victim: _Victim, path: str) -> None:
    DeltaTable(str(table)).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    _logged(table, {"cdc": _add(_PATHS[path](table, victim), dataChange=False)["add"]})
    with pytest.raises((CorruptFile, StorageError)) as caught:
        _delta_source(table, 2, changes=True)
    assert path == "NUL" or type(caught.value) is CorruptFile, caught.value


@pytest.mark.parametrize("path", _PATHS)
def test_a_rewind_does_not_add_a_file_outside_of_a_table_again(table: Path, victim: _Victim, path: str) -> None:
    sink, size = DeltaSink(table), victim.file.stat().st_size
    logged = _PATHS[path](table, victim)
    _logged(table, _add(logged, size=size))
    put(sink, _ABOUT, 2, pairs(3, 1))
    put(sink, _ABOUT, 3, pairs(4, 1))
    _logged(table, {"remove": {"path": logged, "deletionTimestamp": 1, "dataChange": True, "size": size}})
    before, handle = _content(table), sink.open_table(_ABOUT)
    with pytest.raises((CorruptFile, StorageError, SinkDiverged)) as caught:
        handle.rewind(handle.plan_rewind(2).to_version, 4)
    assert caught.value.code and _content(table) == before


@pytest.mark.parametrize("path", _PATHS)
def test_a_vacuum_deletes_nothing_outside_of_a_table(table: Path, victim: _Victim, path: str) -> None:
    _logged(table, {"remove": {"path": _PATHS[path](table, victim), "deletionTimestamp": 1, "dataChange": True}})
    entries = set((table / LOG_FOLDER).iterdir())
    vacuum(DeltaSink(table).own_table(_ABOUT), [], now=10**13, older_than=0)
    assert victim.file.exists() and set((table / LOG_FOLDER).iterdir()) == entries


@pytest.mark.parametrize(("kind", "text"), [("p", "{file}"), ("p", "s3://b/x"), ("u", "../victim" + "0" * 20)])
def test_a_deletion_vector_outside_of_a_table_is_refused(table: Path, victim: _Victim, kind: str, text: str) -> None:
    vector = {"storageType": kind, "pathOrInlineDv": text.format(file=victim.file), "sizeInBytes": 1, "cardinality": 1}
    (own,) = table.glob("*.parquet")
    _logged(table, _add(own.name, deletionVector=vector))
    with raises(CorruptFile):
        DeletionVectors(DiskFolder(table), 2, [vector]).kept_rows(own.name, 3)
    with raises(CorruptFile):
        _delta_source(table)


@pytest.mark.parametrize("name", ["entry", "checkpoint", "log"])
def test_a_link_in_the_log_is_an_error(table: Path, victim: _Victim, name: str) -> None:
    log = victim.folder / LOG_FOLDER
    if name == "log":
        shutil.rmtree(table / LOG_FOLDER)
        (table / LOG_FOLDER).symlink_to(log)
    else:
        other = {"entry": f"{2:020d}.json", "checkpoint": f"{2:020d}.checkpoint.parquet"}[name]
        (table / LOG_FOLDER / other).symlink_to(log / f"{1:020d}.json")
    for act in (ACTS["the newest version"], _batch_table, _delta_source):
        with raises(CorruptFile):
            act(table)


@pytest.mark.parametrize("path", ["../../../victim/_delta_log/_sidecars/a", "/etc/passwd", "s3://b/a", "..", "a%2Fb"])
@pytest.mark.parametrize("ending", ["json", "parquet", "classic"])
def test_a_sidecar_outside_of_the_log_is_an_error(table: Path, ending: str, path: str) -> None:
    middle = "parquet" if ending == "classic" else f"{uuid.UUID(int=1)}.{ending}"
    file = table / LOG_FOLDER / f"{1:020d}.checkpoint.{middle}"
    sidecar = {"path": path, "sizeInBytes": 1, "modificationTime": 0}
    if ending == "json":
        file.write_text(json.dumps({"sidecar": sidecar}))
    else:
        pq.write_table(pa.Table.from_pylist([{"sidecar": sidecar}]), file)
    for act in (ACTS["the newest version"], _batch_table, _delta_source):
        with raises(CorruptFile, sidecar=path):
            act(table)


def test_a_linked_folder_of_a_partition_gets_no_files(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    sink = DeltaSink(tmp_path / "t", partition_by="text")
    sink.prepare(_ABOUT)
    (tmp_path / "t" / "text=a").symlink_to(outside)
    with raises(CorruptFile, folder=str(tmp_path / "t" / "text=a")):
        write(sink, _ABOUT, [Pair(1, "a")])
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("reader", _READERS)
@pytest.mark.parametrize("damage", ["checksum", "truncated", "empty", "other"])
def test_a_damaged_file_is_named_and_no_version_is_created(table: Path, reader: str, damage: str) -> None:
    put(DeltaSink(table), _ABOUT, 2, [Pair(7, "right")])
    file = damage_one(table, damage)
    is_source = reader in ("from_table", "DeltaSource")
    facts = {"file": f"{table}/{file}"} if is_source else {"table": str(table), "file": file}
    with raises(CorruptInput if is_source else CorruptFile, **facts):
        _READERS[reader](table)
    assert not entry_path(table, 3).exists()


# -- small files with many rows, or with long texts --------------------------------------------------------------------


def _shared(text: str, rows: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([text]))


_FILES: dict[str, Callable[[], pa.Table]] = {
    "rows": lambda: pa.table({"id": np.full(40_000_000, 9), "text": _shared("x", 40_000_000)}),
    "texts": lambda: pa.table({"id": np.full(2_000, 9), "text": _shared("x" * (1 << 20), 2_000)}),
}


@pytest.mark.long(reason="reads hundreds of megabytes")
@pytest.mark.parametrize(
    ("file", "key"),
    mostly_slow(
        [("rows", "id"), ("rows", "text"), ("texts", "text")], [("texts", "text")], reason="runs a job on Spark"
    ),
)
def test_a_small_file_of_many_rows_or_long_texts_takes_no_memory(table: Path, file: str, key: str) -> None:
    pq.write_table(_FILES[file](), table / "a.parquet", compression="zstd", store_schema=False)
    size = (table / "a.parquet").stat().st_size
    assert size < 1 << 20
    _logged(table, _add("a.parquet", size=size))
    sink, about = DeltaSink(table, mode="upsert", keys=key), context(uid="other")
    sink.prepare(about)
    files = write(sink, about, [Pair(7, "y")])
    peak = MemoryPeak()
    assert sink.open_table(about).commit(1, files) == 3
    # The rows would take 500 MB, and the texts 2 GB. A process that has read other files keeps some of their memory.
    assert peak.bytes() <= 3 * LIMIT


@pytest.mark.long(reason="reads hundreds of megabytes")
def test_a_source_reads_a_small_file_of_long_texts_in_parts(tmp_path: Path) -> None:
    pq.write_table(_FILES["texts"](), tmp_path / "a.parquet", compression="zstd", store_schema=False)
    size = (tmp_path / "a.parquet").stat().st_size
    share = FileShare(str(tmp_path / "a.parquet"), 0, size, size)
    peak, count = MemoryPeak(), 0
    for batch in ParquetFormat().read(share, RowSchema.of(Pair)):
        count += len(batch)
    assert count == 2_000 and peak.bytes() <= 2 * LIMIT


@pytest.mark.slow(reason="writes a checkpoint of a million rows")
def test_a_small_checkpoint_of_many_rows_takes_no_memory_when_transactions_are_read(table: Path) -> None:
    kind = pa.struct([("appId", pa.string()), ("version", pa.int64())])
    rows = pa.concat_arrays([pa.nulls(20_000_000, kind), pa.array([{"appId": "a", "version": 7}], kind)])
    path = table / LOG_FOLDER / f"{1:020d}.checkpoint.parquet"
    pq.write_table(pa.table({"txn": rows}), path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 1 << 20
    peak = MemoryPeak()
    assert read_transactions(DiskFolder(table))["a"] == 7
    assert peak.bytes() <= 2 * LIMIT


@pytest.mark.parametrize("values", [[7], [{"appId": 7, "version": 7}], [{"other": 7}]])
def test_transactions_of_another_type_are_a_corrupt_file(table: Path, values: list[object]) -> None:
    path = table / LOG_FOLDER / f"{1:020d}.checkpoint.parquet"
    pq.write_table(pa.table({"txn": values}), path)
    with raises(CorruptFile, file=str(path)):
        read_transactions(DiskFolder(table))


def test_a_checkpoint_that_is_a_fifo_is_an_error_when_transactions_are_read(table: Path) -> None:
    path = table / LOG_FOLDER / f"{1:020d}.checkpoint.parquet"
    os.mkfifo(path)
    with raises(CorruptFile):
        read_transactions(DiskFolder(table))


# -- delta tables whose log has forged commits and names --------------------------------------------------------------


_FOREIGN: dict[str, dict[str, object]] = {
    "add": {"path": "x", "partitionValues": {}, "size": 1, "modificationTime": 0, "dataChange": True}
}
INFOS: dict[str, object] = {
    "a time as text": {"timestamp": "x"}, "a time after the calendar": {"timestamp": 10**17},
    "a time before 1970": {"timestamp": -1}, "a time with a fraction": {"timestamp": 0.5},
    "operations": {"operation": ["x"]}, "metrics": {"operation": "DELETE", "operationMetrics": "x"},
    "parameters": {"engineInfo": "stateflow", "operation": "RESTORE", "operationParameters": []},
}  # fmt: skip


def _put(table: Path, version: int, *actions: object) -> None:
    entry_path(table, version).write_text("\n".join(map(json.dumps, actions)) + "\n")


def _rewinder(table: Path, known: DeltaHead | None = None) -> Rewinder:
    head = read_head(DiskFolder(table), _ABOUT.application, known)
    assert head is not None
    return Rewinder(DiskFolder(table), _ABOUT.application, head)


@pytest.mark.parametrize("name", INFOS)
def test_a_plan_over_a_commit_with_junk_is_an_error_with_a_code(table: Path, name: str) -> None:
    known = read_head(DiskFolder(table), _ABOUT.application)
    _put(table, 2, {"commitInfo": INFOS[name]}, _FOREIGN)
    with raises(CorruptFile, version=2):
        _rewinder(table, known).changes_since(1)
    with pytest.raises((CorruptFile, SinkRefused, SinkDiverged)):
        _rewinder(table, known).plan(0)


@pytest.mark.parametrize("rows", ["x", [], "9" * 5000, "²", -1])
def test_a_count_that_is_no_number_is_unknown(table: Path, rows: object) -> None:
    info = {"operation": "DELETE", "operationMetrics": {"numCopiedRows": rows}}
    _put(table, 2, {"commitInfo": info}, {"add": {**_FOREIGN["add"], "stats": '{"numRecords":1}'}})
    entry = read_entry(DiskFolder(table), 2)
    assert entry is not None
    assert Divergence({}, [entry], []).rows() == (1, 0)
    assert Divergence({}, [entry], [entry]).rows() == (None, None)


@pytest.mark.parametrize("restored_version", ["2", "3", "9" * 20, "-1", "²", "9" * 5000, None])
def test_an_entry_that_restores_itself_or_a_later_one_is_refused(table: Path, restored_version: str | None) -> None:
    """A plan would follow it without end."""
    info = {"engineInfo": "stateflow", "operation": "RESTORE", "operationParameters": {"version": restored_version}}
    _put(table, 2, {"commitInfo": info})
    with raises(CorruptFile, version=2, found=str(restored_version)[:200]):
        _rewinder(table).plan(0)


_EACH = Metadata("x", "{}", [], {"delta.checkpointInterval": "1"})


def test_a_fifo_that_is_named_like_a_new_checkpoint_does_not_stop_the_driver(
    table: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(table / LOG_FOLDER / f"{1:020d}.checkpoint.x")
    maintain_log(DiskFolder(table), 1, _EACH)
    assert caplog.records[0].exc_info is not None
    assert isinstance(caplog.records[0].exc_info[1], CorruptFile)


def test_a_checkpoint_process_that_takes_too_long_is_killed(table: Path) -> None:
    with raises(StorageError, timeout_ms=1):
        checkpoint(table, seconds=0.001)


@pytest.mark.parametrize("interval", ["²", "0", "-1", "", "9" * 5000])
def test_an_interval_of_checkpoints_that_is_no_number_is_ignored(table: Path, interval: str) -> None:
    maintain_log(DiskFolder(table), 1, Metadata("x", "{}", [], {"delta.checkpointInterval": interval}))
    assert not list((table / LOG_FOLDER).glob("*.checkpoint.*"))


def test_a_log_whose_newest_version_is_any_number_is_read_in_time(table: Path) -> None:
    head = read_head(DiskFolder(table), _ABOUT.application)
    assert head is not None
    far = dataclasses.replace(head, version=10**18)
    found = Rewinder(DiskFolder(table), _ABOUT.application, far).changes_since(0).others
    assert [(commit.version, commit.rows) for commit in found] == [(head.version + 1, None)]


# -- Iceberg ----------------------------------------------------------------------------------------------------------

_CALLS: list[str] = []
_HERE = "tests.connectors.test_hostile_tables"
_EVIL = {
    "s3.endpoint": "http://evil.invalid",
    "s3.access-key-id": "evil",
    "s3.proxy-uri": "http://evil.invalid",
    "py-io-impl": f"{_HERE}.EvilIO",
}


class EvilIO(PyArrowFileIO):
    def __init__(self, properties: Any = None) -> None:
        _CALLS.append("io")
        super().__init__(properties or {})


class EvilProvider(SimpleLocationProvider):
    def __init__(self, location: str, properties: Any) -> None:
        _CALLS.append("provider")
        super().__init__(location, properties)


@pytest.fixture
def attacked(tmp_path: Path) -> IcebergTable:
    return IcebergTable.create(tmp_path, Pair)


def _plant(attacked: IcebergTable, properties: dict[str, str]) -> None:
    fields = [NestedField(1, "id", LongType(), required=False), NestedField(2, "text", StringType(), required=False)]
    catalog_in(attacked.folder / "lake").create_table(attacked.name, Schema(*fields), properties=properties)
    _CALLS.clear()


def test_properties_of_a_table_reach_neither_its_storage_nor_its_code(attacked: IcebergTable) -> None:
    _plant(attacked, _EVIL)
    attacked.prepare().put(1, pairs(0, 2))
    handle = attacked.sink.open_table(attacked.about)
    assert handle.rewind(handle.plan_rewind(0).to_version, 2) is not None
    assert _CALLS == []
    found = attacked.sink._connection.find_table()
    assert found is not None and not found.io.properties.keys() & _EVIL.keys()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("write.py-location-provider.impl", f"{_HERE}.EvilProvider"),
        ("write.data.path", "s3://evil/data"),
        ("write.metadata.path", "file:///tmp/elsewhere"),
        ("write.data.path", "{location}/../other"),
    ],
)
def test_a_table_that_chooses_code_or_other_places_is_refused_also_between_two_steps(
    attacked: IcebergTable, name: str, value: str
) -> None:
    attacked.prepare()
    handle, files = attacked.sink.open_table(attacked.about), attacked.stage(1, pairs(0, 1))
    value = value.format(location=attacked.table.location())
    with attacked.table.transaction() as transaction:
        transaction.set_properties({name: value})
    _CALLS.clear()
    with raises(SinkRefused, property=name):
        handle.commit(1, files)
    for act in (attacked.sink.check, attacked.sink.prepare, attacked.sink.open_table):
        with raises(SinkRefused, property=name):
            act(attacked.about)
    assert _CALLS == []


def _path(uri: str) -> Path:
    return Path(uri.removeprefix("file://"))


def _forge(attacked: IcebergTable, change: Callable[[dict[str, Any]], None]) -> None:
    """Writes the newest metadata file again, as a writer of the table's folder can."""
    path = _path(attacked.table.metadata_location)
    metadata = json.loads(path.read_text())
    change(metadata)
    path.write_text(json.dumps(metadata))


def test_metadata_that_a_catalog_finds_outside_of_the_table_is_refused(attacked: IcebergTable) -> None:
    attacked.prepare()
    moved = shutil.copy(_path(attacked.table.metadata_location), attacked.folder / "00007-x.metadata.json")
    with closing(sqlite3.connect(attacked.folder / "lake" / "catalog.db")) as catalog, catalog:
        catalog.execute("UPDATE iceberg_tables SET metadata_location = ?", (f"file://{moved}",))
    for act in (attacked.sink.check, attacked.sink.prepare, attacked.sink.open_table):
        with raises(SinkRefused, property="metadata-location"):
            act(attacked.about)


@pytest.mark.parametrize("folder", ["data", "metadata"])
def test_a_linked_folder_of_a_table_gets_no_files(attacked: IcebergTable, folder: str) -> None:
    attacked.prepare().put(1, pairs(0, 1))
    handle, files = attacked.sink.open_table(attacked.about), attacked.stage(2, pairs(1, 1))
    place, outside = _path(attacked.table.location()) / folder, attacked.folder / "outside"
    place.rename(outside)
    place.symlink_to(outside)
    before = snapshot(outside)
    with raises(SinkRefused):
        handle.commit(2, files)
    assert snapshot(outside) == before


@pytest.mark.parametrize("kind", ["link", "FIFO"])
def test_a_list_of_manifests_that_is_not_a_regular_file_is_not_read(attacked: IcebergTable, kind: str) -> None:
    attacked.prepare().put(1, pairs(0, 1))
    head = attacked.table.current_snapshot()
    assert head is not None
    place = _path(head.manifest_list)
    moved = place.rename(attacked.folder / "list.avro")
    place.symlink_to(moved) if kind == "link" else os.mkfifo(place)
    for act in (attacked.sink.check, attacked.sink.prepare, attacked.sink.open_table):
        with raises(SinkRefused, property="manifest-list"):
            act(attacked.about)


def test_a_rewind_reads_no_snapshot_outside_of_the_table(attacked: IcebergTable) -> None:
    attacked.prepare().put(1, pairs(0, 1))
    attacked.put(2, pairs(1, 1))
    outside = f"file://{attacked.folder}/list.avro"

    def move(metadata: dict[str, Any]) -> None:
        for each in metadata["snapshots"]:
            if each["snapshot-id"] != metadata["current-snapshot-id"]:
                shutil.copy(_path(each["manifest-list"]), _path(outside))
                each["manifest-list"] = outside

    version = attacked.sink.open_table(attacked.about).plan_rewind(1).to_version
    _forge(attacked, move)
    handle = attacked.sink.open_table(attacked.about)
    with raises(SinkRefused, file=outside):
        handle.plan_rewind(1)
    with raises(SinkRefused, file=outside):
        handle.rewind(version, 3)


def test_a_commit_reads_no_manifest_outside_of_the_table(attacked: IcebergTable) -> None:
    attacked.prepare().put(1, pairs(0, 1))
    found = attacked.table
    head, outside = found.current_snapshot(), f"file://{attacked.folder}/manifest.avro"
    assert head is not None
    manifests = head.manifests(found.io)
    shutil.copy(_path(manifests[0].manifest_path), _path(outside))
    manifests[0]._data[0] = outside
    list_file = found.io.new_output(head.manifest_list)
    with write_manifest_list(2, list_file, head.snapshot_id, head.parent_snapshot_id, 2, "deflate") as written:
        written.add_manifests(manifests)
    _forge(attacked, lambda metadata: metadata["properties"].update({"commit.manifest.min-count-to-merge": "0"}))
    files, before = attacked.stage(2, pairs(1, 1)), attacked.data_files()
    with raises(SinkRefused, file=outside):
        attacked.sink.open_table(attacked.about).commit(2, files)
    assert attacked.data_files() == before


class Triple(Pair):
    more: int | None = None


def test_added_columns_delete_no_file_outside_of_the_table(attacked: IcebergTable) -> None:
    attacked.prepare()
    other = attacked.folder / "precious"
    other.write_text("x")

    def log(metadata: dict[str, Any]) -> None:
        metadata["metadata-log"] = [{"timestamp-ms": 1, "metadata-file": f"file://{other}"}]
        metadata["properties"] |= {
            "write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"
        }  # fmt: skip

    _forge(attacked, log)
    attacked.of(Triple, schema_evolution="add-columns").prepare()
    assert "more" in attacked.table.schema().column_names
    assert other.exists()


# -- REST catalogs -----------------------------------------------------------------------------------------------------


@contextmanager
def _server(answers: dict[str, Any]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answers[self.path.partition("?")[0]]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


_OWN = {
    "s3.access-key-id": "own", "s3.secret-access-key": "own", "s3.session-token": "own", "client.role-arn": "own",
    "gcs.oauth2.token": "own", "adls.account-key": "own", "adls.client-secret": "own", "adls.account-name": "own",
}  # fmt: skip
_PAIR = ("access-key-id", "secret-access-key")
_OF_STORES = {"gcs.oauth2.token-expires-at": "9", "adls.sas-token-expires-at-ms.evil": "9"}


@pytest.mark.parametrize(
    ("vended", "replaced", "has_address"),
    [
        ({}, (), False),
        ({f"s3.{name}": "vended" for name in _PAIR}, ("s3.", "client."), True),
        ({f"client.{name}": "vended" for name in _PAIR}, ("s3.", "client."), False),
        ({"s3.access-key-id": "vended", "client.secret-access-key": "vended"}, (), False),
        ({"s3.session-token": "vended", **_OF_STORES}, (), False),
        ({"gcs.oauth2.token": "vended"}, ("gcs.",), False),
        ({"adls.sas-token.evil": "vended"}, ("adls.account-key", "adls.client-secret"), False),
    ],
    ids=["nothing", "s3", "client", "halves", "tokens", "gcs", "adls"],
)
def test_credentials_of_a_rest_catalog_are_used_alone_and_its_address_only_with_them(
    attacked: IcebergTable, vended: dict[str, str], replaced: tuple[str, ...], has_address: bool
) -> None:
    _plant(attacked, {**_EVIL, "s3.session-token": "of the table"})
    loaded = attacked.table
    config = {"s3.endpoint": "http://vended.invalid", "py-io-impl": f"{_HERE}.EvilIO", "s3.region": "r", **vended}
    metadata = json.loads(loaded.metadata.model_dump_json(by_alias=True))
    answers = {
        "/v1/config": {
            "defaults": {"s3.region": "d", "client.region": "x@evil.invalid/"},
            "overrides": {**_EVIL, "prefix": "p"},
        },
        "/v1/p/namespaces/db/tables/t": {
            "metadata-location": loaded.metadata_location,
            "metadata": metadata,
            "config": config,
        },
    }
    _CALLS.clear()
    with _server(answers) as uri:
        given = {"type": "rest", "uri": uri, **_OWN}
        settings = IcebergSettings(("db", "t"), "rest", "refuse", properties=tuple(given.items()))
        found = CatalogConnection(settings).find_table()
    assert found is not None and _CALLS == []
    properties = found.io.properties
    kept = {name: value for name, value in _OWN.items() if not (replaced and name.startswith(replaced))}
    used = {name: value for name, value in properties.items() if value in ("own", "vended", "9")}
    assert used == {**kept, **(vended if replaced else {})}
    assert properties.get("s3.endpoint") == ("http://vended.invalid" if has_address else None)
    assert properties["s3.region"] == "r"
    assert not properties.keys() & {"py-io-impl", "s3.proxy-uri", "client.region"}
