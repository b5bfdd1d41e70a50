"""The objects that the endpoints of the pages return, made of snapshots of job roots, without reading a storage.

An object never depends on the time of the request: what follows from it, such as the age of a checkpoint, is computed
where it is shown. So an answer stays valid as long as the snapshots are the same.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from stateflow.checkpoint.history import FAILED_START, FAILURE, RUN_START, Integrity
from stateflow.checkpoint.log.documents import (
    COMPLETED,
    SAVEPOINT_RECORD,
    ActionRecord,
    CheckpointRecord,
    Manifest,
    OperatorMetrics,
    OperatorState,
    seq_of,
)
from stateflow.checkpoint.log.transitions import pending_of
from stateflow.checkpoint.restore.plan_document import (
    Caution,
    RestorePlan,
    cautions,
    describe_replay,
    difference_of_texts,
    expected_plan_of,
)
from stateflow.clock import parse_timestamp
from stateflow.operations.checkpoints import (
    ActionEntry,
    CheckpointDescription,
    CheckpointEntry,
    Entry,
    OperatorDescription,
    describe_manifest,
    operators_of,
)
from stateflow.operations.garbage import RetentionEffect
from stateflow.operations.health import Health, HealthFacts, health_facts, health_of
from stateflow.operations.job_savepoints import SavepointDescription, SinkPosition
from stateflow.operations.restore_previews import KnownHistory, PlanCheck, RestorePreview
from stateflow.operations.savepoint_differences import SavepointDifference
from stateflow.operations.status import JobDescription, RunFailure
from stateflow.outputs import (
    ErrorReport,
    EventTime,
    Inline,
    Offset,
    OptionalId,
    OptionalText,
    Person,
    Timestamp,
    error_report,
    utc_text,
)
from stateflow.runtime.backlog import JobBacklog
from stateflow.runtime.planning.explain import JobExplanation
from stateflow.ui.roots import CatalogJob, Reading, RootSearch
from stateflow.ui.snapshots import Action, Point, PointKey, Snapshot

NEWEST_SIZES = 30
"""Checkpoints whose size a list of jobs has, for a trend line."""

# -- health -----------------------------------------------------------------------------------------------------------


def _health(snapshot: Snapshot, awaits_approval: bool | None) -> Health:
    position = snapshot.position
    if position is None:
        return health_of(HealthFacts(awaits_approval=awaits_approval))
    records, generation = [a.record for a in snapshot.actions], position.head.entry.generation
    # Checkpoints of earlier runs have numbers below that of the newest run's CLAIM.
    at = bisect_left(snapshot.points, generation, key=lambda point: point.key.seq)
    before = (point.record for point in reversed(snapshot.points[:at][-_LOOKED_BACK:]))
    facts = health_facts(
        position.description,
        position.head,
        failures={record.seq for record in records if record.kind in (FAILURE, FAILED_START)},
        before=next((record.generation for record in before if isinstance(record, CheckpointRecord)), 0),
        actions=records,
    )
    return health_of(replace(facts, awaits_approval=awaits_approval))


_LOOKED_BACK = 100
"""Points among which one of the run before is looked for."""


# -- jobs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Freshness:
    """How current an object is.

    Attributes:
        history_complete: whether all records of the history were read. Otherwise older ones are missing, until they
            are read.
        history_truncated: whether the history has older records than those that are ever read.
        last_read_at: if the job root cannot be read now, when it was last read; null if it is current, and before the
            first time.
        problem: why the job root cannot be read now; null if it is current.
    """

    history_complete: bool
    history_truncated: bool
    last_read_at: Timestamp
    problem: ErrorReport | None


def freshness_of(snapshot: Snapshot | None, *readings: Reading[object]) -> Freshness:
    """Returns how current an object is that was made of a snapshot and of these readings."""
    failed = next((each for each in readings if each.problem is not None), None)
    complete, truncated = (snapshot.complete, snapshot.truncated) if snapshot else (False, False)
    if failed is None or failed.problem is None:
        return Freshness(complete, truncated, "", None)
    return Freshness(complete, truncated, failed.read_at, error_report(failed.problem))


@dataclass(frozen=True)
class StateSize:
    """The size of a job's state at a checkpoint.

    Attributes:
        checkpoint_id: id of the checkpoint.
        ended_at: when it completed.
        full_bytes: bytes of all state that it refers to.
    """

    checkpoint_id: int
    ended_at: Timestamp
    full_bytes: int


@dataclass(frozen=True)
class LastSavepoint:
    """The newest savepoint of a job that was not disposed of, according to its history.

    Attributes:
        name: its name.
        checkpoint_id: id of the checkpoint that it was made of.
        made_at: when it was made.
        by: who requested it, or approved it.
        requested_by: who requested it, if another person approved it.
        origin: why it was made, such as ``manual``, ``stop`` or ``periodic``.
        path: URI of its folder.
        size_bytes: size of its files.
    """

    name: str
    checkpoint_id: OptionalId
    made_at: Timestamp
    by: Person
    requested_by: Person
    origin: OptionalText
    path: OptionalText
    size_bytes: int | None


@dataclass(frozen=True)
class JobRow:
    """A job in the list of jobs.

    Attributes:
        id: its id in addresses of the pages.
        job_root: URI of the job root.
        job: name of the job; null if the job root was never read.
        job_uuid: uuid of the job.
        health: its state in a word; null if the job root was never read.
        generation: sequence number of the newest CLAIM; 0 if no run has begun.
        run: number of the newest run that has a checkpoint, counted from the job's first.
        checkpoint_id: the checkpoint that the next run starts from; 0 before the first one.
        label: label of the checkpoint or savepoint that the next run starts from.
        committed_at: when that checkpoint was committed.
        full_bytes: bytes of all state of the newest checkpoint; None without one.
        state_sizes: sizes of the newest checkpoints that no restore has undone, oldest first.
        backlog: how much input waits; None if it is not known.
        backlog_unknown: why that is not known; empty otherwise.
        savepoint: the newest savepoint; None without one. While `history_complete` is false, an older one may exist.
        failure: the error that the newest run ended with; None if it recorded none.
        failed_start: the error of a later run that has not begun; None without one.
        freshness: how current this is.
    """

    id: str
    job_root: str
    job: OptionalText
    job_uuid: OptionalText
    health: Health | None
    generation: OptionalId
    run: int | None
    checkpoint_id: OptionalId
    label: OptionalText
    committed_at: Timestamp
    full_bytes: int | None
    state_sizes: tuple[StateSize, ...]
    backlog: JobBacklog | None
    backlog_unknown: OptionalText
    savepoint: LastSavepoint | None
    failure: RunFailure | None
    failed_start: RunFailure | None
    freshness: Inline[Freshness]


@dataclass(frozen=True)
class JobList:
    """The jobs that the caller may read.

    Attributes:
        jobs: a row for each, ordered by id.
        searches: the folders and prefixes where job roots are looked for; of a DAG, its job roots that are not known.
    """

    jobs: tuple[JobRow, ...]
    searches: tuple[RootSearch, ...]


class DagRole(StrEnum):
    """What a DAG does with a job."""

    RUN = "run"
    SAVEPOINT = "savepoint"
    RETENTION = "retention"
    RECOVERY = "recovery"
    PARTITIONS = "partitions"


@dataclass(frozen=True)
class FamilyDag:
    """A DAG that works on a job.

    Attributes:
        dag_id: its id.
        role: what it does with the job.
        may_trigger: whether the caller may trigger it.
        may_pause: whether the caller may pause it and unpause it.
        may_answer: whether the caller may answer its questions, such as approvals, if they are not assigned to others.
        is_paused: whether it is paused.
    """

    dag_id: str
    role: DagRole
    may_trigger: bool
    may_pause: bool
    may_answer: bool
    is_paused: bool


@dataclass(frozen=True)
class JobFamily:
    """The DAGs that work on a job.

    Attributes:
        dags: those that the caller may read, ordered by id.
        may_read_state: whether the caller may read values of the job's state.
    """

    dags: tuple[FamilyDag, ...]
    may_read_state: bool


_NO_SOURCES = "only the job file has the sources: stateflow status --job JOB.py measures it"


def job_row(job: CatalogJob, reading: Reading[Snapshot], awaits_approval: bool | None) -> JobRow:
    """Returns the row of a job.

    Args:
        job: the job.
        reading: its job root.
        awaits_approval: see `Catalog.awaits_approval`.
    """
    snapshot = reading.value
    position = snapshot.position if snapshot else None
    checkpoint = position.head.checkpoint if position else None
    description = position.description if position else None
    sizes = tuple(reversed(list(_sizes(snapshot)))) if snapshot else ()
    newest = _newest_checkpoint(snapshot) if snapshot else None
    return JobRow(
        id=job.id,
        job_root=job.job_root,
        job=snapshot.root.job.job if snapshot else "",
        job_uuid=snapshot.root.job.job_uuid if snapshot else "",
        health=_health(snapshot, awaits_approval) if snapshot else None,
        generation=description.generation if description else 0,
        run=newest.record.run if newest and isinstance(newest.record, CheckpointRecord) else None,
        checkpoint_id=description.checkpoint_id if description else 0,
        label=description.label if description else "",
        committed_at=checkpoint.at if checkpoint else "",
        full_bytes=position.manifest.full_bytes if position and position.manifest else None,
        state_sizes=sizes,
        backlog=None,
        backlog_unknown=_NO_SOURCES,
        savepoint=last_savepoint(snapshot) if snapshot else None,
        failure=description.failure if description else None,
        failed_start=description.failed_start if description else None,
        freshness=freshness_of(snapshot, reading),
    )


def _sizes(snapshot: Snapshot) -> Iterator[StateSize]:
    found = 0
    for point in reversed(snapshot.points):
        record = point.record
        if found == NEWEST_SIZES:
            return
        if isinstance(record, CheckpointRecord) and record.status == COMPLETED and not snapshot.is_undone(point):
            found += 1
            yield StateSize(record.checkpoint_id, record.ended_at, record.full_bytes)


def _newest_checkpoint(snapshot: Snapshot) -> Point | None:
    """Returns the newest completed checkpoint that has a record."""
    points = reversed(snapshot.points)
    return next((p for p in points if isinstance(p.record, CheckpointRecord) and not p.is_aborted), None)


def last_savepoint(snapshot: Snapshot) -> LastSavepoint | None:
    """Returns the newest savepoint that was not disposed of."""
    disposed = {a.record.text("savepoint_id") for a in snapshot.actions if a.record.kind == "dispose"}
    for action in reversed(snapshot.actions):
        record = action.record
        if record.kind == SAVEPOINT_RECORD and (record.text("savepoint_id") or action.source) not in disposed:
            return LastSavepoint(
                name=record.text("savepoint"),
                checkpoint_id=record.seq,
                made_at=record.ended_at,
                by=record.by,
                requested_by=record.requested_by,
                origin=record.text("origin"),
                path=record.text("path"),
                size_bytes=record.size_bytes,
            )
    return None


# -- state of a job ---------------------------------------------------------------------------------------------------


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


@dataclass(frozen=True)
class RunSummary:
    """A run, as far as the history has records of it.

    Attributes:
        generation: generation of the run.
        run: its number, counted from the job's first; None if that was not recorded.
        driver: host and process id of its driver.
        reason: who or what requested it.
        requested_by: who has started it; null if its start was not recorded.
        stateflow: version of stateflow that ran it.
        started_at: when it was ready for its first batch.
        startup_ms: time from its launch until then; None if it was not recorded.
        base_checkpoint_id: the checkpoint that it continued from; null for none, and if its start was not recorded.
        parallelism: its parallelism; None if its start was not recorded.
        job_file: name of its job file.
        job_file_sha256: SHA-256 of its job file.
        graph_sha256: SHA-256 of its stored graph.
        first_checkpoint_id: its oldest checkpoint in the history.
        last_checkpoint_id: its newest checkpoint.
        checkpoints: number of its completed checkpoints.
        aborted: number of its aborted checkpoints.
        rows_in: rows that it has read.
        first_triggered_at: when the last batch of its first checkpoint began.
        last_ended_at: when its newest checkpoint, or the run with an error, ended.
        failure: the error that it ended with; None if it recorded none.
    """

    generation: int
    run: int | None
    driver: OptionalText
    reason: OptionalText
    requested_by: Person
    stateflow: OptionalText
    started_at: Timestamp
    startup_ms: float | None
    base_checkpoint_id: OptionalId
    parallelism: int | None
    job_file: OptionalText
    job_file_sha256: OptionalText
    graph_sha256: OptionalText
    first_checkpoint_id: OptionalId
    last_checkpoint_id: OptionalId
    checkpoints: int
    aborted: int
    rows_in: int
    first_triggered_at: Timestamp
    last_ended_at: Timestamp
    failure: RunFailure | None


@dataclass(frozen=True)
class PendingSink:
    """Output of a checkpoint that is not known to be published.

    Attributes:
        uid: the sink.
        checkpoint_id: the checkpoint.
    """

    uid: str
    checkpoint_id: OptionalId


@dataclass(frozen=True)
class JobState:
    """The state of a job.

    Attributes:
        row: the job as in the list of jobs.
        description: its status; None if no run has begun.
        newest: the entry of the newest checkpoint; None without one.
        runs: the newest runs, newest first.
        operators: the operators at the newest checkpoint.
        sources: the sources at the newest checkpoint.
        sinks: the position of each sink's table, by uid.
        pending: output that is not known to be published.
        undone_count: number of the checkpoints in the history that restores have undone.
        history_changed: the error about records of the history that are not as the log recorded them; None if all are.
    """

    row: Inline[JobRow]
    description: JobDescription | None
    newest: CheckpointEntry | None
    runs: tuple[RunSummary, ...]
    operators: tuple[OperatorStatus, ...]
    sources: tuple[SourceStatus, ...]
    sinks: dict[str, SinkPosition]
    pending: tuple[PendingSink, ...]
    undone_count: int
    history_changed: ErrorReport | None


_NEWEST_RUNS = 20


def job_state(job: CatalogJob, reading: Reading[Snapshot], awaits_approval: bool | None) -> JobState:
    """Returns the state of a job; the arguments are those of `job_row`."""
    snapshot, row = reading.value, job_row(job, reading, awaits_approval)
    if snapshot is None or snapshot.position is None:
        return JobState(row, None, None, (), (), (), {}, (), 0, None)
    position = snapshot.position
    head, manifest = position.head.entry, position.manifest
    point = _newest_checkpoint(snapshot)
    entry = snapshot.entry_of(point) if point else None
    newest = entry if isinstance(entry, CheckpointEntry) else None
    changed = snapshot.check.error()
    return JobState(
        row=row,
        description=position.description,
        newest=newest,
        runs=tuple(reversed(runs_of(snapshot)))[:_NEWEST_RUNS],
        operators=_operators(manifest, newest.record if newest else None),
        sources=_sources(manifest),
        sinks={
            uid: SinkPosition(s.table_id, s.version if s.version >= 0 else None, s.checkpoint_id)
            for uid, s in sorted(head.published.items())
        },
        pending=tuple(PendingSink(each.sink, each.checkpoint_id) for each in pending_of(position.head)),
        undone_count=sum(map(snapshot.is_undone, snapshot.points)) if head.ancestry.restores else 0,
        history_changed=error_report(changed) if changed else None,
    )


def _operators(manifest: Manifest | None, record: CheckpointRecord | None) -> tuple[OperatorStatus, ...]:
    metrics = record.operators if record else {}
    found = operators_of(manifest) if manifest else ()
    return tuple(OperatorStatus(each, metrics.get(each.uid)) for each in found)


def _sources(manifest: Manifest | None) -> tuple[SourceStatus, ...]:
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


def runs_of(snapshot: Snapshot) -> list[RunSummary]:
    """Returns the runs that the history has records of, oldest first."""
    records: dict[int, list[CheckpointRecord]] = {}
    for point in snapshot.points:
        if isinstance(point.record, CheckpointRecord):
            records.setdefault(point.record.generation, []).append(point.record)
    failures, starts = (
        {a.record.seq: a.record for a in snapshot.actions if a.record.kind == kind} for kind in (FAILURE, RUN_START)
    )
    generations = sorted(records.keys() | failures.keys() | starts.keys())
    return [_run(each, records.get(each, []), failures.get(each), starts.get(each)) for each in generations]


_NO_START = ActionRecord(seq=0, kind=RUN_START, ended_at="", by="")


def _run(
    generation: int, records: Sequence[CheckpointRecord], failed: ActionRecord | None, begun: ActionRecord | None
) -> RunSummary:
    completed = [record for record in records if record.status == COMPLETED]
    newest, start = records[-1] if records else None, begun or _NO_START
    failure = RunFailure(failed.seq, failed.ended_at, failed.text("code"), failed.reason) if failed else None
    return RunSummary(
        generation=generation,
        run=newest.run if newest else start.number("run"),
        driver=newest.driver if newest else start.text("driver"),
        reason=newest.reason if newest else start.reason,
        requested_by=start.by,
        stateflow=start.text("stateflow"),
        started_at=start.ended_at,
        startup_ms=start.duration_ms,
        base_checkpoint_id=start.number("checkpoint_id") or 0,
        parallelism=start.number("parallelism"),
        job_file=start.text("job_file"),
        job_file_sha256=start.text("job_file_sha256"),
        graph_sha256=start.text("graph_sha256"),
        first_checkpoint_id=completed[0].checkpoint_id if completed else 0,
        last_checkpoint_id=completed[-1].checkpoint_id if completed else 0,
        checkpoints=len(completed),
        aborted=len(records) - len(completed),
        rows_in=sum(record.rows_in for record in completed),
        first_triggered_at=records[0].triggered_at if records else "",
        last_ended_at=failed.ended_at if failed else newest.ended_at if newest else "",
        failure=failure,
    )


def find_starts(snapshot: Snapshot, generation: int) -> tuple[ActionRecord | None, ActionRecord | None]:
    """Returns the record of a run's start, and that of the run before it; None for one that was not recorded."""
    starts = [a.record for a in snapshot.actions if a.record.kind == RUN_START and a.record.seq <= generation]
    starts.sort(key=lambda record: record.seq)
    own = starts.pop() if starts and starts[-1].seq == generation else None
    return own, starts[-1] if starts else None


