"""Data files: their names, and how they are written."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stateflow.api.sink import Writing
from stateflow.connectors.delta.data_files import FileName, Limits, ParquetWriter
from stateflow.errors import ConfigError, SchemaMismatch, StorageError
from tests.support.delta_tables import JOB, Every, batch, context, pairs
from tests.support.errors import raises

_WRITING = Writing(7, 3, 1, "a1b2")

uids = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}", fullmatch=True)
numbers = st.integers(0, 10**9)
attempts = st.from_regex(r"[A-Za-z0-9]{1,32}", fullmatch=True)


def _writer(folder: Path, limits: Limits | None = None) -> ParquetWriter:
    about = context()
    return ParquetWriter(folder, FileName.first(about, _WRITING), about.schema, limits)


@given(uids, numbers, numbers, st.integers(0, 10**4), attempts, st.integers(0, 12))
@example("x-g1-o2-s3-a-0", 7, 3, 1, "a1b2", 0)
def test_a_name_contains_who_wrote_the_file(
    uid: str, generation: int, ordinal: int, subtask: int, attempt: str, part: int
) -> None:
    first = FileName.first(context(uid=uid), Writing(generation, ordinal, subtask, attempt))
    name = dataclasses.replace(first, part=part)
    assert FileName.parse(str(name)) == name


@pytest.mark.parametrize(
    "name",
    [
        "part-00000-6d7fa2ac.c000.snappy.parquet",
        "_delta_log",
        "stateflow-x.parquet",
        f"stateflow-{JOB}-out-g1-o1-s0-a-0.zstd.parquet.crc",
        f".stateflow-{JOB}-out-g1-o1-s0-a-0.zstd.parquet",
        f"../stateflow-{JOB}-out-g1-o1-s0-a-0.zstd.parquet",
    ],
)
def test_a_name_of_another_writer_is_not_parsed(name: str) -> None:
    assert FileName.parse(name) is None


@pytest.mark.parametrize(
    ("job", "uid", "attempt"),
    [("j" * 64, "u" * 100, "a" * 64), (JOB, "a b", "a"), (JOB, "_a", "a"), (JOB, "a", "x-y"), ("../x", "a", "a")],
)
def test_an_attempt_without_a_valid_name_is_refused(job: str, uid: str, attempt: str) -> None:
    with raises(ConfigError, limit=255):
        FileName.first(context(uid=uid, job=job), Writing(10**6, 10**6, 100, attempt))


def _write(writer: ParquetWriter, first: int = 0, count: int = 1) -> None:
    writer.write(batch(context(), pairs(first, count)))


def _ids(file: Path) -> list[int]:
    found: list[int] = pq.read_table(file).column("id").to_pylist()
    return found


def test_batches_become_one_nullable_row_group_that_is_visible_when_it_is_complete(tmp_path: Path) -> None:
    writer = _writer(tmp_path)
    _write(writer, count=0)
    assert _writer(tmp_path).close() == writer.close() == []
    writer = _writer(tmp_path)
    for first in range(0, 100, 10):
        _write(writer, first, 10)
    assert os.listdir(tmp_path) == []
    [file] = writer.close()
    assert os.listdir(tmp_path) == [file.path]
    assert (file.rows, file.size) == (100, (tmp_path / file.path).stat().st_size)
    assert _ids(tmp_path / file.path) == list(range(100))
    assert pq.read_metadata(tmp_path / file.path).num_row_groups == 1
    assert all(field.nullable for field in pq.read_schema(tmp_path / file.path))


def test_a_large_attempt_writes_several_files(tmp_path: Path) -> None:
    writer = _writer(tmp_path, Limits(row_group_bytes=1, file_bytes=1))
    for first in range(3):
        _write(writer, first)
    files = writer.close()
    names = [FileName.parse(f.path) for f in files]
    assert [name.part for name in names if name] == [0, 1, 2]
    assert [_ids(tmp_path / f.path) for f in files] == [[0], [1], [2]]


def test_an_abandoned_attempt_leaves_nothing(tmp_path: Path) -> None:
    writer = _writer(tmp_path, Limits(row_group_bytes=1))
    _write(writer, count=10)
    del writer
    gc.collect()
    assert os.listdir(tmp_path) == []
    assert [path for path in _open_files() if path.startswith(str(tmp_path))] == []


def _open_files() -> list[str]:
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return found


def test_rows_of_another_schema_a_used_name_and_a_missing_folder_are_errors(tmp_path: Path) -> None:
    with raises(SchemaMismatch, uid="out"):
        _writer(tmp_path).write(pa.RecordBatch.from_pylist([{"id": 1.5, "text": "x"}]))
    first, second, third = _writer(tmp_path), _writer(tmp_path), _writer(tmp_path / "gone")
    for writer in (first, second, third):
        _write(writer)
    [file] = first.close()
    before = (tmp_path / file.path).read_bytes()
    with raises(StorageError, name=file.path):
        second.close()
    assert (tmp_path / file.path).read_bytes() == before
    with raises(StorageError, path=str(tmp_path / "gone")):
        third.close()


def test_every_type_is_written(tmp_path: Path) -> None:
    about = context(Every)
    writer = ParquetWriter(tmp_path, FileName.first(about, _WRITING), about.schema)
    writer.write(batch(about, [Every(id=1), Every(id=2, flag=True, raw=b"\x00")]))
    [file] = writer.close()
    assert pq.read_schema(tmp_path / file.path).types == about.schema.arrow.types
