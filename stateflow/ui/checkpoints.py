"""The checkpoints of a job: the list of points, and one with its operators and subtasks."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from stateflow.checkpoint.history import Integrity
from stateflow.checkpoint.log.documents import (
    COMPLETED,
    CheckpointRecord,
    Manifest,
    OperatorMetrics,
    OperatorState,
    Record,
)
from stateflow.errors import ConfigError
from stateflow.operations.checkpoints import (
    ActionEntry,
    CheckpointDescription,
    CheckpointEntry,
    Entry,
    OperatorDescription,
    describe_manifest,
    live_bytes_of,
    operators_of,
)
from stateflow.outputs import EventTime, Inline, Offset, OptionalId, OptionalText, Timestamp
from stateflow.ui.answers import Answer, Freshness, Handler, Refused, freshness_of, state_of, version_of
from stateflow.ui.openapi import Endpoint, Parameter
from stateflow.ui.requests import FLAG, KIND, LIMIT, PAGE, TIMES, Call, comparable_time, to_cursor, wrong_value
from stateflow.ui.roots import Reading, Roots
from stateflow.ui.snapshots import Point, PointKey, Snapshot

_GENERATION = Parameter("generation", {"type": "integer", "minimum": 1}, "generation of the run")
_POINTS = (
    KIND,
    Parameter("status", {"enum": ["completed", "aborted"]}, "whether the checkpoint was completed"),
    Parameter("undone", FLAG, "whether a restore has undone it"),
    Parameter("retained", FLAG, "whether the job keeps it"),
    _GENERATION,
    *TIMES,
)


@dataclass(frozen=True)
class SourceStatus:
    """A source at the newest checkpoint.

    Attributes:
        uid: the source.
        description: text about it, such as its path.
        offset: its position.
        watermark_at: its watermark; None before the first row, or without a watermark strategy.
        active_at: processing time of the last batch with rows of it; None without a watermark strategy.
        idle: whether it is idle and does not hold the watermark back; None without a watermark strategy.
    """

    uid: str
    description: OptionalText
    offset: Offset
    watermark_at: EventTime | None
    active_at: EventTime | None
    idle: bool | None


@dataclass(frozen=True)
class OperatorStatus:
    """An operator at a checkpoint.

    Attributes:
        description: its state.
        metrics: what it did in the batches of the checkpoint; None if that was not recorded.
    """

    description: Inline[OperatorDescription]
    metrics: OperatorMetrics | None


def operators_at(manifest: Manifest | None, record: CheckpointRecord | None) -> tuple[OperatorStatus, ...]:
    """Returns the operators at a checkpoint; none if the job no longer keeps it."""
    metrics = record.operators if record else {}
    found = operators_of(manifest) if manifest else ()
    return tuple(OperatorStatus(each, metrics.get(each.uid)) for each in found)


def sources_at(manifest: Manifest | None) -> tuple[SourceStatus, ...]:
    """Returns the sources at a checkpoint; none if the job no longer keeps it."""
    if manifest is None:
        return ()
    watermarks = {each.uid: each for each in manifest.watermarks}
    found = ((position, watermarks.get(position.uid)) for position in manifest.sources)
    return tuple(
        SourceStatus(
            uid=position.uid,
            description=position.description,
            offset=position.offset,
            watermark_at=mark.watermark if mark else None,
            active_at=mark.active_at if mark else None,
            idle=mark.idle if mark else None,
        )
        for position, mark in found
    )


@dataclass(frozen=True)
class CheckpointSummary:
    """A checkpoint in a list, whose size does not grow with operators and subtasks: its details have these.

    Attributes:
        kind: ``checkpoint``.
        checkpoint_id: its id; 0 for an aborted checkpoint.
        previous_checkpoint_id: for an aborted checkpoint, the id of the checkpoint before it; 0 otherwise.
        generation: generation of its run.
        run: number of its run.
        ordinal: number of its barrier in that generation.
        branch: generation of the restore that began its branch; 0 for the first one.
        status: ``completed`` or ``aborted``.
        failure: why it was aborted.
        ended_at: when it completed or failed.
        duration_ms: duration of its batches, plus the time from its barrier to its end.
        rows_in: rows that it has read.
        increment_bytes: bytes of state written for it.
        full_bytes: bytes of all state that it refers to.
        live_bytes: about the bytes of its keyed state without entries that were overwritten or deleted; None if they
            are not known.
        undone: whether a restore has undone it; None for an aborted checkpoint.
        retained: whether the job keeps it, so that it can be restored.
        integrity: whether its record is as it was recorded.
    """

    kind: Literal["checkpoint"]
    checkpoint_id: OptionalId
    previous_checkpoint_id: OptionalId
    generation: int
    run: int
    ordinal: int
    branch: OptionalId
    status: str
    failure: OptionalText
    ended_at: Timestamp
    duration_ms: float
    rows_in: int
    increment_bytes: int
    full_bytes: int
    live_bytes: int | None
    undone: bool | None
    retained: bool
    integrity: Integrity | None


def summary_of(entry: CheckpointEntry) -> CheckpointSummary:
    """Returns what a list has of a checkpoint."""
    record = entry.record
    return CheckpointSummary(
        kind=entry.kind,
        checkpoint_id=entry.checkpoint_id,
        previous_checkpoint_id=entry.previous_checkpoint_id,
        generation=record.generation,
        run=record.run,
        ordinal=record.ordinal,
        branch=record.branch,
        status=record.status,
        failure=record.failure,
        ended_at=record.ended_at,
        duration_ms=record.duration_ms,
        rows_in=record.rows_in,
        increment_bytes=record.increment_bytes,
        full_bytes=record.full_bytes,
        live_bytes=live_bytes_of(record.operators.values()),
        undone=entry.undone,
        retained=entry.retained,
        integrity=entry.integrity,
    )


@dataclass(frozen=True)
class PointPage:
    """A page of the points of a job, newest first: checkpoints, also aborted ones, and restores.

    Attributes:
        points: the points.
        next_cursor: `cursor` of the next page; empty if this is the last one.
        freshness: how current this is.
    """

    points: tuple[CheckpointSummary | ActionEntry, ...]
    next_cursor: OptionalText
    freshness: Inline[Freshness]


@dataclass(frozen=True)
class PointFilter:
    """Which points a page has; None for all.

    Attributes:
        kind: kind of the entry, such as ``checkpoint`` or ``restore``.
        status: ``completed`` or ``aborted``.
        undone: whether a restore has undone it.
        retained: whether the job keeps it.
        generation: generation of the run; of a restore, its own.
        since: earliest time at which it ended, as `comparable_time` returns it.
        until: latest time at which it ended.
    """

    kind: str | None = None
    status: str | None = None
    undone: bool | None = None
    retained: bool | None = None
    generation: int | None = None
    since: str | None = None
    until: str | None = None

    def takes(self, snapshot: Snapshot, point: Point) -> bool:
        """Returns whether a page has the point."""
        record = point.record
        kind = "checkpoint" if isinstance(record, CheckpointRecord) else record.kind
        status = record.status if isinstance(record, CheckpointRecord) else COMPLETED
        if self.kind not in (None, kind) or self.status not in (None, status):
            return False
        if self.generation not in (None, generation_of(record)) or not self._is_within(record.ended_at):
            return False
        # An aborted checkpoint is neither undone nor not undone, and never retained.
        if self.undone is not None and (point.is_aborted or snapshot.is_undone(point) != self.undone):
            return False
        return self.retained is None or self.retained == snapshot.is_retained(point)

    def _is_within(self, ended_at: str) -> bool:
        if self.since is None and self.until is None:
            return True
        ended = comparable_time(ended_at)
        return (self.since is None or ended >= self.since) and (self.until is None or ended <= self.until)


def point_page(
    reading: Reading[Snapshot], wanted: PointFilter, before: PointKey | None, limit: int
) -> tuple[PointPage, PointKey | None]:
    """Returns the newest points before a place, and the place of the last one if there are more.

    Args:
        reading: the job root.
        wanted: which points.
        before: the place of the last point of the page before; None for the first page.
        limit: largest number of points.
    """
    snapshot = reading.value
    found: list[CheckpointSummary | ActionEntry] = []
    last: PointKey | None = None
    for point in reversed(snapshot.points) if snapshot else ():
        if before is not None and point.key >= before:
            continue
        assert snapshot is not None
        if not wanted.takes(snapshot, point):
            continue
        if len(found) == limit:
            return PointPage(tuple(found), "", freshness_of(snapshot, reading)), last
        entry = snapshot.entry_of(point)
        found.append(summary_of(entry) if isinstance(entry, CheckpointEntry) else entry)
        last = point.key
    return PointPage(tuple(found), "", freshness_of(snapshot, reading)), None


@dataclass(frozen=True)
class SubtaskDetails:
    """The keyed state of a subtask.

    Attributes:
        subtask: its number.
        first_key_group: the first key group that it owned.
        last_key_group: the last one.
        backend: the backend that wrote the state.
        files: number of files.
        size_bytes: size of the state.
        live_bytes: about the size of the entries that were neither overwritten nor deleted; None if it is not known.
        state_entries: number of entries; None if it is not known.
        live_entries: at least so many entries were neither overwritten nor deleted; None if that is not known.
    """

    subtask: int
    first_key_group: int
    last_key_group: int
    backend: str
    files: int
    size_bytes: int
    live_bytes: int | None
    state_entries: int | None
    live_entries: int | None


@dataclass(frozen=True)
class OperatorDetails:
    """An operator at a checkpoint, with its subtasks.

    Attributes:
        status: the operator.
        parallelism: number of subtasks.
        key_names: names of the key columns.
        key_types: their types.
        watermark_at: its watermark; None before the first one.
        subtask_details: the subtasks that have keyed state.
    """

    status: Inline[OperatorStatus]
    parallelism: int
    key_names: tuple[str, ...]
    key_types: tuple[str, ...]
    watermark_at: EventTime | None
    subtask_details: tuple[SubtaskDetails, ...]


@dataclass(frozen=True)
class CheckpointPage:
    """A checkpoint.

    Attributes:
        entry: its entry in the history, or the entry of the restore that made it; None if the history no longer has it.
        description: its positions and operators; None if the job no longer keeps it.
        operators: its operators with their subtasks; empty if the job no longer keeps it.
        sources: the sources at the checkpoint; empty if the job no longer keeps it.
        freshness: how current this is.
    """

    entry: Entry | None
    description: CheckpointDescription | None
    operators: tuple[OperatorDetails, ...]
    sources: tuple[SourceStatus, ...]
    freshness: Inline[Freshness]


def generation_of(record: Record) -> int:
    """Returns the generation of a checkpoint's run; for an action that claims the job, such as a restore, its own."""
    return record.generation if isinstance(record, CheckpointRecord) else record.seq


