"""A host's cache of immutable state files, between the job root and the working folders of stores, and its eviction.

The cache is a folder per subtask with files named by their hash. A task that is scheduled on another host fetches the
files that this host does not have. Size and SHA-256 are verified when a file enters the cache. A cached file may be
damaged later, by a power failure, a disk or a user. So a cached copy is verified on every use: its size, and its
SHA-256 unless its reader has checksums of its own. A damaged copy is dropped and fetched again (design 0026).

A cache is the folder of one subtask's files; opening a store marks its cache as used. Other processes may use the
caches concurrently: a process that misses an evicted file fetches it again, and a file that a process has linked stays
available to that process.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate
from pathlib import Path

from stateflow.clock import Clock
from stateflow.errors import BatchFailed, CorruptFile, DamagedCopy, MissingFile, StorageError
from stateflow.observability import log_event
from stateflow.private_files import make_folders
from stateflow.state.handles import FileHandle, FilePart, StateFile, check_position
from stateflow.state.uploads import COPY_CHUNK, PARTIAL_PREFIX, SynchronousUploads, Uploads, is_running, partial_path
from stateflow.storage import Storage
from stateflow.storage.base import MISSING_OBJECT_HINT
from stateflow.storage.paths import check_key

log = logging.getLogger(__name__)


def hash_file(path: Path) -> str:
    """Returns the SHA-256 of a local file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_file(handle: FileHandle, path: Path) -> None:
    """Verifies size and hash of a local file.

    Raises:
        CorruptFile: the file is not what `handle` refers to.
        MissingFile: the file does not exist, or the garbage collector removed it during the check.
        StorageError: the file cannot be read.
    """
    try:
        size = path.stat().st_size
        digest = hash_file(path) if size == handle.size else ""
    except FileNotFoundError as e:
        raise MissingFile(
            "a stored object does not exist", hint=MISSING_OBJECT_HINT, key=handle.key, path=str(path)
        ) from e
    except OSError as e:
        raise StorageError("a stored file cannot be read", key=handle.key, path=str(path), reason=e.strerror) from e
    check_content(handle, size, digest)


def check_content(handle: FileHandle, size: int, sha256: str) -> None:
    """Raises CorruptFile unless size and hash are those of `handle`."""
    if size != handle.size:
        raise CorruptFile(
            "the size of a stored file differs from the recorded size",
            hint="restore an older checkpoint",
            file=handle.key,
            expected_bytes=handle.size,
            found_bytes=size,
        )
    if sha256 != handle.sha256:
        raise CorruptFile(
            "the hash of a stored file differs from the recorded hash",
            hint="restore an older checkpoint",
            file=handle.key,
            expected=handle.sha256,
            found=sha256,
        )


def has_size(path: Path, file: StateFile) -> bool:
    """Returns whether a local copy of a file has the recorded size."""
    return path.stat().st_size == file.size


def has_content(path: Path, file: StateFile) -> bool:
    """Returns whether a local copy of a file has the recorded content; False if the disk cannot read it."""
    try:
        return has_size(path, file) and hash_file(path) == file.sha256
    except FileNotFoundError:
        raise
    except OSError:
        return False


Check = Callable[[Path, StateFile], bool]
"""A check that a cached copy must pass before it is used."""


