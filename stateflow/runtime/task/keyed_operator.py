"""A keyed operator that calls a function for each row and timer, in Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, pairwise

import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from numpy.typing import NDArray

from stateflow.api.dead_letters import DEAD_LETTERS
from stateflow.api.functions.adapters import user_function
from stateflow.api.functions.checkpointed import (
    CheckpointedFunction,
    CheckpointListener,
    FunctionInitializationContext,
    FunctionSnapshotContext,
)
from stateflow.api.functions.connected import KeyedBroadcastProcessFunction, KeyedCoProcessFunction
from stateflow.api.functions.process import Context, KeyedFunction, KeyedProcessFunction, RuntimeContext, TaskInfo
from stateflow.checkpoint.barriers import Failure
from stateflow.clock import Section
from stateflow.errors import CorruptFile, EntryTooLarge, StateflowError
from stateflow.runtime.executor import ChainSpec, Numbers
from stateflow.runtime.task.dead_letters import DeadLetterCollector
from stateflow.runtime.task.input_reader import EncodedKey, Key, KeyedInputs, KeyedRows, KeyTime
from stateflow.runtime.task.operator_runtime import InitialState, OperatorRuntime
from stateflow.runtime.user_code import describe_value, is_user_error
from stateflow.state.backends.base import key_too_large
from stateflow.state.handles import OperatorContent, StateSchema
from stateflow.state.kinds.timers import SliceSize, Timer
from stateflow.state.kinds.ttl import TtlCleanup
from stateflow.state.stored_key import TimeDomain


class KeyedOperator:
    """Feeds a function with the rows and timers of its keys and collects what it emits.

    Args:
        spec: the operator chain.
        info: the subtask.
        initial: the state to start from.
    """

    def __init__(self, spec: ChainSpec, info: TaskInfo, initial: InitialState) -> None:
        self._spec = spec
        self._inputs = KeyedInputs(spec, initial.backend.watch)
        self._runtime = runtime = OperatorRuntime(spec, info, initial)
        self._state = runtime.state
        self._context = runtime.context
        self._limits = initial.limits
        self._watch = initial.backend.watch
        self._methods = _row_methods(runtime.function)
        self._rows = _new_row_caller(runtime)
        self._timers = _TimerCaller(runtime)
        self._keys = _KeyTracker(runtime, is_time_advanced=initial.timer_index is None)
        self._lifecycle = _FunctionLifecycle(runtime)
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
        with self._runtime.add_position(self._context):
            read = self._inputs.read(order, columns, inputs)
            if read.has_larger_key(self._limits.key_bytes):
                kept = self._refuse_large_keys(read, len(order))
                if not kept.any():
                    return []
                order, columns = order[kept], [column.filter(pa.array(kept)) for column in columns]
                inputs, origins = (None if each is None else each[kept] for each in (inputs, origins))
                read = self._inputs.read(order, columns, inputs)
            return self._process(read, columns, inputs, origins)

    def _refuse_large_keys(self, read: KeyedRows, count: int) -> NDArray[np.bool_]:
        """Makes dead letters of the rows whose keys exceed the limit, before the function or a store sees them.

        Args:
            count: number of rows.

        Returns:
            Whether each row is kept.

        Raises:
            EntryTooLarge: the operator has no dead letters.
        """
        kept = np.ones(count, np.bool_)
        for key, own in read.by_key():
            if len(key[1]) > self._limits.key_bytes:
                kept[own] = False
                self._rows.refuse(key[2], read.rows[own], key_too_large(len(key[1]), self._limits))
        return kept

    def _process(
        self, read: KeyedRows, columns: Sequence[pa.Array], inputs: Numbers | None, origins: Numbers | None
    ) -> list[object]:
        runtime, methods = self._runtime, self._methods
        numbers = inputs.tolist() if inputs is not None and len(methods) > 1 else None
        emitted: list[object] = []
        before = self._watch.switch(Section.STATE)
        self._state.begin_key_batch([(group, key) for group, key, _ in read.keys])
        self._watch.switch(Section.FUNCTION)
        self._context.set_time_of(self._inputs[0].time_of)
        key_time = runtime.key_time if origins is not None else None
        if key_time is not None and origins is not None:
            key_time.read(read, self._inputs.event_times(columns, inputs), origins)
        runtime.begin_emitters()
        for number, (key, own) in enumerate(read.by_key()):
            self._keys.enter(key, emitted)
            runtime.add_emitter(len(emitted), key[2])
            if key_time is not None:
                key_time.begin_rows(number)
                self._process_in_time(key_time, read, own, numbers, emitted)
                key_time.end_rows()
            elif numbers is None:
                self._rows.call(methods[0], read.rows[own], emitted)
            else:
                self._process_inputs(read.rows[own], numbers[own], emitted)
        self._watch.switch(Section.STATE)
        self._state.end_key_batch()
        self._watch.switch(before)
        return emitted

    def broadcast(self, columns: Sequence[pa.Array]) -> list[object]:
        """Processes broadcast rows, which have no key; returns what the function emitted to its main output."""
        runtime, function = self._runtime, self._runtime.function
        with runtime.add_position(self._context):
            assert isinstance(function, KeyedBroadcastProcessFunction)
            emitted: list[object] = []
            runtime.begin_emitters()
            self._context.set_key(())
            runtime.operator_state.side.is_broadcast = True
            self._context.set_time_of(self._inputs[1].time_of)
            rows = self._inputs.read_unkeyed(1, columns)
            before = self._watch.switch(Section.FUNCTION)
            self._rows.call(function.process_broadcast_element, rows, emitted)
            self._watch.switch(before)
            runtime.operator_state.side.is_broadcast = False
            return emitted

    def advance(self) -> None:
        """Advances event time and processing time to those of the batch, after the rows of phase 0."""
        self._keys.end_open_key([])
        self._keys.is_time_advanced = True
        self._runtime.timer_service.advance(self._spec.watermark)

    def fire(self) -> Iterator[list[object]]:
        """Advances time and fires the timers that are due; yields slices of what they emit to the main output."""
        with self._runtime.add_position(self._runtime.on_timer_context):
            self.advance()
            yield from self._timers.fire_due()

    def finish(self) -> Iterator[list[object]]:
        """Ends the batch: calls `on_batch_end` of each key that had rows, then `close`; yields what is emitted."""
        with self._runtime.add_position(self._context):
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

    def find_emitting_key(self, position: int) -> Mapping[str, object] | None:
        """Returns the key that emitted the row at a position of the newest list of emitted rows."""
        key = self._runtime.emitter_of(position)
        return None if key is None else self._runtime.describe_key(key)


def _row_methods(function: KeyedFunction[object]) -> tuple[_RowMethod, ...]:
    """Returns the methods that process rows, one for each keyed input."""
    if isinstance(function, KeyedCoProcessFunction):
        return (function.process_element1, function.process_element2)
    assert isinstance(function, KeyedProcessFunction | KeyedBroadcastProcessFunction)
    return (function.process_element,)


_RowMethod = Callable[[object, Context], Iterable[object] | None]
"""A method of a function that processes one row."""


class _RowCaller:
    """Calls a row method for rows of the current key, or for broadcast rows."""

    def __init__(self, runtime: OperatorRuntime) -> None:
        self._context = runtime.context
        self._runtime = runtime

    def call(self, method: _RowMethod, rows: Sequence[object], emitted: list[object]) -> None:
        """Calls `method` for each row and appends what it emits.

        Raises:
            UserCodeError: a call raised.
        """
        context = self._context
        row = returned = None
        try:
            for row in rows:
                context.row = row
                returned = method(row, context)
                if returned is not None:
                    emitted.extend(returned)
        except StateflowError:
            raise
        except Exception as e:
            cause = self._runtime.find_cause(method.__name__, e, returned)
            raise self._runtime.user_error(method.__name__, cause, context.key_values, row) from e

    def refuse(self, key: Key, rows: Sequence[object], error: EntryTooLarge) -> None:
        """Reports rows that the function cannot be called with.

        Args:
            key: the key of the rows; it does not become the current key.

        Raises:
            EntryTooLarge: `error`, with operator, key and row; only without dead letters.
        """
        runtime = self._runtime
        key_by_column = runtime.describe_key(key)
        error.add_facts(operator=runtime.spec.uid, key=describe_value(key_by_column), row=describe_value(rows[0]))
        raise error

    @property
    def dead_letters(self) -> tuple[int, Failure | None]:
        """The number of rows that became dead letters, and the error of the last one."""
        return 0, None


class _DeadLetterRowCaller(_RowCaller):
    """Emits a dead letter for each row whose call raises, and rolls back what that call changed and emitted."""

    def __init__(self, runtime: OperatorRuntime, collector: DeadLetterCollector) -> None:
        super().__init__(runtime)
        self._state = runtime.state
        self._operator_state = runtime.operator_state
        self._timers = runtime.timers
        self._collector = collector

    def call(self, method: _RowMethod, rows: Sequence[object], emitted: list[object]) -> None:
        context, state, operator_state = self._context, self._state, self._operator_state
        for row in rows:
            count, side_outputs = len(emitted), context.mark_side_outputs()
            state.savepoint()
            operator_state.savepoint()
            context.row = row
            returned = None
            try:
                returned = method(row, context)
                emitted.extend(returned or ())
                state.commit()
            except Exception as e:
                if not is_user_error(e):
                    raise
                state.rollback()
                self._timers.resync_key()
                operator_state.rollback()
                del emitted[count:]
                context.rollback_side_outputs(side_outputs)
                cause = self._runtime.find_cause(method.__name__, e, returned)
                letter = self._collector.collect(self._runtime.describe_key(context.key_values), row, cause)
                context.output(DEAD_LETTERS, letter)

    def refuse(self, key: Key, rows: Sequence[object], error: EntryTooLarge) -> None:
        for row in rows:
            letter = self._collector.collect(self._runtime.describe_key(key), row, error)
            self._context.output(DEAD_LETTERS, letter)

    @property
    def dead_letters(self) -> tuple[int, Failure | None]:
        return self._collector.count, self._collector.last


def _new_row_caller(runtime: OperatorRuntime) -> _RowCaller:
    """Returns the caller for the operator's `on_error`."""
    spec = runtime.spec
    if spec.on_error is None:
        return _RowCaller(runtime)
    return _DeadLetterRowCaller(runtime, DeadLetterCollector(spec.on_error, spec.uid, runtime.info.epoch))


