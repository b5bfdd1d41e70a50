"""The timeline of a job: its runs, checkpoints and actions."""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stateflow.checkpoint.history import FAILURE, RUN_START
from stateflow.checkpoint.log.documents import CheckpointRecord, Record
from stateflow.operations.checkpoints import ActionEntry, CheckpointEntry
from stateflow.outputs import Inline, OptionalText
from stateflow.ui.answers import Answer, Freshness, Handler, freshness_of, version_of
from stateflow.ui.checkpoints import CheckpointSummary, generation_of, summary_of
from stateflow.ui.openapi import Endpoint
from stateflow.ui.requests import CURSOR, Call, limit_parameter, to_cursor
from stateflow.ui.roots import Catalog, Reading, Roots
from stateflow.ui.runs import RunSummary, runs_of
from stateflow.ui.snapshots import Action, Point, PointKey, Snapshot


@dataclass(frozen=True)
class TimelinePage:
    """A part of the history of a job: its newest records, or those before an earlier page.

    Attributes:
        runs: the runs of these records, oldest first; one that earlier pages have as well is the same there.
        checkpoints: the checkpoints, oldest first.
        actions: savepoints, restores, rejections, failures and other actions, oldest first.
        older: whether the history has older records than these.
        next_cursor: `cursor` of the page of older records; empty if this is the last one.
        freshness: how current this is.
    """

    runs: tuple[RunSummary, ...]
    checkpoints: tuple[CheckpointSummary, ...]
    actions: tuple[ActionEntry, ...]
    older: bool
    next_cursor: OptionalText
    freshness: Inline[Freshness]


class ActionKey(NamedTuple):
    """Place of an action among all actions of a job: its time, and the key of its object."""

    ended_at: str
    source: str


class TimelineKey(NamedTuple):
    """Place of the oldest point of a page, and of its oldest action; None for none yet."""

    point: PointKey | None
    action: ActionKey | None


def timeline_page(
    reading: Reading[Snapshot], before: TimelineKey | None, limit: int, dag_ids: Collection[str] = ()
) -> TimelinePage:
    """Returns the newest records of checkpoints, actions and starts of runs before a place.

    Args:
        reading: the job root.
        before: the place where the page before ended; None for the first page.
        limit: largest number of records.
        dag_ids: the DAGs that work on the job.
    """
    snapshot = reading.value
    if snapshot is None or snapshot.position is None:
        return TimelinePage((), (), (), False, "", freshness_of(snapshot, reading))
    points, actions = _records_before(snapshot, before or TimelineKey(None, None))
    # Each in its own order; clocks of hosts may differ.
    both: list[Iterable[Point | Action]] = [reversed(points), reversed(actions)]
    newest = heapq.merge(*both, key=lambda each: each.record.ended_at, reverse=True)
    shown = list(itertools.islice(newest, limit))[::-1]
    shown_points = [each for each in shown if isinstance(each, Point)]
    shown_actions = [each for each in shown if isinstance(each, Action)]
    more = len(shown) < len(points) + len(actions)
    last = TimelineKey(
        shown_points[0].key if shown_points else before and before.point,
        _action_key(shown_actions[0]) if shown_actions else before and before.action,
    )
    entries = map(snapshot.entry_of, shown_points)
    return TimelinePage(
        runs=_runs_of(runs_of(snapshot, dag_ids), shown, is_first=before is None),
        checkpoints=tuple(summary_of(each) for each in entries if isinstance(each, CheckpointEntry)),
        # The start of a run is in the summary of the run.
        actions=tuple(snapshot.entries_of(each for each in shown_actions if each.record.kind != RUN_START)),
        older=more or snapshot.truncated,
        next_cursor=to_cursor(last if more else None),
        freshness=freshness_of(snapshot, reading),
    )


def _records_before(snapshot: Snapshot, before: TimelineKey) -> tuple[Sequence[Point], Sequence[Action]]:
    points = [each for each in snapshot.points if isinstance(each.record, CheckpointRecord)]
    actions = snapshot.actions
    if before.point is not None:
        points = points[: bisect_left(points, before.point, key=lambda each: each.key)]
    if before.action is not None:
        actions = actions[: bisect_left(actions, before.action, key=_action_key)]
    return points, actions


def _action_key(action: Action) -> ActionKey:
    return ActionKey(action.record.ended_at, action.source)


def _runs_of(runs: Iterable[RunSummary], shown: Sequence[Point | Action], *, is_first: bool) -> tuple[RunSummary, ...]:
    """Returns the runs of records; on the first page also one that has no record yet."""
    generations = {generation_of(each.record) for each in shown if _is_of_run(each.record)}
    return tuple(run for run in runs if run.generation in generations or (is_first and run.is_open))


def _is_of_run(record: Record) -> bool:
    """Returns whether a run has recorded it: a checkpoint, its start, or the error that it ended with."""
    return isinstance(record, CheckpointRecord) or record.kind in (RUN_START, FAILURE)


_LIMIT = limit_parameter(500, 2000)

TIMELINE_ENDPOINTS = (
    Endpoint("jobs/{id}/timeline", "The history of a job, its newest part first", TimelinePage, (CURSOR, _LIMIT)),
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
        before, limit = call.cursor(TimelineKey), call.number(_LIMIT)
        reading = await self._roots.read(call.job)
        dag_ids = self._catalog.orchestration_of(call.job.id).dag_ids
        assert limit is not None
        return Answer(
            [version_of(call.job, reading), repr(dag_ids)], lambda: timeline_page(reading, before, limit, dag_ids)
        )
