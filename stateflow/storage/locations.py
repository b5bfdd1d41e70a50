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
from urllib.parse import unquote

from stateflow.errors import ConfigError
from stateflow.storage.base import Storage
from stateflow.storage.resolve import open_storage, split_address, without_secrets

VARIABLE = "STATEFLOW_ALLOWED_LOCATIONS"


def open_location(uri: str, own: str = "") -> Storage:
    """Opens the storage at an address that a user named.

    Args:
        uri: a path or URI, as for `open_storage`.
        own: URI of the job root, below which everything is allowed; empty for none.

    Raises:
        ConfigError: the environment does not allow the location, or the address is not valid.
    """
    allowed = os.environ.get(VARIABLE)
    if allowed is not None:
        check_location(uri, [own, *allowed.split()])
    return open_storage(uri)


def is_allowed(uri: str) -> bool:
    """Returns whether the environment allows a location that a user has not named. Opens nothing."""
    allowed = os.environ.get(VARIABLE)
    return allowed is None or any(_is_below(uri, location) for location in allowed.split())


def check_location(uri: str, allowed: Iterable[str]) -> None:
    """Raises ConfigError unless `uri` is one of the allowed locations, or below one. Opens nothing.

    Args:
        uri: a path or URI.
        allowed: paths and URIs; empty ones are ignored.
    """
    allowed = [location for location in allowed if location]
    if any(_is_below(uri, location) for location in allowed):
        return
    raise ConfigError(
        "the location is not allowed for this job",
        hint=f"use a location below one of the allowed ones, or add it to the job's locations or to {VARIABLE}",
        location=without_secrets(uri),
        allowed=[without_secrets(location) for location in allowed],
    )


def _is_below(uri: str, location: str) -> bool:
    (server, path), (allowed_server, allowed_path) = _server_and_path(uri), _server_and_path(location)
    return server == allowed_server and (path == allowed_path or path.startswith(allowed_path.rstrip("/") + "/"))


def _server_and_path(uri: str) -> tuple[str, str]:
    """Returns scheme and server of an address, and its path without links and dots."""
    parts = split_address(uri)
    if parts is None:
        return "file:", os.path.realpath(os.path.expanduser(uri))
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return "file:", os.path.realpath(unquote(parts.path))
    return f"{parts.scheme}://{parts.netloc.lower()}", posixpath.normpath(f"/{parts.path}").replace("//", "/")
