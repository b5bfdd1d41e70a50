"""The competitors of the throughput benchmark: how each is started, and what it took."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cells import FILES_PER_BATCH, Cell
from benchmarks.flink_environment import FlinkEnvironment, set_up
from benchmarks.peers.final import Final, check_final
from benchmarks.processes import Usage, run_program

HEAP = "4g"
"""Of each competitor's one JVM."""
_MANAGED = "1 gb"
"""Managed memory of a Flink job with RocksDB, in addition to the heap."""
_EXAMPLE_ROWS = 5_000
"""Of a mini-batch, in the example of Flink's page on tuning."""
_GUESSED_RATE = 800_000
_ROOT = Path(__file__).parent.parent
_CHANGE = re.compile(rb"\+[IU]\[(\d+), (\d+), (\S+)\]")


@dataclass(frozen=True)
class Task:
    """A cell whose events are written, and a folder for one competitor's files."""

    cell: Cell
    events: Path
    folder: Path


@dataclass(frozen=True)
class Timed:
    """When a run's first batch ended and when all ended, by the monotonic clock, and how many rows came between."""

    began: float
    first_ended: float
    ended: float
    rows: int
    usage: Usage

    def figures(self) -> dict[str, Any]:
        """For the results."""
        cpu = self.usage.cpu_between(self.first_ended, self.ended)
        return {
            "events_per_s": round(self.rows / (self.ended - self.first_ended)),
            "cpu_s_per_million": round(cpu / self.rows * 1e6, 2),
            "first_batch_s": round(self.first_ended - self.began, 2),
            "rows_behind_first": self.rows,
            "peak_memory_mib": self.usage.peak_bytes >> 20,
        }


Competitor = Callable[[Task], dict[str, Any]]


def ours(peer: str) -> Competitor:
    """This project, by the name of its kind in ``jobs/running_mean.py``."""
    return lambda task: _micro_batches("ours", peer, task)


def spark(peer: str, batches: int | None = None) -> Competitor:
    """An operator of Spark's own, over the first so many batches."""
    return lambda task: _micro_batches("spark_native", peer, _first(task, batches))


def _first(task: Task, batches: int | None) -> Task:
    """The same with fewer events."""
    if batches is None or batches >= task.cell.batches:
        return task
    folder = task.folder / "events"
    folder.mkdir(parents=True)
    for file in sorted(task.events.iterdir())[: batches * FILES_PER_BATCH]:
        # Keeps the time, by which files are ordered.
        shutil.copy2(file, folder / file.name)
    return replace(task, cell=replace(task.cell, events=batches * task.cell.rows_per_batch), events=folder)


def _micro_batches(program: str, peer: str, task: Task) -> dict[str, Any]:
    order = {
        "peer": peer,
        "folder": str(task.folder),
        "events": str(task.events),
        "heap": HEAP,
        "files_per_batch": FILES_PER_BATCH,
        "rows_per_batch": task.cell.rows_per_batch,
    }
    answer, usage = _run(task, order, [sys.executable, "-m", f"benchmarks.peers.{program}"], {"PYTHONPATH": str(_ROOT)})
    assert answer["rows"] == [task.cell.rows_per_batch] * task.cell.batches, "batches are not as they should be"
    ends = answer["ends"]
    timed = Timed(answer["began"], ends[0], ends[-1], sum(answer["rows"][1:]), usage)
    return {**timed.figures(), "events": task.cell.events, "checkpoints": len(ends), "keys_checked": answer["keys"]}


@dataclass(frozen=True)
class _FlinkTask:
    """What Flink SQL does, and in which set-up."""

    task: Task
    mini_batch_rows: int
    checkpoint_interval_ms: int = 0
    prints: bool = False


def flink_sql(mini_batch_rows: int | None = None) -> Competitor:
    """Flink SQL, by the largest number of rows in a mini-batch; without one, as many as come between two checkpoints:
    of several sizes that were tried it is fastest with this."""
    return lambda task: _flink_sql(_FlinkTask(task, mini_batch_rows or task.cell.rows_per_batch))


