"""Parquet files that tasks read by Arrow: which rows a task reads, and which files are left to Spark."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stateflow.api.input_files import CannotRead, CorruptContent, FileShare
from stateflow.api.schema import RowSchema
from stateflow.connectors.files.parquet_files import ParquetFormat
from stateflow.runtime.spark.inputs import shares_of

PARQUET = ParquetFormat()
TIME = datetime(2026, 1, 1)  # noqa: DTZ001 - a column without time zone


class Row(msgspec.Struct):
    number: int
    text: str | None
    time: datetime


SCHEMA = RowSchema.of(Row)


def rows(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table(
        {
            "number": pa.array(numbers, pa.int64()),
            "text": pa.array([None if n % 7 == 0 else f"text {n}" for n in numbers]),
            "time": pa.array([TIME] * count, pa.timestamp("us")),
        }
    )


def whole(path: Path) -> FileShare:
    size = path.stat().st_size
    return FileShare(str(path), 0, max(1, size), size)


def numbers_of(path: Path, schema: RowSchema = SCHEMA) -> list[int]:
    return [n for batch in PARQUET.read(whole(path), schema) for n in batch.column("number").to_pylist()]


@given(sizes=st.lists(st.integers(0, 10**7), max_size=8), partitions=st.integers(1, 9))
def test_shares_cover_each_byte_once_in_order(sizes: list[int], partitions: int) -> None:
    shares = shares_of([(str(at), size) for at, size in enumerate(sizes)], partitions)
    assert len(shares) == partitions
    flat = [share for of_partition in shares for share in of_partition]
    position = {str(at): 0 for at in range(len(sizes))}
    assert [share.path for share in flat] == sorted((share.path for share in flat), key=int)
    for share in flat:
        assert share.begin == position[share.path] < share.end
        position[share.path] = share.end
    assert list(position.values()) == [max(1, size) for size in sizes]
    loads = [sum(share.end - share.begin for share in of_partition) for of_partition in shares]
    assert max(loads) - min(loads) <= 1


@pytest.mark.parametrize("partitions", [1, 2, 3, 7])
def test_tasks_together_read_each_row_once_in_the_order_of_the_files(tmp_path: Path, partitions: int) -> None:
    paths = [tmp_path / f"{at}.parquet" for at in range(4)]
    for at, path in enumerate(paths):
        pq.write_table(rows(at * 100, 100), path, row_group_size=[100, 9, 1, 50][at])
    shares = shares_of([(str(path), path.stat().st_size) for path in paths], partitions)
    found = [[batch for share in each for batch in PARQUET.read(share, SCHEMA)] for each in shares]
    read = pa.Table.from_batches([batch for batches in found for batch in batches])
    assert read.equals(pa.concat_tables([rows(at * 100, 100) for at in range(4)]).cast(SCHEMA.arrow))


@pytest.mark.parametrize(
    ("column", "kind"),
    [("number", pa.int32()), ("number", pa.int8()), ("time", pa.timestamp("ms")), ("text", pa.string())],
)
def test_types_whose_values_all_fit_are_read(tmp_path: Path, column: str, kind: pa.DataType) -> None:
    given_rows = rows(0, 100)
    at = given_rows.schema.get_field_index(column)
    pq.write_table(given_rows.set_column(at, column, given_rows[column].cast(kind)), tmp_path / "rows.parquet")
    (batch,) = PARQUET.read(whole(tmp_path / "rows.parquet"), SCHEMA)
    assert pa.Table.from_batches([batch]).equals(given_rows.cast(SCHEMA.arrow))


def renamed(table: pa.Table) -> pa.Table:
    return table.rename_columns(["Number", "text", "time"])


def doubled(table: pa.Table) -> pa.Table:
    return table.append_column("NUMBER", table["number"])


def as_type(column: str, kind: pa.DataType) -> Any:
    return lambda table: table.set_column(
        table.schema.get_field_index(column), column, table[column].cast(kind, safe=False)
    )


def by_old_spark(table: pa.Table) -> pa.Table:
    return table.replace_schema_metadata({"org.apache.spark.version": "2.4.8"})


def with_old_dates(table: pa.Table) -> pa.Table:
    return table.replace_schema_metadata({"org.apache.spark.version": "3.5.0", "org.apache.spark.legacyDateTime": ""})


@pytest.mark.parametrize(
    "change",
    [
        renamed,
        doubled,
        lambda table: table.drop_columns(["text"]),
        as_type("number", pa.float64()),
        as_type("text", pa.binary()),
        as_type("time", pa.timestamp("ns")),
        as_type("time", pa.timestamp("us", "UTC")),
        lambda table: table.set_column(1, "text", table["text"].dictionary_encode()),
        by_old_spark,
        with_old_dates,
    ],
)
def test_files_with_other_columns_are_left_to_spark(tmp_path: Path, change: Any) -> None:
    pq.write_table(change(rows(0, 100)), tmp_path / "rows.parquet")
    with pytest.raises(CannotRead, match=r"rows\.parquet"):
        numbers_of(tmp_path / "rows.parquet")


@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "garbled"])
def test_damaged_files_are_left_to_spark(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "rows.parquet"
    if damage != "missing":
        pq.write_table(rows(0, 5000), path, compression="zstd")
        data = path.read_bytes()
        garbled = data[:4] + bytes(200) + data[204:]
        path.write_bytes({"empty": b"", "truncated": data[:-10], "garbled": garbled}[damage])
    size = path.stat().st_size if path.exists() else 1000
    (share,) = shares_of([(str(path), size)], 1)[0]
    with pytest.raises(CannotRead):
        list(PARQUET.read(share, SCHEMA))


@pytest.mark.parametrize("count", [50, 150])
def test_a_file_that_was_written_again_is_left_to_spark(tmp_path: Path, count: int) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(rows(0, 100), path, row_group_size=20)
    shares = shares_of([(str(path), path.stat().st_size)], 2)
    assert sum(len(batch) for each in shares for share in each for batch in PARQUET.read(share, SCHEMA)) == 100
    pq.write_table(rows(0, count), path, row_group_size=20)
    for (share,) in shares:
        with pytest.raises(CannotRead, match="had"):
            list(PARQUET.read(share, SCHEMA))


def test_wide_rows_are_read_in_small_batches(tmp_path: Path) -> None:
    table = rows(0, 64).set_column(1, "text", pa.array([f"{n}" * (1 << 19) for n in range(10, 74)]))
    pq.write_table(table, tmp_path / "rows.parquet", use_dictionary=False)
    sizes = [batch.nbytes for batch in PARQUET.read(whole(tmp_path / "rows.parquet"), SCHEMA)]
    assert sum(sizes) > 1 << 26
    assert max(sizes) <= 1 << 25


@given(sizes=st.lists(st.integers(0, 10**7), max_size=8), partitions=st.integers(1, 9))
@example(sizes=[0, 1], partitions=2)
def test_a_file_that_cannot_be_divided_is_in_one_partition(sizes: list[int], partitions: int) -> None:
    shares = shares_of([(str(at), size) for at, size in enumerate(sizes)], partitions, splits=False)
    assert len(shares) == partitions
    flat = [(share.path, share.begin, share.end) for of_partition in shares for share in of_partition]
    assert flat == [(str(at), 0, max(1, size)) for at, size in enumerate(sizes)]


def test_a_page_with_a_wrong_checksum_and_text_that_is_not_utf_8_are_corrupt(tmp_path: Path) -> None:
    """Neither Arrow nor Spark would notice."""

    class Text(msgspec.Struct):
        text: str

    path = tmp_path / "rows.parquet"
    schema = RowSchema.of(Text)
    options: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    pq.write_table(pa.table({"text": ["right", "other"]}), path, write_page_checksum=True, **options)
    assert [len(batch) for batch in PARQUET.read(whole(path), schema)] == [2]
    path.write_bytes(path.read_bytes().replace(b"right", b"wrong"))
    wrong = pa.array([b"caf\xe9"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": wrong}), tmp_path / "bytes.parquet", **options)
    for damaged in (path, tmp_path / "bytes.parquet"):
        with pytest.raises(CorruptContent) as caught:
            list(PARQUET.read(whole(damaged), schema))
        assert caught.value.path == str(damaged)
