"""Look-up joins with a table that changes, on a Spark session."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from stateflow import StreamExecutionEnvironment
from stateflow.api.joins.lookup_join import LookupColumns, LookupJoin
from stateflow.clock import ManualClock
from stateflow.errors import JobDefinitionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Flight(msgspec.Struct):
    """A row of the stream."""

    origin: str | None
    name: str


class Named(msgspec.Struct):
    """A row with the name of its airport."""

    origin: str | None
    name: str
    city: str | None


@pytest.mark.spark
@pytest.mark.slow
def test_rows_get_the_columns_that_the_table_has_in_the_batch(spark_session: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "airports")

    def write(*rows: tuple[str, str, str]) -> None:
        spark_session.createDataFrame(list(rows), "faa string, name string, city string").write.mode(
            "overwrite"
        ).parquet(path)

    def read(spark: SparkSession) -> DataFrame:
        return spark.read.parquet(path)

    def joined(lookup: LookupJoin) -> list[tuple[str | None, ...]]:
        frame = spark_session.createDataFrame([("EWR", "a"), ("JFK", "b"), (None, "c")], "origin string, name string")
        return sorted((tuple(row) for row in lookup(frame).collect()), key=repr)

    clock = ManualClock()
    left = LookupColumns({"origin": "faa"}, ("origin", "name", "city"), "left")
    inner = LookupColumns({"origin": "faa"}, ("name", "city"), "inner")
    each, cached = LookupJoin(read, left, None), LookupJoin(read, left, timedelta(minutes=10), clock)
    write(("EWR", "x", "Newark"))
    before = [("EWR", "a", "Newark"), ("JFK", "b", None), (None, "c", None)]
    assert joined(each) == before and joined(cached) == before
    assert joined(LookupJoin(read, inner, None)) == [("a", "Newark")]
    write(("EWR", "x", "Newark"), ("JFK", "y", "New York"))
    after = [("EWR", "a", "Newark"), ("JFK", "b", "New York"), (None, "c", None)]
    assert joined(each) == after and joined(cached) == before
    clock.sleep(timedelta(minutes=10))
    assert joined(cached) == after
    of_table = LookupColumns({"origin": "faa"}, ("origin", "name"), "inner", {"name": "city"})
    assert joined(LookupJoin(read, of_table, None)) == [("EWR", "Newark"), ("JFK", "New York")]
    missing = LookupColumns({"origin": "iata"}, ("origin", "country"), "left")
    with pytest.raises(JobDefinitionError) as caught:
        joined(LookupJoin(read, missing, None))
    assert caught.value.facts["missing"] == ["country", "iata"]


@pytest.mark.parametrize(
    "changed", [{"read": "airports"}, {"on": {}}, {"on": "none"}, {"how": "full"}, {"cache": timedelta()}, {"cache": 5}]
)
def test_wrong_arguments_are_refused(changed: dict[str, object]) -> None:
    class Source(msgspec.Struct):
        origin: str

    env = StreamExecutionEnvironment()
    flights = env.from_collection([Flight("EWR", "a")], Flight, uid="flights")
    arguments = {"read": lambda spark: spark, "on": "origin", "output": Named, **changed}
    with pytest.raises(JobDefinitionError):
        flights.lookup_join(arguments.pop("read"), **arguments)  # type: ignore[arg-type]
