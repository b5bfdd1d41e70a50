"""Pins of the checkpoints that the queries of a Spark session read.

Spark plans each query in a Python process of its own, which ends before the query begins, and reports no end of a
query: a DataFrame that was planned once may be read at any time. So the planning process pins the checkpoint, and
records the pin in a folder of the driver. The driver renews the recorded pins, and removes a pin when its time has
passed or when the driver ends; the pins of a driver that is killed end after `LEASE`. Without such a folder, as with
Spark Connect, a pin lasts for its whole time.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import logging
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from stateflow.checkpoint.leased_pin import LEASE
from stateflow.checkpoint.log.documents import EntryRef
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.clock import Clock, SystemClock
from stateflow.errors import StateflowError
from stateflow.requesters import by_process
from stateflow.scratch_folder import ScratchFolder
from stateflow.storage import open_storage

log = logging.getLogger(__name__)

_RENEWALS = 3
"""Renewals within a lease: two may fail."""
_LOCK = "lock"


class QueryPin(msgspec.Struct, frozen=True, kw_only=True):
    """A pin that queries need.

    Attributes:
        root: location of the job root.
        pin: id of the pin.
        until: time after which no query needs it, in ISO 8601.
    """

    root: str
    pin: str
    until: str


def open_root(location: str, clock: Clock) -> JobRoot:
    """Opens a job root under the name of this process."""
    return JobRoot.open(open_storage(location), clock, f"{socket.gethostname()}:{os.getpid()}")


def pin_for_query(root: JobRoot, ref: EntryRef, needed: timedelta, folder: str) -> None:
    """Pins a checkpoint for a query; queries of a session that read the same checkpoint share a pin.

    Args:
        root: the job root.
        ref: the checkpoint, which the caller has pinned.
        needed: how long the query needs it.
        folder: folder of the session's `SessionPins`; empty, or not writable on this host, without one.
    """
    if not (folder and os.access(folder, os.W_OK | os.X_OK)):
        root.admin.pin(ref, by_process(root.writer), "a query of Spark", lease=needed)
        return
    lease = min(LEASE, needed)
    file = Path(folder) / f"{hashlib.sha256(f'{root.storage.uri} {ref.id}'.encode()).hexdigest()[:32]}.json"
    until = root.clock.now() + needed
    with _locked(Path(folder)):
        known = _read(file)
        if known is None or not root.admin.renew(known.pin, lease):
            pin = root.admin.pin(ref, by_process(root.writer), "queries of a Spark session", lease=lease)
            known = QueryPin(root=root.storage.uri, pin=pin.id, until=until.isoformat())
        later = max(until, datetime.fromisoformat(known.until)).isoformat()
        _write(file, msgspec.structs.replace(known, until=later))


class SessionPins:
    """The pins of a driver's queries, which a thread renews until no query needs them.

    Attributes:
        folder: where the processes that plan queries write their pins.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._scratch = ScratchFolder()
        self._ended = threading.Event()
        self._process = os.getpid()
        self.folder = self._scratch.path

    def start(self) -> None:
        """Starts the thread; the pins are removed at the end of the process."""
        threading.Thread(target=self._work, name="stateflow-session-pins", daemon=True).start()
        atexit.register(self.end)

    def _work(self) -> None:
        while not self._ended.wait((LEASE / _RENEWALS).total_seconds()):
            try:
                self.renew()
            except OSError as e:
                log.warning("could not read the pins of the session's queries, trying again: %s", e)

    def renew(self) -> None:
        """Renews the pins that queries still need, and removes the others."""
        now = self._clock.now()
        for file in sorted(self.folder.glob("*.json")):
            with _locked(self.folder):
                known = _read(file)
                if known is not None and not self._renewed(known, now):
                    file.unlink()

    def _renewed(self, known: QueryPin, now: datetime) -> bool:
        """Returns whether the pin is to be renewed again later."""
        left = datetime.fromisoformat(known.until) - now
        try:
            admin = open_root(known.root, self._clock).admin
            if left > timedelta(0):
                return admin.renew(known.pin, min(LEASE, left))
            admin.unpin(known.pin)
        except StateflowError as e:
            log.warning("could not renew a pin of the session's queries, trying again: %s", e)
            return True
        return False

    def end(self) -> None:
        """Removes all pins; one that cannot be removed ends with its lease. Does nothing in a forked process."""
        if self._ended.is_set() or self._process != os.getpid():
            return
        self._ended.set()
        for file in sorted(self.folder.glob("*.json")):
            with _locked(self.folder):
                known = _read(file)
                if known is not None:
                    self._remove(known)
        self._scratch.remove()

    def _remove(self, known: QueryPin) -> None:
        try:
            open_root(known.root, self._clock).admin.unpin(known.pin)
        except StateflowError as e:
            log.warning("could not remove a pin of the session's queries, which ends by itself: %s", e)


def _read(file: Path) -> QueryPin | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=QueryPin)
    except (FileNotFoundError, msgspec.DecodeError):
        # A process that was killed while it wrote the file: its pin ends with its lease.
        return None


def _write(file: Path, pin: QueryPin) -> None:
    new = file.with_suffix(".new")
    new.write_bytes(msgspec.json.encode(pin))
    new.replace(file)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds the folder's lock, which ends with the process."""
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
