"""The runs of a job with their job files, and the graph that the newest one has stored."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from stateflow.checkpoint.history import FAILED_START, FAILURE, RUN_START, read_run_file
from stateflow.checkpoint.log.documents import (
    COMPLETED,
    ActionRecord,
    CheckpointRecord,
    EntryKind,
    LogEntry,
    Manifest,
    RunProgress,
)
from stateflow.checkpoint.restore.plan_document import difference_of_texts
from stateflow.errors import ConfigError
from stateflow.operations.checkpoints import ActionEntry, CheckpointEntry, Entry
from stateflow.operations.restore_previews import KnownHistory, read_run_graph
from stateflow.operations.status import RunFailure, run_name
from stateflow.outputs import EventTime, Inline, OptionalId, OptionalText, Person, Timestamp
from stateflow.runtime.planning.explain import JobExplanation
from stateflow.ui.answers import Answer, Freshness, Handler, Refused, freshness_of, state_of, version_of
from stateflow.ui.checkpoints import (
    CheckpointSummary,
    OperatorStatus,
    SourceStatus,
    find_point,
    generation_of,
    no_checkpoint,
    operators_at,
    sources_at,
    summary_of,
)
from stateflow.ui.openapi import Endpoint, Parameter
from stateflow.ui.requests import Call
from stateflow.ui.roots import Calls, Catalog, CatalogJob, Reading, Roots
from stateflow.ui.snapshots import Snapshot

_MOST_RUN_FILES = 16
"""Runs whose job files, of up to 1 MiB each, stay in memory."""
_MOST_CHECKPOINTS = _MOST_TRIES = 50
_CHECKPOINT = Parameter("checkpoint_id", {"type": "integer", "minimum": 1}, "by default the newest one")


@dataclass(frozen=True)
class TaskTry:
    """A try of a task of Airflow, which has started a run.

    Attributes:
        dag_id: id of the DAG.
        dag_run_id: id of the DAG run.
        task_id: id of the task; of a mapped one, with its index after a slash.
        try_number: number of the try, from 1 on.
    """

    dag_id: str
    dag_run_id: str
    task_id: str
    try_number: int


@dataclass(frozen=True)
class RunSummary:
    """A run, as far as the history has records of it.

    Attributes:
        generation: generation of the run.
        run: its number, counted from the job's first; None if that was not recorded.
        driver: host and process id of its driver.
        reason: who or what requested it.
        attempt: the try of a task of Airflow that has started it; None for other runs, and if a person has chosen the
            id of its DAG run and its DAG is not known.
        requested_by: who has started it; null if its start was not recorded.
        stateflow: version of stateflow that ran it.
        started_at: when it was ready for its first batch.
        startup_ms: time from its launch until then; None if it was not recorded.
        base_checkpoint_id: the checkpoint that it continued from; null for none, and if its start was not recorded.
        parallelism: its parallelism; None if its start was not recorded.
        job_file: name of its job file.
        job_file_modified_at: when the job file was last changed, by the clock of its disk.
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
        is_open: whether it is the newest run, and has recorded neither its end nor an error: it works, or was killed.
    """

    generation: int
    run: int | None
    driver: OptionalText
    reason: OptionalText
    attempt: TaskTry | None
    requested_by: Person
    stateflow: OptionalText
    started_at: Timestamp
    startup_ms: float | None
    base_checkpoint_id: OptionalId
    parallelism: int | None
    job_file: OptionalText
    job_file_modified_at: Timestamp
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
    is_open: bool


def runs_of(snapshot: Snapshot, dag_ids: Collection[str] = ()) -> list[RunSummary]:
    """Returns the runs that the history has records of, oldest first.

    Args:
        snapshot: the job.
        dag_ids: the DAGs that work on it.
    """
    records: dict[int, list[CheckpointRecord]] = {}
    for point in snapshot.points:
        if isinstance(point.record, CheckpointRecord):
            records.setdefault(point.record.generation, []).append(point.record)
    failures, starts = (
        {a.record.seq: a.record for a in snapshot.actions if a.record.kind == kind} for kind in (FAILURE, RUN_START)
    )
    position, newest = snapshot.position, 0
    if position is not None and position.description.run_open and position.description.run:
        newest = position.head.entry.generation
        # It may be restoring the job, or have been killed meanwhile: only the log has it.
        starts.setdefault(newest, _claim_of(position.head.entry))
    generations = sorted(records.keys() | failures.keys() | starts.keys())
    return [
        _run(each, records.get(each, []), failures.get(each), starts.get(each), dag_ids, is_open=each == newest)
        for each in generations
    ]


_NO_START = ActionRecord(seq=0, kind=RUN_START, ended_at="", by="")


def _claim_of(entry: LogEntry) -> ActionRecord:
    """Returns a record of a run's start, with the facts of a log entry."""
    facts: dict[str, object] = {"run": entry.runs, "driver": entry.writer}
    reason = entry.note if entry.kind is EntryKind.CLAIM else ""
    return ActionRecord(seq=entry.generation, kind=RUN_START, ended_at="", by="", reason=reason, facts=facts)


