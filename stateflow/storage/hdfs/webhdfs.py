"""A client of WebHDFS, HDFS's HTTP interface: retries, failover between NameNodes, and answers that are not trusted.

A server may be hostile, or not the one that the user meant. So an answer of JSON is read up to a limit, a transfer must
keep a minimum speed, requests are redirected to DataNodes only, and errors contain an answer's status and the name of
its exception, never its text. For the interface see
https://hadoop.apache.org/docs/stable/hadoop-project-dist/hadoop-hdfs/WebHDFS.html.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import IO
from urllib.parse import quote

import msgspec
import requests
from urllib3 import Retry
from urllib3.exceptions import HTTPError, MaxRetryError

from stateflow.clock import Clock
from stateflow.errors import ConfigError, StorageError
from stateflow.http.answers import BadAnswer, pieces
from stateflow.http.connections import BoundedRetry
from stateflow.storage.hdfs.answers import HdfsRefusal, decoded, final, successful
from stateflow.storage.hdfs.session import HdfsSession, HdfsUsers

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


class FileStatus(msgspec.Struct):
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


class _OneStatus(msgspec.Struct):
    FileStatus: FileStatus


class _Statuses(msgspec.Struct):
    FileStatus: list[FileStatus]


class _Listing(msgspec.Struct):
    FileStatuses: _Statuses


class _Boolean(msgspec.Struct):
    boolean: bool


@dataclass(frozen=True)
class Listing:
    """The content of a folder, and the time of the response as HTTP writes it."""

    statuses: list[FileStatus]
    date: str

    @property
    def listed_at(self) -> datetime:
        """The time of the response, by the NameNode's clock. Raises BadAnswer if it is not a time."""
        try:
            return parsedate_to_datetime(self.date)
        except ValueError:
            raise BadAnswer("the time of an answer is not valid") from None


FAILURES = (HdfsRefusal, BadAnswer, requests.RequestException, HTTPError)
"""What the methods of `WebHdfs` raise, in addition to the errors of stateflow."""


@dataclass(frozen=True)
class _Connection:
    """A session, and the process that created it: a child process must not use its parent's connections."""

    session: HdfsSession
    process: int


class WebHdfs:
    """Requests to the active one of several NameNodes. Paths are absolute.

    Methods raise one of `FAILURES`, which `translated_errors` translates.

    Args:
        scheme: ``webhdfs``, or ``swebhdfs`` for TLS.
        hosts: NameNodes with their HTTP ports, separated by commas.
        retries: the policy for requests that fail, or that no NameNode is ready to serve.
        clock: measures how long answers take.
    """

    def __init__(self, scheme: str, hosts: str, retries: Retry, clock: Clock) -> None:
        protocol = "https" if scheme == "swebhdfs" else "http"
        self._name_nodes = [f"{protocol}://{host}" for host in hosts.split(",")]
        self._users = HdfsUsers.of_process(f"{scheme}://{host}" for host in hosts.split(","))
        self._retries = retries
        self._clock = clock
        self._active = 0
        self._connection: _Connection | None = None

    def size(self, path: str) -> int | None:
        """Returns the size of a file in bytes; None when it does not exist or is a folder."""
        try:
            with self._asked("GET", path, op="GETFILESTATUS") as answer:
                found = decoded(answer, _OneStatus, self._clock).FileStatus
        except HdfsRefusal as e:
            if e.is_missing:
                return None
            raise
        return found.length if found.type == "FILE" else None

    def list(self, path: str) -> Listing | None:
        """Returns the content of a folder; None when it does not exist.

        Any other failure raises an error, because a response that cannot be parsed must not count as an empty folder.
        """
        try:
            with self._asked("GET", path, op="LISTSTATUS") as answer:
                statuses = decoded(answer, _Listing, self._clock).FileStatuses.FileStatus
                return Listing(statuses, answer.headers.get("Date", ""))
        except HdfsRefusal as e:
            if e.is_missing:
                return None
            raise

    def read(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        """Yields the bytes of a file from `offset`, at most `length` of them."""
        with self._asked("GET", path, op="OPEN", offset=str(offset), length=str(length)) as answer:
            if answer.is_redirect:
                with self._session.to_data_node("GET", answer.headers["Location"]) as data:
                    yield from pieces(final(data, self._clock), self._clock, length)
            else:
                yield from pieces(answer, self._clock, length)

    def write(self, path: str, data: bytes | IO[bytes]) -> None:
        """Writes a file with mode 0600, and replaces an existing one."""
        if not isinstance(data, bytes):
            # An earlier attempt may have read some of it.
            data.seek(0)
        with self._asked("PUT", path, op="CREATE", overwrite="true", permission="600") as answer:
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
        """Creates a folder with mode 0700, and the folders above it, unless they exist."""
        with self._asked("PUT", path, op="MKDIRS", permission="700"):
            pass

    def remove(self, path: str) -> bool:
        """Removes a file or an empty folder. Returns whether it removed anything."""
        try:
            with self._asked("DELETE", path, op="DELETE", recursive="false") as answer:
                return decoded(answer, _Boolean, self._clock).boolean
        except HdfsRefusal as e:
            if e.is_missing or e.exception == "PathIsNotEmptyDirectoryException":
                return False
            raise

    @property
    def _session(self) -> HdfsSession:
        if self._connection is None or self._connection.process != os.getpid():
            session = HdfsSession(self._name_nodes, self._users, self._retries)
            self._connection = _Connection(session, os.getpid())
        return self._connection.session

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
def translated_errors(uri: str, key: str) -> Iterator[None]:
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
    """Returns what failed: the status of a refusal, or an exception's class and the operating system's error.

    Texts of other exceptions contain URLs, which may contain a token.
    """
    if isinstance(error, HdfsRefusal | BadAnswer):
        return str(error)
    found: BaseException | None = error
    while found is not None and not (isinstance(found, OSError) and found.strerror):
        found = found.__cause__ or found.__context__
    return f"{type(error).__name__}: {found.strerror}" if isinstance(found, OSError) else type(error).__name__
