"""Uploads of new state files to the job root: before the task reports, or in the background during later batches.

The names of local files contain a label of the process that owns them, so that others find out whether it still runs.

A background upload has a folder of its own with links to the files and the key of the object to store. The folder is
removed when the object is stored. If a process dies, another process of the same host finds its folders and completes
the uploads. If a host is lost, the object never appears, the checkpoint is aborted, and the run replays.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from queue import SimpleQueue

from stateflow import failpoints
from stateflow.clock import Clock
from stateflow.errors import StateflowError
from stateflow.observability import UPLOAD, span
from stateflow.private_files import make_new_folder, open_private, write_private
from stateflow.storage import Storage

log = logging.getLogger(__name__)


COPY_CHUNK = 1 << 20
PARTIAL_PREFIX = "incoming"
_KEY, _PACKED, _NEW = "key", "packed", "new-"
_NAME = re.compile(rf"({_NEW})?([0-9]+)\.([0-9_]+)\.[0-9a-f]{{32}}")
_RETRY_SECONDS = (0.2, 30.0)


class Uploads(ABC):
    """Stores local files as objects of the job root."""

    @abstractmethod
    def put(self, key: str, sources: Sequence[Path]) -> None:
        """Stores the concatenation of complete files as a new object.

        Args:
            key: unique key of the object.
            sources: the files. Their content must not change; they may be removed when this returns.
        """


class SynchronousUploads(Uploads):
    """Uploads that complete before `put` returns; raises StorageError when storing fails.

    Args:
        storage: the job root.
        scratch: a local folder for concatenating files.
        clock: the clock for temporary names.
    """

    def __init__(self, storage: Storage, scratch: Path, clock: Clock) -> None:
        self._storage = storage
        self._scratch = scratch
        self._clock = clock

    def put(self, key: str, sources: Sequence[Path]) -> None:
        packed = partial_path(self._scratch, self._clock)
        try:
            _put(self._storage, key, sources, packed)
        finally:
            packed.unlink(missing_ok=True)


@dataclass(frozen=True)
class Outbox:
    """The folder for a run's pending uploads on this host.

    Attributes:
        folder: folder of one job; shared by the processes of the host.
        generation: generation of the run; pending uploads of older ones are removed, since no run waits for them.
        retry_timeout: maximum time to retry the upload of one object.
    """

    folder: Path
    generation: int
    retry_timeout: timedelta


class BackgroundUploads(Uploads):
    """Uploads in the background: `put` enqueues an object, and a thread of this process stores one after the other.

    Failed uploads are retried until the outbox' `retry_timeout`. The driver checks that the object exists.
    """

    def __init__(self, storage: Storage, outbox: Outbox, clock: Clock) -> None:
        self._storage = storage
        self._outbox = outbox
        self._clock = clock

    def put(self, key: str, sources: Sequence[Path]) -> None:
        name = f"{self._outbox.generation}.{own_label()}.{self._clock.new_id()}"
        folder = self._outbox.folder / name
        # A folder that other processes find must be complete. A process that dies before the rename did not report.
        draft = folder.with_name(f"{_NEW}{name}")
        make_new_folder(draft)
        for number, source in enumerate(sources):
            os.link(source, draft / str(number))
        write_private(draft / _KEY, key.encode())
        draft.rename(folder)
        failpoints.hit("upload.queued")
        self._enqueue(folder, key)

    def adopt_orphans(self) -> None:
        """Takes over pending uploads of dead processes of this host, and removes those of older generations."""
        try:
            names = os.listdir(self._outbox.folder)
        except FileNotFoundError:
            return
        for name in names:
            self._adopt(name)

    def _adopt(self, name: str) -> None:
        matched = _NAME.fullmatch(name)
        if matched is None:
            return
        is_draft, generation, owner = bool(matched[1]), int(matched[2]), matched[3]
        folder, own = self._outbox.folder / name, self._outbox.generation
        if generation < own or (generation == own and is_draft and not is_running(owner)):
            shutil.rmtree(folder, ignore_errors=True)
        elif generation == own and not is_running(owner):
            self._take_over(folder, owner)

    def _take_over(self, folder: Path, owner: str) -> None:
        taken = folder.with_name(f"{self._outbox.generation}.{own_label()}.{self._clock.new_id()}")
        try:
            # Of several processes that try to take over, one succeeds.
            folder.rename(taken)
        except FileNotFoundError:
            return
        log.warning("taking over a pending upload of process %s, which no longer runs", owner.partition("_")[0])
        self._enqueue(taken, (taken / _KEY).read_text())

    def _enqueue(self, folder: Path, key: str) -> None:
        _upload_thread.enqueue(_PendingUpload(self._storage, key, folder, self._clock, self._outbox.retry_timeout))


@dataclass(frozen=True)
class _PendingUpload:
    """A pending upload of one object."""

    storage: Storage
    key: str
    folder: Path
    clock: Clock
    retry_timeout: timedelta

    def run(self) -> None:
        """Stores the object, retrying with backoff until `retry_timeout`; removes its folder at the end."""
        until = self.clock.monotonic() + self.retry_timeout.total_seconds()
        delay, longest = _RETRY_SECONDS
        while not self._try_to_store():
            if self.clock.monotonic() >= until:
                log.error("giving up storing %s: retries timed out", self.key)
                break
            self.clock.sleep(timedelta(seconds=delay))
            delay = min(longest, 2 * delay)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _try_to_store(self) -> bool:
        """Tries to store the object; returns whether it is stored, or a newer run has removed its folder."""
        try:
            count = len(os.listdir(self.folder))
            sources = [path for n in range(count) if (path := self.folder / str(n)).exists()]
            # An earlier attempt, or the process that had it before, may have stored the object without learning that.
            if self.storage.durable_size(self.key) != sum(source.stat().st_size for source in sources):
                failpoints.hit("upload.before")
                _put(self.storage, self.key, sources, self.folder / _PACKED)
            failpoints.hit("upload.after")
            return True
        except FileNotFoundError:
            return not self.folder.exists()
        except (StateflowError, OSError) as e:
            log.warning("storing %s failed, retrying: %s", self.key, e)
            return False


class _UploadThread:
    """A thread that runs uploads in order; a daemon, so that the process can exit without waiting for it."""

    def __init__(self) -> None:
        self._pending: SimpleQueue[_PendingUpload] = SimpleQueue()
        self._started_in: int | None = None

    def enqueue(self, upload: _PendingUpload) -> None:
        self._pending.put(upload)
        # Threads do not survive a fork of the process.
        if self._started_in != os.getpid():
            self._started_in = os.getpid()
            threading.Thread(target=self._work, name="stateflow-uploads", daemon=True).start()

    def _work(self) -> None:
        while True:
            try:
                self._pending.get().run()
            except Exception:
                # Continue with the others; the driver notices that this object is missing.
                log.exception("storing an object failed")


_upload_thread = _UploadThread()


def partial_path(folder: Path, clock: Clock) -> Path:
    """Returns a temporary path for an incomplete file; its name has the process label, so leftovers can be detected."""
    return folder / f"{PARTIAL_PREFIX}-{own_label()}-{clock.new_id()}"


def _put(storage: Storage, key: str, sources: Sequence[Path], packed: Path) -> None:
    with span(UPLOAD, file=key, bytes=sum(source.stat().st_size for source in sources)):
        _put_as_one(storage, key, sources, packed)


def _put_as_one(storage: Storage, key: str, sources: Sequence[Path], packed: Path) -> None:
    if len(sources) == 1:
        storage.put_file(key, sources[0])
        return
    with open_private(packed) as target:
        for source in sources:
            with source.open("rb") as file:
                shutil.copyfileobj(file, target, COPY_CHUNK)
    storage.put_file(key, packed)
    packed.unlink()


_ENDED = ("Z", "X")
"""State letters of zombies and of dead processes."""


def own_label() -> str:
    """Returns the label of this process: its id and its start time, in clock ticks since the boot.

    An id alone does not identify a process: the kernel gives it to another process or thread later. Without a start
    time, an upload that a dead process left would be waited for as long as that one lives.
    """
    pid = os.getpid()
    return f"{pid}_{_start_time(str(pid))}"


def is_running(label: str) -> bool:
    """Returns whether the process with this label still runs; False for anything that is not a label."""
    pid, _, started = label.partition("_")
    return pid.isdigit() and started != "" and _start_time(pid) == started


def _start_time(pid: str) -> str:
    """Returns when a process started; an empty string if it does not exist or has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    # The second field is the program's name in parentheses and may contain any character.
    fields = stat[stat.rindex(")") + 2 :].split()
    return "" if fields[0] in _ENDED else fields[19]
