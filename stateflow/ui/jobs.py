"""The jobs: the list of them, and the state of one."""

from __future__ import annotations

import shlex
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from stateflow.checkpoint.history import FAILED_START, FAILURE, Integrity
from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.documents import COMPLETED, CheckpointRecord, SinkMetrics
from stateflow.checkpoint.log.transitions import pending_of
from stateflow.operations.checkpoints import ActionEntry, CheckpointEntry, live_bytes_of
from stateflow.operations.health import Health, HealthFacts, health_facts, health_of
from stateflow.operations.job_savepoints import SinkPosition
from stateflow.operations.status import JobDescription, RunFailure
from stateflow.outputs import ErrorReport, Inline, OptionalId, OptionalText, Timestamp, error_report
from stateflow.runtime.backlog import NOT_MEASURED, JobBacklog
from stateflow.runtime.planning.explain import JobExplanation
from stateflow.ui.answers import Answer, Freshness, Handler, freshness_of, version_of
from stateflow.ui.checkpoints import OperatorStatus, SourceStatus, find_point, operators_at, sources_at
from stateflow.ui.openapi import Endpoint
from stateflow.ui.requests import CURSOR, Call, limit_parameter, to_cursor
from stateflow.ui.roots import Catalog, CatalogJob, Orchestration, Reading, Roots, RootSearch
from stateflow.ui.runs import RunSummary, StoredGraphs, runs_of
from stateflow.ui.savepoints import LastSavepoint, integrity_of_last_savepoint, last_savepoint
from stateflow.ui.snapshots import Extent, Snapshot

NEWEST_SIZES = 30
"""Checkpoints whose size a list of jobs has, for a trend line."""


def _health(snapshot: Snapshot, known: Orchestration) -> Health:
    position = snapshot.position
    if position is None:
        return health_of(HealthFacts(awaits_approval=known.awaits_approval, late=known.late))
    records, generation = [a.record for a in snapshot.actions], position.head.entry.generation
    # Checkpoints of earlier runs have lower numbers than the CLAIM of the newest run.
    at = bisect_left(snapshot.points, generation, key=lambda point: point.key.seq)
    before = (point.record for point in reversed(snapshot.points[:at][-_LOOKED_BACK:]))
    facts = health_facts(
        position.description,
        position.head,
        failures={record.seq for record in records if record.kind in (FAILURE, FAILED_START)},
        before=next((record.generation for record in before if isinstance(record, CheckpointRecord)), 0),
        actions=records,
        backlog=position.backlog,
    )
    return health_of(replace(facts, awaits_approval=known.awaits_approval, late=known.late))


_LOOKED_BACK = 100
"""Points among which one of the run before is looked for."""


@dataclass(frozen=True)
class StateSize:
    """The size of a job's state at a checkpoint.

    Attributes:
        checkpoint_id: id of the checkpoint.
        ended_at: when it completed.
        full_bytes: bytes of all state that it refers to.
        live_bytes: about the bytes of its keyed state without entries that were overwritten or deleted; None if they
            are not known.
    """

    checkpoint_id: int
    ended_at: Timestamp
    full_bytes: int
    live_bytes: int | None


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
        run: number of the run that made the checkpoint that the next run starts from, counted from the job's first.
        checkpoint_id: the checkpoint that the next run starts from; 0 before the first one.
        label: label of the checkpoint or savepoint that the next run starts from.
        committed_at: when that checkpoint was committed.
        full_bytes: bytes of all state of the newest checkpoint; None without one, and if its manifest is damaged.
        live_bytes: about the bytes of its keyed state without entries that were overwritten or deleted; None if they
            are not known.
        state_sizes: sizes of the newest checkpoints that no restore has undone, oldest first.
        backlog: how much input waited when a run last measured it, at `measured_at`; None if no run has since the
            newest restore.
        backlog_unknown: why that is not known; empty otherwise.
        next_run_at: when the orchestrator begins the next run; null if none is scheduled, and if it is not known.
        savepoint: the newest savepoint; None without one.
        savepoint_unknown: whether there may be a savepoint although `savepoint` is None: a record of one may have been
            deleted with the oldest part of the history, is damaged, or was not read yet.
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
    live_bytes: int | None
    state_sizes: tuple[StateSize, ...]
    backlog: JobBacklog | None
    backlog_unknown: OptionalText
    next_run_at: Timestamp
    savepoint: LastSavepoint | None
    savepoint_unknown: bool
    failure: RunFailure | None
    failed_start: RunFailure | None
    freshness: Inline[Freshness]


