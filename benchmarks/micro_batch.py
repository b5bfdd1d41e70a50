"""The shortest time between two micro-batches: ten rows each, one operator, parallelism 2, warm."""

from __future__ import annotations

import itertools
import statistics
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.data import Events, write_events
from benchmarks.results import write_result
from benchmarks.runs import run_means

_WARM_UP = 40
EVENTS = Events(files=160, rows_per_file=10, keys=1000)


def run(folder: Path, events: Events = EVENTS, warm_up: int = _WARM_UP) -> Path:
    """Measures and writes ``micro-batch.json``; beside it Spark alone on the same files, which is the floor."""
    write_events(folder / "events", events)
    _, timeline = run_means(folder, parallelism="2")
    ours = timeline.intervals(warm_up)
    floor = _spark_alone(folder)[warm_up:]
    figures: dict[str, Any] = {
        "median_interval_ms": round(statistics.median(ours) * 1000, 1),
        "p90_interval_ms": round(statistics.quantiles(ours, n=10)[-1] * 1000, 1),
        "spark_alone_median_interval_ms": round(statistics.median(floor) * 1000, 1),
        "ratio_to_spark_alone": round(statistics.median(ours) / statistics.median(floor), 2),
        "median_batch_ms": round(statistics.median(r.seconds for r in timeline.results[warm_up:]) * 1000, 1),
        "batches": len(ours),
        "rows_per_batch": events.rows_per_file,
    }
    return write_result("micro-batch", figures)


def _spark_alone(folder: Path) -> list[float]:
    """A streaming query over the same files that only shuffles and counts: what no stateful engine on Spark's
    micro-batches can be faster than."""
    spark = SparkSession.getActiveSession()
    assert spark is not None
    times: list[float] = []

    def count(frame: DataFrame, _: int) -> None:
        frame.repartition(2, "key").groupBy().count().collect()
        times.append(time.monotonic())

    frame = spark.readStream.schema("key bigint, value double").option("maxFilesPerTrigger", "1")
    query = (
        frame.parquet(str(folder / "events"))
        .writeStream.foreachBatch(count)
        .option("checkpointLocation", (folder / "floor").as_uri())
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [after - before for before, after in itertools.pairwise(times)]
