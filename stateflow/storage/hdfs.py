"""Storage in HDFS through its HTTP interface WebHDFS: stateflow needs neither Hadoop's programs nor Java to use it.

A file is written under a temporary name, and then renamed by the NameNode in one step that never overwrites
(``renameoptions=NONE``): readers see no part of it, and of many writers of one name exactly one succeeds. Creating a
file under its final name would expose its parts.

A server may be hostile, or not the one that the user meant. So an answer of JSON is read up to a limit, a transfer must
keep a minimum speed, requests are redirected to DataNodes only, and errors contain an answer's status and the name of
its exception, never its text. For the interface see
https://hadoop.apache.org/docs/stable/hadoop-project-dist/hadoop-hdfs/WebHDFS.html.

User and delegation token come from the environment (``HADOOP_USER_NAME``, ``WEBHDFS_TOKEN``), never from an address.
"""

from __future__ import annotations

import contextlib
import getpass
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import IO, TypeVar
from urllib.parse import quote, urlsplit

import msgspec
import requests
from urllib3 import Retry
from urllib3.exceptions import HTTPError, MaxRetryError

from stateflow.clock import Clock, SystemClock
from stateflow.errors import ConfigError, DataError, StorageError
from stateflow.http import (
    BadAnswer,
    BoundedRetry,
    BoundedSession,
    LongAnswer,
    read_answer,
    reason_of_failure,
    stream_answer,
)
from stateflow.storage.base import (
    TRAFFIC,
    BlobInfo,
    FolderList,
    PutResult,
    Storage,
    check_limit,
    check_same_content,
    key_parts,
    missing_object,
    write_chunks,
)
from stateflow.types.decoders import decode_json

log = logging.getLogger(__name__)

_ANSWER_LIMIT = 32 << 20
"""Bytes of an answer that are read at most. About as many list 100,000 files, if a server does not list in pages."""
_MOST_ENTRIES = 6_400_000
"""Entries of a folder: HDFS does not permit more (``dfs.namenode.fs-limits.max-directory-items``)."""
_REFUSAL_LIMIT = 64 << 10
_EXCEPTION = re.compile(r"[A-Za-z]{1,100}")


T = TypeVar("T")


class HdfsRefusal(Exception):
    """An answer that reports a failure.

    Args:
        status: HTTP status.
        exception: name of the Java exception without its package; empty if the answer names none.
    """

    def __init__(self, status: int, exception: str) -> None:
        super().__init__(f"HTTP status {status} {exception}".rstrip())
        self.status = status
        self.exception = exception

    @property
    def is_missing(self) -> bool:
        """Whether the path does not exist, also because it leads through a file."""
        return self.exception in ("FileNotFoundException", "ParentNotDirectoryException")


class _RemoteException(msgspec.Struct):
    exception: str = ""


class _Refusal(msgspec.Struct):
    RemoteException: _RemoteException


def successful(answer: requests.Response, clock: Clock) -> requests.Response:
    """Returns the answer: a success or a redirection. Otherwise closes it and raises HdfsRefusal."""
    if answer.status_code < 300 or answer.is_redirect:
        return answer
    with answer:
        try:
            name = msgspec.json.decode(
                read_answer(answer, clock, _REFUSAL_LIMIT), type=_Refusal
            ).RemoteException.exception
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, BadAnswer, HTTPError):
            name = ""
        raise HdfsRefusal(answer.status_code, name if _EXCEPTION.fullmatch(name) else "")


def final(answer: requests.Response, clock: Clock) -> requests.Response:
    """Returns the answer: a success. Otherwise closes it and raises HdfsRefusal, also for a redirection."""
    if answer.is_redirect:
        answer.close()
        raise HdfsRefusal(answer.status_code, "")
    return successful(answer, clock)


def decode_answer(answer: requests.Response, kind: type[T], clock: Clock) -> T:
    """Returns the document in an answer. Raises BadAnswer if it is too long, too slow, or of another form."""
    try:
        return decode_json(kind, read_answer(answer, clock, _ANSWER_LIMIT))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise BadAnswer(f"the answer has no {kind.__name__.strip('_')}") from None


