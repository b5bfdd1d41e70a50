"""What ten, three hundred and three thousand retained checkpoints cost: entries, COMMITs, starts, collections."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from benchmarks.results import write_result
from stateflow.checkpoint.garbage_collector import Collector
from stateflow.checkpoint.log.checkpoint_log import Appended, Head
from stateflow.checkpoint.log.completed_checkpoints import RetentionLimits
from stateflow.checkpoint.log.documents import Manifest
from stateflow.checkpoint.log.job_root import JobRoot, NewJob
from stateflow.checkpoint.log.manifest_files import seal, write_manifest
from stateflow.checkpoint.log.transitions import Commit
from stateflow.clock import SystemClock
from stateflow.operations import describe
from stateflow.storage import PosixStorage
from stateflow.storage.paths import data_folder

T = TypeVar("T")
COUNTS = (10, 300, 3_000)
_MEASURED = 100
_EVERY = 10
"""Commits between two looks whether a collection is due, as a run has it by default."""


@dataclass(frozen=True)
class Cost:
    """Medians in milliseconds, and bytes.

    Attributes:
        entry: largest log entry.
        append: of a COMMIT.
        collecting: of all collections, for each COMMIT.
        status: what ``stateflow status`` asks, in a process that knows nothing yet.
        cold: a whole collection in such a process.
    """

    entry: int
    append: float
    collecting: float
    status: float
    cold: float


def run(folder: Path, counts: tuple[int, ...] = COUNTS) -> Path:
    """Measures and writes ``retained.json``."""
    costs = {count: _measured(folder / str(count), count) for count in counts}
    few, many = costs[counts[0]], costs[counts[-1]]
    figures: dict[str, float] = {}
    for count, cost in costs.items():
        figures |= {f"{name}_{count}": value for name, value in vars(cost).items()}
    ratios = {f"{name}_ratio": round(getattr(many, name) / getattr(few, name), 2) for name in vars(few)}
    return write_result("retained", {**figures, **ratios})


def _measured(folder: Path, count: int) -> Cost:
    root = _open(folder)
    head = root.claim()
    for _ in range(count):
        head = _commit(root, head, count)
    sizes: list[int] = []
    appends: list[float] = []
    collections: list[float] = []
    collector = Collector(root)
    collector.collect()
    collected = head.entry.seq
    # So many that collections of the largest list come at least once.
    rounds = max(_MEASURED, count // 6)
    for number in range(rounds):
        handle = _manifest(root, head)
        took, outcome = _timed(lambda: root.commit(head, handle, RetentionLimits(count)))  # noqa: B023
        assert isinstance(outcome, Appended)
        head = outcome.head
        appends.append(took)
        sizes.append(len(seal(head.entry)[0]))
        if number % _EVERY == 0:
            due = collector.is_due(head, collected)
            collections.append(_timed(collector.collect if due else collector.collect_run_leftovers)[0])
            collected = head.entry.seq if due else collected
    status = [_timed(lambda: describe(str(folder)))[0] for _ in range(5)]
    cold = _timed(Collector(_open(folder)).collect)[0]
    return Cost(
        max(sizes),
        round(statistics.median(appends), 2),
        round(sum(collections) / rounds, 2),
        round(statistics.median(status), 2),
        round(cold, 1),
    )


def _open(folder: Path) -> JobRoot:
    return JobRoot.create_or_open(PosixStorage(folder), SystemClock(), NewJob("job", 4, {}), "benchmark")


def _manifest(root: JobRoot, head: Head) -> Commit:
    entry = head.entry
    ordinal = entry.ordinal + 1
    manifest = Manifest(
        job_uuid=root.job.job_uuid, generation=entry.generation, ordinal=ordinal, operators=[], sources=[]
    )
    handle = write_manifest(root.storage, data_folder(entry.generation, ordinal, "driver"), manifest)
    return Commit(ordinal, handle, [])


def _commit(root: JobRoot, head: Head, count: int) -> Head:
    outcome = root.commit(head, _manifest(root, head), RetentionLimits(count))
    assert isinstance(outcome, Appended)
    return outcome.head


def _timed(act: Callable[[], T]) -> tuple[float, T]:
    began = time.perf_counter()
    result = act()
    return (time.perf_counter() - began) * 1000, result
