"""Data files before they are published: names, durability, rolling."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import stat
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
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


@given(uids, numbers, numbers, st.integers(0, 10**4), attempts)
def test_a_name_says_who_wrote_the_file(uid: str, generation: int, ordinal: int, subtask: int, attempt: str) -> None:
    name = FileName.first(context(uid=uid), Writing(generation, ordinal, subtask, attempt))
    later = dataclasses.replace(name, part=12)
    assert FileName.parse(str(name)) == name
    assert FileName.parse(str(later)) == later


def test_a_uid_that_looks_like_the_rest_of_a_name_is_told_apart() -> None:
    name = FileName.first(context(uid="x-g1-o2-s3-a-0"), _WRITING)
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
def test_other_files_are_not_taken_for_ours(name: str) -> None:
    assert FileName.parse(name) is None


@pytest.mark.parametrize(
    ("job", "uid", "attempt"),
    [("j" * 64, "u" * 100, "a" * 64), (JOB, "a b", "a"), (JOB, "_a", "a"), (JOB, "a", "x-y"), ("../x", "a", "a")],
)
def test_what_does_not_fit_into_a_name_is_refused(job: str, uid: str, attempt: str) -> None:
    with raises(ConfigError, limit=255):
        FileName.first(context(uid=uid, job=job), Writing(10**6, 10**6, 100, attempt))


def test_no_rows_make_no_file(tmp_path: Path) -> None:
    writer = _writer(tmp_path)
    writer.write(batch(context(), []))
    assert writer.close() == []
    assert os.listdir(tmp_path) == []


def test_many_batches_make_one_file_with_one_row_group(tmp_path: Path) -> None:
    writer = _writer(tmp_path)
    for first in range(0, 100, 10):
        writer.write(batch(context(), pairs(first, 10)))
    assert os.listdir(tmp_path) == [], "visible before it is complete"
    [file] = writer.close()
    assert os.listdir(tmp_path) == [file.path]
    assert (file.rows, file.size) == (100, (tmp_path / file.path).stat().st_size)
    assert pq.read_table(tmp_path / file.path).column("id").to_pylist() == list(range(100))
    assert pq.read_metadata(tmp_path / file.path).num_row_groups == 1


def test_a_large_attempt_rolls_to_further_files(tmp_path: Path) -> None:
    writer = _writer(tmp_path, Limits(row_group_bytes=1, file_bytes=1))
    for first in range(3):
        writer.write(batch(context(), pairs(first, 1)))
    files = writer.close()
    assert [FileName.parse(f.path).part for f in files] == [0, 1, 2]  # type: ignore[union-attr]
    assert [pq.read_table(tmp_path / f.path).column("id").to_pylist() for f in files] == [[0], [1], [2]]


def test_an_attempt_that_is_dropped_leaves_nothing(tmp_path: Path) -> None:
    writer = _writer(tmp_path, Limits(row_group_bytes=1))
    writer.write(batch(context(), pairs(0, 10)))
    del writer
    gc.collect()
    assert os.listdir(tmp_path) == []
    # Of this test: what others let go of meanwhile is not counted.
    assert [path for path in _open_files() if path.startswith(str(tmp_path))] == []


def _open_files() -> list[str]:
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return found


def test_columns_are_optional_in_the_file_whatever_the_row_class_says(tmp_path: Path) -> None:
    writer = _writer(tmp_path)
    writer.write(batch(context(), pairs(0, 1)))
    [file] = writer.close()
    assert all(field.nullable for field in pq.read_schema(tmp_path / file.path))


def test_rows_of_another_schema_are_refused(tmp_path: Path) -> None:
    with raises(SchemaMismatch, uid="out"):
        _writer(tmp_path).write(pa.RecordBatch.from_pylist([{"id": 1.5, "text": "x"}]))


def test_a_name_is_used_once(tmp_path: Path) -> None:
    first, second = _writer(tmp_path), _writer(tmp_path)
    for writer in (first, second):
        writer.write(batch(context(), pairs(0, 1)))
    [file] = first.close()
    before = (tmp_path / file.path).read_bytes()
    with raises(StorageError, name=file.path):
        second.close()
    assert (tmp_path / file.path).read_bytes() == before


def test_a_folder_that_is_gone_is_a_storage_error(tmp_path: Path) -> None:
    writer = _writer(tmp_path / "gone")
    writer.write(batch(context(), pairs(0, 1)))
    with raises(StorageError, path=str(tmp_path / "gone")):
        writer.close()


def test_the_umask_decides_who_may_read(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        writer = _writer(tmp_path)
        writer.write(batch(context(), pairs(0, 1)))
        [file] = writer.close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / file.path).stat().st_mode) == 0o640


def test_every_type_is_written(tmp_path: Path) -> None:
    about = context(Every)
    writer = ParquetWriter(tmp_path, FileName.first(about, _WRITING), about.schema)
    writer.write(batch(about, [Every(id=1), Every(id=2, flag=True, raw=b"\x00")]))
    [file] = writer.close()
    assert pq.read_schema(tmp_path / file.path).types == about.schema.arrow.types
