"""What can be asked of, and done to, a job root: one implementation for the command line and for Airflow."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from stateflow.checkpoint.collector import Collector
from stateflow.checkpoint.documents import Pin
from stateflow.checkpoint.history import ActionRecord, CheckpointRecord, read_history, read_records
from stateflow.checkpoint.jobroot import JobRoot, kept
from stateflow.clock import SystemClock
from stateflow.errors import ConfigError
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


def collect_garbage(job_root: str, *, retain: int | None = None, dry_run: bool = False) -> GarbageReport:
    """Deletes what nothing needs any more; safe beside a run, and beside other collections.

    Args:
        retain: keep only this many checkpoints, from now on until the next run's own setting; None keeps them all.
    """
    root = _open(job_root)
    if dry_run:
        found = Collector(root).preview(retain)
    else:
        if retain is not None:
            root.retain(retain)
        found = Collector(root).collect()
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


def list_pins(job_root: str) -> list[Pin]:
    """Checkpoints that somebody outside reads; one whose reader died stays until it is dropped."""
    return _open(job_root).head().entry.pinned


def drop_pin(job_root: str, pin_id: str) -> None:
    """Removes a pin. Raises ConfigError when there is none with this id."""
    root = _open(job_root)
    if all(pin.id != pin_id for pin in root.head().entry.pinned):
        raise ConfigError("there is no such pin", hint="stateflow pins lists them", pin=pin_id)
    root.unpin(pin_id)


def history(job_root: str, newest: int = 1000) -> list[CheckpointRecord]:
    """Records of committed checkpoints, oldest first."""
    return read_records(open_storage(job_root), newest)


def timeline(job_root: str, newest: int = 1000) -> list[CheckpointRecord | ActionRecord]:
    """Records of checkpoints and of actions, oldest first."""
    return read_history(open_storage(job_root), newest)


def _open(job_root: str) -> JobRoot:
    return JobRoot.open(open_storage(job_root), SystemClock(), f"{socket.gethostname()}:{os.getpid()}")
