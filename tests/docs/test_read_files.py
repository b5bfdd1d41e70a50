"""The guide to JSON and CSV input: its types are those of columns, and its values are read as it describes."""

from __future__ import annotations

import enum
import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import msgspec
import pytest

from stateflow.api.input_files import unreadable_in
from stateflow.api.schema import RowSchema
from stateflow.connectors.files.source import FileSource
from stateflow.errors import SchemaMismatch
from stateflow.runtime.task.row_conversion import to_rows
from stateflow.types.columns.precision import precision
from tests.docs.column_types import NAMES
from tests.docs.pages import blocks, code, read, rows
from tests.support.errors import raises

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GUIDE = read("read-files")
Instant = Annotated[datetime, msgspec.Meta(tz=True)]


class Item(msgspec.Struct):
    sku: str
    quantity: int


TYPES = {
    **NAMES,
    "Item": Item,
    "Currency": enum.Enum("Currency", {"EURO": "EUR"}),
    "Stars": enum.Enum("Stars", {"ONE": 1}),
}


def test_the_types_of_the_guide_are_those_of_columns() -> None:
    (_, *table) = rows(GUIDE[GUIDE.index("| Python type |") :].partition("\n\n")[0])
    assert len(table) == 17
    for row in table:
        (python, *_), (spark,) = map(code, row[:2])
        row_class = msgspec.defstruct("Row", [("value", eval(python, dict(TYPES)))])
        assert RowSchema.of(row_class).column("value").dtype == spark


# -- on Spark ---------------------------------------------------------------------------------------------------------


class Values(msgspec.Struct):
    """One column of each type."""

    whole: int | None = None
    number: float | None = None
    text: str | None = None
    flag: bool | None = None
    data: bytes | None = None
    day: date | None = None
    local: datetime | None = None
    instant: Instant | None = None


class More(msgspec.Struct):
    """The other types; CSV has only the first four."""

    price: Annotated[Decimal, precision(12, scale=2)] | None = None
    at: time | None = None
    lasting: timedelta | None = None
    uid: UUID | None = None
    item: Item | None = None
    numbers: list[int | None] | None = None
    named: dict[str, Item | None] | None = None


class Flat(msgspec.Struct):
    """The types that CSV has."""

    price: Annotated[Decimal, precision(12, scale=2)] | None = None
    at: time | None = None
    lasting: timedelta | None = None
    uid: UUID | None = None


NOON = datetime(2026, 1, 31, 12)  # noqa: DTZ001 - without a zone, as its column
NOON_UTC = NOON.replace(tzinfo=UTC)
JSON = [
    ('{"whole": 5, "number": 5, "text": 5}', Values(whole=5, number=5.0, text="5")),
    ('{"text": [1, {"a": 2.50}], "number": 1.5}', Values(text='[1, {"a": 2.50}]', number=1.5)),
    ('{"text": 12.50, "flag": true, "data": "aGk="}', Values(text="12.50", flag=True, data=b"hi")),
    ('{"day": "2026-01-31", "local": "2026-01-31T12:00:00"}', Values(day=date(2026, 1, 31), local=NOON)),
    ('{"instant": "2026-01-31T12:00:00Z"}', Values(instant=NOON_UTC)),
    ('{"instant": "2026-01-31T14:00:00+02:00"}', Values(instant=NOON_UTC)),
    ('{"instant": "2026-01-31T12:00:00"}', Values(instant=NOON_UTC)),
    ('{"Whole": 5, "other": 1}', Values()),
]
CSV = [
    (
        "5,1.5,x,true,hi,2026-01-31,2026-01-31T12:00:00,2026-01-31T14:00:00+02:00",
        Values(5, 1.5, "x", True, b"hi", date(2026, 1, 31), NOON, NOON_UTC),
    ),
    ('5,NaN,"a, b",,,,,', None),
    (",,,,,,,", Values()),
]
LONG = timedelta(days=1, hours=2, minutes=3, seconds=4.5)
ONE = "00000000-0000-0000-0000-000000000001"
MORE = [
    ('{"price": 12.5, "at": "12:30:00"}', More(Decimal("12.50"), time(12, 30))),
    ('{"price": "12.50", "at": "12:30:00.000001"}', More(Decimal("12.50"), time(12, 30, 0, 1))),
    ('{"price": 12.505, "lasting": "1 02:03:04.5"}', More(Decimal("12.51"), lasting=LONG)),
    (f'{{"uid": "{ONE}", "item": {{"sku": "a", "quantity": 1, "x": 2}}}}', More(uid=UUID(ONE), item=Item("a", 1))),
    ('{"numbers": [1, null], "named": {"a": null}}', More(numbers=[1, None], named={"a": None})),
]
NOT_MORE = [
    *('{"price": 12345678901.5}', '{"at": "12:30:00Z"}', '{"lasting": "PT5S"}', '{"lasting": 5}', '{"numbers": [1.5]}'),
    *('{"price": "12,50"}', '{"item": {"sku": "a", "sku": "a"}}'),
    *('{"numbers": 1}', '{"item": [1]}', '{"named": [1]}'),
]
CORRUPT = [
    ("json", '{"whole": 5.0}'),
    ("json", '{"whole": "5"}'),
    ("json", '{"local": "2026-01-31T12:00:00Z"}'),
    ("json", '{"instant": "2026-01-31T12:00:0'),
    ("csv", "5.0,,,,,,,"),
    ("csv", "5,1.5,x"),
    ("csv", ",,,,,,,,9"),
    ("csv", ",,,,,,2026-01-31T12:00:00Z,"),
    ("json", '{"whole": 1}{"whole": 2}'),
    ("json", '{"instant": "10:00:00"}'),
    ("json", '{"instant": 1700000000000}'),
    ("json", '{"text": "\\ud800"}'),
    ("csv", '5,1.5,"x,,,,,'),
]


