"""What a `DeltaSource` reads: compared with Delta's own reader and source, on tables that Spark has written."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from stateflow import DeltaSource
from stateflow.api.source import FROM_START
from stateflow.connectors.delta.commits import Offset
from stateflow.errors import DataError
from tests.support.delta_reads import batches_of

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]
UTC_TIME = Annotated[datetime, msgspec.Meta(tz=True)]
TWO_DIGITS = Annotated[Decimal, msgspec.Meta(extra={"precision": 12, "scale": 2})]
Rows = Counter[tuple[Any, ...]]


def rows_of(source: DeltaSource, most: int = 1000) -> Rows:
    return Counter(
        tuple(map(_plain, row.values())) for _, table in batches_of(source, most) for row in table.to_pylist()
    )


def _plain(value: Any) -> Any:
    """Returns a hashable value, the same for what Arrow and Spark return."""
    if isinstance(value, dict):
        return tuple(sorted((k, _plain(v)) for k, v in value.items()))
    if isinstance(value, list):
        return tuple(map(_plain, value))
    if hasattr(value, "asDict"):
        return tuple(sorted((k, _plain(v)) for k, v in value.asDict().items()))
    if isinstance(value, bytearray):
        return bytes(value)
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


def by_spark(spark: SparkSession, table: Path, *columns: str, **options: str) -> Rows:
    rows = spark.read.format("delta").options(**options).load(str(table)).select(*columns).collect()
    return Counter(tuple(map(_plain, row)) for row in rows)


Make = Callable[[SparkSession, str], None]
FEED = "delta.enableChangeDataFeed=true"


def _sql(*statements: str) -> Make:
    def make(spark: SparkSession, table: str) -> None:
        for statement in statements:
            spark.sql(statement.replace("$t", f"delta.`{table}`"))

    return make


class Item(msgspec.Struct):
    id: int
    name: str | None
    part: str | None


VALUES = "SELECT id, concat('n', id) AS name, if(id % 3 = 0, NULL, concat('p ', id % 3)) AS part FROM range"
TABLES: dict[str, Make] = {
    "files of changes": _sql(
        f"CREATE TABLE $t (id LONG, name STRING, part STRING) USING delta PARTITIONED BY (part) TBLPROPERTIES ({FEED})",
        f"INSERT INTO $t {VALUES}(0, 20, 1, 2)",
        "UPDATE $t SET name = 'x' WHERE id % 4 = 0",
        "DELETE FROM $t WHERE id > 16",
        f"MERGE INTO $t AS t USING ({VALUES}(10, 25, 1, 1)) AS s ON s.id = t.id "
        "WHEN MATCHED THEN UPDATE SET name = 'm' WHEN NOT MATCHED THEN INSERT *",
        f"INSERT OVERWRITE $t {VALUES}(3)",
    ),
    "deletion vectors": _sql(
        "CREATE TABLE $t (id LONG, name STRING, part STRING) USING delta TBLPROPERTIES "
        f"({FEED}, delta.enableDeletionVectors=true)",
        f"INSERT INTO $t {VALUES}(0, 5000, 1, 2)",
        "DELETE FROM $t WHERE id % 7 = 0",
        "DELETE FROM $t WHERE id BETWEEN 100 AND 4000",
        "UPDATE $t SET name = 'x' WHERE id = 1",
        f"INSERT INTO $t {VALUES}(3)",
        "RESTORE TABLE $t TO VERSION AS OF 2",
        "OPTIMIZE $t",
    ),
    "names of columns": _sql(
        "CREATE TABLE $t (id LONG, old STRING, part STRING, gone INT) USING delta PARTITIONED BY (part) TBLPROPERTIES "
        f"({FEED}, delta.columnMapping.mode='name')",
        f"INSERT INTO $t SELECT *, 1 FROM ({VALUES}(5))",
        "ALTER TABLE $t RENAME COLUMN old TO name",
        "ALTER TABLE $t DROP COLUMN gone",
        f"INSERT INTO $t {VALUES}(5, 8, 1, 1)",
    ),
    "numbers of columns": _sql(
        "CREATE TABLE $t (id LONG, name STRING, part STRING) USING delta TBLPROPERTIES "
        f"({FEED}, delta.columnMapping.mode='id', delta.checkpointPolicy='v2', delta.checkpointInterval=2)",
        *(f"INSERT INTO $t {VALUES}({n}, {n + 2}, 1, 1)" for n in range(0, 8, 2)),
    ),
}


@pytest.mark.slow(reason="Spark writes the versions of a table")
@pytest.mark.parametrize("kind", TABLES)
def test_rows_and_changes_are_those_of_delta(spark_session: SparkSession, tmp_path: Path, kind: str) -> None:
    class Change(Item):
        change: str
        version: int
        committed: UTC_TIME

    table = tmp_path / "a table"
    TABLES[kind](spark_session, str(table))
    rows = by_spark(spark_session, table, "id", "name", "part")
    assert rows and rows_of(DeltaSource(table, schema=Item)) == rows
    metadata = {"change": "change", "version": "version", "committed": "committed"}
    columns = ("id", "name", "part", "_change_type", "_commit_version", "_commit_timestamp")
    first = 3 if kind == "names of columns" else 0
    expected = by_spark(spark_session, table, *columns, readChangeFeed="true", startingVersion=str(first))
    assert expected
    for most in (1000, 1):
        source = DeltaSource(table, schema=Change, changes=True, start=first, metadata=metadata)
        assert rows_of(source, most) == expected, most
    _check_positions(spark_session, table, tmp_path / "stream", Change, first, metadata)


def _check_positions(
    spark: SparkSession, table: Path, folder: Path, row: type[msgspec.Struct], first: int, metadata: dict[str, str]
) -> None:
    """Checks that a source continues from each position that Delta's own has stored, with the same rows."""
    batches: list[Rows] = []

    def collect(frame: DataFrame, batch_id: int) -> None:
        names = [
            {"change": "_change_type", "version": "_commit_version", "committed": "_commit_timestamp"}.get(n, n)
            for n in row.__struct_fields__
        ]
        batches.append(Counter(tuple(map(_plain, each)) for each in frame.select(*names).collect()))

    options = {"readChangeFeed": "true", "startingVersion": str(first), "maxFilesPerTrigger": "2"}
    stream = spark.readStream.format("delta").options(**options).load(str(table)).writeStream.foreachBatch(collect)
    stream.option("checkpointLocation", str(folder)).trigger(availableNow=True).start().awaitTermination()
    assert len(batches) > 1
    for at in range(len(batches)):
        offset = msgspec.json.decode((folder / "offsets" / str(at)).read_text().splitlines()[-1], type=Offset)
        source = DeltaSource(table, schema=row, changes=True, start=first, metadata=metadata)
        source.check_position(msgspec.json.encode(offset).decode())
        found = Counter[tuple[Any, ...]]()
        for _, rows in batches_of(source, 3, offset):
            found.update(tuple(map(_plain, each.values())) for each in rows.to_pylist())
        assert found == sum(batches[at + 1 :], Counter()), offset


