"""The guide to JSON and CSV input: its types are those of columns, and its values are read as it describes."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import pytest

from stateflow.api.input_files import unreadable_in
from stateflow.api.schema import RowSchema
from stateflow.connectors.files.source import FileSource
from stateflow.runtime.task.row_conversion import row_maker, to_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "read-files.md"
Instant = Annotated[datetime, msgspec.Meta(tz=True)]
NAMES = {"datetime": datetime, "date": date, "Annotated": Annotated, "msgspec": msgspec}


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.M | re.S)


def _types() -> list[list[str]]:
    text = GUIDE.read_text(encoding="utf-8")
    table = text.partition("| Python type |")[2].partition("\n\n")[0].splitlines()[2:]
    return [re.findall(r"`([^`]+)`", line.split("|")[1] + line.split("|")[2]) for line in table]


def test_the_types_of_the_guide_are_those_of_columns() -> None:
    rows = _types()
    assert len(rows) == 8
    for python, spark in rows:
        of = msgspec.defstruct("Row", [("value", eval(python, NAMES))])
        assert RowSchema.of(of).column("value").spark_type == spark


# -- on Spark -----------------------------------------------------------------------------------------------------


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

JSON = [
    ('{"whole": 5, "number": 5, "text": 5}', Values(whole=5, number=5.0, text="5")),
    ('{"text": [1, {"a": 2.50}], "number": 1.5}', Values(text='[1, {"a": 2.50}]', number=1.5)),
    ('{"text": 12.50, "flag": true, "data": "aGk="}', Values(text="12.50", flag=True, data=b"hi")),
    ('{"day": "2026-01-31", "local": "2026-01-31T12:00:00"}', Values(day=date(2026, 1, 31), local=NOON)),
    ('{"instant": "2026-01-31T12:00:00Z"}', Values(instant=NOON.replace(tzinfo=UTC))),
    ('{"instant": "2026-01-31T14:00:00+02:00"}', Values(instant=NOON.replace(tzinfo=UTC))),
    ('{"instant": "2026-01-31T12:00:00"}', Values(instant=NOON.replace(tzinfo=UTC))),
    ('{"Whole": 5, "other": 1}', Values()),
]
CSV = [
    (
        "5,1.5,x,true,hi,2026-01-31,2026-01-31T12:00:00,2026-01-31T14:00:00+02:00",
        Values(5, 1.5, "x", True, b"hi", date(2026, 1, 31), NOON, NOON.replace(tzinfo=UTC)),
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


def _read(spark: SparkSession, folder: Path, format: str, text: str, row_class: type[Any], mode: str) -> list[Any]:
    path = folder / f"file.{format}"
    path.write_text(text + "\n")
    source = FileSource(folder, schema=row_class, format=format, mode=mode)
    table = source.read_files(spark, [path.as_uri()]).toArrow()
    (batch,) = table.combine_chunks().to_batches()
    return list(to_rows(batch.columns, row_maker(source.schema)))


@pytest.mark.spark
@pytest.mark.slow
def test_spark_reads_values_as_the_guide_describes(spark_session: SparkSession, tmp_path: Path) -> None:
    for format, cases in (("json", JSON), ("csv", CSV)):
        text = "\n".join(line for line, _ in cases)
        found = _read(spark_session, tmp_path, format, text, Values, mode="FAILFAST")
        for (line, expected), row in zip(cases, found, strict=True):
            assert expected is None or row == expected, line
    for format, text in CORRUPT:
        with pytest.raises(Exception, match="FAILED_READ_FILE") as refused:
            _read(spark_session, tmp_path, format, text, Values, mode="FAILFAST")
        unreadable = unreadable_in(str(refused.value))
        assert unreadable is not None and unreadable.is_corrupt, text
    silent = _read(spark_session, tmp_path, "json", '{"whole": 5.0, "text": "x"}\n{"wh', Values, mode="PERMISSIVE")
    assert silent == [Values(text="x"), Values()]


@pytest.mark.spark
@pytest.mark.slow
def test_the_example_of_the_guide_is_read_and_decoded(spark_session: SparkSession, tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(compile("\n".join(_blocks("python")), str(GUIDE), "exec", dont_inherit=True), names)
    (text,) = _blocks("json")
    (order,) = _read(spark_session, tmp_path, "json", text.strip(), names["Order"], mode="FAILFAST")
    assert order.time == datetime(2026, 1, 31, 10, tzinfo=UTC) and order.note is None
    assert names["price_per_piece"](order) == Decimal("6.25")
