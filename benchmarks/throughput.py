"""Events per second, from Parquet files to committed and published checkpoints; and of one task without Spark."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.data import Events, write_events
from benchmarks.results import write_result
from benchmarks.runs import run_means

EVENTS = Events(files=25, rows_per_file=200_000, keys=100_000)


def run(folder: Path) -> Path:
    """Measures and writes ``throughput.json``. The first batch, which starts everything, is told apart."""
    return write_result("throughput", harness.figures(folder / "harness") | _on_spark(folder))


def _on_spark(folder: Path) -> dict[str, Any]:
    write_events(folder / "events", EVENTS)
    result, timeline = run_means(folder, parallelism="2")
    assert result.rows_in == EVENTS.rows, "the job did not read all events"
    intervals = timeline.intervals(0)
    return {
        "row_events_per_s": round(EVENTS.rows_per_file * len(intervals) / sum(intervals)),
        "row_events_per_s_median_batch": round(EVENTS.rows_per_file / statistics.median(intervals)),
        "first_batch_s": round(timeline.results[0].seconds, 2),
        "events": EVENTS.rows,
        "keys": EVENTS.keys,
        "rows_per_batch": EVENTS.rows_per_file,
        "full_bytes": timeline.results[-1].full_bytes,
        "increment_bytes_median": statistics.median(r.increment_bytes for r in timeline.results),
    }
