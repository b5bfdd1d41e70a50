"""The Spark checkpoint location: what a checkpoint captures of it, and how a start creates it again."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stateflow.api.file_log import FilePattern, needed_entries
from stateflow.checkpoint.log.documents import SourceFile, SourcePosition, SparkPosition
from stateflow.errors import BatchFailed, CorruptFile, DataError, MissingFile, StateflowError
from stateflow.runtime.spark.checkpoint_location import (
    QuerySource,
    SparkLocation,
    driver_location,
    missing_entries,
    source_positions,
)
from stateflow.state.handles import FileHandle
from stateflow.storage import MemoryStorage, PosixStorage
from stateflow.storage.paths import data_folder, parse_data
from tests.support.errors import raises

FILES = [QuerySource("files", FilePattern("/data"))]
SOURCES = [*FILES, QuerySource("topic", None)]
QUERY = "0d4c1b2a-0000-4000-8000-000000000000"
ABOUT = '{"batchWatermarkMs":0,"batchTimestampMs":1795486084602,"conf":{}}'
OFFSETS = f'v1\n{ABOUT}\n{{"logOffset":7}}\n{{"topic":3}}'.encode()
BEFORE = f'v1\n{ABOUT}\n{{"logOffset":6}}\n-'.encode()
LARGE = "\n".join(["v1", *['{"path":"file:///data/part.parquet","timestamp":1,"batchId":6}'] * 1000]).encode()
SEVEN = b'v1\n{"path":"file:///data/part%2041.parquet","timestamp":1795486056780,"batchId":7}'
FOLDER = data_folder(4, 2, "driver")
IN_BATCH_7 = {
    "metadata": b'{"id":"x"}', "offsets/5": b"old", "offsets/6": BEFORE, "offsets/7": OFFSETS, "commits/6": b"c",
    "sources/0/5": b"five", "sources/0/6.compact": LARGE, "sources/0/7": SEVEN, "sources/0/.7.crc": b"crc",
    "sources/0/8.tmp": b"half", "sources/1/0": b"first offset",
}  # fmt: skip
"""What Spark has written in the middle of batch 7."""


def _write(folder: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def _read(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("names", "needed"),
    [
        ("", ""), ("0", "0"), ("10 9 2", "2 9 10"), ("9.compact 9 8 10 11", "9.compact 10 11"),
        ("9.compact 19.compact 18 20", "19.compact 20"), ("9.compact", "9.compact"),
        ("state.json 0 initial", "0 initial state.json"),
    ],
)  # fmt: skip
def test_of_a_source_s_log_the_newest_compaction_and_later_entries_are_needed(names: str, needed: str) -> None:
    assert needed_entries(names.split()) == needed_entries(names.split()[::-1]) == needed.split()


def _plan_batch(folder: Path, batch: int, paths: int) -> None:
    """Writes what Spark writes before it runs a batch: every tenth entry of the source's log has all paths so far."""
    compacted = batch % 10 == 9
    name = f"sources/0/{batch}.compact" if compacted else f"sources/0/{batch}"
    lines = range(batch * paths if not compacted else 0, (batch + 1) * paths)
    content = "v1\n" + "".join(f'{{"path":"file:///data/part-{n:08d}.parquet"}}\n' for n in lines)
    offsets = b"\n".join([*OFFSETS.splitlines()[:2], b'{"logOffset":%d}' % batch])
    _write(folder, {f"offsets/{batch}": offsets, name: content.encode()})


def test_a_long_run_remembers_only_what_the_newest_batch_needs(tmp_path: Path) -> None:
    location = SparkLocation(tmp_path / "spark", PosixStorage(tmp_path / "root"))
    for batch in range(200):
        _plan_batch(tmp_path / "spark", batch, paths=100)
        position = location.capture(batch, data_folder(4, batch + 1, "driver"))
        assert len(position.source_files) <= 10
    assert len(location._newest) == len(position.source_files)


