"""A keyed function in a test, without Spark, job root, source or sink; with everything else as in a run."""

from __future__ import annotations

import dataclasses
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from stateflow.api.backends import MemoryStateBackend, StateBackend
from stateflow.api.dead_letters import FAIL, DeadLetter, DeadLetters
from stateflow.api.functions import TaskInfo
from stateflow.api.graph import ProcessNode
from stateflow.api.side_outputs import OutputTag
from stateflow.checkpoint.documents import Manifest, OperatorState, SourceWatermark
from stateflow.checkpoint.files import files_of
from stateflow.checkpoint.restore import Wanted, plan_restore
from stateflow.clock import SystemClock
from stateflow.config import resolve
from stateflow.descriptors import MapStateDescriptor
from stateflow.environment import StreamExecutionEnvironment
from stateflow.errors import ConfigError, StateflowError, WrongJobRoot
from stateflow.query.state import StateEntry
from stateflow.runtime import stores
from stateflow.runtime.barriers import operators_behind, run_to_barrier
from stateflow.runtime.declared import declared_states
from stateflow.runtime.executors import BatchWork
from stateflow.runtime.local import LocalExecutor, refuse_transforms
from stateflow.runtime.plan import plan_job
from stateflow.runtime.specs import BatchInfo
from stateflow.runtime.watermarks import advanced, combined, milliseconds
from stateflow.settings import Settings
from stateflow.state.timers import MAX_WATERMARK
from stateflow.state.transfer import remove_tree
from stateflow.storage import Storage, forget_memory, open_storage
from stateflow.testing.harness_job import OPERATOR, Definition, Input, declare_graph, source_uid, typed_rows
from stateflow.testing.harness_state import OperatorView, PendingTimer

Moment = datetime | int
"""A datetime (without a zone: UTC), or milliseconds since 1970."""

