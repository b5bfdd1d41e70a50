"""Look-up joins with tables that change, on a Spark session."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stateflow import StreamExecutionEnvironment
from stateflow.api.joins.lookup_join import CachedTable, LookupColumns, LookupJoin
from stateflow.clock import ManualClock
from stateflow.errors import JobDefinitionError
from tests.support.errors import raises

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Airport = tuple[str, str, int, float | None, datetime]
"""Code, city, altitude, latitude, and when it was opened."""


class Flight(msgspec.Struct):
    origin: str | None
    name: str


class Named(msgspec.Struct):
    origin: str | None
    name: str
    city: str | None


FLIGHTS: list[tuple[str | None, str]] = [("EWR", "a"), ("JFK", "b"), (None, "c"), ("EWR", "d")]
OPENED = datetime.fromisoformat("1928-10-01T12:30:00.000001")
EWR: Airport = ("EWR", "Newark", 18, 40.7, OPENED)
MOVED: Airport = ("EWR", "Elizabeth", 1 << 40, -0.5, OPENED + timedelta(days=30_000))
JFK: Airport = ("JFK", "New York", 13, None, OPENED)
LGA: Airport = ("LGA", "New York", 22, 40.8, OPENED)
NAMED, INNER = ("origin", "name", "city", "altitude", "latitude", "opened"), ("origin", "city")
Rows = list[tuple[object, ...]]


def _by_code(*airports: Airport) -> Rows:
    """The flights with the columns of their airports, in plain Python."""
    found = {code: more for code, *more in airports}
    return sorted(((*flight, *found.get(flight[0] or "", (None,) * 4)) for flight in FLIGHTS), key=repr)


def _joined(lookup: LookupJoin, spark: SparkSession) -> Rows:
    frame = spark.createDataFrame(FLIGHTS, "origin string, name string")
    return sorted((tuple(row) for row in lookup(frame).collect()), key=repr)


class Airports:
    """A folder of Parquet files, which another writer changes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, *airports: Airport) -> None:
        columns = [("faa", pa.string()), ("city", pa.string()), ("altitude", pa.int64()), ("latitude", pa.float64())]
        schema = pa.schema([*columns, ("opened", pa.timestamp("us"))])
        rows = [dict(zip(schema.names, row, strict=True)) for row in airports]
        pq.write_table(pa.Table.from_pylist(rows, schema), self._folder / "airports.parquet")

    def read(self, spark: SparkSession) -> DataFrame:
        return spark.read.parquet(str(self._folder))


@pytest.fixture
def table(tmp_path: Path) -> Airports:
    return Airports(tmp_path)


@pytest.mark.spark
def test_rows_get_the_columns_that_the_table_has_in_the_batch(spark_session: SparkSession, table: Airports) -> None:
    clock = ManualClock()
    left = LookupColumns({"origin": "faa"}, NAMED, "left")
    each = LookupJoin(table.read, left)
    cached = LookupJoin(CachedTable(table.read, timedelta(minutes=10), clock), left)
    inner = LookupJoin(table.read, LookupColumns({"origin": "faa"}, INNER, "inner"))

    def joined(*lookups: LookupJoin) -> list[Rows]:
        return [_joined(lookup, spark_session) for lookup in lookups]

    table.write(EWR, LGA)
    assert joined(each, cached, inner) == [_by_code(EWR)] * 2 + [[("EWR", "Newark")] * 2]
    # One row changes, one comes, one goes.
    table.write(MOVED, JFK)
    after = _by_code(MOVED, JFK)
    assert joined(each, cached, inner) == [
        after,
        _by_code(EWR),
        [("EWR", "Elizabeth"), ("EWR", "Elizabeth"), ("JFK", "New York")],
    ]
    clock.sleep(timedelta(minutes=10) - timedelta(microseconds=1))
    assert joined(cached) == [_by_code(EWR)]
    clock.sleep(timedelta(microseconds=1))
    assert joined(cached) == [after]
    table.write()
    assert joined(each, cached, inner) == [_by_code(), after, []]


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The local time of Python, which is not that of Spark's session."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.spark
def test_a_cached_content_has_the_instants_of_an_hour_that_is_repeated(
    spark_session: SparkSession, berlin: None
) -> None:
    hour = 3_600_000_000
    instants = [1_761_435_000_000_000 + n * hour for n in range(4)]
    frame = spark_session.createDataFrame([(at,) for at in instants], "at bigint").selectExpr(
        "timestamp_micros(at) AS at"
    )
    assert [row[0] for row in frame.selectExpr("hour(at)").collect()] == [23, 0, 1, 2]
    cached = CachedTable(lambda spark: frame, timedelta(minutes=1), ManualClock())(spark_session)
    assert [row[0] for row in cached.selectExpr("unix_micros(at)").collect()] == instants


@pytest.mark.spark
def test_columns_are_of_the_stream_unless_they_are_named_as_those_of_the_table(
    spark_session: SparkSession, table: Airports
) -> None:
    table.write(EWR, JFK)
    of_table = LookupColumns({"origin": "faa"}, ("origin", "name"), "inner", {"name": "city"})
    wanted = [("EWR", "Newark"), ("EWR", "Newark"), ("JFK", "New York")]
    assert _joined(LookupJoin(table.read, of_table), spark_session) == wanted
    missing = LookupColumns({"origin": "iata"}, ("origin", "country"), "left")
    with raises(JobDefinitionError, missing=["country", "iata"]):
        _joined(LookupJoin(table.read, missing), spark_session)


@pytest.mark.parametrize(
    "changed", [{"read": "airports"}, {"on": {}}, {"on": "none"}, {"how": "full"}, {"cache": timedelta()}, {"cache": 5}]
)
def test_wrong_arguments_are_refused(changed: dict[str, object]) -> None:
    env = StreamExecutionEnvironment()
    flights = env.from_collection([Flight("EWR", "a")], Flight, uid="flights")
    arguments = {"read": lambda spark: spark, "on": "origin", "output": Named, **changed}
    with pytest.raises(JobDefinitionError):
        flights.lookup_join(arguments.pop("read"), **arguments)  # type: ignore[arg-type]
