"""Which newer run has fenced this one: read from the log, for the error that ends it."""

from __future__ import annotations

import logging

from stateflow.checkpoint.documents import EntryKind, LogEntry
from stateflow.checkpoint.log import CheckpointLog
from stateflow.errors import Fenced, StateflowError

log = logging.getLogger(__name__)

HINT = "let the other run work; if it is not wanted, find the schedule or shell that started it"


def fenced_by(job_log: CheckpointLog, generation: int) -> Fenced | None:
    """The error of the run of this generation when a newer one has claimed the job; None when there is none, or when
    the log cannot be read."""
    try:
        newest = job_log.read_head()
        if newest is None or newest.entry.generation <= generation:
            return None
        claim = _claim(job_log, newest.entry)
    except StateflowError as e:
        log.warning("the log could not be asked for a newer run: %s", e)
        return None
    by = {"by": claim.note} if claim.note else {}
    return Fenced("a newer run has claimed the job", hint=HINT, generation=generation, newer=newest.entry.generation,
                  **by, where=claim.writer, since=claim.at)  # fmt: skip


def _claim(job_log: CheckpointLog, newest: LogEntry) -> LogEntry:
    """The newer run's CLAIM, which says since when; another entry of that run where the CLAIM is collected already."""
    if newest.kind is EntryKind.CLAIM:
        return newest
    # The newest entry may be a command's, the present checkpoint's is a run's own.
    spare = newest.checkpoint.id if newest.checkpoint else newest.seq
    for seq in (newest.generation, spare):
        found = job_log.read_entry(seq)
        # A slot below the head can be written again, by a driver that has slept.
        if found is not None and (found.generation, found.run) == (newest.generation, newest.run):
            return found
    return newest
