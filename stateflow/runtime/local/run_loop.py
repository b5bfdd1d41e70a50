"""A whole run without Spark, over sources that can be read in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stateflow.api.source import LocalSource, Slice
from stateflow.checkpoint.documents import NOT_BEGUN, SourcePosition
from stateflow.errors import BatchFailed, StateflowError
from stateflow.runtime import stores
from stateflow.runtime.bounds import STOPPED, Bounds
from stateflow.runtime.dead_letters import innermost
from stateflow.runtime.job import BatchResult, Positions
from stateflow.runtime.run import JobRun
from stateflow.runtime.ticks import run_ticks
from stateflow.settings import SourceSettings


def run_local(
    run: JobRun,
    sources: Mapping[str, LocalSource],
    on_batch: Callable[[BatchResult], None],
    bounds: Bounds | None = None,
) -> str:
    """Runs batches until no source has anything more or a bound is reached; returns which.

    Args:
        run: started.
        sources: by uid.
        on_batch: called after each committed and published batch.
        bounds: of a run that has started before.
    """
    bounds = bounds or Bounds(run.job.settings.run, run.job.root.clock)
    bounds.begin()
    try:
        reached = _until_reached(run, sources, bounds, on_batch)
        run.finish()
    finally:
        run.abandon()
        stores.close_all()
    return reached


def _until_reached(
    run: JobRun, sources: Mapping[str, LocalSource], bounds: Bounds, on_batch: Callable[[BatchResult], None]
) -> str:
    while bounds.reached is None:
        if run.stopped:
            return STOPPED
        rows, positions = _read(run, sources)
        if not rows:
            return run_ticks(run, bounds, on_batch)
        here = Positions(positions)
        on_batch(run.run_batch(rows, lambda _, here=here: here))  # type: ignore[misc]
        bounds.count_batch()
    return STOPPED if run.stopped else bounds.reached


def _read(
    run: JobRun, sources: Mapping[str, LocalSource]
) -> tuple[dict[str, Sequence[Any]], list[SourcePosition]]:
    """A slice of each source that has one, and where all sources stand then."""
    before = {p.uid: p.offset for p in run.positions}
    rows: dict[str, Sequence[Any]] = {}
    positions = []
    for uid, description in run.job.sources:
        offset = before.get(uid, NOT_BEGUN)
        found = _slice(uid, sources[uid], None if offset == NOT_BEGUN else offset, run.job.settings.source)
        if found is not None:
            rows[uid] = found.rows
            offset = found.position
        positions.append(SourcePosition(uid=uid, description=description, offset=offset))
    return rows, positions


def _slice(uid: str, source: LocalSource, position: str | None, limits: SourceSettings) -> Slice | None:
    try:
        return source.read(position, limits)
    except StateflowError:
        raise
    except Exception as e:
        # Whether it will do better another time, only who wrote it knows: restarts and retries are bounded.
        raise BatchFailed("a source could not be read", hint="a new run starts from the last checkpoint; if that fails "
                          "as well, mend the source", source=uid,
                          reason=f"{type(e).__name__}: {e}"[:500], where=innermost(e)) from e  # fmt: skip
