"""The guide to JSON and CSV input: its types are those of columns, and its values are read as it describes."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import pytest

from stateflow.api.input_files import unreadable_in
from stateflow.api.schema import RowSchema
from stateflow.connectors.files.source import FileSource
from stateflow.runtime.task.row_conversion import to_rows
from tests.docs.pages import blocks, code, read, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GUIDE = read("read-files")
Instant = Annotated[datetime, msgspec.Meta(tz=True)]
NAMES = {"datetime": datetime, "date": date, "Annotated": Annotated, "msgspec": msgspec}


def test_the_types_of_the_guide_are_those_of_columns() -> None:
    (_, *table) = rows(GUIDE[GUIDE.index("| Python type |") :].partition("\n\n")[0])
    assert len(table) == 8
    for row in table:
        (python,), (spark,) = map(code, row[:2])
        row_class = msgspec.defstruct("Row", [("value", eval(python, NAMES))])
        assert RowSchema.of(row_class).column("value").spark_type == spark


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
CORRUPT = [
    ("json", '{"whole": 5.0}'),
    ("json", '{"whole": "5"}'),
    ("json", '{"local": "2026-01-31T12:00:00Z"}'),
    ("json", '{"instant": "2026-01-31T12:00:0'),
    ("csv", "5.0,,,,,,,"),
    ("csv", "5,1.5,x"),
    ("csv", ",,,,,,,,9"),
    ("csv", ",,,,,,2026-01-31T12:00:00Z,"),
]


def _read(
    spark: SparkSession, path: Path, text: str, row_class: type[Any] = Values, mode: str = "FAILFAST"
) -> list[Any]:
    path.write_text(text + "\n")
    source = FileSource(path.parent, schema=row_class, format=path.suffix[1:], mode=mode)
    table = source.read_files(spark, [path.as_uri()]).toArrow()
    (batch,) = table.combine_chunks().to_batches()
    return list(to_rows(batch.columns, source.schema))


@pytest.mark.spark
@pytest.mark.slow
def test_spark_reads_values_as_the_guide_describes(spark_session: SparkSession, tmp_path: Path) -> None:
    for name, cases in (("values.json", JSON), ("values.csv", CSV)):
        found = _read(spark_session, tmp_path / name, "\n".join(line for line, _ in cases))
        for (line, expected), row in zip(cases, found, strict=True):
            assert expected is None or row == expected, line
    # NaN does not equal itself.
    assert math.isnan(found[1].number) and (found[1].whole, found[1].text) == (5, "a, b")
    for suffix, text in CORRUPT:
        with pytest.raises(Exception, match="FAILED_READ_FILE") as refused:
            _read(spark_session, tmp_path / f"corrupt.{suffix}", text)
        unreadable = unreadable_in(str(refused.value))
        assert unreadable is not None and unreadable.is_corrupt, text
    silent = _read(spark_session, tmp_path / "values.json", '{"whole": 5.0, "text": "x"}\n{"wh', mode="PERMISSIVE")
    assert silent == [Values(text="x"), Values()]
    names: dict[str, Any] = {}
    exec(compile("\n".join(blocks(GUIDE, "python")), "read-files.md", "exec", dont_inherit=True), names)
    (text,) = blocks(GUIDE, "json")
    (order,) = _read(spark_session, tmp_path / "orders.json", text.strip(), names["Order"])
    assert order.time == datetime(2026, 1, 31, 10, tzinfo=UTC) and order.note is None
    assert names["price_per_piece"](order) == Decimal("6.25")
