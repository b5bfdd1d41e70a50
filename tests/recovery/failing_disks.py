"""A disk that fails: below the file system calls of our POSIX storage, in the process whose environment asks for it.

It remembers what a power cut would leave: content that was synced, and names in folders that were synced. Everything
else may be there, in part, or not: rng decide. An error of fsync loses what was to be synced, as Linux has it.
RocksDB's own files do not matter: nothing of a checkpoint is in them.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from stateflow.checkpoint.log.checkpoint_log import Appended
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.storage import posix

VARIABLE = "STATEFLOW_TEST_DISK"
LOST_POWER = 77


@dataclass(frozen=True)
class DiskPlan:
    """What happens to a process's disk.

    Attributes:
        folders: that are on it.
        image: a folder that gets what a power cut leaves when the process ends, and ``facts.json``.
        calls: how many calls there are before the power fails; -1 for none.
        errors: share of calls that fail with EIO.
    """

    folders: tuple[str, ...]
    image: str
    seed: int
    calls: int = -1
    errors: float = 0.0

    @property
    def variable(self) -> str:
        """As the environment has it."""
        return json.dumps(asdict(self))


@contextmanager
def disk_from_environment() -> Iterator[None]:
    """Puts the disk that the environment describes, if any, below this process's storage."""
    described = os.environ.get(VARIABLE)
    if not described:
        yield
        return
    disk = FaultyDisk(DiskPlan(**json.loads(described)))
    commit = JobRoot.commit

    def noted(self: JobRoot, *arguments: Any) -> Any:
        done = commit(self, *arguments)
        if isinstance(done, Appended):
            disk.acked.append(done.own.entry.seq)
        return done

    calls = _Calls(disk)
    with patch.object(posix, "os", calls), patch.object(JobRoot, "commit", noted):
        try:
            yield
        finally:
            disk.write_image()


@dataclass(frozen=True)
class _Entry:
    """What a name refers to.

    Attributes:
        content: what was durable of the file when its folder was synced; numbers of files are given again.
    """

    inode: int
    is_folder: bool
    content: bytes | None = field(default=None, compare=False)


class FaultyDisk:
    """What is durable of some folders; at first everything."""

    def __init__(self, plan: DiskPlan) -> None:
        self._plan = plan
        self._dice = random.Random(plan.seed)
        self._lock = threading.RLock()
        self._left = plan.calls
        self._files: dict[int, bytes] = {}
        self._folders: dict[tuple[int, str], dict[str, _Entry]] = {}
        """By number and path: a number is given again when a folder is gone."""
        self.acked: list[int] = []
        self.failed = 0
        for folder in map(Path, plan.folders):
            for path in [folder, *folder.rglob("*")]:
                inode = path.stat().st_ino
                if path.is_dir():
                    self._folders[inode, str(path)] = _listing(path)
                else:
                    self._files[inode] = path.read_bytes()

    @contextmanager
    def below_storage(self) -> Iterator[None]:
        """Puts this disk below the POSIX storage of this process."""
        calls = _Calls(self)
        with patch.object(posix, "os", calls):
            yield

    def call(self, act: Callable[[], Any]) -> Any:
        """Does one call, unless it is the one at which power fails, or one that fails."""
        with self._lock:
            if self._left == 0:
                self.write_image()
                os._exit(LOST_POWER)
            self._left -= 1
            if self._dice.random() < self._plan.errors:
                self.failed += 1
                raise OSError(errno.EIO, "the disk failed")
        return act()

    def fsync(self, fd: int) -> None:
        """What `fd` is open for is durable from here on; after an error, never."""
        found, path = os.fstat(fd), Path(f"/proc/self/fd/{fd}")
        try:
            self.call(lambda: os.fsync(fd))
        except OSError:
            with self._lock:
                self._files.pop(found.st_ino, None)
            raise
        with self._lock:
            if stat.S_ISDIR(found.st_mode):
                now = {n: replace(e, content=self._files.get(e.inode)) for n, e in _listing(path).items()}
                self._folders[found.st_ino, os.readlink(path)] = now
            else:
                self._files[found.st_ino] = path.read_bytes()

    def write_image(self) -> None:
        """What a power cut would leave now, and what was acknowledged before it."""
        with self._lock:
            image = Path(self._plan.image)
            shutil.rmtree(image, ignore_errors=True)
            image.mkdir(parents=True)
            for number, folder in enumerate(map(Path, self._plan.folders)):
                self._write_folder(folder.stat().st_ino, folder, image / str(number))
            (image / "facts.json").write_text(json.dumps({"acked": self.acked, "failed": self.failed}))

    def _write_folder(self, inode: int, source: Path, target: Path) -> None:
        target.mkdir(mode=0o700)
        durable, there = self._folders.get((inode, str(source)), {}), _listing(source)
        for name in sorted({*durable, *there}):
            is_safe = name in durable and durable[name] == there.get(name)
            # Also a removal need not have come to the disk.
            if not is_safe and self._dice.random() < 0.5:
                continue
            entry = there.get(name)
            if entry is not None and entry.is_folder:
                self._write_folder(entry.inode, source / name, target / name)
                continue
            content = durable[name].content if entry is None else self._content(entry, source / name)
            # A folder that was removed stays away.
            if content is not None and not (entry or durable[name]).is_folder:
                (target / name).write_bytes(content)
                (target / name).chmod(0o600)

    def _content(self, entry: _Entry, path: Path) -> bytes:
        """What is durable of a file; of one that was never synced, what the random numbers decide."""
        known = self._files.get(entry.inode)
        if known is not None:
            return known
        whole = path.read_bytes()
        return whole[: self._dice.randrange(len(whole) + 1)]


class _Calls:
    """Replaces the module `os` in the storage's code."""

    def __init__(self, disk: FaultyDisk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def fsync(self, fd: int) -> None:
        self._disk.fsync(fd)

    def write(self, fd: int, data: Any) -> Any:
        return self._disk.call(lambda: os.write(fd, data))

    def link(self, *arguments: Any, **options: Any) -> None:
        self._disk.call(lambda: os.link(*arguments, **options))


def _listing(folder: Path) -> dict[str, _Entry]:
    try:
        return {e.name: _Entry(e.inode(), e.is_dir(follow_symlinks=False)) for e in os.scandir(folder)}
    except (FileNotFoundError, NotADirectoryError):
        return {}
