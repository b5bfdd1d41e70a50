"""Finds files of a batch that no longer exist, or have changed since they were read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from urllib.parse import unquote, urlsplit

from stateflow.checkpoint.log.documents import NOT_BEGUN

_SHOWN = 3


def lost_files(logs: Iterable[bytes], start: str, end: str) -> list[str]:
    """Returns some of the files between two positions that are missing or changed, each with the reason.

    Only local files can be checked.

    Args:
        logs: contents of the files of Spark's log of the source.
        start, end: positions of a file source, as in Spark's offset log.
    """
    after, upto = _number(start), _number(end)
    found = []
    for path, modified, number in _entries(logs):
        reason = _reason(path, modified) if after < number <= upto else ""
        if reason:
            found.append(f"{path}: {reason}")
            if len(found) == _SHOWN:
                break
    return found


def _reason(path: str, modified: int) -> str:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return "it does not exist"
    except OSError:
        # The task that reads it reports why it cannot.
        return ""
    return "" if status.st_mtime_ns // 1_000_000 == modified else "it has changed since it was read"


def _entries(logs: Iterable[bytes]) -> Iterator[tuple[str, int, int]]:
    """Yields path, modification time and number of the log's entry of each local file."""
    for log in logs:
        for line in log.splitlines():
            if not line.startswith(b"{"):
                continue
            entry = json.loads(line)
            uri = urlsplit(entry["path"])
            if uri.scheme == "file" and uri.netloc in ("", "localhost"):
                yield unquote(uri.path), int(entry["timestamp"]), int(entry["batchId"])


def _number(offset: str) -> int:
    return -1 if offset == NOT_BEGUN else int(json.loads(offset)["logOffset"])