class Numbered(msgspec.Struct):
    number: int


@pytest.mark.slow(reason="Spark reads the changes of a table from each version on")
def test_changes_that_were_not_recorded_are_refused_where_delta_refuses_them(
    spark_session: SparkSession, tmp_path: Path
) -> None:
    table = tmp_path / "t"
    _sql(
        "CREATE TABLE $t (number LONG) USING delta",
        "INSERT INTO $t VALUES (1), (2), (3)",
        "DELETE FROM $t WHERE number = 2",
        f"ALTER TABLE $t SET TBLPROPERTIES ({FEED})",
        "INSERT INTO $t VALUES (5)",
        "DELETE FROM $t WHERE number = 3",
        "ALTER TABLE $t SET TBLPROPERTIES (delta.enableChangeDataFeed=false)",
        "INSERT INTO $t VALUES (7)",
    )(spark_session, str(table))
    for first in range(8):
        for last in range(first, 8):
            options = {"readChangeFeed": "true", "startingVersion": str(first), "endingVersion": str(last)}
            try:
                expected: object = by_spark(spark_session, table, "number", "_change_type", **options)
            except PySparkException as e:
                assert "DELTA_MISSING_CHANGE_DATA" in str(e), (first, last)
                expected = None
            assert _changes_between(table, first, last) == expected, (first, last)


