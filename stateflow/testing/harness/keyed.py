"""Runs a keyed function in a test, without Spark, job root, source and sink."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from stateflow.api.dead_letters import FAIL, DeadLetter, DeadLetters
from stateflow.api.side_outputs import OutputTag
from stateflow.api.state_backends import MemoryStateBackend, StateBackend
from stateflow.clock import epoch_milliseconds
from stateflow.errors import ConfigError
from stateflow.query.state import StateEntry
from stateflow.testing.harness.batches import HarnessBatchRunner, HarnessPosition, HarnessSnapshot
from stateflow.testing.harness.job import Definition, HarnessFunction, Input, Rows, convert_rows, source_uid
from stateflow.testing.harness.operator_view import PendingTimer
from stateflow.types.descriptors import MapStateDescriptor

Row = TypeVar("Row")
K = TypeVar("K")
V = TypeVar("V")

Timestamp = datetime | int
"""A datetime (without a zone: UTC), or milliseconds since 1970."""

_LATEST = epoch_milliseconds(datetime.max.replace(tzinfo=UTC))


class KeyedHarness:
    """Runs a keyed function batch by batch, with the tasks, state backends and barriers of a run.

    Each push is one micro-batch up to its snapshot; as in a run, each batch opens and closes a copy of the function
    object. A batch that fails raises the error that the run would raise, and changes no state and no output. Use the
    harness in a `with` statement, or call `close`.

    Args:
        function: an object: a `KeyedProcessFunction`, `VectorizedKeyedFunction`, `KeyedCoProcessFunction`,
            `KeyedBroadcastProcessFunction` or rich function. Or a callable that takes the input streams and returns a
            stream: ``lambda rows: rows.map_with_state(count, state=int, output=Count, uid="count")``.
        inputs: one `KeyedInput`; or two inputs, of which the second may be a `BroadcastInput`.
        output: class of the rows that a function object emits.
        side_outputs: tags whose rows `side_output` returns.
        on_error: error policy for a function object; see `KeyedStream.process`.
        backend: the state backend; by default in memory.
        settings: further settings, as for `env.configure`: ``parallelism=2, rocksdb__compact_at_files=2``. By
            default, the parallelism is 1 and the max parallelism 128.

    Raises:
        JobDefinitionError, ConfigError: as for a job.
    """

    def __init__(
        self,
        function: HarnessFunction,
        *inputs: Input,
        output: type[object] | None = None,
        side_outputs: Sequence[OutputTag[Any]] = (),
        on_error: str | DeadLetters = FAIL,
        backend: StateBackend = MemoryStateBackend(),  # noqa: B008 - frozen
        **settings: object,
    ) -> None:
        self._definition = Definition(function, inputs, output, tuple(side_outputs), on_error, backend, settings)
        self._runner = HarnessBatchRunner(self._definition)
        self._main: Rows = []
        self._side: dict[str, Rows] = {name: [] for name in self._runner.job.side}
        self._dead_letters: list[DeadLetter] = []

    @classmethod
    def restore(
        cls,
        snapshot: HarnessSnapshot,
        function: HarnessFunction | None = None,
        *,
        output: type[object] | None = None,
        side_outputs: Sequence[OutputTag[Any]] | None = None,
        backend: StateBackend | None = None,
        **settings: object,
    ) -> KeyedHarness:
        """Returns a new harness that continues from a snapshot, at any parallelism, in any backend; without output.

        Args:
            snapshot: snapshot of any harness; can be restored several times.

        Other arguments are as for the constructor; by default as in the snapshot.

        Raises:
            IncompatibleState: stored values cannot be read as the states that the function declares.
            ConfigError, WrongJobRoot: the snapshot does not fit the job otherwise.
        """
        if not isinstance(snapshot, HarnessSnapshot):
            raise ConfigError(
                "restore needs the snapshot of a harness", hint="restore(h.snapshot(), …)", given=repr(snapshot)
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
            harness._runner.restore(snapshot)
        except BaseException:
            harness.close()
            raise
        return harness

    # -- rows and time ------------------------------------------------------------------------------------------

    def push(self, *rows: object) -> Rows:
        """Runs a batch of rows; without rows, a tick batch. Returns the rows that it emitted to the main output.

        Rows of a key keep their order. Keys are ordered by their hash, as in a run.

        Args:
            rows: objects of the input's class, dictionaries by column, or tuples in the order of columns.

        Raises:
            ConfigError: the harness has two inputs.
            SchemaMismatch: a row does not match its class.
            StateflowError: any error that ends a run, such as UserCodeError.
        """
        if len(self._definition.inputs) != 1:
            raise ConfigError(
                "this harness has two inputs", hint="push_both(rows of the first, rows of the second)", inputs=2
            )
        return self._push([rows])

    def push_both(self, first: Iterable[object], second: Iterable[object]) -> Rows:
        """Runs a batch with rows of two inputs; either may be empty. Returns and raises as `push`."""
        if len(self._definition.inputs) != 2:
            raise ConfigError("this harness has one input", hint="push(row, …)", inputs=1)
        return self._push([first, second])

    def advance_watermark(self, to: Timestamp) -> Rows:
        """Runs a tick batch at a later watermark, which fires due event-time timers. Returns as `push`.

        Raises:
            ConfigError: `to` is below the current watermark.
        """
        watermark = _later("the watermark", self._position.watermark, to)
        return self._run({}, dataclasses.replace(self._position, watermark=watermark))

    def advance_processing_time(self, to: Timestamp) -> Rows:
        """Runs a tick batch at a later processing time, which fires due processing-time timers. Returns as `push`.

        Raises:
            ConfigError: `to` is before the current processing time.
        """
        now = _later("processing time", self._position.processing_time, to)
        return self._run({}, dataclasses.replace(self._position, processing_time=now))

    def drain(self) -> Rows:
        """Fires every event-time timer, as the end of a bounded source does; keeps the watermark. Returns as `push`."""
        return self._run({}, self._position, draining=True)

    @property
    def root(self) -> str:
        """The URI of the storage with the state files."""
        return self._runner.root

    @property
    def watermark(self) -> int | None:
        """Milliseconds since 1970; None before it was advanced."""
        return self._position.watermark

    @property
    def processing_time(self) -> int:
        """Milliseconds since 1970; 0 at first."""
        return self._position.processing_time

    # -- output -------------------------------------------------------------------------------------------------

    @property
    def output(self) -> Rows:
        """All rows of the main output so far, in order of batches."""
        return list(self._main)

    def side_output(self, tag: OutputTag[Row]) -> list[Row]:
        """Returns all rows of a side output so far. Raises ConfigError for a tag that is not in `side_outputs`."""
        if tag not in self._definition.side_outputs:
            raise ConfigError(
                "the harness does not collect this side output",
                hint="KeyedHarness(…, side_outputs=(TAG,))",
                tag=tag.name,
                collected=sorted(self._side),
            )
        return list(self._side[tag.name])

    @property
    def dead_letters(self) -> list[DeadLetter]:
        """All dead letters so far, of functions with ``on_error=DeadLetters(…)``."""
        return list(self._dead_letters)

    # -- state --------------------------------------------------------------------------------------------------

    def state(self, name: str, key: object, *, namespace: object = None, uid: str = "") -> Any:
        """Returns the value of a keyed state: a value or None, a list, or a dictionary; without expired values.

        Opens a copy of the function to find the state's declaration.

        Args:
            name: name of the state.
            key: the column's value; a tuple if the key has several columns.
            namespace: namespace of the value.
            uid: uid of the operator; required if the job has several.

        Raises:
            ConfigError: the state or operator does not exist.
            StateError: the key has another type.
        """
        return self._runner.view(uid).state(name, key, namespace)

    def state_entries(self, uid: str = "") -> list[StateEntry]:
        """Returns every stored entry of keyed state, including expired entries that are not removed yet."""
        return self._runner.view(uid).entries()

    def timers(self, uid: str = "") -> list[PendingTimer]:
        """Returns the pending timers: of event time, then of processing time, each in order of time."""
        return self._runner.view(uid).timers()

    def operator_state(self, name: str, uid: str = "") -> list[Rows]:
        """Returns an operator list, per subtask. Raises ConfigError if the function declares none of that name."""
        return self._runner.view(uid).operator_list(name)

    def broadcast_state(self, descriptor: MapStateDescriptor[K, V], uid: str = "") -> dict[K, V]:
        """Returns the broadcast state that `descriptor` declares. Raises as `ctx.get_broadcast_state`."""
        return self._runner.view(uid).broadcast(descriptor)

    def snapshot(self) -> HarnessSnapshot:
        """Returns the state after the last batch, for `restore`."""
        return self._runner.snapshot()

    def close(self) -> None:
        """Closes stores and removes temporary files. The output can still be read."""
        self._runner.close()

    def __enter__(self) -> KeyedHarness:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def _position(self) -> HarnessPosition:
        return self._runner.position

    def _push(self, rows: Sequence[Iterable[object]]) -> Rows:
        classes = [each.row_class for each in self._definition.inputs]
        given = {
            source_uid(number): convert_rows(of, row_class)
            for number, (of, row_class) in enumerate(zip(rows, classes, strict=True), 1)
        }
        return self._run(given, self._position)

    def _run(self, rows: Mapping[str, Rows], start: HarnessPosition, draining: bool = False) -> Rows:
        job, emitted = self._runner.job, self._runner.run(rows, start, draining)
        self._main += emitted[job.main]
        self._dead_letters += emitted[job.dead_letters]
        for name, sink in job.side.items():
            self._side[name] += emitted[sink]
        return list(emitted[job.main])


def _later(what: str, current: int | None, to: Timestamp) -> int:
    """Returns `to` in milliseconds since 1970. Raises ConfigError if it is not a timestamp or before `current`."""
    if isinstance(to, bool) or not isinstance(to, datetime | int):
        raise ConfigError(
            f"{what} is not a timestamp", hint="pass a datetime, or milliseconds since 1970", given=repr(to)
        )
    time = epoch_milliseconds(to) if isinstance(to, datetime) else to
    if current is not None and time < current:
        raise ConfigError(f"{what} cannot go back", hint="pass a later timestamp", present=current, given=time)
    if abs(time) > _LATEST:
        raise ConfigError(f"{what} is out of range", hint="drain() fires every event-time timer", given=time)
    return time
