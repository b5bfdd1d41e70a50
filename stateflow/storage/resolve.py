"""Opens the storage that a URI names."""

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
_OBJECT_STORES = {"s3": "s3", "gs": "gcs", "az": "azure"}
"""Extra of the package by the scheme of the address."""
HDFS_SCHEMES = ("webhdfs", "swebhdfs")

_LONGEST = 4096
"""Length of an address: the longest path that Linux accepts."""

_memory: dict[str, MemoryStorage] = {}


def open_storage(uri: str) -> Storage:
    """Opens the storage at `uri`.

    Args:
        uri: a path, ``file:///path``, ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``az://container/prefix``,
            ``webhdfs://namenode:9870/path``, or ``memory://name`` (one storage per process and name).

    Raises:
        ConfigError: the scheme is not supported, or `uri` is empty, which does not mean the working directory.
    """
    if not uri.strip() or uri in ("file:", "file://", "memory://"):
        raise ConfigError(
            "the address of a storage is empty",
            hint="use a path or file:///path; check that the variable is set",
            uri=uri,
        )
    parts = split_address(uri)
    if parts is None:
        return PosixStorage(Path(uri).expanduser())
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return PosixStorage(unquote(parts.path))
    if parts.scheme == "memory":
        return _memory.setdefault(uri, MemoryStorage(uri))
    if parts.scheme in _OBJECT_STORES:
        return _object_storage(uri, Credentials.of_process())
    if parts.scheme in HDFS_SCHEMES:
        return _hdfs_storage(uri, Credentials.of_process())
    if parts.scheme == "hdfs":
        raise ConfigError(
            "HDFS is supported through WebHDFS only",
            hint="use webhdfs://namenode:9870/path, with the port of the NameNode's HTTP server",
            uri=without_secrets(uri),
        )
    raise ConfigError(
        "the scheme of the storage's address is not supported",
        hint="use a path, or file://, s3://, gs://, az:// or webhdfs://",
        uri=without_secrets(uri),
    )


def split_address(uri: str) -> SplitResult | None:
    """Returns the parts of a URI; None for a path.

    Raises ConfigError for a URI or path that cannot be parsed.
    """
    if "\0" in uri or len(uri) > _LONGEST or not _is_unicode(uri):
        raise _malformed(uri)
    if "://" not in uri and not uri.startswith("file:"):
        return None
    try:
        parts = urlsplit(uri)
    except ValueError as e:
        raise _malformed(uri) from e
    if "\0" in unquote(parts.path):
        raise _malformed(uri)
    return parts


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8", "surrogateescape")  # as paths are encoded
    except UnicodeEncodeError:
        return False
    return True


def without_secrets(uri: str) -> str:
    """Returns an address without user, password and query, which may be secret."""
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return uri
    server, slash, path = rest.partition("/")
    return f"{scheme}://{server.rpartition('@')[2]}{slash}{path.partition('?')[0]}"


def _malformed(uri: str) -> ConfigError:
    return ConfigError(
        "the address of a storage is not valid",
        hint="use a path, or file://, s3://, gs://, az:// or webhdfs:// with server and path",
        uri=without_secrets(uri)[:100],
    )


@lru_cache(maxsize=16)
def _object_storage(uri: str, _: Credentials) -> Storage:
    """Opens object storage, once per address and credentials: creating a client takes longer than a request."""
    parts = urlsplit(uri)
    prefix = parts.path.strip("/")
    if parts.query or parts.fragment or not _BUCKET.fullmatch(parts.netloc) or not _PREFIX.fullmatch(prefix):
        # The address is not shown: it may contain a key in front of the bucket's name.
        raise ConfigError(
            "the address of an object storage is not valid",
            hint="use s3://bucket/some/prefix, of letters, digits and ._=-; credentials come from the environment",
            scheme=parts.scheme,
        )
    _require_package("obstore", _OBJECT_STORES[parts.scheme], uri)
    from stateflow.storage.object_store import ObjectStorage

    return ObjectStorage(parts.scheme, parts.netloc, prefix)


@lru_cache(maxsize=16)
def _hdfs_storage(uri: str, _: Credentials) -> Storage:
    """Opens HDFS, once per address and credentials."""
    parts = urlsplit(uri)
    folder = parts.path.strip("/")
    if (
        parts.query
        or parts.fragment
        or not _HOSTS.fullmatch(parts.netloc)
        or not (folder and _PREFIX.fullmatch(folder))
    ):
        # The address is not shown: it may contain a password in front of the host's name.
        raise ConfigError(
            "the address of HDFS is not valid",
            hint="use webhdfs://namenode:9870/some/path, of letters, digits and ._=-; "
            "the user comes from HADOOP_USER_NAME",
            scheme=parts.scheme,
        )
    _require_package("requests", "hdfs", uri)
    from stateflow.storage.hdfs.storage import HdfsStorage

    return HdfsStorage(parts.scheme, parts.netloc, f"/{folder}")


def _require_package(package: str, extra: str, uri: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ConfigError(
            "the storage needs a package that is not installed",
            package=package,
            uri=uri,
            hint=f"pip install 'stateflow[{extra}]'",
        )


def register_memory(storage: MemoryStorage) -> None:
    """Registers `storage` under its address ``memory://name`` in this process."""
    _memory[storage.uri] = storage


def unregister_memory(uri: str) -> None:
    """Removes the storage at ``memory://name`` from this process, with its objects."""
    _memory.pop(uri, None)