_DEFAULTS = {"name": "harness", "parallelism": 1}
_KEY_GROUPS = 128
"""Unless the settings or a restored snapshot say otherwise: opening a store looks at each group, so few are fast."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = milliseconds(datetime.max.replace(tzinfo=UTC))


@dataclass(frozen=True)
class Point:
    """Where a harness stands between two batches.

    Attributes:
        epoch: how many batches led here, over all restores.
        watermark, processing_time: milliseconds since 1970.
        sources: the watermarks of the inputs, when they follow from their rows.
    """

    operators: Mapping[str, OperatorState] = field(default_factory=dict)
    epoch: int = 0
    watermark: int | None = None
    processing_time: int = 0
    sources: tuple[SourceWatermark, ...] = ()


@dataclass(frozen=True)
class HarnessSnapshot:
    """The state behind a batch, with all of its files; outlives the harness. For `KeyedHarness.restore`."""

    point: Point
    files: Mapping[str, bytes]
    definition: Definition
    max_parallelism: int


class KeyedHarness:
    """Runs a keyed function batch by batch, with the tasks, state backends and barriers of a run.

    Each push is one micro-batch up to its snapshot: function objects are copied, opened, fed and thrown away. A batch
    that fails raises what the run would, and leaves nothing behind. Use it in a `with` statement, or `close` it.

    Args:
        function: an object: a `KeyedProcessFunction`, `VectorizedKeyedFunction`, `KeyedCoProcessFunction`,
            `KeyedBroadcastProcessFunction` or rich function. Or a callable that builds on the inputs and returns a
            stream: ``lambda rows: rows.map_with_state(count, state=int, output=Count, uid="count")``.
        inputs: one `KeyedInput`; or two, of which the second may be a `BroadcastInput`.
        output: class of the rows that a function object emits.
        side_outputs: tags that `side_output` will be asked for.
        on_error: as for `process`, of a function object.
        backend: where state is kept; in memory unless told otherwise.
        settings: any others, as for `env.configure`: ``parallelism=2, state__ttl_cleanup_entries=10``. By default the
            parallelism is 1, and the max parallelism 128.

    Raises JobDefinitionError or ConfigError for what a job would be refused for.
    """

    def __init__(
        self,
        function: Any,
        *inputs: Input,
        output: type[Any] | None = None,
        side_outputs: Sequence[OutputTag[Any]] = (),
        on_error: str | DeadLetters = FAIL,
        backend: StateBackend = MemoryStateBackend(),  # noqa: B008 - frozen
        **settings: Any,
    ) -> None:
        self._definition = Definition(
            function, inputs, output, tuple(side_outputs), on_error, backend, settings
        )
        given = {name.replace("__", "."): value for name, value in settings.items()}
        env = StreamExecutionEnvironment()
        self._job = declare_graph(env, self._definition)
        self._moves_time = self._definition.moves_time
        self._settings: Settings = resolve(_DEFAULTS, env.defaults, given)
        self._key_groups = self._settings.max_parallelism or _KEY_GROUPS
        self._plan = plan_job(self._job.graph, self._settings.parallelism)
        refuse_transforms(self._plan)
        self._executor = LocalExecutor()
        self._uuid = SystemClock().new_id()
        self._root = f"memory://harness-{self._uuid}"
        self._local = Path(tempfile.mkdtemp(prefix="stateflow-harness-"))
        self._closing = weakref.finalize(self, _let_go, self._uuid, self._root, self._local)
        self._point = Point()
        self._views: dict[str, OperatorView] = {}
        self._main: list[Any] = []
        self._side: dict[str, list[Any]] = {name: [] for name in self._job.side}
        self._letters: list[DeadLetter] = []

    @classmethod
    def restore(
        cls,
        snapshot: HarnessSnapshot,
        function: Any = None,
        *,
        output: type[Any] | None = None,
        side_outputs: Sequence[OutputTag[Any]] | None = None,
        backend: StateBackend | None = None,
        **settings: Any,
    ) -> KeyedHarness:
        """A new harness that goes on from a snapshot, at any parallelism, in any backend; with no output yet.

        Args:
            snapshot: of any harness; may be restored many times.
            function, output, side_outputs, backend, settings: as for a new one; what is left out is as it was.

        Raises:
            IncompatibleState: stored values cannot be read as the states that the function declares.
            ConfigError, WrongJobRoot: state and job do not fit otherwise.
        """
        if not isinstance(snapshot, HarnessSnapshot):
            raise ConfigError(
                "this is no snapshot of a harness", hint="restore(h.snapshot(), …)", given=repr(snapshot)
            )
        before = snapshot.definition
        harness = cls(
            before.function if function is None else function,
            *before.inputs,
            output=before.output if output is None else output,
            side_outputs=before.side_outputs if side_outputs is None else side_outputs,
            on_error=before.on_error,
            backend=backend or before.backend,
            **{**before.settings, **settings},
        )
        try:
            harness._go_on_from(snapshot)
        except BaseException:
            harness.close()
            raise
        return harness

    # -- rows and time ------------------------------------------------------------------------------------------

    def push(self, *rows: Any) -> list[Any]:
        """Runs a batch of rows; without any, a tick batch. Returns what it emitted to the main output.

        Rows of a key are in their order; keys are not in that of the rows, but in that of a run: by their hash.

        Args:
            rows: objects of the input's class, dictionaries by column, or tuples in the order of columns.

        Raises SchemaMismatch for rows that are none; whatever ends a run, such as UserCodeError.
        """
        if len(self._definition.inputs) != 1:
            raise ConfigError(
                "this harness has two inputs", hint="push_both(rows of the first, rows of the second)"
            )
        return self._run_rows([rows])

    def push_both(self, first: Iterable[Any], second: Iterable[Any]) -> list[Any]:
        """As `push`, with rows of two inputs in one batch; either may be empty."""
        if len(self._definition.inputs) != 2:
            raise ConfigError("this harness has one input", hint="push(row, …)")
        return self._run_rows([first, second])

    def advance_watermark(self, to: Moment) -> list[Any]:
        """Runs a tick batch at a later watermark: due event-time timers fire. Returns as `push` does.

        Raises ConfigError for a watermark below the present one.
        """
        watermark = _forward("the watermark", self._point.watermark, to)
        return self._run({}, dataclasses.replace(self._point, watermark=watermark))

    def advance_processing_time(self, to: Moment) -> list[Any]:
        """Runs a tick batch at a later processing time: due processing-time timers fire. Returns as `push` does.

        Raises ConfigError for a time before the present one.
        """
        now = _forward("processing time", self._point.processing_time, to)
        return self._run({}, dataclasses.replace(self._point, processing_time=now))

    def drain(self) -> list[Any]:
        """Fires every event-time timer, as the end of a bounded source does; the watermark stays. Returns as `push`
        does."""
        return self._run({}, self._point, draining=True)

    @property
    def watermark(self) -> int | None:
        """Milliseconds since 1970; None before it was advanced."""
        return self._point.watermark

    @property
    def processing_time(self) -> int:
        """Milliseconds since 1970; 0 at first."""
        return self._point.processing_time

    # -- what came out ------------------------------------------------------------------------------------------

    @property
    def output(self) -> list[Any]:
        """All rows of the main output so far, batch after batch."""
        return list(self._main)

    def side_output(self, tag: OutputTag[Any]) -> list[Any]:
        """All rows of a side output so far. Raises ConfigError for a tag that the harness was not given."""
        if tag not in self._definition.side_outputs:
            raise ConfigError("the harness does not collect this side output", hint="KeyedHarness(…, side_outputs=("
                              "TAG,))", tag=tag.name, collected=sorted(self._side))  # fmt: skip
        return list(self._side[tag.name])

    @property
    def dead_letters(self) -> list[DeadLetter]:
        """All rows so far that a function with ``on_error=DeadLetters(…)`` failed on."""
        return list(self._letters)

    # -- state --------------------------------------------------------------------------------------------------

    def state(self, name: str, key: Any, *, namespace: Any = None, uid: str = "") -> Any:
        """What a keyed state holds for a key: a value or None, a list, or a dictionary. What has expired is not there.

        A copy of the function is opened, to learn how the state is declared.

        Args:
            key: the column's value; a tuple when the key has several columns.
            uid: of the operator, when there are several.

        Raises ConfigError for a state or an operator that is not there, StateError for a key of another type.
        """
        return self._view(uid).state(name, key, namespace)

    def state_entries(self, uid: str = "") -> list[StateEntry]:
        """Every stored entry of keyed state, in plain data: what has expired and was not removed is there."""
        return self._view(uid).entries()

    def timers(self, uid: str = "") -> list[PendingTimer]:
        """The timers that have not fired: of event time, then of processing time, each in order of time."""
        return self._view(uid).timers()

    def operator_state(self, name: str, uid: str = "") -> list[list[Any]]:
        """What each subtask keeps of an operator list. Raises ConfigError when the function declares none."""
        return self._view(uid).operator_list(name)

    def broadcast_state(self, descriptor: MapStateDescriptor[Any, Any], uid: str = "") -> dict[Any, Any]:
        """The broadcast state that `descriptor` declares; raises as `ctx.get_broadcast_state` does."""
        return self._view(uid).broadcast(descriptor)

    def snapshot(self) -> HarnessSnapshot:
        """The state behind the last batch, for `restore`: what its checkpoint would be."""
        self._check_open()
        files = {key: self._storage.get(key) for key in sorted(self._live(self._point))}
        return HarnessSnapshot(self._point, files, self._definition, self._key_groups)

    def close(self) -> None:
        """Lets go of stores and scratch files. What came out can still be read."""
        self._closing()

    def __enter__(self) -> KeyedHarness:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- a batch ------------------------------------------------------------------------------------------------

    def _run_rows(self, rows: Sequence[Iterable[Any]]) -> list[Any]:
        classes = [each.row_class for each in self._definition.inputs]
        given = {
            source_uid(number): typed_rows(of, row_class)
            for number, (of, row_class) in enumerate(zip(rows, classes, strict=True), 1)
        }
        return self._run(given, self._point)

    def _run(self, rows: Mapping[str, list[Any]], at: Point, draining: bool = False) -> list[Any]:
        """Runs a batch at the times of `at`; its state, times and rows count only when it did not fail."""
        self._check_open()
        info = self._batch(at)
        committed = dict.fromkeys((u.uid for u in self._plan.units), at.watermark)
        watermarks = dict.fromkeys(committed, MAX_WATERMARK) if draining else committed
        before = {s.uid: s.watermark for s in at.sources} if self._moves_time else None
        work = BatchWork(self._plan, info, dict(at.operators), watermarks, before)
        try:
            pending = run_to_barrier(self._executor, rows, work)
            limit = self._settings.state.memory_limit_bytes
            operators = operators_behind(pending, at.operators, committed, limit)
        except StateflowError as e:
            self._name_function(e)
            raise
        finally:
            emitted = {sink: sink.take() for sink in self._job.sinks}
        at = self._moved(at, pending.event_times())
        self._point = dataclasses.replace(at, operators={o.uid: o for o in operators}, epoch=info.epoch)
        self._views.clear()
        self._main += emitted[self._job.main]
        self._letters += emitted[self._job.dead_letters]
        for name, sink in self._job.side.items():
            self._side[name] += emitted[sink]
        self._collect()
        return emitted[self._job.main]

    def _name_function(self, error: StateflowError) -> None:
        """Puts the function's class where an error has the harness's own uid, which the user has not given."""
        if error.facts.get("operator") == OPERATOR:
            error.facts = {**error.facts, "operator": type(self._definition.function).__qualname__}

    def _moved(self, at: Point, latest: Mapping[str, int]) -> Point:
        """The times after a batch with rows of these event times."""
        if not self._moves_time:
            return at
        sources = tuple(advanced(at.sources, self._plan.strategies, latest, at.processing_time))
        return dataclasses.replace(at, sources=sources, watermark=combined(at.watermark, sources))

    def _batch(self, at: Point) -> BatchInfo:
        settings = self._settings
        return BatchInfo(
            job_uuid=self._uuid, root_uri=self._root, generation=1, ordinal=at.epoch + 1, epoch=at.epoch + 1,
            checkpoint_id=at.epoch, processing_time=_EPOCH + timedelta(milliseconds=at.processing_time),
            max_parallelism=self._key_groups, local_folder=self._local, rocksdb=settings.rocksdb,
            state=settings.state.shared_by(len(self._plan.participants())),
        )  # fmt: skip

    def _collect(self) -> None:
        """Removes the files that the state does not refer to any more."""
        live = self._live(self._point)
        self._storage.delete([blob.key for blob in self._storage.list("") if blob.key not in live])

    def _live(self, point: Point) -> set[str]:
        return {handle.key for handle in files_of(self._manifest(point))}

    def _manifest(self, point: Point) -> Manifest:
        return Manifest(
            job_uuid=self._uuid, generation=1, ordinal=point.epoch, operators=list(point.operators.values()),
            sources=[], epoch=point.epoch,
        )  # fmt: skip

    def _go_on_from(self, snapshot: HarnessSnapshot) -> None:
        found, wanted = snapshot.max_parallelism, self._settings.max_parallelism or snapshot.max_parallelism
        self._key_groups = wanted
        if found != wanted:
            raise WrongJobRoot("the snapshot was made with another max parallelism", hint="it is fixed for the life of "
                               "a job", found=found, wanted=wanted)  # fmt: skip
        point, plan = snapshot.point, self._plan
        states = declared_states(plan, wanted)
        job = Wanted(plan.parallelism, wanted, plan.key_types, (), states)
        restored = plan_restore(point.epoch, self._manifest(point) if point.epoch else None, job)
        for key, data in snapshot.files.items():
            self._storage.put_new(key, data)
        self._point = dataclasses.replace(point, operators=restored.operators)

    def _view(self, uid: str) -> OperatorView:
        self._check_open()
        nodes = {node.uid: node for node in self._job.graph.operators}
        if not uid and len(nodes) == 1:
            (uid,) = nodes
        if uid not in nodes:
            raise ConfigError(
                "there is no such operator", hint="name one with uid=…", uid=uid, known=sorted(nodes)
            )
        if uid not in self._views:
            self._views[uid] = self._looked_into(nodes[uid])
        return self._views[uid]

    def _looked_into(self, node: ProcessNode) -> OperatorView:
        stored, batch = self._point.operators.get(node.uid), self._batch(self._point)
        parallelism = stored.parallelism if stored else self._plan.parallelism
        task = TaskInfo(node.uid, 0, parallelism, batch.max_parallelism, batch.processing_time, batch.epoch,
                        self._point.watermark)  # fmt: skip
        return OperatorView(node, stored, batch, task)

    @property
    def _storage(self) -> Storage:
        return open_storage(self._root)

    def _check_open(self) -> None:
        if not self._closing.alive:
            raise ConfigError("the harness is closed", hint="use it inside its with statement")


def _let_go(uuid: str, root: str, local: Path) -> None:
    stores.close_job(uuid)
    forget_memory(root)
    remove_tree(local)


def _forward(what: str, present: int | None, to: Moment) -> int:
    if isinstance(to, bool) or not isinstance(to, datetime | int):
        raise ConfigError(
            f"{what} is not a time", hint="give a datetime, or milliseconds since 1970", given=repr(to)
        )
    time = milliseconds(to) if isinstance(to, datetime) else to
    if present is not None and time < present:
        raise ConfigError(f"{what} does not go back", present=present, given=time)
    if abs(time) > _LATEST:
        raise ConfigError(f"{what} is out of range", hint="drain() fires every event-time timer", given=time)
    return time
