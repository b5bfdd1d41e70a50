"""A whole run without Spark, over a source that can be read in this process."""

from __future__ import annotations

from collections.abc import Callable

from stateflow.api.source import LocalSource
from stateflow.checkpoint.documents import SourcePosition
from stateflow.runtime import stores
from stateflow.runtime.bounds import CAUGHT_UP, Bounds
from stateflow.runtime.run import BatchResult, JobRun, Positions


def run_local(run: JobRun, source: LocalSource, on_batch: Callable[[BatchResult], None]) -> str:
    """Runs batches until the source has nothing more or a bound is reached; returns which.

    Args:
        run: started.
        on_batch: called after each committed and published batch.
    """
    job = run.job
    bounds = Bounds(job.settings.run, job.root.clock)
    uid, description = job.sources[0]
    reached = bounds.reached
    while reached is None:
        position = run.positions[0].offset if run.positions else None
        found = source.read(position, job.settings.source)
        if found is None:
            reached = CAUGHT_UP
            break
        here = SourcePosition(uid=uid, description=description, offset=found.position)
        on_batch(run.run_batch(found.rows, lambda _, here=here: Positions([here])))  # type: ignore[misc]
        bounds.count_batch()
        reached = bounds.reached
    run.finish()
    stores.close_all()
    return reached
