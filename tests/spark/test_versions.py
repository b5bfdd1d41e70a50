"""What differs between versions of Spark: the same placement, and the settings and packages of each."""

from __future__ import annotations

from typing import Any

import pytest

from stateflow.config import spark_versions
from stateflow.config.spark_versions import (
    hash_of_int,
    kafka_package,
    partition_by_id,
    preimages_of_partitions,
    version_of,
)


def test_each_partition_has_an_integer_that_is_sent_there() -> None:
    for partitions in (1, 2, 7, 128, 4096):
        values = preimages_of_partitions(partitions)
        assert [hash_of_int(value) % partitions for value in values] == list(range(partitions))


@pytest.mark.matrix
@pytest.mark.spark
@pytest.mark.parametrize("substitute", [False, True], ids=["of-this-spark", "of-spark-4.0"])
@pytest.mark.parametrize("adaptive", ["true", "false"])
def test_rows_are_in_the_partition_that_they_name_and_empty_partitions_are_kept(
    spark_session: Any, substitute: bool, adaptive: str
) -> None:
    before = spark_session.conf.get("spark.sql.adaptive.enabled")
    spark_session.conf.set("spark.sql.adaptive.enabled", adaptive)
    place = spark_versions._partition_by_hash if substitute else partition_by_id
    try:
        # Only 5 of 11 partitions have rows, and one has most of them.
        numbers = spark_session.range(300).selectExpr("CAST(CASE WHEN id < 200 THEN 3 ELSE id % 5 * 2 END AS INT) AS n")
        placed = place(numbers, 11, "n")
        assert placed.rdd.getNumPartitions() == 11
        found = placed.selectExpr("n", "spark_partition_id() AS at").distinct().collect()
        assert sorted((row.n, row.at) for row in found) == [(n, n) for n in (0, 2, 3, 4, 6, 8)]
    finally:
        spark_session.conf.set("spark.sql.adaptive.enabled", before)


@pytest.mark.matrix
@pytest.mark.spark
def test_the_hash_of_an_integer_is_the_one_of_spark(spark_session: Any) -> None:
    numbers = [0, 1, 2, 42, 4096, 123_456_789, 2**31 - 1]
    row = spark_session.sql(f"SELECT {', '.join(f'hash({n})' for n in numbers)}").first()
    assert list(row) == [hash_of_int(n) for n in numbers]


@pytest.mark.matrix
@pytest.mark.spark
def test_this_version_has_what_the_table_says(spark_session: Any) -> None:
    version = version_of(spark_session.version)
    assert spark_versions.find_release() == spark_session.version
    assert hasattr(spark_session.range(1), "repartitionById") == version.has_repartition_by_id
    jvm = spark_session._jvm
    classes = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    assert classes.loadClass(version.checkpoint_manager).getSimpleName() == "FileSystemBasedCheckpointFileManager"
    known = getattr(jvm, "org.apache.spark.sql.internal.SQLConf$").__getattr__("MODULE$")
    sql = [key for key in version.required if key.startswith("spark.sql.")]
    assert all(known.getConfigEntry(key) is not None for key in sql)


def test_jars_follow_the_version_of_spark() -> None:
    packages = {minor: version_of(f"{minor}.1").delta_package for minor in ("4.0", "4.1", "4.2", "4.3")}
    assert packages == {
        "4.0": "io.delta:delta-spark_4.0_2.13:4.4.0",
        "4.1": "io.delta:delta-spark_4.1_2.13:4.4.0",
        "4.2": "io.delta:delta-spark_4.2_2.13:4.4.0",
        "4.3": "",
    }
    assert kafka_package("4.1.4") == "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.4"
    assert version_of("4.9.1").checkpoint_manager == version_of("4.3.0").checkpoint_manager
    assert version_of("4.9.1").delta_package == ""
