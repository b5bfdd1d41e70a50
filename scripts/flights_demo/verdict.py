"""The end of the demo: comparison of the tables, and costs of the checkpoints."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flights_demo import spark_export
from flights_demo.compare import Comparison, compare, expected_table, read_exported
from flights_demo.crash import DemoCheckFailed
from flights_demo.expected import expected_aircraft, expected_delays, expected_routes, read_flights
from flights_demo.flights import csv_file
from flights_demo.job_root import history
from flights_demo.layout import REPOSITORY, Layout
from flights_demo.quarters import QuarterResult
from flights_demo.screen import Screen, StatusLine

_EXPECTED = {"delays": expected_delays, "routes": expected_routes, "aircraft": expected_aircraft}


def compare_tables(layout: Layout, tables: Sequence[str], status_line: StatusLine) -> list[Comparison]:
    """Compares tables, as Spark reads them, with the rows that this process computes."""
    log = layout.root / "spark-export.log"
    status_line("Spark reads the tables; meanwhile plain Python computes them from the CSV file")
    with log.open("wb") as file:
        export = subprocess.Popen(_export_command(layout, tables), stdout=file, stderr=file)
        flights = read_flights(csv_file())
        expected = {name: _EXPECTED[name](flights) for name in tables}
        if export.wait():
            raise DemoCheckFailed(f"Spark could not read the tables; see {log}")
    status_line("comparing")
    return [
        compare(name, read_exported(layout.exported, name), expected_table(rows, name))
        for name, rows in expected.items()
    ]


def show_sample(screen: Screen, layout: Layout) -> None:
    """Prints the last rows of each table."""
    for name in layout.tables:
        rows = read_exported(layout.exported, name)
        last = rows.slice(rows.num_rows - 3).to_pylist()
        screen.table(f"{name}: {rows.num_rows:,} rows, the last ones", rows.column_names, map(_cells, last))


def show_checkpoints(screen: Screen, layout: Layout, rounds: Sequence[QuarterResult]) -> None:
    """Prints the figures of each run's checkpoints."""
    records = history(layout.job_root)
    lines = []
    for done in rounds:
        ours = [r for r in records if _before(rounds, done) < r.checkpoint_id <= done.returned["checkpoint_id"]]
        lines.append(
            (
                done.run_id,
                f"{ours[0].checkpoint_id} to {ours[-1].checkpoint_id} ({len(ours)})",
                f"{sum(r.rows_in for r in ours):,}",
                f"{sum(r.increment_bytes for r in ours) / len(ours) / 1000:,.0f} kB",
                f"{ours[-1].full_bytes / 1000:,.0f} kB",
                f"{sorted(r.duration_ms for r in ours)[len(ours) // 2]:,.0f} ms",
            )
        )
    columns = ("run", "checkpoints", "rows in", "mean increment", "full size at its end", "median batch")
    screen.table("Checkpoints", columns, lines)


def replayed(layout: Layout, done: QuarterResult) -> str:
    """Returns a text about the work that the killed run had to repeat."""
    assert done.kill is not None
    again = next(r for r in history(layout.job_root) if r.generation == done.returned["generation"])
    left = done.kill.left_behind
    return (
        f"replayed: one micro-batch of {again.rows_in:,} rows, now checkpoint {again.checkpoint_id}; the killed try had"
        f" left {left.files} files with {left.bytes:,} bytes that no checkpoint refers to"
    )


def _before(rounds: Sequence[QuarterResult], done: QuarterResult) -> int:
    earlier = [r.returned["checkpoint_id"] for r in rounds[: rounds.index(done)]]
    return max(earlier, default=0)


def _export_command(layout: Layout, names: Sequence[str]) -> list[str]:
    jars = REPOSITORY / ".venv" / "jars"
    tables = [f"{name}={path}" for name, path in layout.tables.items() if name in names]
    return [sys.executable, str(Path(spark_export.__file__)), str(jars), str(layout.exported), *tables]


def _cells(row: dict[str, Any]) -> list[Any]:
    return [round(value, 2) if isinstance(value, float) else value for value in row.values()]
