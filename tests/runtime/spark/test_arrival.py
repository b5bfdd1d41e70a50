"""The order in which rows of a batch arrive: that of the source, however its input is cut into batches and splits."""

from __future__ import annotations

import itertools
import json
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import csv, orc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from stateflow import FileSource, StreamExecutionEnvironment
from stateflow.api.schema import ARRIVED
from stateflow.api.source import LocalSource, Source
from stateflow.config.settings import SourceSettings
from stateflow.connectors.delta.source import DeltaSource
from stateflow.connectors.partitioned.positions import Split
from stateflow.connectors.partitioned.source import PartitionedSource
from stateflow.connectors.partitioned.spark_reader import as_spark_reads
from stateflow.environment import declare
from stateflow.runtime.planning.physical_plan import plan_job
from stateflow.runtime.spark.batch_input import BatchInput
from stateflow.runtime.spark.checkpoint_location import SparkLocation
from stateflow.runtime.spark.frames import sort_by_arrival, source_frame
from stateflow.runtime.spark.inputs import Inputs
from stateflow.storage.memory import MemoryStorage
from tests.support.job_fixture import mostly_slow

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]
SPLITS = "spark.sql.files.maxPartitionBytes"
HOUR = 3600
Transform = Callable[[DataFrame], DataFrame]