def find_point(snapshot: Snapshot, checkpoint_id: int) -> Entry | None:
    """Returns the entry of a completed checkpoint, or of the restore that made the checkpoint."""
    at = bisect_left(snapshot.points, checkpoint_id, key=lambda point: point.key.seq)
    found = itertools.takewhile(lambda point: point.key.seq == checkpoint_id, snapshot.points[at:])
    return next((snapshot.entry_of(point) for point in found if not point.is_aborted), None)


def _has_checkpoint(snapshot: Snapshot, checkpoint_id: int) -> bool:
    """Returns whether the job keeps a checkpoint, or its history has a record of it."""
    is_kept = snapshot.position is not None and checkpoint_id in snapshot.position.entries.refs
    return is_kept or find_point(snapshot, checkpoint_id) is not None


def checkpoint_page(
    reading: Reading[Snapshot], checkpoint_id: int, manifest: Reading[Manifest] | None, committed_at: str
) -> CheckpointPage | None:
    """Returns a checkpoint; None if neither the job nor its history has it.

    Args:
        reading: the job root.
        checkpoint_id: id of the checkpoint.
        manifest: its manifest; None if the job does not keep it.
        committed_at: when it was committed.
    """
    snapshot = reading.value
    if snapshot is None or snapshot.position is None:
        return None
    entry = find_point(snapshot, checkpoint_id)
    if entry is None and manifest is None:
        return None
    found = manifest.value if manifest else None
    record = entry.record if isinstance(entry, CheckpointEntry) else None
    readings: list[Reading[object]] = [reading, *([manifest] if manifest else [])]
    return CheckpointPage(
        entry=entry,
        description=describe_manifest(snapshot.position.head, checkpoint_id, found, committed_at) if found else None,
        operators=tuple(_operator_details(o, s) for o, s in _with_status(found, record)) if found else (),
        sources=sources_at(found),
        freshness=freshness_of(snapshot, *readings),
    )