def test_a_location_made_from_a_captured_position_captures_the_same(tmp_path: Path) -> None:
    storage = MemoryStorage()
    _write(tmp_path / "first", IN_BATCH_7)
    position = SparkLocation(tmp_path / "first", storage).capture(7, FOLDER)
    assert (position.batch_id, position.offsets, position.previous_offsets) == (7, OFFSETS, BEFORE)
    large, *others = position.source_files
    assert others == [SourceFile(path="0/7", content=SEVEN), SourceFile(path="1/0", content=b"first offset")]
    assert (large.path, large.content) == ("0/6.compact", None), "a large log is a file of the checkpoint"
    assert large.handle is not None and storage.get(large.handle.key) == LARGE
    parsed = parse_data(large.handle.key)
    assert parsed is not None and (parsed.generation, parsed.ordinal) == (4, 2), "so that garbage collection knows it"

    again = SparkLocation(tmp_path / "deep" / "second", storage)
    again.create(position, QUERY, SOURCES)
    found = _read(again.folder)
    assert json.loads(found.pop("metadata")) == {"id": QUERY}
    kept = ["offsets/6", "offsets/7", "sources/0/6.compact", "sources/0/7", "sources/1/0"]
    assert found == {"commits/7": position.commit, **{name: IN_BATCH_7[name] for name in kept}}
    assert stat.S_IMODE(again.folder.stat().st_mode) == 0o700

    stored = storage.list("")
    assert again.capture(7, data_folder(9, 1, "driver")) == position
    assert storage.list("") == stored, "what is stored already is not stored again"


def test_the_position_of_the_first_batch_has_no_previous_offsets(tmp_path: Path) -> None:
    _write(tmp_path, {"offsets/0": f"v1\n{ABOUT}\n-".encode()})
    position = SparkLocation(tmp_path, MemoryStorage()).capture(0, FOLDER)
    assert (position.batch_id, position.previous_offsets, position.source_files) == (0, None, [])
    again = SparkLocation(tmp_path / "again", MemoryStorage())
    again.create(position, QUERY, FILES)
    assert [name for name in _read(again.folder) if name.startswith("offsets")] == ["offsets/0"]


def _position(*files: SourceFile, offsets: bytes = OFFSETS, batch: int = 0) -> SparkPosition:
    return SparkPosition(batch_id=batch, offsets=offsets, previous_offsets=None, commit=b"c", source_files=list(files))


ELSEWHERE = "x /etc/x ../x 0/../../x 0/.. 0/./1 0//1 0/ a/b/c/d/e .."


@pytest.mark.parametrize("path", [*ELSEWHERE.split(), "", "0/x\0y"])
def test_a_path_outside_the_location_is_refused(tmp_path: Path, path: str) -> None:
    location = SparkLocation(tmp_path / "root" / "location", MemoryStorage())
    with raises(CorruptFile, path=path):
        location.create(_position(SourceFile(path=path, content=b"x")), QUERY, SOURCES)
    assert sorted(_read(tmp_path)) == [f"root/location/{name}" for name in ("commits/0", "metadata", "offsets/0")]


HANDLE = FileHandle(key=f"{FOLDER}sources-0-1", size=3, sha256="0" * 64)


@pytest.mark.parametrize(
    ("handle", "error"),
    [
        (HANDLE, CorruptFile),
        (msgspec.structs.replace(HANDLE, size=4), CorruptFile),
        (msgspec.structs.replace(HANDLE, key="data/gone"), MissingFile),
        (msgspec.structs.replace(HANDLE, key="../outside"), DataError),
    ],
)
def test_a_stored_log_that_is_not_as_recorded_is_refused(
    tmp_path: Path, handle: FileHandle, error: type[StateflowError]
) -> None:
    storage = MemoryStorage()
    storage.put_new(HANDLE.key, b"abc")
    with raises(error) as refused:
        SparkLocation(tmp_path / "x", storage).create(_position(SourceFile(path="0/1", handle=handle)), QUERY, SOURCES)
    assert handle.key in refused.value.facts.values()


def test_each_source_has_its_own_offset() -> None:
    position = _position(offsets=BEFORE.replace(b"-", b'{"topic":{"0":3}}'))
    assert source_positions(position, [("files", "reads files"), ("topic", "reads a topic")]) == [
        SourcePosition(uid="files", description="reads files", offset='{"logOffset":6}'),
        SourcePosition(uid="topic", description="reads a topic", offset='{"topic":{"0":3}}'),
    ]