@dataclass(frozen=True)
class RunFiles:
    """The job files of a run and of the run before it; None for one that is not stored."""

    own: bytes | None
    previous: bytes | None


@dataclass(frozen=True)
class RunPage:
    """A run with its job file.

    Attributes:
        run: the run.
        job_file: the text of its job file; None if it is not stored: it has more than 1 MiB, or the run's start
            was not recorded, or the history no longer has it.
        previous_job_file_sha256: SHA-256 of the job file of the run before it; null if it is not known.
        job_file_difference: a unified diff against that job file, of at most 64 kB; empty if they are equal, None if it
            is not known.
        freshness: how current this is.
    """

    run: RunSummary
    job_file: str | None
    previous_job_file_sha256: OptionalText
    job_file_difference: str | None
    freshness: Inline[Freshness]


def run_page(reading: Reading[Snapshot], generation: int, files: Reading[RunFiles]) -> RunPage | None:
    """Returns a run; None if the history has no records of it."""
    snapshot, found = reading.value, files.value or RunFiles(None, None)
    run = next((each for each in runs_of(snapshot) if each.generation == generation), None) if snapshot else None
    if snapshot is None or run is None:
        return None
    _, before = find_starts(snapshot, generation)
    previous = before.text("job_file_sha256") if before else ""
    difference = None
    if previous and previous == run.job_file_sha256:
        difference = ""
    elif before is not None and found.own is not None and found.previous is not None:
        names = f"{before.text('job_file')} of generation {before.seq}", f"{run.job_file} of generation {generation}"
        difference = difference_of_texts(found.previous, found.own, names)
    text = None if found.own is None else found.own.decode(errors="replace")
    return RunPage(run, text, previous, difference, freshness_of(snapshot, reading, files))


