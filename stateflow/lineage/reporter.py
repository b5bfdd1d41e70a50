"""Follows the runs of a launch, makes their lineage events, and sends them.

Events are sent in a thread: a server that is slow, away or refuses delays no batch, and costs events only.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

from stateflow.api.datasets import without_credentials
from stateflow.api.graph import Graph
from stateflow.checkpoint.history import restore_record, run_failure
from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.documents import ActionRecord, LogEntry, PublishedOutput, Savepoint
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.clock import Clock
from stateflow.config.settings import Settings
from stateflow.errors import Fenced, Interrupted, StateflowError
from stateflow.lineage.events import (
    MOST_CHARACTERS,
    PARENT_VARIABLE,
    CheckpointFacts,
    DatasetFacts,
    JobDatasets,
    LineageEvent,
    PastRestore,
    RestoreFacts,
    RunFacts,
    RunState,
    SavepointFacts,
    offsets_of,
    run_id_of,
)
from stateflow.runtime.driver.job_run import JobRun
from stateflow.runtime.job import CheckpointReport, Job
from stateflow.storage.locations import without_secrets

log = logging.getLogger(__name__)

_MOST_WAITING = 100
FLUSH_SECONDS = 3.0
"""Maximum delay of the end of a launch by a server that does not respond."""
_IMPORT_SECONDS = 30.0
_CONFIG_FILE = "openlineage.yml"
_URL, _TRANSPORT, _CONFIG, _DISABLED = (
    "OPENLINEAGE_URL",
    "OPENLINEAGE__TRANSPORT",
    "OPENLINEAGE_CONFIG",
    "OPENLINEAGE_DISABLED",
)
_CLIENT_LOGGERS = ("openlineage", "urllib3.connectionpool")

Send = Callable[[LineageEvent], None]


class Emitter(Protocol):
    """Receives the events of a launch."""

    def put(self, event: LineageEvent) -> None:
        """Takes an event; returns at once, and raises nothing."""

    def close(self) -> None:
        """Waits for a short time until all events are sent."""


class _NoReceiver:
    """Drops the events of a driver whose task reports what it has read and written."""

    def put(self, event: LineageEvent) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


def is_configured(environment: Mapping[str, str] = os.environ) -> bool:
    """Returns whether OpenLineage's own configuration names a receiver of events, or may do so.

    That is one of OpenLineage's environment variables, or a file ``openlineage.yml`` in the working folder or in
    ``~/.openlineage``. Without any of them, its client would print events.
    """
    if environment.get(_DISABLED, "").strip().lower() == "true":
        return False
    if any(value and (name == _URL or name.startswith(_TRANSPORT)) for name, value in environment.items()):
        return True
    named = environment.get(_CONFIG, "")
    files = [*([Path(named)] if named else ()), Path(_CONFIG_FILE), Path.home() / ".openlineage" / _CONFIG_FILE]
    return any(map(os.path.isfile, files))


class BackgroundEmitter:
    """Sends events in their order, in a thread that starts at once: the import of the client takes a second.

    At most 100 events wait. Further checkpoints are dropped then, and after them the oldest events. The first loss is
    logged as a warning, later ones are only counted.

    Args:
        connect: returns what sends an event, or None if nothing receives events; called in the thread.
        flush_seconds: how long `close` waits.
    """

    def __init__(self, connect: Callable[[], Send | None], flush_seconds: float = FLUSH_SECONDS) -> None:
        self._connect = connect
        self._flush_seconds = flush_seconds
        self._waiting: deque[LineageEvent] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._lost = 0
        self._connected = threading.Event()
        self._thread = threading.Thread(target=self._work, name="stateflow-lineage", daemon=True)
        self._thread.start()

    def put(self, event: LineageEvent) -> None:
        """Takes an event; returns at once, and raises nothing."""
        with self._changed:
            if self._closed:
                return
            if len(self._waiting) >= _MOST_WAITING:
                if event.state is RunState.RUNNING:
                    self._count_loss("too many events wait")
                    return
                self._waiting.popleft()
                self._count_loss("too many events wait")
            self._waiting.append(event)
            self._changed.notify()

    def close(self) -> None:
        """Waits until all events are sent, for `flush_seconds` at most; may be called more than once."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        # On a busy host, an import can take longer than an answer of the server.
        self._connected.wait(_IMPORT_SECONDS)
        self._thread.join(self._flush_seconds)
        with self._changed:
            if self._thread.is_alive():
                # One may be on its way.
                self._count_loss("the server is slow", max(1, len(self._waiting)))
                self._waiting.clear()
            if self._lost > 1:
                log.info("%d lineage events were lost", self._lost)
            self._lost = 0

    def _work(self) -> None:
        try:
            send = self._connect()
        except Exception as e:
            # Whatever a configuration or a transport raises: lineage must not end a run.
            self._fail(e)
            send = None
        finally:
            self._connected.set()
        while (event := self._next()) is not None:
            if send is None:
                continue
            try:
                send(event)
            except Exception as e:
                self._fail(e)

    def _next(self) -> LineageEvent | None:
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            return self._waiting.popleft() if self._waiting else None

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._count_loss(f"{type(error).__name__}: {without_credentials(str(error))}")

    def _count_loss(self, reason: str, events: int = 1) -> None:
        self._lost += events
        if self._lost == events:
            log.warning("a lineage event is lost, the run continues; further ones are only counted: %s", reason)


