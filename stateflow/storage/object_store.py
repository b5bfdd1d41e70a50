"""Objects in a bucket of S3 or Google Cloud Storage, or in a container of Azure Blob Storage, through obstore.

Credentials, region and endpoint come from the environment, under the names that each provider's own tools use
(``AWS_ACCESS_KEY_ID``, ``GOOGLE_APPLICATION_CREDENTIALS``, ``AZURE_STORAGE_ACCOUNT_NAME``, …), or from the machine's
identity. Nothing of them is in an address, so nothing of them gets into logs and manifests.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore
from obstore import exceptions
from obstore.store import AzureStore, GCSStore, S3Store

from stateflow.errors import ConfigError, DataError, EnvironmentUnsupported, MissingFile, StorageError
from stateflow.storage.base import GONE, BlobInfo, PutResult, Storage, check_own, key_parts, write_chunks

log = logging.getLogger(__name__)

_SINGLE_PUT = 16 << 20
"""A file up to this size is sent in one request, which also says when its name is taken."""
_PART = 8 << 20
_PARTS_AT_ONCE = 4
"""Bounds memory: each part that is under way is held."""
_CHUNK = 4 << 20
_STORES = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
_ALLOW_HTTP = {"s3": "AWS_ALLOW_HTTP", "gs": "GOOGLE_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP"}
"""Variables that permit an endpoint without TLS."""
_RETRIES: dict[str, Any] = {
    "max_retries": 8,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5), "base": 2},
}
_CLIENT: dict[str, Any] = {"timeout": timedelta(seconds=60), "connect_timeout": timedelta(seconds=5)}
_IDENTITY = re.compile(r"/latest/(api/token|meta-data)|/computeMetadata/|/metadata/identity/")
"""Where a machine is asked who it is: the last thing that is tried."""
_QUERY = re.compile(r"\?[^\s\"'<>,)]+")
"""Of an URL: a signature may be in it."""


@dataclass
class _Process:
    """Which process uses obstore: its threads do not survive a fork, and a child that asks it for anything waits for
    ever."""

    user: int | None = None
    is_forked: bool = False


_process = _Process()


def _after_fork() -> None:
    _process.is_forked = _process.user is not None


os.register_at_fork(after_in_child=_after_fork)


class ObjectStorage(Storage):
    """Objects below a prefix of a bucket or container.

    Args:
        scheme: ``s3``, ``gs`` or ``az``.
        bucket: bucket or container.
        prefix: of all keys; without slashes at its ends, may be empty.
    """

    host_local = False

    def __init__(self, scheme: str, bucket: str, prefix: str = "") -> None:
        self._prefix = f"{prefix}/" if prefix else ""
        self.bucket = f"{scheme}://{bucket}"
        self.uri = f"{scheme}://{bucket}/{prefix}".rstrip("/")
        with self._told(""):
            # Options that are given replace those of the environment.
            http = {"allow_http": True} if os.environ.get(_ALLOW_HTTP[scheme], "").lower() == "true" else {}
            self._store: Any = _STORES[scheme](bucket, retry_config=_RETRIES, client_options=_CLIENT | http)

    def put_new(self, key: str, data: bytes) -> PutResult:
        with self._told(key):
            try:
                obstore.put(self._store, self.full_key(key), data, mode="create", use_multipart=False)
            except exceptions.AlreadyExistsError:
                # Also what a try again is told whose first answer was lost.
                return PutResult.EXISTS
            except FileNotFoundError as e:
                raise ConfigError(
                    "the bucket or container is not there", hint="create it", storage=self.uri
                ) from e
            except exceptions.GenericError as e:
                log.warning("%s did not say whether it created %s: %s", self.uri, key, _reason(e))
                return PutResult.UNKNOWN
        return PutResult.CREATED

    def put_file(self, key: str, source: Path) -> None:
        size = source.stat().st_size
        if size > _SINGLE_PUT:
            self._put_parts(key, source)
        elif self.put_new(key, source.read_bytes()) is not PutResult.CREATED:
            check_own(self, key, source)

    def get(self, key: str, limit: int = 1 << 30) -> bytes:
        with self._told(key):
            found = obstore.get(self._store, self.full_key(key))
            if found.meta["size"] > limit:
                raise DataError(
                    "object is larger than it may be", key=key, size=found.meta["size"], limit=limit
                )
            return bytes(found.bytes())

    def chunks(self, key: str) -> Iterator[bytes]:
        return self._chunks(key)

    def fetch(self, key: str, target: Path) -> None:
        write_chunks(self._chunks(key), target)

    def fetch_part(self, key: str, offset: int, size: int, target: Path) -> None:
        if not size:
            # A range without bytes is none that a server knows.
            if self.size(key) is None:
                raise MissingFile("object is not there", hint=GONE, key=key, storage=self.uri)
            target.open("xb").close()
            return
        write_chunks(self._chunks(key, (offset, offset + size)), target)

    def _chunks(self, key: str, span: tuple[int, int] | None = None) -> Iterator[bytes]:
        options: Any = {"range": span} if span else None
        with self._told(key):
            got = obstore.get(self._store, self.full_key(key), options=options)
            found = iter(got.stream(min_chunk_size=_CHUNK))
            while (chunk := next(found, None)) is not None:
                yield bytes(chunk)

    def size(self, key: str) -> int | None:
        with self._told(key):
            try:
                return int(obstore.head(self._store, self.full_key(key))["size"])
            except FileNotFoundError:
                return None

    def list(self, prefix: str, start_after: str = "") -> list[BlobInfo]:
        folder = prefix.rpartition("/")[0]
        if folder:
            key_parts(folder, self.uri)
        with self._told(prefix):
            # A prefix means whole segments to obstore.
            stream = obstore.list(
                self._store,
                self._prefix + folder,
                offset=self._prefix + start_after if start_after else None,
                chunk_size=1000,
            )
            cut = len(self._prefix)
            found = [BlobInfo(each["path"][cut:], each["size"]) for chunk in stream for each in chunk]
        wanted = (blob for blob in found if blob.key.startswith(prefix) and blob.key > start_after)
        return sorted(wanted, key=lambda blob: blob.key)

    def delete(self, keys: Iterable[str]) -> None:
        paths = [self.full_key(key) for key in keys]
        with self._told(""):
            try:
                if paths:
                    obstore.delete(self._store, paths)
            except FileNotFoundError:
                # The first that is not there ends the call.
                for path in paths:
                    with contextlib.suppress(FileNotFoundError):
                        obstore.delete(self._store, path)

    def take(self, source: Storage, key: str, to: str) -> None:
        if not isinstance(source, ObjectStorage) or source.bucket != self.bucket:
            super().take(source, key, to)
            return
        with self._told(key):
            obstore.copy(self._store, source.full_key(key), self.full_key(to))

    def full_key(self, key: str) -> str:
        """The key as the bucket has it. Raises DataError for one that could lead out of this storage."""
        key_parts(key, self.uri)
        return self._prefix + key

    def _put_parts(self, key: str, source: Path) -> None:
        """In parts, the object is overwritten: whoever gives a name twice is told if the other one is there already."""
        if self.size(key) is not None:
            check_own(self, key, source)
            return
        with self._told(key):
            obstore.put(
                self._store, self.full_key(key), source, chunk_size=_PART, max_concurrency=_PARTS_AT_ONCE
            )

    @contextlib.contextmanager
    def _told(self, key: str) -> Iterator[None]:
        """Tells what goes wrong in our words, without credentials."""
        if _process.is_forked:
            raise EnvironmentUnsupported("object storage was used before this process was forked, and cannot be used "
                                         "behind that", hint="start processes by spawn, or use the storage in one of "
                                         "both only", storage=self.uri)  # fmt: skip
        _process.user = os.getpid()
        try:
            yield
        except FileNotFoundError as e:
            raise MissingFile("object is not there", hint=GONE, key=key, storage=self.uri) from e
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as e:
            raise ConfigError("the storage does not let us write or read", hint="check the credentials, and what they "
                              "permit", storage=self.uri, key=key, reason=_reason(e)) from None  # fmt: skip
        except exceptions.UnknownConfigurationKeyError as e:
            raise ConfigError(
                "the storage's settings do not fit", storage=self.uri, reason=_reason(e)
            ) from None
        except exceptions.BaseError as e:
            if _IDENTITY.search(str(e)):
                raise ConfigError("there are no credentials for the storage", hint="set them in the environment, like "
                                  "AWS_ACCESS_KEY_ID, or give this machine an identity", storage=self.uri,
                                  reason=_reason(e)) from None  # fmt: skip
            raise StorageError("the storage failed", hint="does its endpoint answer? a new run goes on from the last "
                               "checkpoint", storage=self.uri, key=key, reason=_reason(e)) from None  # fmt: skip


def _reason(error: Exception) -> str:
    """The first line of what obstore says, which has URLs with signatures and, further on, what it holds in memory."""
    return _QUERY.sub("?…", str(error).split("\n", 1)[0])[:300]
