"""Spark's queries that MERGE each batch into a Delta table: ``python -m benchmarks.peers.delta_spark ORDER ANSWER``.

The order's ``peer`` is a name of `PEERS`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from benchmarks.peers.final import check_table
from benchmarks.peers.spark_native import SETTINGS, batch_ends

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import TimerValues

_STORE = "spark.sql.streaming.stateStore.providerClass"
_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Of 50 by default, of which each is a task.
    "spark.databricks.delta.snapshotPartitions": "2",
    # No checkpoint of the log within the timed batches: DeltaSink leaves it to the next start.
    "spark.databricks.delta.properties.defaults.checkpointInterval": "1000",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
# As our own sessions have it: files without checksum files. Not for peers with state, whose stores fail with it.
_RAW_FILES = {
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing."
    "FileSystemBasedCheckpointFileManager",
}
_NOT_MATERIALIZED = {"spark.databricks.delta.merge.materializeSource": "none"}
_IN_MEMORY = {_STORE: "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"}
_COUNTS = "key bigint, count bigint"
_ROWS = "key bigint, value double, text string"


class CountOfKey(StatefulProcessor):
    """One row out for each key that a batch has. State is read and written once for it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "count bigint")

    def handleInputRows(self, key: tuple[int, ...], rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:
        (before,) = self._count.get() or (0,)
        count = before + sum(1 for _ in rows)
        self._count.update((count,))
        yield Row(key=key[0], count=count)

    def close(self) -> None:
        pass


def _events(spark: SparkSession, order: Mapping[str, str]) -> DataFrame:
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", order["brokers"])
    reader = reader.option("subscribe", order["topic"]).option("startingOffsets", "earliest")
    records = reader.option("maxOffsetsPerTrigger", order["rows_per_batch"]).load()
    event = F.from_json(F.col("value").cast("string"), "key bigint, value double")
    return records.select(event.alias("event")).select("event.*")


def _counted(spark: SparkSession, order: Mapping[str, str]) -> DataFrame:
    return _events(spark, order).groupBy("key").count()


def _transformed(spark: SparkSession, order: Mapping[str, str]) -> DataFrame:
    keyed = _events(spark, order).groupBy("key")
    return keyed.transformWithState(CountOfKey(), _COUNTS, outputMode="Update", timeMode="None")


def _rows(spark: SparkSession, order: Mapping[str, str]) -> DataFrame:
    return spark.readStream.schema(_ROWS).option("maxFilesPerTrigger", 2).parquet(Path(order["rows"]).as_uri())


@dataclass(frozen=True)
class Peer:
    """A query.

    Attributes:
        frame: what is merged.
        columns: of the table.
        settings: of the session, in addition to those of all peers.
        properties: of the table.
    """

    frame: Callable[[SparkSession, Mapping[str, str]], DataFrame]
    columns: str
    settings: Mapping[str, str]
    properties: Mapping[str, str]


PEERS = {
    "spark_agg": Peer(_counted, _COUNTS, {}, {}),
    "spark_agg_memory": Peer(_counted, _COUNTS, _IN_MEMORY, {}),
    "tws_row": Peer(_transformed, _COUNTS, {}, {}),
    "merge": Peer(_rows, _ROWS, _RAW_FILES, {}),
    "merge_direct": Peer(_rows, _ROWS, _RAW_FILES | _NOT_MATERIALIZED, {}),
    "merge_vectors": Peer(_rows, _ROWS, _RAW_FILES, {"delta.enableDeletionVectors": "true"}),
}


def main(order: Mapping[str, str]) -> dict[str, object]:
    """Runs the query until its input is read; when each batch ended, and whether the table is right."""
    peer = PEERS[order["peer"]]
    builder = SparkSession.builder.appName(order["peer"]).master("local[2]").config("spark.jars", order["jars"])
    for name, value in {**SETTINGS, **_DELTA, **peer.settings, "spark.driver.memory": order["heap"]}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    table = str(Path(order["folder"]) / "table")
    _create(spark, table, peer)
    query = (
        peer.frame(spark, order)
        .writeStream.foreachBatch(_merge_into(table))
        .outputMode("update")
        .option("checkpointLocation", (Path(order["folder"]) / "checkpoint").as_uri())
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    progress = [json.loads(p.json) for p in query.recentProgress if "addBatch" in p.durationMs]
    ends = batch_ends(progress)
    keys = check_table(spark.read.format("delta").load(table).toArrow(), Path(order["expected"]))
    began = ends[0] - progress[0]["durationMs"]["triggerExecution"] / 1000
    return {"began": began, "ends": ends, "keys": keys, "commits": len(ends)}


def _create(spark: SparkSession, table: str, peer: Peer) -> None:
    builder = DeltaTable.create(spark).location(table)
    for column in peer.columns.split(", "):
        name, kind = column.split(" ")
        builder = builder.addColumn(name, kind)
    for name, value in peer.properties.items():
        builder = builder.property(name, value)
    builder.execute()


def _merge_into(table: str) -> Callable[[DataFrame, int], None]:
    """Returns the function of ``foreachBatch``.

    MERGE reads `frame` twice. Delta first writes its rows to Spark's local disk, because they come from something else
    than Delta tables; so it computes `frame` once, unless a setting forbids that. It refuses a cached source then.
    """

    def merge(frame: DataFrame, _: int) -> None:
        target = DeltaTable.forPath(frame.sparkSession, table).alias("t")
        merged = target.merge(frame.alias("s"), "t.key = s.key")
        merged.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()

    return merge


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(main(json.loads(Path(sys.argv[1]).read_text()))))
