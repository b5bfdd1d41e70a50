"""From a URI to a storage."""

from __future__ import annotations

import importlib.util
import re
from functools import lru_cache
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from stateflow.errors import ConfigError
from stateflow.storage.base import Storage
from stateflow.storage.credentials import Credentials
from stateflow.storage.memory import MemoryStorage
from stateflow.storage.posix import PosixStorage

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_SEGMENT = r"(?!\.\.?(?:/|$))[A-Za-z0-9._=-]+"
_PREFIX = re.compile(rf"({_SEGMENT}(/{_SEGMENT})*)?")
_HOSTS = re.compile(r"[A-Za-z0-9.-]+:[0-9]+(,[A-Za-z0-9.-]+:[0-9]+)*")
_OBJECT_STORES = ("s3", "gs", "az")
HDFS_SCHEMES = ("webhdfs", "swebhdfs")

_memory: dict[str, MemoryStorage] = {}


def open_storage(uri: str) -> Storage:
    """The storage at `uri`: a path, ``file:///path``, ``s3://bucket/prefix``, ``gs://bucket/prefix``,
    ``az://container/prefix``, ``webhdfs://namenode:9870/path``, or ``memory://name`` (one per process and name).

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
    if parts.scheme in _OBJECT_STORES:
        return _object_storage(uri, Credentials.of_process())
    if parts.scheme in HDFS_SCHEMES:
        return _hdfs_storage(uri, Credentials.of_process())
    if parts.scheme == "hdfs":
        raise ConfigError("an HDFS is reached through WebHDFS", hint="like webhdfs://namenode:9870/path, with the "
                          "port of the NameNode's HTTP server", uri=_shown(parts))  # fmt: skip
    raise ConfigError("no storage for this kind of address",
                      hint="use a path, or file://, s3://, gs://, az:// or webhdfs://",
                      uri=_shown(parts))  # fmt: skip


def _shown(parts: SplitResult) -> str:
    """An address without what may be a secret in it."""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


@lru_cache(maxsize=16)
def _object_storage(uri: str, _: Credentials) -> Storage:
    """One client for each address and set of credentials: making one takes longer than a request."""
    parts = urlsplit(uri)
    prefix = parts.path.strip("/")
    if parts.query or parts.fragment or not _BUCKET.fullmatch(parts.netloc) or not _PREFIX.fullmatch(prefix):
        # Not shown whole: somebody may have put a key in front of the bucket's name.
        raise ConfigError("the address of an object storage is not bucket and prefix", hint="like "
                          "s3://bucket/some/prefix, of letters, digits and ._=-; credentials come from the "
                          "environment", scheme=parts.scheme)  # fmt: skip
    _need("obstore", "object-storage", uri)
    from stateflow.storage.objects import ObjectStorage

    return ObjectStorage(parts.scheme, parts.netloc, prefix)


@lru_cache(maxsize=16)
def _hdfs_storage(uri: str, _: Credentials) -> Storage:
    """As `_object_storage`."""
    parts = urlsplit(uri)
    folder = parts.path.strip("/")
    if (
        parts.query
        or parts.fragment
        or not _HOSTS.fullmatch(parts.netloc)
        or not (folder and _PREFIX.fullmatch(folder))
    ):
        # Not shown whole: somebody may have put a password in front of the host's name.
        raise ConfigError("the address of HDFS is not NameNode, port and path", hint="like "
                          "webhdfs://namenode:9870/some/path, of letters, digits and ._=-; the user comes from "
                          "HADOOP_USER_NAME", scheme=parts.scheme)  # fmt: skip
    _need("hdfs", "hdfs", uri)
    from stateflow.storage.hdfs import HdfsStorage

    return HdfsStorage(parts.scheme, parts.netloc, f"/{folder}")


def _need(package: str, extra: str, uri: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ConfigError("this storage needs a package that is not installed", package=package, uri=uri,
                          hint=f"pip install 'stateflow[{extra}]'")  # fmt: skip


def forget_memory(uri: str) -> None:
    """Lets go of what is at ``memory://name``."""
    _memory.pop(uri, None)
