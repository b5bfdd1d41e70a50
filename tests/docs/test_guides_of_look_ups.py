"""The code of guides that looks rows up in tables: it runs on Spark, and is compared with plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from stateflow import StreamExecutionEnvironment
from stateflow.api.streams.data_stream import DataStream
from tests.docs.pages import blocks, load_module, read
from tests.servers.postgres import postgres_server
from tests.servers.running import JDBC_JARS
from tests.support.spark_harness import stateless_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow(reason="starts Spark")]

START = datetime.fromisoformat("2013-01-01")
CODES = ("EWR", "JFK", "LGA")
CITIES = {"EWR": "Newark", "JFK": "New York"}


def _guide(name: str, folder: Path) -> ModuleType:
    return load_module(folder / f"look_ups_of_{name}.py", "\n".join(blocks(read(name), "python")))


def _rows(stream: DataStream, given: Mapping[str, Sequence[Any]], spark: SparkSession) -> Counter[tuple[Any, ...]]:
    return Counter(stateless_rows(stream, given, spark))


def _flights(guide: ModuleType) -> list[Any]:
    return [guide.Flight(START + timedelta(minutes=n), f"N{n}", CODES[n % 3]) for n in range(9)]


def test_flights_get_the_city_that_a_delta_table_has_until_the_next_read(
    spark_session: SparkSession, tmp_path: Path
) -> None:
    guide, table = _guide("joins", tmp_path), tmp_path / "airports"
    write_deltalake(table, pa.table({"faa": list(CITIES), "city": list(CITIES.values()), "tailnum": ["x", "y"]}))
    flights = StreamExecutionEnvironment().from_collection([], guide.Flight, uid="flights")
    stream = guide.with_cities(flights, str(table))
    assert stream.schema.names == ("time", "tailnum", "origin", "city")
    rows = {"flights": _flights(guide)}
    wanted = Counter((row.time, row.tailnum, row.origin, CITIES.get(row.origin)) for row in rows["flights"])
    assert _rows(stream, rows, spark_session) == wanted
    write_deltalake(table, pa.table({"faa": ["LGA"], "city": ["New York"], "tailnum": ["z"]}), mode="append")
    assert _rows(stream, rows, spark_session) == wanted


@pytest.mark.skipif(not JDBC_JARS, reason="no JDBC driver for PostgreSQL is installed: make setup downloads it")
def test_flights_of_known_cities_get_the_city_that_a_table_of_postgresql_has(
    spark_session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = _guide("joins", tmp_path)
    flights = StreamExecutionEnvironment().from_collection([], guide.Flight, uid="flights")
    rows = {"flights": _flights(guide)}
    with postgres_server() as server:
        server.execute("CREATE TABLE airports (faa char(3) PRIMARY KEY, city varchar(20), altitude integer)")
        for code, city in CITIES.items():
            server.execute("INSERT INTO airports VALUES (%s, %s, 0)", code, city)
        server.execute(f"CREATE ROLE reader LOGIN PASSWORD '{server.password}'")
        server.execute("GRANT SELECT ON airports TO reader")
        monkeypatch.setenv("AIRPORTS_PASSWORD", server.password)
        found = _rows(guide.with_known_cities(flights, server.jdbc_url), rows, spark_session)
    known = [row for row in rows["flights"] if row.origin in CITIES]
    assert found == Counter((row.time, row.tailnum, row.origin, CITIES[row.origin]) for row in known)
