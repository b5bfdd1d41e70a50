"""Moving state files between the job root, a host's cache of immutable files, and a store's working folder.

The cache is a folder per subtask with files named by their hash. A task that lands on another host fetches what that
host misses. Size and SHA-256 are compared when a file enters the cache. After that the file may still be damaged: by a
power failure, a disk, a user. So a cached copy is checked whenever it is used: by size, and by SHA-256 unless its
reader has checksums of its own. One that is damaged is dropped and fetched again (design 0026).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate
from pathlib import Path

from stateflow.clock import Clock
from stateflow.errors import BatchFailed, ConfigError, CorruptFile, DamagedCopy, MissingFile, StorageError
from stateflow.events import log_event
from stateflow.state.handles import FileHandle, FilePart, StateFile
from stateflow.state.uploads import COPY_CHUNK, INCOMING, DirectUploads, Uploads, incoming
from stateflow.storage import Storage
from stateflow.storage.base import GONE
from stateflow.storage.paths import check_key

log = logging.getLogger(__name__)


def hash_file(path: Path) -> str:
    """SHA-256 of a local file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_local(handle: FileHandle, path: Path) -> None:
    """Raises CorruptFile unless the local file `path` is exactly what `handle` refers to; MissingFile when it is gone,
    also when a collector takes it while it is read."""
    try:
        size = path.stat().st_size
        digest = hash_file(path) if size == handle.size else ""
    except FileNotFoundError as e:
        raise MissingFile("object is not there", hint=GONE, key=handle.key, path=str(path)) from e
    except OSError as e:
        raise StorageError(
            "a stored file cannot be read", key=handle.key, path=str(path), reason=e.strerror
        ) from e
    check_content(handle, size, digest)


def check_content(handle: FileHandle, size: int, sha256: str) -> None:
    """Raises CorruptFile, naming the file, unless size and hash are those of `handle`."""
    if size != handle.size:
        raise CorruptFile("a stored file has another size than was recorded", hint="go back to an older checkpoint",
                          file=handle.key, expected=handle.size, found=size)  # fmt: skip
    if sha256 != handle.sha256:
        raise CorruptFile("a stored file's bytes are not those that were recorded", hint="go back to an older "
                          "checkpoint", file=handle.key, expected=handle.sha256, found=sha256)  # fmt: skip


def has_size(path: Path, file: StateFile) -> bool:
    """Whether a local copy of a file has the size that was recorded."""
    return path.stat().st_size == file.size


def has_content(path: Path, file: StateFile) -> bool:
    """Whether a local copy of a file is exactly what was recorded; what the disk does not return is not."""
    try:
        return has_size(path, file) and hash_file(path) == file.sha256
    except FileNotFoundError:
        raise
    except OSError:
        return False


Check = Callable[[Path, StateFile], bool]
"""What a cached copy must pass before it is used."""