def connect() -> Send | None:
    """Returns what sends events by OpenLineage's client, as its own configuration says; None if that names nothing.

    Raises:
        ImportError: the package is not installed.
    """
    for name in _CLIENT_LOGGERS:
        # They report each failed attempt, with the address; the emitter reports the first one, without secrets.
        logging.getLogger(name).addFilter(_is_not_of_the_emitter)
    try:
        from openlineage.client import OpenLineageClient
    except ImportError as e:
        raise ImportError(f"{e.name} is not installed; hint: pip install 'stateflow[openlineage]'") from e

    from stateflow.lineage.openlineage import to_run_event

    client = OpenLineageClient()
    if client.transport.kind == "console" and (client.config.transport or {}).get("type") != "console":
        return None
    return lambda event: client.emit(to_run_event(event))


def _is_not_of_the_emitter(record: logging.LogRecord) -> bool:
    return record.threadName != "stateflow-lineage"


PERIOD = timedelta(minutes=1)
"""Shortest time between two events of checkpoints."""
_SHOWN_RESTORES = 10
_MOST_DEAD_RUNS = 10
LOST = "lost"
"""How a run ended that has not said so: it was killed, or this run has fenced it."""
_LOST_TEXT = "the run has not recorded its end: it was killed, or a newer run has claimed the job"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class _Run:
    """The run that works at present.

    Attributes:
        head: its newest log entry; None for a run that has not claimed the job.
        at: when its newest event was made, by the monotonic clock.
    """

    id: str
    facts: RunFacts
    head: Head | None
    at: float
    checkpoint: CheckpointFacts | None = None
    published: Mapping[str, PublishedOutput] = field(default_factory=dict)
    restore: RestoreFacts | None = None
    savepoints: list[SavepointFacts] = field(default_factory=list)