FETCHERS = 4
"""Number of files to fetch concurrently."""
_WORTH_THREADS = 1 << 20
_POLL = timedelta(milliseconds=50)
PACKED = "files"
"""Name of an object with several files."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class FileTransfer:
    """Access to the files of a job root.

    Attributes:
        storage: the job root.
        uploads: stores new objects.
        awaited_prefix: key prefix of objects that another host may still be uploading; empty for none.
        wait_timeout: maximum time to wait for such an object.
    """

    storage: Storage
    uploads: Uploads
    awaited_prefix: str = ""
    wait_timeout: timedelta = timedelta()

    @classmethod
    def direct(cls, storage: Storage, scratch: Path, clock: Clock) -> FileTransfer:
        """Returns a transfer that stores each object synchronously, packing it in the folder `scratch`."""
        return cls(storage, SynchronousUploads(storage, scratch, clock))


class HostCache:
    """The host's cache of the immutable files of one subtask.

    Args:
        folder: folder of one subtask of one operator of one job; shared by the processes of this host.
        transfer: access to the files of the job root.
        clock: the clock for temporary names and timeouts.
        siblings: caches of other subtasks, to be searched before fetching from the job root.
        is_synced: whether fetched files survive a power failure; it waits for all that the disk has to write.
    """

    def __init__(
        self, folder: Path, transfer: FileTransfer, clock: Clock, siblings: Sequence[Path] = (), is_synced: bool = True
    ) -> None:
        self._is_synced = is_synced
        self.folder = folder
        self._siblings = siblings
        self._transfer = transfer
        self._clock = clock
        make_folders(folder)

    @classmethod
    def direct(cls, folder: Path, storage: Storage, clock: Clock, siblings: Sequence[Path] = ()) -> HostCache:
        """Returns a cache whose new objects are stored when `store` returns."""
        return cls(folder, FileTransfer.direct(storage, folder, clock), clock, siblings)

    @classmethod
    def temporary(cls, folder: Path, storage: Storage, clock: Clock) -> HostCache:
        """Returns a cache in a folder that no later process uses."""
        return cls(folder, FileTransfer.direct(storage, folder, clock), clock, is_synced=False)

    def link(self, file: StateFile, target: Path, check: Check = has_size) -> None:
        """Links a file to `target`, fetching it first if this host has no intact copy.

        Args:
            file: the stored file.
            target: the new local path.
            check: the check for a cached copy; the default suffices for readers with checksums of their own.

        Raises:
            MissingFile: the stored object does not exist.
            CorruptFile: the stored bytes are not the recorded ones.
        """
        own = self._path(file)
        for folder in (self.folder, *self._siblings):
            if _link_copy(folder / own.name, file, target, check):
                if folder != self.folder:
                    self._add(target, own)
                return
        self._fetch(file, target)

    def drop_damaged(self, files: Iterable[StateFile]) -> int:
        """Verifies the hashes of cached copies and drops damaged ones; returns their number."""
        copies = [(folder / self._path(file).name, file) for file in files for folder in (self.folder, *self._siblings)]
        with ThreadPoolExecutor(FETCHERS) as pool:
            return sum(pool.map(lambda copy: _drop_if_damaged(*copy), copies))

    def link_all(self, wanted: Mapping[Path, StateFile], on_linked: Callable[[Path], object] = lambda _: None) -> None:
        """Links many files, with threads if they are large; raises as `link` does.

        Args:
            wanted: the files by their new local paths.
            on_linked: called in this thread with each path, while other files are being linked.
        """
        # Storage calls and hashing release the GIL.
        if len(wanted) < 2 or sum(file.size for file in wanted.values()) < _WORTH_THREADS:
            for target, file in wanted.items():
                self.link(file, target)
                on_linked(target)
            return
        with ThreadPoolExecutor(FETCHERS) as pool:
            linked = {pool.submit(self.link, file, target): target for target, file in wanted.items()}
            for done in as_completed(linked):
                done.result()
                on_linked(linked[done])

    def read(self, file: StateFile) -> bytes:
        """Returns the content of a small file; raises as `link` does."""
        copy = partial_path(self.folder, self._clock)
        try:
            self.link(file, copy, has_content)
            return copy.read_bytes()
        finally:
            copy.unlink(missing_ok=True)

    def store(
        self, sources: Sequence[Path], prefix: str, recorded: Mapping[str, StateFile] | None = None
    ) -> list[StateFile]:
        """Stores local files as one new object of the job root, and adds them to the cache.

        Args:
            sources: at least one complete file; its local name is its name in the store.
            prefix: a unique prefix for the object's key.
            recorded: files that were stored before, by local name.

        Raises:
            DamagedCopy: a file that was stored before differs from the record; storing it would keep the damage.
        """
        files = _references(sources, prefix)
        for source, file in zip(sources, files, strict=True):
            known = (recorded or {}).get(source.name)
            if known is not None and known.sha256 != file.sha256:
                self.drop_damaged([known])
                raise damaged_copy(known, source)
        for source, file in zip(sources, files, strict=True):
            self._add(source, self._path(file))
        self._transfer.uploads.put(files[0].handle.key, sources)
        return files

    def is_checked(self, fingerprint: str) -> bool:
        """Returns whether this host has written or checked the store, or the file, with this fingerprint."""
        return any((folder / _checked(fingerprint)).exists() for folder in (self.folder, *self._siblings))

    def remember_checked(self, fingerprint: str) -> None:
        """Remembers that the store with this fingerprint is safe to open, or that the file has a valid structure."""
        (self.folder / _checked(fingerprint)).touch(mode=0o600)

    def keep_only(self, files: Iterable[StateFile], checked: str = "") -> None:
        """Removes all other files from the cache; a process that has linked one keeps it.

        Args:
            files: the files to keep; the cache still remembers which of them have a valid structure.
            checked: the fingerprint of the only store to remember as checked.
        """
        hashes = {file.sha256 for file in files}
        wanted = hashes | {_checked(known) for known in (*hashes, checked)}
        for name in os.listdir(self.folder):
            if name not in wanted and not _is_being_fetched(name):
                (self.folder / name).unlink(missing_ok=True)

    def _path(self, file: StateFile) -> Path:
        if not _SHA256.fullmatch(file.sha256):
            raise CorruptFile(
                "a reference to a stored file has no hash",
                hint="restore an older checkpoint",
                file=file.handle.key,
                sha256=file.sha256[:100],
            )
        return self.folder / file.sha256

    def _fetch(self, file: StateFile, target: Path) -> None:
        key, part, partial = check_key(file.handle.key), file.part, partial_path(self.folder, self._clock)
        storage = self._transfer.storage
        if self._transfer.awaited_prefix and key.startswith(self._transfer.awaited_prefix):
            self._await_object(key)
        try:
            if part is None:
                storage.fetch(key, partial, file.handle.size)
                check_file(file.handle, partial)
            else:
                check_position(file.handle, part)
                storage.fetch_part(key, part.offset, part.size, partial)
                check_file(FileHandle(key=key, size=part.size, sha256=part.sha256), partial)
            if self._is_synced:
                _sync_copy(partial)
            os.link(partial, target)
            self._add(partial, self._path(file))
        finally:
            partial.unlink(missing_ok=True)

    def _await_object(self, key: str) -> None:
        """Waits for an object that another host, which ran the subtask before, is still uploading."""
        until = self._clock.monotonic() + self._transfer.wait_timeout.total_seconds()
        while self._transfer.storage.size(key) is None:
            if self._clock.monotonic() >= until:
                raise BatchFailed(
                    "a file that another host was uploading did not appear in time",
                    hint="check whether that host was lost; a new run replays from the last checkpoint",
                    file=key,
                )
            self._clock.sleep(_POLL)

    def _add(self, source: Path, path: Path) -> None:
        with contextlib.suppress(FileExistsError):
            os.link(source, path)


def damaged_copy(file: StateFile, path: Path, reason: str = "") -> DamagedCopy:
    """Returns the error for a local copy of a stored file that differs from the record."""
    return DamagedCopy(
        "a local copy of a stored file is damaged",
        hint="it was dropped, and the next attempt fetches "
        "the file again; if this happens often, check disk and memory of the host",
        file=file.handle.key,
        path=str(path),
        **({"reason": reason} if reason else {}),
    )


def _link_copy(copy: Path, file: StateFile, target: Path, check: Check) -> bool:
    """Links a cached copy to `target` if it exists and passes the check, else returns False; drops a damaged copy."""
    try:
        os.link(copy, target)
    except FileNotFoundError:
        return False
    # Check the link, not the copy: another process may replace the copy meanwhile.
    if check(target, file):
        return True
    target.unlink()
    _drop(copy, file)
    return False


def _drop_if_damaged(copy: Path, file: StateFile) -> bool:
    with contextlib.suppress(FileNotFoundError):
        if not has_content(copy, file):
            _drop(copy, file)
            return True
    return False


def _drop(copy: Path, file: StateFile) -> None:
    copy.unlink(missing_ok=True)
    log_event(log, logging.WARNING, "damaged-copy-dropped", file=file.handle.key, path=copy)


def _checked(fingerprint: str) -> str:
    return f"checked-{fingerprint}"


def _sync_copy(path: Path) -> None:
    """Syncs a fetched file to disk, so that it survives a power failure, before it gets its final name."""
    # A hard link to the stored object is synced already.
    if path.stat().st_nlink > 1:
        return
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _references(sources: Sequence[Path], prefix: str) -> list[StateFile]:
    """Returns references to the files as parts of one object; a single file is the whole object."""
    if len(sources) == 1:
        (path,) = sources
        handle = FileHandle(key=f"{prefix}{path.name}", size=path.stat().st_size, sha256=hash_file(path))
        return [StateFile(handle=handle, local_name=path.name)]
    sizes = [path.stat().st_size for path in sources]
    with ThreadPoolExecutor(1) as pool:
        # A compaction may write half a gigabyte, and each byte is hashed twice: concurrently, since hashing releases
        # the GIL and a compacting task is often the only one that runs.
        whole = pool.submit(_hash_concatenated, sources)
        hashes = [hash_file(path) for path in sources]
    handle = FileHandle(key=f"{prefix}{PACKED}", size=sum(sizes), sha256=whole.result())
    files = zip(sources, accumulate(sizes, initial=0), sizes, hashes, strict=False)
    return [
        StateFile(handle=handle, local_name=path.name, part=FilePart(offset=offset, size=size, sha256=sha256))
        for path, offset, size, sha256 in files
    ]


def _hash_concatenated(paths: Sequence[Path]) -> str:
    """Returns the SHA-256 of the concatenated files."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(COPY_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()


