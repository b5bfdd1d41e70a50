"""Events per second by row, from Parquet files to committed and published checkpoints."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from benchmarks.data import Events, write_events
from benchmarks.results import write_result
from benchmarks.runs import run_means

EVENTS = Events(files=25, rows_per_file=200_000, keys=100_000)


def run(folder: Path) -> Path:
    """Measures and writes ``throughput.json``. The first batch, which starts everything, is told apart."""
    write_events(folder / "events", EVENTS)
    result, timeline = run_means(folder, parallelism="2")
    assert result.rows_in == EVENTS.rows, "the job did not read all events"
    intervals = timeline.intervals(0)
    figures: dict[str, Any] = {
        "row_events_per_s": round(EVENTS.rows_per_file * len(intervals) / sum(intervals)),
        "row_events_per_s_median_batch": round(EVENTS.rows_per_file / statistics.median(intervals)),
        "first_batch_s": round(timeline.results[0].seconds, 2),
        "events": EVENTS.rows,
        "keys": EVENTS.keys,
        "rows_per_batch": EVENTS.rows_per_file,
        "full_bytes": timeline.results[-1].full_bytes,
        "increment_bytes_median": statistics.median(r.increment_bytes for r in timeline.results),
    }
    return write_result("throughput", figures)
