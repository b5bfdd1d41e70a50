"""Storage in a bucket of S3 or Google Cloud Storage, or in a container of Azure Blob Storage, through obstore.

Credentials, region and endpoint come from the environment, under the names that each provider's own tools use
(``AWS_ACCESS_KEY_ID``, ``GOOGLE_APPLICATION_CREDENTIALS``, ``AZURE_STORAGE_ACCOUNT_NAME``, …), or from the machine's
identity. An address contains none of them, so they appear in no log and no manifest.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

import obstore
from obstore import exceptions
from obstore.store import AzureStore, GCSStore, S3Store

from stateflow.clock import SystemClock, epoch_milliseconds
from stateflow.errors import ConfigError, DataError, EnvironmentUnsupported, StorageError
from stateflow.private_files import open_private
from stateflow.storage.base import (
    READ_AT_ONCE,
    TRAFFIC,
    BlobInfo,
    FolderList,
    PutResult,
    Storage,
    check_same_content,
    key_parts,
    limit_chunks,
    missing_object,
    open_in_parts,
    write_chunks,
)

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import ClientConfig, RetryConfig

log = logging.getLogger(__name__)
_T = TypeVar("_T")
_clock = SystemClock()

_SINGLE_PUT = 16 << 20
"""A file up to this size is sent in one request, which also reports an existing object."""
_PART = 8 << 20
_PARTS_AT_ONCE = 4
"""Bounds memory: each part is held until it is sent."""
_CHUNK = 4 << 20
_STORES = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
_ALLOW_HTTP = {"s3": "AWS_ALLOW_HTTP", "gs": "GOOGLE_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP"}
"""Environment variables that permit an endpoint without TLS."""
_RETRIES: RetryConfig = {
    "max_retries": 8,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5), "base": 2},
}
_PAUSES = tuple(timedelta(milliseconds=pause) for pause in (100, 400, 1600))
"""Between repetitions of requests that obstore does not repeat."""
_CLIENT: ClientConfig = {"timeout": timedelta(seconds=60), "connect_timeout": timedelta(seconds=5)}
_IDENTITY = re.compile(r"/latest/(api/token|meta-data)|/computeMetadata/|/metadata/identity/")
"""Requests for the machine's identity, which obstore sends when it has found no other credentials."""
_BODY = re.compile(
    r"(status code: \d{3}[A-Za-z ]*|[Ii]nvalid [A-Za-z ]*[Rr]esponse\b|error response\b|request failed for key\b).*",
    re.DOTALL,
)
"""Obstore's words in front of an answer's text, and that text."""
_QUERY = re.compile(r"\?[^\s\"'<>,)]+")
"""The query of a URL, which may contain a signature."""
_ODD_KEY = re.compile(r"Path \"(.*?)\"(?: contained empty path segment|: Encountered illegal)", re.DOTALL)
"""obstore's words about a key that it cannot address."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_URL = re.compile(r"https?://[^/?#\s]+", re.IGNORECASE)
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL_STS", "AWS_METADATA_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT", "AZURE_MSI_ENDPOINT"),
}
_PAGE = {"s3": 1000, "gs": 1000, "az": 5000}
"""Entries in an answer to a list."""
_DELETED_AT_ONCE = {"s3": 1000, "gs": 1, "az": 256}
"""Objects in a request to delete some."""


@dataclass(frozen=True)
class _Refusal:
    """Why a storage refuses a request each time, until somebody changes something, and what to change.

    ``{key}``, ``{http}`` and ``{region}`` in the hint are variables of the scheme.
    """

    message: str
    hint: str


_VARIABLES = {
    "s3": {"key": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY", "region": "AWS_REGION"},
    "gs": {"key": "GOOGLE_APPLICATION_CREDENTIALS", "region": "the endpoint"},
    "az": {"key": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY", "region": "the endpoint"},
}
_NO_BUCKET = _Refusal("the bucket or container does not exist", "create it, or correct the address or the endpoint")
_NO_CREDENTIALS = _Refusal("no credentials for the storage were found", "set {key}, or give this machine an identity")
_DENIED = _Refusal("access to the storage was denied", "check the credentials ({key}) and their permissions")
_EXPIRED = _Refusal("the credentials of the storage have expired", "set new ones ({key})")
_ELSEWHERE = _Refusal(
    "the bucket is not at this endpoint, or in another region",
    "set {region} to the region of the bucket, or correct the endpoint",
)
_CLOCK = _Refusal("the clock of this machine differs from the storage's", "set the clock")
_NO_TLS = _Refusal("the endpoint is not one with TLS", "use https://, or set {http}=true for an endpoint without TLS")
_UNTRUSTED = _Refusal(
    "the certificate of the endpoint is not valid or not trusted",
    "correct the endpoint, or set SSL_CERT_FILE to a file with the certificate of its authority, on each host",
)
_LEFT_BLOCKS = _Refusal(
    "the storage has blocks that another program has uploaded under this name, with ids of another length",
    "delete the uncommitted blob of this name; Azure does so a week after the last block",
)
_INVALID = _Refusal("the storage rejected a request", "check its endpoint and region, and the credentials ({key})")
_CODES = {
    **dict.fromkeys(("NoSuchBucket", "ContainerNotFound"), _NO_BUCKET),
    **dict.fromkeys(("AccessDenied", "AuthenticationFailed", "InvalidAccessKeyId", "SignatureDoesNotMatch"), _DENIED),
    "InvalidToken": _DENIED,
    "ExpiredToken": _EXPIRED,
    **dict.fromkeys(("AuthorizationHeaderMalformed", "IllegalLocationConstraintException"), _ELSEWHERE),
    "RequestTimeTooSkewed": _CLOCK,
    "InvalidBlobOrBlock": _LEFT_BLOCKS,
    # With a status that otherwise is a refusal.
    **dict.fromkeys(("RequestTimeout", "rateLimitExceeded", "userRateLimitExceeded"), None),
}
"""What an answer's code means, if its status does not say it or the reader needs the code; None for a passing error."""
_CODE = re.compile(rf"(?:<Code>|\(code: |\"reason\": ?\")({'|'.join(_CODES)})\b")
_STATUS = re.compile(r"Server returned non-2xx status code: (\d{3})")
_LATER = (408, 409, 425, 429)
"""Statuses below 500 after which the same request may succeed."""


