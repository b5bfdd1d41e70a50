"""What the demo reads from the job root: through stateflow's own operations, and by listing its files."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stateflow import ops
from stateflow.checkpoint.documents import LogEntry
from stateflow.checkpoint.envelope import unseal
from stateflow.errors import ConfigError

_DATA = re.compile(r"data/(\d+)/(\d+)-[^/]+/[^/]+")


@dataclass(frozen=True)
class Uncommitted:
    """Files of a barrier that no COMMIT stands for."""

    files: int
    bytes: int


def history(job_root: Path) -> list[Any]:
    """The records of all checkpoints so far; none while the job has never run."""
    try:
        return list(ops.history(str(job_root)))
    except ConfigError:
        return []


def log_entries(job_root: Path) -> list[LogEntry]:
    """The entries that are in the log, oldest first; of what was before, a collection leaves only some."""
    found = []
    for path in sorted((job_root / "log").iterdir()):
        with contextlib.suppress(FileNotFoundError):
            found.append(unseal(path.read_bytes(), LogEntry, path.name)[0])
    return found


def uncommitted(job_root: Path, generation: int, ordinal: int) -> Uncommitted:
    """The files that a run wrote for barriers after `ordinal`, its last committed one."""
    found = []
    for path in (job_root / "data").rglob("*"):
        match = _DATA.fullmatch(path.relative_to(job_root).as_posix())
        if match and path.is_file() and int(match[1]) == generation and int(match[2]) > ordinal:
            found.append(path.stat().st_size)
    return Uncommitted(len(found), sum(found))
