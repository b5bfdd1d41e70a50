"""The locations that a user may name in addition to the job root: savepoints, folders for savepoints, new job roots.

The process that opens a location has credentials, while the user who names it may only be allowed to trigger a DAG. The
environment variable ``STATEFLOW_ALLOWED_LOCATIONS`` restricts what is opened to the job root and a list of locations,
separated by spaces. Without it, everything is allowed: a user of the command line has the process's rights anyway.
Airflow's operators always restrict.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import NoReturn
from urllib.parse import unquote

from stateflow.errors import ConfigError
from stateflow.storage.base import Storage
from stateflow.storage.folder_tree import FolderTree
from stateflow.storage.posix import PosixStorage
from stateflow.storage.resolve import open_storage, split_address, without_secrets

VARIABLE = "STATEFLOW_ALLOWED_LOCATIONS"


@dataclass(frozen=True)
class _Place:
    """Where an address leads: scheme and server, and the path there without links and dots."""

    server: str
    path: str

    @classmethod
    def of(cls, uri: str) -> _Place:
        parts = split_address(uri)
        if parts is None:
            return cls("file:", os.path.realpath(os.path.expanduser(uri)))
        if parts.scheme == "file" and parts.netloc in ("", "localhost"):
            return cls("file:", os.path.realpath(unquote(parts.path)))
        path = posixpath.normpath(f"/{parts.path}").replace("//", "/")
        return cls(f"{parts.scheme}://{parts.netloc.lower()}", path)

    def is_below(self, other: _Place) -> bool:
        """Returns whether this place is the other one, or below it."""
        is_inside = self.path == other.path or self.path.startswith(other.path.rstrip("/") + "/")
        return self.server == other.server and is_inside

    def outermost(self, locations: Iterable[str]) -> _Place | None:
        """Returns the place of the outermost location of those above this place; None without one."""
        above = [place for place in map(_Place.of, filter(None, locations)) if self.is_below(place)]
        return min(above, key=lambda place: len(place.path), default=None)


def open_location(uri: str, own: str = "") -> Storage:
    """Opens the storage at an address that a user named.

    Args:
        uri: a path or URI, as for `open_storage`.
        own: URI of the job root, below which everything is allowed; empty for none.

    Raises:
        ConfigError: the environment does not allow the location, or the address is not valid.
    """
    allowed = os.environ.get(VARIABLE)
    if allowed is None:
        return open_storage(uri)
    locations = [own, *allowed.split()]
    return _opened(uri, _Place.of(uri), locations) or _refuse(uri, locations)


def open_if_allowed(uri: str) -> Storage | None:
    """Opens the storage at an address that a user has not named; returns None if the environment does not allow it."""
    allowed = os.environ.get(VARIABLE)
    return open_storage(uri) if allowed is None else _opened(uri, _Place.of(uri), allowed.split())


def check_location(uri: str, allowed: Iterable[str]) -> None:
    """Raises ConfigError unless `uri` is one of the allowed locations, or below one. Opens nothing.

    Args:
        uri: a path or URI.
        allowed: paths and URIs; empty ones are ignored.
    """
    locations = list(allowed)
    if _Place.of(uri).outermost(locations) is None:
        _refuse(uri, locations)


def is_below(uri: str, location: str) -> bool:
    """Returns whether an address leads to a location or below it."""
    return _Place.of(uri).is_below(_Place.of(location))


def _opened(uri: str, place: _Place, locations: Iterable[str]) -> Storage | None:
    location = place.outermost(locations)
    if location is None:
        return None
    storage = open_storage(uri)
    if not isinstance(storage, PosixStorage):
        return storage
    # Not by its path: a user who may write below the location could put a link in place of a folder at any time.
    folders = PurePath(place.path).relative_to(location.path).parts
    return PosixStorage(storage.root, FolderTree(Path(location.path), folders))


def _refuse(uri: str, locations: Iterable[str]) -> NoReturn:
    raise ConfigError(
        "the location is not allowed for this job",
        hint=f"use a location below one of the allowed ones, or add it to the job's locations or to {VARIABLE}",
        location=without_secrets(uri),
        allowed=[without_secrets(location) for location in locations if location],
    )