def test_a_paused_driver_leaves_a_newer_run_s_location_alone(tmp_path: Path) -> None:
    """It was stopped after its CLAIM, and continues while another run on this host has claimed the job and works."""
    newer = driver_location(tmp_path, "job", 6)
    SparkLocation(newer, MemoryStorage()).create(None, QUERY, [])
    _write(newer, {"offsets/0": OFFSETS})
    paused = driver_location(tmp_path, "job", 5)
    SparkLocation(paused, MemoryStorage()).create(None, QUERY, [])
    assert _read(newer) == {"offsets/0": OFFSETS}
    assert paused != newer
    # The next run removes both: each of them is fenced.
    driver_location(tmp_path, "job", 7)
    assert list((tmp_path / "spark" / "job").iterdir()) == []


def _logs(offsets: list[str], names: str) -> SparkPosition:
    text = "v1\n{}\n" + "".join(f"{line}\n" for line in offsets)
    return _position(*(SourceFile(path=name, content=b"v1") for name in names.split()), offsets=text.encode(), batch=3)


@pytest.mark.parametrize(
    ("offsets", "names", "missing"),
    [
        (["-"], "", ""),
        (['{"logOffset":2}'], "0/0 0/1 0/2", ""),
        (['{"logOffset":2}'], "0/0 0/1 0/2 0/3", ""),
        (['{"logOffset":11}'], "0/9.compact 0/10 0/11", ""),
        (['{"logOffset":9}'], "0/9.compact", ""),
        (['{"logOffset":2}'], "0/0 0/2", "0/1"),
        (['{"logOffset":2}'], "0/2", "0/0 0/1"),
        (['{"logOffset":2}'], "", "0/0 0/1 0/2"),
        (['{"logOffset":11}'], "0/9.compact 0/11", "0/10"),
        (['{"logOffset":11}'], "0/10 0/11", "0/0 0/1 0/2 0/3 0/4 0/5 0/6 0/7 0/8 0/9"),
        (["-", '{"logOffset":1}'], "0/0 1/1", "1/0"),
        # Sources of other kinds have offsets of their own, and at most an entry with their first one.
        (['{"topic":{"0":7}}', "5", '{"logOffset":0,"x":1}'], "0/0", ""),
    ],
)
def test_gaps_in_a_file_source_s_log_are_found(offsets: list[str], names: str, missing: str) -> None:
    assert missing_entries(_logs(offsets, names)) == missing.split()


def test_a_log_with_a_gap_is_neither_captured_nor_restored(tmp_path: Path) -> None:
    _write(tmp_path / "first", {name: data for name, data in IN_BATCH_7.items() if name != "sources/0/7"})
    with raises(BatchFailed, batch=7, missing=["0/7"]):
        SparkLocation(tmp_path / "first", MemoryStorage()).capture(7, FOLDER)
    with raises(CorruptFile, batch=3, missing=["0/1"]):
        SparkLocation(tmp_path / "second", MemoryStorage()).create(_logs(['{"logOffset":2}'], "0/0 0/2"), QUERY, FILES)


def test_a_fifo_in_the_location_is_an_error_at_once(tmp_path: Path) -> None:
    location = SparkLocation(tmp_path, MemoryStorage())
    (tmp_path / "offsets").mkdir()
    os.mkfifo(tmp_path / "offsets" / "0")
    with raises(CorruptFile, found="FIFO"):
        location.capture(0, "data/")


# -- savepoints whose Spark files are forged: which input a run reads, and which settings Spark gets ------------------

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":7,"conf":{}}'
LINES = QuerySource("lines", FilePattern("/data/in"))
UNKNOWN = QuerySource("topic", None)


def _line(path: str, batch: int = 0) -> str:
    return f'{{"path":"{path}","timestamp":1700000000000,"batchId":{batch}}}'


def _entry(*lines: str) -> bytes:
    return "\n".join(["v1", *lines]).encode()


GOOD = _entry(_line("file:///data/in/a=1/x%20y.txt"))


def _forged(
    files: dict[str, bytes], offsets: tuple[str, ...] = ('{"logOffset":0}',), metadata: str = METADATA
) -> SparkPosition:
    return SparkPosition(
        batch_id=0,
        offsets="\n".join(["v1", metadata, *offsets]).encode(),
        previous_offsets=None,
        commit=b'v1\n{"nextBatchWatermarkMs":9}',
        source_files=[SourceFile(path=path, content=content) for path, content in files.items()],
    )


