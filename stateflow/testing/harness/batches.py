"""Runs the batches of a harness, with the tasks, state backends and barriers of a run."""

from __future__ import annotations

import dataclasses
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

from stateflow.api.graph import ProcessNode
from stateflow.checkpoint.log.documents import Manifest, OperatorState, SourceWatermark
from stateflow.checkpoint.log.manifest_files import files_of
from stateflow.checkpoint.restore.state_assignment import CurrentJob, assign_state
from stateflow.clock import SystemClock
from stateflow.config.settings import Settings
from stateflow.config.sources import resolve
from stateflow.environment import StreamExecutionEnvironment
from stateflow.errors import ConfigError, StateflowError, WrongJobRoot
from stateflow.runtime.driver.batch_runner import operator_states_after, run_to_barrier
from stateflow.runtime.executor import BatchId, BatchInfo, BatchWork, Executor, TaskEnvironment, TaskSettings
from stateflow.runtime.local_run import LocalExecutor
from stateflow.runtime.planning.physical_plan import check_no_transforms, plan_job
from stateflow.runtime.planning.state_discovery import discover_state_schemas
from stateflow.runtime.spark.session.requirements import ARROW_ROWS
from stateflow.runtime.task import store_cache
from stateflow.runtime.watermarks import SeenTimes, advance_source_watermarks, combine_watermarks
from stateflow.state.host_cache import remove_tree
from stateflow.state.kinds.timers import MAX_WATERMARK
from stateflow.storage import Storage, open_storage, unregister_memory
from stateflow.testing.harness.job import OPERATOR, CollectedRows, Definition, declare_job
from stateflow.testing.harness.operator_view import OperatorView


class HarnessRuntime:
    """Runs batches in this process, and keeps the state in memory. A subclass may run them elsewhere."""

    def executor(self, arrow_rows: int | None) -> Executor:
        """Returns the executor of a harness, which takes row objects by uid of the source.

        Args:
            arrow_rows: maximum number of rows of an Arrow batch; None for all rows.
        """
        return LocalExecutor(arrow_rows)

    def root(self, name: str) -> str:
        """Returns the URI of the storage for the state of a harness.

        Args:
            name: unique among all harnesses.
        """
        return f"memory://{name}"

    def sink(self) -> CollectedRows:
        """Returns a sink that has the rows of a batch in this process once the batch has succeeded."""
        return CollectedRows()

    def release(self, root: str) -> None:
        """Deletes the storage of a closed harness."""
        unregister_memory(root)


