"""Runs the batches of a checkpoint again, in scratch storage, on Spark or in this process.

The batches start from the state before them and have their original processing times. Every sink of the job is replaced
by one that keeps rows in scratch storage and publishes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from stateflow.api.changelog import Changelog
from stateflow.api.graph import Graph
from stateflow.api.schema import RowSchema
from stateflow.api.sink import Sink, SinkContext, SinkTable, SinkWriter, Writing
from stateflow.api.source import LocalSource
from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.documents import NOT_BEGUN, Manifest, Pin, SourcePosition
from stateflow.checkpoint.log.job_root import LEASE, JobRoot, hold_lease
from stateflow.checkpoint.restore.source_positions import with_added_sources
from stateflow.checkpoint.restore.state_assignment import assign_state
from stateflow.clock import SystemClock
from stateflow.config.settings import Settings
from stateflow.config.sources import SettingsLayer
from stateflow.errors import ConfigError, InputLost, InternalError, Interrupted, StateflowError, StorageError
from stateflow.launch import PreparedJob, prepare, start_spark
from stateflow.private_files import ScratchFolder
from stateflow.replay.input import (
    LocalInput,
    PlannedBatch,
    PlannedReplay,
    RunRows,
    SplitTimes,
    TargetCheckpoints,
    find_target,
    plan_replay,
    replayable_batches,
)
from stateflow.replay.key_trace import DebuggerQuit, KeyDebugger, KeyRequest, KeyTracer, WantedKey
from stateflow.replay.report import BatchReport, EmittedRows, KeyReport, ReplayReport
from stateflow.replay.state_diff import StateChanges, StateComparison
from stateflow.requesters import by_process
from stateflow.runtime.driver.batch_runner import Batch, BatchRunner, CompletedBarrier, StartingPoint
from stateflow.runtime.executor import BatchInfo, Executor
from stateflow.runtime.job import Job, Positions, check_same_reader
from stateflow.runtime.job_loader import open_job, writer_name
from stateflow.runtime.local_run import LocalExecutor
from stateflow.runtime.preflight import StartContext
from stateflow.runtime.task import store_cache
from stateflow.state.handles import Committable
from stateflow.storage import PutResult, Storage, open_storage
from stateflow.storage.overlay import SCRATCH_GENERATION, OverlayStorage

DEFAULT_ROWS = 20


@dataclass(frozen=True)
class ReplayRequest:
    """Request to replay a batch.

    Attributes:
        batch: id of the checkpoint whose batches run again.
        layers: settings from a file and from the command line; later ones win.
        max_rows: rows of each sink, changes of state, calls for a key and rows of a call that the report has; None for
            all.
        key: the only key whose calls and state the report has; None for all keys.
        debugger: runs the calls for the key; the batches then run in this process.
        on_step: called before each slow step with its description.
    """

    job_file: Path
    job_root: str
    batch: int
    layers: tuple[SettingsLayer, ...] = ()
    max_rows: int | None = DEFAULT_ROWS
    key: KeyRequest | None = None
    debugger: KeyDebugger | None = None
    on_step: Callable[[str], None] = lambda step: None


@dataclass(frozen=True)
class _Checkpoints:
    """The two checkpoints of a replay and their manifests, which are pinned."""

    root: JobRoot
    refs: TargetCheckpoints
    target: Manifest
    base: Manifest | None

    @property
    def base_id(self) -> int:
        return self.refs.base.id if self.refs.base else 0


def replay(request: ReplayRequest) -> ReplayReport:
    """Runs the batches that led to a checkpoint again, from the checkpoint before it, and publishes nothing.

    The job root does not change, apart from pins that are removed at the end.

    Raises:
        ConfigError: the checkpoint or the one before it is not retained, or job and state do not fit.
        InputLost: a source no longer has the rows.
        StateflowError: a batch failed.
    """
    prepared = prepare(request.job_file, request.job_root, request.layers)
    return replay_prepared(prepared, request)


def replay_prepared(prepared: PreparedJob, request: ReplayRequest) -> ReplayReport:
    """Replays a loaded job; arguments and errors are as for `replay`."""
    storage = prepared.start.storage
    assert storage is not None
    with _pinned_checkpoints(storage, request.batch) as found, ScratchFolder() as scratch:
        return _Replay(prepared, request, found, scratch.path).run()


@contextmanager
def _pinned_checkpoints(storage: Storage, batch: int) -> Iterator[_Checkpoints]:
    root = JobRoot.open(storage, SystemClock(), writer_name())
    refs, pins = root.read_kept(lambda head: _pin_target(root, head, batch))
    with ExitStack() as held:
        for pin in pins:
            held.enter_context(hold_lease(root, pin))
        base = root.checkpoints.manifest_of(refs.base) if refs.base else None
        yield _Checkpoints(root, refs, root.checkpoints.manifest_of(refs.target), base)


def _pin_target(root: JobRoot, head: Head, batch: int) -> tuple[TargetCheckpoints, list[Pin]]:
    """Pins the checkpoint of a batch and the one before it; or none of them, if one was released meanwhile."""
    refs, pins = find_target(root, head, batch), list[Pin]()
    try:
        for ref in (refs.target, refs.base):
            if ref is not None:
                pins.append(root.admin.pin(ref, by_process(root.writer), "replaying a batch", lease=LEASE))
    except StateflowError:
        for pin in pins:
            root.admin.unpin(pin.id)
        raise
    return refs, pins


class _Replay:
    """One replay, whose checkpoints are pinned."""

    def __init__(self, prepared: PreparedJob, request: ReplayRequest, found: _Checkpoints, folder: Path) -> None:
        self._request = request
        self._found = found
        self._start = prepared.start
        self._objects = open_storage((folder / "objects").as_uri())
        self._folder = folder
        assert prepared.start.storage is not None
        self._storage = OverlayStorage(prepared.start.storage, self._objects)
        self._job = self._open_job()
        self._target, self._base = self._matched()
        self._keys = self._wanted_keys()
        self._tracer = KeyTracer(self._keys, request.debugger, request.max_rows) if request.key else None

    def run(self) -> ReplayReport:
        """Runs the batches and returns what they did."""
        planned = plan_replay(self._found.target, self._found.base)
        state = assign_state(self._found.base_id, self._base, self._job.wanted)
        check_same_reader(self._base or self._target, self._start.on_spark)
        start = StartingPoint(SCRATCH_GENERATION, state.operators, self._base)
        with start_reading(
            replace(self._start, settings=self._job.settings),
            self._job,
            self._target,
            folder=self._folder,
            on_step=self._request.on_step,
            tracer=self._tracer,
        ) as how:
            objects, local = self._objects.uri, self._folder / "local"
            runner = ReplayedBatches(self._job, how.executor, start, scratch_uri=objects, local_folder=local)
            try:
                self._run_batches(planned, how.rows, runner)
            except InputLost as e:
                e.add_facts(batch=self._request.batch, left=self._batches_left(how.rows))
                raise
            except DebuggerQuit as e:
                raise Interrupted(
                    "the replay was ended in the debugger", hint="continue with c to see its result"
                ) from e
            finally:
                store_cache.close_job(self._job.root.job.job_uuid)
        return self._report(planned, runner)

    def _run_batches(self, planned: PlannedReplay, rows: BatchReader, runner: ReplayedBatches) -> None:
        for batch in planned.batches:
            rows.check(batch, self._target)
        for number, batch in enumerate(planned.batches, 1):
            self._request.on_step(f"running batch {number} of {len(planned.batches)}")
            rows.run(batch, partial(runner.replay, batch))

    def _batches_left(self, rows: BatchReader) -> list[int]:
        """Returns other batches of which the sources are not known to have lost rows; for an error."""
        root = self._found.root
        kept = {ref.id: ref for ref in root.checkpoints.list_kept(root.head())}
        others = [number for number in replayable_batches(root, kept) if number != self._request.batch]
        return [number for number in others if self._has_rows(rows, root, number)]

    def _has_rows(self, rows: BatchReader, root: JobRoot, batch: int) -> bool:
        try:
            refs = find_target(root, root.head(), batch)
            base = root.checkpoints.manifest_of(refs.base) if refs.base else None
            target, base = self._with_sources(root.checkpoints.manifest_of(refs.target), base)
            for each in plan_replay(target, base).batches:
                rows.check(each, target)
        except StateflowError:
            # The error that is being raised is the reason for the failure, whatever is wrong with other batches.
            return False
        return True

    def _wanted_keys(self) -> dict[str, WantedKey]:
        key = self._request.key
        return key.keys(self._job.plan.key_columns, self._job.root.job.max_parallelism) if key else {}

    def _open_job(self) -> Job:
        graph = _collecting(self._start.graph, CollectingSink(self._objects.uri, self._request.max_rows))
        settings = _settings_of(self._start.settings, self._found.target)
        return open_job(graph, settings, self._storage, SystemClock())

    def _matched(self) -> tuple[Manifest, Manifest | None]:
        """Returns the manifests of the replay with the sources of the job."""
        return self._with_sources(self._found.target, self._found.base)

    def _with_sources(self, target: Manifest, base: Manifest | None) -> tuple[Manifest, Manifest | None]:
        """Returns manifests with the sources of the job, which may have gained some since."""
        known, sources = {uid for uid, _ in self._job.sources}, self._job.sources
        removed = [position.uid for position in target.sources if position.uid not in known]
        if removed:
            raise ConfigError(
                "the job no longer has a source that the batch has read",
                hint="replay the batch with the version of the job that ran it",
                sources=removed,
            )
        return with_added_sources(target, sources), base and with_added_sources(base, sources)

    def _report(self, planned: PlannedReplay, runner: ReplayedBatches) -> ReplayReport:
        request, result = self._request, runner.manifest
        assert result is not None
        self._request.on_step("comparing the state")
        compare = StateComparison(self._storage, self._job.root.job.max_parallelism, request.max_rows)
        return ReplayReport(
            batch=request.batch,
            base=self._found.base_id,
            batches=tuple(
                BatchReport(batch.processing_time.isoformat(), barrier.rows_in, dict(batch.start), dict(batch.end))
                for batch, barrier in zip(planned.batches, runner.barriers, strict=True)
            ),
            deviation="; ".join(filter(None, [planned.deviation, self._target.code_difference(self._job.code)])),
            emitted=tuple(self._emitted(uid, runner) for uid in sorted(self._job.sinks)),
            state=compare.diff(self._base, result),
            difference=compare.diff(self._target, result),
            keys=tuple(
                self._key_report(uid, key, compare.entries_of_key(uid, key, self._base, result))
                for uid, key in sorted(self._keys.items())
            ),
        )

    def _key_report(self, uid: str, key: WantedKey, state: StateChanges) -> KeyReport:
        tracer = self._tracer
        assert tracer is not None
        calls = tuple(call for call in tracer.calls if call.operator == uid)
        return KeyReport(uid, key.values, calls, tuple(state.changes), tracer.counts[uid], state.counts.total())

    def _emitted(self, uid: str, runner: ReplayedBatches) -> EmittedRows:
        rows: list[dict[str, object]] = []
        count, limit = 0, self._request.max_rows
        for barrier in runner.barriers:
            committables = barrier.output.get(uid, [])
            count += sum(committable.rows for committable in committables)
            left = None if limit is None else limit - len(rows)
            rows += collected_rows(self._objects, committables, left)
        return EmittedRows(uid, count, rows)


def _collecting(graph: Graph, sink: CollectingSink) -> Graph:
    """Returns the graph with a collecting sink in place of each sink."""
    return replace(graph, sinks=[replace(node, sink=sink) for node in graph.sinks])


def _settings_of(settings: Settings, target: Manifest) -> Settings:
    """Returns the settings of the replay: the parallelism of the checkpoint, and state that is stored at once."""
    found = {operator.parallelism for operator in target.operators}
    parallelism = found.pop() if len(found) == 1 else settings.parallelism
    checkpoints = replace(settings.checkpoints, asynchronous=False)
    return replace(settings, parallelism=parallelism, checkpoints=checkpoints)


_LOCAL_MASTER = "local[2,4]"


class BatchReader(Protocol):
    """Reads the rows of batches."""

    def check(self, batch: PlannedBatch, manifest: Manifest) -> None:
        """Checks whether the sources have the rows of a batch, as far as that is known before they are read.

        Args:
            batch: the batch.
            manifest: the manifest of a checkpoint after it, with the sources of the job.

        Raises:
            InputLost: a source no longer has them.
        """

    def run(self, batch: PlannedBatch, run_rows: RunRows) -> None:
        """Calls `run_rows` with the rows of a batch.

        Raises:
            InputLost: a source no longer has them.
            StateflowError: the batch failed.
        """


@dataclass(frozen=True)
class Reading:
    """A way to run batches.

    Attributes:
        executor: runs the tasks.
        rows: reads the rows, as the executor takes them.
    """

    executor: Executor
    rows: BatchReader


@contextmanager
def start_reading(
    start: StartContext,
    job: Job,
    target: Manifest,
    *,
    folder: Path,
    on_step: Callable[[str], None],
    tracer: KeyTracer | None,
) -> Iterator[Reading]:
    """Starts Spark if the job needs it; yields how the batches run.

    Args:
        start: the job with its settings.
        job: the job of the replay.
        target: the manifest of the checkpoint, with the sources of the job.
        folder: scratch folder.
        on_step: called before each slow step with its description.
        tracer: records the calls for a key; the tasks then run in this process.
    """
    if not start.on_spark:
        sources = {node.uid: node.source for node in start.graph.sources if isinstance(node.source, LocalSource)}
        local = LocalExecutor(adapt=tracer.trace_chain) if tracer else LocalExecutor()
        yield Reading(local, LocalInput(job, sources))
        return
    # Importing Spark takes a second, which replays without it save.
    from stateflow.replay.spark import InProcessExecutor, SparkInput, SparkReader
    from stateflow.runtime.spark.errors import is_alive, translate_spark_errors
    from stateflow.runtime.spark.executor import SparkExecutor

    on_step("starting Spark")
    started, sources_of_spark = start_spark(replace(start, settings=_on_this_host(start.settings)))
    spark = started.session
    assert spark is not None
    reader = SparkReader(spark, sources_of_spark, folder / "spark")
    with translate_spark_errors(lambda: is_alive(spark)):
        executor = InProcessExecutor(tracer.trace_chain) if tracer else SparkExecutor()
        yield Reading(executor, SparkInput(job, reader, target))


def _on_this_host(settings: Settings) -> Settings:
    """Returns settings by which Spark runs on this host: tasks on other hosts cannot write to the scratch folder."""
    if settings.spark.master.startswith("local[") and "spark.master" not in settings.spark.conf:
        return settings
    conf = {name: value for name, value in settings.spark.conf.items() if name != "spark.master"}
    return replace(settings, spark=replace(settings.spark, master=_LOCAL_MASTER, conf=conf))


class ReplayedBatches(BatchRunner):
    """Runs planned batches one after the other; their files go to scratch storage.

    Args:
        job: the job, whose sinks collect rows.
        executor: runs the tasks.
        start: the state before the first batch.
        scratch_uri: the storage to which tasks write state files and rows.
        local_folder: folder for working stores and cached files.

    Attributes:
        barriers: the results of the batches.
    """

    def __init__(
        self, job: Job, executor: Executor, start: StartingPoint, *, scratch_uri: str, local_folder: Path
    ) -> None:
        super().__init__(job, executor, start)
        self._scratch_uri, self._local_folder = scratch_uri, local_folder
        self._planned: PlannedBatch | None = None
        self.barriers: list[CompletedBarrier] = []

    def replay(self, planned: PlannedBatch, rows: object, times: SplitTimes) -> None:
        """Runs a batch; the next one starts from its state.

        Args:
            planned: the batch, with its positions, watermarks and processing time.
            rows: its input rows, as the executor takes them.
            times: the latest event times of splits, as `Positions.split_times`.
        """
        self._planned = planned
        sources = [
            SourcePosition(uid=uid, description=description, offset=planned.end.get(uid, NOT_BEGUN))
            for uid, description in self._job.sources
        ]
        positions = Positions(sources, split_times=times)
        watermarks = dict(planned.watermarks) or self.watermarks()
        barrier = self.run(Batch(rows, lambda _: positions, watermarks), planned.checkpoint_id)
        self.barriers.append(barrier)
        self.advance(barrier)

    def info(self, ordinal: int, checkpoint_id: int, full_snapshot: bool = False) -> BatchInfo:
        """See `BatchRunner.info`; with the processing time of the original batch, and scratch storage."""
        found = super().info(ordinal, checkpoint_id, full_snapshot)
        assert self._planned is not None
        environment = replace(found.environment, scratch_uri=self._scratch_uri, local_folder=self._local_folder)
        batch = replace(found.id, processing_time=self._planned.processing_time)
        return replace(found, id=batch, environment=environment)


@dataclass(frozen=True)
class CollectingSink(Sink):
    """Writes the first rows of each task to scratch storage, and counts all of them.

    Args:
        scratch_uri: the storage.
        max_rows: rows that each task keeps; None for all.
    """

    scratch_uri: str
    max_rows: int | None = None

    def for_changelog(self, changelog: Changelog) -> CollectingSink:
        return self

    def check(self, context: SinkContext) -> str | None:
        return None

    def prepare(self, context: SinkContext) -> str:
        return context.uid

    def writer(self, context: SinkContext, writing: Writing) -> SinkWriter:
        key = f"rows/{context.uid}/{writing.ordinal:010d}-{writing.subtask:05d}-{writing.attempt}"
        return _Writer(open_storage(self.scratch_uri), key, context.schema, self.max_rows)

    def open_table(self, context: SinkContext) -> SinkTable:
        raise InternalError("a replay publishes nothing", sink=context.uid)

    def sweep(self, context: SinkContext, is_leftover: Callable[[int, int, str], bool]) -> list[str]:
        return []

    def shadow(self) -> Sink:
        return self


class _Writer(SinkWriter):
    def __init__(self, storage: Storage, key: str, schema: RowSchema, max_rows: int | None) -> None:
        self._storage = storage
        self._key = key
        self._schema = schema.arrow
        self._max_rows = max_rows
        self._rows = self._kept = 0
        self._batches: list[pa.RecordBatch] = []

    def write(self, rows: pa.RecordBatch) -> None:
        self._rows += len(rows)
        left = len(rows) if self._max_rows is None else self._max_rows - self._kept
        if left > 0:
            kept = rows.slice(0, left)
            self._kept += len(kept)
            self._batches.append(kept)

    def close(self) -> list[Committable]:
        if not self._rows:
            return []
        target = pa.BufferOutputStream()
        with pa.ipc.new_stream(target, self._batches[0].schema if self._batches else self._schema) as stream:
            for batch in self._batches:
                stream.write_batch(batch)
        data: bytes = target.getvalue().to_pybytes()
        if self._storage.put_new(self._key, data) is not PutResult.CREATED:
            raise StorageError("a file of a replay could not be stored", hint="check the scratch folder", key=self._key)
        return [Committable(path=self._key, size=len(data), rows=self._rows)]


def collected_rows(
    storage: Storage, committables: Sequence[Committable], max_rows: int | None
) -> list[dict[str, object]]:
    """Returns the first rows that a sink would have published, in the order of its tasks.

    Args:
        storage: the scratch storage.
        committables: the sink's files of one batch.
        max_rows: None for all rows.
    """
    rows: list[dict[str, object]] = []
    for committable in sorted(committables, key=lambda each: each.path):
        if max_rows is not None and len(rows) >= max_rows:
            break
        rows += pa.ipc.open_stream(storage.get(committable.path)).read_all().to_pylist()
    return rows if max_rows is None else rows[:max_rows]
