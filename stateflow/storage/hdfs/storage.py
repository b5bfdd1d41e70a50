"""Storage in HDFS, through WebHDFS: stateflow needs neither Hadoop's programs nor Java to use it.

A file is written under a temporary name, and then renamed by the NameNode in one step that never overwrites
(``renameoptions=NONE``): readers see no part of it, and of many writers of one name exactly one succeeds. Creating a
file under its final name would expose its parts.

User and delegation token come from the environment (``HADOOP_USER_NAME``, ``WEBHDFS_TOKEN``), never from an address.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import IO

from urllib3 import Retry

from stateflow.clock import SystemClock
from stateflow.errors import ConfigError, DataError, StorageError
from stateflow.http.answers import BadAnswer
from stateflow.storage.base import (
    BlobInfo,
    PutResult,
    Storage,
    check_limit,
    check_same_content,
    key_parts,
    missing_object,
    write_chunks,
)
from stateflow.storage.hdfs.answers import HdfsRefusal
from stateflow.storage.hdfs.webhdfs import FAILURES, RETRIES, WebHdfs, reason_of, translated_errors

log = logging.getLogger(__name__)

_TEMPORARY = ".aside"
"""The folder of temporary files; `HdfsStorage.list` does not show it."""
_ABANDONED = timedelta(days=1)
"""The age at which a temporary file has no living writer. HDFS does not change the time of a file while it is written,
so this is longer than any upload takes."""
_FOLDER_TRIES = 20
_MOST_LEVELS = 8
"""How many levels of folders a listing descends; the keys of stateflow have at most 8 segments."""
_FOLDERS_PER_FILE = 8
"""At most so many folders belong to a file: the delete of the last file in a folder removes the folder."""
_EMPTY_FOLDERS = 100_000
"""How many folders may be empty in addition: a process that is killed while it deletes leaves some."""


class HdfsStorage(Storage):
    """Files below a folder of HDFS. Directories that it creates have mode 0700, files 0600.

    Args:
        scheme: ``webhdfs``, or ``swebhdfs`` for TLS.
        hosts: NameNodes with their HTTP ports, separated by commas; the active one is used.
        folder: absolute path of the root, without a slash at its end.
        retries: the policy for requests that fail, or that no NameNode is ready to serve.
        most_empty_folders: how many folders a listing accepts in addition to those that its files need.
    """

    host_local = False

    def __init__(
        self,
        scheme: str,
        hosts: str,
        folder: str,
        retries: Retry = RETRIES,
        *,
        most_empty_folders: int = _EMPTY_FOLDERS,
    ) -> None:
        self.uri = f"{scheme}://{hosts}{folder}"
        self._folder = folder
        self._hdfs = WebHdfs(scheme, hosts, retries, SystemClock())
        self._has_root = False
        self._most_empty_folders = most_empty_folders

    def put_new(self, key: str, data: bytes) -> PutResult:
        with self._translated_errors(key):
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
            with self._translated_errors(key):
                result = self._rename(self._write_temporary(file), path)
            if result is not PutResult.CREATED:
                check_same_content(self, key, file)

    def get(self, key: str, limit: int = 1 << 30) -> bytes:
        found = b"".join(self._chunks(key, 0, limit + 1))
        if len(found) > limit:
            raise DataError("object exceeds the size limit", key=key, limit=limit)
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

    def size(self, key: str) -> int | None:
        with self._translated_errors(key):
            return self._hdfs.size(self._path(key))

    def list(self, prefix: str, start_after: str = "") -> list[BlobInfo]:
        folder = prefix.rpartition("/")[0]
        if folder:
            key_parts(folder, self.uri)
        with self._translated_errors(prefix):
            wanted = (b for b in self._walk(folder) if b.key.startswith(prefix) and b.key > start_after)
            return sorted(wanted, key=lambda blob: blob.key)

    def folders(self, prefix: str) -> tuple[str, ...]:
        folder = prefix.rstrip("/")
        if folder:
            key_parts(folder, self.uri)
        with self._translated_errors(prefix):
            listing = self._hdfs.list(f"{self._folder}/{folder}".rstrip("/"))
        found = (s.pathSuffix for s in (listing.statuses if listing is not None else ()) if s.type == "DIRECTORY")
        return tuple(sorted(name for name in found if (f"{folder}/{name}" if folder else name) != _TEMPORARY))

    def delete(self, keys: Iterable[str]) -> None:
        folders = set()
        for key in keys:
            with self._translated_errors(key):
                path = self._path(key)
                if self._hdfs.size(path) is not None and self._hdfs.remove(path):
                    folders.add(key.rpartition("/")[0])
        for folder in folders:
            self._remove_empty(folder)

    def remove_abandoned_files(self) -> None:
        """Removes temporary files whose writers were killed. Their age is measured by the NameNode's clock."""
        with self._translated_errors(_TEMPORARY):
            listing = self._hdfs.list(self._path(_TEMPORARY))
            if listing is None:
                return
            until = (listing.listed_at - _ABANDONED).timestamp() * 1000
            for status in listing.statuses:
                if status.modificationTime < until:
                    self._hdfs.remove(self._path(f"{_TEMPORARY}/{status.pathSuffix}"))

    def _translated_errors(self, key: str) -> AbstractContextManager[None]:
        return translated_errors(self.uri, key)

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
        with self._translated_errors(key):
            try:
                yield from self._hdfs.read(self._path(key), offset, length)
            except HdfsRefusal as e:
                if e.is_missing:
                    raise missing_object(self, key) from None
                raise

    def _walk(self, start: str) -> Iterator[BlobInfo]:
        """Yields the files below a folder. A listing that has no end, or leads back, ends with an error."""
        folders, files, listed, skipped = [(start, 0)], 0, 0, 0
        while folders:
            folder, level = folders.pop()
            listed += 1
            if listed > self._most_empty_folders + _FOLDERS_PER_FILE * files:
                raise self._too_many_folders(start, listed, files)
            listing = self._hdfs.list(f"{self._folder}/{folder}".rstrip("/"))
            for status in listing.statuses if listing is not None else ():
                name = status.pathSuffix
                key = f"{folder}/{name}" if folder else name
                if status.type == "DIRECTORY":
                    if name in ("", ".", "..") or "/" in name:
                        raise BadAnswer("a listing contains a folder that HDFS cannot have")
                    if level == _MOST_LEVELS:
                        skipped += 1
                    elif key != _TEMPORARY:
                        folders.append((key, level + 1))
                elif name:  # that of a file itself is empty
                    files += 1
                    yield BlobInfo(key, status.length)
        if skipped:
            log.warning("skipped %d folders that are more than %d levels below %r", skipped, _MOST_LEVELS, start)

    def _too_many_folders(self, folder: str, listed: int, files: int) -> DataError:
        return DataError(
            "a folder contains more folders than a job root can have",
            hint="check that the address is that of a job root; delete its empty folders",
            storage=self.uri,
            folder=folder,
            folders=listed,
            files=files,
        )

    def _remove_empty(self, folder: str) -> None:
        with self._translated_errors(folder):
            while folder and self._hdfs.remove(f"{self._folder}/{folder}"):
                folder = folder.rpartition("/")[0]