def _is_being_fetched(name: str) -> bool:
    """Returns whether a running process is fetching this file; False for a leftover of a dead one."""
    kind, _, rest = name.partition("-")
    return kind == PARTIAL_PREFIX and is_running(rest.partition("-")[0])


def remove_tree(folder: Path) -> None:
    """Removes a local working folder if it exists."""
    shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class _Cache:
    used: float
    files: tuple[tuple[Path, int], ...]

    @property
    def size(self) -> int:
        return sum(size for _, size in self.files)


def mark_used(cache: Path) -> None:
    """Marks a cache as the most recently used one."""
    with contextlib.suppress(FileNotFoundError):
        os.utime(cache)


def trim(local_folder: Path, limit: int) -> int:
    """Removes files from caches until all caches together are within a limit.

    Files with another hard link do not count: an open store or a job root on this file system has them too, so
    removing them from the cache would free no space.

    Args:
        local_folder: the host's scratch folder of all jobs.
        limit: maximum size in bytes.

    Returns:
        The number of bytes removed.
    """
    caches = sorted(map(_read_cache, local_folder.glob("*/*/*/cache")), key=lambda cache: cache.used, reverse=True)
    kept, removed = 0, 0
    for cache in caches:
        if kept + cache.size <= limit:
            kept += cache.size
        else:
            removed += _remove(cache.files)
    return removed


def _read_cache(folder: Path) -> _Cache:
    files = []
    try:
        used = folder.stat().st_mtime
        for entry in os.scandir(folder):
            with contextlib.suppress(FileNotFoundError):
                found = entry.stat(follow_symlinks=False)
                # A file that is being fetched has a temporary name until it is complete.
                if found.st_nlink == 1 and not entry.name.startswith(PARTIAL_PREFIX):
                    files.append((Path(entry.path), found.st_size))
    except FileNotFoundError:
        return _Cache(0.0, ())
    return _Cache(used, tuple(files))


def _remove(files: Iterable[tuple[Path, int]]) -> int:
    removed = 0
    for path, size in files:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
            removed += size
    return removed
