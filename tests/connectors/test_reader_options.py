"""A file source refuses formats, options and modes that Spark's readers do not have."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import SparkSession

from stateflow.connectors.files.reader_options import MODES, READER_OPTIONS
from stateflow.connectors.files.source import FileSource
from stateflow.errors import ConfigError
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
class Row:
    number: int


@pytest.mark.parametrize(
    ("format", "options", "fact", "closest"),
    [
        ("jsn", {}, {"format": "jsn"}, "json"),
        ("parqet", {}, {"format": "parqet"}, "parquet"),
        ("json", {"mod": "FAILFAST"}, {"option": "mod"}, "mode"),
        ("csv", {"headr": "true"}, {"option": "headr"}, "header"),
        ("parquet", {"mergeShema": "true"}, {"option": "mergeShema"}, "mergeSchema"),
        ("orc", {"header": "true"}, {"option": "header"}, None),
        ("json", {"mode": "FAILFAS"}, {"mode": "FAILFAS"}, "FAILFAST"),
        ("csv", {"Mode": "permisive"}, {"mode": "permisive"}, "PERMISSIVE"),
        ("csv", {"mode": ""}, {"mode": ""}, None),
    ],
)
def test_a_misspelling_is_refused_with_the_closest_name_or_with_all(
    format: str, options: dict[str, Any], fact: dict[str, Any], closest: str | None
) -> None:
    with raises(ConfigError, **fact) as raised:
        FileSource("/data", schema=Row, format=format, **options)
    known = {"format": READER_OPTIONS, "mode": MODES}.get(*fact, READER_OPTIONS.get(format, ()))
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
    assert FileSource("/data", schema=Row, format=format, **options).format == format.lower()


@pytest.mark.spark
@pytest.mark.parametrize("format", _CLASSES)
def test_each_option_that_sparks_reader_declares_is_known(spark: SparkSession, format: str) -> None:
    declared: Any = spark._jvm
    for part in f"org.apache.spark.sql.{_CLASSES[format]}".split("."):
        declared = getattr(declared, part)
    names = set(declared.getAllOptions().mkString(" ").split()) - _WRITING
    assert names <= READER_OPTIONS[format]
