"""The timeline of a job: its runs, checkpoints, branches and actions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from stateflow.checkpoint.history import RUN_START, Integrity
from stateflow.checkpoint.log.documents import ActionRecord, CheckpointRecord, seq_of
from stateflow.operations.checkpoints import ActionEntry, CheckpointEntry
from stateflow.outputs import Inline, OptionalId, Timestamp
from stateflow.ui.answers import Answer, Freshness, Handler, freshness_of, version_of
from stateflow.ui.openapi import Endpoint
from stateflow.ui.requests import Call, limit_parameter
from stateflow.ui.roots import Catalog, Reading, Roots
from stateflow.ui.runs import RunSummary, runs_of
from stateflow.ui.snapshots import Snapshot


@dataclass(frozen=True)
class TimelinePoint:
    """A checkpoint on the timeline; all of it is in the list of points.

    Attributes:
        checkpoint_id: its id; 0 for an aborted checkpoint.
        previous_checkpoint_id: for an aborted checkpoint, the id of the checkpoint before it; 0 otherwise.
        generation: generation of its run.
        run: number of its run.
        ordinal: number of its barrier in that generation.
        branch: generation of the restore that began its branch, which is the `seq` of a branch; 0 for the first one.
        status: ``completed`` or ``aborted``.
        ended_at: when it completed or failed.
        duration_ms: duration of its batches, plus the time from its barrier to its end.
        rows_in: rows that it has read.
        increment_bytes: bytes of state written for it.
        full_bytes: bytes of all state that it refers to.
        undone: whether a restore has undone it; None for an aborted checkpoint.
        retained: whether the job keeps it, so that it can be restored.
        integrity: whether its record is as it was recorded.
    """

    checkpoint_id: OptionalId
    previous_checkpoint_id: OptionalId
    generation: int
    run: int
    ordinal: int
    branch: OptionalId
    status: str
    ended_at: Timestamp
    duration_ms: float
    rows_in: int
    increment_bytes: int
    full_bytes: int
    undone: bool | None
    retained: bool
    integrity: Integrity | None


@dataclass(frozen=True)
class Branch:
    """Checkpoints between two restores: each restore begins another branch.

    Attributes:
        seq: number of the log entry that begins it; 0 for the first one.
        restored_checkpoint_id: the checkpoint at which it leaves another branch; 0 for the first one, and for another
            job's checkpoint.
        live: whether the job's current state descends from its newest checkpoint.
    """

    seq: OptionalId
    restored_checkpoint_id: OptionalId
    live: bool


@dataclass(frozen=True)
class TimelinePage:
    """The newest part of the history of a job.

    Attributes:
        runs: the runs, oldest first.
        branches: the branches that restores have left, and the current one last, oldest first.
        checkpoints: the checkpoints, oldest first.
        actions: savepoints, restores, rejections, failures and other actions, oldest first.
        older: whether the history has older records than these.
        freshness: how current this is.
    """

    runs: tuple[RunSummary, ...]
    branches: tuple[Branch, ...]
    checkpoints: tuple[TimelinePoint, ...]
    actions: tuple[ActionEntry, ...]
    older: bool
    freshness: Inline[Freshness]


def timeline_page(reading: Reading[Snapshot], limit: int, dag_ids: Collection[str] = ()) -> TimelinePage:
    """Returns the newest records of checkpoints, and as many of actions and runs, of a job.

    Args:
        reading: the job root.
        limit: how many of each, at most.
        dag_ids: the DAGs that work on the job.
    """
    snapshot = reading.value
    if snapshot is None or snapshot.position is None:
        return TimelinePage((), (), (), (), False, freshness_of(snapshot, reading))
    checkpoints = [p for p in snapshot.points if isinstance(p.record, CheckpointRecord)]
    entries = (snapshot.entry_of(p) for p in checkpoints[-limit:])
    points = tuple(_timeline_point(each) for each in entries if isinstance(each, CheckpointEntry))
    # The start of a run is in the summary of the run.
    actions = [each for each in snapshot.actions if each.record.kind != RUN_START]
    oldest = points[0].generation if points and len(checkpoints) > limit else 0
    # A job whose runs fail has no checkpoints, and as many runs as the history retains.
    runs = [run for run in runs_of(snapshot, dag_ids) if run.generation >= oldest]
    return TimelinePage(
        runs=tuple(runs[-limit:]),
        branches=_branches(snapshot),
        checkpoints=points,
        actions=tuple(snapshot.entries_of(actions[-limit:])),
        older=len(checkpoints) > limit or len(actions) > limit or len(runs) > limit or snapshot.truncated,
        freshness=freshness_of(snapshot, reading),
    )


def _timeline_point(entry: CheckpointEntry) -> TimelinePoint:
    record = entry.record
    return TimelinePoint(
        checkpoint_id=entry.checkpoint_id,
        previous_checkpoint_id=entry.previous_checkpoint_id,
        generation=record.generation,
        run=record.run,
        ordinal=record.ordinal,
        branch=record.branch,
        status=record.status,
        ended_at=record.ended_at,
        duration_ms=record.duration_ms,
        rows_in=record.rows_in,
        increment_bytes=record.increment_bytes,
        full_bytes=record.full_bytes,
        undone=entry.undone,
        retained=entry.retained,
        integrity=entry.integrity,
    )


def _branches(snapshot: Snapshot) -> tuple[Branch, ...]:
    """Returns the branches; the newest one is that of the current state, also before its first checkpoint."""
    assert snapshot.position is not None
    entries = snapshot.position.entries
    restores = {p.record.seq: p.record for p in snapshot.points if isinstance(p.record, ActionRecord)}
    starts = [0, *sorted(restores)]
    # Ascending, as the points are.
    ids = [seq_of(p.record) for p in snapshot.points if not p.is_aborted]
    found = [Branch(starts[-1], _base_of(restores, starts[-1]), live=True)]
    for start, end in zip(starts[-2::-1], starts[:0:-1], strict=True):
        # Ids of points that are before the next branch.
        count = bisect_left(ids, end)
        live = count > 0 and ids[count - 1] >= start and not entries.is_undone(ids[count - 1])
        found.append(Branch(start, _base_of(restores, start), live))
    return tuple(reversed(found))


def _base_of(restores: Mapping[int, ActionRecord], start: int) -> int:
    return restores[start].number("restored_checkpoint_id") or 0 if start else 0


_LIMIT = limit_parameter(500, 2000)

TIMELINE_ENDPOINTS = (
    Endpoint("jobs/{id}/timeline", "The newest part of the history of a job", TimelinePage, (_LIMIT,)),
)


class TimelineEndpoints:
    """Answers with timelines.

    Args:
        catalog: the job roots.
        roots: follows them.
    """

    def __init__(self, catalog: Catalog, roots: Roots) -> None:
        self._catalog = catalog
        self._roots = roots

    def handlers(self) -> dict[str, Handler]:
        """Returns what answers each endpoint, by its path."""
        return {"jobs/{id}/timeline": self._timeline}

    async def _timeline(self, call: Call) -> Answer:
        limit = call.number(_LIMIT)
        reading = await self._roots.read(call.job, whole=True)
        dag_ids = self._catalog.orchestration_of(call.job.id).dag_ids
        assert limit is not None
        return Answer([version_of(call.job, reading), repr(dag_ids)], lambda: timeline_page(reading, limit, dag_ids))
