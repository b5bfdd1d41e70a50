"""What can be asked of, and done to, a job root: one implementation for the command line and for Airflow."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateflow.api.source import LocalSource
from stateflow.checkpoint.collector import Collector
from stateflow.checkpoint.history import CheckpointRecord, read_records
from stateflow.checkpoint.jobroot import JobRoot, kept
from stateflow.clock import SystemClock
from stateflow.environment import assemble, declare, load_job
from stateflow.runtime.local import LocalExecutor
from stateflow.runtime.local_run import run_local
from stateflow.runtime.run import BatchResult, JobRun
from stateflow.storage import open_storage


@dataclass(frozen=True)
class GarbageReport:
    """What a collection deleted, or would delete."""

    job: str
    head_seq: int
    retained: tuple[int, ...]
    files: int
    bytes_freed: int
    unknown: tuple[str, ...]
    dry_run: bool


@dataclass(frozen=True)
class JobDescription:
    """Where a job stands."""

    job: str
    job_uuid: str
    generation: int
    head_seq: int
    checkpoint_id: int
    retained: tuple[int, ...]
    pinned: tuple[str, ...]


@dataclass(frozen=True)
class RunResult:
    """How a run ended."""

    job: str
    job_uuid: str
    generation: int
    started_from: int
    checkpoint_id: int
    batches: int
    rows_in: int
    rows_out: dict[str, int]
    offsets: dict[str, str]
    stopped_because: str
    duration_s: float


@dataclass(frozen=True)
class RunRequest:
    """What to run.

    Attributes:
        layers: settings from a file and from the command line; later ones win.
        note: who or what asked for it; kept in the log.
        on_start: told when the job is claimed and restored.
        on_batch: told after each committed batch.
    """

    job_file: Path
    job_root: str
    layers: tuple[dict[str, Any], ...] = ()
    note: str = ""
    on_start: Callable[[JobRun], None] = lambda run: None
    on_batch: Callable[[BatchResult], None] = lambda result: None


def run_job(request: RunRequest) -> RunResult:
    """Runs a job file until it is caught up or a bound is reached. Raises StateflowError.

    Sources that Spark reads run on Spark; a source that this process can read runs in this process.
    """
    clock = SystemClock()
    began = clock.monotonic()
    module = load_job(request.job_file)
    env, settings = declare(module.build, request.job_file.stem, request.layers)
    env.graph.check()
    source = env.graph.sources[0].source
    storage = open_storage(request.job_root)
    if isinstance(source, LocalSource):
        run = JobRun(assemble(env, settings, storage, clock), LocalExecutor())
        run.start(request.note)
        request.on_start(run)
        reached = run_local(run, source, request.on_batch)
    else:
        # Spark takes a second to import, and runs without it do not need it.
        from stateflow.runtime.session import open_session
        from stateflow.runtime.spark import SparkExecutor
        from stateflow.runtime.spark_run import SparkRun, check_root, ship_job

        spark = open_session(settings)
        check_root(storage, spark.sparkContext.master, settings.storage.shared)
        source.check(spark)
        run = JobRun(assemble(env, settings, storage, clock), SparkExecutor())
        run.start(request.note)
        request.on_start(run)
        ship_job(spark, request.job_file)
        reached = SparkRun(spark, run, request.on_batch).run()
    return _result(run, reached, clock.monotonic() - began)


def collect_garbage(job_root: str, *, retain: int | None = None, dry_run: bool = False) -> GarbageReport:
    """Deletes what nothing needs any more; safe beside a run, and beside other collections.

    Args:
        retain: keep only this many checkpoints, from now on until the next run's own setting; None keeps them all.
    """
    root = _open(job_root)
    if retain is not None and not dry_run:
        root.retain(retain)
    found = Collector(root).collect(dry_run)
    return GarbageReport(root.job.job, found.head_seq, found.retained, found.files, found.bytes_freed, found.unknown,
                         found.dry_run)  # fmt: skip


def describe(job_root: str) -> JobDescription:
    """Where a job stands."""
    root = _open(job_root)
    head = root.head()
    pins = tuple(f"{p.id} {p.owner}: {p.reason}" for p in head.entry.pinned)
    return JobDescription(
        root.job.job, root.job.job_uuid, head.entry.generation, head.entry.seq, head.checkpoint_id,
        tuple(dict.fromkeys(ref.id for ref in kept(head))), pins,
    )  # fmt: skip


def history(job_root: str, newest: int = 1000) -> list[CheckpointRecord]:
    """Records of committed checkpoints, oldest first."""
    return read_records(open_storage(job_root), newest)


def _open(job_root: str) -> JobRoot:
    return JobRoot.open(open_storage(job_root), SystemClock(), f"{socket.gethostname()}:{os.getpid()}")


def _result(run: JobRun, reached: str, seconds: float) -> RunResult:
    root = run.job.root
    return RunResult(
        job=root.job.job, job_uuid=root.job.job_uuid, generation=run.head.entry.generation,
        started_from=run.restored.checkpoint_id, checkpoint_id=run.head.checkpoint_id, batches=run.totals.batches,
        rows_in=run.totals.rows_in, rows_out=run.totals.rows_out,
        offsets={p.uid: p.offset for p in run.positions}, stopped_because=reached, duration_s=round(seconds, 3),
    )  # fmt: skip
