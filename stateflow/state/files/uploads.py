"""Storing what a snapshot adds: before the task reports, or beside the batches that follow.

In the background, what is on its way is in a folder of its own: the files, linked, and the name of the object that they
become. The folder goes when the object is there. So when a process dies, any other one of the same host finds what it
owed, and stores it; when a host dies, the object never appears, the checkpoint is aborted, and the run replays.
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
from stateflow.storage import Storage
from stateflow.traces import UPLOAD, span

log = logging.getLogger(__name__)

COPY_CHUNK = 1 << 20
INCOMING = "incoming"
_KEY, _PACKED, _NEW = "key", "packed", "new-"
_NAME = re.compile(rf"({_NEW})?([0-9]+)\.([0-9]+)\.[0-9a-f]{{32}}")
_RETRY_SECONDS = (0.2, 30.0)


class Uploads(ABC):
    """Makes local files an object of the job root."""

    @abstractmethod
    def put(self, key: str, sources: Sequence[Path]) -> None:
        """Stores finished files, one behind the other, as the new object `key`; nobody else may use that name, and the
        files' content must not change. They may be removed when this returns."""


class DirectUploads(Uploads):
    """When `put` returns, the object is stored. Raises StorageError when it is not.

    Args:
        scratch: a folder for the object while it is packed; on the host of the files.
    """

    def __init__(self, storage: Storage, scratch: Path, clock: Clock) -> None:
        self._storage = storage
        self._scratch = scratch
        self._clock = clock

    def put(self, key: str, sources: Sequence[Path]) -> None:
        packed = incoming(self._scratch, self._clock)
        try:
            _put(self._storage, key, sources, packed)
        finally:
            packed.unlink(missing_ok=True)


@dataclass(frozen=True)
class Outbox:
    """Where the objects of a run that are on their way are kept on this host.

    Attributes:
        folder: of one job; shared by the processes of the host.
        generation: of the run: what is left of older ones is removed, nobody waits for it.
        patience: how long one object is tried.
    """

    folder: Path
    generation: int
    patience: timedelta


class BackgroundUploads(Uploads):
    """When `put` returns, the object is on its way: one thread of this process stores one after the other.

    It tries until the outbox' patience is over. That it was stored is known by the object itself.
    """

    def __init__(self, storage: Storage, outbox: Outbox, clock: Clock) -> None:
        self._storage = storage
        self._outbox = outbox
        self._clock = clock

    def put(self, key: str, sources: Sequence[Path]) -> None:
        name = f"{self._outbox.generation}.{os.getpid()}.{self._clock.new_id()}"
        folder = self._outbox.folder / name
        # A folder that another process finds must be whole: one that dies while it links has not reported.
        draft = folder.with_name(f"{_NEW}{name}")
        draft.mkdir(parents=True, mode=0o700)
        for number, source in enumerate(sources):
            os.link(source, draft / str(number))
        (draft / _KEY).write_text(key)
        draft.rename(folder)
        failpoints.hit("upload.queued")
        self._send(folder, key)

    def adopt_orphans(self) -> None:
        """Takes over what processes of this host that are gone had not stored yet, and tidies up behind older runs."""
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
        is_draft, generation, pid = bool(matched[1]), int(matched[2]), int(matched[3])
        folder, own = self._outbox.folder / name, self._outbox.generation
        if generation < own or (generation == own and is_draft and not _lives(pid)):
            shutil.rmtree(folder, ignore_errors=True)
        elif generation == own and not _lives(pid):
            self._take_over(folder, pid)

    def _take_over(self, folder: Path, pid: int) -> None:
        mine = folder.with_name(f"{self._outbox.generation}.{os.getpid()}.{self._clock.new_id()}")
        try:
            # Of several processes that find it, one succeeds.
            folder.rename(mine)
        except FileNotFoundError:
            return
        log.warning("process %d is gone; what it was storing is stored by this one", pid)
        self._send(mine, (mine / _KEY).read_text())

    def _send(self, folder: Path, key: str) -> None:
        _thread.send(_Parcel(self._storage, key, folder, self._clock, self._outbox.patience))


@dataclass(frozen=True)
class _Parcel:
    """One object on its way."""

    storage: Storage
    key: str
    folder: Path
    clock: Clock
    patience: timedelta

    def deliver(self) -> None:
        """Stores it, however often that fails, until nobody waits any more."""
        until = self.clock.monotonic() + self.patience.total_seconds()
        delay, longest = _RETRY_SECONDS
        while not self._is_delivered():
            if self.clock.monotonic() >= until:
                log.error("%s was not stored in time, and is given up", self.key)
                break
            self.clock.sleep(timedelta(seconds=delay))
            delay = min(longest, 2 * delay)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _is_delivered(self) -> bool:
        """Whether nothing is left to do: it is stored, or its folder was removed by a newer run."""
        try:
            count = len(os.listdir(self.folder))
            sources = [path for n in range(count) if (path := self.folder / str(n)).exists()]
            # An earlier try, or the process that this was taken over from, may have stored it and not known.
            if self.storage.durable_size(self.key) != sum(source.stat().st_size for source in sources):
                failpoints.hit("upload.before")
                _put(self.storage, self.key, sources, self.folder / _PACKED)
            failpoints.hit("upload.after")
            return True
        except FileNotFoundError:
            return not self.folder.exists()
        except (StateflowError, OSError) as e:
            log.warning("%s is not stored yet: %s", self.key, e)
            return False


class _Thread:
    """Delivers one parcel after the other; a daemon, so that a process that ends does not wait for it."""

    def __init__(self) -> None:
        self._parcels: SimpleQueue[_Parcel] = SimpleQueue()
        self._begun: int | None = None

    def send(self, parcel: _Parcel) -> None:
        self._parcels.put(parcel)
        # A thread does not live on in a process that was forked.
        if self._begun != os.getpid():
            self._begun = os.getpid()
            threading.Thread(target=self._work, name="stateflow-uploads", daemon=True).start()

    def _work(self) -> None:
        while True:
            try:
                self._parcels.get().deliver()
            except Exception:
                # The others are stored all the same; this one is missed by the driver.
                log.exception("an object is not stored")


_thread = _Thread()


def incoming(folder: Path, clock: Clock) -> Path:
    """A name for a file that is not whole yet: of this process, so that others know when it will never be."""
    return folder / f"{INCOMING}-{os.getpid()}-{clock.new_id()}"


def _put(storage: Storage, key: str, sources: Sequence[Path], packed: Path) -> None:
    with span(UPLOAD, file=key, bytes=sum(source.stat().st_size for source in sources)):
        _put_as_one(storage, key, sources, packed)


def _put_as_one(storage: Storage, key: str, sources: Sequence[Path], packed: Path) -> None:
    if len(sources) == 1:
        storage.put_file(key, sources[0])
        return
    with packed.open("wb") as target:
        for source in sources:
            with source.open("rb") as file:
                shutil.copyfileobj(file, target, COPY_CHUNK)
    storage.put_file(key, packed)
    packed.unlink()


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
