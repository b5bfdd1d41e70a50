"""The rows of a batch of a job that runs without Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from stateflow.api.source import LocalSource, Slice, limits_of, texts_of
from stateflow.checkpoint.log.documents import NOT_BEGUN, Manifest
from stateflow.config.settings import SourceSettings
from stateflow.errors import BatchFailed, InputLost, StateflowError
from stateflow.replay.input.lost import input_lost
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

    def check(self, batch: PlannedBatch, manifest: Manifest) -> None:
        """See `BatchReader.check`."""
        for uid, source in self._sources.items():
            if batch.moves(uid) and (lost := source.lost_between(*_positions(uid, batch))):
                raise input_lost(uid, lost, batch)

    def run(self, batch: PlannedBatch, run_rows: RunRows) -> None:
        """See `BatchReader.run`."""
        slices = {uid: self._read(uid, source, batch) for uid, source in self._sources.items() if batch.moves(uid)}
        run_rows({uid: found.rows for uid, found in slices.items()}, split_times(self._job.plan, slices))

    def _read(self, uid: str, source: LocalSource, batch: PlannedBatch) -> Slice:
        start, end = _positions(uid, batch)
        try:
            limits = limits_of(uid, source, self._job.settings.source)
            found = source.slice_between(start, end) or _read_up_to(source, start, end, limits)
        except InputLost as e:
            raise input_lost(uid, texts_of(e), batch) from e
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
        if found is None:
            raise input_lost(uid, ["reading again did not return the position after the batch"], batch)
        return found


def _positions(uid: str, batch: PlannedBatch) -> tuple[str | None, str]:
    """Returns the positions of a source before and after a batch; None before all input."""
    start = batch.start_of(uid)
    return None if start == NOT_BEGUN else start, batch.end_of(uid)


def _read_up_to(source: LocalSource, start: str | None, end: str, limits: SourceSettings) -> Slice | None:
    """Reads slices until the position `end`, which the source must return again; None if it does not."""
    found = Slice([], "")
    at = start
    for _ in range(_MOST_READS):
        part = source.read(at, limits)
        if part is None or part.position == at:
            return None
        splits = dict(found.splits)
        for split, rows in part.splits.items():
            splits[split] = [*splits.get(split, ()), *rows]
        found = replace(part, rows=[*found.rows, *part.rows], splits=splits)
        at = part.position
        if at == end:
            return found
    return None
