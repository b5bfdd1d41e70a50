"""Reads the job root through stateflow's operations and by listing its files."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateflow import operations
from stateflow.checkpoint.log.documents import LogEntry
from stateflow.checkpoint.log.manifest_files import unseal
from stateflow.errors import ConfigError

_DATA = re.compile(r"data/(\d+)/(\d+)-[^/]+/[^/]+")


@dataclass(frozen=True)
class PendingCheckpoint:
    """Files of barriers without a COMMIT."""

    files: int
    bytes: int


def history(job_root: Path) -> list[Any]:
    """Returns the records of all checkpoints; empty if the job has never run."""
    try:
        return list(operations.history(str(job_root)))
    except ConfigError:
        return []


def log_entries(job_root: Path) -> list[LogEntry]:
    """Returns the entries of the log, oldest first; a garbage collection deletes old ones."""
    found = []
    for path in sorted((job_root / "log").iterdir()):
        with contextlib.suppress(FileNotFoundError):
            found.append(unseal(path.read_bytes(), LogEntry, path.name)[0])
    return found


def uncommitted(job_root: Path, generation: int, ordinal: int) -> PendingCheckpoint:
    """Returns the files that a run wrote for barriers after `ordinal`, its last committed one."""
    found = []
    for path in (job_root / "data").rglob("*"):
        match = _DATA.fullmatch(path.relative_to(job_root).as_posix())
        if match and path.is_file() and int(match[1]) == generation and int(match[2]) > ordinal:
            found.append(path.stat().st_size)
    return PendingCheckpoint(len(found), sum(found))
