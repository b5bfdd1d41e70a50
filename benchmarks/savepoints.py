"""Compares savepoints and restores of 5 million keys with 200 random bytes each with ``cp -r`` of the same bytes."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import canonical
from benchmarks.large_state import FULL, JOB, REPEATS, Size, best, run_large_state, settings_of, timed
from benchmarks.results import write_result
from stateflow import operations
from stateflow.checkpoint.job_requests import post
from stateflow.checkpoint.log.documents import Origin, Request, RequestKind
from stateflow.clock import SystemClock
from stateflow.launch import open_existing
from stateflow.operations import JobCode, SavepointRequest
from stateflow.runtime.driver.job_run import JobRun
from stateflow.runtime.job import BatchResult
from stateflow.runtime.local_run import LocalExecutor
from stateflow.runtime.restore.plan_execution import RestoreRequest
from stateflow.runtime.restore.planner import RestoreOptions
from stateflow.runtime.task import store_cache
from stateflow.storage import open_storage

_BATCHES = 150
_ASK_AT = tuple(range(15, 145, 7))
_WINDOW = 4


def run(folder: Path, size: Size = FULL, flink: bool = True) -> Path:
    """Builds the state with a run of a job, measures, and writes ``savepoints.json``."""
    root = folder / "root"
    run_large_state(folder, size)
    made, native = best(lambda n: operations.create_savepoint(str(root), SavepointRequest(name=f"native-{n}")))
    copied = [_cp(Path(made.path.removeprefix("file://")), folder / "copy") for _ in range(REPEATS)]
    restored = {p: min(_restore(folder, size, made.name, p) for _ in range(REPEATS)) for p in (2, 4, 1)}
    delays = _delays(folder, size)
    figures: dict[str, Any] = {
        "native_s": round(native, 3),
        "cp_s": round(min(copied), 3),
        "native_to_cp": round(native / min(copied), 3),
        "restore_native_s": round(restored[2], 3),
        "restore_double_s": round(restored[4], 3),
        "restore_half_s": round(restored[1], 3),
        "rescale_ratio": round(max(restored[4], restored[1]) / restored[2], 2),
        **delays,
        "keys": size.keys,
        "value_bytes": 200,
        "bytes": made.size_bytes,
        **canonical.measure(folder, size, flink),
    }
    return write_result("savepoints", figures)


def _restore(folder: Path, size: Size, name: str, parallelism: int) -> float:
    """Seconds from the plan's execution until every store is open on a host that has no file yet: the first batch may
    start. Stores are opened one after another."""
    scratch = folder / "fresh"
    settings = settings_of(folder, size, parallelism=str(parallelism), local_dir=str(scratch))
    code = JobCode(JOB, (settings,))
    plan = operations.plan_restore(str(folder / "root"), code, name, RestoreOptions())
    began = time.monotonic()
    operations.restore(str(folder / "root"), code, plan, RestoreRequest(SystemClock().new_id()))
    run = JobRun(open_existing(JOB, str(folder / "root"), code.layers), LocalExecutor())
    run.start()
    _open_stores(run)
    took = time.monotonic() - began
    store_cache.close_all()
    run.finish()
    shutil.rmtree(scratch)
    return took


def _open_stores(run: JobRun) -> None:
    info = run.batches.info(1, run.head.checkpoint_id)
    for uid, bases in run.restored.bases.items():
        for base in bases:
            key = store_cache.StoreKey(info.id.job_uuid, uid, base.subtask)
            store = store_cache.acquire(key, base, info, "benchmark", len(bases))
            store_cache.release(key, store, "benchmark", info.settings.state)


@dataclass
class _Watch:
    """Times of batches and whether they compacted more than `much` bytes, and requests at some of them."""

    root: str
    much: int
    times: list[float] = field(default_factory=list)
    compacted: list[bool] = field(default_factory=list)

    def note(self, result: BatchResult) -> None:
        self.times.append(time.monotonic())
        self.compacted.append(result.compaction_bytes > self.much)
        if len(self.times) in _ASK_AT:
            name = f"beside-{len(self.times)}"
            post(
                open_storage(self.root),
                Request(
                    id=name, kind=RequestKind.SAVEPOINT, savepoint=name, origin=Origin.MANUAL, by="benchmark", at=""
                ),
            )


def _delays(folder: Path, size: Size) -> dict[str, Any]:
    """How much longer the four batches after a request take than four usual batches; the median over the requests.

    A batch that compacts a whole store takes a second, with a savepoint or without, so requests that such a batch
    follows do not count.
    """
    watch = _Watch(str(folder / "root"), size.keys * 20)
    run_large_state(folder, size, _BATCHES * size.rows, watch.note)
    made = [s for s in operations.list_all(str(folder / "root")) if s.name.startswith("beside-")]
    assert len(made) == len(_ASK_AT), "a request was not served"
    intervals = [b - a for a, b in zip(watch.times, watch.times[1:], strict=False)]
    usual = statistics.median(intervals)
    calm = [at for at in _ASK_AT if not any(watch.compacted[at : at + _WINDOW + 1])]
    assert len(calm) >= 5, "a compaction followed nearly every request"
    longer = [sum(intervals[at : at + _WINDOW]) - _WINDOW * usual for at in calm]
    return {
        "batch_delay_ms": round(statistics.median(longer) * 1000, 1),
        "batch_ms": round(usual * 1000, 1),
        "requests_counted": len(calm),
    }


def _cp(source: Path, target: Path) -> float:
    """Seconds that ``cp -r`` takes; the pages of `source` are in memory, as they are for us."""
    _, took = timed(lambda: subprocess.run(["cp", "-r", str(source), str(target)], check=True))
    shutil.rmtree(target)
    return took