class Arrivals:
    """Reads sources by streaming queries, and collects the rows of all batches in the order of their arrival."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._numbers = itertools.count()

    def of(
        self,
        *sources: Source | LocalSource,
        by_tasks: bool = True,
        limits: SourceSettings | None = None,
        splits: str = "128m",
        transform: Transform = lambda rows: rows,
    ) -> list[list[Any]]:
        def declared(env: StreamExecutionEnvironment) -> None:
            for at, source in enumerate(sources):
                env.from_source(source, uid=f"s{at}").print(uid=f"p{at}")

        nodes = plan_job(declare(declared, "job", ({},))[0].graph, 2).sources
        by_uid = {f"s{at}": as_spark_reads(source) for at, source in enumerate(sources)}
        location = SparkLocation(self._folder / f"location{next(self._numbers)}", MemoryStorage("memory://x"))
        found: list[list[Any]] = [[] for _ in sources]

        def collect(frame: DataFrame, batch_id: int) -> None:
            rows = BatchInput(nodes, by_uid, location, batch_id=batch_id, frame=frame).rows()
            files = rows.files()
            of_nodes = {node: files[node.uid] for node in nodes if node.uid in files}
            inputs = Inputs(nodes, frame, of_nodes, by_tasks=by_tasks)  # type: ignore[arg-type]
            for node, own in zip(nodes, found, strict=True):
                own += transform(inputs.frame(node)).collect()

        self._spark.conf.set(SPLITS, splits)
        try:
            frame = source_frame([(n, by_uid[n.uid].stream(self._spark, limits or SourceSettings())) for n in nodes])
            query = frame.writeStream.foreachBatch(collect).option("checkpointLocation", str(location.folder))
            query.trigger(availableNow=True).start().awaitTermination()
        finally:
            self._spark.conf.unset(SPLITS)
        return found


@pytest.fixture
def arrivals(spark_session: SparkSession, tmp_path: Path) -> Arrivals:
    return Arrivals(spark_session, tmp_path)


def _cuts(source: str, count: int, **limits: int) -> Iterator[dict[str, Any]]:
    """Yields arguments of `Arrivals.of`: ways to cut the input, and whether tasks read it.

    Args:
        limits: the largest value of each limit of a batch, in files or rows.
    """
    chosen = random.Random(source)
    for _ in range(count):
        given: dict[str, Any] = {name: chosen.choice([None, *range(1, most + 1)]) for name, most in limits.items()}
        yield {
            "splits": chosen.choice(["500", "1k", "3k", "128m"]),
            "by_tasks": chosen.random() < 0.5,
            "limits": SourceSettings(**given),
        }


class Numbered(msgspec.Struct):
    number: int


class Text(msgspec.Struct):
    value: str


def _write(path: Path, format: str, numbers: range) -> None:
    table = pa.table({"number": pa.array(numbers, pa.int64())})
    if format == "parquet":
        pq.write_table(table, path, row_group_size=50)
    elif format == "orc":
        orc.write_table(table, path, stripe_size=1024)
    elif format == "csv":
        csv.write_csv(table, path, csv.WriteOptions(include_header=False))
    else:
        line = '{{"number": {}}}\n' if format == "json" else "{}\n"
        path.write_text("".join(map(line.format, numbers)))


def _numbered_files(folder: Path, format: str, ties: bool) -> int:
    """Writes files with consecutive numbers in the order of their times, then names; returns the count of numbers."""
    folder.mkdir()
    names = ["z[1]", "z1", "b {1,2}", "ü%20", "a", "-m", "q?", "Z*", "back\\slash", "line\nend"]
    chosen = random.Random(format)
    chosen.shuffle(names)
    files = [(1_790_000_000 + HOUR * (at // 2 if ties else at), str(folder / name)) for at, name in enumerate(names)]
    first = 0
    for time, path in sorted(files):
        count = chosen.choice([1, 3, 400, 2000])
        _write(Path(path), format, range(first, first + count))
        os.utime(path, (time, time))
        first += count
    return first


@pytest.mark.parametrize("format", ["parquet", "json", "csv", "text", "orc"])
@pytest.mark.slow(reason="Spark writes and reads folders of each format")
def test_rows_of_files_arrive_by_time_then_name_then_position(arrivals: Arrivals, tmp_path: Path, format: str) -> None:
    schema: type[Any] = Text if format == "text" else Numbered
    expected = [str(n) if format == "text" else n for n in range(_numbered_files(tmp_path / "a", format, ties=True))]
    source = FileSource(tmp_path / "a", schema=schema, format=format)
    column = schema.__struct_fields__[0]
    cuts: Iterable[dict[str, Any]] = [
        {},
        {"by_tasks": False, "splits": "1k", "transform": lambda rows: rows.where(f"{column} IS NOT NULL")},
        *_cuts(format, 1),
    ]
    for cut in cuts:
        assert [row[0] for row in arrivals.of(source, **cut)[0]] == expected, cut
    # Spark cuts files of one time in any order.
    count = _numbered_files(tmp_path / "b", format, ties=False)
    for cut in _cuts(f"{format} in batches", 1, max_files_per_batch=6):
        limited = arrivals.of(FileSource(tmp_path / "b", schema=schema, format=format), **cut)
        assert [int(row[0]) for row in limited[0]] == list(range(count)), cut


class Logged(msgspec.Struct):
    number: int
    part: str | None


def _logged_numbers(table: Path, *, by_time: bool) -> list[int]:
    """Returns the numbers of the table in the order of its files: of their times and paths, or of the log."""
    entries = sorted((table / "_delta_log").glob("*.json"))
    actions = (json.loads(line) for entry in entries for line in entry.read_text().splitlines())
    added = [action["add"] for action in actions if "add" in action]
    if by_time:
        added.sort(key=lambda add: (add["modificationTime"], add["path"]))
    files = (pq.ParquetFile(table / unquote(add["path"])).read(columns=["number"]) for add in added)
    return [number for file in files for number in file.column(0).to_pylist()]


@pytest.mark.parametrize("start", mostly_slow(["earliest", 0], [0], reason="runs a job on Spark"))
def test_rows_of_a_delta_table_arrive_by_version_then_file(arrivals: Arrivals, tmp_path: Path, start: Any) -> None:
    table, numbers = tmp_path / "a +table", itertools.count()
    for count in [5, 2000, 1, 700, 30]:
        parts = [["a b", "ü/=+", None][n % 3] for n in range(count)]
        rows = pa.table({"number": [next(numbers) for _ in range(count)], "part": pa.array(parts, pa.string())})
        write_deltalake(str(table), rows, mode="append", partition_by=["part"])
    expected = _logged_numbers(table, by_time=start == "earliest")
    source = DeltaSource(table, schema=Logged, start=start)
    for cut in _cuts(f"delta {start}", 1, max_files_per_batch=9):
        assert [row.number for row in arrivals.of(source, **cut)[0]] == expected, cut


def test_a_row_of_a_file_that_the_order_lacks_fails(spark_session: SparkSession) -> None:
    place = "named_struct('file', 'file:///t/c', 'block', 0L)"
    rows = spark_session.range(3).selectExpr("id", f"{place} AS {ARRIVED}")
    assert [row.id for row in sort_by_arrival(["file:/t/b", "file:/t/c"], rows).collect()] == [0, 1, 2]
    with pytest.raises(PySparkException, match="file:/t/c"):
        sort_by_arrival(["file:/t/a", "file:/t/b"], rows).collect()


class Change(msgspec.Struct):
    key: int
    value: int
    change: str
    version: int


def _changed_table(table: Path) -> Mapping[int, int]:
    """Makes a table by commits that insert, update and delete rows of the same keys; returns its rows."""
    keys = pa.array(range(300), pa.int64())
    feed = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(str(table), pa.table({"key": keys, "value": pa.array([0] * 300)}), configuration=feed)
    made = DeltaTable(str(table))
    made.update(updates={"value": "value + 1"}, predicate="key < 250")
    made.update(updates={"value": "value + 1"}, predicate="key < 3")
    made.delete("key % 2 = 0")
    write_deltalake(str(table), pa.table({"key": [0, 2], "value": [7, 8]}), mode="append")
    more = pa.table({"key": pa.array(range(400), pa.int64()), "value": pa.array(range(400), pa.int64())})
    made.update_incremental()
    merge = made.merge(more, "s.key = t.key", source_alias="s", target_alias="t")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    made.update(updates={"value": "-1"}, predicate="key = 5")
    return {row["key"]: row["value"] for row in DeltaTable(str(table)).to_pyarrow_table().to_pylist()}


@pytest.mark.slow(reason="Spark writes versions of a table and reads their changes")
def test_a_mirror_of_a_change_data_feed_has_the_newest_rows(arrivals: Arrivals, tmp_path: Path) -> None:
    expected = _changed_table(tmp_path / "t")
    metadata = {"change": "change", "version": "version"}
    source = DeltaSource(tmp_path / "t", schema=Change, changes=True, start=0, metadata=metadata)
    seen = []
    for cut in [{}, {"splits": "2k"}, *_cuts("feed", 1, max_files_per_batch=4)]:
        rows = arrivals.of(source, **cut)[0]
        mirror: dict[int, int] = {}
        for row in rows:
            if row.change in ("delete", "update_preimage"):
                assert mirror.pop(row.key) == row.value
            else:
                assert row.key not in mirror
                mirror[row.key] = row.value
        assert mirror == expected, cut
        seen.append([tuple(row) for row in rows])
    assert seen[0] == seen[1]


class Shards(PartitionedSource):
    @property
    def description(self) -> str:
        return "shards"

    def ends(self) -> Mapping[str, int]:
        return {"b": 40, "a": 5, "c": 1}

    def read_split(self, split: Split) -> Iterator[object]:
        yield from (Numbered(1000 * ord(split.partition) + n) for n in range(split.start, split.end))


@pytest.mark.slow(reason="several streaming queries of Spark")
def test_rows_of_partitions_arrive_by_offset_next_to_files(arrivals: Arrivals, tmp_path: Path) -> None:
    ends = {"a": 5, "b": 40, "c": 1}
    expected = [1000 * ord(name) + n for name, end in ends.items() for n in range(end)]
    count = _numbered_files(tmp_path / "in", "json", ties=True)
    files = FileSource(tmp_path / "in", schema=Numbered, format="json")
    # Next to another source, Spark does not read the files.
    of_shards, of_files = arrivals.of(Shards(schema=Numbered, split_size=3), files)
    assert [row.number for row in of_shards] == expected
    assert [row.number for row in of_files] == list(range(count))
    for size, cut in enumerate(_cuts("shards", 2, max_rows_per_batch=17), 1):
        limited = arrivals.of(Shards(schema=Numbered, split_size=size), **cut)[0]
        assert [n for name in ends for n in (r.number for r in limited) if n // 1000 == ord(name)] == expected, cut


class Part(msgspec.Struct):
    number: int
    p: int | None = None


@pytest.mark.parametrize(
    ("format", "by_tasks"),
    mostly_slow(
        [("parquet", True), ("orc", False), ("json", False), ("csv", True)],
        [("json", False)],
        reason="runs a job on Spark",
    ),
)
def test_files_in_folders_are_read_and_have_the_values_of_their_names(
    arrivals: Arrivals, tmp_path: Path, format: str, by_tasks: bool
) -> None:
    folder = tmp_path / "in[1]"
    for at, name in enumerate(["a", "p=2/a", "2026/01/b", "q=1/p=__HIVE_DEFAULT_PARTITION__/c", "p=3/deeper/d"]):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, format, range(at, at + 1))
        os.utime(path, (1_790_000_000 + at,) * 2)
    (tmp_path / "in1").mkdir()
    _write(tmp_path / "in1/other", format, range(9, 10))
    for at, (name, p) in enumerate({"a": 7, "2026/01/b": None}.items()):
        # A file in no such folder has the column itself.
        path, number = folder / name, 2 * at
        table = pa.table({"number": [number], "p": pa.array([p], pa.int64())})
        if format == "parquet":
            pq.write_table(table, path)
        elif format == "orc":
            orc.write_table(table, path)
        elif format == "csv":
            path.write_text(f"{number},{'' if p is None else p}\n")
        else:
            path.write_text(json.dumps({"number": number, "p": p}) + "\n")
        os.utime(path, (1_790_000_000 + number,) * 2)
    source = FileSource(folder, schema=Part, format=format)
    found = arrivals.of(source, by_tasks=by_tasks)[0]
    assert [tuple(row) for row in found] == [(0, 7), (1, 2), (2, None), (3, None), (4, 3)]
