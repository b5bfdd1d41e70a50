"""Runs the batches of a checkpoint again, in scratch storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from stateflow.api.graph.job_graph import Graph
from stateflow.checkpoint.leased_pin import LEASE, hold_lease
from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.documents import Manifest, Pin
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.restore.source_positions import with_added_sources
from stateflow.checkpoint.restore.state_matching import assign_state
from stateflow.clock import SystemClock
from stateflow.config.settings import Settings
from stateflow.config.sources import SettingsLayer
from stateflow.errors import ConfigError, InputLost, Interrupted, StateflowError
from stateflow.launch import PreparedJob, prepare
from stateflow.replay.batches import ReplayedBatches, Scratch
from stateflow.replay.collecting_sink import CollectingSink, collected_rows
from stateflow.replay.debugger import DebuggerQuit, KeyDebugger
from stateflow.replay.key_trace import KeyTracer
from stateflow.replay.keys import KeyRequest, WantedKey
from stateflow.replay.reading import BatchReader, ReadingContext, reading
from stateflow.replay.report import BatchTimes, EmittedRows, KeyReport, ReplayReport
from stateflow.replay.state_diff import StateComparison
from stateflow.replay.target import PlannedReplay, TargetCheckpoints, find_target, plan_replay, replayable_batches
from stateflow.requesters import by_process
from stateflow.runtime.driver.batch_runner import StartingPoint
from stateflow.runtime.job.job import Job
from stateflow.runtime.job.loader import open_job, writer_name
from stateflow.runtime.job.start_checks import check_reader
from stateflow.runtime.task import store_cache
from stateflow.scratch_folder import ScratchFolder
from stateflow.storage import Storage, open_storage
from stateflow.storage.overlay import SCRATCH_GENERATION, OverlayStorage

DEFAULT_ROWS = 20


@dataclass(frozen=True)
class ReplayRequest:
    """What to replay.

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
    """Replays a loaded job; arguments and errors are those of `replay`."""
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
        self._scratch = Scratch(self._objects.uri, folder / "local")
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
        check_reader(self._base or self._target, self._start.on_spark)
        start = StartingPoint(SCRATCH_GENERATION, state.operators, self._base)
        with reading(self._reading_context()) as how:
            runner = ReplayedBatches(self._job, how.executor, start, self._scratch)
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
        kept = {ref.id: ref for ref in root.checkpoints.kept(root.head())}
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

    def _reading_context(self) -> ReadingContext:
        start, job, folder = replace(self._start, settings=self._job.settings), self._job, self._folder
        request = self._request
        return ReadingContext(start, job, self._target, folder, request.on_step, self._tracer)

    def _open_job(self) -> Job:
        graph = _collecting(self._start.graph, CollectingSink(self._scratch.uri, self._request.max_rows))
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
        compare = StateComparison(self._storage, max_changes=request.max_rows)
        return ReplayReport(
            batch=request.batch,
            base=self._found.base_id,
            batches=tuple(
                BatchTimes(batch.processing_time.isoformat(), barrier.rows_in, dict(batch.start), dict(batch.end))
                for batch, barrier in zip(planned.batches, runner.barriers, strict=True)
            ),
            deviation="; ".join(filter(None, [planned.deviation, self._target.code_difference(self._job.code)])),
            emitted=tuple(self._emitted(uid, runner) for uid in sorted(self._job.sinks)),
            state=compare.diff(self._base, result),
            difference=compare.diff(self._target, result),
            keys=tuple(self._key_report(uid, key, result) for uid, key in sorted(self._keys.items())),
        )

    def _key_report(self, uid: str, key: WantedKey, result: Manifest) -> KeyReport:
        compare = StateComparison(self._storage, {uid: key}, self._request.max_rows, unchanged=True)
        found, tracer = compare.diff(self._base, result), self._tracer
        assert tracer is not None
        calls = tuple(call for call in tracer.calls if call.operator == uid)
        return KeyReport(uid, key.values, calls, tuple(found.changes), tracer.counts[uid], found.counts.total())

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