class LineageReporter:
    """Makes the events of the runs of one launch. No method raises: lineage must not end a run.

    Args:
        graph: the job's graph.
        settings: the settings of the run.
        emitter: sends the events.
        clock: gives times and ids.
        requested_by: who or what requested the launch.

    Attributes:
        last: the newest event; None before the first.
    """

    def __init__(self, graph: Graph, settings: Settings, emitter: Emitter, clock: Clock, requested_by: str) -> None:
        self._graph = graph
        self._settings = settings
        self._emitter = emitter
        self._clock = clock
        self._requested_by = requested_by
        self._name = settings.name
        self.last: LineageEvent | None = None
        self._lock = threading.RLock()
        self._run: _Run | None = None
        self._has_failed = False
        self._previous: Head | None = None
        self._dead: list[LogEntry] = []
        self._reported: set[str] = set()
        with self._harmless():
            self._datasets = JobDatasets(graph)

    def before_claim(self, root: JobRoot) -> None:
        """Notes which run is the newest one until another run claims the job."""
        with self._harmless():
            self._has_failed = False
            if root.job.shadow:
                self._datasets = JobDatasets(self._graph.with_shadow_sinks())
                self._name = f"{self._settings.name}.shadow"
            self._previous = root.log.read_head()
            self._dead = self._entries_of_dead_runs(root)

    def started(self, run: JobRun) -> None:
        """Reports the start of a run that has claimed and restored its job, and what became of the one before it."""
        with self._harmless():
            for entry in self._dead:
                self._report_dead(run.job.root, entry)
            self._begin(run)

    def on_checkpoint(self, at: CheckpointReport) -> None:
        """Reports a checkpoint, at most once a minute."""
        with self._harmless():
            run = self._run
            if run is None:
                return
            run.head, run.published, run.checkpoint = at.head, at.published, _checkpoint(at, run.checkpoint)
            if self._clock.monotonic() - run.at >= PERIOD.total_seconds():
                self._put(RunState.RUNNING, run, run.checkpoint.committed_at)

    def on_savepoint(self, savepoint: Savepoint) -> None:
        """Adds a savepoint to the next event of the run."""
        with self._harmless():
            if self._run is None:
                return
            self._run.savepoints.append(
                SavepointFacts(
                    savepoint.name,
                    savepoint.id,
                    savepoint.checkpoint_id,
                    savepoint.origin.value,
                    savepoint.made_at,
                    savepoint.by,
                )
            )

    def finished(self, run: JobRun, reached: str) -> None:
        """Reports a run that has ended as it should.

        Args:
            run: the run.
            reached: the end condition that was met.
        """
        with self._harmless():
            if self._run is not None:
                self._run.head = run.head
                self._end(self._run, RunState.COMPLETE, reached)

    def failed(self, error: BaseException, run: JobRun | None = None) -> None:
        """Reports the error that has ended a run, or that has prevented its start. Of several calls, the first counts.

        Args:
            error: the error.
            run: the run, if there is one.
        """
        with self._harmless():
            if self._has_failed:
                return
            self._has_failed = True
            if self._run is None:
                if run is not None and run.is_claimed:
                    self._begin(run)
                else:
                    facts = RunFacts(requester=self._requested_by)
                    self._run = _Run(self._new_id(), facts, None, 0.0)
                    self._put(RunState.START, self._run, self._now)
            assert self._run is not None
            # These come from outside, and say nothing about the job.
            is_aborted = isinstance(error, Fenced | Interrupted) or not isinstance(error, Exception)
            ended_by = error.code if isinstance(error, StateflowError) else type(error).__name__
            text = error.sentence if isinstance(error, StateflowError) else f"{type(error).__name__}: {error}"
            self._end(self._run, RunState.ABORT if is_aborted else RunState.FAIL, ended_by, text)

    def idle(self, root: JobRoot, head: Head) -> None:
        """Reports a start that had nothing to do, and did not change the job."""
        with self._harmless():
            facts = replace(
                self._facts(root, head.entry),
                start_checkpoint_id=head.checkpoint_id,
                start_label=head.checkpoint_label,
                idle=True,
            )
            run = _Run(self._new_id(), facts, head, 0.0, published=head.entry.published)
            self._put(RunState.START, run, self._now)
            self._end(run, RunState.COMPLETE, "idle")

    def close(self) -> None:
        """Waits for a short time until the events are sent."""
        self._emitter.close()

    def _begin(self, run: JobRun) -> None:
        """Reports the start of a run; one that fails while it is restored has no state yet."""
        root, head = run.job.root, run.head
        facts = replace(
            self._facts(root, head.entry),
            code_hash=run.job.code,
            start_checkpoint_id=head.checkpoint_id,
            start_label=head.checkpoint_label,
            restores=tuple(
                PastRestore(step.seq, step.base) for step in head.entry.ancestry.restores[-_SHOWN_RESTORES:]
            ),
        )
        self._run = _Run(run_id_of(root.job.job_uuid, head.entry.run), facts, head, 0.0, published=head.entry.published)
        self._run.restore = self._restore_before(root, head)
        self._put(RunState.START, self._run, head.entry.at)

    def _facts(self, root: JobRoot, entry: LogEntry) -> RunFacts:
        return RunFacts(
            job_uuid=root.job.job_uuid,
            job_root=without_secrets(root.storage.uri),
            generation=entry.generation,
            number=entry.runs,
            requester=self._requested_by,
        )

    def _end(self, run: _Run, state: RunState, ended_by: str, error: str = "") -> None:
        run.facts = replace(run.facts, ended_by=ended_by)
        self._put(state, run, self._now, error)
        self._reported.add(run.id)
        self._run = None

    def _put(self, state: RunState, run: _Run, at: str, error: str = "") -> None:
        sources = run.head.entry.sources if run.head else []
        checkpoint, is_last = run.checkpoint, state not in (RunState.START, RunState.RUNNING)
        rows_in, rows_out = (checkpoint.rows_in, checkpoint.rows_out) if checkpoint else (0, {})
        self.last = LineageEvent(
            state=state,
            occurred_at=at,
            run_id=run.id,
            job=self._name,
            is_continuous=self._settings.run.end.continuous,
            run=run.facts,
            inputs=self._datasets.inputs(sources, rows_in if is_last else None),
            outputs=self._datasets.outputs(sources, run.published, rows_out if is_last else None),
            checkpoint=checkpoint,
            restore=run.restore,
            savepoints=tuple(run.savepoints),
            error=without_credentials(error)[:MOST_CHARACTERS],
        )
        self._emitter.put(self.last)
        # A restore belongs to the start of a run, and a savepoint to one event.
        run.at, run.restore, run.savepoints = self._clock.monotonic(), None, []

    def _restore_before(self, root: JobRoot, head: Head) -> RestoreFacts | None:
        """Returns the restore from which a run starts: by the run itself, or by a command since the last run."""
        restores = head.entry.ancestry.restores
        before = self._previous.entry if self._previous and not self._previous.entry.ordinal else None
        started = {head.entry.generation, *([before.generation] if before else ())}
        return _newest_restore(root, head) if restores and restores[-1].seq in started else None

    def _entries_of_dead_runs(self, root: JobRoot) -> list[LogEntry]:
        """Returns the newest entries of runs that have not recorded their end, oldest run first.

        They are followed back to the first one with a checkpoint, which has had the time to report those before it. The
        CLAIMs of a restore are not runs. Called before the next CLAIM, after which older entries are collected.
        """
        found: list[LogEntry] = []
        entry = self._previous.entry if self._previous else None
        for _ in range(_MOST_DEAD_RUNS):
            if entry is None or entry.ended:
                break
            is_restore = not entry.ordinal and any(step.seq == entry.generation for step in entry.ancestry.restores)
            if not (is_restore or entry.claimed_for):
                found.insert(0, entry)
            if entry.ordinal or entry.generation == 1:
                break
            entry = root.log.read_entry(entry.generation - 1)
        return found

    def _report_dead(self, root: JobRoot, entry: LogEntry) -> None:
        """Reports a run that failed, or of whose end nothing is known.

        A run that failed has reported that itself, if it could; its event says the same.
        """
        run_id = run_id_of(root.job.job_uuid, entry.run)
        if run_id in self._reported:
            return
        self._reported.add(run_id)
        failure = run_failure(root.storage, entry.generation)
        run = replace(self._facts(root, entry), requester="", ended_by=failure.text("code") if failure else LOST)
        self._emitter.put(
            LineageEvent(
                state=RunState.FAIL if failure else RunState.ABORT,
                occurred_at=failure.ended_at if failure else self._now,
                run_id=run_id,
                job=self._name,
                is_continuous=self._settings.run.end.continuous,
                run=run,
                checkpoint=_last_checkpoint(entry),
                error=without_credentials(failure.reason) if failure else _LOST_TEXT,
            )
        )

    def _new_id(self) -> str:
        return str(uuid.UUID(self._clock.new_id()))

    @property
    def _now(self) -> str:
        return self._clock.now().isoformat(timespec="milliseconds")

    @contextmanager
    def _harmless(self) -> Iterator[None]:
        """Logs an exception of the body: a bug, or an error of the storage. Neither must end the run."""
        try:
            with self._lock:
                yield
        except Exception as e:
            known = isinstance(e, StateflowError | OSError)
            log.warning("a lineage event could not be made, the run continues: %s", e, exc_info=None if known else e)


