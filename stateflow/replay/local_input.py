"""The rows of a batch of a job that runs without Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from stateflow.api.source import LocalSource, Slice
from stateflow.checkpoint.log.documents import NOT_BEGUN
from stateflow.config.settings import SourceSettings
from stateflow.errors import BatchFailed, InputLost, StateflowError
from stateflow.replay.target import PlannedBatch
from stateflow.runtime.job.job import Job
from stateflow.runtime.local.run_loop import split_times
from stateflow.runtime.user_code import innermost

SplitTimes = Mapping[str, Mapping[str, int | None]]
"""As `Positions.split_times`."""
RunRows = Callable[[object, SplitTimes], None]
"""Runs a batch; takes its rows, as the executor does, and the latest event times of splits."""

_MOST_READS = 1000
"""Reads of a source for the rows of one batch."""


class LocalInput:
    """Reads the rows of batches from the sources once more.

    Args:
        job: the job.
        sources: the sources by uid.
    """

    def __init__(self, job: Job, sources: Mapping[str, LocalSource]) -> None:
        self._job = job
        self._sources = sources

    def run(self, batch: PlannedBatch, run_rows: RunRows) -> None:
        """Calls `run_rows` with the rows of a batch.

        Raises:
            InputLost: a source no longer has the rows.
            BatchFailed: a source could not be read.
        """
        slices = {}
        for uid, source in self._sources.items():
            start, end = batch.start.get(uid, NOT_BEGUN), batch.end.get(uid, NOT_BEGUN)
            if start != end:
                slices[uid] = _read(uid, source, None if start == NOT_BEGUN else start, end, self._job.settings.source)
        run_rows({uid: found.rows for uid, found in slices.items()}, split_times(self._job.plan, slices))


def _read(uid: str, source: LocalSource, start: str | None, end: str, limits: SourceSettings) -> Slice:
    try:
        if start is not None and source.holds(start) is False:
            raise input_lost(uid, "it no longer has all rows after the position", start, end)
        return source.slice_between(start, end) or _read_up_to(uid, source, start, end, limits)
    except StateflowError:
        raise
    except Exception as e:
        raise BatchFailed(
            "a source could not be read",
            hint="check whether it still has the rows of the batch",
            source=uid,
            reason=f"{type(e).__name__}: {e}"[:500],
            where=innermost(e),
        ) from e


def _read_up_to(uid: str, source: LocalSource, start: str | None, end: str, limits: SourceSettings) -> Slice:
    """Reads slices until the position `end`, which the source must return again."""
    found = Slice([], "")
    at = start
    for _ in range(_MOST_READS):
        part = source.read(at, limits)
        if part is None or part.position == at:
            break
        splits = dict(found.splits)
        for split, rows in part.splits.items():
            splits[split] = [*splits.get(split, ()), *rows]
        found = replace(part, rows=[*found.rows, *part.rows], splits=splits)
        at = part.position
        if at == end:
            return found
    raise input_lost(uid, "reading again did not return the position after the batch", start, end)


def input_lost(uid: str, reason: str, start: str | None, end: str) -> InputLost:
    """Returns the error for a source that no longer has the rows of a batch."""
    return InputLost(
        "the source no longer has the rows of the batch",
        hint="a replay needs the input as it was; replay a newer batch, or restore the input",
        source=uid,
        reason=reason,
        start=(start or "the beginning")[:500],
        end=end[:500],
    )