class _TimerCaller:
    """Fires the timers of an operator."""

    def __init__(self, runtime: OperatorRuntime) -> None:
        self._runtime = runtime
        self._state = runtime.state
        self._function = runtime.function
        self._context = runtime.on_timer_context
        self._size = SliceSize()
        self._watch = runtime.watch

    def fire_due(self) -> Iterator[list[object]]:
        """Fires the timers of all keys until none is due; yields slices of what they emit to the main output.

        Event-time timers fire before processing-time timers.
        """
        runtime = self._runtime
        watermark, now = runtime.spec.watermark, runtime.now
        until = {TimeDomain.EVENT_TIME: watermark, TimeDomain.PROCESSING_TIME: now}
        while runtime.timer_index.earliest.due(watermark, now):
            for domain, time in until.items():
                for keys, timers in runtime.timers.due(domain, time, self._size) if time is not None else ():
                    yield self._fire_slice(domain, keys, timers)
                self._state.end_key_batch()

    def _fire_slice(self, domain: TimeDomain, keys: list[tuple[bytes, bytes]], timers: Iterator[Timer]) -> list[object]:
        emitted: list[object] = []
        self._runtime.begin_emitters()
        before = self._watch.switch(Section.STATE)
        self._state.begin_key_batch(sorted(set(keys)))
        self._watch.switch(Section.FUNCTION)
        for timer in timers:
            self.fire(domain, timer, emitted)
        self._watch.switch(Section.STATE)
        # A slice without keys has timers that were registered meanwhile.
        self._size.adapt(len(keys) or self._size.keys, self._state.batch_bytes(), len(emitted))
        self._state.end_key_batch()
        self._watch.switch(before)
        return emitted

    def fire(self, domain: TimeDomain, timer: Timer, emitted: list[object]) -> None:
        """Fires one timer, whose key becomes current; appends what it emits.

        Raises:
            UserCodeError: `on_timer` raised.
            CorruptFile: the timer's key does not have as many columns as the operator's.
        """
        runtime, context = self._runtime, self._context
        if len(timer.values) != len(runtime.key_columns):
            raise CorruptFile(
                "a stored timer has another number of key columns",
                hint="restore an older checkpoint",
                key=timer.key.hex()[:80],
                columns=len(runtime.key_columns),
            )
        key = runtime.key_types.to_declared(timer.values)
        runtime.add_emitter(len(emitted), key)
        self._state.set_key(timer.group, timer.key)
        if timer.namespace is not None:
            self._state.set_namespace(timer.namespace)
        context.set_key(key)
        context.set_timer(domain, timer.time)
        runtime.context.row = None
        # A timer sees the state of its own time: the event time of the batch may be much later.
        if domain is TimeDomain.EVENT_TIME:
            runtime.clock.set(timer.time)
        else:
            runtime.clock.reset()
        returned = None
        try:
            returned = self._function.on_timer(timer.time, context)
            if returned is not None:
                emitted.extend(returned)
        except StateflowError:
            raise
        except Exception as e:
            cause = runtime.find_cause("on_timer", e, returned)
            raise runtime.user_error("on_timer", cause, key) from e


