"""Finds the files that a path or URI names: a file, the files of a folder, or those that match a pattern."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import unquote

from stateflow.errors import ConfigError
from stateflow.storage import Storage, open_location
from stateflow.storage.locations import open_if_allowed
from stateflow.storage.resolve import split_address

SUFFIXES = (".parquet", ".jsonl", ".json", ".ndjson")
"""Ends of the names of files that are read of a folder, in lower or upper case."""
_WILDCARDS = frozenset("*?[")


@dataclass(frozen=True)
class StateFile:
    """A file of rows."""

    storage: Storage
    key: str

    @property
    def uri(self) -> str:
        """URI of the file."""
        path = self.storage.local_path(self.key)
        return f"{self.storage.uri}/{self.key}" if path is None else path.as_uri()

    @contextlib.contextmanager
    def local_copy(self) -> Iterator[Path]:
        """Yields the path of a local file with the content; raises MissingFile if the file was deleted."""
        with self.storage.local_copy(self.key) as path:
            yield path


def find_files(location: str) -> list[StateFile]:
    """Returns the files at a location, ordered by name; at least one.

    Of a folder, these are the files whose names end as those of Parquet or JSON lines. Files and subfolders whose names
    begin with ``.`` or ``_`` are left out; any other one is an error.

    Args:
        location: path or URI of a file or folder, or a pattern with ``*``, ``?`` or ``[…]``, which match no ``/``.

    Raises:
        ConfigError: there is no such file, a folder has other files or subfolders, or the environment does not allow
            the location.
    """
    parts = split_address(location)
    if parts is not None and parts.scheme == "file" and parts.netloc in ("", "localhost"):
        # In other URIs, keys are not encoded. The path ends at no ? or #: both may be part of a name or pattern.
        location = unquote(location.partition(":")[2].removeprefix(f"//{parts.netloc}"))
    folder, _, name = location.rpartition("/")
    if name and not folder.endswith(":/"):
        # A folder may be allowed, and its parent not.
        storage = open_if_allowed(folder or _root_of(location))
        if storage is not None and storage.size(name) is not None:
            return [StateFile(storage, name)]
    found = _matching(location) if _WILDCARDS & set(location) else _of_folder(location)
    if not found:
        raise ConfigError(
            "no file of rows exists at the location",
            hint="pass a file of Parquet or JSON lines, a folder of such files, or a quoted pattern such as "
            "'rows/*.parquet'",
            location=location,
        )
    return found


def _root_of(location: str) -> str:
    return "/" if location.startswith("/") else "."


def _of_folder(location: str) -> list[StateFile]:
    storage = open_location(location)
    keys = [blob.key for blob in storage.list("") if not any(part[:1] in (".", "_") for part in blob.key.split("/"))]
    others = [key for key in keys if "/" in key or not key.lower().endswith(SUFFIXES)]
    if others:
        # Their rows would be missing without an error.
        raise ConfigError(
            "a folder of rows has files of another format, or subfolders",
            hint="pass a quoted pattern such as 'rows/*.parquet', or move them; names of files of Parquet and JSON "
            f"lines end with {', '.join(SUFFIXES)}",
            location=location,
            files=others[:10],
        )
    return [StateFile(storage, key) for key in keys]


def _matching(location: str) -> list[StateFile]:
    parts = location.split("/")
    first = next(number for number, part in enumerate(parts) if _WILDCARDS & set(part))
    patterns = parts[first:]
    storage = open_location("/".join(parts[:first]) or _root_of(location))
    return [StateFile(storage, blob.key) for blob in storage.list("") if _fits(blob.key.split("/"), patterns)]


def _fits(names: list[str], patterns: list[str]) -> bool:
    """Returns whether the parts of a key match those of a pattern; a hidden file only if the pattern begins as it."""
    return len(names) == len(patterns) and all(
        fnmatchcase(name, pattern) and (name[0] != "." or pattern[0] == ".")
        for name, pattern in zip(names, patterns, strict=True)
    )
