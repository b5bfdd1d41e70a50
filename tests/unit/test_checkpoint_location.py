"""The Spark checkpoint location: what is captured of it, and made of that again."""

from __future__ import annotations

import gc
import json
import stat
from pathlib import Path

import msgspec
import pytest

from stateflow.checkpoint.log.documents import SourceFile, SparkPosition
from stateflow.errors import BatchFailed, CorruptFile, DataError, InternalError, MissingFile, StateflowError
from stateflow.runtime.spark.checkpoint_location import (
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

QUERY = "0d4c1b2a-0000-4000-8000-000000000000"
OFFSETS = b'v1\n{"batchWatermarkMs":0}\n{"logOffset":7}\n'
LARGE = b"v1\n" + b'{"path":"file:///data/part.parquet"}\n' * 1000
FOLDER = data_folder(4, 2, "driver")


@pytest.mark.parametrize(
    ("names", "needed"),
    [
        ([], []),
        (["0"], ["0"]),
        (["10", "9", "2"], ["2", "9", "10"]),
        (["9.compact", "9", "8", "10", "11"], ["9.compact", "10", "11"]),
        (["9.compact", "19.compact", "18", "20"], ["19.compact", "20"]),
        (["9.compact"], ["9.compact"]),
        (["state.json", "0", "initial"], ["0", "initial", "state.json"]),
    ],
)
def test_of_a_source_s_log_the_newest_compaction_and_what_came_after(names: list[str], needed: list[str]) -> None:
    assert needed_entries(names) == needed
    assert needed_entries(names[::-1]) == needed


def _written_by_spark(folder: Path) -> None:
    """A location as Spark leaves it in the middle of batch 7."""
    files = {
        "metadata": b'{"id":"x"}',
        "offsets/5": b"old",
        "offsets/6": b"before",
        "offsets/7": OFFSETS,
        "commits/6": b"c",
        "sources/0/5": b"five",
        "sources/0/6.compact": LARGE,
        "sources/0/7": b"seven",
        "sources/0/.7.crc": b"crc",
        "sources/0/8.tmp": b"half",
        "sources/1/0": b"first offset",
    }
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def _plan_batch(folder: Path, batch: int, paths: int) -> None:
    """What Spark writes before it runs a batch: every tenth entry of the source's log has all paths so far."""
    compacted = batch % 10 == 9
    name = f"sources/0/{batch}.compact" if compacted else f"sources/0/{batch}"
    lines = range(batch * paths if not compacted else 0, (batch + 1) * paths)
    content = "v1\n" + "".join(f'{{"path":"file:///data/part-{n:08d}.parquet"}}\n' for n in lines)
    offsets = b"\n".join([*OFFSETS.splitlines()[:2], b'{"logOffset":%d}' % batch])
    for path, data in ((f"offsets/{batch}", offsets), (name, content.encode())):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)


def test_a_long_run_remembers_only_what_the_newest_batch_needs(tmp_path: Path) -> None:
    storage = PosixStorage(tmp_path / "root")
    location = SparkLocation(tmp_path / "spark", storage)
    for batch in range(200):
        _plan_batch(tmp_path / "spark", batch, paths=100)
        position = location.capture(batch, data_folder(4, batch + 1, "driver"))
        assert len(position.source_files) <= 10
    remembered = sum(type(each) is SourceFile for each in gc.get_objects())
    assert len(position.source_files) <= remembered <= 20


def test_what_is_captured_seeds_a_location_that_captures_the_same(tmp_path: Path) -> None:
    storage = MemoryStorage()
    _written_by_spark(tmp_path / "first")
    position = SparkLocation(tmp_path / "first", storage).capture(7, FOLDER)
    assert (position.batch_id, position.offsets, position.previous_offsets) == (7, OFFSETS, b"before")
    assert [f.path for f in position.source_files] == ["0/6.compact", "0/7", "1/0"]

    again = SparkLocation(tmp_path / "deep" / "second", storage)
    again.create(position, QUERY)
    found = {str(p.relative_to(again.folder)): p.read_bytes() for p in again.folder.rglob("*") if p.is_file()}
    metadata = found.pop("metadata")
    assert json.loads(metadata) == {"id": QUERY}
    assert found == {
        "offsets/6": b"before",
        "offsets/7": OFFSETS,
        "commits/7": position.commit,
        "sources/0/6.compact": LARGE,
        "sources/0/7": b"seven",
        "sources/1/0": b"first offset",
    }
    assert stat.S_IMODE(again.folder.stat().st_mode) == 0o700

    stored = storage.list("")
    assert again.capture(7, data_folder(9, 1, "driver")) == position
    assert storage.list("") == stored, "what is stored already is not stored again"


def test_a_large_log_is_a_file_and_a_small_one_is_in_the_manifest(tmp_path: Path) -> None:
    storage = MemoryStorage()
    _written_by_spark(tmp_path / "first")
    files = {f.path: f for f in SparkLocation(tmp_path / "first", storage).capture(7, FOLDER).source_files}
    assert files["0/7"] == SourceFile(path="0/7", content=b"seven")
    handle = files["0/6.compact"].handle
    assert handle is not None and files["0/6.compact"].content is None
    assert storage.get(handle.key) == LARGE
    parsed = parse_data(handle.key)
    assert parsed is not None and (parsed.generation, parsed.ordinal) == (4, 2), "so that garbage collection knows it"