class _FunctionLifecycle:
    """Calls the methods of a function that frame its rows, and keeps its raw state."""

    def __init__(self, runtime: OperatorRuntime) -> None:
        self._runtime = runtime
        self._hooks = user_function(runtime.function)
        self._raw = runtime.assigned.own

    def open(self, initial: InitialState) -> None:
        """Calls `initialize_state`, `open` and `notify_checkpoint_complete`."""
        runtime, hooks = self._runtime, self._hooks
        context = RuntimeContext(runtime.state, runtime.info)
        with runtime.add_position(runtime.context):
            if isinstance(hooks, CheckpointedFunction):
                given = FunctionInitializationContext(
                    initial.is_restored, runtime.info, operator=runtime.operator_state, keyed=context, raw=self._raw
                )
                runtime.call("initialize_state", partial(hooks.initialize_state, given))
            runtime.call("open", partial(runtime.function.open, context))
        if isinstance(hooks, CheckpointListener) and initial.is_restored and initial.checkpoint_id:
            notify = partial(hooks.notify_checkpoint_complete, initial.checkpoint_id)
            runtime.call("notify_checkpoint_complete", notify)

    def finish(self) -> None:
        """Calls `snapshot_state` and `close`."""
        runtime, hooks = self._runtime, self._hooks
        if isinstance(hooks, CheckpointedFunction):
            context = FunctionSnapshotContext(runtime.info, runtime.groups)
            runtime.call("snapshot_state", partial(hooks.snapshot_state, context))
            raw = context.get_raw_operator_state_output().partitions
            self._raw = OperatorContent(raw=raw, raw_keyed=context.get_raw_keyed_state_output().pieces)
        self.close()

    def close(self) -> None:
        """Calls `close`."""
        self._runtime.call("close", self._runtime.function.close)

    @property
    def operator_content(self) -> OperatorContent:
        """The operator state to store; after `finish`."""
        keeps_broadcasts = self._runtime.info.subtask == 0
        content = self._runtime.operator_state.content(keeps_broadcasts=keeps_broadcasts)
        return replace(content, raw=self._raw.raw, raw_keyed=self._raw.raw_keyed)