def _changes_between(table: Path, first: int, last: int) -> Rows | None:
    """Returns the changes of some versions; None if the source refuses to read them."""

    class Kind(Numbered):
        change: str

    source = DeltaSource(table, schema=Kind, changes=True, start=first, metadata={"change": "change"})
    start = source._first_offset()
    try:
        source._feed.check_start(start)
        format = source.files_between(FROM_START, msgspec.json.encode(start.after(last)).decode())
    except DataError as e:
        assert first <= int(str(e.facts["version"])) <= last
        return None
    return Counter(tuple(map(_plain, row.values())) for row in format.read_all(source.schema).to_pylist())


@pytest.mark.slow(reason="Spark reads a table from many times on")
@pytest.mark.parametrize("own", [False, True], ids=["files", "commits"])
def test_a_time_is_the_version_at_which_delta_begins(spark_session: SparkSession, tmp_path: Path, own: bool) -> None:
    table, begin = tmp_path / "t", int(datetime.now(UTC).timestamp() * 1000) - 3_600_000
    _sql(
        f"CREATE TABLE $t (number LONG) USING delta TBLPROPERTIES ({FEED})",
        *(f"INSERT INTO $t VALUES ({number})" for number in (1, 2)),
        f"ALTER TABLE $t SET TBLPROPERTIES (delta.enableInCommitTimestamps={str(own).lower()})",
        *(f"INSERT INTO $t VALUES ({number})" for number in (4, 5)),
    )(spark_session, str(table))
    # The times of files are not in the order of the versions, as in a copy.
    times = [begin + shift for shift in (0, 500, 20, 700, 100, 900)]
    for version, modified in enumerate(tuple(times)):
        entry = table / "_delta_log" / f"{version:020d}.json"
        os.utime(entry, ns=(modified * 10**6,) * 2)
        infos = [json.loads(line).get("commitInfo", {}) for line in entry.read_text().splitlines()]
        times += [info["inCommitTimestamp"] for info in infos if "inCommitTimestamp" in info]
    assert len(times) == (9 if own else 6)
    log = DeltaSource(table, schema=Numbered)._log
    for millis in sorted({time + shift for time in times for shift in (-1, 0, 1)}):
        at = f"{datetime.fromtimestamp(millis / 1000, UTC):%Y-%m-%d %H:%M:%S.%f}"
        try:
            found = by_spark(spark_session, table, "number", readChangeFeed="true", startingTimestamp=at)
        except PySparkException as e:
            assert "DELTA_TIMESTAMP_GREATER_THAN_COMMIT" in str(e)
            found = Counter()
        source = DeltaSource(table, schema=Numbered, changes=True, start=log.first_version_since(millis))
        assert rows_of(source) == found, (at, times)


def test_offsets_are_those_of_deltas_own_source(spark_session: SparkSession, tmp_path: Path) -> None:
    table, numbers = tmp_path / "t", iter(range(100))
    for files in (1, 3, 2, 5):
        rows = pa.table({"number": [next(numbers) for _ in range(files)], "part": [*range(files)]})
        write_deltalake(str(table), rows, mode="append", partition_by=["part"])
    DeltaTable(str(table)).alter.set_table_properties({"delta.appendOnly": "true"})
    stream = spark_session.readStream.format("delta").options(startingVersion="0", maxFilesPerTrigger="2")
    written = stream.load(str(table)).writeStream.foreachBatch(lambda frame, number: None)
    written.option("checkpointLocation", str(tmp_path / "s")).trigger(availableNow=True).start().awaitTermination()
    logs = sorted((tmp_path / "s" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    expected = [json.loads(path.read_text().splitlines()[-1]) for path in logs]
    source = DeltaSource(table, schema=Numbered, start=0)
    assert [json.loads(end) for end, _ in batches_of(source, 2)] == expected
