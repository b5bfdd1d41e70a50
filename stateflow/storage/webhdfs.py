"""A client of WebHDFS, HDFS's HTTP interface: retries, failover between NameNodes, and errors without secrets."""

from __future__ import annotations

import contextlib
import getpass
import logging
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import IO, TypedDict, TypeVar

import requests
from hdfs import HdfsError, InsecureClient, TokenClient
from requests.adapters import HTTPAdapter
from urllib3 import Retry
from urllib3.exceptions import MaxRetryError

from stateflow.errors import ConfigError, StorageError

# The library logs each response with status 401 as an error, and all other requests as well.
logging.getLogger("hdfs.client").setLevel(logging.CRITICAL)

_CHUNK = 4 << 20
_CONNECTIONS = 32
_TIMEOUT = (5, 60)
RETRIES = Retry(
    total=8,
    backoff_factor=0.1,
    backoff_jitter=0.2,
    backoff_max=15,
    status_forcelist=(502, 503, 504),
    allowed_methods=None,
    redirect=10,
    raise_on_status=False,
)
"""Also for requests that write. A temporary file has one writer; a rename that is sent twice fails because the file no
longer exists, which the caller handles."""
_NOT_READY = ("RetriableException", "SafeModeException", "StandbyException")
"""Responses of a NameNode that has just started or is not active, when no other one is active: it did nothing."""
_SECRET = re.compile(r"\b(delegation|token)=[^&\s\"'<>,)]+")
"""Parts of a URL that an error message must not contain."""

T = TypeVar("T")


class FileStatus(TypedDict):
    """A file or folder as WebHDFS describes it.

    Attributes:
        pathSuffix: name within the listed folder; empty when the listed path is a file.
        type: ``FILE`` or ``DIRECTORY``.
        length: size in bytes.
        modificationTime: modification time in milliseconds since 1970.
    """

    pathSuffix: str
    type: str
    length: int
    modificationTime: int


@dataclass(frozen=True)
class Listing:
    """The content of a folder, and the time of the response as HTTP writes it."""

    statuses: list[FileStatus]
    date: str

    @property
    def listed_at(self) -> datetime:
        """The time of the response, by the NameNode's clock."""
        return parsedate_to_datetime(self.date)


@dataclass(frozen=True)
class _Connection:
    """A library client, and the process that created it: a child process must not use its parent's connections."""

    client: InsecureClient
    process: int


