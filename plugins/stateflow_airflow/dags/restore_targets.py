"""Restore targets of a job, as suggestions in a trigger form.

Airflow calls this each time it parses a DAG file. It reads one small file and two folders of a job root in this
machine's file system, and never another storage. It does not import stateflow, which would take longer than the rest of
a DAG file. It skips what it cannot read: suggestions are optional, and the plan checks the target. A user who may write
to the job root must not be able to stop the parsing of DAG files.
"""

from __future__ import annotations

import heapq
import itertools
import json
import os
import re
import stat
from pathlib import Path
from urllib.parse import unquote, urlsplit

LATEST = "latest"
_NEWEST = 20
"""Number of savepoints, and number of checkpoints, that are suggested."""
_MAX_ENTRY_BYTES = 1 << 18
"""A larger log entry is not read."""
_MAX_ABANDONED_BYTES = 64
"""The document of an abandoned savepoint has at most this size."""
_SAVEPOINT = re.compile(r"[A-Za-z0-9._-]{1,250}")
_ENTRY = re.compile(r"[0-9]{1,20}")
_NOT_A_CHECKPOINT = 10**18
"""Ids of checkpoints are smaller."""


def suggested_targets(job_root: str, *, most_entries: int = 5_000) -> list[str]:
    """Returns ``latest``, then names of savepoints and ids of checkpoints, each newest first.

    Args:
        job_root: path or URI of the job root.
        most_entries: a folder with more entries is skipped, since finding the newest would take too long.
    """
    folder = _local_folder(job_root)
    if folder is None:
        return [LATEST]
    savepoints = _savepoints(folder / "savepoints", most_entries)
    return [LATEST, *savepoints, *_checkpoints(folder / "log", most_entries)]


def _local_folder(job_root: str) -> Path | None:
    """Returns the job root's folder; None if it is not in a file system."""
    if "://" not in job_root:
        return Path(job_root)
    parts = urlsplit(job_root)
    return Path(unquote(parts.path)) if parts.scheme == "file" and parts.netloc in ("", "localhost") else None


def _savepoints(folder: Path, most: int) -> list[str]:
    """Returns folder names of complete savepoints; unlike savepoint names, they are unique."""
    found = []
    for name in _entry_names(folder, most, _SAVEPOINT):
        try:
            document = os.lstat(f"{folder}/{name}/_savepoint")
        except OSError:
            continue
        if (
            stat.S_ISREG(document.st_mode)
            and document.st_size > _MAX_ABANDONED_BYTES
            and not (folder / name / "_disposed").exists()
        ):
            found.append((document.st_mtime, name))
    return [name for _, name in heapq.nlargest(_NEWEST, found)]


def _checkpoints(folder: Path, most: int) -> list[str]:
    """Returns ids of the retained checkpoints that the newest log entry lists.

    If more than sixteen are retained, the older ones are listed in separate objects, which are not read here.
    """
    newest = max(_entry_names(folder, most, _ENTRY), default="")
    try:
        entry = json.loads(_content(folder / newest).split(b"\n", 1)[0])
        retained = [int(ref["id"]) for ref in entry["retained"]]
        own = int(entry["seq"]) if entry["kind"] == "commit" else int((entry["checkpoint"] or {"id": 0})["id"])
    except (OSError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError):
        return []
    found = {number for number in (*retained, own) if 0 < number < _NOT_A_CHECKPOINT}
    return [str(number) for number in heapq.nlargest(_NEWEST, found)]


def _content(path: Path) -> bytes:
    """Returns the content of a regular file of at most 256 KiB, or the part of a larger one.

    Raises:
        OSError: it is missing, a link, a folder or a device.
    """
    # O_NONBLOCK: opening a FIFO would wait for its writer.
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"not a regular file: {path}")
        return file.read(_MAX_ENTRY_BYTES)


def _entry_names(folder: Path, most: int, form: re.Pattern[str]) -> list[str]:
    """Returns the names in a folder that have a form; none if it has more than `most` entries."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in itertools.islice(entries, most + 1)]
    except OSError:
        return []  # not created yet, or not visible from this machine
    return [name for name in names if form.fullmatch(name)] if len(names) <= most else []