_TRY = re.compile(
    r"(?P<dag>[\w.-]+)/(?P<run>(?P<made>(?:scheduled|manual|backfill|operator_triggered|asset_triggered"
    r"|asset_materialization)__)?.+)/(?P<task>(?=[^/]*[A-Za-z_])[^/]+(?:/[0-9]+)?)/(?P<number>[0-9]{1,9})"
    r"(?:; restart [0-9]+)?",
    re.DOTALL,
)
"""The reason of a run that a task of Airflow has started: DAG, DAG run, task, index of a mapped task, and try.

A run that a command has started may have a reason like ``a/b/c/7``. So either Airflow has such a DAG of the job, or the
id of the DAG run begins as Airflow makes it: a DAG may have been deleted, and only Airflow knows DAGs.
"""


def _try_of(reason: str, dag_ids: Collection[str]) -> TaskTry | None:
    """Returns the try that has started a run; None if no task of Airflow has."""
    found = _TRY.fullmatch(reason)
    if found is None or not (found["made"] or found["dag"] in dag_ids):
        return None
    return TaskTry(found["dag"], found["run"], found["task"], int(found["number"]))


def _run(
    generation: int,
    records: Sequence[CheckpointRecord],
    failed: ActionRecord | None,
    begun: ActionRecord | None,
    dag_ids: Collection[str],
    *,
    is_open: bool,
) -> RunSummary:
    completed = [record for record in records if record.status == COMPLETED]
    newest, start = records[-1] if records else None, begun or _NO_START
    reason = newest.reason if newest else start.reason
    return RunSummary(
        generation=generation,
        run=newest.run if newest else start.number("run"),
        driver=newest.driver if newest else start.text("driver"),
        reason=reason,
        attempt=_try_of(reason, dag_ids),
        requested_by=start.by,
        stateflow=start.text("stateflow"),
        started_at=start.ended_at,
        startup_ms=start.duration_ms,
        base_checkpoint_id=start.number("checkpoint_id") or 0,
        parallelism=start.number("parallelism"),
        job_file=start.text("job_file"),
        job_file_modified_at=start.text("job_file_modified_at"),
        job_file_sha256=start.text("job_file_sha256"),
        graph_sha256=start.text("graph_sha256"),
        first_checkpoint_id=completed[0].checkpoint_id if completed else 0,
        last_checkpoint_id=completed[-1].checkpoint_id if completed else 0,
        checkpoints=len(completed),
        aborted=len(records) - len(completed),
        rows_in=sum(record.rows_in for record in completed),
        first_triggered_at=records[0].triggered_at if records else "",
        last_ended_at=failed.ended_at if failed else newest.ended_at if newest else "",
        failure=_failure(failed) if failed else None,
        is_open=is_open and failed is None,
    )


def _failure(record: ActionRecord) -> RunFailure:
    return RunFailure(record.seq, record.ended_at, record.text("code"), record.reason)


def find_starts(snapshot: Snapshot, generation: int) -> tuple[ActionRecord | None, ActionRecord | None]:
    """Returns the records of the starts of a run and of the run before it; None for one that was not recorded."""
    starts = [a.record for a in snapshot.actions if a.record.kind == RUN_START and a.record.seq <= generation]
    starts.sort(key=lambda record: record.seq)
    own = starts.pop() if starts and starts[-1].seq == generation else None
    return own, starts[-1] if starts else None


