"""Streams of Spark that Python reads, by both kinds of its stream readers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from stateflow.config.spark_versions import running_version
from stateflow.connectors import stream_reader
from stateflow.connectors.stream_reader import Position, StreamInput, load_stream, new_reader

# Python processes of Spark cannot import modules of tests.
_pickle_by_value: Callable[[ModuleType], None] = cloudpickle.register_pickle_by_value
_pickle_by_value(sys.modules[__name__])

pytestmark = [pytest.mark.matrix, pytest.mark.spark]


@dataclass
class Lines(StreamInput):
    """The lines of a file, at most two in a batch; each has the number of the task that reads it."""

    file: Path
    begins_at_end: bool = False
    until: int | None = None

    @property
    def description(self) -> str:
        return "Lines"

    def _size(self) -> int:
        return len(self.file.read_text().splitlines())

    def first_position(self) -> Position:
        return {"line": self._size() if self.begins_at_end else 0}

    def end_with_present_input(self) -> None:
        self.until = self._size()

    def next_position(self, start: Position) -> Position:
        at = int(str(start["line"]))
        return {"line": min(at + 2, self._size() if self.until is None else self.until)}

    def partitions(self, start: Position, end: Position) -> list[InputPartition]:
        return [InputPartition(number) for number in range(int(str(start["line"])), int(str(end["line"])))]

    def read(self, partition: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"line": [self.file.read_text().splitlines()[partition.value]]})


@pytest.fixture
def lines(tmp_path: Path) -> Lines:
    (tmp_path / "lines.txt").write_text("")
    return Lines(tmp_path / "lines.txt")


def _add(lines: Lines, *texts: str) -> None:
    with lines.file.open("a") as file:
        file.writelines(f"{text}\n" for text in texts)


def _query(spark: Any, lines: Lines) -> list[list[str]]:
    """Runs a query with the AvailableNow trigger and a location of its own; returns the rows of its batches."""
    batches: list[list[str]] = []
    query = (
        load_stream(spark, f"lines_of_{abs(hash(lines.file))}", "line string", lines)
        .writeStream.foreachBatch(lambda rows, _: batches.append(sorted(row.line for row in rows.collect())))
        .option("checkpointLocation", str(lines.file.parent / "location"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    return [rows for rows in batches if rows]


@pytest.fixture
def _one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers as Spark 4.0 and 4.1 have them, which later versions accept, too."""
    monkeypatch.setattr(stream_reader, "ends_by_itself", lambda: False)


@pytest.mark.usefixtures("_one_batch")
def test_queries_of_one_batch_read_each_row_once_and_continue_from_their_positions(
    spark_session: Any, lines: Lines
) -> None:
    assert _query(spark_session, lines) == []
    _add(lines, *"abc")
    assert _query(spark_session, lines) == [["a", "b"]]
    _add(lines, "d", "e")
    found = [_query(spark_session, lines) for _ in range(3)]
    assert found == [[["c", "d"]], [["e"]], []]


@pytest.mark.usefixtures("_one_batch")
def test_the_first_batch_begins_where_the_query_began(spark_session: Any, lines: Lines) -> None:
    _add(lines, "before")
    reader: Any = new_reader(Lines(lines.file, begins_at_end=True), StructType(), available_now=False)
    assert reader.initialOffset() == {"line": 1}
    _add(lines, *"abc")
    assert (reader.initialOffset(), reader.latestOffset()) == ({"line": 1}, {"line": 3})
    assert reader.latestOffset() == {"line": 3}, "no batch was planned"
    reader.partitions({"line": 1}, {"line": 3})
    assert reader.latestOffset() == {"line": 4}


@pytest.mark.skipif(not running_version().has_available_now_readers, reason="Spark 4.0 and 4.1 do not have them")
def test_a_query_ends_with_the_input_that_exists_at_its_start(spark_session: Any, lines: Lines) -> None:
    _add(lines, *"abc")
    assert _query(spark_session, lines) == [["a", "b"], ["c"]]
    _add(lines, "d")
    assert _query(spark_session, lines) == [["d"]]
    reader: Any = new_reader(lines, StructType(), available_now=True)
    reader.prepareForTriggerAvailableNow()
    _add(lines, "e", "f")
    assert reader.latestOffset({"line": 3}, None) == {"line": 4}
