"""An aggregation of Structured Streaming over a topic, imported, and a run that continues from it; as a program.

``python -m tests.spark.imported_kafka HOME BROKERS TOPIC JARS`` runs the query over the records of the topic, prints
its offset, and waits for a line. Then it writes the savepoint and runs `tests.spark.jobs.imported_kafka` from it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import functions as F

from stateflow import SavepointWriter, SparkCheckpoint
from stateflow.launch import RunRequest, run_job
from stateflow.runtime.restore.new_job_root import InitialSavepoint
from tests.spark.jobs import imported, imported_kafka
from tests.spark.structured_streaming import ORDER, new_session


def _main(home: Path, brokers: str, topic: str, jars: str) -> None:
    spark = new_session({"spark.jars": jars})
    options = {"kafka.bootstrap.servers": brokers, "subscribe": topic, "startingOffsets": "earliest"}
    records = spark.readStream.format("kafka").options(**options).load()
    orders = records.select(F.from_json(F.col("value").cast("string"), ORDER).alias("order")).select("order.*")
    sums = orders.groupBy("shop").agg(F.count("*"), F.sum("amount"))
    query = sums.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
    query.option("checkpointLocation", str(home / "query")).start().awaitTermination()
    checkpoint = SparkCheckpoint(home / "query")
    print(checkpoint.offsets[0], flush=True)
    sys.stdin.readline()
    writer = SavepointWriter.new(job="imported_kafka")
    stats = checkpoint.state(spark).frame(imported.STATS, value={"orders": "value.count", "total": "value.sum"})
    writer.with_operator("counts", key="shop", states=[stats])
    source = imported_kafka.source(brokers, topic)
    writer.with_source("orders", source, checkpoint.source_position(source))
    writer.write(str(home / "savepoint"))
    layers = (
        {"job.home": str(home), "job.brokers": brokers, "job.topic": topic, "local_dir": str(home / "local")},
        {"spark.conf.spark.jars": jars},
    )
    initial = InitialSavepoint(str(home / "savepoint"))
    run_job(RunRequest(Path(imported_kafka.__file__), str(home / "root"), layers, initial_savepoint=initial))


if __name__ == "__main__":
    _main(Path(sys.argv[1]), *sys.argv[2:])
