"""Measures what asynchronous checkpoints add to the time of a batch.

Four jobs are compared: with a storage that stores nothing, with a POSIX storage, with a tenth of the state, and with
synchronous checkpoints. They run without Spark, with two subtasks and one value of 200 random bytes per key; each batch
updates the same number of keys. The four runs take turns, one block of batches each, so that changes of the machine's
load affect all of them. Between two blocks no checkpoint is pending; within a block, background work takes time from
the batches. Before a block the run's files are read once, outside the measurement: some kernels drop pages that were
idle for half a minute, and a job that runs alone is never idle. The ratios are medians over pairs of adjacent blocks,
which have the same rows and mostly the same compactions.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.jobs.large_state import Keys
from benchmarks.results import write_result
from stateflow.checkpoint.history import read_records
from stateflow.checkpoint.log.documents import CheckpointRecord, SourcePosition
from stateflow.clock import SystemClock
from stateflow.config.settings import RocksDBSettings
from stateflow.environment import declare
from stateflow.runtime import executor
from stateflow.runtime.driver.job_run import JobRun
from stateflow.runtime.job import Positions
from stateflow.runtime.job_loader import create_or_open_job, load_job
from stateflow.runtime.local_run import LocalExecutor
from stateflow.runtime.task import store_cache
from stateflow.storage import PosixStorage, Storage, open_storage

JOB = Path(__file__).parent / "jobs" / "large_state.py"


@dataclass(frozen=True)
class Size:
    """How much there is to do.

    Attributes:
        changed: keys that a batch updates.
        slice: rows of a batch while keys come.
        warm_up: batches that do not count, in which what came with the keys is merged.
    """

    keys: int = 5_000_000
    changed: int = 50_000
    slice: int = 250_000
    warm_up: int = 12
    blocks: int = 16
    batches: int = 5


class NullStorage(PosixStorage):
    """Takes files of state and forgets all but their sizes."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._sizes: dict[str, int] = {}

    def put_file(self, key: str, source: Path) -> None:
        self._sizes[key] = source.stat().st_size

    def size(self, key: str) -> int | None:
        return self._sizes.get(key) or super().size(key)

    def durable_size(self, key: str) -> int | None:
        return self._sizes.get(key) or super().durable_size(key)


def run(folder: Path, size: Size = Size()) -> Path:
    """Builds the state, measures, and writes ``async.json``."""
    storages = {
        name: kind(folder / name)
        for name, kind in (
            ("stored", PosixStorage),
            ("null", NullStorage),
            ("tenth", PosixStorage),
            ("synchronous", PosixStorage),
        )
    }
    with _used(storages.values()):
        runs = {
            name: _Timed(folder / f"{name}-local", storage, size, number)
            for number, (name, storage) in enumerate(storages.items())
        }
        for each in runs.values():
            each.load()
        for _ in range(size.blocks):
            for each in runs.values():
                each.block()
        for each in runs.values():
            each.run.finish()
            each.run.abandon()
        store_cache.close_all()
    return write_result("async", _figures(runs, size))


def _figures(runs: dict[str, _Timed], size: Size) -> dict[str, Any]:
    batch = {name: statistics.fmean(timed.seconds) / size.batches for name, timed in runs.items()}
    # A checkpoint on a busy machine takes what several batches changed, so their rows do not show which ones count.
    loading = runs["stored"].batches - size.blocks * size.batches
    records = [r for r in read_records(runs["stored"].storage) if r.ordinal > loading]
    synchronous = _of_subtasks(records)
    calm = _of_subtasks(r for r in records if not r.compaction_bytes)
    return {
        "added_fraction": round(_ratio(runs["stored"], runs["null"]) - 1, 3),
        "state_10x_batch_time": round(_ratio(runs["stored"], runs["tenth"]), 2),
        "synchronous_over_asynchronous": round(_ratio(runs["synchronous"], runs["stored"]), 2),
        "added_fraction_of_means": round(batch["stored"] / batch["null"] - 1, 3),
        "state_10x_of_means": round(batch["stored"] / batch["tenth"], 2),
        "synchronous_over_asynchronous_of_means": round(batch["synchronous"] / batch["stored"], 2),
        "sync_ms_per_subtask_median": round(statistics.median(synchronous), 1),
        "sync_ms_per_subtask_max": max(synchronous),
        "sync_ms_without_merges_median": round(statistics.median(calm), 1) if calm else None,
        "async_ms_median": round(statistics.median(r.async_ms for r in records), 1),
        "commit_ms_median": round(statistics.median(r.commit_ms for r in records), 1),
        "batch_ms": {name: round(1000 * seconds, 1) for name, seconds in batch.items()},
        "keys": size.keys,
        "keys_changed_per_batch": size.changed,
        "value_bytes": 200,
    }


