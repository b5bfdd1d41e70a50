"""Spark's own stateful operators over the events: ``python -m benchmarks.peers.spark_native ORDER ANSWER``, JSON files.

The order's ``peer`` is ``spark_agg``, Spark's aggregation in update mode, or ``tws_row``, transformWithState over rows.
Both keep state in RocksDB and their output goes to Spark's sink that discards.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from benchmarks.peers.final import Final, check_final

_STATE_STORE = "spark.sql.streaming.stateStore"
SETTINGS = {
    # Spark's page on the RocksDB state store: changelog checkpoints, and no count of rows, which costs a look-up each.
    f"{_STATE_STORE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    f"{_STATE_STORE}.rocksdb.changelogCheckpointing.enabled": "true",
    f"{_STATE_STORE}.rocksdb.trackTotalNumberOfRows": "false",
    "spark.sql.shuffle.partitions": "2",
    # What our own sessions have, but for the raw local file system: Spark's state stores fail with it.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
}


class RunningMean(StatefulProcessor):
    """One row out for each row in. State is read and written once for the rows that a key has in a batch."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._sum = handle.getValueState("sum", "count bigint, total double")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        # Each call is a round trip to the JVM; asking first whether there is a value would be one more.
        count, total = self._sum.get() or (0, 0.0)
        for row in rows:
            count += 1
            total += row.value
            yield Row(key=key[0], count=count, mean=total / count)
        self._sum.update((count, total))

    def close(self) -> None:
        pass


def aggregated(events: DataFrame) -> DataFrame:
    """One row for each key that a batch has."""
    sums = events.groupBy("key").agg(F.count(F.lit(1)).alias("count"), F.sum("value").alias("total"))
    return sums.select("key", "count", (F.col("total") / F.col("count")).alias("mean"))


def transformed(events: DataFrame) -> DataFrame:
    """One row for each row."""
    return events.groupBy("key").transformWithState(
        RunningMean(), "key bigint, count bigint, mean double", outputMode="Update", timeMode="None"
    )


def main(order: dict[str, Any]) -> dict[str, Any]:
    """Runs the query until the files are read; when each batch ended, and whether the state is right."""
    builder = SparkSession.builder.appName(order["peer"]).master("local[2]")
    for name, value in {**SETTINGS, "spark.driver.memory": order["heap"]}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    checkpoint = Path(order["folder"]) / "checkpoint"
    progress = _run(spark, order, checkpoint)
    ends = batch_ends(progress)
    began = ends[0] - progress[0]["durationMs"]["triggerExecution"] / 1000
    final = _state(spark, order["peer"], checkpoint)
    return {
        "began": began,
        "ends": ends,
        "rows": [p["numInputRows"] for p in progress],
        "keys": check_final(final, Path(order["events"])),
    }


def _run(spark: SparkSession, order: dict[str, Any], checkpoint: Path) -> list[dict[str, Any]]:
    events = (
        spark.readStream.schema("key bigint, value double")
        .option("maxFilesPerTrigger", order["files_per_batch"])
        .parquet(Path(order["events"]).as_uri())
    )
    frame = aggregated(events) if order["peer"] == "spark_agg" else transformed(events)
    query: StreamingQuery = (
        frame.writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", checkpoint.as_uri())
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [json.loads(p.json) for p in query.recentProgress if p.numInputRows]


def batch_ends(progress: list[dict[str, Any]]) -> list[float]:
    """Seconds of the monotonic clock, which all measured programs use."""
    offset = time.time() - time.monotonic()
    return [
        datetime.fromisoformat(p["timestamp"]).timestamp() - offset + p["durationMs"]["triggerExecution"] / 1000
        for p in progress
    ]


def _state(spark: SparkSession, peer: str, checkpoint: Path) -> Final:
    reader = spark.read.format("statestore").option("path", checkpoint.as_uri())
    if peer == "tws_row":
        state = reader.option("stateVarName", "sum").load()
    else:
        state = reader.load()
    key, count, total = state.select(
        "key.key", "value.count", "value.sum" if peer == "spark_agg" else "value.total"
    ).toArrow()
    return Final(key.to_numpy(), count.to_numpy(), total.to_numpy())


if __name__ == "__main__":
    answer = main(json.loads(Path(sys.argv[1]).read_text()))
    Path(sys.argv[2]).write_text(json.dumps(answer))