RETRIES = BoundedRetry(
    total=8,
    backoff_factor=0.1,
    backoff_jitter=0.2,
    backoff_max=15,
    status_forcelist=(502, 503, 504),
    allowed_methods=None,
    raise_on_status=False,
)
"""Also for requests that write. A temporary file has one writer; a rename that is sent twice fails because the file no
longer exists, which the caller handles."""
_REDIRECTED = ("OPEN", "CREATE")
"""Operations that a NameNode redirects to a DataNode."""
_OTHER_NAME_NODE = ("RetriableException", "StandbyException")
_NOT_READY = (*_OTHER_NAME_NODE, "SafeModeException")
"""Responses of a NameNode that has just started or is not active, when no other one is active: it did nothing."""


class HdfsFileStatus(msgspec.Struct):
    """A file or folder as WebHDFS describes it.

    Attributes:
        pathSuffix: name within the listed folder; empty when the listed path is a file.
        type: ``FILE`` or ``DIRECTORY``.
        length: size in bytes.
        modificationTime: modification time in milliseconds since 1970.
        fileId: number of the file, which no other file has had; 0 if the server does not number files.
    """

    pathSuffix: str
    type: str
    length: int
    modificationTime: int
    fileId: int = 0


def _blob_info(key: str, status: HdfsFileStatus) -> BlobInfo:
    version = f"{status.fileId}.{status.length}.{status.modificationTime}"
    return BlobInfo(key, status.length, status.modificationTime, version)


class _OneStatus(msgspec.Struct):
    FileStatus: HdfsFileStatus


class _Statuses(msgspec.Struct):
    FileStatus: list[HdfsFileStatus]


class _Listing(msgspec.Struct):
    FileStatuses: _Statuses


class _Batch(msgspec.Struct):
    partialListing: _Listing
    remainingEntries: int


class _Page(msgspec.Struct):
    DirectoryListing: _Batch


class _Boolean(msgspec.Struct):
    boolean: bool


@dataclass(frozen=True)
class Page:
    """Entries of a folder, the time of the response as HTTP writes it, and whether more entries follow."""

    statuses: list[HdfsFileStatus]
    date: str
    has_more: bool

    @property
    def listed_at(self) -> datetime:
        """The time of the response, by the NameNode's clock. Raises BadAnswer if it is not a time."""
        try:
            return parsedate_to_datetime(self.date)
        except ValueError:
            raise BadAnswer("the time of an answer is not valid") from None


class LongList(BadAnswer):
    """A server without pages lists a folder in an answer that is too long.

    Args:
        path: the folder.
    """

    def __init__(self, path: str) -> None:
        super().__init__("the list of a folder is too long")
        self.path = path


FAILURES = (HdfsRefusal, BadAnswer, requests.RequestException, HTTPError)
"""The errors of the methods of `WebHdfs`, in addition to stateflow's own."""


@dataclass(frozen=True)
class Modes:
    """The permissions of new folders and files, in octal."""

    folder: str
    file: str


PRIVATE = Modes(folder="700", file="600")


