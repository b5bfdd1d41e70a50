"""Reads Delta tables with Spark and writes their rows as Parquet files; runs as a separate program.

The demo compares the tables as *Spark* reads them, because users read them with Spark.

Usage: spark_export.py JARS TARGET NAME=TABLE...
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession


def main(jars: str, target: str, *tables: str) -> None:
    """Writes each table to ``TARGET/NAME``."""
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("flights demo: export")
        .config("spark.jars", ",".join(str(path) for path in sorted(Path(jars).glob("*.jar"))))
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.databricks.delta.snapshotPartitions", "2")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        # It runs for seconds: the JVM's second compiler would cost more time than it saves.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    for table in tables:
        name, _, path = table.partition("=")
        spark.read.format("delta").load(path).write.mode("overwrite").parquet(str(Path(target) / name))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
