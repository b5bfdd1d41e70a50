"""The log that decides which files of a folder are visible, in the format of Spark's own file sink.

``_spark_metadata/<n>`` lists the files that version n adds; each tenth, ``<n>.compact``, lists all files of the table.
Spark reads the newest of the latter, and what follows. An entry is created only if its name is free, so versions are
numbered without gaps, and one of two writers is refused.

The first line of an entry names no file, and Spark ignores it, because its name begins with ``_``. It has what Spark
does not store: table id, columns, and the token of each application.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from stateflow.connectors.delta.data_files import UnnamedFile, disk_error
from stateflow.errors import CorruptFile
from stateflow.storage.no_follow import NotRegular, read_file

LOG_FOLDER = "_spark_metadata"
COMPACT_INTERVAL = 10
"""Spark's default: readers derive it from the names of the entries."""
_KEPT_VERSIONS = 1000
_NAME = re.compile(r"(\d{1,18})(\.compact)?")
_VERSION_LINE = b"v1"
_MARKER = "_stateflow"
_LARGEST = 4 << 30


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """What an entry states about its version of the table."""

    table_id: str
    format: str
    columns: list[tuple[str, str]]
    """Names and Spark's types."""
    partition_by: list[str] = []
    tokens: dict[str, int] = {}
    """The last published checkpoint of each application."""
    taken_over: dict[str, str] = {}
    """The successor of each application that must no longer write."""
    application: str = ""
    """The application that made the version; empty for a version that changes nothing."""
    back_to: int | None = None
    """The version whose content this one restores."""


class FileFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What an entry states about a file, in addition to what Spark stores."""

    version: int
    """The version that added it."""
    rows: int


class LoggedFile(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A line of an entry, with the fields of Spark's ``SinkFileStatus``."""

    path: str
    size: int
    is_dir: bool = False
    modification_time: int
    block_replication: int = 1
    block_size: int = 33554432
    action: str = "add"
    stateflow: FileFacts | Marker | None = None


class _MarkerLine(LoggedFile, frozen=True, kw_only=True, rename="camel"):
    stateflow: Marker | None = None


class _FileLine(LoggedFile, frozen=True, kw_only=True, rename="camel"):
    stateflow: FileFacts | None = None


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A version of the table as its entry states it.

    For a compact entry, `files` are all files of the table; otherwise those that the version adds.
    """

    version: int
    marker: Marker
    files: dict[str, _FileLine]
    """By path relative to the table."""

    @property
    def added(self) -> dict[str, _FileLine]:
        """The files that this version adds."""
        return {p: f for p, f in self.files.items() if f.stateflow and f.stateflow.version == self.version}


def is_compact(version: int) -> bool:
    """Returns whether the entry of a version lists all files of the table."""
    return (version + 1) % COMPACT_INTERVAL == 0


def file_line(root: Path, path: str, size: int, facts: FileFacts, now: int) -> LoggedFile:
    """Returns the line for a file, at a time in milliseconds since 1970."""
    return LoggedFile(path=(root / path).as_uri(), size=size, modification_time=now, stateflow=facts)


def versions(root: Path) -> list[int]:
    """Returns the versions that have an entry, oldest first; none if the table does not exist."""
    try:
        names = os.listdir(root / LOG_FOLDER)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as e:
        raise disk_error(e, root) from e
    return sorted(int(found[1]) for name in names if (found := _NAME.fullmatch(name)))


def read_entry(root: Path, version: int) -> Entry | None:
    """Returns the entry of a version; None if it does not exist, or if another program wrote it.

    Raises:
        CorruptFile: the entry is damaged.
    """
    path = root / LOG_FOLDER / _name(version)
    try:
        # Other writers of the folder could leave a link, or a FIFO on which a reader waits without end.
        lines = read_file(path, _LARGEST).splitlines()
    except FileNotFoundError:
        return None
    except OSError as e:
        if isinstance(e, NotRegular | IsADirectoryError) or e.errno == errno.EFBIG:
            reason = e.strerror or str(e)
            raise CorruptFile("an entry of a folder's log cannot be read", file=str(path), reason=reason) from e
        raise disk_error(e, path) from e
    try:
        marker = msgspec.json.decode(lines[1], type=_MarkerLine).stateflow if len(lines) > 1 else None
        if lines[:1] != [_VERSION_LINE] or marker is None:
            return None
        found = [msgspec.json.decode(line, type=_FileLine) for line in lines[2:]]
        return Entry(version=version, marker=marker, files={_relative(root, f.path): f for f in found})
    except (msgspec.DecodeError, ValueError) as e:
        raise CorruptFile("an entry of a folder's log is damaged", file=str(path), reason=str(e)) from e


def append(root: Path, version: int, marker: Marker, files: Sequence[LoggedFile], now: int) -> bool:
    """Creates the entry of a version, durably; returns False if it exists."""
    first = LoggedFile(path=(root / _MARKER).as_uri(), size=0, modification_time=now, stateflow=marker)
    lines = [_VERSION_LINE, *map(msgspec.json.encode, (first, *files))]
    folder = root / LOG_FOLDER
    try:
        with UnnamedFile.create(folder) as file:
            file.write(b"\n".join(lines))
            return file.link(_name(version))
    except OSError as e:
        raise disk_error(e, folder) from e


def content(root: Path, version: int) -> dict[str, _FileLine] | None:
    """Returns all files of a version by path; None if the log no longer has what is needed."""
    files: dict[str, _FileLine] = {}
    for number in range(version - (version + 1) % COMPACT_INTERVAL, version + 1):
        entry = read_entry(root, number) if number >= 0 else None
        if entry is None and number >= 0:
            return None
        files |= entry.files if entry else {}
    return files


def remove_old_entries(root: Path, newest: int) -> None:
    """Deletes entries that are more than 1,000 versions old; the oldest that remains lists all files of the table."""
    oldest = newest - _KEPT_VERSIONS - (newest - _KEPT_VERSIONS + 1) % COMPACT_INTERVAL
    for version in versions(root):
        if version >= oldest:
            return
        try:
            (root / LOG_FOLDER / _name(version)).unlink(missing_ok=True)
        except OSError as e:
            raise disk_error(e, root) from e


def known_files(root: Path) -> Iterator[str]:
    """Yields the paths of the files that some version of the log has; some of them several times."""
    for version in versions(root):
        entry = read_entry(root, version)
        yield from entry.files if entry else ()


def has_foreign_entries(root: Path, found: Iterable[int]) -> bool:
    """Returns whether the newest entry was written by another program, such as Spark's own sink."""
    newest = max(found, default=None)
    return newest is not None and read_entry(root, newest) is None


def _name(version: int) -> str:
    return f"{version}.compact" if is_compact(version) else str(version)


def _relative(root: Path, uri: str) -> str:
    """Returns a path of the log relative to the table. Raises ValueError for one that is elsewhere."""
    found = urlsplit(uri)
    path = Path(unquote(found.path)).relative_to(root)
    if (found.scheme, found.netloc) != ("file", "") or ".." in path.parts or "\0" in str(path):
        raise ValueError(f"a file outside of the folder: {uri[:500]}")
    return str(path)