FETCHERS = 4
"""How many files come in at once."""
_WORTH_THREADS = 1 << 20
_POLL = timedelta(milliseconds=50)
PACKED = "files"
"""What an object with several files is called."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Traffic:
    """How files of the job root come and go.

    Attributes:
        storage: the job root.
        uploads: what stores new objects.
        awaited: objects whose names begin like this may be on their way from another host; empty when none are.
        patience: how long those are waited for.
    """

    storage: Storage
    uploads: Uploads
    awaited: str = ""
    patience: timedelta = timedelta()

    @classmethod
    def direct(cls, storage: Storage, scratch: Path, clock: Clock) -> Traffic:
        """Each object is stored when the call for that returns."""
        return cls(storage, DirectUploads(storage, scratch, clock))


class HostCache:
    """Immutable files that this host already has.

    Args:
        folder: of one subtask of one operator of one job; shared by the processes of this host.
        traffic: with the job root.
        others: caches of other subtasks, which are asked before the job root is.
    """

    def __init__(self, folder: Path, traffic: Traffic, clock: Clock, others: Sequence[Path] = ()) -> None:
        self.folder = folder
        self._others = others
        self._traffic = traffic
        self._clock = clock
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    @classmethod
    def direct(cls, folder: Path, storage: Storage, clock: Clock, others: Sequence[Path] = ()) -> HostCache:
        """One whose new objects are stored when `store` returns."""
        return cls(folder, Traffic.direct(storage, folder, clock), clock, others)

    def link(self, file: StateFile, target: Path, check: Check = has_size) -> None:
        """Makes `target` that file, fetching it first when this host does not have it, or has a damaged copy.

        Args:
            check: what a cached copy must pass; by default for a reader that has checksums of its own.

        Raises MissingFile, or CorruptFile when the stored bytes are not the recorded ones.
        """
        own = self._path(file)
        for folder in (self.folder, *self._others):
            if _linked(folder / own.name, file, target, check):
                if folder != self.folder:
                    self._keep(target, own)
                return
        self._fetch(file, target)

    def drop_damaged(self, files: Iterable[StateFile]) -> int:
        """Hashes the cached copies of some files and drops those that are damaged; returns how many."""
        copies = [
            (folder / self._path(file).name, file)
            for file in files
            for folder in (self.folder, *self._others)
        ]
        with ThreadPoolExecutor(FETCHERS) as pool:
            return sum(pool.map(lambda copy: _dropped(*copy), copies))

    def link_all(self, wanted: Mapping[Path, StateFile]) -> None:
        """As `link`, of many files at once: by target. Waiting for a storage and hashing let go of the interpreter."""
        if len(wanted) < 2 or sum(file.size for file in wanted.values()) < _WORTH_THREADS:
            for target, file in wanted.items():
                self.link(file, target)
            return
        with ThreadPoolExecutor(FETCHERS) as pool:
            for done in [pool.submit(self.link, file, target) for target, file in wanted.items()]:
                done.result()

    def read(self, file: StateFile) -> bytes:
        """The content of a small file. Raises as `link` does."""
        copy = incoming(self.folder, self._clock)
        try:
            self.link(file, copy, has_content)
            return copy.read_bytes()
        finally:
            copy.unlink(missing_ok=True)

    def store(
        self, sources: Sequence[Path], prefix: str, recorded: Mapping[str, StateFile] | None = None
    ) -> list[StateFile]:
        """Makes finished local files one new object of the job root, and keeps them in the cache.

        Args:
            sources: at least one; each is called in its store what it is called here.
            prefix: of the object's name, which nobody else may use.
            recorded: what some of them are stored as already, by name.

        Raises DamagedCopy when one of these is not what was recorded: stored anew, the damage would become the truth.
        """
        files = _described(sources, prefix)
        for source, file in zip(sources, files, strict=True):
            known = (recorded or {}).get(source.name)
            if known is not None and known.sha256 != file.sha256:
                self.drop_damaged([known])
                raise damaged_copy(known, source)
        for source, file in zip(sources, files, strict=True):
            self._keep(source, self._path(file))
        self._traffic.uploads.put(files[0].handle.key, sources)
        return files

    def keep_only(self, files: Iterable[StateFile]) -> None:
        """Forgets every other file. One that a process still uses stays until it lets go of it."""
        wanted = {file.sha256 for file in files}
        for name in os.listdir(self.folder):
            if name not in wanted and not _is_coming_in(name):
                (self.folder / name).unlink(missing_ok=True)

    def _path(self, file: StateFile) -> Path:
        if not _SHA256.fullmatch(file.sha256):
            raise CorruptFile("a reference to a stored file has no hash", file=file.handle.key,
                              sha256=file.sha256[:100])  # fmt: skip
        return self.folder / file.sha256

    def _fetch(self, file: StateFile, target: Path) -> None:
        key, part, partial = check_key(file.handle.key), file.part, incoming(self.folder, self._clock)
        storage = self._traffic.storage
        if self._traffic.awaited and key.startswith(self._traffic.awaited):
            self._wait_for(key)
        try:
            if part is None:
                storage.fetch(key, partial)
                check_local(file.handle, partial)
            else:
                storage.fetch_part(key, part.offset, part.size, partial)
                check_local(FileHandle(key=key, size=part.size, sha256=part.sha256), partial)
            _sync_copy(partial)
            os.link(partial, target)
            self._keep(partial, self._path(file))
        finally:
            partial.unlink(missing_ok=True)

    def _wait_for(self, key: str) -> None:
        """Another host stores it while this one has come to own the subtask."""
        until = self._clock.monotonic() + self._traffic.patience.total_seconds()
        while self._traffic.storage.size(key) is None:
            if self._clock.monotonic() >= until:
                raise BatchFailed("a file that another host was to store did not come", hint="was that host lost? a "
                                  "new run replays from the last checkpoint", file=key)  # fmt: skip
            self._clock.sleep(_POLL)

    def _keep(self, source: Path, path: Path) -> None:
        with contextlib.suppress(FileExistsError):
            os.link(source, path)


def damaged_copy(file: StateFile, path: Path, reason: str = "") -> DamagedCopy:
    """The error for a local copy of a stored file that is not what was recorded."""
    return DamagedCopy("a local copy of a stored file is damaged", hint="it was dropped, and the next attempt fetches "
                       "the file again; if this happens often, check disk and memory of the host",
                       file=file.handle.key, path=str(path), **({"reason": reason} if reason else {}))  # fmt: skip


def _linked(copy: Path, file: StateFile, target: Path, check: Check) -> bool:
    """Makes `target` a cached copy, if there is one that passes the check; drops one that does not."""
    try:
        os.link(copy, target)
    except FileNotFoundError:
        return False
    # What is checked is what is used, even when another process replaces the copy meanwhile.
    if check(target, file):
        return True
    target.unlink()
    _drop(copy, file)
    return False


def _dropped(copy: Path, file: StateFile) -> bool:
    with contextlib.suppress(FileNotFoundError):
        if not has_content(copy, file):
            _drop(copy, file)
            return True
    return False


def _drop(copy: Path, file: StateFile) -> None:
    copy.unlink(missing_ok=True)
    log_event(log, logging.WARNING, "damaged-copy-dropped", file=file.handle.key, path=copy)


def _sync_copy(path: Path) -> None:
    """Lets a fetched file survive a power failure, before it gets the name by which it is used. One that is a link to
    the stored object is synced already."""
    if path.stat().st_nlink > 1:
        return
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _described(sources: Sequence[Path], prefix: str) -> list[StateFile]:
    """The files as parts of the object that they become; a single one is all of it."""
    if len(sources) == 1:
        (path,) = sources
        handle = FileHandle(key=f"{prefix}{path.name}", size=path.stat().st_size, sha256=hash_file(path))
        return [StateFile(handle=handle, local_name=path.name)]
    sizes = [path.stat().st_size for path in sources]
    with ThreadPoolExecutor(1) as pool:
        # A merge may be of half a gigabyte, and each byte is hashed twice: at once, since hashing lets go of the
        # interpreter, and whoever merges is often alone in doing so.
        whole = pool.submit(_hash_in_a_row, sources)
        hashes = [hash_file(path) for path in sources]
    handle = FileHandle(key=f"{prefix}{PACKED}", size=sum(sizes), sha256=whole.result())
    files = zip(sources, accumulate(sizes, initial=0), sizes, hashes, strict=False)
    return [StateFile(handle=handle, local_name=path.name, part=FilePart(offset=offset, size=size, sha256=sha256))
            for path, offset, size, sha256 in files]  # fmt: skip


def _hash_in_a_row(paths: Sequence[Path]) -> str:
    """SHA-256 of the files one behind the other."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(COPY_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()


def _is_coming_in(name: str) -> bool:
    """Whether another process is fetching this file now; what a dead one left is not coming any more."""
    kind, _, rest = name.partition("-")
    return kind == INCOMING and Path(f"/proc/{rest.partition('-')[0]}").exists()


def private_folder(folder: Path) -> None:
    """Makes a folder for this user alone. Raises ConfigError when it belongs to another, or others may write there:
    they could forge what is in the cache."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise ConfigError("the folder for scratch files must be this user's, and writable for nobody else",
                          hint="chmod go-w it, or set local_dir to another one", path=str(folder),
                          owner=found.st_uid, mode=oct(found.st_mode & 0o777))  # fmt: skip


def remove_tree(folder: Path) -> None:
    """Removes a local working folder; one that is gone already is no error."""
    shutil.rmtree(folder, ignore_errors=True)
