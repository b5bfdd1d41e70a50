"""The shortest time between two micro-batches of ten rows, parallelism 2, warm: one level of operators, then more."""

from __future__ import annotations

import itertools
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.data import Events, write_events
from benchmarks.results import write_result
from benchmarks.runs import Timeline, run_timed

JOB = Path(__file__).parent / "jobs" / "levels.py"
_LEVELS = (1, 2, 3)


@dataclass(frozen=True)
class Size:
    """How many batches are measured, how many before them are not, and how many rows each has."""

    batches: int = 120
    warm_up: int = 40
    rows: int = 10


def run(folder: Path) -> Path:
    """Measures and writes ``micro-batch.json``."""
    return write_result("micro-batch", measure(folder, Size()))


def measure(folder: Path, size: Size) -> dict[str, Any]:
    """Jobs of one level and more over the same files; and Spark alone, which is the floor.

    The first job only warms up: a JVM compiles for hundreds of batches, so a job that runs later would be faster.
    """
    events = folder / "events"
    write_events(events, Events(size.warm_up + size.batches, size.rows, keys=1000))
    _timeline(folder, "first", 1)
    synchronous = _timeline(folder, "synchronous", 1, asynchronous=False)
    jobs = {levels: _timeline(folder, f"levels-{levels}", levels) for levels in _LEVELS}
    medians = {levels: _median_ms(timeline.intervals(size.warm_up)) for levels, timeline in jobs.items()}
    alone = _median_ms(_spark_alone(folder)[size.warm_up :])
    one = jobs[1]
    return {
        "interval_ms": medians[1],
        "interval_ms_with_synchronous_checkpoints": _median_ms(synchronous.intervals(size.warm_up)),
        "per_further_level_ms": round((medians[_LEVELS[-1]] - medians[1]) / (_LEVELS[-1] - 1), 1),
        "interval_ms_by_levels": {str(levels): median for levels, median in medians.items()},
        "p90_interval_ms": _ms(statistics.quantiles(one.intervals(size.warm_up), n=10)[-1]),
        "spark_alone_interval_ms": alone,
        "ratio_to_spark_alone": round(medians[1] / alone, 2),
        "batch_ms": _median_ms([result.seconds for result in one.results[size.warm_up :]]),
        "batches": size.batches,
        "rows_per_batch": size.rows,
    }


def _timeline(folder: Path, name: str, levels: int, asynchronous: bool = True) -> Timeline:
    home = folder / name
    settings = {
        "job.events": str(folder / "events"),
        "job.table": str(home / "table"),
        "job.levels": str(levels),
        "local_dir": str(home / "local"),
        "parallelism": "2",
        "checkpoints.asynchronous": str(asynchronous),
    }
    return run_timed(JOB, home / "root", settings)[1]


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)


def _median_ms(seconds: list[float]) -> float:
    return _ms(statistics.median(seconds))


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
