"""Tables of sinks under their names in the catalog of a Spark session."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stateflow.api.sink import CatalogEntry
from stateflow.connectors import DeltaSink
from stateflow.errors import ConfigError
from stateflow.runtime.spark.table_registration import check_entry, register_tables, warn_of_lost_names
from tests.support.delta_tables import context, pairs, put, snapshot
from tests.support.errors import raises

pytestmark = pytest.mark.spark

_ABOUT = context()


@pytest.fixture
def spark(spark_session: SparkSession, tmp_path: Path) -> Iterator[SparkSession]:
    """A session with an empty schema ``named``."""
    spark_session.sql(f"CREATE SCHEMA named LOCATION '{tmp_path / 'named'}'")
    yield spark_session
    spark_session.sql("DROP SCHEMA named CASCADE")


def _sink(table: Path, name: str = "named.pairs") -> DeltaSink:
    return DeltaSink(table, register_as=name)


def _entry(table: Path, name: str = "named.pairs") -> CatalogEntry:
    entry = _sink(table, name).catalog_entry
    assert entry is not None
    return entry


@pytest.mark.slow(reason="needs a catalog of Spark's own")
def test_a_registered_table_is_read_by_name_and_not_changed(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "it's a table; `really`"
    sink = _sink(table)
    check_entry(spark, _entry(table))
    sink.prepare(_ABOUT)
    put(sink, _ABOUT, 1, pairs(1, 2))
    before = snapshot(table)
    # By two runs, and by a run that was killed before it knew.
    for _ in range(2):
        check_entry(spark, _entry(table))
        register_tables(spark, [sink])
    assert snapshot(table) == before
    assert [row.id for row in spark.table("named.pairs").orderBy("id").collect()] == [1, 2]
    put(sink, _ABOUT, 2, pairs(3, 1))
    assert spark.table("spark_catalog.named.pairs").count() == 3
    assert warn_of_lost_names(spark, [_entry(table)]) and not warn_of_lost_names(
        spark, [_entry(table, "other.named.pairs")]
    )


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("CREATE TABLE named.pairs (id INT) USING delta", "delta"),
        ("CREATE TABLE named.pairs (Location INT) USING parquet LOCATION '{table}'", "parquet"),
        ("CREATE VIEW named.pairs AS SELECT 1 AS id", "VIEW"),
    ],
)
def test_a_name_of_something_else_is_refused_before_the_table_is_created(
    spark: SparkSession, tmp_path: Path, statement: str, kind: str
) -> None:
    table = tmp_path / "table"
    spark.sql(statement.format(table=table))
    with raises(ConfigError, name="named.pairs", table=str(table), kind=kind):
        check_entry(spark, _entry(table))


def test_a_name_whose_folder_was_deleted_is_still_the_name_of_that_folder_only(
    spark: SparkSession, tmp_path: Path
) -> None:
    sink = _sink(tmp_path / "table")
    sink.prepare(_ABOUT)
    register_tables(spark, [sink])
    shutil.rmtree(sink.table)
    with raises(ConfigError, name="named.pairs", found=f"file:{sink.table}"):
        check_entry(spark, _entry(tmp_path / "other"))
    check_entry(spark, _entry(tmp_path / "table"))
    sink = _sink(tmp_path / "table")
    sink.prepare(_ABOUT)
    put(sink, _ABOUT, 1, pairs(7, 1))
    register_tables(spark, [sink])
    assert spark.table("named.pairs").count() == 1


def test_a_missing_schema_catalog_or_extension_is_an_error_of_the_settings(spark: SparkSession, tmp_path: Path) -> None:
    with raises(ConfigError, name="nowhere.pairs"):
        check_entry(spark, _entry(tmp_path, "nowhere.pairs"))
    with raises(ConfigError, missing=["spark.sql.catalog.unity"]):
        check_entry(spark, _entry(tmp_path, "unity.named.pairs"))
    other = spark.newSession()
    other.conf.set("spark.sql.catalog.spark_catalog", "")
    with raises(ConfigError, missing=["spark.sql.catalog.spark_catalog"]):
        check_entry(other, _entry(tmp_path))


@pytest.mark.parametrize("name", ["pairs", "a.b.c.d", "a..b", "a.`b`", "a.b; DROP TABLE c", "a.b\n", "a.b c", "ä.b"])
def test_a_name_that_would_have_to_be_quoted_is_refused(tmp_path: Path, name: str) -> None:
    with raises(ConfigError, given=name):
        DeltaSink(tmp_path / "table", register_as=name)
