"""A whole run without Spark, over a source that can be read in this process."""

from __future__ import annotations

from collections.abc import Callable

from stateflow.api.source import LocalSource
from stateflow.checkpoint.documents import SourcePosition
from stateflow.runtime import stores
from stateflow.runtime.bounds import CAUGHT_UP, STOPPED, Bounds
from stateflow.runtime.run import BatchResult, JobRun, Positions


def run_local(run: JobRun, source: LocalSource, on_batch: Callable[[BatchResult], None]) -> str:
    """Runs batches until the source has nothing more or a bound is reached; returns which.

    Args:
        run: started.
        on_batch: called after each committed and published batch.
    """
    bounds = Bounds(run.job.settings.run, run.job.root.clock)
    try:
        reached = _until_reached(run, source, bounds, on_batch)
        run.finish()
    finally:
        run.abandon()
        stores.close_all()
    return reached


def _until_reached(
    run: JobRun, source: LocalSource, bounds: Bounds, on_batch: Callable[[BatchResult], None]
) -> str:
    uid, description = run.job.sources[0]
    while bounds.reached is None:
        if run.stopped:
            return STOPPED
        position = run.positions[0].offset if run.positions else None
        found = source.read(position, run.job.settings.source)
        if found is None:
            return CAUGHT_UP
        here = SourcePosition(uid=uid, description=description, offset=found.position)
        on_batch(run.run_batch(found.rows, lambda _, here=here: Positions([here])))  # type: ignore[misc]
        bounds.count_batch()
    return STOPPED if run.stopped else bounds.reached
