"""Reads and replaces the paths in the log of Spark's file source, which identifies files by them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypedDict
from urllib.parse import unquote, urlsplit

from stateflow.api.input_files import file_uri
from stateflow.errors import ConfigError, CorruptFile


class _LogEntry(TypedDict):
    """The fields of an entry that stateflow reads."""

    path: str
    timestamp: int


@dataclass(frozen=True)
class FolderMove:
    """The old and new path of a folder that was moved; both are absolute local paths."""

    old: PurePosixPath
    new: PurePosixPath

    def path(self, old: PurePosixPath) -> Path:
        """Returns the new path of a file. Raises ValueError for a file that is not in the old folder."""
        return Path(self.new / old.relative_to(self.old))

    def uri(self, old: str) -> str:
        """Returns the new URI of a file. The part below the folder is kept unchanged: Spark compares text."""
        below = len(local_path(old).relative_to(self.old).parts)
        tail = old.split("/")[-below:] if below else []
        return "/".join([file_uri(self.new), *tail])


@dataclass(frozen=True)
class LoggedFile:
    """A file in the log of files that were read.

    Attributes:
        path: its path when it was read.
        modified: its modification time when it was read, in milliseconds since 1970.
    """

    path: PurePosixPath
    modified: int


def local_path(uri: str) -> PurePosixPath:
    """Returns the path of a local file from Spark's URI. Raises ConfigError for a file that is not local."""
    try:
        parts = urlsplit(uri)
    except ValueError as e:
        raise CorruptFile("an entry of Spark's source log has no valid path", path=uri[:200]) from e
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise ConfigError(
            "only files of this host's file systems can be relocated",
            hint="keep the old address; or set the position: stateflow restore with --source UID=earliest",
            file=uri,
        )
    return PurePosixPath(unquote(parts.path))


def logged_files(log: bytes, name: str) -> list[LoggedFile]:
    """Returns the files of one entry of the source's log. Raises CorruptFile when it cannot be parsed."""
    return [LoggedFile(local_path(e["path"]), int(e["timestamp"])) for e in _entries(log, name)]


def relocate_log(log: bytes, name: str, move: FolderMove) -> bytes:
    """Returns an entry of the log with every path replaced, and all else unchanged.

    Raises:
        ConfigError: a file is not in the folder.
        CorruptFile: the entry cannot be parsed.
    """
    lines = log.split(b"\n")
    for number, line in enumerate(lines):
        if line.startswith(b"{"):
            entry = _parsed(line, name)
            try:
                entry["path"] = move.uri(entry["path"])
            except ValueError as e:
                raise ConfigError(
                    "the source has read a file outside of the moved folder",
                    hint="relocate a folder that contains all of its files",
                    file=entry["path"],
                    folder=str(move.old),
                ) from e
            lines[number] = json.dumps(entry, separators=(",", ":"), ensure_ascii=False).encode()
    return b"\n".join(lines)


def relocate_description(description: str, old: str, new: str) -> str | None:
    """Returns the description of a file source after its folder was moved; None when it does not read from `old`.

    Args:
        old: the folder as in the job file, or a parent of it.
    """
    head, colon, rest = description.removesuffix("]").partition(":")
    if not (head.startswith("FileSource[") and colon and description.endswith("]")):
        return None
    folder = old.rstrip("/")
    below = rest.removeprefix(folder)
    if not rest.startswith(folder) or (below and not below.startswith("/")):
        return None
    return f"{head}:{new.rstrip('/')}{below}]"


def _entries(log: bytes, name: str) -> Iterator[_LogEntry]:
    yield from (_parsed(line, name) for line in log.split(b"\n") if line.startswith(b"{"))


def _parsed(line: bytes, name: str) -> _LogEntry:
    try:
        entry: _LogEntry = json.loads(line)
        entry["path"].split, int(entry["timestamp"])
    except (ValueError, KeyError, AttributeError, TypeError, OverflowError, RecursionError) as e:
        raise CorruptFile("an entry of Spark's source log cannot be parsed", file=name) from e
    return entry
