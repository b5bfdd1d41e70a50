"""A keyed query of Spark alone, for ``benchmarks/cluster.py``: arguments are peer, folder of events, checkpoint.

The peer is ``spark_agg`` or ``tws_row``, as in `benchmarks.peers.spark_native`.
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.peers.spark_native import SETTINGS, aggregated, transformed


def main(peer: str, events: str, checkpoint: str) -> None:
    """Runs the query over all events, to Spark's sink that discards."""
    builder = SparkSession.builder.appName(peer)
    for name, value in SETTINGS.items():
        # The path of a socket in a container's folder is too long.
        if "unix.domain.socket" not in name:
            builder = builder.config(name, value)
    spark = builder.getOrCreate()
    frame = spark.readStream.schema("key bigint, value double").parquet(Path(events).as_uri())
    query = (aggregated if peer == "spark_agg" else transformed)(frame).writeStream.format("noop")
    query = query.outputMode("update").option("checkpointLocation", Path(checkpoint).as_uri())
    query.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