def report_lineage(graph: Graph, settings: Settings, clock: Clock, requested_by: str = "") -> LineageReporter | None:
    """Returns what reports the runs of a launch.

    None unless OpenLineage is configured in the environment, or a parent run is named there, which reports the lineage
    of the result.
    """
    if not (is_configured() or os.environ.get(PARENT_VARIABLE)):
        return None
    emitter = BackgroundEmitter(connect) if is_configured() else _NoReceiver()
    return LineageReporter(graph, settings, emitter, clock, requested_by)


def report_restore(job: Job, head: Head) -> None:
    """Reports a restore by a command as a run of its own, if OpenLineage is configured in the environment.

    Args:
        job: the job.
        head: the entry that completes the restore.
    """
    if not is_configured():
        return
    emitter, entry = BackgroundEmitter(connect), head.entry
    try:
        restore = _newest_restore(job.root, head)
        published = {uid: str(each.version) for uid, each in entry.published.items() if each.known_version is not None}
        event = LineageEvent(
            state=RunState.START,
            occurred_at=restore.ended_at or entry.at,
            run_id=run_id_of(job.root.job.job_uuid, f"restore/{restore.seq}"),
            job=f"{job.root.job.job}.shadow" if job.root.job.shadow else job.root.job.job,
            is_continuous=False,
            run=RunFacts(
                job_uuid=job.root.job.job_uuid,
                job_root=without_secrets(job.root.storage.uri),
                generation=entry.generation,
                number=entry.runs,
                requester=restore.by,
                start_checkpoint_id=head.checkpoint_id,
                start_label=head.checkpoint_label,
            ),
            outputs=tuple(
                DatasetFacts(dataset, version=published.get(uid, ""))
                for uid, bound in sorted(job.sinks.items())
                for dataset in bound.sink.datasets()
            ),
            restore=restore,
        )
        emitter.put(event)
        emitter.put(
            replace(event, state=RunState.COMPLETE, occurred_at=entry.at, run=replace(event.run, ended_by="restored"))
        )
    except Exception as e:
        # The restore is completed, and in the history. A sink of the job may raise anything.
        known = isinstance(e, StateflowError | OSError)
        log.warning("a lineage event could not be made, the restore is completed: %s", e, exc_info=None if known else e)
    finally:
        emitter.close()


