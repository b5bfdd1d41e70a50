"""Peak memory of Spark's Python workers while state grows to twenty times what the settings allow them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data import write_keys
from benchmarks.results import write_result
from stateflow.launch import RunRequest, run_job
from stateflow.runtime.job import BatchResult

JOB = Path(__file__).parent / "jobs" / "wide_state.py"
MIB = 1 << 20


@dataclass(frozen=True)
class WorkerLimits:
    """The settings that bound the memory of a worker.

    Attributes:
        base_bytes: Python, the libraries that a worker has loaded, and what memory allocators keep back.
    """

    base_bytes: int = 190 * MIB
    write_buffer_bytes: int = 8 * MIB
    block_cache_bytes: int = 4 * MIB
    sort_memory_bytes: int = 4 * MIB
    rows_per_arrow_batch: int = 250

    @property
    def bound_without_rows(self) -> int:
        """The documented sum without the rows of an operator."""
        return self.base_bytes + 2 * self.write_buffer_bytes + self.block_cache_bytes + self.sort_memory_bytes

    def settings(self) -> dict[str, str]:
        """Returns the settings of a job that retains one checkpoint."""
        return {
            "rocksdb.write_buffer_bytes": str(self.write_buffer_bytes),
            "rocksdb.block_cache_bytes": str(self.block_cache_bytes),
            "shuffle.sort_memory_bytes": str(self.sort_memory_bytes),
            "checkpoints.retained": "1",
            "checkpoints.collect_every": "1",
            "spark.conf.spark.sql.execution.arrow.maxRecordsPerBatch": str(self.rows_per_arrow_batch),
        }


@dataclass(frozen=True)
class Size(WorkerLimits):
    """The settings whose sum is the bound, and how much state there is; the defaults make it twenty times the sum.

    Attributes:
        copies: of an Arrow batch's values that are in memory at once: read, changed, being written, and in RocksDB's
            buffer above its size.
        updates: rows after those that create the keys; they update existing keys.
    """

    copies: int = 4
    value_bytes: int = 4096
    keys: int = 1_130_000
    updates: int = 20_000
    rows_per_file: int = 40_000
    compact_at_files: int = 150

    @property
    def bound(self) -> int:
        """The documented sum."""
        return self.bound_without_rows + self.copies * self.rows_per_arrow_batch * self.value_bytes


@dataclass
class WorkerMemory:
    """The peak memory of the workers, which the kernel records, read after each batch.

    Attributes:
        peaks: bytes of each worker.
        grown: after each batch, the bytes of all state and of the worker with the highest peak so far.
    """

    peaks: dict[int, int] = field(default_factory=dict)
    grown: list[tuple[int, int]] = field(default_factory=list)

    def note(self, result: BatchResult) -> None:
        """Reads the peaks; called after a batch."""
        for pid in workers(os.getpid()):
            self.peaks[pid] = max(peak_bytes(pid), self.peaks.get(pid, 0))
        self.grown.append((result.full_bytes, max(self.peaks.values())))


def run(folder: Path) -> Path:
    """Measures and writes ``memory.json``."""
    return write_result("memory", measure(folder, Size()))


def measure(folder: Path, size: Size) -> dict[str, Any]:
    """Runs the job; the peak is that of the worker that had the highest."""
    write_keys(folder / "events", _keys(size), size.rows_per_file)
    watch = WorkerMemory()
    run_job(RunRequest(JOB, str(folder / "root"), (_settings(folder, size),), "benchmark", on_batch=watch.note))
    state, peak = watch.grown[-1]
    return {
        "peak_mib": _mib(peak),
        "bound_mib": _mib(size.bound),
        "peak_to_bound": round(peak / size.bound, 3),
        "state_mib": _mib(state),
        "state_to_bound": round(state / size.bound, 2),
        "peak_mib_by_state_mib": {str(_mib(s)): _mib(p) for s, p in _some(watch.grown)},
        "workers": len(watch.peaks),
        "keys": size.keys,
        "value_bytes": size.value_bytes,
        "rows_per_arrow_batch": size.rows_per_arrow_batch,
        "write_buffer_mib": _mib(size.write_buffer_bytes),
        "block_cache_mib": _mib(size.block_cache_bytes),
        "sort_memory_mib": _mib(size.sort_memory_bytes),
        "base_mib": _mib(size.base_bytes),
    }


def _settings(folder: Path, size: Size) -> dict[str, str]:
    return {
        "job.events": str(folder / "events"),
        "job.value_bytes": str(size.value_bytes),
        "local_dir": str(folder / "local"),
        "parallelism": "2",
        **size.settings(),
        # Once in a run, and no more: a compaction needs the disk for a store twice.
        "rocksdb.compact_at_files": str(size.compact_at_files),
    }


def _keys(size: Size) -> np.ndarray[Any, Any]:
    """Every key once, not in order; then some of them again."""
    rng = np.random.default_rng(1)
    return np.concatenate([rng.permutation(size.keys), rng.integers(0, size.keys, size.updates)])


def workers(driver: int) -> list[int]:
    """The processes of Spark's Python daemons below the driver, without the daemons, which never work."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # After the command's name, which may contain any character: state, parent.
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(") ")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
    daemons = {pid for pid in parents if _is_daemon(pid) and _is_below(pid, driver, parents)}
    return [pid for pid, parent in parents.items() if parent in daemons]


def _is_daemon(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return b"pyspark.daemon" in command or b"stateflow_worker_daemon" in command


def _is_below(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != ancestor:
        pid = parents[pid]
    return pid == ancestor


def peak_bytes(pid: int) -> int:
    """The most memory that a process ever had, in bytes; shared pages count in full. 0 when it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    peaks = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(peaks[0]) * 1024 if peaks else 0


def _some(grown: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [grown[0], *grown[4::5]]


def _mib(size: int) -> float:
    return round(size / MIB, 1)
