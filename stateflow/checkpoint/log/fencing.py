"""Detects in the log that a newer run has claimed the job, and builds the error that ends the older run.

`FenceWatch` of ``runtime.driver.job_run`` asks during a run, and ends it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from stateflow.checkpoint.log.checkpoint_log import CheckpointLog, Head
from stateflow.checkpoint.log.documents import EntryKind, LogEntry
from stateflow.errors import Fenced, StateflowError

log = logging.getLogger(__name__)

FENCED_HINT = "no action is needed: a newer run continues the job; if that run is unwanted, stop what started it"


class FenceGuard:
    """Reports whether a newer run has claimed the job.

    Only the log fences a run, when the run next appends an entry. The guard explains other failures and shortens the
    time for which a fenced run does useless work.

    Args:
        job_log: the log of the job.
        generation: generation of the run to check.

    Attributes:
        claim: the run's newest CLAIM; None if it was not given to `follow`.
    """

    def __init__(self, job_log: CheckpointLog, generation: int) -> None:
        self.claim: Head | None = None
        self._log = job_log
        self._generation = generation

    def follow(self, claim: Head) -> None:
        """Guards from now on against runs that are newer than this CLAIM of the run.

        A run that rewinds the job claims it a second time, and must not count as fenced by itself.
        """
        self.claim = claim
        self._generation = claim.entry.generation

    def check(self) -> None:
        """Reads the log's head once.

        Raises:
            Fenced: a newer run has claimed the job; the error names it.
            StorageError, DataError: the log cannot be read.
        """
        newest = self._log.read_head()
        if newest is not None and newest.entry.generation > self._generation:
            raise self._fenced(newest.entry)

    def find(self) -> Fenced | None:
        """Returns the error that `check` raises; None when no newer run exists or the log cannot be read."""
        try:
            self.check()
        except Fenced as e:
            return e
        except StateflowError as e:
            log.warning("cannot read the log to look for a newer run: %s", e)
        return None

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Raises Fenced instead of an error of the body when a newer run has claimed the job.

        Files that a newer run sweeps or collects make an older one fail in many ways; the newer claim is the cause.
        """
        try:
            yield
        except Exception as e:
            fenced = self.find()
            if fenced is None:
                raise
            raise fenced from e

    def _fenced(self, newest: LogEntry) -> Fenced:
        try:
            claim = _claim(self._log, newest)
        except StateflowError as e:
            # The head is enough to know that the run is fenced; the CLAIM only says by whom.
            log.warning("cannot read the CLAIM of the newer run: %s", e)
            claim = newest
        by = {"by": claim.note} if claim.note else {}
        return Fenced(
            "a newer run has claimed the job",
            hint=FENCED_HINT,
            generation=self._generation,
            newer=newest.generation,
            **by,
            where=claim.writer,
            claimed_at=claim.at,
        )


def _claim(job_log: CheckpointLog, newest: LogEntry) -> LogEntry:
    """Returns the newer run's CLAIM, or another entry of that run when the CLAIM has been collected."""
    if newest.kind is EntryKind.CLAIM:
        return newest
    # The newest entry may be a command's; that of the current checkpoint was written by a run.
    fallback = newest.checkpoint.id if newest.checkpoint else newest.seq
    for seq in (newest.generation, fallback):
        found = job_log.read_entry(seq)
        # A paused driver can write a slot below the head again.
        if found is not None and (found.generation, found.run) == (newest.generation, newest.run):
            return found
    return newest