def _created(folder: Path, position: SparkPosition, *sources: QuerySource) -> dict[str, str]:
    """Returns what Spark reads, by path below the location."""
    location = SparkLocation(folder / "location", MemoryStorage())
    location.create(position, QUERY, sources or [LINES])
    return {
        str(p.relative_to(location.folder)): p.read_bytes().decode()
        for p in location.folder.rglob("*")
        if p.is_file() and p.name != "metadata"
    }


HOSTILE_SETTINGS = {
    "spark.sql.streaming.multipleWatermarkPolicy": "max", "spark.sql.shuffle.partitions": "2000000000",
    "spark.sql.streaming.stateStore.providerClass": "org.attacker.Provider",
}  # fmt: skip


@pytest.mark.parametrize(
    "metadata",
    [METADATA, json.dumps({"batchWatermarkMs": 2**62, "batchTimestampMs": 7, "conf": HOSTILE_SETTINGS, "more": {}})],
    ids=["as written", "hostile settings"],
)
def test_spark_reads_what_the_previous_run_wrote_without_settings(tmp_path: Path, metadata: str) -> None:
    assert _created(tmp_path, _forged({"0/0": GOOD}, metadata=metadata)) == {
        "offsets/0": f'v1\n{METADATA}\n{{"logOffset":0}}',
        "commits/0": 'v1\n{"nextBatchWatermarkMs":0}',
        "sources/0/0": GOOD.decode(),
    }


# -- files of others --------------------------------------------------------------------------------------------------

OUTSIDE = [
    "file:///etc/passwd", "file:///data/in-private/x.txt", "file:///data/in/../in-private/x.txt",
    "file:///data/in/%2e%2e/in-private/x.txt", "file:///data/in%2F..%2Fin-private%2Fx.txt", "file:///data/in//x.txt",
    "file:///data/private?/../in/x.txt", "file://other/data/in/x.txt", "hdfs:///data/in/x.txt", "/data/in/x.txt", "",
]  # fmt: skip


@pytest.mark.parametrize("uri", OUTSIDE)
def test_a_file_outside_of_the_source_s_folder_is_refused(tmp_path: Path, uri: str) -> None:
    """It would be read by a later run: Spark compacts the log, and reads the newest entry's files again."""
    with raises(CorruptFile, source="lines", file=uri, path="/data/in"):
        _created(tmp_path, _forged({"0/0": _entry(_line("file:///data/in/good"), _line(uri))}))


PASSWD = _line("file:///etc/passwd")
PARSED_DIFFERENTLY = {
    "white space before it": _entry(f" {PASSWD}"),
    "a carriage return": _entry(f"{_line('file:///data/in/x')}\r{PASSWD}"),
    "two paths": _entry('{"path":"file:///etc/passwd",' + _line("file:///data/in/x")[1:]),
    "another version": b"v2" + GOOD[2:],
    "no version": GOOD[3:],
    "a later batch": _entry(_line("file:///data/in/x", 1)),
    "no batch": _entry('{"path":"file:///data/in/x","timestamp":1}'),
    "deep": _entry("[" * 100_000),
    "not UTF-8": GOOD + b'\n{"path":"file:///data/in/\xff"}',
}


@pytest.mark.parametrize("name", PARSED_DIFFERENTLY)
def test_spark_s_parser_does_not_find_another_file_than_the_check(tmp_path: Path, name: str) -> None:
    try:
        written = _created(tmp_path, _forged({"0/0": PARSED_DIFFERENTLY[name]}))
    except CorruptFile:
        return
    assert name == "two paths"
    assert written["sources/0/0"] == _entry(_line("file:///data/in/x")).decode()


LATER = ["0/1", "0/01", "0/+1", "0/1.compact", "0/\u0661", "0/-1", "0/x", "0/.0.crc", "0/0.tmp", "0/0/1", "1/0", "00/1"]


@pytest.mark.parametrize("path", LATER)
def test_an_entry_that_spark_would_take_for_unread_input_is_refused(tmp_path: Path, path: str) -> None:
    with raises(CorruptFile):
        _created(tmp_path, _forged({"0/0": GOOD, path: _entry(_line("file:///data/in/again"))}))