def _read(spark: SparkSession, path: Path, text: str, row_class: type[Any] = Values) -> list[Any]:
    path.write_text(text + "\n")
    source = FileSource(path.parent, schema=row_class, format=path.suffix[1:])
    table = source.read_files(spark, [path.as_uri()]).toArrow()
    (batch,) = table.combine_chunks().to_batches()
    return list(to_rows(batch.columns, source.schema))


@pytest.mark.spark
@pytest.mark.slow(reason="runs the programs of a guide on Spark")
def test_values_are_read_as_the_guide_describes(spark_session: SparkSession, tmp_path: Path) -> None:
    for name, cases in (("values.json", JSON), ("values.csv", CSV)):
        found = _read(spark_session, tmp_path / name, "\n".join(line for line, _ in cases))
        for (line, expected), row in zip(cases, found, strict=True):
            assert expected is None or row == expected, line
    # NaN does not equal itself.
    assert math.isnan(found[1].number) and (found[1].whole, found[1].text) == (5, "a, b")
    for suffix, text in CORRUPT:
        with pytest.raises(Exception, match="stateflow-corrupt-file") as refused:
            _read(spark_session, tmp_path / f"corrupt.{suffix}", text)
        unreadable = unreadable_in(str(refused.value))
        assert unreadable is not None and unreadable.is_corrupt, text
    found = _read(spark_session, tmp_path / "more.json", "\n".join(line for line, _ in MORE), More)
    assert found == [expected for _, expected in MORE]
    assert _read(spark_session, tmp_path / "flat.csv", f"12.5,12:30:00,1 02:03:04.5,{ONE}", Flat) == [
        Flat(Decimal("12.50"), time(12, 30), LONG, UUID(ONE))
    ]
    for text in NOT_MORE:
        with pytest.raises(Exception, match="stateflow-corrupt-file") as refused:
            _read(spark_session, tmp_path / "corrupt.json", text, More)
        unreadable = unreadable_in(str(refused.value))
        assert unreadable is not None and unreadable.is_corrupt, text
    with raises(SchemaMismatch, column="uid", row=repr({"uid": "x"})):
        _read(spark_session, tmp_path / "more.json", '{"uid": "x"}', msgspec.defstruct("Ids", [("uid", UUID)]))
    names: dict[str, Any] = {}
    exec(compile("\n".join(blocks(GUIDE, "python")), "read-files.md", "exec", dont_inherit=True), names)
    (text,) = blocks(GUIDE, "json")
    (order,) = _read(spark_session, tmp_path / "orders.json", text.strip(), names["Order"])
    assert order.time == datetime(2026, 1, 31, 10, tzinfo=UTC) and order.note is None
    assert names["price_per_piece"](order) == Decimal("6.25")