# -- points -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PointPage:
    """A page of the points of a job, newest first: checkpoints, also aborted ones, and restores.

    Attributes:
        points: the points.
        next_cursor: `cursor` of the next page; empty if this is the last one.
        freshness: how current this is.
    """

    points: tuple[Entry, ...]
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
        generation = record.generation if isinstance(record, CheckpointRecord) else record.seq
        if self.kind not in (None, kind) or self.status not in (None, status):
            return False
        if self.generation not in (None, generation) or not self._is_within(record.ended_at):
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


def comparable_time(text: str) -> str:
    """Returns a stored time as a text that compares as the time does; an empty text if it is not valid."""
    try:
        return utc_text(parse_timestamp(text))
    except (ValueError, OverflowError):
        return ""


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
    found: list[Entry] = []
    last: PointKey | None = None
    for point in reversed(snapshot.points) if snapshot else ():
        if before is not None and point.key >= before:
            continue
        assert snapshot is not None
        if not wanted.takes(snapshot, point):
            continue
        if len(found) == limit:
            return PointPage(tuple(found), "", freshness_of(snapshot, reading)), last
        found.append(snapshot.entry_of(point))
        last = point.key
    return PointPage(tuple(found), "", freshness_of(snapshot, reading)), None


# -- timeline ---------------------------------------------------------------------------------------------------------


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