_DEFAULTS = {"name": "harness", "parallelism": 1}
_KEY_GROUPS = 128
"""Default max parallelism. Opening a store reads each key group, so a small number is fast."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


Emitted = Mapping[CollectedRows, Sequence[Any]]
"""The rows that a batch emitted, by sink."""


@dataclass(frozen=True)
class HarnessPosition:
    """State and times of a harness between two batches.

    Attributes:
        operators: state by operator uid.
        epoch: number of batches so far, over all restores.
        watermark: milliseconds since 1970; None before there is one.
        processing_time: milliseconds since 1970.
        sources: the watermarks of the inputs, if rows advance them.
    """

    operators: Mapping[str, OperatorState] = field(default_factory=dict)
    epoch: int = 0
    watermark: int | None = None
    processing_time: int = 0
    sources: tuple[SourceWatermark, ...] = ()


@dataclass(frozen=True)
class HarnessSnapshot:
    """The state after a batch, with all of its files, for `KeyedHarness.restore`. It outlives the harness."""

    position: HarnessPosition
    files: Mapping[str, bytes]
    definition: Definition
    max_parallelism: int


class HarnessBatchRunner:
    """Runs batches of a harness's job one after the other, and stores the state between them in memory.

    Attributes:
        runtime: what all harnesses run their batches with; a test of stateflow's own may replace it.
        definition: the arguments of the harness.
        job: the job.
        position: position after the last batch that succeeded.
        root: URI of the storage with the state files.
    """

    runtime: ClassVar[HarnessRuntime] = HarnessRuntime()

    def __init__(self, definition: Definition) -> None:
        given = {name.replace("__", "."): value for name, value in definition.settings.items()}
        env = StreamExecutionEnvironment()
        self.definition = definition
        self.job = declare_job(env, definition, self.runtime.sink)
        self._derives_watermark = definition.derives_watermark
        self._settings: Settings = resolve(_DEFAULTS, env.defaults, given)
        self._key_groups = self._settings.max_parallelism or _KEY_GROUPS
        self._plan = plan_job(self.job.graph, self._settings.parallelism)
        check_no_transforms(self._plan)
        self._executor = self.runtime.executor(_arrow_rows(self._settings))
        self._uuid = SystemClock().new_id()
        self.root = self.runtime.root(f"harness-{self._uuid}")
        self._local = Path(tempfile.mkdtemp(prefix="stateflow-harness-"))
        self._finalizer = weakref.finalize(self, _release, self.runtime, self._uuid, self.root, self._local)
        self.position = HarnessPosition()
        self._views: dict[str, OperatorView] = {}

    def run(self, rows: Mapping[str, list[Any]], start: HarnessPosition, draining: bool = False) -> Emitted:
        """Runs a batch. If it fails, `position` stays as it was and the emitted rows are dropped.

        Args:
            rows: the rows, by uid of the source.
            start: the position with the times of the batch.
            draining: whether every event-time timer fires.
        """
        self.check_open()
        info = self._batch_info(start)
        committed = dict.fromkeys((chain.uid for chain in self._plan.chains), start.watermark)
        watermarks = dict.fromkeys(committed, MAX_WATERMARK) if draining else committed
        source_watermarks = {s.uid: s.watermark for s in start.sources} if self._derives_watermark else None
        work = BatchWork(self._plan, info, dict(start.operators), watermarks, source_watermarks)
        try:
            pending = run_to_barrier(self._executor, rows, work)
            limit = self._settings.state.memory_limit_bytes
            operators = operator_states_after(pending, start.operators, committed, limit)
        except StateflowError as e:
            self._add_function_name(e)
            raise
        finally:
            emitted = {sink: sink.take() for sink in self.job.sinks}
        end = self._advanced(start, SeenTimes(pending.event_times, active=[uid for uid in rows if rows[uid]]))
        self.position = dataclasses.replace(end, operators={o.uid: o for o in operators}, epoch=info.id.epoch)
        self._views.clear()
        self._delete_unreferenced_files()
        return emitted

    def view(self, uid: str) -> OperatorView:
        """Returns the state of an operator after the last batch. Raises ConfigError for an unknown uid.

        Args:
            uid: may be empty if the job has one operator.
        """
        self.check_open()
        nodes = {node.uid: node for node in self.job.graph.operators}
        if not uid and len(nodes) == 1:
            (uid,) = nodes
        if uid not in nodes:
            raise ConfigError("the operator does not exist", hint="pass its uid: uid=…", uid=uid, known=sorted(nodes))
        if uid not in self._views:
            self._views[uid] = self._new_view(nodes[uid])
        return self._views[uid]

    def snapshot(self) -> HarnessSnapshot:
        """Returns the state after the last batch, with its files."""
        self.check_open()
        files = {key: self._storage.get(key) for key in sorted(self._referenced_files())}
        return HarnessSnapshot(self.position, files, self.definition, self._key_groups)

    def restore(self, snapshot: HarnessSnapshot) -> None:
        """Continues from a snapshot.

        Raises:
            IncompatibleState: stored values cannot be read as the declared states.
            ConfigError, WrongJobRoot: the snapshot does not fit the job otherwise.
        """
        found, wanted = snapshot.max_parallelism, self._settings.max_parallelism or snapshot.max_parallelism
        if found != wanted:
            raise WrongJobRoot(
                "the snapshot has another max parallelism",
                hint="the max parallelism of a job cannot be changed",
                found=found,
                wanted=wanted,
            )
        self._key_groups = wanted
        self.position, plan = snapshot.position, self._plan
        job = CurrentJob(plan.parallelism, wanted, plan.key_types, (), discover_state_schemas(plan, wanted))
        epoch = self.position.epoch
        restored = assign_state(epoch, self._manifest() if epoch else None, job)
        for key, data in snapshot.files.items():
            self._storage.put_new(key, data)
        self.position = dataclasses.replace(self.position, operators=restored.operators)

    def close(self) -> None:
        """Closes stores and removes temporary files."""
        self._finalizer()

    def check_open(self) -> None:
        """Raises ConfigError after `close`."""
        if not self._finalizer.alive:
            raise ConfigError("the harness is closed", hint="use it inside its with statement")

    @property
    def _storage(self) -> Storage:
        return open_storage(self.root)

    def _add_function_name(self, error: StateflowError) -> None:
        """Replaces the harness's own operator uid, which the user does not know, by the function's class."""
        if error.facts.get("operator") == OPERATOR:
            error.facts = {**error.facts, "operator": type(self.definition.function).__qualname__}

    def _advanced(self, position: HarnessPosition, seen: SeenTimes) -> HarnessPosition:
        """Returns the position with the watermarks after a batch.

        Args:
            position: position of the batch.
            seen: the event times of the batch's rows.
        """
        if not self._derives_watermark:
            return position
        now = position.processing_time
        sources = tuple(advance_source_watermarks(position.sources, self._plan.strategies, seen, now))
        return dataclasses.replace(position, sources=sources, watermark=combine_watermarks(position.watermark, sources))

    def _batch_info(self, start: HarnessPosition) -> BatchInfo:
        settings, number = self._settings, start.epoch + 1
        processing_time = _EPOCH + timedelta(milliseconds=start.processing_time)
        state = settings.state.with_inline_limit(len(self._plan.participants()))
        return BatchInfo(
            BatchId(self._uuid, 1, number, processing_time, epoch=number, checkpoint_id=start.epoch),
            TaskSettings(self._key_groups, settings.rocksdb, state),
            TaskEnvironment(self.root, self._local),
        )

    def _delete_unreferenced_files(self) -> None:
        referenced = self._referenced_files()
        self._storage.delete([blob.key for blob in self._storage.list("") if blob.key not in referenced])

    def _referenced_files(self) -> set[str]:
        return {handle.key for handle in files_of(self._manifest())}

    def _manifest(self) -> Manifest:
        return Manifest(
            job_uuid=self._uuid,
            generation=1,
            ordinal=self.position.epoch,
            operators=list(self.position.operators.values()),
            sources=[],
            epoch=self.position.epoch,
        )

    def _new_view(self, node: ProcessNode) -> OperatorView:
        stored, batch = self.position.operators.get(node.uid), self._batch_info(self.position)
        parallelism = stored.parallelism if stored else self._plan.parallelism
        task = batch.task_info(node.uid, 0, parallelism, self.position.watermark)
        return OperatorView(node, stored, batch, task)


def _release(runtime: HarnessRuntime, uuid: str, root: str, local: Path) -> None:
    store_cache.close_job(uuid)
    runtime.release(root)
    remove_tree(local)


def _arrow_rows(settings: Settings) -> int | None:
    """Returns the maximum number of rows of an Arrow batch; None for all rows, if the setting is not positive."""
    rows = int(settings.spark.conf.get(ARROW_ROWS, 0))
    return rows if rows > 0 else None