def _with_status(manifest: Manifest, record: CheckpointRecord | None) -> Iterator[tuple[OperatorState, OperatorStatus]]:
    return zip(manifest.operators, operators_at(manifest, record), strict=True)


def _operator_details(operator: OperatorState, status: OperatorStatus) -> OperatorDetails:
    return OperatorDetails(
        status=status,
        parallelism=operator.parallelism,
        key_names=tuple(operator.key_names),
        key_types=tuple(operator.key_types),
        watermark_at=operator.watermark,
        subtask_details=tuple(
            SubtaskDetails(
                subtask=each.subtask,
                first_key_group=each.first_group,
                last_key_group=each.last_group,
                backend=each.backend,
                files=len(each.files),
                size_bytes=each.size_bytes,
                live_bytes=each.live_bytes,
                state_entries=each.entries,
                live_entries=each.live_entries,
            )
            for each in operator.subtasks
        ),
    )


def no_checkpoint(checkpoint_id: int) -> ConfigError:
    """Returns the error about a checkpoint that neither the job nor its history has."""
    hint = "the list of points has those that the history knows"
    return ConfigError("the checkpoint does not exist", hint=hint, checkpoint_id=checkpoint_id)


CHECKPOINT_ENDPOINTS = (
    Endpoint("jobs/{id}/points", "Points of a job, newest first", PointPage, (*PAGE, *_POINTS)),
    Endpoint("jobs/{id}/checkpoints/{checkpoint_id}", "A checkpoint with its operators and subtasks", CheckpointPage),
)