def has_start(snapshot: Snapshot, generation: int) -> bool:
    """Returns whether the record of a run's start was read, which is the oldest one of the run and names its graph."""
    return find_starts(snapshot, generation)[0] is not None


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
        tries: the newest runs of the same task of Airflow, with this one, oldest first; none for other runs.
        failed_starts: the newest errors of starts after the run before it that had not claimed the job, oldest first.
        progress: how far it was in a batch that takes long; None if it has not reported that since its newest
            checkpoint.
        checkpoints: its newest checkpoints, newest first.
        older: whether it has more checkpoints: `points` with its generation has them.
        may_read_code: whether the viewer may read job files; otherwise, their text and difference are None.
        job_file: the text of its job file; None if it is not stored: it has more than 1 MiB, or the run's start
            was not recorded, or the history no longer has it.
        previous_job_file_sha256: SHA-256 of the job file of the run before it; null if it is not known.
        job_file_difference: a unified diff against that job file, of at most 64 kB; empty if they are equal, None if it
            is not known.
        freshness: how current this is.
    """

    run: RunSummary
    tries: tuple[RunSummary, ...]
    failed_starts: tuple[RunFailure, ...]
    progress: RunProgress | None
    checkpoints: tuple[CheckpointSummary, ...]
    older: bool
    may_read_code: bool
    job_file: str | None
    previous_job_file_sha256: OptionalText
    job_file_difference: str | None
    freshness: Inline[Freshness]


def run_page(
    reading: Reading[Snapshot], generation: int, files: Reading[RunFiles] | None, dag_ids: Collection[str]
) -> RunPage | None:
    """Returns a run; None if the history has no records of it.

    Args:
        reading: the job root.
        generation: generation of the run.
        files: the job files; None for a viewer who may not read them.
        dag_ids: the DAGs that work on the job.
    """
    snapshot, found = reading.value, files.value if files and files.value else RunFiles(None, None)
    runs = runs_of(snapshot, dag_ids) if snapshot else []
    run = next((each for each in runs if each.generation == generation), None)
    if snapshot is None or snapshot.position is None or run is None:
        return None
    _, before = find_starts(snapshot, generation)
    previous = before.text("job_file_sha256") if before else ""
    difference = None
    if files is not None and previous and previous == run.job_file_sha256:
        difference = ""
    elif before is not None and found.own is not None and found.previous is not None:
        names = (
            f"{before.text('job_file')} of {run_name(before.number('run'), before.seq)}",
            f"{run.job_file} of {run_name(run.run, generation)}",
        )
        difference = difference_of_texts(found.previous, found.own, names)
    checkpoints = _checkpoints(snapshot, generation)
    return RunPage(
        run=run,
        tries=_tries(runs, run),
        failed_starts=_failed_starts(snapshot, runs, generation),
        progress=snapshot.position.description.progress if run.is_open else None,
        checkpoints=checkpoints[:_MOST_CHECKPOINTS],
        older=len(checkpoints) > _MOST_CHECKPOINTS,
        may_read_code=files is not None,
        job_file=None if found.own is None else found.own.decode(errors="replace"),
        previous_job_file_sha256=previous,
        job_file_difference=difference,
        freshness=freshness_of(snapshot, reading, *([files] if files else [])),
    )


def _tries(runs: Sequence[RunSummary], run: RunSummary) -> tuple[RunSummary, ...]:
    own = run.attempt
    if own is None:
        return ()
    same = (each for each in runs if each.attempt and replace(each.attempt, try_number=own.try_number) == own)
    return tuple(same)[-_MOST_TRIES:]


def _failed_starts(snapshot: Snapshot, runs: Sequence[RunSummary], generation: int) -> tuple[RunFailure, ...]:
    before = max((each.generation for each in runs if each.generation < generation), default=0)
    failed = (a.record for a in snapshot.actions if a.record.kind == FAILED_START)
    return tuple(_failure(record) for record in failed if before <= record.seq < generation)[-_MOST_TRIES:]


def _checkpoints(snapshot: Snapshot, generation: int) -> tuple[CheckpointSummary, ...]:
    """Returns the newest checkpoints of a run, newest first, and one more than a page has."""
    own = (
        point
        for point in reversed(snapshot.points)
        if isinstance(point.record, CheckpointRecord) and point.record.generation == generation
    )
    entries = map(snapshot.entry_of, itertools.islice(own, _MOST_CHECKPOINTS + 1))
    return tuple(summary_of(each) for each in entries if isinstance(each, CheckpointEntry))


@dataclass(frozen=True)
class GraphPage:
    """The graph of a job, with what its operators and sources had at a checkpoint.

    The graph of a chosen checkpoint is the one of the run that made it; of a checkpoint that a restore made, the one of
    the first run after the restore. Without a choice, it is the newest run's. If that run has stored no graph, it is
    the one of the nearest run before it, or else of the nearest run after it.

    Attributes:
        graph: the stored graph, without states; None if none is stored.
        graph_generation: generation of the run whose graph it is.
        graph_run: number of that run.
        checkpoint_id: the checkpoint.
        checkpoint_generation: generation of the run, or the restore, that made it; null if it is not known.
        checkpoint_run: number of that run; None for a restore, and if it is not known.
        operators: the operators at the checkpoint, if the job keeps it.
        watermarks: the watermark of each operator that has one, by uid.
        sources: the sources at the checkpoint, if the job keeps it.
        freshness: how current this is.
    """

    graph: JobExplanation | None
    graph_generation: OptionalId
    graph_run: int | None
    checkpoint_id: OptionalId
    checkpoint_generation: OptionalId
    checkpoint_run: int | None
    operators: tuple[OperatorStatus, ...]
    watermarks: dict[str, EventTime]
    sources: tuple[SourceStatus, ...]
    freshness: Inline[Freshness]


@dataclass(frozen=True)
class StoredGraph:
    """The graph that a run has stored.

    Attributes:
        graph: the graph; None if none can be read.
        start: the record of the run's start; None without a graph.
    """

    graph: JobExplanation | None
    start: ActionRecord | None


class StoredGraphs:
    """Reads the graphs that runs have stored.

    Args:
        roots: follows the job roots.
    """

    def __init__(self, roots: Roots) -> None:
        # A run stores its files after its record.
        self._read: Calls[StoredGraph] = Calls(roots, timedelta(seconds=10))

    async def read(self, job: CatalogJob, snapshot: Snapshot, generation: int) -> Reading[StoredGraph]:
        """Returns the graph of a run, or of the nearest one with a graph: the newest before it, or the oldest after it.

        Args:
            job: the job.
            snapshot: its job root.
            generation: generation of the run.
        """
        root, starts = snapshot.root, _starts_by_distance(snapshot, generation)

        def read() -> StoredGraph:
            for start in starts:
                if (graph := read_run_graph(root, start)) is not None:
                    return StoredGraph(graph, start)
            return StoredGraph(None, None)

        return await self._read.read((job.job_root, root.job.job_uuid, *(str(each.seq) for each in starts)), read)


_MOST_GRAPHS = 8
"""Runs whose graphs are tried: a graph that is not stored costs a request."""


def _starts_by_distance(snapshot: Snapshot, generation: int) -> list[ActionRecord]:
    """Returns the starts of runs that have stored a graph: those up to a generation, newest first, then later ones.

    One graph of several runs is tried once.
    """
    starts = [a.record for a in snapshot.actions if a.record.kind == RUN_START and a.record.text("graph_sha256")]
    before = sorted((each for each in starts if each.seq <= generation), key=lambda each: -each.seq)
    after = sorted((each for each in starts if each.seq > generation), key=lambda each: each.seq)
    by_graph: dict[str, ActionRecord] = {}
    for each in (*before, *after):
        by_graph.setdefault(each.text("graph_sha256"), each)
    return list(by_graph.values())[:_MOST_GRAPHS]


def _made_by(entry: Entry | None, manifest: Manifest | None) -> int:
    """Returns the generation of the run or restore that made a checkpoint; 0 if it is not known."""
    if entry is not None:
        return generation_of(entry.record)
    return manifest.generation if manifest is not None else 0


def _has_graph(snapshot: Snapshot, checkpoint_id: int | None) -> bool:
    """Returns whether the start of the run that made a checkpoint was read; None for the start of the newest run."""
    if checkpoint_id:
        entry = find_point(snapshot, checkpoint_id)
        return entry is not None and has_start(snapshot, generation_of(entry.record))
    return snapshot.position is not None and has_start(snapshot, snapshot.position.head.entry.generation)


def _generation_of_graph(snapshot: Snapshot, entry: Entry | None, made_by: int) -> int:
    """Returns the generation of the run whose graph fits a checkpoint: a restore may have changed the graph."""
    if not isinstance(entry, ActionEntry):
        return made_by
    starts = (a.record.seq for a in snapshot.actions if a.record.kind == RUN_START and a.record.seq > made_by)
    return min(starts, default=made_by)


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
    stored = graph.value or StoredGraph(None, None)
    return GraphPage(
        graph=stored.graph,
        graph_generation=stored.start.seq if stored.start else 0,
        graph_run=stored.start.number("run") if stored.start else None,
        checkpoint_id=checkpoint_id,
        checkpoint_generation=_made_by(entry, found),
        checkpoint_run=record.run if record else None,
        operators=operators_at(found, record),
        watermarks={o.uid: o.watermark for o in found.operators if o.watermark is not None} if found else {},
        sources=sources_at(found),
        freshness=freshness_of(snapshot, reading, graph, *([manifest] if manifest else [])),
    )


def history_of(snapshot: Snapshot) -> KnownHistory:
    """Returns the records of a job's history."""
    checkpoints = [p.record for p in snapshot.points if isinstance(p.record, CheckpointRecord)]
    return KnownHistory(checkpoints, [action.record for action in snapshot.actions])


