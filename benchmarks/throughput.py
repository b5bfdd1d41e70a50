"""Measures events per second of a keyed running mean, from Parquet files to committed checkpoints, and of its peers.

One task without Spark is measured as well.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.cells import GOAL, Cell
from benchmarks.competitors import COMPETITORS, Competitor, Task
from benchmarks.data import write_events
from benchmarks.processes import ProgramFailed
from benchmarks.results import merge_result, stamp

RATIOS = {
    "row_vs_tws_row": ("row", "tws_row"),
    "row_vs_spark_agg": ("row", "spark_agg"),
    "vectorized_vs_spark_agg": ("vectorized", "spark_agg"),
    "row_vs_flink_sql": ("row", "flink_sql"),
    "vectorized_vs_flink_sql": ("vectorized", "flink_sql"),
    "row_keys_vs_spark_agg": ("row_keys", "spark_agg"),
    "row_keys_vs_flink_sql": ("row_keys", "flink_sql"),
    "columns_vs_spark_agg": ("columns", "spark_agg"),
    "columns_vs_flink_sql": ("columns", "flink_sql"),
    "row_vs_flink_sql_example": ("row", "flink_sql_example"),
    "vectorized_vs_flink_sql_example": ("vectorized", "flink_sql_example"),
    "row_keys_vs_flink_sql_example": ("row_keys", "flink_sql_example"),
    "columns_vs_flink_sql_example": ("columns", "flink_sql_example"),
}


def run(folder: Path, cells: Sequence[Cell]) -> Path:
    """Measures the cells and merges them into ``throughput.json``: a cell that is not measured stays as it was.

    The goal's cell gives the keys at the top too, together with one task without Spark.
    """
    for cell in cells:
        found = measure(folder / cell.name, cell)
        figures: dict[str, Any] = {}
        if cell.name == GOAL.name:
            figures = {**found["ratios"], **harness.figures(folder / "harness"), **stamp()}
        path = merge_result("throughput", figures, {"cells": {cell.name: found}})
    return path


def measure(folder: Path, cell: Cell, competitors: Mapping[str, Competitor] = COMPETITORS) -> dict[str, Any]:
    """One cell: all competitors, one after another, over the same files."""
    write_events(folder / "events", cell.data())
    found = {
        name: _one(name, competitor, Task(cell, folder / "events", folder / name))
        for name, competitor in competitors.items()
    }
    shutil.rmtree(folder)
    return {
        "events": cell.events,
        "keys": cell.keys,
        "distribution": cell.distribution,
        "rows_per_batch": cell.rows_per_batch,
        "competitors": found,
        "ratios": _ratios(found),
        **stamp(),
    }


def _one(name: str, competitor: Competitor, task: Task) -> dict[str, Any]:
    load = os.getloadavg()[0]
    try:
        figures = competitor(task)
    except ProgramFailed as e:
        # The other competitors' figures are not lost; the results say that this one has none.
        print(e, file=sys.stderr)
        return {"failed": e.reason}
    print(f"{task.cell.name} {name}: {figures}", flush=True)
    shutil.rmtree(task.folder)
    return {**figures, "load_1m": [round(load, 1), round(os.getloadavg()[0], 1)]}


def _ratios(found: Mapping[str, Mapping[str, Any]]) -> dict[str, float | None]:
    """Ratios of wall time, as the goals are; with the suffix ``_cpu`` of CPU time, which other load affects less."""
    ratios: dict[str, float | None] = {}
    for key, pair in RATIOS.items():
        one, other = (found.get(name, {"failed": "not run"}) for name in pair)
        fine = "failed" not in one and "failed" not in other
        ratios[key] = round(one["events_per_s"] / other["events_per_s"], 2) if fine else None
        cpu = "cpu_s_per_million"
        ratios[f"{key}_cpu"] = round(other[cpu] / one[cpu], 2) if fine else None
    return ratios
