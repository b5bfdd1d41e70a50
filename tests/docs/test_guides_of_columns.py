"""The guides about files, tables and look-ups: types are those of columns, and their code declares and reads."""

from __future__ import annotations

import datetime
import decimal
import enum
import re
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from stateflow import FileSource, StreamExecutionEnvironment
from stateflow.api.schema import Column, RowSchema
from stateflow.api.streams.data_stream import DataStream
from stateflow.connectors.iceberg.table import iceberg_type
from stateflow.connectors.postgres.target import postgres_type, target_field
from stateflow.runtime.task.row_conversion import to_rows
from stateflow.types.columns.precision import precision
from stateflow.types.columns.shapes import Shape, shape_of
from tests.docs.pages import blocks, code, load_module, read, rows
from tests.servers.postgres import postgres_server
from tests.servers.running import JDBC_JARS
from tests.support.spark_harness import stateless_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


FILES, ICEBERG, POSTGRES = read("read-files"), read("write-to-iceberg"), read("write-to-postgres")


class Item(msgspec.Struct):
    sku: str
    quantity: int


TYPES: dict[str, object] = {
    "date": datetime.date,
    "datetime": datetime.datetime,
    "time": datetime.time,
    "timedelta": datetime.timedelta,
    "Decimal": decimal.Decimal,
    "UUID": uuid.UUID,
    "Annotated": Annotated,
    "msgspec": msgspec,
    "precision": precision,
    "Item": Item,
    "Currency": enum.Enum("Currency", {"EURO": "EUR"}),
    "Stars": enum.Enum("Stars", {"ONE": 1}),
}
"""The names that the types of the guides need, which the guides do not import."""


def _shape(text: str) -> Shape:
    return shape_of(eval(text.strip("`"), dict(TYPES)))


def _executed(guide: str) -> dict[str, Any]:
    """The names of a guide's code, without the postponed annotations of this module."""
    names: dict[str, Any] = {}
    exec(compile("\n".join(blocks(guide, "python")), "guide", "exec", dont_inherit=True), names)
    return names


def test_the_types_of_files_are_those_of_columns() -> None:
    (_, *table) = rows(FILES[FILES.index("| Python type |") :].partition("\n\n")[0])
    assert len(table) == 17
    for row in table:
        (python, *_), (spark,) = map(code, row[:2])
        row_class = msgspec.defstruct("Row", [("value", eval(python, dict(TYPES)))])
        assert RowSchema.of(row_class).column("value").dtype == spark


def test_the_types_of_iceberg_and_postgresql_are_those_of_their_sinks() -> None:
    described = [line for line in rows(ICEBERG) if len(line) == 2 and "`" in line[0] and "`" in line[1]]
    assert len(described) >= 12
    assert [field for field, column in described if str(iceberg_type(_shape(field))) != column.strip("`")] == []
    described = [line for line in rows(POSTGRES) if len(line) == 3 and "`" in line[1]]
    assert len(described) >= 12
    for field, column, also in described:
        shape = _shape(field if "`" in field else "list[int]")
        assert postgres_type(shape) == column.strip("`"), field
        assert all(target_field(Column("x", shape), name, False) for name in re.findall("`(.+?)`", also)), field
    texts, numbers = shape_of(TYPES["Currency"]), shape_of(TYPES["Stars"])
    assert (str(iceberg_type(texts)), postgres_type(texts), postgres_type(numbers)) == ("string", "text", "bigint")


@pytest.mark.spark
@pytest.mark.slow(reason="starts Spark")
def test_the_order_of_the_guide_is_read(spark_session: SparkSession, tmp_path: Path) -> None:
    """tests/connectors/test_decoded_files.py has the values that are read, and those that are refused."""
    names = _executed(FILES)
    (text,) = blocks(FILES, "json")
    (tmp_path / "orders.json").write_text(text.strip() + "\n")
    source = FileSource(tmp_path, schema=names["Order"], format="json")
    table = source.read_files(spark_session, [(tmp_path / "orders.json").as_uri()]).toArrow()
    (batch,) = table.combine_chunks().to_batches()
    order: Any = next(iter(to_rows(batch.columns, source.schema)))
    assert order.time == datetime.datetime(2026, 1, 31, 10, tzinfo=datetime.UTC) and order.note is None
    assert names["price_per_piece"](order) == Decimal("6.25")


# -- look-ups in tables, which run on Spark ---------------------------------------------------------------------------


START = datetime.datetime.fromisoformat("2013-01-01")
CODES = ("EWR", "JFK", "LGA")
CITIES = {"EWR": "Newark", "JFK": "New York"}


def _guide(name: str, folder: Path) -> ModuleType:
    return load_module(folder / f"look_ups_of_{name}.py", "\n".join(blocks(read(name), "python")))


def _rows(stream: DataStream, given: Mapping[str, Sequence[Any]], spark: SparkSession) -> Counter[tuple[Any, ...]]:
    return Counter(stateless_rows(stream, given, spark))


def _flights(guide: ModuleType) -> list[Any]:
    return [guide.Flight(START + timedelta(minutes=n), f"N{n}", CODES[n % 3]) for n in range(9)]


@pytest.mark.spark
@pytest.mark.slow(reason="starts Spark")
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


@pytest.mark.spark
@pytest.mark.slow(reason="starts Spark")
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
