"""A query of Nexmark by this project: ``python -m benchmarks.peers.nexmark_ours ORDER ANSWER``, both JSON files.

The order has the settings of the job and the events of each run in this process, each time in a new job root: the first
runs warm the JVM up. The answer has when each run began and ended, by the monotonic clock, and its numbers of rows.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import NotRequired, TypedDict

from benchmarks.memory import WorkerMemory
from stateflow.launch import RunRequest, run_job
from stateflow.runtime.job import BatchResult

JOB = Path(__file__).parents[1] / "nexmark" / "job.py"


class Order(TypedDict):
    """What to run.

    Attributes:
        folder: for job roots and tables of measured runs.
        events: the folder of the events of each run.
        keep: whether the runs share a job root, and continue from each other's checkpoints.
        watch: whether the memory of the workers is read after each batch.
    """

    folder: str
    settings: dict[str, str]
    events: list[str]
    keep: bool
    watch: NotRequired[bool]


class Answer(TypedDict):
    """When each run began and ended, and what the runs have counted.

    Attributes:
        memory: if it was watched, after each batch of all runs, the bytes of state and of the largest worker so far.
    """

    runs: list[tuple[float, float]]
    rows_in: list[int]
    rows_out: list[dict[str, int]]
    batches: list[int]
    memory: list[tuple[int, int]]


def main(order: Order) -> Answer:
    """Runs the job to the end of each input."""
    answer = Answer(runs=[], rows_in=[], rows_out=[], batches=[], memory=[])
    memory = WorkerMemory()
    on_batch = memory.note if order.get("watch") else _ignore
    for run, events in enumerate(order["events"]):
        folder = Path(order["folder"]) / ("job" if order["keep"] else f"run{run}")
        # The session of the first run has its sockets in this folder.
        local = Path(order["folder"]) / "local"
        given = {"job.table": str(folder / "table"), "job.events": events, "local_dir": str(local)}
        settings = given | order["settings"]
        began = time.monotonic()
        result = run_job(RunRequest(JOB, str(folder / "root"), (settings,), "nexmark", on_batch=on_batch))
        answer["runs"].append((began, time.monotonic()))
        answer["rows_in"].append(result.rows_in)
        answer["rows_out"].append(result.rows_out)
        answer["batches"].append(result.batches)
        if not order["keep"]:
            shutil.rmtree(folder)
    answer["memory"] = memory.grown
    return answer


def _ignore(result: BatchResult) -> None:
    """Does nothing with a batch."""


if __name__ == "__main__":
    found = main(json.loads(Path(sys.argv[1]).read_text()))
    Path(sys.argv[2]).write_text(json.dumps(found))
