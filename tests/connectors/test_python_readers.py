"""Python sources as Spark's processes call them, without Spark: offsets, splits, Arrow batches and errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

import msgspec
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import ArrayType, DataType, LongType, StringType, StructType, TimestampNTZType

from stateflow import BadRow, DeadLetters, PartitionedSource, Split
from stateflow.api.schema import RowSchema
from stateflow.api.source import LocalSource, Slice
from stateflow.checkpoint.barriers import error_in_text
from stateflow.config.settings import SourceSettings
from stateflow.connectors import python as python_source
from stateflow.connectors.partitioned import spark_reader
from stateflow.errors import BatchFailed, InputLost, StateflowError, StorageError


class Row(msgspec.Struct):
    number: int
    at: datetime | None
    tags: list[str | None]


RECORD = StructType().add("topic", StringType()).add("partition", LongType()).add("offset", LongType())
RECORD = RECORD.add("key", StringType()).add("value", StringType()).add("reason", StringType())
TAGS: DataType = ArrayType(StringType())
COLUMNS = StructType().add("number", LongType()).add("at", TimestampNTZType()).add("tags", TAGS)
COLUMNS = COLUMNS.add("_sf_split", StringType()).add("_sf_rejected", RECORD)


class Numbers(PartitionedSource):
    """Partitions of numbers; every fifth one cannot be decoded."""

    def __init__(self, **ends: int) -> None:
        super().__init__(schema=Row, on_error=DeadLetters(9), split_size=4)
        self.until = ends

    @property
    def description(self) -> str:
        return "Numbers"

    def ends(self) -> Mapping[str, int]:
        return self.until

    def read_split(self, split: Split) -> Iterator[object]:
        for number in range(split.start, split.end):
            yield BadRow(str(number), "fifth") if number % 5 == 4 else Row(number, None, [None, str(number)])


def _reader(source: PartitionedSource, limit: int | None = None) -> spark_reader._Reader:
    return spark_reader._Reader(source, SourceSettings(max_rows_per_batch=limit), COLUMNS)


def test_batches_of_a_query_have_each_row_once_with_its_partition_and_end_at_the_target() -> None:
    source = Numbers(a=9, b=3)
    reader = _reader(source, limit=5)
    reader.prepareForTriggerAvailableNow()
    source.until = {"a": 30, "b": 3, "c": 7}
    offset, batches, found = reader.initialOffset(), 0, []
    while (end := reader.latestOffset(offset, ReadAllAvailable())) != offset:
        for partition in reader.partitions(offset, end):
            for batch in reader.read(partition):
                assert batch.schema.names == COLUMNS.names
                found += batch.to_pylist()
        offset, batches = end, batches + 1
    assert reader.partitions(offset, offset) == []
    rows = [(row["_sf_split"], row["number"], row["tags"]) for row in found if row["_sf_rejected"] is None]
    wanted = [(name, n, [None, str(n)]) for name, last in (("a", 9), ("b", 3)) for n in range(last) if n % 5 != 4]
    assert sorted(rows) == sorted(wanted)
    (rejected,) = [row["_sf_rejected"] for row in found if row["_sf_rejected"] is not None]
    assert (rejected["topic"], rejected["offset"], rejected["value"]) == ("a", 4, "4")
    assert batches == 3


class Failing(LocalSource):
    schema = RowSchema.of(Row)

    def __init__(self, error: Exception) -> None:
        self.error = error

    @property
    def description(self) -> str:
        return "Failing"

    def read(self, position: str | None, limits: SourceSettings) -> Slice | None:
        raise self.error


def _forwarded(error: BaseException) -> StateflowError:
    found = error_in_text(f"Traceback of Spark: {error} and more")
    assert found is not None
    return found


@pytest.mark.parametrize("kind", [LookupError, StorageError])
def test_an_exception_of_a_source_that_the_driver_reads_has_its_class_and_line(kind: type[Exception]) -> None:
    reader = python_source._Reader(Failing(kind("no such page")), SourceSettings())
    with pytest.raises(RuntimeError) as caught:
        reader.read(reader.initialOffset())
    error = _forwarded(caught.value)
    if kind is StorageError:
        assert type(error) is StorageError
        return
    assert type(error) is BatchFailed and error.facts["reason"] == "LookupError: no such page"
    file, _, line = str(error.facts["where"]).rpartition(":")
    assert file == __file__ and "raise self.error" in Path(file).read_text().splitlines()[int(line) - 1]


class Shrinking(LocalSource):
    """Numbers in slices of two, of which only some are left; it then has no more rows, or stays where it is."""

    schema = RowSchema.of(Row)

    def __init__(self, left: int, *, stays: bool) -> None:
        self.left = left
        self.stays = stays

    @property
    def description(self) -> str:
        return "Shrinking"

    def read(self, position: str | None, limits: SourceSettings) -> Slice | None:
        start = int(position or "0")
        rows = [Row(number, None, []) for number in range(start, min(start + 2, self.left))]
        return Slice(rows, str(start + len(rows))) if rows or self.stays else None


@pytest.mark.parametrize("stays", [True, False])
def test_rows_that_a_source_does_not_return_again_are_an_error_that_the_driver_can_read(stays: bool) -> None:
    reader = python_source._Reader(Shrinking(6, stays=stays), SourceSettings())
    start, end = {"position": "2"}, {"position": "6"}
    assert len(list(reader.readBetweenOffsets(start, end))) == 2, "one value for each slice"
    reader = python_source._Reader(Shrinking(4, stays=stays), SourceSettings())
    with pytest.raises(RuntimeError) as caught:
        list(reader.readBetweenOffsets(start, end))
    error = _forwarded(caught.value)
    assert type(error) is InputLost and error.facts["source"] == "Shrinking"


def test_what_is_lost_ends_the_query_before_a_split_is_planned() -> None:
    reader = _reader(Numbers(a=9))
    with pytest.raises(RuntimeError) as caught:
        reader.latestOffset({"position": '{"a":2,"b":1}'}, ReadAllAvailable())
    error = _forwarded(caught.value)
    assert type(error) is InputLost and error.facts["source"] == "Numbers"
