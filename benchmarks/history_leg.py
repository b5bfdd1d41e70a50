"""Runs a job that stores only a part of the data for its pages: ``python -m benchmarks.history_leg ORDER``.

The rest is replaced by functions that do nothing, in this process. The module imports nothing else that a run
does not need, because the CPU time of the process is measured.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import wraps
from pathlib import Path
from pkgutil import resolve_name

import msgspec

from stateflow.checkpoint.barriers import TaskUsage
from stateflow.helpers import installed_version
from stateflow.launch import RunRequest, run_job
from stateflow.state.backends.base import StoreSnapshot
from stateflow.state.backends.rocksdb.backend import RocksDBBackend

JOB = Path(__file__).parent / "jobs" / "sensors.py"
ALL, METRICS, NONE = "all", "metrics", "none"
"""What a run stores: all; only the metrics of operators and sinks; nothing."""


def _get(self: RocksDBBackend, key: bytes) -> object:
    try:
        return self._db.get(key)
    except Exception as e:
        self.fail(e)


def _write(self: RocksDBBackend, changes: Mapping[bytes, bytes | None]) -> None:
    try:
        if changes:
            self._write(changes)
    except Exception as e:
        self.fail(e)


def _snapshot(self: RocksDBBackend, compacted: int = 0) -> StoreSnapshot:
    return StoreSnapshot(tuple(self._files.values()), None, self._store_manifest, compacted)


def _do_nothing(*_: object) -> None:
    pass


_DRIVER = "stateflow.runtime.driver"
_ROCKSDB = "stateflow.state.backends.rocksdb.backend"
_FACTS = "stateflow.launch:_Runs._facts"
_BACKLOG = f"{_DRIVER}.job_run:JobRun._report_backlog"
_LIVE = f"{_ROCKSDB}:RocksDBBackend._snapshot"
MEASUREMENTS: Mapping[str, object] = {
    f"{_ROCKSDB}:_OpenStore.get": _get,
    f"{_ROCKSDB}:RocksDBBackend.write": _write,
    f"{_ROCKSDB}:_IS_MEASURED": (False,),
    _LIVE: _snapshot,
    "stateflow.clock:Stopwatch.switch": lambda self, section: 0,
    "stateflow.runtime.task.task:UsageMeter.usage": lambda self, rows_filtered, rows_late: TaskUsage(),
    f"{_DRIVER}.batch_runner:operator_metrics": lambda reports, operators, now: {},
    f"{_DRIVER}.checkpointing:_report": _do_nothing,
}
"""What measures operators, sinks and state, and what replaces it."""
RECORDS: Mapping[str, object] = {
    _FACTS: _do_nothing,
    "stateflow.runtime.job_loader:JobModules.job_file": _do_nothing,
    f"{_DRIVER}.job_run:JobRun._report_progress": _do_nothing,
    _BACKLOG: _do_nothing,
    f"{_DRIVER}.batch_runner:_SPREAD": {},
    f"{_DRIVER}.batch_runner:_BUSIEST": 0,
    _LIVE: _snapshot,
}
"""What stores runs, job files, graphs, progress, waiting input, subtasks and live sizes, and what replaces it."""
_TIMED = {
    "graph": _FACTS,
    "start_record": f"{_DRIVER}.job_run:_start_record",
    "run_record": f"{_DRIVER}.job_run:record_run",
    "progress": f"{_DRIVER}.job_run:write_progress",
    "backlog": _BACKLOG,
    "operator_metrics": f"{_DRIVER}.batch_runner:operator_metrics",
    "live_state": _LIVE,
}


def replace_all(names: Mapping[str, object]) -> dict[str, object]:
    """Replaces functions and constants in this process; returns those before. Raises AttributeError for unknown names.

    Args:
        names: the new ones, by name.
    """
    before: dict[str, object] = {}
    for name, new in names.items():
        path, _, attribute = name.replace(":", ".").rpartition(".")
        owner = resolve_name(path)
        before[name] = getattr(owner, attribute)
        setattr(owner, attribute, new)
    return before


class Order(msgspec.Struct, frozen=True):
    """What a run is to do.

    Attributes:
        stores: `ALL`, `METRICS` or `NONE`.
    """

    stores: str
    root: str
    settings: dict[str, str]


class Ended(msgspec.Struct, frozen=True):
    """What a run reports.

    Attributes:
        seconds: duration of the run.
        calls: how often each function was called that stores the data.
        spent_ms: CPU time of these calls, by the clock of their thread.
    """

    seconds: float
    calls: dict[str, int]
    spent_ms: dict[str, float]


def _timed(function: Callable[..., object], spent: list[float]) -> Callable[..., object]:
    @wraps(function)
    def timed(*arguments: object) -> object:
        began = time.thread_time()
        try:
            return function(*arguments)
        finally:
            spent.append(time.thread_time() - began)

    return timed


def main(arguments: list[str]) -> None:
    """Carries out the order, and prints an `Ended`."""
    order = msgspec.json.decode(arguments[0], type=Order)
    spent: dict[str, list[float]] = defaultdict(list)
    # As `stateflow run` does when it begins, to describe its options: the record of the start finds it in a cache.
    installed_version()
    # Each look for a newer run stores the progress, also of a short batch.
    replace_all({f"{_DRIVER}.job_run:_PROGRESS_EVERY": timedelta(0)})
    replace_all({path: _timed(resolve_name(path), spent[name]) for name, path in _TIMED.items()})
    if order.stores != ALL:
        replace_all(RECORDS)
    if order.stores == NONE:
        replace_all(MEASUREMENTS)
    began = time.monotonic()
    run_job(RunRequest(JOB, order.root, (dict(order.settings),), "benchmark"))
    ended = Ended(
        time.monotonic() - began,
        {name: len(times) for name, times in spent.items()},
        {name: sum(times) * 1000 for name, times in spent.items()},
    )
    print(msgspec.json.encode(ended).decode())


if __name__ == "__main__":
    main(sys.argv[1:])
