"""Data files: their names, how they are written, and their statistics."""

from __future__ import annotations

import dataclasses
import gc
import json
import math
import os
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stateflow.api.sink import SinkContext, Writing
from stateflow.connectors.data_files import FileName, Limits, ParquetWriter
from stateflow.connectors.delta_types import stored_type, target_schema
from stateflow.connectors.partitions import StoredRows
from stateflow.connectors.store_assignment import nullable_schema
from stateflow.errors import ConfigError, SchemaMismatch, StorageError
from tests.support.delta_tables import JOB, Every, batch, context, pairs
from tests.support.errors import raises

_WRITING = Writing(7, 3, 1, "a1b2")
_PAIR, _EVERY = context(), context(Every)
_naive = datetime.fromisoformat

uids = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}", fullmatch=True)
numbers = st.integers(0, 10**9)
attempts = st.from_regex(r"[A-Za-z0-9]{1,32}", fullmatch=True)


def _writer(folder: Path, limits: Limits | None = None, about: SinkContext = _PAIR) -> ParquetWriter:
    rows = StoredRows(about.schema, target_schema(about.schema), about.uid)
    return ParquetWriter(folder, FileName.first(about, _WRITING), nullable_schema(rows.target), limits, of=rows.of)


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
        "part-00000-6d7fa2ac.c000.snappy.parquet", "_delta_log", "stateflow-x.parquet",
        f"stateflow-{JOB}-out-g1-o1-s0-a-0.zstd.parquet.crc", f".stateflow-{JOB}-out-g1-o1-s0-a-0.zstd.parquet",
        f"../stateflow-{JOB}-out-g1-o1-s0-a-0.zstd.parquet",
    ],
)  # fmt: skip
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


def test_batches_become_one_nullable_row_group_that_is_visible_when_complete(tmp_path: Path) -> None:
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


def test_every_type_is_written_and_doubles_have_no_bounds_in_parquet(tmp_path: Path) -> None:
    """Spark would skip row groups by them, although they ignore NaN."""
    writer = _writer(tmp_path, about=_EVERY)
    writer.write(batch(_EVERY, [Every(id=1), Every(id=2, amount=1.0, flag=True, raw=b"\x00")]))
    [file] = writer.close()
    assert pq.read_schema(tmp_path / file.path).types == [stored_type(kind) for kind in _EVERY.schema.arrow.types]
    row_group = pq.read_metadata(tmp_path / file.path).row_group(0)
    assert [row_group.column(i).statistics is None for i in (0, 1, 2)] == [False, True, False]


# -- statistics -----------------------------------------------------------------------------------------------------


def _read(writer: ParquetWriter) -> dict[str, Any]:
    [file] = writer.close()
    found: dict[str, Any] = json.loads(file.stats)
    assert found["numRecords"] == file.rows
    return found


def _bounds(folder: Path, column: str, values: list[Any], limits: Limits | None = None) -> tuple[Any, Any, Any]:
    writer = _writer(folder, limits, _EVERY)
    for value in values:
        writer.write(batch(_EVERY, [Every(id=0, **{column: value})]))
    stats = _read(writer)
    return stats["minValues"].get(column), stats["maxValues"].get(column), stats["nullCount"].get(column)


@pytest.mark.parametrize("limits", [None, Limits(row_group_bytes=1)], ids=["one row group", "a row group per row"])
@pytest.mark.parametrize(
    ("column", "values", "expected"),
    [
        ("amount", [1.5, None, -2.25], (-2.25, 1.5, 1)), ("amount", [None, None], (None, None, 2)),
        ("amount", [math.nan], (None, None, 0)), ("amount", [1.0, math.nan, 2.0], (1.0, None, 0)),
        ("amount", [math.inf, 1.0], (1.0, None, 0)), ("amount", [-math.inf, 1.0], (None, 1.0, 0)),
        ("amount", [1e300, 5e-324], (5e-324, 1e300, 0)), ("text", ["b", "a", None, ""], ("", "b", 1)),
        ("text", ["é", "z", "\U0001f600"], ("z", "\U0001f600", 0)), ("text", ["a\0b", '"\\'], ('"\\', "a\0b", 0)),
        ("text", ["x" * 33], ("x" * 32, "x" * 32 + "\x7f", 0)),
        ("text", ["é" * 33], ("é" * 32, "é" * 32 + "\U0010ffff", 0)), ("text", ["x" * 5000, "a"], (None, None, 0)),
        ("flag", [True, None], (None, None, 1)), ("raw", [b"\xff", b""], (None, None, 0)),
        ("day", [date(2024, 2, 29), date(1, 1, 1)], ("0001-01-01", "2024-02-29", 0)),
        ("local", [_naive("2013-01-01T05:00:00.000001")], ("2013-01-01T05:00:00.000", "2013-01-01T05:00:00.001", 0)),
        ("local", [_naive("1969-12-31T23:59:59.999999")], ("1969-12-31T23:59:59.999", "1970-01-01T00:00:00.000", 0)),
        (
            "instant",
            [datetime(2013, 1, 1, 5, 0, 0, 7000, tzinfo=UTC)],
            ("2013-01-01T05:00:00.007Z", "2013-01-01T05:00:00.007Z", 0),
        ),
        ("instant", [datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)], ("9999-12-31T23:59:59.999Z", None, 0)),
    ],
)  # fmt: skip
def test_the_bounds_and_nulls_of_a_column(
    tmp_path: Path, column: str, values: list[Any], expected: tuple[Any, ...], limits: Limits | None
) -> None:
    assert _bounds(tmp_path, column, values, limits) == expected


def test_a_zero_is_bounded_in_either_order_of_the_two_zeros(tmp_path: Path) -> None:
    low, high, _ = _bounds(tmp_path, "amount", [0.0, -0.0])
    assert (math.copysign(1, low), math.copysign(1, high)) == (-1, 1)


@pytest.mark.parametrize(
    ("column", "far"),
    [
        (5, pa.array([0, 2**30], pa.int32()).cast(pa.date32())),
        (6, pa.array([0, 2**62], pa.timestamp("us"))),
        (7, pa.array([-(2**62), 0], pa.timestamp("us", "UTC"))),
    ],
)
def test_times_outside_the_calendar_are_refused(tmp_path: Path, column: int, far: pa.Array) -> None:
    arrays = [pa.nulls(2, t) for t in _EVERY.schema.arrow.types]
    arrays[0], arrays[column] = pa.array([1, 2]), far
    with pytest.raises(SchemaMismatch) as caught:
        _writer(tmp_path, about=_EVERY).write(pa.RecordBatch.from_arrays(arrays, schema=_EVERY.schema.arrow))
    assert caught.value.facts["column"] == _EVERY.schema.names[column]


def test_the_columns_that_delta_reads_statistics_of_have_them(tmp_path: Path) -> None:
    wide = msgspec.defstruct("Wide", [(f"c{i}", int) for i in range(40)])
    about = SinkContext("job", "out", context(wide).schema)
    writer = _writer(tmp_path, about=about)
    writer.write(batch(about, [wide(*range(40))]))
    assert list(_read(writer)["maxValues"]) == [f"c{i}" for i in range(32)]