@dataclass(frozen=True)
class JobList:
    """The jobs that the caller may read.

    Attributes:
        jobs: a row for each, ordered by id.
        next_cursor: `cursor` of the next page; empty if this is the last one.
        searches: the folders and prefixes where job roots are looked for; of a DAG, its job roots that are not known.
    """

    jobs: tuple[JobRow, ...]
    next_cursor: OptionalText
    searches: tuple[RootSearch, ...]


_NOT_READ = "the job root has not been read"
"""Why the backlog is not known of a root that cannot be read, or is being read for the first time."""


def not_measured(job_root: str) -> str:
    """Returns why it is not known how much input waits at a job root, with the command that measures it."""
    command = shlex.join(["stateflow", "status", "--job-root", job_root, "--job", "JOB.py"])
    return f"{NOT_MEASURED}; this command measures it: {command}"


def job_row(job: CatalogJob, reading: Reading[Snapshot], known: Orchestration) -> JobRow:
    """Returns the row of a job.

    Args:
        job: the job.
        reading: its job root.
        known: what the orchestrator knows of it.
    """
    snapshot = reading.value
    position = snapshot.position if snapshot else None
    checkpoint = position.head.checkpoint if position else None
    description = position.description if position else None
    backlog = position.backlog.backlog if position and position.backlog else None
    operators = position.manifest.operators if position and position.manifest else []
    sizes = tuple(reversed(list(_sizes(snapshot)))) if snapshot else ()
    newest = _newest_checkpoint(snapshot) if snapshot else None
    savepoint = last_savepoint(snapshot) if snapshot else None
    unknown = not_measured(job.job_root) if snapshot else _NOT_READ
    return JobRow(
        id=job.id,
        job_root=job.job_root,
        job=snapshot.root.job.job if snapshot else "",
        job_uuid=snapshot.root.job.job_uuid if snapshot else "",
        health=_health(snapshot, known) if snapshot else None,
        generation=description.generation if description else 0,
        run=newest.record.run if newest else None,
        checkpoint_id=description.checkpoint_id if description else 0,
        label=description.label if description else "",
        committed_at=checkpoint.at if checkpoint else "",
        full_bytes=position.manifest.full_bytes if position and position.manifest else None,
        live_bytes=live_bytes_of(each for operator in operators for each in operator.subtasks),
        state_sizes=sizes,
        backlog=backlog,
        backlog_unknown="" if backlog else unknown,
        next_run_at=known.next_run_at,
        savepoint=savepoint,
        savepoint_unknown=savepoint is None and not (snapshot is not None and snapshot.savepoints_known),
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
            live_bytes = live_bytes_of(record.operators.values())
            yield StateSize(record.checkpoint_id, record.ended_at, record.full_bytes, live_bytes)


def _newest_checkpoint(snapshot: Snapshot) -> CheckpointEntry | None:
    """Returns the checkpoint whose state the next run starts from; None if the history has no record of it.

    If a restore of a savepoint has made the position, it is the checkpoint that was restored.
    """
    if snapshot.position is None:
        return None
    head = snapshot.position.head
    bases, checkpoint_id = {step.seq: step.base for step in head.entry.ancestry.restores}, head.checkpoint_id
    while 0 < bases.get(checkpoint_id, 0) < checkpoint_id:
        checkpoint_id = bases[checkpoint_id]
    entry = find_point(snapshot, checkpoint_id)
    return entry if isinstance(entry, CheckpointEntry) else None


@dataclass(frozen=True)
class SinkStatus:
    """A sink at the newest checkpoint.

    Attributes:
        position: the position of its table.
        description: name of its class, as the newest stored graph has it; null if no run has stored a graph.
        location: path or address that it writes to, from the same graph; null if that has none.
        metrics: what was published with the newest checkpoint; None if it had no output, or that was not recorded.
        pending_checkpoint_ids: the checkpoints whose output is not known to be published, oldest first.
    """

    position: Inline[SinkPosition]
    description: OptionalText
    location: OptionalText
    metrics: SinkMetrics | None
    pending_checkpoint_ids: tuple[int, ...]


def sinks_at(head: Head, record: CheckpointRecord | None, graph: JobExplanation | None) -> dict[str, SinkStatus]:
    """Returns the sinks, by uid.

    Args:
        head: the newest log entry.
        record: the record of the newest checkpoint.
        graph: the newest stored graph.
    """
    chains = [chain for level in graph.levels for chain in level.chains] if graph else []
    described = {sink.uid: sink for chain in chains for sink in chain.sinks}
    published, pending, metrics = head.entry.published, pending_of(head), record.sinks if record else {}
    return {
        uid: SinkStatus(
            position=SinkPosition.of(published[uid]) if uid in published else SinkPosition("", None, 0),
            description=described[uid].sink if uid in described else "",
            location=described[uid].location if uid in described else "",
            metrics=metrics.get(uid),
            pending_checkpoint_ids=tuple(each.checkpoint_id for each in pending if each.sink == uid),
        )
        for uid in sorted({*published, *metrics, *(each.sink for each in pending)})
    }


@dataclass(frozen=True)
class JobState:
    """The state of a job.

    Attributes:
        row: the job as in the list of jobs.
        description: its status; None if no run has begun.
        newest: the entry of the checkpoint that the next run starts from; after a restore, the entry of the restored
            checkpoint. None without one, for another job's, and if the history has no record of it.
        restore: the restore that has made the position, with who requested and approved it; None if a run has made it
            since, and if the history has no record of the restore.
        runs: the newest runs, newest first.
        operators: the operators at the newest checkpoint.
        sources: the sources at the newest checkpoint.
        sinks: the sinks, by uid.
        undone_count: number of the checkpoints in the history that restores have undone.
        history_changed: the error about records of the history that are not as the log recorded them; None if all are.
        savepoint_integrity: whether the record of `savepoint` is as it was recorded; None without one.
    """

    row: Inline[JobRow]
    description: JobDescription | None
    newest: CheckpointEntry | None
    restore: ActionEntry | None
    runs: tuple[RunSummary, ...]
    operators: tuple[OperatorStatus, ...]
    sources: tuple[SourceStatus, ...]
    sinks: dict[str, SinkStatus]
    undone_count: int
    history_changed: ErrorReport | None
    savepoint_integrity: Integrity | None


_NEWEST_RUNS = 20


def job_state(
    job: CatalogJob, reading: Reading[Snapshot], known: Orchestration, graph: JobExplanation | None = None
) -> JobState:
    """Returns the state of a job.

    Args:
        job: the job.
        reading: its job root.
        known: what the orchestrator knows of it.
        graph: its newest stored graph; None if none is stored.
    """
    snapshot, row = reading.value, job_row(job, reading, known)
    if snapshot is None or snapshot.position is None:
        return JobState(row, None, None, None, (), (), (), {}, 0, None, None)
    position = snapshot.position
    manifest = position.manifest
    newest = _newest_checkpoint(snapshot)
    changed = snapshot.check.error()
    return JobState(
        row=row,
        description=position.description,
        newest=newest,
        restore=_restore_of_position(snapshot),
        runs=tuple(reversed(runs_of(snapshot, known.dag_ids)))[:_NEWEST_RUNS],
        operators=operators_at(manifest, newest.record if newest else None),
        sources=sources_at(manifest),
        sinks=sinks_at(position.head, newest.record if newest else None, graph),
        undone_count=_undone_count(snapshot) if position.head.entry.ancestry.restores else 0,
        history_changed=error_report(changed) if changed else None,
        savepoint_integrity=integrity_of_last_savepoint(snapshot),
    )


def _restore_of_position(snapshot: Snapshot) -> ActionEntry | None:
    """Returns the restore that has made the position; None if a run has made a checkpoint since."""
    head = snapshot.position.head if snapshot.position else None
    newest = head.entry.ancestry.restores[-1].seq if head and head.entry.ancestry.restores else 0
    # A checkpoint of a run after the restore has a higher number than its CLAIM.
    entry = find_point(snapshot, newest) if head and head.checkpoint_id <= newest else None
    return entry if isinstance(entry, ActionEntry) else None


def _undone_count(snapshot: Snapshot) -> int:
    return sum(isinstance(point.record, CheckpointRecord) and snapshot.is_undone(point) for point in snapshot.points)


_LIMIT = limit_parameter(1000, 1000)

JOB_ENDPOINTS = (
    Endpoint("jobs", "The jobs that the caller may read", JobList, (CURSOR, _LIMIT)),
    Endpoint("jobs/{id}", "The state of a job", JobState),
)


class JobKey(NamedTuple):
    """Place of a job in a list of jobs."""

    id: str


class JobEndpoints:
    """Answers about jobs.

    Args:
        catalog: the job roots.
        roots: follows them.
        graphs: reads the graphs that runs have stored.
    """

    def __init__(self, catalog: Catalog, roots: Roots, graphs: StoredGraphs) -> None:
        self._catalog = catalog
        self._roots = roots
        self._graphs = graphs

    def handlers(self) -> dict[str, Handler]:
        """Returns what answers each endpoint, by its path."""
        return {"jobs": self._jobs, "jobs/{id}": self._job}

    async def _jobs(self, call: Call) -> Answer:
        before, limit = call.cursor(JobKey), call.number(_LIMIT)
        jobs = [job for id, job in sorted(call.jobs.items()) if before is None or id > before.id]
        # Only the job roots of the page are read.
        shown = jobs[:limit]
        more = JobKey(shown[-1].id) if len(shown) < len(jobs) else None
        return await self.list_jobs(shown, tuple(self._catalog.searches()), more)

    async def list_jobs(
        self, jobs: Sequence[CatalogJob], searches: tuple[RootSearch, ...], more: JobKey | None = None
    ) -> Answer:
        """Returns a list of jobs with their searches.

        Args:
            jobs: the jobs.
            searches: where job roots are looked for.
            more: the place of the last job, if there are more of them.
        """
        read = await self._roots.read_all(jobs, Extent.NEWEST)
        rows = [(job, each, self._catalog.orchestration_of(job.id)) for job, each in zip(jobs, read, strict=True)]
        return Answer(
            [*(f"{version_of(job, each)} {known}" for job, each, known in rows), repr(searches), repr(more)],
            lambda: JobList(tuple(job_row(*row) for row in rows), to_cursor(more), searches),
        )

    async def _job(self, call: Call) -> Answer:
        job = call.job
        reading = await self._roots.read(job)
        known, snapshot = self._catalog.orchestration_of(job.id), reading.value
        stored = None
        if snapshot is not None and snapshot.position is not None:
            stored = (await self._graphs.read(job, snapshot, snapshot.position.head.entry.generation)).value
        start, graph = (stored.start, stored.graph) if stored else (None, None)
        versions = [version_of(job, reading), repr(known), str(start and start.seq)]
        return Answer(versions, lambda: job_state(job, reading, known, graph))
