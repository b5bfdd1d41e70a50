"""Declared columns that the first JSON or CSV file lacks are warnings of `check` and `plan`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stateflow.connectors.files.first_file import LARGEST, first_small_file
from stateflow.connectors.files.source import FileSource


@dataclass
class Order:
    order_id: int
    customer: str
    note: str | None = None


JSON = [
    ('{"order_id": 1, "customer": "a"}\n{"order_id": 2}\n', []),
    ('{"order_id": 1, "custmer": "a"}\nno json\n', [["customer", "custmer order_id"]]),
    ('{"note": "x"}\n', [["order_id", "note"], ["customer", "note"]]),
    ("", []),
]
CSV = [
    ("order_id,customer,note\n1,a,b\n", {"header": True}, []),
    ("customer,order_id,note\na,1,b\n", {"header": "true"}, [["customer order_id note", "order_id customer note"]]),
    ("1,a,b\n", {}, []),
    ("1,a\n", {}, [["2", "3"]]),
    ("order_id;customer;note\n", {"header": "true", "sep": ";"}, []),
]


def _check(warnings: Sequence[str], file: Path, expected: Sequence[Sequence[str]]) -> None:
    """Each warning has the file, and these rows of column names and these numbers."""
    for warning, lists in zip(warnings, expected, strict=True):
        before, after = warning.split(str(file))
        names = " ".join(re.findall(r"\b(?:order_id|custo?mer|note|\d+)\b", f"{before} {after}"))
        assert all(names_in_order in names for names_in_order in lists), warning


@pytest.mark.spark
def test_columns_that_no_record_has_are_named(spark: SparkSession, tmp_path: Path) -> None:
    for number, (text, expected) in enumerate(JSON):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "a.json").write_text(text)
        source = FileSource(folder, schema=Order, format="json", mode="FAILFAST")
        _check(source.warnings(spark), folder / "a.json", expected)


@pytest.mark.spark
def test_csv_is_compared_by_position(spark: SparkSession, tmp_path: Path) -> None:
    for number, (text, options, expected) in enumerate(CSV):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "a.csv").write_text(text)
        source = FileSource(folder, schema=Order, format="csv", **options)  # type: ignore[arg-type]
        _check(source.warnings(spark), folder / "a.csv", expected)


def test_what_no_file_shows_is_listed_as_unchecked(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    places = [("json", tmp_path), ("json", tmp_path / "*.json"), ("csv", "s3a://bucket/in"), ("parquet", tmp_path)]
    one_compared, json, csv, parquet = [
        FileSource(path, schema=Order, format=format).unchecked for format, path in places
    ]
    assert "json" in json and "csv" in csv and not parquet
    assert "json" in one_compared and one_compared != json


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    large, empty, small = (tmp_path / name for name in "abc")
    with large.open("wb") as file:
        file.truncate(LARGEST + 1)
    empty.touch()
    small.write_text("x")
    assert first_small_file([large, empty]) is None
    assert first_small_file([large, empty, small]) == small
