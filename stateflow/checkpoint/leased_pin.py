"""Holds the pin of a reader outside of a run: it has an end, so a reader that is killed leaves no pin for long.

A clock decides only when an entry of the log drops a pin, never whether a file is garbage: that follows from the
newest entry alone. So a lease that ends too early, because the reader was suspended or the clocks of two hosts differ,
leads to a missing file and its error. It cannot lead to wrong data: files are immutable, and verified by their hashes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from stateflow import failpoints
from stateflow.checkpoint.log.admin_entries import AdminEntries
from stateflow.checkpoint.log.documents import Pin
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.errors import MissingFile, StateflowError
from stateflow.periodic_call import call_periodically

log = logging.getLogger(__name__)

LEASE = timedelta(minutes=10)
_RENEWALS = 3
"""Renewals within a lease: two may fail."""


@contextmanager
def hold_lease(root: JobRoot, pin: Pin, lease: timedelta = LEASE) -> Iterator[None]:
    """Renews a leased pin in a thread within a ``with`` block, and removes it at the end.

    Args:
        root: the job root.
        pin: the pin, from `AdminEntries.pin`.
        lease: time from a renewal to the end of the pin; that which the pin was made with.

    Raises:
        MissingFile: as the block does; when the pin has ended before, the error says so.
    """
    # Not the root's: its cache of retained checkpoints is for one thread.
    admin = JobRoot(root.log, root.clock, root.writer).admin
    failpoints.hit("read.pinned")
    try:
        with call_periodically(lease / _RENEWALS, lambda: _renew(admin, pin, lease)):
            yield
        failpoints.hit("read.finished")
    except MissingFile as e:
        # A comparison holds two pins: the inner one has reported the error already.
        if "lease" in e.facts or root.admin.has_pin(pin.id):
            raise
        raise MissingFile(
            "a file of the checkpoint was deleted, because the reader's pin has ended",
            hint="read again; if that fails as well, compare the clocks of the hosts: a pin ends by the clock of the "
            "process that writes the next log entry",
            checkpoint=pin.checkpoint.id,
            lease=str(lease),
            **e.facts,
        ) from e
    finally:
        _unpin(root.admin, pin)
        failpoints.hit("read.unpinned")


def _renew(admin: AdminEntries, pin: Pin, lease: timedelta) -> None:
    try:
        if not admin.renew(pin.id, lease):
            log.warning(
                "the pin of checkpoint %d has ended: a collection may delete files that are read", pin.checkpoint.id
            )
    except StateflowError as e:
        log.warning("could not renew the pin of checkpoint %d, trying again: %s", pin.checkpoint.id, e)


def _unpin(admin: AdminEntries, pin: Pin) -> None:
    try:
        admin.unpin(pin.id)
    except StateflowError as e:
        # What was read is right, and the pin ends with its lease.
        log.warning("could not remove the pin of checkpoint %d, which ends by itself: %s", pin.checkpoint.id, e)
