"""Objects as files of HDFS, through WebHDFS: neither Hadoop's programs nor a Java are needed where stateflow runs.

A file is written aside, under a name of its own, and then renamed by the NameNode, in one step that never overwrites
(``renameoptions=NONE``): nobody sees a part of it, and of many who want a name one gets it. Creating a file under its
name at once would show its parts.

User and delegation token come from the environment (``HADOOP_USER_NAME``, ``WEBHDFS_TOKEN``), never from an address.
"""

from __future__ import annotations

import contextlib
import getpass
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import IO, Any

import requests
from hdfs import HdfsError, InsecureClient, TokenClient
from requests.adapters import HTTPAdapter
from urllib3 import Retry
from urllib3.exceptions import MaxRetryError

from stateflow.clock import SystemClock
from stateflow.errors import ConfigError, DataError, MissingFile, StorageError
from stateflow.storage.base import GONE, BlobInfo, PutResult, Storage, check_own, key_parts, write_chunks

log = logging.getLogger(__name__)
# It logs each answer of 401 as an error of its own, and each request otherwise.
logging.getLogger("hdfs.client").setLevel(logging.CRITICAL)

_ASIDE = ".aside"
"""The folder of files that have no name yet; no list shows it."""
_ABANDONED = timedelta(days=1)
"""A file that has been aside for so long has no living writer. HDFS does not change the time of a file while
it is written, so this is longer than any upload takes."""
_CHUNK = 4 << 20
_CONNECTIONS = 32
_TIMEOUT = (5, 60)
_RETRIES = Retry(total=8, backoff_factor=0.1, backoff_jitter=0.2, backoff_max=15, status_forcelist=(502, 503, 504),
                 allowed_methods=None, redirect=10, raise_on_status=False)  # fmt: skip
"""Also of requests that write: files that are aside belong to one writer, and a rename that is asked for twice is told
that its file is gone."""
_NOT_READY = ("RetriableException", "SafeModeException", "StandbyException")
"""What a NameNode says that has just started or is not the active one, and no other one is: it did nothing."""
_FOLDER_TRIES = 20
_SECRET = re.compile(r"\b(delegation|token)=[^&\s\"'<>,)]+")
"""What an URL may have in it."""


@dataclass(frozen=True)
class _Connection:
    """A client, and the process that made it: a child must not speak on its parent's connections."""

    client: Any
    process: int


