"""Delta tables whose log another writer has filled: no wait, no crash, bounded memory, always an error with a code."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stateflow.api.input_files import FileShare
from stateflow.api.schema import RowSchema
from stateflow.api.source import StartKind, StartPosition
from stateflow.config.settings import SourceSettings
from stateflow.connectors import DeltaSink
from stateflow.connectors.batch_table import BatchTable
from stateflow.connectors.data_files import own_names
from stateflow.connectors.delta.log import (
    LOG_FOLDER,
    DeletionVectors,
    DeltaHead,
    Metadata,
    checkpoint,
    entry_path,
    find_unreferenced_files,
    maintain_log,
    read_head,
    read_transactions,
)
from stateflow.connectors.delta.maintenance import Compaction, vacuum
from stateflow.connectors.delta.source import DeltaSource
from stateflow.connectors.delta.versions import Divergence, Rewinder, read_entry
from stateflow.connectors.files.parquet_files import ParquetFormat
from stateflow.errors import CorruptFile, SinkDiverged, SinkRefused, StorageError
from tests.support.delta_tables import Pair, context, damage_one, pairs, put, write
from tests.support.errors import raises
from tests.support.job_fixture import mostly_slow
from tests.support.memory import CPU_SECONDS, LIMIT, MemoryPeak

_ABOUT = context()
_NAME = "stateflow-job-uid-g1-o1-s1-attempt-1.zstd.parquet"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    sink = DeltaSink(tmp_path / "table")
    sink.prepare(_ABOUT)
    put(sink, _ABOUT, 1, pairs(0, 3))
    return tmp_path / "table"


ACTS: dict[str, Callable[[Path], object]] = {
    "the newest version": lambda table: read_head(table, "app"),
    "an entry": lambda table: read_entry(table, 2),
    "references": lambda table: find_unreferenced_files(table, "app", {_NAME: 1}),
}


@pytest.mark.parametrize("act", ACTS)
def test_a_fifo_in_the_log_is_an_error_at_once(table: Path, act: str) -> None:
    os.mkfifo(entry_path(table, 2))
    with raises(CorruptFile, file=str(entry_path(table, 2))):
        ACTS[act](table)


def test_a_later_entry_that_is_a_fifo_is_an_error_at_once(table: Path) -> None:
    known = read_head(table, "app")
    os.mkfifo(entry_path(table, 2))
    with raises(CorruptFile, file=str(entry_path(table, 2)), found="FIFO"):
        read_head(table, "app", known)


@pytest.mark.parametrize("name", ["_last_checkpoint", f"{0:020d}.checkpoint.parquet", "unknown"])
def test_a_fifo_among_the_other_files_is_an_error_at_once(table: Path, name: str) -> None:
    os.mkfifo(table / LOG_FOLDER / name)
    with raises(CorruptFile):
        read_head(table, "app")


CONTENTS = {
    "a line": b'{"commitInfo":{"x":"',
    "zeros": b"",
    "empty lines": b"\n" * (3 << 20),
    "small lines": b"{}\n" * (2 << 20),
}


@pytest.mark.parametrize("name", mostly_slow(CONTENTS, ["a line", "empty lines"], reason="runs a job on Spark"))
def test_a_log_file_of_400_megabytes_is_refused_soon_and_takes_no_memory(table: Path, name: str) -> None:
    known, path = read_head(table, "app"), entry_path(table, 2)
    path.write_bytes(CONTENTS[name])
    os.truncate(path, 400 << 20)
    peak = MemoryPeak()
    for act in (lambda: read_head(table, "app", known), lambda: read_entry(table, 2)):
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
        read_entry(table, 2)


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


def _spark(table: Path, changes: bool = False) -> None:
    source = DeltaSource(table, schema=Pair, changes=changes)
    source.initial_position(StartPosition(StartKind.LATEST))
    within = json.dumps({"sourceVersion": 1, "reservoirId": "x", "index": -1, "reservoirVersion": 2})
    source.check_batch(within, within)


_READERS: dict[str, Callable[[Path], object]] = {
    "upsert": _upsert,
    "from_table": _batch_table,
    "DeltaSource": _spark,
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
    _logged(table, {"cdc": _add(_PATHS[path](table, victim), dataChange=False)["add"]})
    with pytest.raises((CorruptFile, StorageError)) as caught:
        _spark(table, changes=True)
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
        DeletionVectors(table, 2, [vector]).kept_rows(own.name, 3)
    with raises(CorruptFile):
        _spark(table)


@pytest.mark.parametrize("name", ["entry", "checkpoint", "log"])
def test_a_link_in_the_log_is_an_error(table: Path, victim: _Victim, name: str) -> None:
    log = victim.folder / LOG_FOLDER
    if name == "log":
        shutil.rmtree(table / LOG_FOLDER)
        (table / LOG_FOLDER).symlink_to(log)
    else:
        other = {"entry": f"{2:020d}.json", "checkpoint": f"{2:020d}.checkpoint.parquet"}[name]
        (table / LOG_FOLDER / other).symlink_to(log / f"{1:020d}.json")
    for act in (ACTS["the newest version"], _batch_table, _spark):
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
    for act in (ACTS["the newest version"], _batch_table, _spark):
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


@pytest.mark.parametrize("reader", sorted(_READERS.keys() - {"DeltaSource"}))
@pytest.mark.parametrize("damage", ["checksum", "truncated", "empty", "other"])
def test_a_damaged_file_is_named_and_no_version_is_created(table: Path, reader: str, damage: str) -> None:
    """Spark reads the files of a `DeltaSource`."""
    put(DeltaSink(table), _ABOUT, 2, [Pair(7, "right")])
    with raises(CorruptFile, table=str(table), file=damage_one(table, damage)):
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
    assert read_transactions(table)["a"] == 7
    assert peak.bytes() <= 2 * LIMIT


@pytest.mark.parametrize("values", [[7], [{"appId": 7, "version": 7}], [{"other": 7}]])
def test_transactions_of_another_type_are_a_corrupt_file(table: Path, values: list[object]) -> None:
    path = table / LOG_FOLDER / f"{1:020d}.checkpoint.parquet"
    pq.write_table(pa.table({"txn": values}), path)
    with raises(CorruptFile, file=str(path)):
        read_transactions(table)


def test_a_checkpoint_that_is_a_fifo_is_an_error_when_transactions_are_read(table: Path) -> None:
    path = table / LOG_FOLDER / f"{1:020d}.checkpoint.parquet"
    os.mkfifo(path)
    with raises(CorruptFile):
        read_transactions(table)


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
    head = read_head(table, _ABOUT.application, known)
    assert head is not None
    return Rewinder(table, _ABOUT.application, head)


@pytest.mark.parametrize("name", INFOS)
def test_a_plan_over_a_commit_with_junk_is_an_error_with_a_code(table: Path, name: str) -> None:
    known = read_head(table, _ABOUT.application)
    _put(table, 2, {"commitInfo": INFOS[name]}, _FOREIGN)
    with raises(CorruptFile, version=2):
        _rewinder(table, known).changes_since(1)
    with pytest.raises((CorruptFile, SinkRefused, SinkDiverged)):
        _rewinder(table, known).plan(0)


@pytest.mark.parametrize("rows", ["x", [], "9" * 5000, "²", -1])
def test_a_count_that_is_no_number_is_unknown(table: Path, rows: object) -> None:
    info = {"operation": "DELETE", "operationMetrics": {"numCopiedRows": rows}}
    _put(table, 2, {"commitInfo": info}, {"add": {**_FOREIGN["add"], "stats": '{"numRecords":1}'}})
    entry = read_entry(table, 2)
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


@pytest.mark.parametrize("folder", ["_sidecars", "_staged_commits", "other"])
def test_a_fifo_in_a_folder_of_the_log_is_an_error_at_once(table: Path, folder: str) -> None:
    fifo = table / LOG_FOLDER / folder / "x.parquet"
    fifo.parent.mkdir()
    os.mkfifo(fifo)
    with raises(CorruptFile, file=str(fifo)):
        read_head(table, "app")


_EACH = Metadata("x", "{}", [], {"delta.checkpointInterval": "1"})


def test_a_fifo_that_is_named_like_a_new_checkpoint_does_not_stop_the_driver(
    table: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(table / LOG_FOLDER / f"{1:020d}.checkpoint.x")
    maintain_log(table, 1, _EACH)
    assert caplog.records[0].exc_info is not None
    assert isinstance(caplog.records[0].exc_info[1], CorruptFile)
    # Created after the log was checked.
    with raises(StorageError, table=str(table)):
        checkpoint(table)


def test_a_checkpoint_process_that_waits_is_killed(table: Path) -> None:
    os.mkfifo(table / LOG_FOLDER / "_last_checkpoint")
    with raises(StorageError, seconds=0.5):
        checkpoint(table, seconds=0.5)


@pytest.mark.parametrize("interval", ["²", "0", "-1", "", "9" * 5000])
def test_an_interval_of_checkpoints_that_is_no_number_is_ignored(table: Path, interval: str) -> None:
    maintain_log(table, 1, Metadata("x", "{}", [], {"delta.checkpointInterval": interval}))
    assert not list((table / LOG_FOLDER).glob("*.checkpoint.*"))


def test_a_log_whose_newest_version_is_any_number_is_read_in_time(table: Path) -> None:
    head = read_head(table, _ABOUT.application)
    assert head is not None
    far = dataclasses.replace(head, version=10**18)
    found = Rewinder(table, _ABOUT.application, far).changes_since(0).others
    assert [(commit.version, commit.rows) for commit in found] == [(head.version + 1, None)]
