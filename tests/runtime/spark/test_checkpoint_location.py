"""The Spark checkpoint location: what a checkpoint captures of it, and how a start creates it again."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import msgspec
import pytest

from stateflow.checkpoint.log.documents import SourceFile, SourcePosition, SparkPosition
from stateflow.errors import BatchFailed, CorruptFile, DataError, InternalError, MissingFile, StateflowError
from stateflow.runtime.spark.checkpoint_location import (
    FilePattern,
    QuerySource,
    SparkLocation,
    driver_location,
    missing_entries,
    needed_entries,
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
    "metadata": b'{"id":"x"}',
    "offsets/5": b"old",
    "offsets/6": BEFORE,
    "offsets/7": OFFSETS,
    "commits/6": b"c",
    "sources/0/5": b"five",
    "sources/0/6.compact": LARGE,
    "sources/0/7": SEVEN,
    "sources/0/.7.crc": b"crc",
    "sources/0/8.tmp": b"half",
    "sources/1/0": b"first offset",
}
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
        ("", ""),
        ("0", "0"),
        ("10 9 2", "2 9 10"),
        ("9.compact 9 8 10 11", "9.compact 10 11"),
        ("9.compact 19.compact 18 20", "19.compact 20"),
        ("9.compact", "9.compact"),
        ("state.json 0 initial", "0 initial state.json"),
    ],
)
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


def test_a_batch_that_spark_has_not_planned_is_an_internal_error(tmp_path: Path) -> None:
    with raises(InternalError, batch=7):
        SparkLocation(tmp_path, MemoryStorage()).capture(7, FOLDER)


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


@pytest.mark.parametrize(
    ("offset", "file"),
    [
        (b'{"logOffset":4611686018427387904}', "0/1"),
        (b"[" * 100_000, "0/x.compact"),
        (b"\xff", "0/1"),
        (b'{"logOffset":0}', "0/\u00b2.compact"),
    ],
    ids=["a huge offset", "brackets", "no text", "a name without a number"],
)
def test_a_position_that_spark_does_not_write_is_a_corrupt_file(tmp_path: Path, offset: bytes, file: str) -> None:
    position = SparkPosition(
        batch_id=0,
        offsets=b"v1\n{}\n" + offset,
        previous_offsets=None,
        commit=b"",
        source_files=[SourceFile(path=file, content=b"")],
    )
    with raises(CorruptFile):
        SparkLocation(tmp_path / "location", MemoryStorage()).create(position, "q", FILES)


def test_a_fifo_in_the_location_is_an_error_at_once(tmp_path: Path) -> None:
    location = SparkLocation(tmp_path, MemoryStorage())
    (tmp_path / "offsets").mkdir()
    os.mkfifo(tmp_path / "offsets" / "0")
    with raises(CorruptFile, found="FIFO"):
        location.capture(0, "data/")