@dataclass
class _Process:
    """The process that uses obstore.

    obstore's threads do not survive a fork, so a child process that sends a request would wait forever.
    """

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
        prefix: prefix of all keys, without slashes at its ends; may be empty.
        retries: obstore's retry configuration; None to retry for about a minute.
    """

    host_local = False

    def __init__(self, scheme: str, bucket: str, prefix: str = "", retries: RetryConfig | None = None) -> None:
        self._prefix = f"{prefix}/" if prefix else ""
        self.scheme, self.bucket = scheme, f"{scheme}://{bucket}"
        # obstore asks Azure to start from a name by a parameter of a later version of its API than the one it states.
        self.lists_from_names = scheme != "az"
        self.uri = f"{scheme}://{bucket}/{prefix}".rstrip("/")
        retries = _RETRIES if retries is None else retries
        self._pauses = _PAUSES if retries.get("max_retries") else ()
        # Options that are given replace those of the environment.
        allows_http = os.environ.get(_ALLOW_HTTP[scheme], "").lower() == "true"
        http: ClientConfig = {"allow_http": True} if allows_http else {}
        self._check_process()
        self._check_endpoints()
        try:
            self._store = _STORES[scheme](bucket, retry_config=retries, client_options=_CLIENT | http)
        except exceptions.BaseError as e:
            # It sends no request.
            raise ConfigError(
                "the configuration of the storage in the environment is incomplete or not valid",
                hint=f"set {_VARIABLES[scheme]['key']}, or correct the variable that the reason is about",
                storage=self.uri,
                reason=_reason(e),
            ) from None

    def put_new(self, key: str, data: bytes) -> PutResult:
        TRAFFIC.add(written=len(data))
        with self._translate_errors(key):
            try:
                self._again(
                    lambda: obstore.put(self._store, self.full_key(key), data, mode="create", use_multipart=False)
                )
            except exceptions.AlreadyExistsError:
                # Also the response to a retry whose first response was lost.
                return PutResult.EXISTS
            except FileNotFoundError as e:
                raise self._refused(_NO_BUCKET, key, e) from None
            except exceptions.GenericError as e:
                if _refusal(e) is not None:
                    raise
                log.warning("%s did not confirm that it created %s: %s", self.uri, key, _reason(e))
                return PutResult.UNKNOWN
        return PutResult.CREATED

    def put_file(self, key: str, source: Path) -> None:
        size = source.stat().st_size
        if size > _SINGLE_PUT:
            self._put_parts(key, source)
        elif self.put_new(key, source.read_bytes()) is not PutResult.CREATED:
            with source.open("rb") as file:
                check_same_content(self, key, file)

    def get(self, key: str, limit: int = 1 << 30) -> bytes:
        with self._translate_errors(key):
            return self._again(lambda: self._get(key, limit))

    def _get(self, key: str, limit: int) -> bytes:
        found = obstore.get(self._store, self.full_key(key))
        if found.meta["size"] > limit:
            raise DataError("object exceeds the size limit", key=key, size_bytes=found.meta["size"], limit_bytes=limit)
        data = bytes(found.bytes())
        TRAFFIC.add(read=len(data))
        return data

    def chunks(self, key: str) -> Iterator[bytes]:
        return self._chunks(key)

    def fetch(self, key: str, target: Path, limit: int | None = None) -> None:
        write_chunks(limit_chunks(self._chunks(key), key, limit), target)

    def fetch_part(self, key: str, offset: int, size: int, target: Path) -> None:
        if not size:
            # Servers reject an empty range.
            if self.size(key) is None:
                raise missing_object(self, key)
            open_private(target, must_create=True).close()
            return
        write_chunks(self._chunks(key, (offset, offset + size)), target)

    @contextlib.contextmanager
    def open_parts(self, key: str) -> Iterator[Callable[[int, int], bytes]]:
        yield lambda offset, size: b"".join(self._chunks(key, (offset, offset + size)))

    @contextlib.contextmanager
    def open(self, key: str) -> Iterator[BinaryIO]:
        with self._translate_errors(key):
            size, data = self._again(lambda: self._begin(key))
        if data is not None:
            TRAFFIC.add(read=size)
            yield io.BytesIO(data)
        else:
            with self.open_parts(key) as read:
                yield open_in_parts(read, size)

    def _begin(self, key: str) -> tuple[int, bytes | None]:
        """Returns the size of an object, and its bytes if they are few."""
        # The answer has the size, and its bytes come only when they are read.
        got = obstore.get(self._store, self.full_key(key))
        size = got.meta["size"]
        return size, bytes(got.bytes()) if size <= READ_AT_ONCE else None

    def _chunks(self, key: str, span: tuple[int, int] | None = None) -> Iterator[bytes]:
        begin, tag, pauses = span[0] if span else 0, None, iter(self._pauses)
        with self._translate_errors(key):
            while span is None or begin < span[1]:
                options: GetOptions = {}
                if span is not None:
                    options["range"] = begin, span[1]
                elif begin:
                    options["range"] = {"offset": begin}
                if tag is not None:
                    # The rest must be of the same object.
                    options["if_match"] = tag
                TRAFFIC.add(1)
                try:
                    got = obstore.get(self._store, self.full_key(key), options=options)
                    tag = got.meta["e_tag"]
                    for chunk in got.stream(min_chunk_size=_CHUNK):
                        TRAFFIC.add(read=len(chunk))
                        begin += len(chunk)
                        yield bytes(chunk)
                    return
                except exceptions.GenericError as e:
                    pause = next(pauses, None)
                    if pause is None or _refusal(e) is not None:
                        raise
                    _clock.sleep(pause)

    def info(self, key: str) -> BlobInfo | None:
        TRAFFIC.add(1)
        with self._translate_errors(key):
            try:
                return _blob_info(key, obstore.head(self._store, self.full_key(key)))
            except FileNotFoundError:
                return None

    def list_folder(self, prefix: str) -> FolderList:
        folder = prefix.rstrip("/")
        if folder:
            key_parts(folder, self.uri)
        with self._translate_errors(prefix):
            path = f"{self._prefix}{folder}".rstrip("/") or None
            found = self._again(lambda: obstore.list_with_delimiter(self._store, path))
        TRAFFIC.add(self._pages(len(found["objects"]) + len(found["common_prefixes"])) - 1)
        cut = len(self._prefix)
        return FolderList(
            # Not an object that marks the folder itself: obstore lists its key without the slash at its end.
            tuple(_blob_info(each["path"][cut:], each) for each in found["objects"] if each["path"] != path),
            tuple(sorted(path.rstrip("/").rpartition("/")[2] for path in found["common_prefixes"])),
        )

    def list(self, prefix: str, start_after: str = "") -> list[BlobInfo]:
        folder = prefix.rpartition("/")[0]
        if folder:
            key_parts(folder, self.uri)
        with self._translate_errors(prefix):
            found = self._again(lambda: self._listed(prefix, start_after))
        wanted = (blob for blob in found if blob.key.startswith(prefix) and blob.key > start_after)
        return sorted(wanted, key=lambda blob: blob.key)

    def _listed(self, prefix: str, start_after: str) -> Sequence[BlobInfo]:
        """Returns the objects with a prefix, and perhaps others."""
        # obstore matches a prefix by whole segments only: the list begins at the prefix, and is left after it.
        is_part = not prefix.endswith("/") and prefix != ""
        after = start_after or (prefix[:-1] if is_part else "")
        folder, cut = self._prefix + prefix.rpartition("/")[0], len(self._prefix)
        found: list[BlobInfo] = []
        offset = self._prefix + after if after else None
        for chunk in obstore.list(self._store, folder, offset=offset, chunk_size=1000):
            pages = self._pages(len(found))
            found += [_blob_info(each["path"][cut:], each) for each in chunk]
            TRAFFIC.add(self._pages(len(found)) - pages)
            if is_part and found and found[-1].key[: len(prefix)] > prefix:
                break
        return found

    def _pages(self, entries: int) -> int:
        """Returns the number of requests that list so many entries."""
        return max(1, -(-entries // _PAGE[self.scheme]))

    def delete(self, keys: Iterable[str]) -> None:
        paths = [self.full_key(key) for key in keys]
        with self._translate_errors(""):
            try:
                if paths:
                    at_once = 1 if _deletes_singly() else _DELETED_AT_ONCE[self.scheme]
                    self._again(lambda: obstore.delete(self._store, paths), requests=-(-len(paths) // at_once))
            except FileNotFoundError as e:
                if _refusal(e) is not None:
                    raise
                # The call ends at the first object that does not exist.
                for path in paths:
                    with contextlib.suppress(FileNotFoundError):
                        self._again(partial(obstore.delete, self._store, path))

    def copy_from(self, source: Storage, key: str, to: str) -> None:
        if not isinstance(source, ObjectStorage) or source.bucket != self.bucket:
            super().copy_from(source, key, to)
            return
        TRAFFIC.add(1)
        with self._translate_errors(key):
            obstore.copy(self._store, source.full_key(key), self.full_key(to))

    def full_key(self, key: str) -> str:
        """Returns the key within the bucket. Raises DataError for a key that could lead out of this storage."""
        key_parts(key, self.uri)
        if _CONTROL.search(key):
            raise self._odd(key)
        return self._prefix + key

    def _put_parts(self, key: str, source: Path) -> None:
        """Uploads a file in parts, unless the object exists.

        Such an upload overwrites, so two concurrent uploads of different files under one key are not detected.
        """
        if self.size(key) is not None:
            with source.open("rb") as file:
                check_same_content(self, key, file)
            return
        size = source.stat().st_size
        TRAFFIC.add(written=size)
        put = partial(obstore.put, self._store, self.full_key(key), source, use_multipart=True)
        # One begins the upload, but not in Azure, and one ends it.
        requests = -(-size // _PART) + (1 if self.scheme == "az" else 2)
        with self._translate_errors(key):
            try:
                self._again(partial(put, chunk_size=_PART, max_concurrency=_PARTS_AT_ONCE), requests)
                return
            except (FileNotFoundError, exceptions.GenericError) as e:
                if not _has_ended(e):
                    raise
                # The server has ended the upload, and the answer was lost.
        with source.open("rb") as file:
            check_same_content(self, key, file)

    def _again(self, request: Callable[[], _T], requests: int = 1) -> _T:
        """Sends a request that may be repeated, several times if its answer is lost: obstore repeats only some kinds.

        Not those with a condition, or by POST, and not lists whose answer breaks off. After a lost answer, the
        repetition of a conditional put says that the object exists.

        A refusal is not repeated, even if the credentials are so new that the provider does not know them everywhere
        yet: nearly all refusals are wrong settings, and repeated ones lock accounts and raise alarms.

        Args:
            request: sends it.
            requests: how many the server gets of it.
        """
        for pause in self._pauses:
            TRAFFIC.add(requests)
            try:
                return request()
            except exceptions.GenericError as e:
                if _refusal(e) is not None:
                    raise
                log.info("%s did not answer, and is asked again: %s", self.uri, _reason(e))
                _clock.sleep(pause)
        TRAFFIC.add(requests)
        return request()

    def _check_endpoints(self) -> None:
        """Raises ConfigError for an endpoint in the environment that is not an URL: obstore would panic."""
        for name in _ENDPOINTS[self.scheme]:
            given = os.environ.get(name)
            if given is not None and not _URL.match(given):
                raise ConfigError(
                    "the endpoint of a storage in the environment is not an URL",
                    hint=f"set {name} to an address that begins with http:// or https://, or unset it",
                    storage=self.uri,
                    variable=name,
                )

    def _check_process(self) -> None:
        if _process.is_forked:
            raise EnvironmentUnsupported(
                "object storage was used before this process was forked, and cannot be used after the fork",
                hint="start processes by spawn, or use the storage in only one of them",
                storage=self.uri,
            )
        _process.user = os.getpid()

    @contextlib.contextmanager
    def _translate_errors(self, key: str) -> Iterator[None]:
        """Translates errors of obstore into errors of stateflow, without credentials."""
        self._check_process()
        try:
            yield
        except (FileNotFoundError, exceptions.BaseError) as e:
            if odd := _ODD_KEY.search(str(e)):
                raise self._odd(odd[1]) from None
            refusal = _refusal(e)
            if refusal is not None:
                raise self._refused(refusal, key, e) from None
            if isinstance(e, FileNotFoundError):
                raise missing_object(self, key) from e
            raise StorageError(
                "storage request failed",
                hint="check that its endpoint responds; a new run continues from the last checkpoint",
                storage=self.uri,
                key=key,
                reason=_reason(e),
            ) from None

    def _refused(self, refusal: _Refusal, key: str, error: Exception) -> ConfigError:
        code = _CODE.search(str(error))
        return ConfigError(
            refusal.message,
            hint=refusal.hint.format(http=_ALLOW_HTTP[self.scheme], **_VARIABLES[self.scheme]),
            bucket=self.bucket,
            storage=self.uri,
            key=key,
            **({"answer": code[1]} if code else {}),
            reason=_reason(error),
        )

    def _odd(self, key: str) -> DataError:
        return DataError(
            "an object cannot be addressed: its key has an empty segment, one of dots, or a control character",
            hint="rename or delete this object by the provider's tools, or use a prefix without it",
            key=key,
            bucket=self.bucket,
            storage=self.uri,
        )


def _deletes_singly() -> bool:
    return os.environ.get("AWS_DISABLE_BULK_DELETE", "").lower() in ("true", "1", "yes", "on", "y", "t")


def _has_ended(error: Exception) -> bool:
    """Returns whether an upload in parts ended before: S3 then knows no such upload, and Azure no such blocks."""
    is_gone = isinstance(error, FileNotFoundError) and _refusal(error) is None
    return is_gone or "<Code>InvalidBlockList<" in str(error)


def _refusal(error: Exception) -> _Refusal | None:
    """Returns why a request is refused each time; None for an error after which the same request may succeed.

    obstore has classes for some of these errors, but not for those of lists and of bulk deletions. Its texts, which
    contain the answer, are the only place that always has the status.
    """
    text = str(error)
    if _IDENTITY.search(text):
        return _NO_CREDENTIALS
    if code := _CODE.search(text):
        return _CODES[code[1]]
    if isinstance(error, FileNotFoundError):
        return None
    if "redirect without LOCATION" in text:
        return _ELSEWHERE
    if "HTTP error: builder error" in text:
        return _NO_TLS
    if "HTTP error: error sending request" in text and "error: InvalidCertificate(" in text:
        return _UNTRUSTED
    status = int(found[1]) if (found := _STATUS.search(text)) else 0
    if 300 <= status < 400:
        return _ELSEWHERE
    if status in (401, 403) or isinstance(error, (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)):
        return _DENIED
    if status == 404:
        return _NO_BUCKET
    # A precondition fails when another object has the key: that is not a refusal.
    return _INVALID if (400 <= status < 500 and status not in (*_LATER, 412)) or status == 501 else None


def _blob_info(key: str, found: ObjectMeta) -> BlobInfo:
    # A header has the tag in quotes, and Azure's lists have it without.
    modified, tag = epoch_milliseconds(found["last_modified"]), (found["e_tag"] or "").strip('"')
    # S3's tag is the same for equal bytes. Not the object's version, which lists do not have; and the time in seconds,
    # which is all that the header of an answer has.
    return BlobInfo(key, found["size"], modified, f"{tag}.{modified // 1000}")


def _reason(error: Exception) -> str:
    """Returns the first line of obstore's message, without the server's text and without queries of URLs.

    Later lines dump its internal state.
    """
    return _QUERY.sub("?…", _BODY.sub(r"\1", str(error)).split("\n", 1)[0])[:300]
