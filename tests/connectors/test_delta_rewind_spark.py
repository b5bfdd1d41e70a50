"""Going back in Delta tables that Spark writes to as well, and what Spark reads then."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from stateflow.api.sink import SinkRewind
from stateflow.connectors import DeltaSink
from stateflow.connectors.delta.log import checkpoint
from stateflow.errors import SinkDiverged
from tests.support.delta_tables import context, pairs, put, snapshot
from tests.support.errors import raises

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

_ABOUT = context()
_VECTORS = "delta.enableDeletionVectors = true"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "out"


def _made(spark: SparkSession, table: Path, properties: str = "") -> DeltaSink:
    """A table that Spark made, with checkpoint 1: rows 0 to 9."""
    spark.sql(
        f"CREATE TABLE delta.`{table}` (id BIGINT, text STRING) USING delta"
        + (f" TBLPROPERTIES ({properties})" if properties else "")
    )
    sink = DeltaSink(table)
    sink.prepare(_ABOUT)
    put(sink, _ABOUT, 1, pairs(0, 10))
    return sink


def _do(spark: SparkSession, table: Path, *statements: str) -> list[Any]:
    """What the last statement gives."""
    found: list[Any] = []
    for statement in statements:
        found = spark.sql(statement.format(t=f"delta.`{table}`")).collect()
    return found


def _rows(spark: SparkSession, table: Path, version: int | None = None) -> Counter[str]:
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    at = "" if version is None else f" VERSION AS OF {version}"
    return Counter(str(row) for row in spark.sql(f"SELECT * FROM delta.`{table}`{at}").collect())


def _go_back(spark: SparkSession, sink: DeltaSink, checkpoint_id: int, token: int) -> SinkRewind:
    """Rewinds, and compares the plan, and the stored rows, with what Spark reads of both versions."""
    table = Path(sink.table)
    handle = sink.open_table(_ABOUT)
    plan = handle.plan_rewind(checkpoint_id)
    before = _rows(spark, table)
    assert handle.rewind(plan.to_version, token) == plan.from_version + 1
    after = _rows(spark, table)
    assert after == _rows(spark, table, plan.to_version)
    counted = ((before - after).total(), (after - before).total())
    assert (plan.rows_removed, plan.rows_returned) == counted
    assert spark.sql(f"SELECT count(*) FROM delta.`{table}`").collect()[0][0] == after.total()
    return plan


def _others(plan: SinkRewind) -> list[tuple[int, str, int | None]]:
    return [(commit.version, commit.operation, commit.rows) for commit in plan.others]


@pytest.mark.parametrize(
    "properties",
    [
        f"delta.checkpointPolicy = 'v2', delta.checkpointInterval = 3, {_VECTORS}",
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in (
                "",
                _VECTORS,
                f"delta.checkpoint.writeStatsAsJson = false, delta.checkpoint.writeStatsAsStruct = true, "
                f"delta.checkpointInterval = 3, {_VECTORS}",
                "delta.enableChangeDataFeed = true",
            )
        ),
    ],
)
def test_a_rewind_undoes_what_spark_did_after_the_target(spark: SparkSession, table: Path, properties: str) -> None:
    sink = _made(spark, table, properties)
    _do(spark, table, "INSERT INTO {t} VALUES (50, 'x'), (51, 'x')", "DELETE FROM {t} WHERE id = 0")
    put(sink, _ABOUT, 2, pairs(20, 2))
    _do(
        spark,
        table,
        "DELETE FROM {t} WHERE id = 3",
        "UPDATE {t} SET text = 'y' WHERE id IN (4, 5)",
        "INSERT INTO {t} VALUES (60, 'x')",
        "DELETE FROM {t} WHERE id = 20",
    )
    plan = _go_back(spark, sink, 1, token=5)
    assert plan.to_version == 3
    assert _others(plan) == [(5, "DELETE", -1), (6, "UPDATE", 0), (7, "WRITE", 1), (8, "DELETE", -1)]
    put(sink, _ABOUT, 6, pairs(70, 1))
    _do(spark, table, "INSERT INTO {t} VALUES (80, 'x')")
    assert _rows(spark, table).total() == 9 + 2 + 2
    # Checkpoint 2, which was undone, with all that others did until then.
    assert _go_back(spark, sink, 2, token=7).to_version == 8
    checkpoint(table)
    found = _do(spark, table, "SELECT id FROM {t} WHERE id > 2 AND id < 30 ORDER BY id")
    assert [row.id for row in found] == [4, 5, 6, 7, 8, 9, 21]


def test_a_rewind_restores_the_deletion_vectors_of_its_target(spark: SparkSession, table: Path) -> None:
    sink = _made(spark, table, _VECTORS)
    _do(spark, table, "DELETE FROM {t} WHERE id = 2")
    put(sink, _ABOUT, 2, pairs(20, 1))
    _do(spark, table, "DELETE FROM {t} WHERE id IN (5, 6)")
    assert list(table.glob("deletion_vector_*"))
    plan = _go_back(spark, sink, 1, token=5)
    assert (plan.rows_removed, plan.rows_returned) == (1, 2)
    # Checkpoint 2, with the DELETE that came after it.
    plan = _go_back(spark, sink, 2, token=6)
    assert (plan.to_version, plan.rows_removed, plan.rows_returned) == (4, 2, 1)
    assert sink.sweep(_ABOUT, lambda generation, ordinal, path: True) == []


def test_a_rewind_to_a_missing_deletion_vector_is_refused(spark: SparkSession, table: Path) -> None:
    sink = _made(spark, table, _VECTORS)
    _do(spark, table, "DELETE FROM {t} WHERE id = 2")
    [vector] = table.glob("deletion_vector_*")
    put(sink, _ABOUT, 2, pairs(20, 1))
    _do(spark, table, "DELETE FROM {t} WHERE id = 3")
    vector.unlink()
    before = snapshot(table)
    with raises(SinkDiverged, files=[vector.name], missing=1):
        sink.open_table(_ABOUT).plan_rewind(1)
    with raises(SinkDiverged, files=[vector.name], missing=1):
        sink.open_table(_ABOUT).rewind(2, token=5)
    assert snapshot(table) == before


@pytest.mark.parametrize("properties", [pytest.param("", marks=pytest.mark.slow), _VECTORS])
def test_compaction_by_spark_is_neither_listed_nor_counted(spark: SparkSession, table: Path, properties: str) -> None:
    sink = _made(spark, table, properties)
    put(sink, _ABOUT, 2, pairs(20, 2))
    _do(spark, table, "OPTIMIZE {t}")
    put(sink, _ABOUT, 3, pairs(30, 3))
    plan = _go_back(spark, sink, 1, token=5)
    assert (plan.rows_removed, plan.rows_returned, plan.others) == (5, 0, ())
    _do(spark, table, "OPTIMIZE {t}")
    plan = _go_back(spark, sink, 2, token=6)
    assert (plan.to_version, plan.rows_removed, plan.rows_returned, plan.others) == (3, 0, 2, ())


def test_a_rewind_to_files_that_spark_has_vacuumed_is_refused(spark: SparkSession, table: Path) -> None:
    sink = _made(spark, table)
    put(sink, _ABOUT, 2, pairs(20, 2))
    then = {unquote(uri.rpartition("/")[2]) for uri in DeltaTable(str(table), version=1).file_uris()}
    _do(spark, table, "OPTIMIZE {t}")
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    try:
        _do(spark, table, "VACUUM {t} RETAIN 0 HOURS")
    finally:
        spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
    before = snapshot(table)
    with raises(SinkDiverged, files=sorted(then), missing=len(then)):
        sink.open_table(_ABOUT).plan_rewind(1)
    assert snapshot(table) == before


def test_an_added_column_stays_and_is_null(spark: SparkSession, table: Path) -> None:
    sink = _made(spark, table)
    put(sink, _ABOUT, 2, pairs(20, 2))
    _do(spark, table, "ALTER TABLE {t} ADD COLUMN more INT", "INSERT INTO {t} VALUES (30, 'x', 1)")
    handle = sink.open_table(_ABOUT)
    plan = handle.plan_rewind(1)
    assert _others(plan) == [(plan.from_version, "WRITE", 1)]
    assert handle.rewind(plan.to_version, token=5) is not None
    rows = spark.sql(f"SELECT id, more FROM delta.`{table}`").collect()
    assert sorted(tuple(row) for row in rows) == [(i, None) for i in range(10)]


def test_the_change_data_feed_contains_the_rewind(spark: SparkSession, table: Path) -> None:
    sink = _made(spark, table, "delta.enableChangeDataFeed = true")
    put(sink, _ABOUT, 2, pairs(20, 2))
    plan = _go_back(spark, sink, 1, token=5)
    options = {"readChangeFeed": "true", "startingVersion": str(plan.from_version + 1)}
    changes = spark.read.format("delta").options(**options).load(str(table)).collect()
    assert sorted((row.id, row._change_type) for row in changes) == [(20, "delete"), (21, "delete")]


def test_spark_and_deltalake_show_the_rewind_in_the_history(spark: SparkSession, table: Path) -> None:
    sink = _made(spark, table)
    put(sink, _ABOUT, 2, pairs(20, 2))
    _go_back(spark, sink, 1, token=5)
    [newest] = spark.sql(f"DESCRIBE HISTORY delta.`{table}` LIMIT 1").collect()
    assert (newest.operation, newest.operationParameters["version"]) == ("RESTORE", "1")
    assert newest.userMetadata == DeltaTable(str(table)).history(1)[0]["userMetadata"]
    assert (newest.operationMetrics["numRemovedFiles"], newest.isBlindAppend) == ("1", False)
