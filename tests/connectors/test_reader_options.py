"""Formats, options and columns of a file source: what it refuses, and what it warns of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from stateflow.connectors.files.source import LARGEST, READER_OPTIONS, FileSource, first_small_file
from stateflow.errors import ConfigError, SchemaMismatch
from tests.support.errors import raises

_WRITING = set(
    "compression codec orc.compress parquet.compression ignoreNullFields pretty sortKeys "
    "writeNonAsciiCharacterAsCodePoint quoteAll escapeQuotes extension".split()
)
_CLASSES = {
    "json": "catalyst.json.JSONOptions",
    "csv": "catalyst.csv.CSVOptions",
    "parquet": "execution.datasources.parquet.ParquetOptions",
    "orc": "execution.datasources.orc.OrcOptions",
    "text": "execution.datasources.text.TextOptions",
}


@dataclass
class Order:
    order_id: int
    customer: str
    note: str | None = None


@pytest.mark.parametrize(
    ("format", "options", "fact", "closest"),
    [
        ("jsn", {}, {"format": "jsn"}, "json"),
        ("parqet", {}, {"format": "parqet"}, "parquet"),
        ("json", {"mod": "FAILFAST"}, {"option": "mod"}, "mode"),
        ("csv", {"headr": "true"}, {"option": "headr"}, "header"),
        ("parquet", {"mergeShema": "true"}, {"option": "mergeShema"}, "mergeSchema"),
        ("orc", {"header": "true"}, {"option": "header"}, None),
    ],
)
def test_a_misspelling_is_refused_with_the_closest_name_or_with_all(
    format: str, options: dict[str, Any], fact: dict[str, Any], closest: str | None
) -> None:
    with raises(ConfigError, **fact) as raised:
        FileSource("/data", schema=Order, format=format, **options)
    (name,) = fact
    known = {"format": READER_OPTIONS}.get(name, READER_OPTIONS.get(format, ()))
    named = set(re.findall(r"\w+", raised.value.hint)) & set(known)
    assert named == ({closest} if closest else set(known))


@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("JSON", {"mode": "failfast", "MULTILINE": "true"}),
        ("csv", {"header": True, "sep": ";", "pathGlobFilter": "*.csv"}),
        ("parquet", {"fs.s3a.endpoint": "http://localhost:9000", "recursiveFileLookup": "true"}),
        ("text", {"wholetext": "true"}),
    ],
)
def test_names_in_any_case_and_hadoop_settings_are_accepted(format: str, options: dict[str, Any]) -> None:
    assert FileSource("/data", schema=Order, format=format, **options).format == format.lower()


@pytest.mark.parametrize(
    ("format", "option", "value"),
    [
        ("parquet", "datetimeRebaseMode", "JULIAN"),
        ("parquet", "INT96RebaseMode", ""),
        ("orc", "mergeSchema", "yes"),
        ("json", "recursiveFileLookup", "1"),
        ("json", "maxCachedFiles", "-1"),
    ],
)
def test_a_value_that_spark_would_refuse_in_each_batch_is_refused(format: str, option: str, value: str) -> None:
    with raises(ConfigError, option=option, value=value):
        FileSource("/data", schema=Order, format=format, **{option: value})  # type: ignore[arg-type]
    FileSource("/data", schema=Order, datetimeRebaseMode="legacy", mergeSchema="TRUE")


@pytest.mark.spark
@pytest.mark.parametrize("format", _CLASSES)
def test_each_option_that_sparks_reader_declares_is_known(spark: SparkSession, format: str) -> None:
    declared: Any = spark._jvm
    for part in f"org.apache.spark.sql.{_CLASSES[format]}".split("."):
        declared = getattr(declared, part)
    names = set(declared.getAllOptions().mkString(" ").split()) - _WRITING
    assert names <= READER_OPTIONS[format]


# -- columns that the first file lacks --------------------------------------------------------------------------------

STRICT: dict[str, Any] = {"mode": "FAILFAST"}
HEADER: dict[str, Any] = {"header": "true"}
FILES: list[tuple[str, str, dict[str, Any], list[list[str]]]] = [
    ("json", '{"order_id": 1, "customer": "a"}\n{"order_id": 2}\n', STRICT, []),
    ("json", '{"order_id": 1, "custmer": "a"}\nno json\n', STRICT, [["customer", "custmer order_id"]]),
    ("json", '{"note": "x"}\n', STRICT, [["order_id", "note"], ["customer", "note"]]),
    ("json", "", STRICT, []),
    ("csv", "order_id,customer,note\n1,a,b\n", {"header": True}, []),
    ("csv", "1,a,b\n", {}, []),
    ("csv", "1,a\n", {}, [["2", "3"]]),
    ("csv", "order_id;customer;note\n", {**HEADER, "sep": ";"}, []),
]
HEADERS: list[tuple[str, dict[str, Any], bool]] = [
    ("order_id,customer,note\n1,a,b\n", HEADER, True),
    ("Order_ID;customer;note\n", {**HEADER, "sep": ";"}, True),
    ("customer,order_id,note\na,1,b\n", HEADER, False),
    ("order_id,client,note\na,1,b\n", {"HEADER": "TRUE", "enforceSchema": "false"}, False),
    ("order_id,client,note\na,1,b\n", {**HEADER, "enforceSchema": "true"}, True),
]


def _check(warnings: Sequence[str], file: Path, expected: Sequence[Sequence[str]]) -> None:
    """Each warning has the file, and these rows of column names and these numbers."""
    for warning, lists in zip(warnings, expected, strict=True):
        before, after = warning.split(str(file))
        names = " ".join(re.findall(r"\b(?:order_id|custo?mer|note|\d+)\b", f"{before} {after}"))
        assert all(names_in_order in names for names_in_order in lists), warning


@pytest.mark.spark
def test_declared_columns_that_the_first_file_lacks_are_warnings(spark: SparkSession, tmp_path: Path) -> None:
    """JSON is compared by name, CSV by position."""
    for number, (format, text, options, expected) in enumerate(FILES):
        file = tmp_path / str(number) / f"a.{format}"
        file.parent.mkdir()
        file.write_text(text)
        source = FileSource(file.parent, schema=Order, format=format, **options)
        _check(source.warnings(spark), file, expected)
    file = tmp_path / "dated" / "order_id=abc" / "a.json"
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    (warning,) = FileSource(tmp_path / "dated", schema=Order, format="json").warnings(spark)
    assert str(file) in warning and "'abc'" in warning


@pytest.mark.spark
def test_a_header_with_other_columns_is_refused_because_spark_takes_them_by_position(
    spark: SparkSession, tmp_path: Path
) -> None:
    for number, (text, options, fits) in enumerate(HEADERS):
        file = tmp_path / str(number) / "a.csv"
        file.parent.mkdir()
        file.write_text(text)
        source = FileSource(file.parent, schema=Order, format="csv", **options)
        if fits:
            source.check(spark)
            continue
        with raises(SchemaMismatch, path=str(file), declared=list(source.schema.names)):
            source.check(spark)


def test_columns_that_are_not_compared_are_listed_and_large_files_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    places: list[tuple[str, str | Path]] = [
        ("json", tmp_path),
        ("json", "s3a://bucket/in"),
        ("csv", "s3a://bucket/in"),
        ("parquet", tmp_path),
    ]
    one_compared, json, csv, parquet = [
        FileSource(path, schema=Order, format=format).unchecked for format, path in places
    ]
    assert "json" in json and "csv" in csv and not parquet
    assert "json" in one_compared and one_compared != json
    large, empty, small = (tmp_path / name for name in "abc")
    with large.open("wb") as file:
        file.truncate(LARGEST + 1)
    empty.touch()
    small.write_text("x")
    assert first_small_file([large, empty]) is None
    assert first_small_file([large, empty, small]) == small