class _KeyTracker:
    """Sets the current key, and tracks the keys that have had rows in this batch.

    Attributes:
        is_time_advanced: whether time has advanced to that of the batch. If true, a key ends with its last row;
            otherwise it may have more rows in phase 1.
    """

    def __init__(self, runtime: OperatorRuntime, *, is_time_advanced: bool) -> None:
        self.is_time_advanced = is_time_advanced
        self._runtime = runtime
        self._state = runtime.state
        self._context = runtime.context
        self._function = runtime.function
        self._clock = runtime.clock
        self._key_time = runtime.key_time
        self._has_batch_end = type(runtime.function).on_batch_end is not KeyedFunction.on_batch_end
        self._open: EncodedKey | None = None
        """The last key of the previous Arrow batch; the next batch may begin with more of its rows."""
        self._ended: dict[tuple[bytes, bytes], EncodedKey] = {}
        """Keys with rows of phase 0 that await `on_batch_end`."""

    def enter(self, key: EncodedKey, emitted: list[object]) -> None:
        """Makes `key` current, and ends the previous key; appends the rows that this emits to `emitted`."""
        # Compared by their bytes, not their values: a NaN is not equal to itself, and still one key.
        if self._open is None or self._open[:2] != key[:2]:
            self.end_open_key(emitted)
            self._open = key
            self._clock.reset()
            if self._key_time is not None:
                self._key_time.begin_key()
        self._make_current(key)

    def end_open_key(self, emitted: list[object]) -> None:
        """Ends the key that was processed last; appends the rows that its `on_batch_end` emits to `emitted`."""
        ended, self._open = self._open, None
        if ended is None or not self._has_batch_end:
            return
        if self.is_time_advanced:
            self._ended.pop(ended[:2], None)
            self._call_batch_end(ended, emitted)
        else:
            self._ended[ended[:2]] = ended

    def end_all_keys(self) -> Iterator[list[object]]:
        """Ends the batch for all keys whose `on_batch_end` has not been called yet; yields slices of what they emit."""
        yield self._end_last_key()
        ended, size = iter(list(self._ended.values())), SliceSize()
        while some := list(islice(ended, size.keys)):
            emitted, watch = self._new_slice(), self._runtime.watch
            before = watch.switch(Section.STATE)
            self._state.begin_key_batch([(group, key) for group, key, _ in some])
            watch.switch(Section.FUNCTION)
            for key in some:
                self._call_batch_end(key, emitted)
            watch.switch(Section.STATE)
            size.adapt(len(some), self._state.batch_bytes(), len(emitted))
            self._state.end_key_batch()
            watch.switch(before)
            yield emitted

    def _end_last_key(self) -> list[object]:
        emitted = self._new_slice()
        self.end_open_key(emitted)
        self._state.end_key_batch()
        return emitted

    def _new_slice(self) -> list[object]:
        self._runtime.begin_emitters()
        return []

    def _call_batch_end(self, key: EncodedKey, emitted: list[object]) -> None:
        runtime = self._runtime
        runtime.add_emitter(len(emitted), key[2])
        self._make_current(key)
        # What its last row has written counts from the time of that row.
        self._state.flush_event_times()
        self._context.row = None
        self._clock.reset()
        returned = None
        try:
            returned = self._function.on_batch_end(self._context)
            if returned is not None:
                emitted.extend(returned)
        except StateflowError:
            raise
        except Exception as e:
            cause = runtime.find_cause("on_batch_end", e, returned)
            raise runtime.user_error("on_batch_end", cause, key[2]) from e

    def _make_current(self, key: EncodedKey) -> None:
        if self._state.current_key != key[:2]:
            self._state.set_key(key[0], key[1])
            self._context.set_key(key[2])
