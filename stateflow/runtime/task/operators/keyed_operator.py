"""One subtask of a keyed operator in one batch; the same with and without Spark.

Rows come in Arrow batches, sorted by key group, key, declared order and order of arrival.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import pyarrow as pa

from stateflow.api.functions.connected import KeyedBroadcastProcessFunction, KeyedCoProcessFunction
from stateflow.api.functions.process import KeyedFunction, KeyedProcessFunction, TaskInfo
from stateflow.checkpoint.barrier.task_report import Failure
from stateflow.runtime.task.operators.calls.function_lifecycle import FunctionLifecycle
from stateflow.runtime.task.operators.calls.row_caller import RowMethod, row_caller
from stateflow.runtime.task.operators.calls.timer_caller import TimerCaller
from stateflow.runtime.task.operators.input_reader import KeyedInputs, KeyedRows
from stateflow.runtime.task.operators.key_time import KeyTime
from stateflow.runtime.task.operators.key_tracker import KeyTracker
from stateflow.runtime.task.operators.large_keys import InputRows
from stateflow.runtime.task.operators.operator_runtime import InitialState, OperatorRuntime
from stateflow.runtime.task_spec import ChainSpec, Numbers
from stateflow.state.handles import OperatorContent, StateSchema
from stateflow.state.kinds.timer_index import TimeDomain
from stateflow.state.kinds.ttl.cleanup import TtlCleanup


class KeyedOperator:
    """Feeds a function with the rows and timers of its keys and collects what it emits.

    Args:
        spec: the operator chain.
        info: the subtask.
        initial: the state to start from.
    """

    def __init__(self, spec: ChainSpec, info: TaskInfo, initial: InitialState) -> None:
        self._spec = spec
        self._inputs = KeyedInputs(spec)
        self._runtime = runtime = OperatorRuntime(spec, info, initial)
        self._state = runtime.state
        self._context = runtime.context
        self._limits = initial.limits
        self._methods = _row_methods(runtime.function)
        self._rows = row_caller(runtime)
        self._timers = TimerCaller(runtime)
        self._keys = KeyTracker(runtime, is_time_advanced=initial.timer_index is None)
        self._lifecycle = FunctionLifecycle(runtime)
        self._lifecycle.open(initial)

    # -- rows and timers ----------------------------------------------------------------------------------------------

    def process(
        self, order: Numbers, columns: Sequence[pa.Array], inputs: Numbers | None = None, origins: Numbers | None = None
    ) -> list[object]:
        """Processes sorted rows of one phase; returns what the function emitted to its main output.

        Args:
            order: the `ORDER` of each row.
            columns: the columns of all inputs, one input after the other.
            inputs: the number of each row's input; None if all rows are of the first.
            origins: the number of each row's source; None if it is not known.
        """
        with self._runtime.errors.adding_position(self._context):
            given = InputRows(order, columns, inputs, origins)
            read = self._inputs.read(order, columns, inputs)
            if read.has_larger_key(self._limits.key_bytes):
                given = given.without_large_keys(read, self._limits, self._rows)
                if not len(given.order):
                    return []
                read = self._inputs.read(given.order, given.columns, given.inputs)
            return self._process(given, read)

    def _process(self, given: InputRows, read: KeyedRows) -> list[object]:
        runtime, emitters, methods, inputs = self._runtime, self._runtime.emitters, self._methods, given.inputs
        numbers = inputs.tolist() if inputs is not None and len(methods) > 1 else None
        emitted: list[object] = []
        self._state.begin_key_batch([(group, key) for group, key, _ in read.keys])
        self._context.set_time_of(self._inputs[0].time_of)
        key_time = runtime.key_time if given.origins is not None else None
        if key_time is not None and given.origins is not None:
            key_time.read(read, self._inputs.event_times(given.columns, inputs), given.origins)
        emitters.begin()
        for number, (key, own) in enumerate(read.by_key()):
            self._keys.enter(key, emitted)
            emitters.add(len(emitted), key[2])
            if key_time is not None:
                key_time.begin_rows(number)
                self._process_in_time(key_time, read, own, numbers, emitted)
                key_time.end_rows()
            elif numbers is None:
                self._rows.call(methods[0], read.rows[own], emitted)
            else:
                self._process_inputs(read.rows[own], numbers[own], emitted)
        self._state.end_key_batch()
        return emitted

    def broadcast(self, columns: Sequence[pa.Array]) -> list[object]:
        """Processes broadcast rows, which have no key; returns what the function emitted to its main output."""
        runtime, function = self._runtime, self._runtime.function
        with runtime.errors.adding_position(self._context):
            assert isinstance(function, KeyedBroadcastProcessFunction)
            emitted: list[object] = []
            runtime.emitters.begin()
            self._context.set_key(())
            runtime.operator_state.side.is_broadcast = True
            self._context.set_time_of(self._inputs[1].time_of)
            rows = self._inputs.read_unkeyed(1, columns)
            self._rows.call(function.process_broadcast_element, rows, emitted)
            runtime.operator_state.side.is_broadcast = False
            return emitted

    def advance(self) -> None:
        """Advances event time and processing time to those of the batch, after the rows of phase 0."""
        self._keys.end_open_key([])
        self._keys.is_time_advanced = True
        self._runtime.timer_service.advance(self._spec.watermark)

    def fire(self) -> Iterator[list[object]]:
        """Advances time and fires the timers that are due; yields slices of what they emit to the main output."""
        with self._runtime.errors.adding_position(self._runtime.on_timer_context):
            self.advance()
            yield from self._timers.fire_due()

    def finish(self) -> Iterator[list[object]]:
        """Ends the batch: calls `on_batch_end` of each key that had rows, then `close`; yields what is emitted."""
        with self._runtime.errors.adding_position(self._context):
            if not self._keys.is_time_advanced:
                self.advance()
            yield from self._keys.end_all_keys()
            self._lifecycle.finish()

    def abort(self) -> None:
        """Closes the function after a failure."""
        self._lifecycle.close()

    def _process_in_time(
        self, time: KeyTime, read: KeyedRows, own: slice, numbers: Sequence[int] | None, emitted: list[object]
    ) -> None:
        """Processes the rows of one key in event-time order; before each row, fires the key's timers that are due."""
        key = self._state.current_key
        assert key is not None
        rows = read.rows
        for at in range(own.start, own.stop):
            if time.advance_to(at):
                for timer in time.due():
                    self._timers.fire(TimeDomain.EVENT_TIME, timer, emitted)
                self._state.set_key(*key)
            number = numbers[at] if numbers is not None else 0
            if numbers is not None:
                self._context.set_time_of(self._inputs[number].time_of)
            self._rows.call(self._methods[number], rows[at : at + 1], emitted)

    def _process_inputs(self, rows: Sequence[object], numbers: Sequence[int], emitted: list[object]) -> None:
        """Processes the rows of one key from several inputs; consecutive rows of one input go together."""
        cuts = [i for i in range(1, len(rows)) if numbers[i] != numbers[i - 1]]
        for start, end in pairwise([0, *cuts, len(rows)]):
            self._context.set_time_of(self._inputs[numbers[start]].time_of)
            self._rows.call(self._methods[numbers[start]], rows[start:end], emitted)

    # -- state --------------------------------------------------------------------------------------------------------

    def ttl_cleanup(self) -> TtlCleanup:
        """Returns the cleanup of expired entries; to be run after `finish`."""
        self._runtime.clock.reset()
        return self._state.ttl_cleanup(self._runtime.groups)

    @property
    def schemas(self) -> list[StateSchema]:
        """The keyed states that the function declared."""
        return self._state.registry.schemas

    @property
    def operator_states(self) -> list[StateSchema]:
        """The operator states that the function declared."""
        return self._runtime.operator_state.schemas

    @property
    def operator_content(self) -> OperatorContent:
        """The operator state to store, after `finish`."""
        return self._lifecycle.operator_content

    # -- what else was emitted ----------------------------------------------------------------------------------------

    @property
    def late_rows_dropped(self) -> int:
        """The number of rows that the function has dropped because they were too late."""
        return self._runtime.function.late_rows_dropped

    @property
    def hot_keys(self) -> dict[str, int]:
        """The pairs of rows that a join has compared for keys with many, by key."""
        return dict(self._runtime.function.hot_keys)

    @property
    def dead_letters(self) -> tuple[int, Failure | None]:
        """The number of rows that became dead letters, and the error of the last one."""
        return self._rows.dead_letters

    def take_side_outputs(self) -> dict[str, list[object]]:
        """Returns the rows emitted to side outputs since the last call, by name of the output tag."""
        return self._context.take_side_outputs()

    def key_of_emitted(self, position: int) -> Mapping[str, object] | None:
        """Returns the key that emitted the row at a position of the newest list of emitted rows."""
        key = self._runtime.emitters.key_of(position)
        return None if key is None else self._runtime.errors.describe_key(key)


def _row_methods(function: KeyedFunction[object]) -> tuple[RowMethod, ...]:
    """Returns the methods that process rows, one for each keyed input."""
    if isinstance(function, KeyedCoProcessFunction):
        return (function.process_element1, function.process_element2)
    assert isinstance(function, KeyedProcessFunction | KeyedBroadcastProcessFunction)
    return (function.process_element,)
