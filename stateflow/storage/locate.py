"""From a URI to a storage."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from stateflow.errors import ConfigError
from stateflow.storage.base import Storage
from stateflow.storage.memory import MemoryStorage
from stateflow.storage.posix import PosixStorage

_memory: dict[str, MemoryStorage] = {}


def open_storage(uri: str) -> Storage:
    """The storage at `uri`: a path, ``file:///path``, or ``memory://name`` (one per process and name).

    Raises ConfigError for any other scheme, and for none at all: nothing is not the present folder.
    """
    if not uri.strip() or uri in ("file:", "file://", "memory://"):
        raise ConfigError("the address of a storage is empty", hint="a path or file:///path; was a variable "
                          "not set?", uri=uri)  # fmt: skip
    if "://" not in uri and not uri.startswith("file:"):
        return PosixStorage(Path(uri).expanduser())
    parts = urlsplit(uri)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return PosixStorage(unquote(parts.path))
    if parts.scheme == "memory":
        return _memory.setdefault(uri, MemoryStorage(uri))
    raise ConfigError("no storage for this kind of address", hint="use a path or file:///path", uri=uri)


def forget_memory(uri: str) -> None:
    """Lets go of what is at ``memory://name``."""
    _memory.pop(uri, None)
