"""A subtask of a keyed operator, which processes one batch; the same with and without Spark.

Rows come in Arrow batches, sorted: key group, key, the declared order, then order of arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from stateflow.api.checkpointed import (
    CheckpointedFunction,
    CheckpointListener,
    FunctionInitializationContext,
    FunctionSnapshotContext,
)
from stateflow.api.co_functions import KeyedBroadcastProcessFunction, KeyedCoProcessFunction
from stateflow.api.dead_letters import DEAD_LETTERS
from stateflow.api.functions import (
    Context,
    KeyedFunction,
    KeyedProcessFunction,
    OnTimerContext,
    RuntimeContext,
    TaskInfo,
    has_timers,
)
from stateflow.api.keyed_rows import hooks_of, written_function
from stateflow.api.returned import message_and_hint, named_if_no_rows
from stateflow.api.side_outputs import SideOutputs
from stateflow.api.timers import TimerService
from stateflow.checkpoint.redistribution import Assigned
from stateflow.checkpoint.reports import Failure
from stateflow.errors import StateflowError, UserCodeError
from stateflow.keygroups import range_of
from stateflow.runtime.dead_letters import LetterBox, innermost, is_the_rows_fault
from stateflow.runtime.emitters import Emitters
from stateflow.runtime.error_position import naming_position
from stateflow.runtime.inputs import Key, KeyedInputs, NamedKey
from stateflow.runtime.key_time import KeyTime
from stateflow.runtime.operator_parts import OperatorParts
from stateflow.runtime.specs import UnitSpec
from stateflow.runtime.watermarks import milliseconds
from stateflow.state.backend import KeyedStateBackend
from stateflow.state.current import BatchTime
from stateflow.state.handles import OperatorContent, StateSchema
from stateflow.state.keyed import KeyedState
from stateflow.state.operator_state import OperatorStateStore
from stateflow.state.timers import SLICE, TimeDomain, Timer, TimerIndex

Caller = Callable[[Any, Context], Iterable[Any] | None]


def _callers(function: KeyedFunction[Any]) -> tuple[Caller, ...]:
    """The methods of the function that process rows, one for each keyed input."""
    if isinstance(function, KeyedCoProcessFunction):
        return (function.process_element1, function.process_element2)
    assert isinstance(function, KeyedProcessFunction | KeyedBroadcastProcessFunction)
    return (function.process_element,)


class KeyedOperator:
    """Feeds a function with rows and collects what it emits.

    Args:
        spec: the unit.
        info: the subtask.
        backend: with the base state restored.
        parts: operator state of the base.
        checkpoint_id: of the newest checkpoint that is committed; 0 when there is none.
        index: what is known of the timers in the store; None for one without timers, whose time does not advance.
    """

    def __init__(  # noqa: PLR0913 - what a subtask of an operator is made of
        self,
        spec: UnitSpec,
        info: TaskInfo,
        backend: KeyedStateBackend,
        parts: OperatorParts | None = None,
        checkpoint_id: int = 0,
        index: TimerIndex | None = None,
    ) -> None:
        assert spec.function is not None and spec.keying is not None
        self._spec = spec
        self._function: KeyedFunction[Any] = spec.function
        self._columns = spec.keying.columns
        self._inputs = KeyedInputs(spec)
        self._callers = _callers(spec.function)
        self._has_batch_end = type(spec.function).on_batch_end is not KeyedFunction.on_batch_end
        self._groups = range_of(info.subtask, info.parallelism, info.max_parallelism)
        self._letters = LetterBox(spec.on_error, spec.uid, info.epoch) if spec.on_error else None
        self._state = KeyedState(
            backend, spec.known_states, batch_time(info), undoable=self._letters is not None
        )
        assigned = parts.assigned() if parts else Assigned()
        base = parts.base if parts else None
        self._operator_state = OperatorStateStore(
            base.states if base else (), assigned.own, assigned.unions, assigned.broadcasts
        )
        self._raw = assigned.own
        self._info = info
        self._hooks = hooks_of(spec.function)
        self._index = index or TimerIndex()
        self._timers = self._state.timers(self._groups, self._index)
        self._advanced = index is None
        self._now = milliseconds(info.processing_time)
        refused = "" if has_timers(spec.function) else "the function has no on_timer"
        self._service = TimerService(self._timers, self._now, spec.watermark_before, refused)
        clock = self._clock = self._state.clock
        self._key_time = KeyTime(spec, self._service, self._timers, clock) if spec.source_times else None
        side = SideOutputs()
        given_state = (
            self._operator_state if isinstance(spec.function, KeyedBroadcastProcessFunction) else None
        )
        self._context = Context(info, self._service, side, given_state)
        self._clock.row_time = self._context.timestamp
        self._on_timer_context = OnTimerContext(info, self._service, side, given_state)
        self._emitters = Emitters()
        self._open: NamedKey | None = None
        """The last key of the previous Arrow batch; the next one may have more of its rows."""
        self._ended: dict[tuple[bytes, bytes], NamedKey] = {}
        """Keys with rows of phase 0, for `on_batch_end`: each may have rows of phase 1 too."""
        with self._naming_position(self._context):
            self._begin(base is not None, checkpoint_id)

    def _begin(self, is_restored: bool, checkpoint_id: int) -> None:
        """Opens the function, in Flink's order of calls."""
        runtime = RuntimeContext(self._state, self._info)
        if isinstance(self._hooks, CheckpointedFunction):
            stores = (self._operator_state, runtime)
            given = FunctionInitializationContext(is_restored, stores, self._raw, self._info)
            self._call("initialize_state", partial(self._hooks.initialize_state, given))
        self._call("open", partial(self._function.open, runtime))
        if isinstance(self._hooks, CheckpointListener) and is_restored and checkpoint_id:
            told = partial(self._hooks.notify_checkpoint_complete, checkpoint_id)
            self._call("notify_checkpoint_complete", told)

    @property
    def dead_letters(self) -> tuple[int, Failure | None]:
        """The number of rows that failed and became dead letters, and the error of the last one."""
        return (self._letters.count, self._letters.last) if self._letters else (0, None)

    @property
    def schemas(self) -> list[StateSchema]:
        """The states that the function declared."""
        return self._state.schemas

    def process(
        self,
        order: np.ndarray[Any, Any],
        columns: Sequence[pa.Array],
        which: np.ndarray[Any, Any] | None = None,
        sources: np.ndarray[Any, Any] | None = None,
    ) -> list[Any]:
        """Feeds sorted rows of one phase; returns what the function emitted to its main output.

        Args:
            order: the `_order` of each row.
            columns: the rows' columns, as the input schema has them; of several inputs, one behind the other.
            which: the input of each row; None where all are of the first.
            sources: the number of the source of each row, as its origin; None where rows do not say it.
        """
        with self._naming_position(self._context):
            read = self._inputs.read(order, columns, which)
            came_by = which.tolist() if which is not None and len(self._callers) > 1 else None
            emitted: list[Any] = []
            self._state.begin_stretch([(group, key) for group, key, _ in read.keys])
            self._context.set_time_of(self._inputs[0].time_of)
            key_time = self._key_time if sources is not None else None
            if key_time is not None and sources is not None:
                key_time.read(read, self._inputs.event_times(columns, which), sources)
            self._emitters.begin()
            for number, (key, own) in enumerate(read.by_key()):
                self._enter(key, emitted)
                self._emitters.enter(len(emitted), key[2])
                if key_time is not None:
                    key_time.begin_rows(number)
                    self._feed_in_time(key_time, read.rows, own, came_by, emitted)
                    key_time.end_rows()
                elif came_by is None:
                    self._feed(self._callers[0], read.rows[own], emitted)
                else:
                    self._feed_each(read.rows[own], came_by[own], emitted)
            self._state.end_stretch()
            return emitted

    def broadcast(self, columns: Sequence[pa.Array]) -> list[Any]:
        """Feeds rows of the broadcast stream, which have no key; returns what the function emitted."""
        with self._naming_position(self._context):
            assert isinstance(self._function, KeyedBroadcastProcessFunction)
            emitted: list[Any] = []
            self._emitters.begin()
            self._context.set_key(())
            self._operator_state.side.is_broadcast = True
            self._context.set_time_of(self._inputs[1].time_of)
            rows = self._inputs.read_unkeyed(1, columns)
            self._feed(self._function.process_broadcast_element, rows, emitted)
            self._operator_state.side.is_broadcast = False
            return emitted

    def take_side_outputs(self) -> dict[str, list[Any]]:
        """The rows emitted to side outputs since the last call, by the tag's name."""
        return self._context.take_side_outputs()

    def name_emitter(self, position: int) -> dict[str, Any] | None:
        """The key that emitted the row at a position of what `process`, `fire` or `finish` returned last."""
        key = self._emitters.key_of(position)
        return None if key is None else self._named_key(key)

    def advance(self) -> None:
        """Advances time to that of the batch, after the rows of phase 0."""
        self._end_open_key([])
        self._advanced = True
        self._service.advance(self._spec.watermark)

    def fire(self) -> Iterator[list[Any]]:
        """Advances, and calls `on_timer` for what is due, in slices; yields what that emitted to the main output.

        Event-time timers come first, then those of processing time, until nothing is due.
        """
        with self._naming_position(self._on_timer_context):
            self.advance()
            until = {TimeDomain.EVENT_TIME: self._spec.watermark, TimeDomain.PROCESSING_TIME: self._now}
            while self._index.earliest.due(self._spec.watermark, self._now):
                for domain, time in until.items():
                    for keys, timers in self._timers.due(domain, time) if time is not None else ():
                        yield self._fire_slice(domain, keys, timers)
                    self._state.end_stretch()

    def _fire_slice(
        self, domain: TimeDomain, keys: list[tuple[bytes, bytes]], timers: Iterator[Timer]
    ) -> list[Any]:
        emitted: list[Any] = []
        self._emitters.begin()
        self._state.begin_stretch(sorted(set(keys)))
        for timer in timers:
            self._fire_one(domain, timer, emitted)
        self._state.end_stretch()
        return emitted

    def _fire_one(self, domain: TimeDomain, timer: Timer, emitted: list[Any]) -> None:
        self._emitters.enter(len(emitted), timer.values)
        context = self._on_timer_context
        self._state.switch(timer.group, timer.key)
        if timer.namespace is not None:
            self._state.set_namespace(timer.namespace)
        context.set_key(timer.values)
        context.set_timer(domain, timer.time)
        self._context.row = None
        # A timer sees the state of its own time: the batch may have come much further.
        if domain is TimeDomain.EVENT_TIME:
            self._clock.set(timer.time)
        else:
            self._clock.reset()
        out = None
        try:
            out = self._function.on_timer(timer.time, context)
            if out is not None:
                emitted.extend(out)
        except StateflowError:
            raise
        except Exception as e:
            raise self._user_error("on_timer", None, self._named("on_timer", e, out), timer.values) from e

    def finish(self) -> list[Any]:
        """Ends the batch: the end of each key that had rows, then `close`."""
        with self._naming_position(self._context):
            emitted: list[Any] = []
            self._emitters.begin()
            if not self._advanced:
                self.advance()
            self._end_open_key(emitted)
            self._state.end_stretch()
            ended = iter(list(self._ended.values()))
            while some := list(islice(ended, SLICE)):
                self._state.begin_stretch([(group, key) for group, key, _ in some])
                for group in some:
                    self._end_key(group, emitted)
                self._state.end_stretch()
            if isinstance(self._hooks, CheckpointedFunction):
                context = FunctionSnapshotContext(self._info, self._groups)
                self._call("snapshot_state", partial(self._hooks.snapshot_state, context))
                written = context.get_raw_operator_state_output(), context.get_raw_keyed_state_output()
                self._raw = OperatorContent(raw=written[0].partitions, raw_keyed=written[1].pieces)
            self._call("close", self._function.close)
            return emitted

    @property
    def operator_content(self) -> OperatorContent:
        """The operator state to be written, once the batch has ended."""
        content = self._operator_state.content(keeps_broadcasts=self._info.subtask == 0)
        return replace(content, raw=self._raw.raw, raw_keyed=self._raw.raw_keyed)

    @property
    def operator_states(self) -> list[StateSchema]:
        """The operator states that the function declared."""
        return self._operator_state.schemas

    def clean_up(self, limit: int) -> None:
        """Removes some of what has expired; `limit` as in `KeyedState.clean_up`."""
        self._clock.reset()
        self._state.clean_up(self._groups, limit)

    def remove_expired(self) -> None:
        """Removes all that has expired, for a full snapshot."""
        self._clock.reset()
        self._state.remove_expired(self._groups)

    def abandon(self) -> None:
        """Closes the function after a failure."""
        self._call("close", self._function.close)

    def _enter(self, group: NamedKey, emitted: list[Any]) -> None:
        # By their bytes, not their values: a NaN is not equal to itself, and still one key.
        if self._open is None or self._open[:2] != group[:2]:
            self._end_open_key(emitted)
            self._open = group
            self._clock.reset()
            if self._key_time is not None:
                self._key_time.begin_key()
        self._make_current(group)

    def _end_open_key(self, emitted: list[Any]) -> None:
        ended, self._open = self._open, None
        if ended is None or not self._has_batch_end:
            return
        if self._advanced:
            self._ended.pop(ended[:2], None)
            self._end_key(ended, emitted)
        else:
            self._ended[ended[:2]] = ended

    def _end_key(self, group: NamedKey, emitted: list[Any]) -> None:
        self._emitters.enter(len(emitted), group[2])
        self._make_current(group)
        self._context.row = None
        self._clock.reset()
        out = None
        try:
            out = self._function.on_batch_end(self._context)
            if out is not None:
                emitted.extend(out)
        except StateflowError:
            raise
        except Exception as e:
            raise self._user_error("on_batch_end", None, self._named("on_batch_end", e, out), group[2]) from e

    def _make_current(self, group: NamedKey) -> None:
        if self._state.current != group[:2]:
            self._state.switch(group[0], group[1])
            self._context.set_key(group[2])

    def _feed_in_time(
        self, time: KeyTime, rows: list[Any], own: slice, came_by: list[int] | None, emitted: list[Any]
    ) -> None:
        """Feeds the rows of one key in event-time order; before each row, fires the key's timers that are due."""
        key = self._state.current
        assert key is not None
        for at in range(own.start, own.stop):
            if time.reach(at):
                for timer in time.due():
                    self._fire_one(TimeDomain.EVENT_TIME, timer, emitted)
                self._state.switch(*key)
            number = came_by[at] if came_by is not None else 0
            if came_by is not None:
                self._context.set_time_of(self._inputs[number].time_of)
            self._feed(self._callers[number], rows[at : at + 1], emitted)

    def _feed_each(self, rows: list[Any], came_by: list[int], emitted: list[Any]) -> None:
        """Feeds the rows of one key from several inputs; consecutive rows of one input go together."""
        cuts = [i for i in range(1, len(rows)) if came_by[i] != came_by[i - 1]]
        for start, end in pairwise([0, *cuts, len(rows)]):
            self._context.set_time_of(self._inputs[came_by[start]].time_of)
            self._feed(self._callers[came_by[start]], rows[start:end], emitted)

    def _feed(self, function: Caller, rows: list[Any], emitted: list[Any]) -> None:
        if self._letters is not None:
            self._feed_apart(self._letters, function, rows, emitted)
            return
        context = self._context
        row = out = None
        try:
            for row in rows:
                context.row = row
                out = function(row, context)
                if out is not None:
                    emitted.extend(out)
        except StateflowError:
            raise
        except Exception as e:
            name = function.__name__
            raise self._user_error(name, row, self._named(name, e, out)) from e

    def _feed_apart(self, letters: LetterBox, function: Caller, rows: list[Any], emitted: list[Any]) -> None:
        """As `_feed`; a row that fails becomes a dead letter, and leaves nothing else behind."""
        context = self._context
        for row in rows:
            count, side = len(emitted), context.mark_side_outputs()
            self._state.mark()
            self._operator_state.mark()
            context.row = row
            out = None
            try:
                out = function(row, context)
                emitted.extend(out or ())
                self._state.keep()
            except Exception as e:
                if not is_the_rows_fault(e):
                    raise
                self._state.take_back()
                self._timers.refresh_key()
                self._operator_state.take_back()
                del emitted[count:]
                context.take_back_side_outputs(side)
                named = self._named(function.__name__, e, out)
                context.output(DEAD_LETTERS, letters.take(self._named_key(), row, named))

    def _named_key(self, values: Key | None = None) -> dict[str, Any] | None:
        if values is None and self._open is not None:
            values = self._open[2]
        return dict(zip(self._columns, values, strict=True)) if values is not None else None

    def _naming_position(self, context: Context) -> AbstractContextManager[None]:
        return naming_position(self._spec.uid, self._columns, context)

    def _call(self, name: str, call: Callable[[], object], key: Key | None = None) -> None:
        try:
            call()
        except StateflowError:
            raise
        except Exception as e:
            raise self._user_error(name, None, e, key) from e

    def _named(self, method: str, error: Exception, returned: object) -> Exception:
        """The error; what the user returned from `method` is named in it when it is no rows."""
        return named_if_no_rows(error, returned, written_function(self._function, method))

    def _user_error(self, name: str, row: Any, error: Exception, values: Key | None = None) -> UserCodeError:
        what, hint = message_and_hint(error, f"{name} of an operator")
        return UserCodeError(
            what, hint=f"{hint}; nothing of this batch was committed", operator=self._spec.uid,
            key=repr(self._named_key(values)), row=repr(row)[:500], where=innermost(error),
        )  # fmt: skip


def batch_time(info: TaskInfo) -> BatchTime:
    """The times of a subtask's batch."""
    return BatchTime(info.epoch, milliseconds(info.processing_time), info.watermark)
