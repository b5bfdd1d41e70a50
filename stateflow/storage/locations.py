"""Opens the storage that a URI or a location names, with the credentials of the environment.

The process that opens a location has credentials, while the user who names it may only be allowed to trigger a DAG. The
environment variable ``STATEFLOW_ALLOWED_LOCATIONS`` restricts what is opened to the job root and a list of locations,
separated by spaces. Without it, everything is allowed: a user of the command line has the process's rights anyway.
Airflow's operators always restrict.

The driver sends the variables that give access to object storage to its tasks.
"""

from __future__ import annotations

import importlib.util
import os
import posixpath
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePath
from typing import NoReturn
from urllib.parse import SplitResult, unquote, urlsplit

from stateflow.errors import ConfigError
from stateflow.storage.base import Storage
from stateflow.storage.memory import MemoryStorage
from stateflow.storage.posix import FolderTree, PosixStorage

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_SEGMENT = r"(?!\.\.?(?:/|$))[A-Za-z0-9._=-]+"
_PREFIX = re.compile(rf"({_SEGMENT}(/{_SEGMENT})*)?")
_HOSTS = re.compile(r"[A-Za-z0-9.-]+:[0-9]+(,[A-Za-z0-9.-]+:[0-9]+)*")
_OBJECT_STORES = {"s3": "s3", "gs": "gcs", "az": "azure"}
"""Extra of the package by the scheme of the address."""
HDFS_SCHEMES = ("webhdfs", "swebhdfs")


_WITHOUT_SERVER = re.compile(
    r"(?!file:)[a-z][a-z0-9+.-]*:/|(?:arn|s3[an]?|gc?s|az|abfss?|wasbs?|dbfs|s?webhdfs|hdfs|memory):"
    r"|(?:s3[an]?|gc?s|az|abfss?|wasbs?|s?webhdfs|hdfs)//",
    re.IGNORECASE,
)
"""The beginning of a URI that is not one of a file, and has no server: as a path, it would be a folder of that name."""
_LONGEST = 4096
"""Length of an address: the longest path that Linux accepts."""


_memory: dict[str, MemoryStorage] = {}