class CheckpointEndpoints:
    """Answers about checkpoints.

    Args:
        roots: follows the job roots.
    """

    def __init__(self, roots: Roots) -> None:
        self._roots = roots

    def handlers(self) -> dict[str, Handler]:
        """Returns what answers each endpoint, by its path."""
        return {"jobs/{id}/points": self._points, "jobs/{id}/checkpoints/{checkpoint_id}": self._checkpoint}

    async def _points(self, call: Call) -> Answer:
        before = call.cursor(PointKey)
        limit, generation = call.number(LIMIT), call.number(_GENERATION)
        status = call.query.get("status")
        if status not in (None, "completed", "aborted"):
            raise wrong_value("status", "completed or aborted")
        wanted = PointFilter(
            kind=call.query.get("kind"),
            status=status,
            undone=call.flag("undone"),
            retained=call.flag("retained"),
            generation=generation,
            since=call.time("since"),
            until=call.time("until"),
        )
        reading = await self._roots.read(call.job)
        assert limit is not None

        def make() -> PointPage:
            page, last = point_page(reading, wanted, before, limit)
            return PointPage(page.points, to_cursor(last), page.freshness)

        return Answer([version_of(call.job, reading)], make)

    async def _checkpoint(self, call: Call) -> Answer:
        job, checkpoint_id = call.job, call.id("checkpoint_id")
        reading, snapshot, position = await self._roots.read_position(job, lambda s: _has_checkpoint(s, checkpoint_id))
        ref = position.entries.refs.get(checkpoint_id)
        manifest = await self._roots.read_manifest(job, snapshot, ref) if ref else None
        at = ref.at if ref else ""

        def make() -> CheckpointPage:
            page = checkpoint_page(reading, checkpoint_id, manifest, at)
            if page is None:
                raise Refused(404, no_checkpoint(checkpoint_id))
            return page

        return Answer([version_of(job, reading), *([state_of(manifest)] if manifest else [])], make)