RUN_ENDPOINTS = (
    Endpoint("jobs/{id}/graph", "The graph of a job at a checkpoint", GraphPage, (_CHECKPOINT,)),
    Endpoint("jobs/{id}/runs/{generation}", "A run with its job file", RunPage),
)


class RunEndpoints:
    """Answers about runs and graphs.

    Args:
        catalog: the job roots.
        roots: follows them.
        graphs: reads the graphs that runs have stored.
    """

    def __init__(self, catalog: Catalog, roots: Roots, graphs: StoredGraphs) -> None:
        self._catalog = catalog
        self._roots = roots
        self._graphs = graphs
        # A run stores its files after its record.
        self._run_files: Calls[RunFiles] = Calls(roots, timedelta(seconds=10), _MOST_RUN_FILES)

    def handlers(self) -> dict[str, Handler]:
        """Returns what answers each endpoint, by its path."""
        return {"jobs/{id}/graph": self._graph, "jobs/{id}/runs/{generation}": self._run}

    async def _graph(self, call: Call) -> Answer:
        job = call.job
        wanted = call.number(_CHECKPOINT)
        reading, snapshot, position = await self._roots.read_position(job, lambda found: _has_graph(found, wanted))
        checkpoint_id = wanted or position.head.checkpoint_id
        ref = position.entries.refs.get(checkpoint_id)
        entry = find_point(snapshot, checkpoint_id) if checkpoint_id else None
        if ref is None and checkpoint_id and entry is None:
            raise Refused(404, no_checkpoint(checkpoint_id))
        manifest = await self._roots.read_manifest(job, snapshot, ref) if ref else None
        generation = position.head.entry.generation
        if wanted:
            made_by = _made_by(entry, manifest.value if manifest else None)
            generation = _generation_of_graph(snapshot, entry, made_by)
        graph = await self._graphs.read(job, snapshot, generation)
        states = [state_of(graph), str(graph.value and graph.value.start and graph.value.start.seq)]
        versions = [version_of(job, reading), *states, *([state_of(manifest)] if manifest else [])]
        return Answer(versions, lambda: graph_page(reading, checkpoint_id, manifest, graph))

    async def _run(self, call: Call) -> Answer:
        job, generation = call.job, call.id("generation")
        dag_ids = self._catalog.orchestration_of(job.id).dag_ids
        reading, snapshot, _ = await self._roots.read_position(job, lambda found: has_start(found, generation))
        storage, starts = snapshot.root.storage, find_starts(snapshot, generation)
        hashes = [each.text("job_file_sha256") if each else "" for each in starts]

        def read() -> RunFiles:
            return RunFiles(*(read_run_file(storage, each) if each else None for each in hashes))

        may_read_code = await call.viewer.may_read_code(job)
        files = await self._run_files.read((job.job_root, *hashes), read) if may_read_code else None

        def make() -> RunPage:
            page = run_page(reading, generation, files, dag_ids)
            if page is None:
                hint = "the state of the job has the newest runs"
                raise Refused(404, ConfigError("the history has no such run", hint=hint, generation=generation))
            return page

        known = files.value if files else None
        versions = [version_of(job, reading), state_of(files) if files else "without code", repr(dag_ids)]
        return Answer([*versions, repr(known and (known.own is None, known.previous is None))], make)