def open_storage(uri: str, *, is_private: bool = True) -> Storage:
    """Opens the storage at `uri`.

    Args:
        uri: a path, ``file:///path``, ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``az://container/prefix``,
            ``webhdfs://namenode:9870/path``, or ``memory://name`` (one storage per process and name).
        is_private: whether only this user may read what is written; otherwise HDFS decides by its default. In buckets,
            policies decide, and files on a disk are private.

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
        return _hdfs_storage(uri, is_private, Credentials.of_process())
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


def is_object_address(address: str) -> bool:
    """Returns whether an address is one of a bucket, a container, HDFS or memory, which `open_object` opens."""
    return address.partition("://")[0].lower() in (*_OBJECT_STORES, *HDFS_SCHEMES, "memory") and "://" in address


def split_object(address: str) -> tuple[str, str]:
    """Returns the address of the storage that has an object, and the object's key there.

    The storage is the whole bucket or container, because a key may have characters that an address cannot have. In
    HDFS, it is the outermost folder.

    Args:
        address: of the object, not encoded.
    """
    scheme, _, rest = address.partition("://")
    parts = rest.split("/")
    outer = 2 if scheme.lower() in HDFS_SCHEMES else 1
    return f"{scheme.lower()}://{'/'.join(parts[:outer])}", "/".join(parts[outer:])


def open_object(uri: str) -> tuple[Storage, str]:
    """Opens the storage that has an object; returns it with the object's key.

    Args:
        uri: percent-encoded.
    """
    storage, key = split_object(unquote(uri))
    return open_storage(storage), key


def split_address(uri: str) -> SplitResult | None:
    """Returns the parts of a URI; None for a path.

    Raises ConfigError for a URI or path that cannot be parsed, and for a URI without ``//`` in front of the server.
    """
    if "\0" in uri or len(uri) > _LONGEST or not _is_unicode(uri):
        raise _malformed(uri)
    if "://" not in uri and not uri.startswith("file:"):
        if _WITHOUT_SERVER.match(uri):
            raise ConfigError(
                "an address with a scheme needs :// and a bucket or server after it",
                hint="write for example s3://bucket/prefix; for a folder of this name in the working directory, "
                "write ./ in front of it",
                uri=re.sub("(?<=:).*@", "…@", uri, flags=re.DOTALL)[:100],
            )
        return None
    try:
        parts = urlsplit(uri)
    except ValueError as e:
        raise _malformed(uri) from e
    if "\0" in unquote(parts.path):
        raise _malformed(uri)
    return parts


def check_address(address: str) -> None:
    """Raises ConfigError for an address that is not valid, or has a user or a password. Opens nothing.

    For addresses that are opened later, and shown before: in descriptions, logs and lineage.

    Args:
        address: a path or URI, which may be a glob pattern.
    """
    parts = split_address(address)
    if parts is None or "@" not in parts.netloc:
        return
    # Hadoop's addresses of Azure have the container in front of the account.
    if parts.password is not None or is_object_address(address):
        raise ConfigError(
            "the address of a storage has a user or a password",
            hint="remove them from the address; credentials come from the environment",
            uri=without_secrets(address),
        )


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
def _hdfs_storage(uri: str, is_private: bool, _: Credentials) -> Storage:
    """Opens HDFS, once per address, permissions and credentials."""
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
    from stateflow.storage.hdfs import PRIVATE, HdfsStorage

    return HdfsStorage(parts.scheme, parts.netloc, f"/{folder}", modes=PRIVATE if is_private else None)


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


def open_location(uri: str, own: str = "", within: Sequence[str] | None = None) -> Storage:
    """Opens the storage at an address that a user named.

    Args:
        uri: a path or URI, as for `open_storage`.
        own: URI of the job root, below which everything is allowed; empty for none.
        within: further locations that are allowed, and no others but those that the environment lists; None for those
            that the environment allows.

    Raises:
        ConfigError: the environment does not allow the location, or the address is not valid.
    """
    allowed = os.environ.get(VARIABLE)
    if allowed is None and within is None:
        return open_storage(uri)
    return open_below(uri, [own, *(within or ()), *(allowed or "").split()])


def open_below(uri: str, locations: Iterable[str]) -> Storage:
    """Opens the storage at an address that is one of these locations, or below one.

    Args:
        uri: a path or URI, as for `open_storage`.
        locations: paths and URIs; empty ones are ignored.

    Raises:
        ConfigError: it is not below one of them, or the address is not valid.
    """
    return _opened(uri, _Place.of(uri), locations) or _refuse(uri)


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
    if _Place.of(uri).outermost(allowed) is None:
        _refuse(uri)


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


def _refuse(uri: str) -> NoReturn:
    # Without the list of allowed locations: errors are in answers of the pages, in logs and in the history, for all who
    # may read the job.
    raise ConfigError(
        "the location is not allowed for this job",
        hint=f"use a location below one of the allowed ones, or add it to the job's locations or to {VARIABLE}",
        location=without_secrets(uri),
    )


HOST_NAMES = (
    *("AWS_ROLE_ARN", "AWS_ROLE_SESSION_NAME", "AWS_WEB_IDENTITY_TOKEN_FILE"),
    *("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
    *("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "AWS_METADATA_ENDPOINT", "AWS_IMDSV1_FALLBACK"),
    *("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "SERVICE_ACCOUNT"),
    *("GCE_METADATA_HOST", "GCE_METADATA_ROOT", "GCE_METADATA_IP"),
    *("AZURE_FEDERATED_TOKEN_FILE", "AZURE_MSI_ENDPOINT", "AZURE_IDENTITY_ENDPOINT", "AZURE_MSI_RESOURCE_ID"),
    *("AZURE_OBJECT_ID", "AZURE_USE_AZURE_CLI", "AZURE_FABRIC_TOKEN_SERVICE_URL", "AZURE_FABRIC_WORKLOAD_HOST"),
    *("AZURE_FABRIC_SESSION_TOKEN", "AZURE_FABRIC_CLUSTER_IDENTIFIER"),
)
"""Those of `NAMES` that are about an identity or a file of one host."""
NAMES = (
    *HOST_NAMES,
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_TOKEN", "AWS_SKIP_SIGNATURE"),
    *("AWS_ENDPOINT_URL_STS", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ALLOW_HTTP"),
    *("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"),
    *("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "AWS_S3_EXPRESS", "AWS_REQUEST_PAYER"),
    *("AWS_SERVER_SIDE_ENCRYPTION", "AWS_SSE_KMS_KEY_ID", "AWS_SSE_BUCKET_KEY_ENABLED", "AWS_SSE_CUSTOMER_KEY_BASE64"),
    *("AWS_CHECKSUM_ALGORITHM", "AWS_UNSIGNED_PAYLOAD", "AWS_CONDITIONAL_PUT", "AWS_COPY_IF_NOT_EXISTS"),
    *("AWS_DISABLE_TAGGING", "AWS_DISABLE_BULK_DELETE"),
    *("GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_BEARER_TOKEN", "GOOGLE_SKIP_SIGNATURE"),
    *("GOOGLE_BASE_URL", "GOOGLE_ALLOW_HTTP"),
    *("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"),
    *("AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY"),
    *("AZURE_STORAGE_CLIENT_ID", "AZURE_CLIENT_ID", "AZURE_STORAGE_CLIENT_SECRET", "AZURE_CLIENT_SECRET"),
    *("AZURE_STORAGE_TENANT_ID", "AZURE_STORAGE_AUTHORITY_ID", "AZURE_TENANT_ID", "AZURE_AUTHORITY_ID"),
    *("AZURE_STORAGE_AUTHORITY_HOST", "AZURE_AUTHORITY_HOST", "AZURE_CREDENTIAL_TYPE"),
    *("AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_TOKEN", "AZURE_SKIP_SIGNATURE"),
    *("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "AZURE_STORAGE_USE_EMULATOR", "AZURE_ALLOW_HTTP"),
    *("AZURE_USE_FABRIC_ENDPOINT", "AZURE_STORAGE_ENCRYPTION_KEY", "AZURE_DISABLE_TAGGING"),
    *("HADOOP_USER_NAME", "WEBHDFS_DATANODE_PORTS", "WEBHDFS_NAMENODES", "WEBHDFS_TOKEN"),
)
"""Environment variables that the driver sends to its tasks: all that its storage reads.

Not the names of buckets, which the address has, nor ``IDENTITY_ENDPOINT`` and ``IDENTITY_HEADER``, which Azure sets on
each host for this host. A list and not all names with a prefix: others are secrets of other programs, or tell libraries
that a job's functions use about files of the driver's host, such as ``AWS_PROFILE``.
"""


@dataclass(frozen=True)
class Credentials:
    """The driver's environment variables for object storage.

    They reach the tasks inside the closure that Spark sends, never in a Spark setting, which the web interface shows,
    and never in a manifest or log. The `repr` has only the names.
    """

    variables: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def of_process(cls) -> Credentials:
        """Returns the variables that are set in this process."""
        return cls(tuple((name, os.environ[name]) for name in NAMES if name in os.environ))

    def adopt(self) -> None:
        """Sets the variables in this process, which is a Spark worker.

        A variable that the driver does not have keeps the value of the host.
        """
        os.environ.update(self.variables)

    def __repr__(self) -> str:
        return f"Credentials({', '.join(name for name, _ in self.variables)})"