def _newest_restore(root: JobRoot, head: Head) -> RestoreFacts:
    """Returns the newest restore in the ancestry of the state, with what the history has about it."""
    step = head.entry.ancestry.restores[-1]
    record = restore_record(root.storage, step.seq)
    versions = {uid: each.version for uid, each in head.entry.published.items() if each.known_version is not None}
    facts = RestoreFacts(seq=step.seq, restored_checkpoint_id=step.base, table_versions=versions)
    return facts if record is None else _with_record(facts, record)


def _checkpoint(at: CheckpointReport, before: CheckpointFacts | None) -> CheckpointFacts:
    """Returns the newest checkpoint of a run, with the rows of all of them."""
    record, rows_out = at.record, dict(before.rows_out) if before else {}
    for uid, rows in record.rows_out.items():
        rows_out[uid] = rows_out.get(uid, 0) + rows
    return CheckpointFacts(
        checkpoint_id=record.checkpoint_id,
        committed_at=record.ended_at,
        rows_in=record.rows_in + (before.rows_in if before else 0),
        rows_out=rows_out,
        offsets=offsets_of(at.manifest.sources),
        watermarks={each.uid: _time_text(each.watermark) for each in at.manifest.watermarks},
        state_bytes=record.full_bytes,
    )


def _last_checkpoint(entry: LogEntry) -> CheckpointFacts | None:
    """Returns the last checkpoint of a run; None if it has made none."""
    if not entry.ordinal:
        return None
    last = (entry.checkpoint.id, entry.checkpoint.at) if entry.checkpoint else (entry.seq, entry.at)
    return CheckpointFacts(checkpoint_id=last[0], committed_at=last[1])


def _time_text(milliseconds: int | None) -> str | None:
    if milliseconds is None:
        return None
    try:
        return (EPOCH + timedelta(milliseconds=milliseconds)).isoformat(timespec="milliseconds")
    except OverflowError:
        # Of a source that has ended, or of times outside of the calendar.
        return None


def _with_record(facts: RestoreFacts, record: ActionRecord) -> RestoreFacts:
    """Returns the facts of a restore, and of its record in the history."""
    undone = record.facts.get("undone_checkpoint_ids")
    return replace(
        facts,
        target_label=record.text("target_label"),
        previous_checkpoint_id=record.number("previous_checkpoint_id"),
        undone_checkpoint_ids=tuple(each for each in undone if isinstance(each, int))
        if isinstance(undone, list)
        else (),
        request_id=record.text("request_id"),
        by=record.by,
        reason=without_credentials(record.reason),
        ended_at=record.ended_at,
    )
