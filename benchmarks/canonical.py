"""Canonical savepoints of large state: writing, restoring, rekeying, delay of batches; Flink in the same run."""

from __future__ import annotations

import json
import resource
import shutil
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.bulk_load import Opening, open_store
from benchmarks.competitors import free_port
from benchmarks.flink_environment import set_up
from benchmarks.large_state import JOB, Size, best, run_large_state, settings_of
from benchmarks.processes import run_program
from stateflow import operations
from stateflow.checkpoint.job_requests import post
from stateflow.checkpoint.log.documents import Origin, Request, RequestKind, SavepointFormat
from stateflow.clock import SystemClock
from stateflow.config.settings import SavepointSettings
from stateflow.launch import open_existing
from stateflow.operations import JobCode, RekeyRequest, SavepointReport, SavepointRequest
from stateflow.runtime.driver.job_run import JobRun
from stateflow.runtime.job import BatchResult
from stateflow.runtime.local_run import LocalExecutor
from stateflow.runtime.restore.plan_execution import RestoreRequest
from stateflow.runtime.restore.planner import RestoreOptions
from stateflow.storage import open_storage

_BEFORE, _BATCHES = 40, 400
_GROUPS = 1000
_CORES = 2


def measure(folder: Path, size: Size, flink: bool = True) -> dict[str, Any]:
    """Returns the figures of the large state in ``root`` below a folder.

    ``canonical_s`` is a savepoint without a run, in processes of two cores. ``restore_canonical_s`` is from the plan's
    execution until the stores of both subtasks, which are opened in two processes, are open on a host without files.
    ``rekey_s`` is a copy with another max parallelism. ``four_workers_ratio`` is the time with four workers for each
    subtask to that with one. The peak is that of a worker, for all state and for a tenth of it.
    """
    root = folder / "root"
    peak, small_peak = _worker_peak(root), _small_peak(folder, size)
    made, canonical = best(lambda n: _create(root, f"canonical-{n}"))
    half = made.size_bytes // 2
    one = SavepointSettings(worker_bytes=half, max_workers=1)
    one_s, four_s = (
        best(lambda n, s=s: _create(root, f"workers-{s.max_workers}-{n}", s))[1]  # type: ignore[misc]
        for s in (one, replace(one, worker_bytes=half // 8, max_workers=4))
    )
    restored = min(_restore(folder, size, made.name) for _ in range(3))
    copy = folder / "rekeyed"
    _, rekeyed = best(lambda _: _rekey(made, copy))
    figures = {
        "canonical_s": round(canonical, 2),
        "canonical_bytes": made.size_bytes,
        "four_workers_ratio": round(four_s / one_s, 2),
        "worker_peak_mib": round(peak / 1024),
        "worker_peak_tenth_mib": round(small_peak / 1024),
        "restore_canonical_s": round(restored, 2),
        "rekey_s": round(rekeyed, 2),
        "rekey_to_restore": round(rekeyed / restored, 2),
        **_delay(folder, size),
    }
    return figures | (_flink(folder, size, canonical, restored) if flink else {})


def _create(root: Path, name: str, settings: SavepointSettings | None = None) -> SavepointReport:
    return operations.create_savepoint(
        str(root),
        SavepointRequest(name=name, format=SavepointFormat.CANONICAL, settings=settings or SavepointSettings()),
    )


def _small_peak(folder: Path, size: Size) -> int:
    """Peak memory of a worker for a tenth of the state, in KiB."""
    small = folder / "small"
    run_large_state(small, replace(size, keys=size.keys // 10))
    try:
        return _worker_peak(small / "root")
    finally:
        shutil.rmtree(small)


def _worker_peak(root: Path) -> int:
    """Peak memory of the largest worker of a savepoint, in KiB.

    The system keeps the maximum of all children of a process, and that of a child begins with the memory of the process
    that starts it. So a small process makes the savepoint, which has no other children.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_create_alone, root).result()


def _create_alone(root: Path) -> int:
    _create(root, "peak")
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss


def _restore(folder: Path, size: Size, name: str) -> float:
    scratch, root = folder / "fresh", folder / "root"
    code = JobCode(JOB, (settings_of(folder, size, local_dir=str(scratch)),))
    plan = operations.plan_restore(str(root), code, name, RestoreOptions())
    with ProcessPoolExecutor(_CORES, get_context("spawn")) as pool:
        list(pool.map(time.sleep, [0.2] * _CORES))
        began = time.monotonic()
        operations.restore(str(root), code, plan, RestoreRequest(SystemClock().new_id()))
        run = JobRun(open_existing(JOB, str(root), code.layers), LocalExecutor())
        run.start()
        bases = [base for bases in run.restored.bases.values() for base in bases]
        # Each subtask on a host of its own, as in a cluster: no store of an earlier restore is open.
        work = [Opening(root, scratch / str(base.subtask), base, "") for base in bases]
        took = max(opened.at for opened in pool.map(open_store, work)) - began
    run.finish()
    shutil.rmtree(scratch, ignore_errors=True)
    return took


def _rekey(made: SavepointReport, into: Path) -> SavepointReport:
    shutil.rmtree(into, ignore_errors=True)
    return operations.rekey_savepoint(RekeyRequest(made.path, _GROUPS, str(into)))


def _delay(folder: Path, size: Size) -> dict[str, Any]:
    """How much longer the median batch takes while a savepoint is written than before it."""
    root, times, during = folder / "root", [], []

    def note(_: BatchResult) -> None:
        times.append(time.monotonic())
        if len(times) == _BEFORE:
            post(
                open_storage(str(root)),
                Request(
                    id="while-batches-run",
                    kind=RequestKind.SAVEPOINT,
                    savepoint="while-batches-run",
                    origin=Origin.MANUAL,
                    by="benchmark",
                    format=SavepointFormat.CANONICAL,
                    at="",
                ),
            )
        elif len(times) > _BEFORE and not (root / "requests" / "while-batches-run.done").exists():
            during.append(times[-1] - times[-2])

    run_large_state(folder, size, _BATCHES * size.rows, note)
    before = [b - a for a, b in pairwise(times[:_BEFORE])]
    assert during, "the savepoint was complete before the next batch"
    longer = statistics.median(during) - statistics.median(before)
    return {"canonical_batch_delay_ms": round(longer * 1000, 1), "batches_during_canonical": len(during)}


def _flink(folder: Path, size: Size, canonical: float, restored: float) -> dict[str, Any]:
    environment, own = set_up(), folder / "flink"
    (own / "tmp").mkdir(parents=True)
    order = {
        "folder": str(own),
        "keys": size.keys,
        "value_bytes": 200,
        "parallelism": 2,
        "managed_memory": "1g",
        "ports": [free_port(), free_port()],
        "repeats": 3,
    }
    given, answer = own / "order.json", own / "answer.json"
    given.write_text(json.dumps(order))
    program = Path(__file__).parent / "peers" / "flink_savepoint.py"
    command = [str(environment.python), str(program), str(given), str(answer)]
    run_program(command, {"PYTHONPATH": "", "FLINK_ENV_JAVA_OPTS": "-Xmx4g"}, own / "output.txt")
    found = json.loads(answer.read_text())
    taken, theirs = min(found["savepoint_s"]), found["restore_s"]
    shutil.rmtree(own)
    return {
        "flink_canonical_s": round(taken, 2),
        "flink_restore_canonical_s": round(theirs, 2),
        "flink_canonical_bytes": found["bytes"],
        "canonical_to_flink": round(canonical / taken, 2),
        "restore_canonical_to_flink": round(restored / theirs, 2),
    }
