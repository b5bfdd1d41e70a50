"""Runs the operator of a chain over its input and passes what it emits to the chain's outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from stateflow.api.functions.vectorized import VectorizedKeyedFunction
from stateflow.api.functions.window_vectors import WindowVectorFunction
from stateflow.api.joins.regular_join import ColumnJoin
from stateflow.api.joins.timed_columns import TimedColumnJoin
from stateflow.api.side_outputs import MAIN
from stateflow.checkpoint.barrier.task_report import Failure
from stateflow.runtime.task.operator_state import OperatorParts
from stateflow.runtime.task.operators.joins.join_operator import JoinOperator
from stateflow.runtime.task.operators.joins.window_join_operator import WindowJoinOperator
from stateflow.runtime.task.operators.keyed_operator import KeyedOperator
from stateflow.runtime.task.operators.operator_runtime import InitialState
from stateflow.runtime.task.operators.vector_operator import VectorOperator
from stateflow.runtime.task.operators.window_vector_operator import WindowVectorOperator
from stateflow.runtime.task.outputs import Outputs
from stateflow.runtime.task.subtask_store import SubtaskStore
from stateflow.runtime.task.task_input import PhaseRows
from stateflow.runtime.task_spec import SOURCE_PHASE, TIMER_PHASE, TaskSpec
from stateflow.state.handles import OperatorContent, StateSchema
from stateflow.state.kinds.ttl.cleanup import TtlCleanup


@dataclass(frozen=True)
class OperatorResult:
    """What an operator contributes to the report of its task.

    Attributes:
        states: the keyed states that the function declared.
        operator_states: the operator states that the function declared.
        dead_letters: number of rows that failed and became dead letters.
        last_dead_letter: the error of the last one.
        late_rows_dropped: number of rows that were dropped because they were too late.
        hot_keys: the pairs of rows that a join has compared for keys with many, by key.
    """

    states: list[StateSchema] = field(default_factory=list)
    operator_states: list[StateSchema] = field(default_factory=list)
    dead_letters: int = 0
    last_dead_letter: Failure | None = None
    late_rows_dropped: int = 0
    hot_keys: dict[str, int] = field(default_factory=dict)


class ChainRunner(ABC):
    """Runs the operator of a chain in one task. Methods yield the Arrow batches for the next level."""

    @abstractmethod
    def process(self, rows: PhaseRows) -> Iterator[pa.RecordBatch]:
        """Processes sorted rows of one phase."""

    @abstractmethod
    def advance_time(self) -> Iterator[pa.RecordBatch]:
        """Advances time to that of the batch and fires the timers that are due."""

    @abstractmethod
    def finish(self) -> Iterator[pa.RecordBatch]:
        """Ends the input of the operator."""

    @abstractmethod
    def ttl_cleanup(self) -> TtlCleanup:
        """Returns the cleanup of expired state; to be run after `finish`."""

    @abstractmethod
    def abort(self) -> None:
        """Closes the function after a failure."""

    @abstractmethod
    def result(self) -> OperatorResult:
        """Returns what the operator reports; after `finish`, or after a failure."""

    @abstractmethod
    def operator_content(self) -> OperatorContent | None:
        """Returns the operator state after `finish`; None for an operator that cannot have any."""


class KeyedRunner(ChainRunner):
    """Runs a `KeyedOperator`, which calls its function row by row."""

    def __init__(self, operator: KeyedOperator, outputs: Outputs) -> None:
        self._operator = operator
        self._outputs = outputs

    def process(self, rows: PhaseRows) -> Iterator[pa.RecordBatch]:
        operator = self._operator
        if rows.is_broadcast:
            emitted = operator.broadcast(rows.columns)
        else:
            emitted = operator.process(rows.order, rows.columns, rows.inputs, rows.origins)
        yield from self._emit(emitted, rows.phase)

    def advance_time(self) -> Iterator[pa.RecordBatch]:
        # Phase 0: the time of the next level has not advanced yet when these rows arrive there.
        for emitted in self._operator.fire():
            yield from self._emit(emitted, TIMER_PHASE)

    def finish(self) -> Iterator[pa.RecordBatch]:
        for emitted in self._operator.finish():
            yield from self._emit(emitted, SOURCE_PHASE)
        # Side outputs of `close`.
        yield from self._emit([], SOURCE_PHASE)

    def ttl_cleanup(self) -> TtlCleanup:
        return self._operator.ttl_cleanup()

    def abort(self) -> None:
        self._operator.abort()

    def result(self) -> OperatorResult:
        operator = self._operator
        count, last = operator.dead_letters
        return OperatorResult(
            operator.schemas, operator.operator_states, count, last, operator.late_rows_dropped, operator.hot_keys
        )

    def operator_content(self) -> OperatorContent | None:
        return self._operator.operator_content

    def _emit(self, main: list[object], phase: int) -> Iterator[pa.RecordBatch]:
        emitted = {MAIN: main, **self._operator.take_side_outputs()}
        return self._outputs.emit(emitted, phase, self._operator.key_of_emitted)


class VectorRunner(ChainRunner):
    """Runs a `VectorOperator`, which calls its function with Arrow batches of whole keys."""

    def __init__(self, operator: VectorOperator, outputs: Outputs) -> None:
        self._operator = operator
        self._outputs = outputs

    def process(self, rows: PhaseRows) -> Iterator[pa.RecordBatch]:
        return self._emit(self._operator.process(rows.order, rows.columns, rows.origins))

    def advance_time(self) -> Iterator[pa.RecordBatch]:
        return self._emit(self._operator.fire())

    def finish(self) -> Iterator[pa.RecordBatch]:
        return self._emit(self._operator.finish())

    def ttl_cleanup(self) -> TtlCleanup:
        return self._operator.ttl_cleanup()

    def abort(self) -> None:
        self._operator.abort()

    def result(self) -> OperatorResult:
        operator = self._operator
        return OperatorResult(
            operator.schemas, late_rows_dropped=operator.late_rows_dropped, hot_keys=operator.hot_keys
        )

    def operator_content(self) -> OperatorContent | None:
        return None

    def _emit(self, emitted: Iterator[tuple[int, pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        operator = self._operator
        for each in emitted:
            yield from self._outputs.emit_columns([each], operator.emits)
        for tag, schema, rows in operator.take_side_outputs():
            yield from self._outputs.emit_columns(rows, schema, tag)


class JoinRunner(VectorRunner):
    """Runs a `JoinOperator`, which gets the rows of two inputs."""

    def __init__(self, operator: JoinOperator, outputs: Outputs) -> None:
        super().__init__(operator, outputs)
        self._join = operator

    def process(self, rows: PhaseRows) -> Iterator[pa.RecordBatch]:
        assert rows.inputs is not None
        return self._emit(self._join.process_inputs(rows.order, rows.columns, rows.inputs))


class WindowJoinRunner(VectorRunner):
    """Runs a `WindowJoinOperator`, which gets the rows of two inputs and has timers."""

    def __init__(self, operator: WindowJoinOperator, outputs: Outputs) -> None:
        super().__init__(operator, outputs)
        self._join = operator

    def process(self, rows: PhaseRows) -> Iterator[pa.RecordBatch]:
        assert rows.inputs is not None
        return self._emit(self._join.process_inputs(rows.order, rows.columns, rows.inputs, rows.origins))


def open_runner(
    task: TaskSpec, store: SubtaskStore, parts: OperatorParts, outputs: Outputs, *, is_time_advanced: bool
) -> ChainRunner:
    """Opens the store and the function of a chain.

    Args:
        parts: operator state of the base.
        is_time_advanced: whether the timers of this batch have fired already.
    """
    limits = task.batch.settings.state.limits
    if isinstance(task.chain.function, ColumnJoin):
        return JoinRunner(JoinOperator(task.chain, task.info, store.open(), limits), outputs)
    if isinstance(task.chain.function, TimedColumnJoin):
        join = WindowJoinOperator(task.chain, task.info, store.open(), limits, store.timer_index)
        if is_time_advanced:
            join.advance()
        return WindowJoinRunner(join, outputs)
    if isinstance(task.chain.function, WindowVectorFunction):
        columns = WindowVectorOperator(task.chain, task.info, store.open(), limits, store.timer_index)
        if is_time_advanced:
            columns.advance()
        return VectorRunner(columns, outputs)
    if isinstance(task.chain.function, VectorizedKeyedFunction):
        return VectorRunner(VectorOperator(task.chain, task.info, store.open(), limits), outputs)
    initial = InitialState(store.open(), parts, task.batch.id.checkpoint_id, store.timer_index, limits)
    operator = KeyedOperator(task.chain, task.info, initial)
    if is_time_advanced:
        operator.advance()
    return KeyedRunner(operator, outputs)
