"""Tables that Spark made, feature by feature: which the sink honours, and which it refuses by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from stateflow.connectors import DeltaSink
from stateflow.connectors.delta.log import checkpoint
from stateflow.errors import SinkRefused
from tests.support.delta_tables import context, pairs, put, snapshot
from tests.support.errors import raises

pytestmark = pytest.mark.spark

_ABOUT = context()
_COLUMNS = "id BIGINT, text STRING"


def _create(spark: SparkSession, table: Path, definition: str) -> None:
    for statement in definition.split(";"):
        spark.sql(statement.format(t=f"delta.`{table}`")).collect()


def _with(properties: str) -> str:
    return f"CREATE TABLE {{t}} ({_COLUMNS}) USING delta TBLPROPERTIES ({properties})"


_PLAIN = f"CREATE TABLE {{t}} ({_COLUMNS}) USING delta"

_HONOURED = {
    "plain": _PLAIN,
    "appendOnly": _with("delta.appendOnly = true"),
    "deletionVectors": _with("delta.enableDeletionVectors = true"),
    "changeDataFeed": _with("delta.enableChangeDataFeed = true"),
    "v2Checkpoint": _with("delta.checkpointPolicy = 'v2'"),
    "timestampNtz": f"CREATE TABLE {{t}} ({_COLUMNS}, more TIMESTAMP_NTZ) USING delta",
    "checkConstraints": f"{_with('delta.enableDeletionVectors = true')};"
    "ALTER TABLE {t} ADD CONSTRAINT positive CHECK (id > 0); ALTER TABLE {t} DROP CONSTRAINT positive",
    "generatedColumns": _with("delta.feature.generatedColumns = 'supported'"),
    "old protocol, comments, further columns": "CREATE TABLE {t} (more STRUCT<a: INT>, text STRING COMMENT 'x', "
    "id BIGINT) USING delta COMMENT 'y' TBLPROPERTIES (delta.minReaderVersion = 1, delta.minWriterVersion = 4)",
}

_REFUSED = {
    "property delta.columnMapping.mode": _with(
        "delta.minReaderVersion = 2, delta.minWriterVersion = 5,delta.columnMapping.mode = 'name'"
    ),
    "feature columnMapping": _with("delta.columnMapping.mode = 'id', delta.enableDeletionVectors = true"),
    "property PARTITIONED BY, column text": f"{_PLAIN} PARTITIONED BY (text)",
    "property NOT NULL, column more": f"CREATE TABLE {{t}} ({_COLUMNS}, more INT NOT NULL) USING delta",
    "property delta.constraints.positive": f"{_PLAIN}; ALTER TABLE {{t}} ADD CONSTRAINT positive CHECK (id > 0)",
    "property delta.generationExpression, column more": (
        f"CREATE TABLE {{t}} ({_COLUMNS}, more BIGINT GENERATED ALWAYS AS (id + 1)) USING delta"
    ),
    "feature identityColumns": f"CREATE TABLE {{t}} ({_COLUMNS}, more BIGINT GENERATED ALWAYS AS IDENTITY) USING delta",
    "feature allowColumnDefaults": f"CREATE TABLE {{t}} ({_COLUMNS}, more INT DEFAULT 7) USING delta "
    "TBLPROPERTIES (delta.feature.allowColumnDefaults = 'supported')",
    "feature rowTracking": _with("delta.feature.rowTracking = 'supported'"),
    "feature inCommitTimestamp": _with("delta.enableInCommitTimestamps = true"),
    "feature clustering": f"{_PLAIN} CLUSTER BY (id)",
    "feature typeWidening": _with("delta.enableTypeWidening = true"),
    "feature variantType": f"CREATE TABLE {{t}} ({_COLUMNS}, more VARIANT) USING delta",
    "feature icebergCompatV2": _with("delta.enableIcebergCompatV2 = true, delta.columnMapping.mode = 'name'"),
    "feature domainMetadata": _with("delta.feature.domainMetadata = 'supported'"),
    "feature checkpointProtection": _with("delta.feature.checkpointProtection = 'supported'"),
    "property delta.setTransactionRetentionDuration": _with(
        "delta.setTransactionRetentionDuration = 'interval 30 days'"
    ),
}


def _ids(spark: SparkSession, table: Path) -> list[int]:
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    return sorted(row.id for row in spark.sql(f"SELECT id FROM delta.`{table}`").collect())


@pytest.mark.parametrize("feature", _HONOURED)
def test_a_table_with_a_supported_feature_is_published_to(spark: SparkSession, tmp_path: Path, feature: str) -> None:
    table = tmp_path / "out"
    _create(spark, table, _HONOURED[feature])
    sink = DeltaSink(table)
    sink.prepare(_ABOUT)
    put(sink, _ABOUT, 1, pairs(1, 3))
    spark.sql(f"INSERT INTO delta.`{table}` (id, text) VALUES (10, 'x')").collect()
    checkpoint(table)
    put(sink, _ABOUT, 2, pairs(4, 1))
    assert _ids(spark, table) == [1, 2, 3, 4, 10]


@pytest.mark.parametrize("named", _REFUSED)
def test_a_table_with_an_unsupported_feature_is_refused_by_name(
    spark: SparkSession, tmp_path: Path, named: str
) -> None:
    table = tmp_path / "out"
    _create(spark, table, _REFUSED[named])
    facts = dict(fact.split(" ", 1) for fact in named.split(", "))
    before = snapshot(table)
    for call in (DeltaSink(table).check, DeltaSink(table).prepare, DeltaSink(table).open_table):
        with raises(SinkRefused, table=str(table)) as caught:
            call(_ABOUT)
        found = caught.value.facts
        also: Any = found.get("also", [])
        assert facts.items() <= found.items() or " ".join(facts.values()) in also, found
        assert caught.value.hint
    assert snapshot(table) == before


def test_rows_deleted_with_deletion_vectors_stay_deleted(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "out"
    _create(spark, table, _HONOURED["deletionVectors"])
    sink = DeltaSink(table)
    sink.prepare(_ABOUT)
    put(sink, _ABOUT, 1, pairs(0, 5))
    spark.sql(f"DELETE FROM delta.`{table}` WHERE id = 2").collect()
    assert list(table.glob("deletion_vector_*")), "the file was rewritten"
    put(sink, _ABOUT, 2, pairs(5, 5))
    spark.sql(f"DELETE FROM delta.`{table}` WHERE id = 7").collect()
    checkpoint(table)
    put(sink, _ABOUT, 3, pairs(10, 1))
    kept = [0, 1, 3, 4, 5, 6, 8, 9, 10]
    assert _ids(spark, table) == kept
    assert spark.sql(f"SELECT count(*), min(id), max(id) FROM delta.`{table}`").collect() == [(len(kept), 0, 10)]
    assert sink.sweep(_ABOUT, lambda generation, ordinal, path: True) == []


def test_the_change_data_feed_has_what_was_published(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "out"
    _create(spark, table, _HONOURED["changeDataFeed"])
    sink = DeltaSink(table)
    sink.prepare(_ABOUT)
    put(sink, _ABOUT, 1, pairs(0, 2))
    put(sink, _ABOUT, 2, pairs(2, 1))
    options = {"readChangeFeed": "true", "startingVersion": "1"}
    changes = spark.read.format("delta").options(**options).load(str(table)).collect()
    found = sorted((row.id, row._change_type, row._commit_version) for row in changes)
    assert found == [(0, "insert", 1), (1, "insert", 1), (2, "insert", 2)]