class WebHdfs:
    """Requests to the active one of several NameNodes. Paths are absolute.

    Methods raise HdfsError or requests.RequestException; `translated_errors` translates both.

    Args:
        scheme: ``webhdfs``, or ``swebhdfs`` for TLS.
        hosts: NameNodes with their HTTP ports, separated by commas.
        retries: the policy for requests that fail, or that no NameNode is ready to serve.
    """

    def __init__(self, scheme: str, hosts: str, retries: Retry) -> None:
        protocol = "https" if scheme == "swebhdfs" else "http"
        self._urls = ";".join(f"{protocol}://{host}" for host in hosts.split(","))
        self._retries = retries
        self._connection: _Connection | None = None

    def size(self, path: str) -> int | None:
        """Returns the size of a file in bytes; None when it does not exist or is a folder."""
        try:
            found: FileStatus = self._request(lambda: self._client.status(path))
        except HdfsError as e:
            if is_missing(e):
                return None
            raise
        return found["length"] if found["type"] == "FILE" else None

    def list(self, path: str) -> Listing | None:
        """Returns the content of a folder; None when it does not exist.

        Any other failure raises an error, because a response that cannot be parsed must not count as an empty folder.
        The library's own `list` does not distinguish a missing folder, a failure and an empty folder, and does not
        return the NameNode's time.
        """
        try:
            response: requests.Response = self._request(lambda: self._client._list_status(path))  # noqa: SLF001
        except HdfsError as e:
            if is_missing(e):
                return None
            raise
        statuses: list[FileStatus] = response.json()["FileStatuses"]["FileStatus"]
        return Listing(statuses, response.headers.get("Date", ""))

    def read(self, path: str, offset: int, length: int | None) -> Iterator[bytes]:
        """Yields the bytes of a file from `offset`, at most `length` of them."""
        read = partial(self._client.read, path, offset=offset, length=length, chunk_size=_CHUNK)
        with contextlib.ExitStack() as stack:
            yield from self._request(lambda: stack.enter_context(read()))

    def write(self, path: str, data: bytes | IO[bytes]) -> None:
        """Writes a file with mode 0600, and replaces an existing one."""
        self._request(lambda: self._write(path, data))

    def rename(self, path: str, to: str) -> None:
        """Renames a file, atomically. Raises HdfsError when `to` exists."""
        # The library's own `rename` has no options, and moves a file into a folder that has the name.
        rename = partial(self._client._rename, destination=to, renameoptions="NONE")  # noqa: SLF001
        self._request(lambda: rename(path))

    def make_folder(self, path: str) -> None:
        """Creates a folder with mode 0700, and the folders above it, unless they exist."""
        self._request(lambda: self._client.makedirs(path, permission="700"))

    def remove(self, path: str) -> bool:
        """Removes a file or an empty folder. Returns whether it removed anything."""
        try:
            return bool(self._request(lambda: self._client.delete(path)))
        except HdfsError as e:
            if is_missing(e) or e.exception == "PathIsNotEmptyDirectoryException":
                return False
            raise

    @property
    def _client(self) -> InsecureClient:
        if self._connection is None or self._connection.process != os.getpid():
            self._connection = _Connection(_connect(self._urls, self._retries), os.getpid())
        return self._connection.client

    def _write(self, path: str, data: bytes | IO[bytes]) -> None:
        if not isinstance(data, bytes):
            # An earlier attempt may have read some of it.
            data.seek(0)
        self._client.write(path, data, overwrite=True, permission="600")

    def _request(self, request: Callable[[], T]) -> T:
        """Returns the response as soon as a NameNode is ready. Raises what `request` raises, also after the retries."""
        retries = self._retries
        while True:
            try:
                return request()
            except HdfsError as e:
                if e.exception not in _NOT_READY:
                    raise
                try:
                    retries = retries.increment()
                except MaxRetryError:
                    raise e from None
                retries.sleep()


def is_missing(error: HdfsError) -> bool:
    """Returns whether an error means that the path does not exist, also because it leads through a file."""
    return error.exception in ("FileNotFoundException", "ParentNotDirectoryException")


def reason_of(error: Exception) -> str:
    """Returns the first line of an error's message, without secrets."""
    return _SECRET.sub(r"\1=…", str(error).split("\n", 1)[0])[:300]


@contextlib.contextmanager
def translated_errors(uri: str, key: str) -> Iterator[None]:
    """Translates errors of the library into errors of stateflow, without secrets.

    Args:
        uri: address of the storage.
        key: key of the object that the requests are about.

    Raises:
        ConfigError: HDFS refused access.
        StorageError: HDFS failed, or does not respond.
    """
    try:
        yield
    except HdfsError as e:
        exception = {"exception": e.exception} if e.exception else {}
        facts = {"storage": uri, "key": key, "reason": reason_of(e), **exception}
        if e.exception in ("AccessControlException", "SecurityException") or "Authentication" in str(e):
            hint = "check HADOOP_USER_NAME or WEBHDFS_TOKEN, and the folder's permissions"
            raise ConfigError("access to the storage was denied", hint=hint, **facts) from None
        hint = "check whether HDFS is in safe mode or full; a new run continues from the last checkpoint"
        raise StorageError("storage request failed", hint=hint, **facts) from None
    except requests.RequestException as e:
        raise StorageError(
            "storage does not respond",
            hint="check the NameNode's host and HTTP port, and whether its DataNodes run; "
            "a new run continues from the last checkpoint",
            storage=uri,
            key=key,
            reason=reason_of(e),
        ) from None


def _connect(urls: str, retries: Retry) -> InsecureClient:
    session = requests.Session()
    adapter = HTTPAdapter(pool_maxsize=_CONNECTIONS, max_retries=retries)
    for protocol in ("http://", "https://"):
        session.mount(protocol, adapter)
    token = os.environ.get("WEBHDFS_TOKEN")
    if token:
        return TokenClient(urls, token, session=session, timeout=_TIMEOUT)
    user = os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
    return InsecureClient(urls, user, session=session, timeout=_TIMEOUT)
