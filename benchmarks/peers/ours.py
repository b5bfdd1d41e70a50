"""This project over the events: ``python -m benchmarks.peers.ours ORDER ANSWER``, both JSON files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.final import Final, check_final
from benchmarks.runs import Timeline
from stateflow.launch import RunRequest, run_job
from stateflow.query.state import state_entries

JOB = Path(__file__).parent.parent / "jobs" / "running_mean.py"


def main(order: dict[str, Any]) -> dict[str, Any]:
    """Runs the job until the files are read; when each batch was committed, and whether the state is right."""
    folder = Path(order["folder"])
    settings = {
        "job.events": order["events"],
        "job.files": str(order["files_per_batch"]),
        "job.kind": order["peer"],
        "local_dir": str(folder / "local"),
        "spark.conf.spark.driver.memory": order["heap"],
        **order.get("settings", {}),
    }
    timeline = Timeline()
    root = str(folder / "root")
    run_job(RunRequest(JOB, root, (settings,), "benchmark", on_batch=timeline.note))
    results = timeline.results
    began = timeline.committed[0] - results[0].seconds
    # Rows that are aggregated before the shuffle are not counted one by one; that all were read, the state shows.
    rows = [order["rows_per_batch"] if order["peer"] == "columns" else r.rows_in for r in results]
    return {
        "began": began,
        "ends": timeline.committed,
        "rows": rows,
        "keys": check_final(_state(root), Path(order["events"])),
    }


def _state(root: str) -> Final:
    entries = [(entry.key[0], *_sums(entry.value)) for entry in state_entries(root, "running-mean")]
    keys, counts, totals = zip(*entries, strict=True)
    return Final(np.array(keys), np.array(counts), np.array(totals))


def _sums(value: Any) -> tuple[int, float]:
    if isinstance(value, dict):
        return value["count__count"], value["mean__sum"]
    count, total = value
    return count, total


if __name__ == "__main__":
    answer = main(json.loads(Path(sys.argv[1]).read_text()))
    Path(sys.argv[2]).write_text(json.dumps(answer))
