"""The façade that users start from: declares a job's graph, and runs it."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from stateflow.api.backends import StateBackend
from stateflow.api.collection import CollectionSource
from stateflow.api.graph import Graph, SourceNode
from stateflow.api.source import LocalSource, Source
from stateflow.api.streams import DataStream
from stateflow.clock import Clock, SystemClock
from stateflow.config import resolve
from stateflow.errors import InternalError, JobDefinitionError, StateflowError
from stateflow.events import log_event
from stateflow.ids import check_name
from stateflow.keygroups import check_max_parallelism
from stateflow.metrics import Recorder
from stateflow.runtime.assembly import assemble, load_job, open_job
from stateflow.runtime.bounds import Bounds
from stateflow.runtime.dead_letters import innermost
from stateflow.runtime.drawing import Drawing, draw
from stateflow.runtime.error_position import naming_job_line
from stateflow.runtime.executors import Executor
from stateflow.runtime.job import BatchResult, Job, Totals
from stateflow.runtime.local import LocalExecutor, has_transform
from stateflow.runtime.local_run import run_local
from stateflow.runtime.new_root import Beginning, RootToBegin, begin_job_root
from stateflow.runtime.preflight import (
    Needs,
    Start,
    not_checked,
    refusals,
    refuse,
    reused_tables,
    warnings,
    with_session,
)
from stateflow.runtime.quarantine import KEPT
from stateflow.runtime.repeated import repeated
from stateflow.runtime.restarts import restart_strategy, with_restarts
from stateflow.runtime.run import JobRun
from stateflow.settings import Settings
from stateflow.storage import Storage, open_storage
from stateflow.telemetry import telemetry

_log = logging.getLogger(__name__)

_SIGN_OF_LIFE = timedelta(seconds=15)
"""How often a run that starts Spark says so."""

Build = Callable[["StreamExecutionEnvironment"], object]


@dataclass(frozen=True)
class RunResult:
    """How a run ended.

    Attributes:
        started_from: checkpoint that it continued from; 0 when it began, or went on from a savepoint.
        started_at: the same in words, such as ``savepoint before-upgrade (checkpoint 7)``.
        restarts: how often it started again by itself; generation, batches and rows are those of all of it.
        quarantined_count: corrupt input files that it skipped.
        quarantined: the newest of them, each with ``source``, ``file`` and ``error``.
    """

    job: str
    job_uuid: str
    generation: int
    started_from: int
    started_at: str
    checkpoint_id: int
    batches: int
    rows_in: int
    rows_out: dict[str, int]
    offsets: dict[str, str]
    stopped_because: str
    duration_s: float
    restarts: int = 0
    quarantined_count: int = 0
    quarantined: list[dict[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class RunRequest:
    """What to run.

    Attributes:
        layers: settings from a file and from the command line; later ones win.
        note: who or what asked for it; kept in the log.
        beginning: the savepoint that a new job root begins with; a root that has begun with it goes on.
        on_step: called with what the run is about to do, such as "starting Spark", before each slow step.
        on_start: told when the job is claimed and restored.
        on_batch: told after each committed batch.
    """

    job_file: Path
    job_root: str
    layers: tuple[dict[str, Any], ...] = ()
    note: str = ""
    on_step: Callable[[str], None] = lambda step: None
    on_start: Callable[[JobRun], None] = lambda run: None
    on_batch: Callable[[BatchResult], None] = lambda result: None
    beginning: Beginning | None = None


class StreamExecutionEnvironment:
    """What `build(env)` gets: sources begin here, and the job's parameters are here.

    Args:
        parameters: the ``job.NAME`` settings.
    """

    def __init__(self, parameters: Mapping[str, str] | None = None) -> None:
        self.graph = Graph()
        self._parameters = dict(parameters or {})
        self._asked: dict[str, None] = {}
        self.defaults: dict[str, Any] = {}

    def from_source(self, source: Source | LocalSource, *, uid: str = "") -> DataStream:
        """A stream of a source's rows. The uid is what the source's position is matched by."""
        if not isinstance(source, Source | LocalSource):
            raise JobDefinitionError("from_source needs a source", hint="such as FileSource(path, schema=Row)",
                                     given=repr(source), uid=uid)  # fmt: skip
        return DataStream(self.graph, self.graph.add_source(SourceNode(uid, source, source.schema)))

    def from_collection(self, rows: Iterable[Any], row_class: type[Any], *, uid: str = "") -> DataStream:
        """A stream of rows that the job file has itself: bounded, for tests and examples, with Spark or without.

        Args:
            rows: objects of `row_class`. A later run goes on behind the rows that were read, by their number.
        """
        return self.from_source(CollectionSource(rows, row_class), uid=uid)

    def parameter(self, name: str, default: str | None = None) -> str:
        """A ``job.NAME`` setting. Raises JobDefinitionError when it has no value and no default."""
        self._asked[name] = None
        value = self._parameters.get(name, default)
        if value is None:
            raise JobDefinitionError("the job needs a parameter", hint=f"pass --set job.{name}=…", name=name,
                                     given=sorted(self._parameters))  # fmt: skip
        return value

    @property
    def parameters(self) -> dict[str, str]:
        """All ``job.NAME`` settings. A job that reads this is taken to use each of them."""
        self._asked |= dict.fromkeys(self._parameters)
        return dict(self._parameters)

    def unused_parameters(self) -> tuple[str, ...]:
        """A sentence for each ``job.NAME`` setting that `build` has not asked for."""
        asked = f"the job reads {', '.join(self._asked)}" if self._asked else "the job reads no parameter"
        unused = [name for name in self._parameters if name not in self._asked]
        return tuple(f"parameter job.{name} is not used; {asked}" for name in unused)

    def configure(self, **settings: Any) -> None:
        """Default settings of this job, in code; a settings file and the command line win over them.

        Dots of a setting's name are written as two underscores: ``checkpoints__retained=5``.
        """
        self.defaults.update({name.replace("__", "."): value for name, value in settings.items()})

    def set_state_backend(self, backend: StateBackend) -> None:
        """What keeps keyed state by default; a settings file and the command line win over it.

        Raises JobDefinitionError for something that is none, such as Flink's own classes.
        """
        if not isinstance(backend, StateBackend):
            raise JobDefinitionError("this is no state backend", hint="MemoryStateBackend(), FsStateBackend() or "
                                     "RocksDBStateBackend(), from stateflow", given=repr(backend))  # fmt: skip
        self.defaults.update(backend.settings)


def declare(
    build: Build, name: str, layers: tuple[Mapping[str, Any], ...]
) -> tuple[StreamExecutionEnvironment, Settings]:
    """Runs `build` and resolves the settings.

    Args:
        name: of the job, unless settings name it.
        layers: settings from a file and from the command line; later ones win.
    """
    parameters = {k: v for layer in layers for k, v in layer.items() if k.startswith("job.")}
    env = StreamExecutionEnvironment(resolve(parameters).job)
    if not inspect.signature(build).parameters:
        raise JobDefinitionError("build must take the environment", hint="define def build(env)")
    try:
        with naming_job_line():
            build(env)
    except StateflowError:
        raise
    except Exception as e:
        raise JobDefinitionError(f"build raised {type(e).__name__}: {e}", hint="mend the job file",
                                 where=innermost(e)) from e  # fmt: skip
    settings = resolve({"name": name}, env.defaults, *layers)
    check_name("the job's name", settings.name)
    check_max_parallelism(settings.key_groups)
    return env, settings


def open_existing(job_file: Path, job_root: str, layers: tuple[dict[str, Any], ...] = ()) -> Job:
    """The job of a job file on an existing root, to look at it or to go back; starts no Spark and changes nothing.

    Raises JobDefinitionError, ConfigError or WrongJobRoot.
    """
    module = load_job(job_file)
    env, settings = declare(module.build, job_file.stem, layers)
    env.graph.check()
    return open_job(env.graph, settings, open_storage(job_root), SystemClock())


@dataclass(frozen=True)
class Findings:
    """What is known of a run before it.

    Attributes:
        refusals: what it would be refused for: all of it.
        warnings: what does not refuse it, and is likely to be a mistake.
        unchecked: what was not looked at.
    """

    refusals: tuple[StateflowError, ...]
    warnings: tuple[str, ...]
    unchecked: tuple[str, ...]


@dataclass(frozen=True)
class PreparedJob:
    """A job file's job, as far as a start knows it before it claims anything.

    Attributes:
        warnings: what does not refuse a run, and is likely to be a mistake.
    """

    start: Start
    job_file: Path
    warnings: tuple[str, ...] = ()

    def drawing(self) -> Drawing:
        """How the job would run."""
        return draw(self.start.graph, self.start.settings, self.start.on_spark)

    def examine(self, needs: Sequence[Needs], *, with_spark: bool) -> Findings:
        """What a run would be refused for, and what else is known of it, without changing anything.

        Args:
            needs: what else may be looked at.
            with_spark: whether Spark is started for what only Spark knows, when nothing else is refused.
        """
        found = tuple(refusals(self.start, needs))
        known = self.warnings + reused_tables(self.start)
        # Spark would report what is refused already, such as a folder that is not there, in other words.
        if found or not (with_spark and self.start.on_spark):
            return Findings(found, known, not_checked(self.start))
        try:
            started, _ = start_spark(self.start, self.job_file)
        except StateflowError as e:
            return Findings((e,), known, not_checked(self.start))
        refused = tuple(refusals(started, [Needs.SPARK]))
        more = () if refused else warnings(started)
        return Findings(refused, (*known, *more), not_checked(started))


def prepare(
    job_file: Path, job_root: str | None = None, layers: tuple[dict[str, Any], ...] = ()
) -> PreparedJob:
    """Loads a job file, calls `build` and checks the graph; starts nothing.

    Args:
        job_root: None when it is not known.

    Raises JobDefinitionError or ConfigError.
    """
    env, settings = declare(load_job(job_file).build, job_file.stem, layers)
    env.graph.check()
    storage = None if job_root is None else open_storage(job_root)
    start = Start(env.graph, settings, needs_spark(env.graph), SystemClock(), storage)
    return PreparedJob(start, job_file, env.unused_parameters())


def run_job(request: RunRequest) -> RunResult:
    """Runs a job file until it is caught up or a bound is reached. Raises StateflowError.

    A job runs on Spark when Spark reads one of its sources, or when it has Spark expressions and all of its sources
    allow that; otherwise in this process. A run that fails starts again as `restart.strategy` says.
    """
    clock = SystemClock()
    began = clock.monotonic()
    prepared = prepare(request.job_file, request.job_root, request.layers)
    start, settings = prepared.start, prepared.start.settings
    for warning in prepared.warnings + (() if request.beginning else reused_tables(start)):
        log_event(_log, logging.WARNING, "warning", text=warning, warning=warning)
    assert start.storage is not None
    if request.beginning:
        refuse(start, [Needs.NOTHING])
        new = RootToBegin(start.storage, clock, start.graph, settings, start.on_spark, request.note)
        begin_job_root(new, request.beginning)
    # On Spark also what is checked again with the claim: Spark takes long to start.
    refuse(start, [Needs.NOTHING, Needs.ROOT] if start.on_spark else [Needs.NOTHING])
    drive = _drive_on_spark if start.on_spark else _drive_here
    with telemetry(settings.telemetry, settings.name) as recorder:
        launch = _Launch(start, _Outside(start.storage, clock, recorder), request)
        attempt = drive(launch)
        reached = with_restarts(attempt, restart_strategy(settings.restart, clock.random), clock)
        return launch.result(reached, clock.monotonic() - began)


@dataclass(frozen=True)
class _Outside:
    """What a run needs of the world around it."""

    storage: Storage
    clock: Clock
    recorder: Recorder


class _Launch:
    """What a run and its restarts have in common."""

    def __init__(self, start: Start, outside: _Outside, request: RunRequest) -> None:
        self.planned = start
        self.graph = start.graph
        self.settings = settings = start.settings
        self.storage = outside.storage
        self.request = request
        self.bounds = Bounds(settings.run, outside.clock)
        self._outside = outside
        self._totals = Totals()
        self._started_from: tuple[int, str] | None = None
        self._restarts = 0
        self._run: JobRun | None = None

    def start(self, executor: Executor, number: int) -> JobRun:
        """A run that is claimed and restored.

        Args:
            number: 0, then that of the restart.
        """
        request = self.request
        self._restarts = number
        request.on_step("restoring the newest checkpoint")
        job = assemble(self.graph, self.settings, self.storage, self._outside.clock)
        self._run = run = JobRun(replace(job, recorder=self._outside.recorder), executor, self._totals)
        if number:
            self._outside.recorder.count("num_restarts")
        run.start(f"{request.note}; restart {number}".removeprefix("; ") if number else request.note)
        if self._started_from is None:
            self._started_from = run.restored.checkpoint_id, run.stood_at
        request.on_start(run)
        return run

    @contextmanager
    def failures_recorded(self) -> Iterator[None]:
        """Adds an error within to the history of the job; it is raised all the same."""
        try:
            yield
        except Exception as e:
            if self._run is not None:
                known = e if isinstance(e, StateflowError) else InternalError(f"{type(e).__name__}: {e}")
                self._run.record_failure(known)
            raise

    def with_spark(self) -> tuple[Start, dict[str, Source]]:
        """As `start_spark`; reports each step of it."""
        report, now = self.request.on_step, self._outside.clock.monotonic
        began = now()
        report("starting Spark")
        with repeated(_SIGN_OF_LIFE, lambda: report(f"still starting Spark, after {now() - began:.0f} s")):
            found = start_spark(self.planned, self.request.job_file)
        report(f"Spark started in {now() - began:.0f} s")
        return found

    def result(self, reached: str, seconds: float) -> RunResult:
        """What became of it."""
        run = self._run
        assert run is not None and self._started_from is not None
        root = run.job.root
        started_from, started_at = self._started_from
        return RunResult(
            job=root.job.job, job_uuid=root.job.job_uuid, generation=run.head.entry.generation,
            started_from=started_from, started_at=started_at, checkpoint_id=run.head.checkpoint_id,
            batches=run.totals.batches, rows_in=run.totals.rows_in, rows_out=run.totals.rows_out,
            offsets={p.uid: p.offset for p in run.positions}, stopped_because=reached, duration_s=round(seconds, 3),
            restarts=self._restarts, quarantined_count=len(run.totals.quarantined),
            quarantined=[
                {"source": q.source, "file": q.file, "error": q.error} for q in run.totals.quarantined[-KEPT:]
            ],
        )  # fmt: skip


def needs_spark(graph: Graph) -> bool:
    """Whether the job cannot run in this process."""
    sources = [node.source for node in graph.sources]
    if any(isinstance(source, Source) for source in sources):
        return True
    may = all(isinstance(source, LocalSource) and source.may_use_spark for source in sources)
    return may and any(map(has_transform, graph.consumed))


def _drive_here(launch: _Launch) -> Callable[[int], str]:
    graph = launch.graph
    sources = {n.uid: n.source for n in graph.sources if isinstance(n.source, LocalSource)}

    def attempt(number: int) -> str:
        with launch.failures_recorded():
            run = launch.start(LocalExecutor(), number)
            return run_local(run, sources, launch.request.on_batch, launch.bounds)

    return attempt


def start_spark(start: Start, job_file: Path) -> tuple[Start, dict[str, Source]]:
    """The start with Spark running, and its sources by uid, as Spark reads them."""
    # Spark takes a second to import, and runs without it do not need it.
    from stateflow.connectors.python import PythonSource
    from stateflow.runtime.session import open_session, traits_of

    spark = open_session(start.settings, job_file, traits_of(start.graph))
    sources = {
        n.uid: PythonSource(n.source) if isinstance(n.source, LocalSource) else n.source
        for n in start.graph.sources
    }
    return with_session(start, spark, list(sources.values())), sources


def _drive_on_spark(launch: _Launch) -> Callable[[int], str]:
    from stateflow.runtime.spark import SparkExecutor
    from stateflow.runtime.spark_failures import is_alive, told_of_spark
    from stateflow.runtime.spark_run import SparkRun

    start, sources = launch.with_spark()
    refuse(start, [Needs.SPARK])
    spark = start.session
    assert spark is not None

    def attempt(number: int) -> str:
        with launch.failures_recorded(), told_of_spark(lambda: is_alive(spark)):
            run = launch.start(SparkExecutor(), number)
            return SparkRun(spark, run, sources, launch.request.on_batch, launch.bounds).run()

    return attempt
