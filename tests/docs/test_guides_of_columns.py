"""The guides about files and tables: their types are those of columns, and their code declares sources and sinks."""

from __future__ import annotations

import datetime
import decimal
import enum
import re
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from stateflow import FileSource, IcebergSink, PostgresSink
from stateflow.api.schema import Column, RowSchema
from stateflow.connectors.iceberg.table import iceberg_type
from stateflow.connectors.postgres.target import postgres_type, target_field
from stateflow.runtime.task.row_conversion import to_rows
from stateflow.types.columns.precision import precision
from stateflow.types.columns.shapes import Shape, shape_of
from tests.docs.pages import blocks, code, read, rows

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


def test_the_sinks_of_the_guides_can_be_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CATALOG_CREDENTIAL", "none")
    monkeypatch.setenv("FLIGHTS_PASSWORD", "none")
    assert isinstance(_executed(ICEBERG)["movements"], IcebergSink)
    assert isinstance(_executed(POSTGRES)["newest"], PostgresSink)


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