class HdfsStorage(Storage):
    """Files below a folder of HDFS. Directories that it makes first are 0700, files 0600.

    Args:
        scheme: ``webhdfs``, or ``swebhdfs`` for TLS.
        hosts: NameNodes with their HTTP ports, separated by commas; whichever is the active one answers.
        folder: absolute path of the root, without a slash at its end.
    """

    host_local = False

    def __init__(self, scheme: str, hosts: str, folder: str) -> None:
        self.uri = f"{scheme}://{hosts}{folder}"
        self._folder = folder
        protocol = "https" if scheme == "swebhdfs" else "http"
        self._urls = ";".join(f"{protocol}://{host}" for host in hosts.split(","))
        self._connected: _Connection | None = None
        self._is_made = False

    def put_new(self, key: str, data: bytes) -> PutResult:
        with self._told(key):
            path = self._path(key)
            aside = self._write_aside(data)
            try:
                return self._name(aside, path)
            except (requests.RequestException, HdfsError) as e:
                if isinstance(e, HdfsError) and e.exception is not None:
                    raise
                # No answer, or one that is not the NameNode's, such as a proxy's.
                log.warning("%s did not say whether it created %s: %s", self.uri, key, _reason(e))
                return PutResult.UNKNOWN

    def put_file(self, key: str, source: Path) -> None:
        path = self._path(key)
        with self._told(key), source.open("rb") as file:
            named = self._name(self._write_aside(file), path)
        if named is not PutResult.CREATED:
            check_own(self, key, source)

    def get(self, key: str, limit: int = 1 << 30) -> bytes:
        found = bytearray()
        for chunk in self._chunks(key, length=limit + 1):
            found += chunk
        if len(found) > limit:
            raise DataError("object is larger than it may be", key=key, limit=limit)
        return bytes(found)

    def chunks(self, key: str) -> Iterator[bytes]:
        return self._chunks(key)

    def fetch(self, key: str, target: Path) -> None:
        write_chunks(self._chunks(key), target)

    def fetch_part(self, key: str, offset: int, size: int, target: Path) -> None:
        # Nothing of a file is what a server takes for all of it.
        if not size and self.size(key) is None:
            raise self._missing(key)
        write_chunks(self._chunks(key, offset, size) if size else iter(()), target)

    def size(self, key: str) -> int | None:
        with self._told(key):
            try:
                found = _asked(lambda: self._client.status(self._path(key)))
            except HdfsError as e:
                if _is_missing(e):
                    return None
                raise
            return int(found["length"]) if found["type"] == "FILE" else None

    def list(self, prefix: str, start_after: str = "") -> list[BlobInfo]:
        folder = prefix.rpartition("/")[0]
        if folder:
            key_parts(folder, self.uri)
        with self._told(prefix):
            wanted = (b for b in self._walk(folder) if b.key.startswith(prefix) and b.key > start_after)
            return sorted(wanted, key=lambda blob: blob.key)

    def delete(self, keys: Iterable[str]) -> None:
        folders = set()
        for key in keys:
            with self._told(key):
                if self.size(key) is not None and self._remove(self._path(key)):
                    folders.add(key.rpartition("/")[0])
        for folder in folders:
            self._remove_empty(folder)

    def tidy(self) -> None:
        """Removes files that writers who were killed left aside. The clock is the NameNode's own."""
        with self._told(_ASIDE):
            answer = self._listed(self._path(_ASIDE))
            if answer is None:
                return
            until = (parsedate_to_datetime(answer.headers["Date"]) - _ABANDONED).timestamp() * 1000
            for found in _statuses(answer):
                if found["modificationTime"] < until:
                    self._remove(self._path(f"{_ASIDE}/{found['pathSuffix']}"))

    @property
    def _client(self) -> Any:
        if self._connected is None or self._connected.process != os.getpid():
            self._connected = _Connection(_connect(self._urls), os.getpid())
        return self._connected.client

    def _path(self, key: str) -> str:
        return "/".join((self._folder, *key_parts(key, self.uri)))

    def _write_aside(self, data: bytes | IO[bytes]) -> str:
        """The key that the bytes have now, which nobody but the caller knows."""
        aside = f"{_ASIDE}/{SystemClock().new_id()}"
        try:
            if not self._is_made:
                # By itself: folders that come with a file have HDFS's own permissions.
                self._make_folder(self._folder)
                self._is_made = True
            _asked(lambda: self._write(self._path(aside), data))
        except HdfsError as e:
            if not _is_missing(e):
                raise
            raise ConfigError("the folder of the storage is not one", hint="choose another path", storage=self.uri,
                              reason=_reason(e)) from None  # fmt: skip
        return aside

    def _write(self, path: str, data: bytes | IO[bytes]) -> None:
        if not isinstance(data, bytes):
            # A try before this one may have read some of it.
            data.seek(0)
        self._client.write(path, data, overwrite=True, permission="600")

    def _name(self, aside: str, path: str) -> PutResult:
        """Renames a file unless its name is taken."""
        # The library's own `rename` has no options, and moves a file into a folder that has the name.
        rename = partial(self._client._rename, destination=path, renameoptions="NONE")  # noqa: SLF001
        for _ in range(_FOLDER_TRIES):
            try:
                _asked(lambda: rename(self._path(aside)))
                return PutResult.CREATED
            except HdfsError as e:
                if e.exception == "FileAlreadyExistsException":
                    self._remove(self._path(aside))
                    return PutResult.EXISTS
                if not _is_missing(e):
                    raise
            if self.size(aside) is None:
                # Renamed by a request whose answer was lost and which was sent again, or taken by `tidy`.
                return PutResult.UNKNOWN
            # Its folder is not there, or a collector has removed it while it was empty.
            self._make_folder(path.rpartition("/")[0])
        raise StorageError("the folder of an object is removed again and again", path=path, storage=self.uri)

    def _chunks(self, key: str, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        with self._told(key):
            read = partial(self._client.read, offset=offset, length=length, chunk_size=_CHUNK)
            try:
                with contextlib.ExitStack() as stack:
                    yield from _asked(lambda: stack.enter_context(read(self._path(key))))
            except HdfsError as e:
                if _is_missing(e):
                    raise self._missing(key) from None
                raise

    def _walk(self, folder: str) -> Iterator[BlobInfo]:
        answer = self._listed(f"{self._folder}/{folder}".rstrip("/"))
        for status in _statuses(answer) if answer is not None else ():
            name = status["pathSuffix"]
            key = f"{folder}/{name}" if folder else name
            if status["type"] == "DIRECTORY":
                if key != _ASIDE:
                    yield from self._walk(key)
            elif name:  # that of a file itself is empty
                yield BlobInfo(key, status["length"])

    def _listed(self, path: str) -> requests.Response | None:
        """What the NameNode says of a folder, None when there is none.

        Raises HdfsError for anything else: an answer that nobody understands is no empty folder. The library's own
        `list` tells neither these apart nor what time it is there.
        """
        try:
            found: requests.Response = _asked(lambda: self._client._list_status(path))  # noqa: SLF001
        except HdfsError as e:
            if _is_missing(e):
                return None
            raise
        return found

    def _make_folder(self, path: str) -> None:
        _asked(lambda: self._client.makedirs(path, permission="700"))

    def _remove(self, path: str) -> bool:
        """Whether there was anything to remove; a folder that is not empty stays."""
        try:
            return bool(_asked(lambda: self._client.delete(path)))
        except HdfsError as e:
            if _is_missing(e) or e.exception == "PathIsNotEmptyDirectoryException":
                return False
            raise

    def _remove_empty(self, folder: str) -> None:
        with self._told(folder):
            while folder and self._remove(f"{self._folder}/{folder}"):
                folder = folder.rpartition("/")[0]

    def _missing(self, key: str) -> MissingFile:
        return MissingFile("object is not there", hint=GONE, key=key, storage=self.uri)

    @contextlib.contextmanager
    def _told(self, key: str) -> Iterator[None]:
        """Tells what goes wrong in our words, without a token."""
        try:
            yield
        except HdfsError as e:
            if e.exception in ("AccessControlException", "SecurityException") or "Authentication" in str(e):
                raise ConfigError("the storage does not let us write or read", hint="check HADOOP_USER_NAME or "
                                  "WEBHDFS_TOKEN, and the folder's permissions", storage=self.uri, key=key,
                                  reason=_reason(e)) from None  # fmt: skip
            raise StorageError("the storage failed", hint="is HDFS in safe mode, or full? a new run goes on "
                               "from the last checkpoint", storage=self.uri, key=key,
                               reason=_reason(e)) from None  # fmt: skip
        except requests.RequestException as e:
            raise StorageError("the storage does not answer", hint="are the NameNode's host and HTTP port right, and "
                               "do its DataNodes run? a new run goes on from the last checkpoint",
                               storage=self.uri, key=key, reason=_reason(e)) from None  # fmt: skip


def _asked(request: Callable[[], Any]) -> Any:
    """What a NameNode answers, as soon as one is ready. Raises what `request` raises, also when none is in time."""
    retries = _RETRIES
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


def _connect(urls: str) -> Any:
    session = requests.Session()
    adapter = HTTPAdapter(pool_maxsize=_CONNECTIONS, max_retries=_RETRIES)
    for protocol in ("http://", "https://"):
        session.mount(protocol, adapter)
    token = os.environ.get("WEBHDFS_TOKEN")
    if token:
        return TokenClient(urls, token, session=session, timeout=_TIMEOUT)
    user = os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
    return InsecureClient(urls, user, session=session, timeout=_TIMEOUT)


def _statuses(answer: requests.Response) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = answer.json()["FileStatuses"]["FileStatus"]
    return found


def _is_missing(error: HdfsError) -> bool:
    # The last of them: the path leads through a file.
    return error.exception in ("FileNotFoundException", "ParentNotDirectoryException")


def _reason(error: Exception) -> str:
    return _SECRET.sub(r"\1=…", str(error).split("\n", 1)[0])[:300]