def _flink_sql(wanted: _FlinkTask) -> dict[str, Any]:
    """First for the clock, then once more, printing, for the check."""
    task = wanted.task
    environment = set_up()
    rate, timed, answer = float(_GUESSED_RATE), None, None
    # Flink takes checkpoints by time: as often as its own speed makes a batch's rows of.
    for attempt in range(3):
        interval = max(100, round(task.cell.rows_per_batch / rate * 1000))
        folder = replace(task, folder=task.folder / str(attempt))
        answer, usage = _flink(environment, replace(wanted, task=folder, checkpoint_interval_ms=interval))
        at, rows = answer["first"]
        timed = Timed(answer["began"], at, answer["ended"], task.cell.events - rows, usage)
        rate = timed.rows / (timed.ended - timed.first_ended)
        if 2 / 3 < rate * interval / 1000 / task.cell.rows_per_batch < 3 / 2:
            break
    assert timed is not None and answer is not None
    return {
        **timed.figures(),
        "events": task.cell.events,
        "checkpoints": len(answer["checkpoints"]),
        "checkpoint_interval_ms": interval,
        "mini_batch_rows": wanted.mini_batch_rows,
        "keys_checked": _check_flink(environment, replace(wanted, checkpoint_interval_ms=interval)),
    }


def _flink(environment: FlinkEnvironment, wanted: _FlinkTask) -> tuple[dict[str, Any], Usage]:
    task = wanted.task
    (task.folder / "tmp").mkdir(parents=True)
    order = {
        "folder": str(task.folder),
        "events": str(task.events),
        "port": free_port(),
        "print": wanted.prints,
        "jars": [str(jar) for jar in environment.jars],
        "checkpoint_interval_ms": wanted.checkpoint_interval_ms,
        "managed_memory": _MANAGED,
        "mini_batch_latency": "5 s",
        "mini_batch_rows": wanted.mini_batch_rows,
        "first_rows": task.cell.rows_per_batch,
    }
    program = Path(__file__).parent / "peers" / "flink_sql.py"
    variables = {
        "HADOOP_CLASSPATH": os.pathsep.join(map(str, environment.hadoop)),
        "PYTHONPATH": "",
        "FLINK_ENV_JAVA_OPTS": f"-Xmx{HEAP}",
    }
    return _run(task, order, [str(environment.python), str(program)], variables)


def _check_flink(environment: FlinkEnvironment, wanted: _FlinkTask) -> int:
    again = replace(wanted.task, folder=wanted.task.folder / "check")
    _flink(environment, replace(wanted, task=again, prints=True))
    last: dict[int, tuple[int, float]] = {}
    # A key's changes are printed in their order: one subtask has them all.
    with (again.folder / "output.txt").open("rb") as lines:
        for line in lines:
            if found := _CHANGE.search(line):
                last[int(found[1])] = (int(found[2]), float(found[3]))
    counts, means = (np.array(column) for column in zip(*last.values(), strict=True))
    return check_final(Final(np.array(list(last)), counts, counts * means), again.events)


def _run(
    task: Task, order: dict[str, Any], program: list[str], variables: dict[str, str]
) -> tuple[dict[str, Any], Usage]:
    task.folder.mkdir(parents=True, exist_ok=True)
    given, answer = task.folder / "order.json", task.folder / "answer.json"
    given.write_text(json.dumps(order))
    usage = run_program([*program, str(given), str(answer)], variables, task.folder / "output.txt")
    return json.loads(answer.read_text()), usage


def free_port() -> int:
    """Returns a free port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


_TWS_BATCHES = 3
"""transformWithState is slow: a first batch, and two that are timed."""
COMPETITORS: dict[str, Competitor] = {
    "row": ours("row"),
    "row_keys": ours("row_keys"),
    "vectorized": ours("vectorized"),
    "vectorized_rows": ours("vectorized_rows"),
    "columns": ours("columns"),
    "spark_agg": spark("spark_agg"),
    "flink_sql": flink_sql(),
    "flink_sql_example": flink_sql(_EXAMPLE_ROWS),
    "tws_row": spark("tws_row", _TWS_BATCHES),
}
