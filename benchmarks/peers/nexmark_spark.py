"""A query of Nexmark in Spark: ``python -m benchmarks.peers.nexmark_spark ORDER ANSWER``, both JSON files.

The order has the query, and the events of each run in this process: the first runs warm the JVM up. The answer has when
each run began and ended, by the monotonic clock.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TypedDict

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.peers.spark_native import SETTINGS

_WATERMARK = "4 seconds"


class Order(TypedDict):
    """What to run.

    Attributes:
        events: the folder of the events of each run.
        columns: of the events, in Spark's DDL.
        query: in Spark SQL.
        function: the module whose function `result` takes the query's rows; empty without one.
        mode: the output mode.
        partition_by: columns of partitioned files; empty for a sink that drops rows.
        keep: whether rows are kept in files instead, in a folder for each batch.
        conf: further settings of Spark.
    """

    folder: str
    events: list[str]
    columns: str
    files_per_batch: int
    side_input: str
    statements: list[str]
    query: str
    function: str
    mode: str
    partition_by: list[str]
    keep: bool
    conf: dict[str, str]


def main(order: Order) -> dict[str, list[tuple[float, float]]]:
    """Runs the query to the end of each input."""
    builder = SparkSession.builder.appName("nexmark").master("local[2]")
    for name, value in {**SETTINGS, **order["conf"]}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    return {"runs": [_run(spark, order, run) for run in range(len(order["events"]))]}


def _run(spark: SparkSession, order: Order, run: int) -> tuple[float, float]:
    folder = Path(order["folder"]) / f"run{run}"
    began = time.monotonic()
    query = (
        _writer(_result(spark, order, order["events"][run]), order, folder)
        .option("checkpointLocation", (folder / "checkpoint").as_uri())
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return began, time.monotonic()


def _writer(frame: DataFrame, order: Order, folder: Path) -> DataStreamWriter:
    writer = frame.writeStream.outputMode(order["mode"])
    if order["partition_by"]:
        return writer.format("parquet").partitionBy(*order["partition_by"]).option("path", str(folder / "result"))
    if order["keep"]:
        return writer.foreachBatch(_kept_in(folder / "result"))
    return writer.format("noop")


def _kept_in(folder: Path) -> Callable[[DataFrame, int], None]:
    def keep(frame: DataFrame, batch: int) -> None:
        frame.write.parquet(str(folder / f"{batch:05d}"))

    return keep


def _result(spark: SparkSession, order: Order, folder: str) -> DataFrame:
    """Returns the result of the query over new streams of the events."""
    reader = spark.readStream.schema(order["columns"]).option("maxFilesPerTrigger", order["files_per_batch"])
    events = reader.parquet(folder)
    events.createOrReplaceTempView("datagen")
    spark.read.schema("key bigint, value string").csv(order["side_input"]).createOrReplaceTempView("side_input")
    for statement in order["statements"]:
        spark.sql(statement.replace("CREATE VIEW", "CREATE OR REPLACE TEMP VIEW"))
    for table in ("person", "auction", "bid"):
        # Watermarks need a timestamp with a time zone, which is UTC in this session.
        timed = spark.table(table).withColumn("dateTime", F.col("dateTime").cast("timestamp"))
        timed.withWatermark("dateTime", _WATERMARK).createOrReplaceTempView(f"timed_{table}")
    rows = spark.sql(order["query"])
    if not order["function"]:
        return rows
    result: DataFrame = import_module(order["function"]).result(rows)
    return result


if __name__ == "__main__":
    answer = main(json.loads(Path(sys.argv[1]).read_text()))
    Path(sys.argv[2]).write_text(json.dumps(answer))
