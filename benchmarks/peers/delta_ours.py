"""A job of this project that ends in a Delta table: ``python -m benchmarks.peers.delta_ours ORDER ANSWER``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from pyarrow import parquet

from benchmarks.peers.final import check_table
from benchmarks.runs import run_timed


def main(order: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, object]:
    """Runs the job until its input is read; when each batch ended, and whether the table is right."""
    folder, table = Path(order["folder"]), Path(order["folder"]) / "table"
    common = {"job.table": str(table), "local_dir": str(folder / "local")}
    common["spark.conf.spark.driver.memory"] = order["heap"]
    _, timeline = run_timed(Path(order["job"]), folder / "root", {**common, **settings})
    ends = timeline.committed
    began = ends[0] - timeline.results[0].seconds
    # A batch ends before its rows are visible, unless checkpoints are synchronous.
    ends[-1] = max(ends[-1], _last_published(table))
    keys = check_table(_content(table), Path(order["expected"]))
    return {"began": began, "ends": ends, "keys": keys, "commits": len(_entries(table)) - 1}


def _last_published(table: Path) -> float:
    """When the table's newest version was written, by the monotonic clock."""
    offset = time.time() - time.monotonic()
    return max(entry.stat().st_mtime for entry in _entries(table)) - offset


def _entries(table: Path) -> list[Path]:
    return list((table / "_delta_log").glob("*.json"))


def _content(table: Path) -> pa.Table:
    files = DeltaTable(str(table)).file_uris()
    return pa.concat_tables([parquet.read_table(uri.removeprefix("file://"), partitioning=None) for uri in files])


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(json.dumps(main(given, given["settings"])))
