"""The paths in the log of Spark's file source, which it recognizes files by: read, and replaced when a folder moved."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from stateflow.errors import ConfigError, CorruptFile

_LEGAL = "/_-!.~'()*,;:$&+=@"
"""What Java's URI, which Spark writes paths with, leaves in a path as it is, apart from letters and digits."""


@dataclass(frozen=True)
class Move:
    """A folder, and where its files are now; both absolute local paths."""

    old: PurePosixPath
    new: PurePosixPath

    def path(self, old: PurePosixPath) -> Path:
        """Where a file of the old folder is now. Raises ValueError for one that is not in it."""
        return Path(self.new / old.relative_to(self.old))

    def uri(self, old: str) -> str:
        """The same of Spark's URI. The part below the folder stays to the byte: Spark compares text."""
        below = len(local_path(old).relative_to(self.old).parts)
        tail = old.split("/")[-below:] if below else []
        return "/".join([f"file://{_encoded(self.new)}", *tail])


@dataclass(frozen=True)
class SeenFile:
    """A file that was read.

    Attributes:
        path: when it was read.
        modified: its modification time then, in milliseconds since 1970.
    """

    path: PurePosixPath
    modified: int


def local_path(uri: str) -> PurePosixPath:
    """The path that Spark's URI of a local file names. Raises ConfigError for a file that is elsewhere."""
    parts = urlsplit(uri)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise ConfigError("only files of this host's file systems can be relocated", hint="give the source a new "
                          "uid in a new job root, or keep the old address", file=uri)  # fmt: skip
    return PurePosixPath(unquote(parts.path))


def seen_files(log: bytes, name: str) -> list[SeenFile]:
    """The files of one entry of the source's log. Raises CorruptFile for something else."""
    return [SeenFile(local_path(e["path"]), int(e["timestamp"])) for e in _entries(log, name)]


def moved_log(log: bytes, name: str, move: Move) -> bytes:
    """The entry with every path replaced, and all else as it was.

    Raises ConfigError for a file outside of the folder.
    """
    lines = log.split(b"\n")
    for number, line in enumerate(lines):
        if line.startswith(b"{"):
            entry = _parsed(line, name)
            try:
                entry["path"] = move.uri(entry["path"])
            except ValueError as e:
                raise ConfigError("the source has read a file outside of the folder that moved", hint="relocate the "
                                  "folder that has all of its files", file=entry["path"],
                                  folder=str(move.old)) from e  # fmt: skip
            lines[number] = json.dumps(entry, separators=(",", ":"), ensure_ascii=False).encode()
    return b"\n".join(lines)


def moved_description(description: str, old: str, new: str) -> str | None:
    """What the source is called when its folder has moved; None when it does not read from `old`.

    Args:
        old: the folder as the job file names it, or one above it.
    """
    head, colon, rest = description.removesuffix("]").partition(":")
    if not (head.startswith("FileSource[") and colon and description.endswith("]")):
        return None
    folder = old.rstrip("/")
    below = rest.removeprefix(folder)
    if not rest.startswith(folder) or (below and not below.startswith("/")):
        return None
    return f"{head}:{new.rstrip('/')}{below}]"


def _entries(log: bytes, name: str) -> Iterator[Mapping[str, Any]]:
    yield from (_parsed(line, name) for line in log.split(b"\n") if line.startswith(b"{"))


def _parsed(line: bytes, name: str) -> dict[str, Any]:
    try:
        entry: dict[str, Any] = json.loads(line)
        entry["path"].split, int(entry["timestamp"])
    except (ValueError, KeyError, AttributeError, TypeError) as e:
        raise CorruptFile("an entry of Spark's source log is not what it writes", file=name) from e
    return entry


def _encoded(path: PurePosixPath) -> str:
    """As Java's URI has it: what is neither ASCII nor blank or a control character stays."""
    return "".join(
        c if ord(c) > 127 and c.isprintable() and not c.isspace() else quote(c, safe=_LEGAL)
        for c in str(path)
    )
