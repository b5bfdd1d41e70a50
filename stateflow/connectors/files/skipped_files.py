"""Positions of the file source that skip existing files, as entries of Spark's log of files that were read."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import msgspec

from stateflow.api.input_files import file_uri
from stateflow.api.source import InitialPosition
from stateflow.connectors.files.new_files import listed_files
from stateflow.errors import ConfigError

_NOT_BEGUN = "-"
"""The offset of a source that has read nothing, as in Spark's offset log."""
_NANOSECONDS_OF_MS = 1_000_000


def skip_files(path: str, local: Path | None, until: datetime) -> InitialPosition:
    """Returns a position from which Spark reads only files that were modified at or after a time, and new ones.

    Spark's log gets one entry with all other files. The same files give the same bytes, so a plan with their hash is
    executed only if no other file must be skipped since.

    Args:
        path: the folder or pattern, as the job file names it.
        local: the same as a local path; None if only Spark can read it.
        until: the time.

    Raises:
        ConfigError: the files cannot be listed without Spark.
    """
    if local is None or ("{" in str(local) and not local.is_dir()):
        raise ConfigError(
            "files can be skipped by time only in a local folder, or a pattern without braces",
            hint="use earliest, or move the files",
            path=path,
        )
    limit = int(until.timestamp() * 1000)
    modified = {file: file.stat().st_mtime_ns // _NANOSECONDS_OF_MS for file in _existing(local)}
    skipped = sorted((file, time) for file, time in modified.items() if time < limit)
    if not skipped:
        return InitialPosition(
            _NOT_BEGUN, {}, f"no file was modified before {until.isoformat(timespec='milliseconds')}"
        )
    lines = [msgspec.json.encode({"path": file_uri(file), "timestamp": time, "batchId": 0}) for file, time in skipped]
    log = b"\n".join([b"v1", *lines])
    digest = hashlib.sha256(log).hexdigest()[:16]
    files = "1 file" if len(skipped) == 1 else f"{len(skipped)} files"
    text = f"{files} modified before {until.isoformat(timespec='milliseconds')} skipped ({digest})"
    return InitialPosition('{"logOffset":0}', {"0": log}, text)


def _existing(local: Path) -> list[Path]:
    # A pattern may match nothing yet.
    with suppress(FileNotFoundError):
        return list(listed_files(local))
    return []