def _of_subtasks(records: Iterable[CheckpointRecord]) -> list[float]:
    """Each subtask's synchronous part: there are two, so the least and the most are all of them."""
    spreads = [r.subtasks["sync_ms"] for r in records]
    return [ms for spread in spreads for ms in (spread.min, spread.max)]


def _ratio(one: _Timed, other: _Timed) -> float:
    return statistics.median(a / b for a, b in zip(one.seconds, other.seconds, strict=True))


@contextmanager
def _used(storages: Any) -> Iterator[None]:
    """Tasks find these very storages by their addresses."""
    known: dict[str, Storage] = {storage.uri: storage for storage in storages}
    with patch.object(executor, "open_storage", lambda uri: known.get(uri) or open_storage(uri)):
        yield


@dataclass
class _Timed:
    """A run that works block by block."""

    local: Path
    storage: PosixStorage
    size: Size
    number: int
    seconds: list[float] = field(default_factory=list)
    batches: int = 0

    @property
    def keys(self) -> int:
        return self.size.keys // (10 if self.kind == "tenth" else 1)

    @property
    def kind(self) -> str:
        """What this run measures: the name of its storage folder."""
        return self.storage.root.name

    def __post_init__(self) -> None:
        # Stores of one process share a cache of one size; those of the others would push out what these need.
        cache = RocksDBSettings().block_cache_bytes + self.number
        settings = {
            "rocksdb.block_cache_bytes": str(cache),
            "local_dir": str(self.local),
            "job.keys": str(self.keys),
            "job.updates": "1000000000",
            "job.slice": str(self.size.slice),
            "job.small": str(self.size.changed),
            "checkpoints.asynchronous": "no" if self.kind == "synchronous" else "yes",
            "parallelism": "2",
        }
        env, resolved = declare(load_job(JOB).build, JOB.stem, (settings,))
        self.run = JobRun(create_or_open_job(env.graph, resolved, self.storage, SystemClock()), LocalExecutor())
        self.run.start()
        self._source = Keys(self.keys, 1_000_000_000, self.size.slice, self.size.changed)
        self._position: str | None = None

    def load(self) -> None:
        """Writes each key once, and some of them again."""
        for _ in range(-(-self.keys // self.size.slice)):
            self._batch()
        for _ in range(self.size.warm_up):
            self._batch()
        self.run.commit_pending()

    def block(self) -> None:
        """Runs some batches, then waits for the last one's checkpoint, so that it does not overlap the next block."""
        _read_all(self.local)
        began = time.perf_counter()
        for _ in range(self.size.batches):
            self._batch()
        self.seconds.append(time.perf_counter() - began)
        self.run.commit_pending()

    def _batch(self) -> None:
        self.batches += 1
        found = self._source.read(self._position, self.run.job.settings.source)
        assert found is not None
        self._position = found.position
        ((uid, description),) = self.run.job.sources
        here = SourcePosition(uid=uid, description=description, offset=found.position)
        self.run.run_batch({uid: found.rows}, lambda _: Positions([here]))


def _read_all(folder: Path) -> None:
    """Brings a run's files into memory, where those of a job that works all the time are anyway."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.read(1 << 20):
                    pass