def timeline_page(reading: Reading[Snapshot], limit: int) -> TimelinePage:
    """Returns the newest records of checkpoints, and as many of actions, of a job."""
    snapshot = reading.value
    if snapshot is None or snapshot.position is None:
        return TimelinePage((), (), (), (), False, freshness_of(snapshot, reading))
    checkpoints = [p for p in snapshot.points if isinstance(p.record, CheckpointRecord)]
    entries = (snapshot.entry_of(p) for p in checkpoints[-limit:])
    points = tuple(_timeline_point(each) for each in entries if isinstance(each, CheckpointEntry))
    # The start of a run is in the summary of the run.
    actions = [each for each in snapshot.actions if each.record.kind != RUN_START]
    oldest = points[0].generation if points and len(checkpoints) > limit else 0
    return TimelinePage(
        runs=tuple(run for run in runs_of(snapshot) if run.generation >= oldest),
        branches=_branches(snapshot),
        checkpoints=points,
        actions=tuple(action_entries(snapshot, actions[-limit:])),
        older=len(checkpoints) > limit or len(actions) > limit or snapshot.truncated,
        freshness=freshness_of(snapshot, reading),
    )


def action_entries(snapshot: Snapshot, actions: Iterable[Action]) -> Iterator[ActionEntry]:
    """Yields the entries of actions."""
    for action in actions:
        entry = snapshot.entry_of(action)
        if isinstance(entry, ActionEntry):
            yield entry


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
    restores = {p.record.seq: p.record for p in snapshot.points if isinstance(p.record, ActionRecord)}
    starts = [0, *sorted(restores)]
    ends = [*starts[1:], snapshot.position.head.entry.seq + 1]
    ids = [seq_of(p.record) for p in snapshot.points if not p.is_aborted]
    found = []
    for start, end in zip(starts, ends, strict=True):
        newest = max((each for each in ids if start <= each < end), default=None)
        is_last = end == ends[-1]
        live = is_last or (newest is not None and not snapshot.position.entries.is_undone(newest))
        base = restores[start].number("restored_checkpoint_id") or 0 if start else 0
        found.append(Branch(start, base, live))
    return tuple(found)