AT_0 = '{"logOffset":0}'
NO_POSITIONS = ["-", '{"logOffset":-1}', "0", '{"logOffset":0,"x":1}', '{"logOffset":"0"}', '{"logOffset":true}', "["]
NO_METADATA = ["", "[]", '{"batchTimestampMs":"x"}', "{" * 100_000, METADATA + "\r{}"]


@pytest.mark.parametrize(
    ("offsets", "metadata", "facts"),
    [
        *(((offset,), METADATA, {"source": "lines"}) for offset in NO_POSITIONS),
        *(((AT_0,), metadata, {}) for metadata in NO_METADATA),
        *((offsets, METADATA, {"sources": 1, "offsets": len(offsets)}) for offsets in ((), (AT_0, "-"))),
    ],
)
def test_an_offset_log_without_the_position_of_each_source_is_refused(
    tmp_path: Path, offsets: tuple[str, ...], metadata: str, facts: dict[str, Any]
) -> None:
    with raises(CorruptFile, **facts):
        _created(tmp_path, _forged({"0/0": GOOD}, offsets, metadata))


def test_a_source_with_unknown_files_has_no_entry_after_its_position(tmp_path: Path) -> None:
    elsewhere = _entry(PASSWD)
    assert _created(tmp_path, _forged({"0/0": elsewhere}), UNKNOWN)["sources/0/0"] == elsewhere.decode()
    with raises(CorruptFile, source="topic", entry="1"):
        _created(tmp_path / "later", _forged({"0/0": elsewhere, "0/1": elsewhere}), UNKNOWN)
    first_offset = _forged({"0/0": b"first"}, ('{"topic":{"0":3}}',))
    assert _created(tmp_path / "topic", first_offset, UNKNOWN)["sources/0/0"] == "first"


@pytest.mark.parametrize(
    ("address", "uri", "default", "lists"),
    [
        ("/data/in", "file:///data/in/x", None, True),
        ("/data/in", "file:/data/in/x", None, True),
        ("/data/in", "file:///data/in/year=2026/a%20b/%25%C3%BC.json", None, True),
        ("/", "file:///etc/x", None, True),
        ("/data/a b%41", "file:///data/a%20b%2541/x", None, True),
        ("file:///data/../data//in/", "file:///data/in/x", None, True),
        ("/data/in", "hdfs://nn:8020/data/in/x", "hdfs://nn:8020", True),
        ("hdfs:///data/in", "hdfs://nn:8020/data/in/x", "hdfs://nn:8020/", True),
        ("hdfs://other/data/in", "hdfs://other/data/in/x", "hdfs://nn", True),
        ("file:///data/in", "file:///data/in/x", "hdfs://nn", True),
        ("s3a://bucket/in", "s3a://bucket/in/d/x.json", None, True),
        ("s3a://bucket", "s3a://bucket/x.json", None, True),
        ("abfs://container@account.net/in", "abfs://container@account.net/in/x", None, True),
        ("/data/*.txt", "file:///data/x.txt", None, True),
        ("/data/*.txt", "file:///data/folder.txt/x", None, True),
        ("/data/20??/[0-9]/[^a]*/{a,b{c,d}/e}.txt", "file:///data/2026/7/b1/bd/e.txt", None, True),
        ("/data/\\*/x", "file:///data/*/x", None, True),
        ("/data/in", "file:///data/in/x", "hdfs://nn", False),
        ("hdfs:///data/in", "hdfs://evil/data/in/x", "hdfs://nn", False),
        ("s3a://bucket/in", "s3a://other/in/x", None, False),
        ("s3a://bucket/in", "s3a://bucket/in-private/x", None, False),
        ("/data/*.txt", "file:///data/x.csv", None, False),
        ("/data/*.txt", "file:///data/a/x.txt", None, False),
        ("/data/*.txt", "file:///etc/passwd", None, False),
        ("/data/[^a]/x", "file:///data/a/x", None, False),
        ("/data/{a,b}/x", "file:///data/c/x", None, False),
        ("/data/\\*/x", "file:///data/y/x", None, False),
        ("/data/a+(b)", "file:///data/aab/x", None, False),
    ],
)
def test_the_files_of_a_source_are_those_that_spark_lists(
    address: str, uri: str, default: str | None, lists: bool
) -> None:
    assert FilePattern(address, default or "file:///").matches(uri) == lists
