"""Parquet files that tasks read by Arrow: which rows a task reads, and which files are left to Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stateflow import precision
from stateflow.api.input_files import CannotRead, CorruptContent, FileShare, unreadable_in
from stateflow.api.schema import RowSchema
from stateflow.connectors.files.parquet_files import ParquetFormat, can_read
from stateflow.errors import CorruptInput
from stateflow.runtime.spark.inputs import BatchFiles, shares_of, useful_partitions

PARQUET = ParquetFormat()
TIME = datetime(2026, 1, 1)  # noqa: DTZ001 - a column without time zone


class Row(msgspec.Struct):
    number: int
    text: str | None
    time: datetime


SCHEMA = RowSchema.of(Row)


class AnyType(msgspec.Struct):
    number: int
    share: float
    flag: bool
    text: str
    data: bytes
    day: Annotated[datetime, msgspec.Meta(tz=True)]
    price: Annotated[Decimal, precision(12, scale=2)]


class Nested(msgspec.Struct):
    items: list[int]


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


def test_columns_of_scalars_can_be_read() -> None:
    assert can_read(SCHEMA) and can_read(RowSchema.of(AnyType))
    assert not can_read(RowSchema.of(Nested))


def _by_nobody() -> Any:
    raise AssertionError


def test_few_bytes_are_read_in_one_partition(tmp_path: Path) -> None:
    pq.write_table(rows(0, 10), tmp_path / "small.parquet")
    (tmp_path / "large.parquet").write_bytes(bytes(9 << 20))

    def partitions(*names: str, cores: int) -> int:
        uris = [(tmp_path / f"{name}.parquet").as_uri() for name in names]
        return useful_partitions(BatchFiles(uris, PARQUET, _by_nobody), cores)

    assert partitions("small", "small", "small", cores=8) == 1
    assert partitions("large", cores=8) == 3
    assert partitions("large", cores=2) == 2
    assert partitions(cores=2) == 1


def test_a_share_reads_timestamps_in_utc(tmp_path: Path) -> None:
    class Zoned(msgspec.Struct):
        time: Annotated[datetime, msgspec.Meta(tz=True)]

    zone = pa.timestamp("ms", "Europe/Berlin")
    pq.write_table(pa.table({"time": pa.array([0], zone)}), tmp_path / "rows.parquet")
    (batch,) = PARQUET.read(whole(tmp_path / "rows.parquet"), RowSchema.of(Zoned))
    assert batch.column("time").to_pylist() == [datetime(1970, 1, 1, tzinfo=UTC)]


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


@pytest.mark.parametrize("position", ["", "line 17"])
def test_a_corrupt_file_is_found_in_the_text_of_an_error(position: str) -> None:
    path = "/in/a [1]%\n\u00e4.json"
    found = unreadable_in(f"Traceback …\n{CorruptContent(path, 'not an object', position)}\n\tat x.y(Z.java:1)")
    assert found is not None and found.is_corrupt and found.path == path
    assert found.reason == ("line 17: not an object" if position else "not an object")
    assert isinstance(found.error(), CorruptInput)
