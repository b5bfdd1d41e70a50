"""A run without Spark, over sources that can be read in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial

from stateflow.api.hidden_columns import RejectedRecord
from stateflow.api.schema import Column
from stateflow.api.source import LocalSource, Slice, limits_of
from stateflow.checkpoint.log.documents import NOT_BEGUN, SourcePosition
from stateflow.config.settings import SourceSettings
from stateflow.errors import BatchFailed, StateflowError
from stateflow.runtime.driver.idle import IDLE_INTERVAL, IdleWork
from stateflow.runtime.driver.job_run import JobRun
from stateflow.runtime.driver.request_server import STOPPED
from stateflow.runtime.driver.termination import RunBounds, run_ticks
from stateflow.runtime.job.job import BatchResult, Positions
from stateflow.runtime.planning.physical_plan import JobPlan
from stateflow.runtime.task import store_cache
from stateflow.runtime.task.row_conversion import latest_time
from stateflow.runtime.user_code import innermost
from stateflow.runtime.watermarks import NO_TIME
from stateflow.types.columns.conversion import to_column

_SHORTEST_PAUSE = timedelta(milliseconds=1)


def run_local(
    run: JobRun,
    sources: Mapping[str, LocalSource],
    on_batch: Callable[[BatchResult], None],
    bounds: RunBounds | None = None,
) -> str:
    """Runs batches until no source has more rows, or until a bound is reached; returns which.

    A continuous run waits for more rows until it is stopped or reaches a bound.

    Args:
        run: a started run.
        sources: the sources by uid.
        on_batch: called after each committed and published batch.
        bounds: when to end; a run that restarts passes the same bounds again.
    """
    bounds = bounds or RunBounds(run.job.settings.run, run.job.root.clock)
    bounds.begin()
    try:
        if bounds.end.continuous:
            with bounds.signal.handled():
                reached = _until_stopped(run, sources, bounds, on_batch)
                run.finish()
        else:
            reached = _until_reached(run, sources, bounds, on_batch)
            run.finish()
    finally:
        run.abandon()
        store_cache.close_all()
    return reached


def _until_reached(
    run: JobRun, sources: Mapping[str, LocalSource], bounds: RunBounds, on_batch: Callable[[BatchResult], None]
) -> str:
    while bounds.reached is None:
        if run.stopped:
            return run.stopped
        slices, positions = _read(run, sources)
        if not slices:
            return run_ticks(run, bounds, on_batch)
        on_batch(_run_slices(run, slices, positions))
        bounds.count_batch()
    return run.stopped or bounds.reached


def _until_stopped(
    run: JobRun, sources: Mapping[str, LocalSource], bounds: RunBounds, on_batch: Callable[[BatchResult], None]
) -> str:
    """Polls the sources until the run is stopped or reaches a bound; between two polls, does the other work."""
    clock, interval = run.job.root.clock, run.job.settings.run.interval
    idle, caught_up, next_poll = IdleWork(run, bounds, on_batch), False, clock.monotonic()
    while not run.stopped and bounds.reached is None:
        now = clock.monotonic()
        if now >= next_poll:
            slices, positions = _read(run, sources)
            next_poll = now + (interval or (timedelta() if slices else IDLE_INTERVAL)).total_seconds()
            if slices:
                on_batch(_run_slices(run, slices, positions))
                bounds.count_batch()
                continue
            caught_up = True
        pause = idle.step(caught_up)
        clock.sleep(max(_SHORTEST_PAUSE, min(pause, timedelta(seconds=next_poll - clock.monotonic()))))
    return run.stopped or bounds.reached or STOPPED


def _fixed(positions: Positions, _folder: str) -> Positions:
    return positions


def _run_slices(run: JobRun, slices: Mapping[str, Slice], positions: list[SourcePosition]) -> BatchResult:
    rows = {uid: found.rows for uid, found in slices.items()}
    times = split_times(run.job.plan, slices)
    return run.run_batch(rows, partial(_fixed, Positions(positions, split_times=times)))


def split_times(plan: JobPlan, slices: Mapping[str, Slice]) -> dict[str, dict[str, int | None]]:
    """Returns the latest event times of a batch, as `Positions.split_times`.

    Args:
        slices: the rows of the batch, by uid of the source.
    """
    return {
        node.uid: _latest_by_split(node.source.schema.column(column), slices[node.uid])
        for node in plan.sources
        if node.uid in slices and (column := plan.times_of_splits.get(node.uid))
    }


def _latest_by_split(column: Column, found: Slice) -> dict[str, int | None]:
    """Returns the latest event time of each split; see `Positions.split_times`."""
    latest: dict[str, int | None] = {}
    for split, rows in found.splits.items():
        times = [getattr(row, column.name) for row in rows if not isinstance(row, RejectedRecord)]
        time = latest_time(to_column(column.shape, times))
        latest[split] = NO_TIME if time is None and rows else time
    return latest


def _read(run: JobRun, sources: Mapping[str, LocalSource]) -> tuple[dict[str, Slice], list[SourcePosition]]:
    """Reads a slice of each source that has one. Returns them by uid, and the positions of all sources after them."""
    before = {p.uid: p.offset for p in run.positions}
    slices: dict[str, Slice] = {}
    positions = []
    for uid, description in run.job.sources:
        offset = before.get(uid, NOT_BEGUN)
        limits = limits_of(uid, sources[uid], run.job.settings.source)
        found = _slice(uid, sources[uid], None if offset == NOT_BEGUN else offset, limits)
        if found is not None:
            slices[uid] = found
            offset = found.position
        positions.append(SourcePosition(uid=uid, description=description, offset=offset))
    return slices, positions


def _slice(uid: str, source: LocalSource, position: str | None, limits: SourceSettings) -> Slice | None:
    try:
        return source.read(position, limits)
    except StateflowError:
        raise
    except Exception as e:
        # It is not known whether a retry can succeed; restarts and retries are bounded.
        raise BatchFailed(
            "a source could not be read",
            hint="a new run continues from the last checkpoint; if that fails as well, fix the source",
            source=uid,
            reason=f"{type(e).__name__}: {e}"[:500],
            where=innermost(e),
        ) from e