class WebHdfs:
    """Requests to the active one of several NameNodes. Paths are absolute.

    Methods raise one of `FAILURES`, which `translate_errors` translates.

    Args:
        scheme: ``webhdfs``, or ``swebhdfs`` for TLS.
        hosts: NameNodes with their HTTP ports, separated by commas.
        retries: the policy for requests that fail, or that no NameNode is ready to serve.
        clock: measures how long answers take.
        modes: the permissions of what is written; None for HDFS's default.
    """

    def __init__(self, scheme: str, hosts: str, retries: Retry, clock: Clock, modes: Modes | None = PRIVATE) -> None:
        protocol = "https" if scheme == "swebhdfs" else "http"
        self._name_nodes = [f"{protocol}://{host}" for host in hosts.split(",")]
        self._users = HdfsUsers.of_process(f"{scheme}://{host}" for host in hosts.split(","))
        self._retries = retries
        self._clock = clock
        self._folder_mode = {} if modes is None else {"permission": modes.folder}
        self._file_mode = {} if modes is None else {"permission": modes.file}
        self._active = 0
        self._has_pages: bool | None = None
        self._opened: HdfsSession | None = None
        self._process = 0

    def status(self, path: str) -> HdfsFileStatus | None:
        """Returns the status of a file; None when it does not exist or is a folder."""
        try:
            with self._asked("GET", path, op="GETFILESTATUS") as answer:
                found = decode_answer(answer, _OneStatus, self._clock).FileStatus
        except HdfsRefusal as e:
            if e.is_missing:
                return None
            raise
        return found if found.type == "FILE" else None

    def size(self, path: str) -> int | None:
        """Returns the size of a file in bytes; None when it does not exist or is a folder."""
        found = self.status(path)
        return None if found is None else found.length

    def list(self, path: str, after: str = "") -> Iterator[Page]:
        """Yields the content of a folder in pages; none when it does not exist, or not any more.

        An entry is in one page if it exists all the time, and in at most one otherwise. Any other failure raises an
        error, because a response that cannot be parsed must not count as an empty folder.

        Args:
            after: the name after which the list begins, in HDFS's order: by bytes, those of characters outside ASCII
                first. A server without pages lists all entries.
        """
        listed = 0
        try:
            while True:
                page = self._page(path, after)
                yield page
                if not page.has_more:
                    return
                listed += len(page.statuses)
                last = page.statuses[-1].pathSuffix if page.statuses else ""
                if last in ("", after) or listed > _MOST_ENTRIES:
                    raise BadAnswer("the list of a folder has no end")
                # The entry need not exist any more.
                after = last
        except HdfsRefusal as e:
            if not e.is_missing:
                raise

    def _page(self, path: str, after: str) -> Page:
        try:
            if self._has_pages is not False:
                try:
                    return self._list_batch(path, after)
                except HdfsRefusal as e:
                    # Hadoop 2 does not know the operation, and answers so.
                    if e.status != 400 or self._has_pages:
                        raise
            with self._asked("GET", path, op="LISTSTATUS") as answer:
                statuses = decode_answer(answer, _Listing, self._clock).FileStatuses.FileStatus
        except LongAnswer:
            raise LongList(path) from None
        self._has_pages = False
        return Page(statuses, answer.headers.get("Date", ""), has_more=False)

    def _list_batch(self, path: str, after: str) -> Page:
        # In the case that the documentation has, Hadoop 3.5 ignores the parameter; HttpFS knows it only so.
        begin = {"startafter": after, "startAfter": after} if after else {}
        with self._asked("GET", path, op="LISTSTATUS_BATCH", **begin) as answer:
            batch = decode_answer(answer, _Page, self._clock).DirectoryListing
        self._has_pages = True
        statuses = batch.partialListing.FileStatuses.FileStatus
        return Page(statuses, answer.headers.get("Date", ""), batch.remainingEntries > 0)

    def read(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        """Yields the bytes of a file from `offset`, at most `length` of them."""
        with self._asked("GET", path, op="OPEN", offset=str(offset), length=str(length)) as answer:
            if answer.is_redirect:
                with self._session.to_data_node("GET", answer.headers["Location"]) as data:
                    yield from stream_answer(final(data, self._clock), self._clock, length)
            else:
                yield from stream_answer(answer, self._clock, length)

    def write(self, path: str, data: bytes | IO[bytes]) -> None:
        """Writes a file, and replaces an existing one."""
        if not isinstance(data, bytes):
            # An earlier attempt may have read some of it.
            data.seek(0)
        with self._asked("PUT", path, op="CREATE", overwrite="true", **self._file_mode) as answer:
            if not answer.is_redirect:
                raise BadAnswer("the NameNode did not name a DataNode")
            with self._session.to_data_node("PUT", answer.headers["Location"], data) as written:
                final(written, self._clock)

    def rename(self, path: str, to: str) -> None:
        """Renames a file, atomically. Raises HdfsRefusal when `to` exists."""
        # Without options, a file would be moved into a folder that has the name.
        with self._asked("PUT", path, op="RENAME", destination=to, renameoptions="NONE"):
            pass

    def make_folder(self, path: str) -> None:
        """Creates a folder, and the folders above it, unless they exist."""
        with self._asked("PUT", path, op="MKDIRS", **self._folder_mode):
            pass

    def remove(self, path: str) -> bool:
        """Removes a file or an empty folder. Returns whether it removed anything."""
        try:
            with self._asked("DELETE", path, op="DELETE", recursive="false") as answer:
                return decode_answer(answer, _Boolean, self._clock).boolean
        except HdfsRefusal as e:
            if e.is_missing or e.exception == "PathIsNotEmptyDirectoryException":
                return False
            raise

    @property
    def _session(self) -> HdfsSession:
        # A child process must not use connections of its parent.
        if self._opened is None or self._process != os.getpid():
            self._opened, self._process = HdfsSession(self._name_nodes, self._users, self._retries), os.getpid()
        return self._opened

    @contextlib.contextmanager
    def _asked(self, method: str, path: str, **query: str) -> Iterator[requests.Response]:
        """Yields the answer of a NameNode as soon as one is ready: a success, or a redirection to a DataNode."""
        answer = self._answer(method, path, query)
        try:
            yield answer
        finally:
            answer.close()

    def _answer(self, method: str, path: str, query: Mapping[str, str]) -> requests.Response:
        retries = self._retries
        while True:
            try:
                return self._answer_of_any(method, path, query)
            except HdfsRefusal as e:
                if e.exception not in _NOT_READY:
                    raise
                try:
                    retries = retries.increment()
                except MaxRetryError:
                    raise e from None
                retries.sleep()

    def _answer_of_any(self, method: str, path: str, query: Mapping[str, str]) -> requests.Response:
        """Returns the answer of the first NameNode that gives one, the one that answered last before all others."""
        failure: Exception = BadAnswer("the address has no NameNode")
        first = self._active
        for number in range(first, first + len(self._name_nodes)):
            index = number % len(self._name_nodes)
            url = f"{self._name_nodes[index]}/webhdfs/v1{quote(path, safe='/=')}"
            try:
                answer = self._session.to_name_node(method, url, query)
                if query["op"] in _REDIRECTED:
                    successful(answer, self._clock)
                else:
                    final(answer, self._clock)
            except (requests.ConnectionError, requests.Timeout) as e:
                failure = e
            except HdfsRefusal as e:
                if e.exception not in _OTHER_NAME_NODE:
                    raise
                failure = e
            else:
                self._active = index
                return answer
        raise failure


@contextlib.contextmanager
def translate_errors(uri: str, key: str) -> Iterator[None]:
    """Translates failures of requests into errors of stateflow, without texts of the server.

    Args:
        uri: address of the storage.
        key: key of the object that the requests are about.

    Raises:
        ConfigError: HDFS refused access.
        StorageError: HDFS failed, or does not respond.
    """
    try:
        yield
    except HdfsRefusal as e:
        exception = {"exception": e.exception} if e.exception else {}
        facts = {"storage": uri, "key": key, "status": e.status, **exception}
        if e.status == 401 or e.exception in ("AccessControlException", "SecurityException"):
            hint = "check HADOOP_USER_NAME or WEBHDFS_TOKEN, and the folder's permissions"
            raise ConfigError("access to the storage was denied", hint=hint, **facts) from None
        hint = "check whether HDFS is in safe mode or full; a new run continues from the last checkpoint"
        raise StorageError("storage request failed", hint=hint, **facts) from None
    except LongList as e:
        raise StorageError(
            "a folder has more entries than the server may list at once",
            hint="use the address of a NameNode of Hadoop 3, which lists in pages, or divide the folder",
            storage=uri,
            key=key,
            folder=e.path,
            limit_bytes=_ANSWER_LIMIT,
        ) from None
    except FAILURES as e:
        raise StorageError(
            "storage does not respond",
            hint="check the NameNode's host and HTTP port, and whether its DataNodes run; "
            "a new run continues from the last checkpoint",
            storage=uri,
            key=key,
            reason=reason_of(e),
        ) from None


def reason_of(error: Exception) -> str:
    """Returns what failed: the status of a refusal, or an exception's class and the operating system's error."""
    if isinstance(error, HdfsRefusal | BadAnswer):
        return str(error)
    return reason_of_failure(error)


_TEMPORARY = ".aside"
"""The folder of temporary files; `HdfsStorage.list` does not show it."""
_ABANDONED = timedelta(days=1)
"""The age at which a temporary file has no living writer. HDFS does not change the time of a file while it is written,
so this is longer than any upload takes."""
_FOLDER_TRIES = 20
_FOLDERS_PER_FILE = 8
"""So many folders may belong to a file, in addition to `ListLimits.empty_folders`."""


@dataclass(frozen=True)
class ListLimits:
    """The sizes of a tree of folders above which a listing is an error: a server's tree may have no end.

    Attributes:
        levels: the levels of folders below the listed one. Keys of stateflow have 8; the folders of a source are the
            user's.
        empty_folders: the folders without files; a list of more would take an hour.
    """

    levels: int = 100
    empty_folders: int = 1_000_000


class HdfsStorage(Storage):
    """Files below a folder of HDFS.

    Args:
        scheme: ``webhdfs``, or ``swebhdfs`` for TLS.
        hosts: NameNodes with their HTTP ports, separated by commas; the active one is used.
        folder: absolute path of the root, without a slash at its end.
        retries: the policy for requests that fail, or that no NameNode is ready to serve.
        limits: which trees of folders are listed.
        modes: the permissions of the files and folders that it creates; None for HDFS's default.
    """

    host_local = False

    def __init__(
        self,
        scheme: str,
        hosts: str,
        folder: str,
        retries: Retry = RETRIES,
        *,
        limits: ListLimits = ListLimits(),
        modes: Modes | None = PRIVATE,
    ) -> None:
        self.uri = f"{scheme}://{hosts}{folder}"
        self._folder = folder
        self._hdfs = WebHdfs(scheme, hosts, retries, SystemClock(), modes)
        self._has_root = False
        self._limits = limits

    def put_new(self, key: str, data: bytes) -> PutResult:
        with self._translate_errors(key):
            path = self._path(key)
            temporary = self._write_temporary(data)
            try:
                return self._rename(temporary, path)
            except FAILURES as e:
                if isinstance(e, HdfsRefusal) and e.exception:
                    raise
                # No response, or one that is not the NameNode's, such as a proxy's.
                log.warning("%s did not confirm that it created %s: %s", self.uri, key, reason_of(e))
                return PutResult.UNKNOWN

    def put_file(self, key: str, source: Path) -> None:
        path = self._path(key)
        with source.open("rb") as file:
            TRAFFIC.add(written=file.seek(0, os.SEEK_END))
            file.seek(0)
            with self._translate_errors(key):
                result = self._rename(self._write_temporary(file), path)
            if result is not PutResult.CREATED:
                check_same_content(self, key, file)

    def get(self, key: str, limit: int = 1 << 30) -> bytes:
        found = b"".join(self._chunks(key, 0, limit + 1))
        if len(found) > limit:
            raise DataError("object exceeds the size limit", key=key, limit_bytes=limit)
        return found

    def chunks(self, key: str) -> Iterator[bytes]:
        yield from self._chunks(key, 0, self._existing_size(key))

    def fetch(self, key: str, target: Path, limit: int | None = None) -> None:
        size = self._existing_size(key)
        check_limit(key, size, limit)
        # The answer cannot be longer than asked for.
        write_chunks(self._chunks(key, 0, size), target)

    def fetch_part(self, key: str, offset: int, size: int, target: Path) -> None:
        if not size:
            self._existing_size(key)
        write_chunks(self._chunks(key, offset, size), target)

    def info(self, key: str) -> BlobInfo | None:
        with self._translate_errors(key):
            found = self._hdfs.status(self._path(key))
        return None if found is None else _blob_info(key, found)

    def list(self, prefix: str, start_after: str = "") -> list[BlobInfo]:
        folder = prefix.rpartition("/")[0]
        if folder:
            key_parts(folder, self.uri)
        above = f"{folder}/" if folder else ""
        first = max(prefix, start_after)
        after = _name_before(first.removeprefix(above)) if first.startswith(above) else ""
        with self._translate_errors(prefix):
            wanted = (b for b in self._walk(folder, after) if b.key.startswith(prefix) and b.key > start_after)
            return sorted(wanted, key=lambda blob: blob.key)

    def list_folder(self, prefix: str) -> FolderList:
        folder = prefix.rstrip("/")
        if folder:
            key_parts(folder, self.uri)
        with self._translate_errors(prefix):
            pages = list(self._hdfs.list(f"{self._folder}/{folder}".rstrip("/")))
        files, folders = [], []
        for status in (status for page in pages for status in page.statuses):
            key = f"{folder}/{status.pathSuffix}" if folder else status.pathSuffix
            if status.type == "FILE" and status.pathSuffix:
                files.append(_blob_info(key, status))
            elif status.type == "DIRECTORY" and key != _TEMPORARY:
                folders.append(status.pathSuffix)
        return FolderList(tuple(files), tuple(sorted(folders)))

    def delete(self, keys: Iterable[str]) -> None:
        folders = set()
        for key in keys:
            with self._translate_errors(key):
                path = self._path(key)
                if self._hdfs.size(path) is not None and self._hdfs.remove(path):
                    folders.add(key.rpartition("/")[0])
        for folder in folders:
            self._remove_empty(folder)

    def remove_abandoned_files(self) -> None:
        """Removes temporary files whose writers were killed. Their age is measured by the NameNode's clock."""
        with self._translate_errors(_TEMPORARY):
            for page in self._hdfs.list(self._path(_TEMPORARY)):
                until = (page.listed_at - _ABANDONED).timestamp() * 1000
                for status in page.statuses:
                    if status.modificationTime < until:
                        self._hdfs.remove(self._path(f"{_TEMPORARY}/{status.pathSuffix}"))

    def _translate_errors(self, key: str) -> AbstractContextManager[None]:
        return translate_errors(self.uri, key)

    def _path(self, key: str) -> str:
        return "/".join((self._folder, *key_parts(key, self.uri)))

    def _write_temporary(self, data: bytes | IO[bytes]) -> str:
        """Writes a temporary file and returns its key, which only the caller knows."""
        temporary = f"{_TEMPORARY}/{SystemClock().new_id()}"
        try:
            if not self._has_root:
                # Explicitly: folders that HDFS creates together with a file have its default permissions.
                self._hdfs.make_folder(self._folder)
                self._has_root = True
            self._hdfs.write(self._path(temporary), data)
        except HdfsRefusal as e:
            if not e.is_missing:
                raise
            raise ConfigError(
                "the storage's path is not a folder", hint="choose another path", storage=self.uri, reason=reason_of(e)
            ) from None
        return temporary

    def _rename(self, temporary: str, path: str) -> PutResult:
        """Gives a temporary file its final name, unless that exists."""
        for _ in range(_FOLDER_TRIES):
            try:
                self._hdfs.rename(self._path(temporary), path)
                return PutResult.CREATED
            except HdfsRefusal as e:
                if e.exception == "FileAlreadyExistsException":
                    self._hdfs.remove(self._path(temporary))
                    return PutResult.EXISTS
                if not e.is_missing:
                    raise
            if self.size(temporary) is None:
                # Renamed by an earlier attempt whose response was lost, or removed by `remove_abandoned_files`.
                return PutResult.UNKNOWN
            # The folder does not exist, or a collector has removed it while it was empty.
            self._hdfs.make_folder(path.rpartition("/")[0])
        raise StorageError("the folder of an object is removed repeatedly", path=path, storage=self.uri)

    def _existing_size(self, key: str) -> int:
        size = self.size(key)
        if size is None:
            raise missing_object(self, key)
        return size

    def _chunks(self, key: str, offset: int, length: int) -> Iterator[bytes]:
        # A server takes a length of 0 for the whole file.
        if not length:
            return
        with self._translate_errors(key):
            try:
                for chunk in self._hdfs.read(self._path(key), offset, length):
                    TRAFFIC.add(read=len(chunk))
                    yield chunk
            except HdfsRefusal as e:
                if e.is_missing:
                    raise missing_object(self, key) from None
                raise

    def _walk(self, start: str, after: str) -> Iterator[BlobInfo]:
        """Yields the files below a folder. A listing that has no end, or leads back, ends with an error.

        Args:
            after: as of `WebHdfs.list`, for the folder itself.
        """
        folders, files, listed = [(start, 0)], 0, 0
        while folders:
            # Those that wait are counted too, because they need memory.
            if listed + len(folders) > self._limits.empty_folders + _FOLDERS_PER_FILE * files:
                raise self._too_many_folders(start, listed + len(folders), files)
            folder, level = folders.pop()
            listed += 1
            pages = self._hdfs.list(f"{self._folder}/{folder}".rstrip("/"), "" if level else after)
            for status in (status for page in pages for status in page.statuses):
                name = status.pathSuffix
                key = f"{folder}/{name}" if folder else name
                if status.type == "DIRECTORY":
                    if name in ("", ".", "..") or "/" in name:
                        raise BadAnswer("a listing contains a folder that HDFS cannot have")
                    if level == self._limits.levels:
                        raise self._too_deep(start, key)
                    if key != _TEMPORARY:
                        folders.append((key, level + 1))
                elif name:  # that of a file itself is empty
                    files += 1
                    yield _blob_info(key, status)

    def _too_many_folders(self, start: str, folders: int, files: int) -> DataError:
        return DataError(
            "a folder contains too many folders without files",
            hint="check the address; delete empty folders",
            storage=self.uri,
            below=start,
            folders=folders,
            files=files,
            limit=self._limits.empty_folders,
        )

    def _too_deep(self, start: str, folder: str) -> DataError:
        # Not left out: the files of a source would be lost without a trace.
        return DataError(
            "a folder is too many levels below the one that is listed",
            hint="move its files up, or delete it",
            storage=self.uri,
            folder=folder,
            below=start,
            limit=self._limits.levels,
        )

    def _remove_empty(self, folder: str) -> None:
        with self._translate_errors(folder):
            while folder and self._hdfs.remove(f"{self._folder}/{folder}"):
                folder = folder.rpartition("/")[0]


def _name_before(first: str) -> str:
    """Returns the name after which a list begins that needs the keys from a numbered one on; empty for other keys.

    It is shorter than the number: keys in a folder `12` sort after the key `12.json`. Entries with characters outside
    ASCII, which HDFS sorts before all others, may be left out: numbered entries are those of logs, which have none.

    Args:
        first: the first key, relative to the folder.
    """
    digits = len(first) - len(first.lstrip("0123456789"))
    return first[: max(0, digits - 1)]


_CONNECTIONS = 32
_TIMEOUT = (5, 60)
"""Longest wait for a connection and for the next bytes, in seconds."""
_DATA_PORTS = frozenset({9864, 9865, 50075, 50475})
"""Default HTTP and HTTPS ports of DataNodes, since Hadoop 3 and before."""


@dataclass(frozen=True)
class HdfsUsers:
    """The user or token of requests to NameNodes, and the ports of DataNodes.

    Attributes:
        query: the part of a URL that names the user or has the token; for NameNodes only.
        data_ports: ports of DataNodes.
    """

    query: Mapping[str, str] = field(repr=False)
    data_ports: frozenset[int] = _DATA_PORTS

    @classmethod
    def of_process(cls, name_nodes: Iterable[str]) -> HdfsUsers:
        """Returns the values of this process's environment.

        Args:
            name_nodes: the NameNodes of an address, such as ``webhdfs://namenode:9870``.

        Raises:
            ConfigError: there is a token, but one of the NameNodes may not get it; or the ports are not numbers.
        """
        token = os.environ.get("WEBHDFS_TOKEN")
        if not token:
            return cls({"user.name": os.environ.get("HADOOP_USER_NAME") or getpass.getuser()}, _data_ports())
        trusted = set(os.environ.get("WEBHDFS_NAMENODES", "").replace(",", " ").split())
        for name_node in name_nodes:
            if name_node not in trusted:
                raise ConfigError(
                    "the NameNode is not one that WEBHDFS_TOKEN may be sent to",
                    hint="add it to WEBHDFS_NAMENODES, such as WEBHDFS_NAMENODES=swebhdfs://namenode:9871; with "
                    "webhdfs:// the token is sent without TLS",
                    name_node=name_node,
                    trusted=sorted(trusted),
                )
        return cls({"delegation": token}, _data_ports())


def _data_ports() -> frozenset[int]:
    given = os.environ.get("WEBHDFS_DATANODE_PORTS", "").replace(",", " ").split()
    if not all(port.isascii() and port.isdecimal() and len(port) < 6 for port in given):
        raise ConfigError(
            "a port of a DataNode is not a number",
            hint="set WEBHDFS_DATANODE_PORTS to numbers, such as 9864,9865",
            given=given,
        )
    return frozenset(map(int, given)) or _DATA_PORTS


class HdfsSession:
    """Sends requests to NameNodes with the user, and follows their redirections to DataNodes without it.

    Args:
        name_nodes: URLs of the NameNodes, such as ``http://namenode:9870``.
        users: the user and the ports of DataNodes.
        retries: the policy for requests that fail.
    """

    def __init__(self, name_nodes: Sequence[str], users: HdfsUsers, retries: Retry) -> None:
        self._name_nodes = frozenset(name_nodes)
        self._users = users
        self._session = BoundedSession(retries, _CONNECTIONS)
        # A compressed answer could be much larger than what was received.
        self._session.headers["Accept-Encoding"] = "identity"
        self._session.headers["Content-Type"] = "application/octet-stream"  # HttpFS requires it

    def to_name_node(self, method: str, url: str, query: Mapping[str, str]) -> requests.Response:
        """Sends a request to a NameNode; the caller closes the response."""
        return self._send(method, url, params={**query, **self._users.query})

    def to_data_node(self, method: str, location: str, data: bytes | IO[bytes] | None = None) -> requests.Response:
        """Sends a request to where a NameNode has redirected it; the caller closes the response.

        Raises:
            ConfigError: the server is neither a DataNode nor a NameNode, or the request would leave TLS.
        """
        self._check(location)
        return self._send(method, location, data=data)

    def _send(
        self, method: str, url: str, params: Mapping[str, str] | None = None, data: bytes | IO[bytes] | None = None
    ) -> requests.Response:
        TRAFFIC.add(1, written=len(data) if isinstance(data, bytes) else 0)
        return self._session.request(
            method, url, params=params, data=data, timeout=_TIMEOUT, allow_redirects=False, stream=True
        )

    def _check(self, location: str) -> None:
        try:
            parts = urlsplit(location)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        protocols = {urlsplit(name_node).scheme for name_node in self._name_nodes}
        server = f"{parts.scheme}://{parts.netloc}"
        is_known = server in self._name_nodes or (port in self._users.data_ports and "@" not in parts.netloc)
        if parts.scheme not in protocols or not is_known:
            raise ConfigError(
                "HDFS redirected a request to a server that is not a DataNode",
                hint="if it is one, add its port to WEBHDFS_DATANODE_PORTS, such as 9864,9865",
                server=f"{parts.scheme}://{parts.hostname}:{port}"[:200],
                ports=sorted(self._users.data_ports),
            )
