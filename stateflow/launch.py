"""Runs a job file: checks that the run can start, executes it and its restarts, and returns the result."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from stateflow.api.graph import Graph
from stateflow.api.source import LocalSource, Source
from stateflow.checkpoint.history import record_failed_start
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.clock import SystemClock
from stateflow.config.settings import Settings
from stateflow.config.sources import SettingsLayer, resolve
from stateflow.environment import StreamExecutionEnvironment, declare
from stateflow.errors import ConfigError, Fenced, InternalError, StateflowError, StorageError, WrongJobRoot
from stateflow.helpers import call_periodically
from stateflow.lineage.events import LineageEvent
from stateflow.lineage.reporter import LineageReporter, report_lineage
from stateflow.observability import Recorder, log_event, telemetry
from stateflow.outputs import Offset, OptionalId, encode_json
from stateflow.runtime.backlog import JobBacklog, measure, read_positions, record_backlog
from stateflow.runtime.driver.job_run import JobRun, active_generation, end_active_run
from stateflow.runtime.driver.termination import RunBounds
from stateflow.runtime.executor import Executor
from stateflow.runtime.idle import find_idle, need_without_job
from stateflow.runtime.job import BatchResult, HotKey, Job, LaunchFacts, Quarantined, RunTotals
from stateflow.runtime.job_loader import create_or_open_job, job_modules, load_job, open_job
from stateflow.runtime.local_run import LocalExecutor, run_local
from stateflow.runtime.planning.explain import JobExplanation, explain_job
from stateflow.runtime.planning.physical_plan import has_transform
from stateflow.runtime.preflight import (
    Needs,
    StartContext,
    check_start,
    describe_unchecked,
    start_errors,
    warn_of_repeated_output,
    warn_of_unregistered_tables,
    warn_of_untested_versions,
    warnings,
    with_session,
)
from stateflow.runtime.restart_strategy import restart_strategy, with_restarts
from stateflow.runtime.restore.new_job_root import InitialSavepoint, NewJobRoot, create_job_root
from stateflow.runtime.watermarks import Waiting, waiting_for_others
from stateflow.storage import open_storage
from stateflow.storage.paths import FORMAT

IDLE = "idle"
"""`RunResult.stopped_because` of a start that had nothing to do."""


_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunResult:
    """The outcome of a launch: the sums over its first run and its restarts.

    Attributes:
        generation: generation of the last run.
        job: name of the job.
        job_uuid: uuid of the job.
        start_checkpoint_id: checkpoint that the run continued from; 0 for a new job or one that began with a savepoint.
        start_label: the same as text, such as ``savepoint before-upgrade (checkpoint 7)``.
        batches, rows_in, rows_out: sums over all runs; rows out by uid of the sink.
        offsets: positions of the sources at the end, by uid.
        stopped_because: which end condition was met.
        duration_ms: wall-clock time.
        restarts: number of restarts by the restart strategy.
        quarantined_count: number of corrupt input files that the run skipped.
        quarantined: the newest of them.
        late_rows_dropped: number of rows that operators dropped because they were too late.
        hot_keys: of each join that has compared millions of pairs of rows of one key in a batch, the key with most;
            see `HotKey`.
        waiting: rows that wait for rows of other sources, by operator and input; see `Waiting`.
        idle: whether there was nothing to do, so that Spark was not started and the job root was not changed. Then
            `generation` is that of the last run.
        backlog: the input that arrived since, and waits for the next run; see `JobBacklog`.
        lineage: what the launch has read and written, see `LineageEvent`; None unless lineage is reported.
    """

    job: str
    job_uuid: str
    generation: int
    start_checkpoint_id: OptionalId
    start_label: str
    checkpoint_id: OptionalId
    batches: int
    rows_in: int
    rows_out: dict[str, int]
    offsets: dict[str, Offset]
    stopped_because: str
    duration_ms: int
    restarts: int = 0
    quarantined_count: int = 0
    quarantined: list[Quarantined] = field(default_factory=list)
    late_rows_dropped: int = 0
    hot_keys: tuple[HotKey, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    idle: bool = False
    backlog: JobBacklog | None = None
    lineage: LineageEvent | None = None


def idle_result(start: StartContext, began: float) -> RunResult | None:
    """Returns the result of an idle start, and counts it; None for any other start.

    Args:
        began: when the launch began, by the monotonic clock.
    """
    if not start.on_spark:
        return None
    found = find_idle(start)
    if isinstance(found, str):
        log_event(_log, logging.INFO, "not_idle", text=f"Spark is needed: {found}", reason=found)
        return None
    head, root = found.head, found.job.root
    lineage = report_lineage(start.graph, start.settings, start.clock)
    if lineage is not None:
        lineage.idle(root, head)
        lineage.close()
    manifest = root.checkpoints.manifest_at(head)
    sources = {node.uid: node.source for node in found.job.plan.sources}
    with telemetry(start.settings.telemetry, start.settings.name) as recorder:
        recorder.count("num_idle_starts")
        backlog = measure(read_positions(sources, manifest, root.storage), None, start.clock)
        record_backlog(recorder, backlog, start.clock.now())
    return RunResult(
        job=root.job.job,
        job_uuid=root.job.job_uuid,
        generation=head.entry.generation,
        start_checkpoint_id=head.checkpoint_id,
        start_label=head.checkpoint_label,
        checkpoint_id=head.checkpoint_id,
        batches=0,
        rows_in=0,
        rows_out={},
        offsets={position.uid: position.offset for position in head.entry.sources},
        stopped_because=IDLE,
        duration_ms=round((start.clock.monotonic() - began) * 1000),
        waiting=waiting_for_others(manifest.waiting if manifest else ()),
        idle=True,
        backlog=backlog,
        lineage=_last_event(lineage),
    )


def _last_event(lineage: LineageReporter | None) -> LineageEvent | None:
    return lineage.last if lineage is not None else None


_STARTING_REPORT_INTERVAL = timedelta(seconds=15)
"""How often a run that is starting Spark reports that it still does."""


@dataclass(frozen=True)
class RunRequest:
    """The job to run, and callbacks that report its progress.

    Attributes:
        layers: settings from a file and from the command line; later ones win.
        note: who or what requested the run; stored in the log.
        on_step: called before each slow step with its description, such as "starting Spark".
        on_start: called when the job is claimed and restored.
        on_batch: called after each committed batch.
        initial_savepoint: savepoint that a new job root begins with; ignored by a root that has begun with it.
        shares_tables: whether sinks of the same uid of other job roots may write to the tables, too.
    """

    job_file: Path
    job_root: str
    layers: tuple[SettingsLayer, ...] = ()
    note: str = ""
    on_step: Callable[[str], None] = lambda step: None
    on_start: Callable[[JobRun], None] = lambda run: None
    on_batch: Callable[[BatchResult], None] = lambda result: None
    initial_savepoint: InitialSavepoint | None = None
    shares_tables: bool = False


@dataclass(frozen=True)
class Findings:
    """Result of the checks before a run.

    Attributes:
        refusals: every error that a run would fail with at its start.
        warnings: likely mistakes that do not prevent a run.
        unchecked: descriptions of omitted checks.
    """

    refusals: tuple[StateflowError, ...]
    warnings: tuple[str, ...]
    unchecked: tuple[str, ...]


@dataclass(frozen=True)
class PreparedJob:
    """A loaded job with resolved settings that nothing has been claimed or started for.

    Attributes:
        warnings: likely mistakes that do not prevent a run.
    """

    start: StartContext
    warnings: tuple[str, ...] = ()

    @property
    def code(self) -> str:
        """The hash of the job file and the modules next to it."""
        return self.start.graph.code

    def explanation(self) -> JobExplanation:
        """Returns the physical plan of the job."""
        return explain_job(self.start.graph, self.start.settings, self.start.on_spark)

    def examine(self, needs: Sequence[Needs], *, with_spark: bool) -> Findings:
        """Runs the start checks and collects every refusal; changes nothing.

        Args:
            needs: the resources that the checks may access.
            with_spark: start Spark for the checks that need it, unless another check has refused the run.
        """
        found = tuple(start_errors(self.start, needs))
        # Spark would report a known problem, such as a missing folder, a second time in other words.
        if found or not (with_spark and self.start.on_spark):
            return Findings(found, self.warnings, describe_unchecked(self.start))
        try:
            started, _ = start_spark(self.start)
        except StateflowError as e:
            return Findings((e,), self.warnings, describe_unchecked(self.start))
        refused = tuple(start_errors(started, [Needs.SPARK]))
        more = () if refused else warnings(started)
        return Findings(refused, (*self.warnings, *more), describe_unchecked(started))


def prepare(job_file: Path, job_root: str | None = None, layers: tuple[SettingsLayer, ...] = ()) -> PreparedJob:
    """Loads a job file, calls `build` and checks the graph; starts nothing.

    Args:
        job_root: None when it is unknown.
        layers: settings from a file and from the command line; later ones win.

    Raises:
        JobDefinitionError: the job file or its graph is invalid.
        ConfigError: a setting or the job root is invalid.
    """
    env, settings = _declared(job_file, layers)
    storage = None if job_root is None else open_storage(job_root)
    start = StartContext(env.graph, settings, needs_spark(env.graph), SystemClock(), storage)
    unused = env.warn_of_unused_parameters()
    of_sinks = (*warn_of_repeated_output(start), *warn_of_unregistered_tables(start))
    return PreparedJob(start, (*warn_of_untested_versions(start), *unused, *of_sinks))


def open_existing(job_file: Path, job_root: str, layers: tuple[SettingsLayer, ...] = ()) -> Job:
    """Opens an existing job root with the operators of a job file; starts no Spark and changes nothing.

    Raises:
        JobDefinitionError: the job file or its graph is invalid.
        ConfigError: a setting is invalid, or the job root does not exist.
        WrongJobRoot: the root belongs to another job.
    """
    env, settings = _declared(job_file, layers)
    return open_job(env.graph, settings, open_storage(job_root), SystemClock())


def _declared(job_file: Path, layers: tuple[SettingsLayer, ...]) -> tuple[StreamExecutionEnvironment, Settings]:
    """Loads a job file and calls `build`; the graph is checked, and has the hash of the code."""
    env, settings = declare(load_job(job_file).build, job_file.stem, layers)
    env.graph.code, env.graph.file = job_modules.digest, job_modules.job_file(job_file)
    env.graph.check()
    return env, settings


def run_job(request: RunRequest) -> RunResult:
    """Runs a job file until `run.until`, by default until it has caught up with its sources, or until a bound.

    A job runs on Spark when Spark reads one of its sources, or when it has Spark expressions and all of its sources
    allow that; otherwise in this process. A failed run restarts as `restart.strategy` says.

    Raises:
        StateflowError: the run was refused or failed. The history of an existing job has the error.
    """
    is_claimed = False

    def on_start(run: JobRun) -> None:
        nonlocal is_claimed
        is_claimed = True
        request.on_start(run)

    try:
        return _run_job(replace(request, on_start=on_start))
    except StateflowError as e:
        if not is_claimed:
            _record_failed_start(request.job_root, e)
        raise


def _record_failed_start(job_root: str, error: StateflowError) -> None:
    """Adds the error of a run that has not begun to the history of its job, if the job exists and can be reached."""
    # Not where the storage of the job root has failed: another request would wait as long. Other systems may be away.
    if isinstance(error, (Fenced, WrongJobRoot)) or (isinstance(error, StorageError) and "storage" in error.facts):
        return
    try:
        storage = open_storage(job_root)
        if storage.size(FORMAT) is not None:
            record_failed_start(JobRoot.open(storage, SystemClock()), error)
    except StateflowError as e:
        _log.info("the failed start is not in the history of the job: %s", e)


def _run_job(request: RunRequest) -> RunResult:
    clock = SystemClock()
    began = clock.monotonic()
    prepared = prepare(request.job_file, request.job_root, request.layers)
    start = replace(prepared.start, shares_tables=request.shares_tables)
    assert start.storage is not None
    for warning in prepared.warnings:
        log_event(_log, logging.WARNING, "warning", text=warning, warning=warning)
    if request.initial_savepoint:
        check_start(start, [Needs.NOTHING])
        new = NewJobRoot(start.storage, clock, start.graph, start.settings, start.on_spark, request.note)
        create_job_root(new, request.initial_savepoint)
    idle = idle_result(start, began)
    if idle is not None:
        return idle
    with telemetry(start.settings.telemetry, start.settings.name) as recorder, _lineage(start, request) as lineage:
        # Spark takes long to start, so a run on Spark first makes the checks that the claim makes again.
        check_start(start, [Needs.NOTHING, Needs.ROOT] if start.on_spark else [Needs.NOTHING])
        runs = _Runs(start, request, recorder, lineage, began)
        run_once = _run_on_spark(runs) if start.on_spark else _run_locally(runs)
        reached = with_restarts(run_once, restart_strategy(start.settings.restart, clock.random), clock)
        return runs.result(reached, clock.monotonic() - began)


@contextmanager
def _lineage(start: StartContext, request: RunRequest) -> Iterator[LineageReporter | None]:
    """Provides what reports the runs of a launch, if that is configured; reports an error that no run has reported."""
    lineage = report_lineage(start.graph, start.settings, start.clock, request.note)
    if lineage is None:
        yield None
        return
    try:
        yield lineage
    except BaseException as e:
        lineage.failed(e)
        raise
    finally:
        lineage.close()


def run_if_idle(request: RunRequest) -> RunResult | None:
    """Returns the result of a run that has nothing to do; None if `run_job` has to be called. Starts no Spark.

    The job file is loaded only if settings and job root do not show that a run is needed. All other errors of `run_job`
    are left to that call, whose host may have what this one lacks.

    Args:
        request: the run; one with an initial savepoint is never idle.

    Raises:
        ConfigError: the storage of the job root refuses access: it would refuse `run_job` as well.
    """
    clock = SystemClock()
    began = clock.monotonic()
    if request.initial_savepoint:
        return None
    reads_root = False
    try:
        storage, settings = open_storage(request.job_root), resolve(*request.layers).run
        reads_root = True
        reason = need_without_job(storage, clock, settings)
        reads_root = False
        if reason:
            log_event(_log, logging.INFO, "not_idle", text=f"Spark is needed: {reason}", reason=reason)
            return None
        return idle_result(prepare(request.job_file, request.job_root, request.layers).start, began)
    except StateflowError as e:
        # Not a subclass: Python, packages and version of the driver's host may be others.
        if reads_root and type(e) is ConfigError:
            raise
        log_event(_log, logging.INFO, "not_idle", text=f"Spark is needed: {e.sentence}", reason=e.code)
        return None


def needs_spark(graph: Graph) -> bool:
    """Returns whether the job runs on Spark rather than in this process."""
    sources = [node.source for node in graph.sources]
    if any(isinstance(source, Source) or source.needs_spark for source in sources):
        return True
    spark_is_allowed = all(isinstance(source, LocalSource) and source.may_use_spark for source in sources)
    return spark_is_allowed and any(map(has_transform, graph.consumed))


def start_spark(start: StartContext) -> tuple[StartContext, dict[str, Source]]:
    """Starts Spark; returns the start with its session, and the sources by uid as Spark reads them."""
    # Importing Spark takes a second, which runs without it save.
    from stateflow.connectors.partitioned.spark_reader import as_spark_reads
    from stateflow.runtime.spark.session.session import job_traits, open_session

    spark = open_session(start.settings, job_traits(start.graph))
    sources = {n.uid: as_spark_reads(n.source) for n in start.graph.sources}
    return with_session(start, spark, list(sources.values())), sources


class _Runs:
    """The runs of a launch: the first one and its restarts, with their shared metrics and the sums over all."""

    def __init__(
        self,
        start: StartContext,
        request: RunRequest,
        recorder: Recorder,
        lineage: LineageReporter | None,
        began: float,
    ) -> None:
        self.planned = start
        self._began = began
        self.request = request
        self.bounds = RunBounds(start.settings.run, start.clock)
        self._recorder = recorder
        self._lineage = lineage
        self._totals = RunTotals()
        self._started_from: tuple[int, str] | None = None
        self._restarts = 0
        self._run: JobRun | None = None
        self._graph: bytes | None = None

    def begin(self, executor: Executor, number: int) -> JobRun:
        """Claims and restores the job for a run.

        Args:
            number: 0 for the first run, then the number of the restart.
        """
        request, start = self.request, self.planned
        assert start.storage is not None
        self._restarts = number
        self._run = None
        request.on_step("restoring the newest checkpoint")
        job = create_or_open_job(
            start.graph, start.settings, start.storage, start.clock, shares_tables=request.shares_tables
        )
        if number == 0 and (timeout := start.settings.run.take_over) is not None:
            if active_generation(job.root):
                request.on_step("preparing the first batch")
                executor.warm_up(job.plan)
            request.on_step("waiting for the active run to end with a checkpoint")
            end_active_run(job.root, timeout, request.note)
        job = replace(job, recorder=self._recorder, launch=self._facts(number))
        if self._lineage is not None:
            self._lineage.before_claim(job.root)
            job = replace(job, observer=self._lineage)
        self._run = run = JobRun(job, executor, self._totals)
        if number:
            self._recorder.count("num_restarts")
        run.start(f"{request.note}; restart {number}".removeprefix("; ") if number else request.note)
        if self._started_from is None:
            self._started_from = run.restored.checkpoint_id, run.start_label
        if self._lineage is not None:
            self._lineage.started(run)
        request.on_start(run)
        return run

    def _facts(self, number: int) -> LaunchFacts:
        """Returns the facts about a run for the history. The start of a restart is timed from its own begin."""
        start = self.planned
        if self._graph is None:
            explained = explain_job(start.graph, start.settings, start.on_spark, with_states=False)
            self._graph = encode_json(explained).encode()
        began = self._began if number == 0 else start.clock.monotonic()
        return LaunchFacts(began, start.graph.file, self._graph)

    @contextmanager
    def failures_recorded(self) -> Iterator[None]:
        """Adds an exception of the body to the history of the job and to its lineage, then raises it."""
        try:
            yield
        except Exception as e:
            known = e if isinstance(e, StateflowError) else InternalError(f"{type(e).__name__}: {e}")
            if self._run is not None:
                self._run.record_failure(known)
            if self._lineage is not None:
                self._lineage.failed(known, self._run)
            raise

    def finished(self, reached: str) -> str:
        """Reports the end of a run to its lineage; returns the end condition that it met."""
        if self._lineage is not None and self._run is not None:
            self._lineage.finished(self._run, reached)
        return reached

    def start_spark(self) -> tuple[StartContext, dict[str, Source]]:
        """Starts Spark as `start_spark` does, makes the checks that need it, and reports the progress."""
        report, now = self.request.on_step, self.planned.clock.monotonic
        began = now()
        report("starting Spark")
        with call_periodically(
            _STARTING_REPORT_INTERVAL, lambda: report(f"still starting Spark, after {now() - began:.0f} s")
        ):
            found = start_spark(self.planned)
        report(f"Spark started in {now() - began:.0f} s")
        began = now()
        report("checking sources and tables")
        check_start(found[0], [Needs.SPARK])
        report(f"checked sources and tables in {now() - began:.0f} s")
        return found

    def result(self, reached: str, seconds: float) -> RunResult:
        """Returns the outcome of all runs.

        Args:
            reached: the end condition that was met.
            seconds: wall-clock time of the whole run.
        """
        run = self._run
        assert run is not None and self._started_from is not None
        root = run.job.root
        checkpoint_id, label = self._started_from
        return RunResult(
            job=root.job.job,
            job_uuid=root.job.job_uuid,
            generation=run.head.entry.generation,
            start_checkpoint_id=checkpoint_id,
            start_label=label,
            checkpoint_id=run.head.checkpoint_id,
            batches=run.totals.batches,
            rows_in=run.totals.rows_in,
            rows_out=run.totals.rows_out,
            offsets={p.uid: p.offset for p in run.positions},
            stopped_because=reached,
            duration_ms=round(seconds * 1000),
            restarts=self._restarts,
            late_rows_dropped=run.totals.late_rows_dropped,
            hot_keys=tuple(run.totals.hot_keys.values()),
            waiting=waiting_for_others(run.manifest.waiting if run.manifest else ()),
            backlog=run.backlog,
            quarantined_count=run.totals.quarantined_count,
            quarantined=list(map(Quarantined.of, run.totals.quarantined)),
            lineage=_last_event(self._lineage),
        )


def _run_locally(runs: _Runs) -> Callable[[int], str]:
    """Returns a function that makes one run in this process and returns the end condition that it met."""
    sources = {n.uid: n.source for n in runs.planned.graph.sources if isinstance(n.source, LocalSource)}

    def run_once(number: int) -> str:
        with runs.failures_recorded():
            run = runs.begin(LocalExecutor(), number)
            return runs.finished(run_local(run, sources, runs.request.on_batch, runs.bounds))

    return run_once


def _run_on_spark(runs: _Runs) -> Callable[[int], str]:
    """Starts Spark; returns a function that makes one run on it and returns the end condition that it met."""
    from stateflow.runtime.spark.errors import is_alive, translate_spark_errors
    from stateflow.runtime.spark.executor import SparkExecutor
    from stateflow.runtime.spark.streaming_query import SparkRun

    start, sources = runs.start_spark()
    spark = start.session
    assert spark is not None

    def run_once(number: int) -> str:
        with runs.failures_recorded(), translate_spark_errors(lambda: is_alive(spark)):
            run = runs.begin(SparkExecutor(), number)
            return runs.finished(SparkRun(spark, run, sources, runs.request.on_batch, runs.bounds).run())

    return run_once