def test_the_first_batch_has_nothing_before_it(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_bytes(b'v1\n{"batchWatermarkMs":0}\n-\n')
    position = SparkLocation(tmp_path, MemoryStorage()).capture(0, FOLDER)
    assert (position.batch_id, position.previous_offsets, position.source_files) == (0, None, [])
    again = SparkLocation(tmp_path / "again", MemoryStorage())
    again.create(position, QUERY)
    assert sorted(p.name for p in (again.folder / "offsets").iterdir()) == ["0"]


def test_a_job_without_a_checkpoint_starts_in_an_empty_folder(tmp_path: Path) -> None:
    location = SparkLocation(tmp_path / "new", MemoryStorage())
    location.create(None, QUERY)
    assert list(location.folder.iterdir()) == []


def test_a_batch_that_spark_has_not_planned_is_an_internal_error(tmp_path: Path) -> None:
    with raises(InternalError, batch=7):
        SparkLocation(tmp_path, MemoryStorage()).capture(7, FOLDER)


def _position(*files: SourceFile) -> SparkPosition:
    return SparkPosition(batch_id=0, offsets=OFFSETS, previous_offsets=None, commit=b"c", source_files=list(files))


@pytest.mark.parametrize(
    "path", ["", "x", "/etc/x", "../x", "0/../../x", "0/..", "0/./1", "0//1", "0/", "a/b/c/d/e", "0/x\0y", ".."]
)
def test_a_path_outside_the_location_is_refused(tmp_path: Path, path: str) -> None:
    location = SparkLocation(tmp_path / "root" / "location", MemoryStorage())
    with raises(CorruptFile, path=path):
        location.create(_position(SourceFile(path=path, content=b"x")), QUERY)
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()) == [
        "root/location/commits/0",
        "root/location/metadata",
        "root/location/offsets/0",
    ]


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
def test_a_stored_log_that_is_not_what_was_recorded_is_refused(
    tmp_path: Path, handle: FileHandle, error: type[StateflowError]
) -> None:
    storage = MemoryStorage()
    storage.put_new(HANDLE.key, b"abc")
    with raises(error) as refused:
        SparkLocation(tmp_path / "x", storage).create(_position(SourceFile(path="0/1", handle=handle)), QUERY)
    assert handle.key in refused.value.facts.values()


def test_each_source_has_its_own_line() -> None:
    offsets = b'v1\n{"batchWatermarkMs":0}\n{"logOffset":7}\n{"topic":{"0":3}}\n'
    position = msgspec.structs.replace(_position(), offsets=offsets)
    found = source_positions(position, [("files", "reads files"), ("topic", "reads a topic")])
    assert [(p.uid, p.description, p.offset) for p in found] == [
        ("files", "reads files", '{"logOffset":7}'),
        ("topic", "reads a topic", '{"topic":{"0":3}}'),
    ]


# --- Whose location it is


def test_a_paused_driver_leaves_a_newer_run_s_location_alone(tmp_path: Path) -> None:
    """It was stopped after its CLAIM, and goes on when another run on this host has claimed the job and works."""
    newer = driver_location(tmp_path, "job", 6)
    SparkLocation(newer, MemoryStorage()).create(None, QUERY)
    (newer / "offsets").mkdir()
    (newer / "offsets" / "0").write_bytes(OFFSETS)
    paused = driver_location(tmp_path, "job", 5)
    SparkLocation(paused, MemoryStorage()).create(None, QUERY)
    assert (newer / "offsets" / "0").read_bytes() == OFFSETS
    assert paused != newer
    # The next run removes both: each of them is fenced.
    driver_location(tmp_path, "job", 7)
    assert list((tmp_path / "spark" / "job").iterdir()) == []


# --- Gaps in a source's log


def _logs(offsets: list[str], names: list[str]) -> SparkPosition:
    text = "v1\n{}\n" + "".join(f"{line}\n" for line in offsets)
    files = [SourceFile(path=name, content=b"x") for name in names]
    return SparkPosition(batch_id=3, offsets=text.encode(), previous_offsets=None, commit=b"", source_files=files)


@pytest.mark.parametrize(
    ("offsets", "names", "missing"),
    [
        (["-"], [], []),
        (['{"logOffset":2}'], ["0/0", "0/1", "0/2"], []),
        (['{"logOffset":2}'], ["0/0", "0/1", "0/2", "0/3"], []),
        (['{"logOffset":11}'], ["0/9.compact", "0/10", "0/11"], []),
        (['{"logOffset":9}'], ["0/9.compact"], []),
        (['{"logOffset":2}'], ["0/0", "0/2"], ["0/1"]),
        (['{"logOffset":2}'], ["0/2"], ["0/0", "0/1"]),
        (['{"logOffset":2}'], [], ["0/0", "0/1", "0/2"]),
        (['{"logOffset":11}'], ["0/9.compact", "0/11"], ["0/10"]),
        (['{"logOffset":11}'], ["0/10", "0/11"], [f"0/{n}" for n in range(10)]),
        (["-", '{"logOffset":1}'], ["0/0", "1/1"], ["1/0"]),
        # Sources of other kinds have offsets of their own, and at most an entry with their first one.
        (['{"topic":{"0":7}}', "5", '{"logOffset":0,"x":1}'], ["0/0"], []),
    ],
)
def test_a_file_source_s_log_has_no_gap(offsets: list[str], names: list[str], missing: list[str]) -> None:
    assert missing_entries(_logs(offsets, names)) == missing


def test_an_incomplete_log_is_neither_committed_nor_begun_with(tmp_path: Path) -> None:
    _written_by_spark(tmp_path / "first")
    (tmp_path / "first/sources/0/7").unlink()
    with raises(BatchFailed, batch=7, missing=["0/7"]):
        SparkLocation(tmp_path / "first", MemoryStorage()).capture(7, FOLDER)
    stored = _logs(['{"logOffset":2}'], ["0/0", "0/2"])
    with raises(CorruptFile, batch=3, missing=["0/1"]):
        SparkLocation(tmp_path / "second", MemoryStorage()).create(stored, QUERY)