# -- checkpoints and savepoints ---------------------------------------------------------------------------------------


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
        state_entries: number of entries; None if it is not known.
    """

    subtask: int
    first_key_group: int
    last_key_group: int
    backend: str
    files: int
    size_bytes: int
    state_entries: int | None


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
        entry: its entry in the history, or that of the restore that made it; None if the history no longer has it.
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


def find_point(snapshot: Snapshot, checkpoint_id: int) -> Entry | None:
    """Returns the entry of a completed checkpoint, or of the restore that made the checkpoint."""
    at = bisect_left(snapshot.points, checkpoint_id, key=lambda point: point.key.seq)
    found = itertools.takewhile(lambda point: point.key.seq == checkpoint_id, snapshot.points[at:])
    return next((snapshot.entry_of(point) for point in found if not point.is_aborted), None)


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
        sources=_sources(found),
        freshness=freshness_of(snapshot, *readings),
    )


def _with_status(manifest: Manifest, record: CheckpointRecord | None) -> Iterator[tuple[OperatorState, OperatorStatus]]:
    return zip(manifest.operators, _operators(manifest, record), strict=True)


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
                size_bytes=sum(file.size for file in each.files) + len(each.inline or b""),
                state_entries=each.entries,
            )
            for each in operator.subtasks
        ),
    )


@dataclass(frozen=True)
class GraphPage:
    """The graph of a job, with what its operators and sources had at a checkpoint.

    Attributes:
        graph: the graph that the newest run has stored, without states; None if none is stored.
        generation: generation of that run.
        checkpoint_id: the checkpoint.
        operators: the operators at the checkpoint; empty if the job no longer keeps it.
        watermarks: the watermark of each operator that has one, by uid.
        sources: the sources at the checkpoint.
        freshness: how current this is.
    """

    graph: JobExplanation | None
    generation: OptionalId
    checkpoint_id: OptionalId
    operators: tuple[OperatorStatus, ...]
    watermarks: dict[str, EventTime]
    sources: tuple[SourceStatus, ...]
    freshness: Inline[Freshness]


def graph_page(
    reading: Reading[Snapshot], checkpoint_id: int, manifest: Reading[Manifest] | None, graph: Reading[StoredGraph]
) -> GraphPage:
    """Returns the graph of a job with a checkpoint.

    Args:
        reading: the job root.
        checkpoint_id: id of the checkpoint; 0 without one.
        manifest: its manifest; None if the job does not keep it.
        graph: the stored graph.
    """
    snapshot, found = reading.value, manifest.value if manifest else None
    entry = find_point(snapshot, checkpoint_id) if snapshot and checkpoint_id else None
    record = entry.record if isinstance(entry, CheckpointEntry) else None
    stored = graph.value or StoredGraph(None, 0)
    return GraphPage(
        graph=stored.graph,
        generation=stored.generation if stored.graph else 0,
        checkpoint_id=checkpoint_id,
        operators=_operators(found, record),
        watermarks={o.uid: o.watermark for o in found.operators if o.watermark is not None} if found else {},
        sources=_sources(found),
        freshness=freshness_of(snapshot, reading, graph, *([manifest] if manifest else [])),
    )


@dataclass(frozen=True)
class StoredGraph:
    """The graph that a run has stored; None if it cannot be read."""

    graph: JobExplanation | None
    generation: int


@dataclass(frozen=True)
class SavepointPage:
    """The savepoints of a job.

    Attributes:
        savepoints: the complete savepoints in the job root, newest first.
        older: whether the job root has more of them than are read.
        elsewhere: records of savepoints that were made outside of the job root and not disposed of, newest first.
        freshness: how current this is.
    """

    savepoints: tuple[SavepointDescription, ...]
    older: bool
    elsewhere: tuple[ActionEntry, ...]
    freshness: Inline[Freshness]


def savepoint_page(
    reading: Reading[Snapshot], listed: Reading[tuple[tuple[SavepointDescription, ...], bool]]
) -> SavepointPage:
    """Returns the savepoints of a job."""
    snapshot = reading.value
    found, older = listed.value or ((), False)
    elsewhere = tuple(reversed(list(action_entries(snapshot, _elsewhere(snapshot))))) if snapshot else ()
    return SavepointPage(found, older, elsewhere, freshness_of(snapshot, reading, listed))


def _elsewhere(snapshot: Snapshot) -> Iterator[Action]:
    own = f"{snapshot.root.storage.uri.rstrip('/')}/"
    disposed = {a.record.text("savepoint_id") for a in snapshot.actions if a.record.kind == "dispose"}
    for action in snapshot.actions:
        record = action.record
        is_kept = record.kind == SAVEPOINT_RECORD and record.text("savepoint_id") not in disposed
        if is_kept and not (record.text("path") or own).startswith(own):
            yield action


# -- restore ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RestorePlanPage:
    """The plan of a restore, as far as it is known without the job file.

    Attributes:
        plan: the plan; None if the graph of no run is stored. Its `job_file`, `code_hash` and what only tables and
            sources tell are null.
        cautions: what to read before it is executed, the most severe first.
        replay: what happens to input and output since the target, in a few sentences; empty without a plan.
        checks: the conditions of the restore.
        expected_plan: the parameter of the recovery DAG with which the plan that is made with the job file is compared
            with this one; empty without a plan.
        graph_known: whether the plan is made with the stored graph of a run.
        generation: generation of that run.
        freshness: how current this is.
    """

    plan: RestorePlan | None
    cautions: tuple[Caution, ...]
    replay: OptionalText
    checks: tuple[PlanCheck, ...]
    expected_plan: OptionalText
    graph_known: bool
    generation: OptionalId
    freshness: Inline[Freshness]


def restore_plan_page(reading: Reading[Snapshot], preview: Reading[RestorePreview]) -> RestorePlanPage:
    """Returns the plan of a restore with what a reader needs beside it."""
    found = preview.value
    assert found is not None
    plan = found.plan
    return RestorePlanPage(
        plan=plan,
        cautions=tuple(cautions(plan)) if plan else (),
        replay=describe_replay(plan) if plan else "",
        checks=found.checks,
        expected_plan=expected_plan_of(plan) if plan else "",
        graph_known=plan is not None,
        generation=found.generation,
        freshness=freshness_of(reading.value, reading, preview),
    )


def history_of(snapshot: Snapshot) -> KnownHistory:
    """Returns the records of a job's history."""
    checkpoints = [p.record for p in snapshot.points if isinstance(p.record, CheckpointRecord)]
    return KnownHistory(checkpoints, [action.record for action in snapshot.actions])


# -- retention and comparison -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RetentionPreview:
    """What a retention would delete now.

    Attributes:
        effect: the checkpoints and savepoints.
        freshness: how current this is.
    """

    effect: Inline[RetentionEffect]
    freshness: Inline[Freshness]


def retention_preview(reading: Reading[Snapshot], effect: Reading[RetentionEffect]) -> RetentionPreview:
    """Returns what a retention would delete."""
    assert effect.value is not None
    return RetentionPreview(effect.value, freshness_of(reading.value, reading, effect))


@dataclass(frozen=True)
class SavepointDiff:
    """Two savepoints of a job, compared without reading state.

    Attributes:
        difference: both savepoints and their operators.
        freshness: how current this is.
    """

    difference: Inline[SavepointDifference]
    freshness: Inline[Freshness]


def savepoint_diff(reading: Reading[Snapshot], difference: Reading[SavepointDifference]) -> SavepointDiff:
    """Returns how two savepoints differ."""
    assert difference.value is not None
    return SavepointDiff(difference.value, freshness_of(reading.value, reading, difference))
