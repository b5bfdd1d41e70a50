"""A job root as people and other tasks work on it, beside its runs."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateflow.checkpoint.jobroot import JobRoot
from stateflow.clock import SystemClock
from stateflow.storage import open_storage


@dataclass(frozen=True)
class JobCode:
    """The job file and its settings, for what needs the job's sinks and operators."""

    file: Path
    layers: tuple[dict[str, Any], ...] = ()


def pins_of(root: JobRoot, owner: str, purpose: str) -> list[str]:
    """Ids of the pins from outside of runs that somebody holds for something."""
    pins = root.head().entry.pinned
    return [p.id for p in pins if (p.owner, p.reason, p.generation) == (owner, purpose, 0)]


def now(root: JobRoot) -> str:
    """The time, as documents have it."""
    return root.clock.now().isoformat(timespec="milliseconds")


def open_root(job_root: str) -> JobRoot:
    """The job root at this URI. Raises ConfigError when there is none."""
    return JobRoot.open(open_storage(job_root), SystemClock(), f"{socket.gethostname()}:{os.getpid()}")
