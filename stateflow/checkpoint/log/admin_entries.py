"""ADMIN entries of commands: pins, the release of retained checkpoints, the end of claims; safe while a run commits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from stateflow.checkpoint.log import transitions
from stateflow.checkpoint.log.checkpoint_log import Appended, CheckpointLog, Head, is_old_entry
from stateflow.checkpoint.log.completed_checkpoints import CompletedCheckpoints
from stateflow.checkpoint.log.documents import ClaimedSavepoint, EntryRef, LogEntry, Pin
from stateflow.checkpoint.log.fencing import FENCED_HINT
from stateflow.checkpoint.log.transitions import Author, drop_expired
from stateflow.clock import Clock
from stateflow.errors import ConfigError, DataError, Fenced, StateflowError, StorageError
from stateflow.storage.paths import log_entry

log = logging.getLogger(__name__)

_TRIES = 100


class AdminEntries:
    """Appends ADMIN entries after the newest entry, whatever run or command appended it.

    Args:
        job_log: the job's log.
        checkpoints: the checkpoints that its entries keep.
        clock: gives ids and timestamps.
        writer: names this process in the entries, for display.
    """

    def __init__(self, job_log: CheckpointLog, checkpoints: CompletedCheckpoints, clock: Clock, writer: str) -> None:
        self._log = job_log
        self._job = job_log.job
        self._checkpoints = checkpoints
        self._clock = clock
        self._writer = writer

    def pin(self, ref: EntryRef, owner: str, reason: str, generation: int = 0, lease: timedelta | None = None) -> Pin:
        """Keeps a checkpoint that the newest entry still keeps, until `unpin` or the end of the lease.

        Args:
            ref: the checkpoint.
            owner: name of the reader, for display.
            reason: reason of the pin, for display.
            generation: generation of a run that reads for itself; the next CLAIM ends its pin. 0 for other readers.
            lease: time after which the pin ends unless it is renewed; None for a pin without an end.

        Raises:
            DataError: the checkpoint is no longer kept.
            Fenced: a newer run than that of `generation` has claimed the job.
        """
        pin = Pin(
            id=self._clock.new_id(),
            checkpoint=ref,
            owner=owner,
            reason=reason,
            since=self._clock.now().isoformat(),
            generation=generation,
            until=self._end_of(lease) if lease else "",
        )
        self.append_admin(lambda head: _has_pin(head, pin.id), lambda base: self._pin_entry(base, pin))
        return pin

    def renew(self, pin_id: str, lease: timedelta) -> bool:
        """Gives a leased pin another end, `lease` from now; returns False if the pin no longer exists.

        The entries decide: a pin whose end is over, and that the newest entry still has, is renewed.
        """
        until = self._end_of(lease)
        head = self.append_admin(
            lambda head: all(p.until == until for p in head.entry.pinned if p.id == pin_id),
            lambda base: transitions.renew(self._job, base, self._author(), pin_id, until),
        )
        return _has_pin(head, pin_id)

    def has_pin(self, pin_id: str) -> bool:
        """Returns whether the newest entry has a pin."""
        return _has_pin(self._checkpoints.head(), pin_id)

    def end_leases(self) -> None:
        """Drops the pins whose lease is over; appends nothing when there are none.

        Runs do not call this: each of their entries drops these pins anyway.
        """
        self.append_admin(
            lambda head: drop_expired(head.entry.pinned, self._clock.now().isoformat()) == head.entry.pinned,
            lambda base: transitions.end_leases(self._job, base, self._author("end of leases")),
        )

    def _end_of(self, lease: timedelta) -> str:
        return (self._clock.now() + lease).isoformat()

    def _pin_entry(self, base: Head, pin: Pin) -> LogEntry:
        # Checked for each entry that the ADMIN may follow: another ADMIN in between can have released the checkpoint.
        if pin.checkpoint not in self._checkpoints.kept(base):
            raise DataError(
                "the checkpoint is no longer retained",
                checkpoint=pin.checkpoint.id,
                oldest=self._checkpoints.oldest_restorable(base),
            )
        if pin.generation and base.entry.generation != pin.generation:
            raise Fenced(
                "a newer run has claimed the job",
                hint=FENCED_HINT,
                generation=pin.generation,
                newer=base.entry.generation,
            )
        return transitions.pin(self._job, base, self._author(pin.reason), pin)

    @contextmanager
    def pinned(self, ref: EntryRef, owner: str, reason: str, generation: int = 0) -> Iterator[Pin]:
        """Keeps a checkpoint within a ``with`` block. Arguments and errors are those of `pin`."""
        pin = self.pin(ref, owner, reason, generation)
        try:
            yield pin
        finally:
            self.unpin(pin.id)

    def unpin(self, pin_id: str) -> None:
        """Removes a pin; does nothing when it does not exist."""
        self.append_admin(
            lambda head: all(p.id != pin_id for p in head.entry.pinned),
            lambda base: transitions.unpin(self._job, base, self._author(), pin_id),
        )

    def end_claim(self, ended: ClaimedSavepoint) -> None:
        """Removes a claimed savepoint from the log after it was deleted, or its claim undone."""
        self.append_admin(
            lambda head: ended not in head.entry.claimed_savepoints,
            lambda base: transitions.end_claim(self._job, base, self._author(f"savepoint {ended.name}"), ended),
        )

    def retain(self, keep: int, upto: int | None = None) -> Head:
        """Releases all but the newest `keep` restorable checkpoints; returns the newest entry.

        Args:
            keep: number of checkpoints.
            upto: id of the newest checkpoint that may be released; None for any.

        Raises ConfigError for less than 1.
        """
        if keep < 1:
            raise ConfigError("at least one checkpoint must be retained", value=keep)
        return self.append_admin(
            lambda head: not self._released(head, keep, upto), lambda base: self._retain_entry(base, keep, upto)
        )

    def _retain_entry(self, base: Head, keep: int, upto: int | None) -> LogEntry:
        # None is left to release if another process did so since the head was read.
        oldest = self._checkpoints.restorable(base)[len(self._released(base, keep, upto))].id
        return transitions.retain(self._job, base, self._author(f"retain {keep}"), oldest)

    def _released(self, head: Head, keep: int, upto: int | None) -> list[EntryRef]:
        beyond = self._checkpoints.restorable(head)[:-keep]
        return [ref for ref in beyond if upto is None or ref.id <= upto]

    def append_admin(self, is_done: Callable[[Head], bool], build: Callable[[Head], LogEntry]) -> Head:
        """Appends an ADMIN entry, again each time that another writer was first; returns the newest entry.

        Args:
            is_done: whether the newest entry needs no ADMIN entry, or already contains this one.
            build: makes the entry from the one before it. It is called for each entry that the ADMIN may follow.

        Raises StorageError when other writers are first each time.
        """
        for _ in range(_TRIES):
            head = self._checkpoints.head()
            if is_done(head):
                return head
            outcome = self._log.append(head, build)
            if isinstance(outcome, Appended):
                self._delete_replaced(outcome.own.entry.seq - 1, outcome.head)
                return outcome.head
        raise StorageError("other writers append to the job's log too fast to add an entry", hint="try again")

    def _delete_replaced(self, seq: int, head: Head) -> None:
        """Deletes the entry that an ADMIN replaces: without runs, no collection would for a long time."""
        try:
            if is_old_entry(head.entry, seq):
                self._log.storage.delete([log_entry(seq)])
        except StateflowError as e:
            # The new entry counts, and a failed deletion must not fail the operation that it was appended for; a list
            # that is missing belongs to a head that is no longer the newest.
            log.warning("a log entry is left for the next collection: %s", e)

    def _author(self, note: str = "") -> Author:
        return Author.now(self._clock, self._writer, note)


def is_released(error: DataError, ref: EntryRef) -> bool:
    """Returns whether `AdminEntries.pin` has raised an error because a checkpoint was released."""
    return error.facts.get("checkpoint") == ref.id and "oldest" in error.facts


def _has_pin(head: Head, pin_id: str) -> bool:
    return any(pin.id == pin_id for pin in head.entry.pinned)
