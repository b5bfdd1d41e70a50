"""Points that a job can go back to, as suggestions in a trigger form.

Airflow calls this each time it parses a DAG file, so it reads one small file and two folders of a job root on this
machine's file system, and nothing of any other storage. It does not import stateflow, which would cost more than all
else in a DAG file. What it cannot read it leaves out: a suggestion is a convenience, and the plan checks the target.
"""

from __future__ import annotations

import heapq
import itertools
import json
import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

LATEST = "latest"
_NEWEST = 20
"""As many savepoints, and as many checkpoints, are suggested."""
_ENTRIES = 5_000
"""A folder with more entries is not looked at."""
_LOG_BYTES = 1 << 18
"""A larger log entry is not read."""
_GIVEN_UP = 64
"""The document of a savepoint that was given up is a few words."""


def suggested_targets(job_root: str) -> list[str]:
    """``latest``, then names of savepoints and ids of checkpoints, newest first."""
    folder = _local(job_root)
    if folder is None:
        return [LATEST]
    return [LATEST, *_savepoints(folder / "savepoints"), *_checkpoints(folder / "log")]


def _local(job_root: str) -> Path | None:
    """The job root's folder; None in any storage but a file system."""
    if "://" not in job_root:
        return Path(job_root)
    parts = urlsplit(job_root)
    return Path(unquote(parts.path)) if parts.scheme == "file" and parts.netloc in ("", "localhost") else None


def _savepoints(folder: Path) -> list[str]:
    """Folders of complete savepoints: names that are never ambiguous."""
    found = []
    for name in _names(folder):
        try:
            document = os.stat(f"{folder}/{name}/_savepoint")
        except OSError:
            continue
        if document.st_size > _GIVEN_UP and not (folder / name / "_disposed").exists():
            found.append((document.st_mtime, name))
    return [name for _, name in heapq.nlargest(_NEWEST, found)]


def _checkpoints(folder: Path) -> list[str]:
    """Ids of the kept checkpoints that the newest entry of the log lists itself: of more than sixteen, older ones are
    in objects of their own, which are not read here."""
    newest = max((name for name in _names(folder) if name.isdecimal()), default="")
    try:
        path = folder / newest
        if not newest or path.stat().st_size > _LOG_BYTES:
            return []
        entry = json.loads(path.read_bytes().split(b"\n", 1)[0])
        kept = [int(ref["id"]) for ref in entry["retained"]]
        own = (
            int(entry["seq"]) if entry["kind"] == "commit" else int((entry["checkpoint"] or {"id": 0})["id"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [str(number) for number in heapq.nlargest(_NEWEST, {*kept, own} - {0})]


def _names(folder: Path) -> list[str]:
    """Of a folder with too many entries, none: it is not known which of them are the newest."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in itertools.islice(entries, _ENTRIES + 1)]
    except OSError:
        return []  # no run has made it yet, or this machine does not see it
    return names if len(names) <= _ENTRIES else []
