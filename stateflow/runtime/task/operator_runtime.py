"""Objects of one keyed operator: function, state, timers, contexts, and errors with operator, key and row."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from stateflow.api.functions.adapters import row_callable
from stateflow.api.functions.connected import KeyedBroadcastProcessFunction
from stateflow.api.functions.process import Context, KeyedFunction, OnTimerContext, TaskInfo, TimerService, has_timers
from stateflow.api.functions.returned import invalid_if_not_iterable, message_and_hint
from stateflow.api.side_outputs import SideOutputs
from stateflow.checkpoint.restore.state_assignment import AssignedState
from stateflow.clock import epoch_milliseconds
from stateflow.config.settings import EntryLimits
from stateflow.errors import StateflowError, UserCodeError
from stateflow.runtime.executor import ChainSpec
from stateflow.runtime.task.input_reader import Key, KeyTime, KeyTypes
from stateflow.runtime.task.operator_state import OperatorParts
from stateflow.runtime.user_code import add_position, describe_value, find_user_line
from stateflow.state.backends.base import KeyedStateBackend
from stateflow.state.kinds.key_context import BatchTime
from stateflow.state.kinds.keyed_state import KeyedState
from stateflow.state.kinds.operator_state import OperatorStateStore
from stateflow.state.kinds.timers import TimerIndex
from stateflow.types.key_groups import range_of


@dataclass(frozen=True)
class InitialState:
    """The state that a subtask of an operator starts from.

    Attributes:
        backend: the state backend, which contains the base.
        parts: operator state of the base; None without one.
        checkpoint_id: the newest committed checkpoint; 0 without one.
        timer_index: index of the timers in the backend; None for an operator without timers, whose time does not
            advance.
        limits: the largest keys and entries.
    """

    backend: KeyedStateBackend
    parts: OperatorParts | None = None
    checkpoint_id: int = 0
    timer_index: TimerIndex | None = None
    limits: EntryLimits = EntryLimits()

    @property
    def is_restored(self) -> bool:
        """Whether the base contains the operator."""
        return self.parts is not None and self.parts.base is not None


class OperatorRuntime:
    """Creates and holds the objects that the parts of one keyed operator work with.

    Args:
        spec: the operator chain; its function and keying are set.
        info: the subtask.

    Attributes:
        key_columns: names of the key columns.
        assigned: the operator state that the subtask starts from.
        now: the processing time of the batch, in milliseconds since 1970.
        key_time: None unless timers fire between the rows of a key.
    """

    def __init__(self, spec: ChainSpec, info: TaskInfo, initial: InitialState) -> None:
        assert spec.function is not None and spec.keying is not None
        self.spec = spec
        self.info = info
        self.function: KeyedFunction[object] = spec.function
        self.groups = range_of(info.subtask, info.parallelism, info.max_parallelism)
        self.key_types = KeyTypes(spec)
        self.key_columns: Sequence[str] = spec.keying.columns
        self._starts: list[int] = []
        self._emitters: list[Key] = []
        self.state = KeyedState(
            initial.backend,
            spec.known_states,
            batch_time(info),
            undoable=spec.on_error is not None,
            limits=initial.limits,
        )
        self.clock = self.state.clock
        self.watch = initial.backend.watch
        self.assigned = initial.parts.read_assigned() if initial.parts else AssignedState()
        self.operator_state = _operator_state_store(initial, self.assigned)
        self.timer_index = initial.timer_index or TimerIndex()
        self.timers = self.state.timers(self.groups, self.timer_index)
        self.now = epoch_milliseconds(info.processing_time)
        refused = "" if has_timers(self.function) else "the function has no on_timer"
        self.timer_service = TimerService(self.timers, self.now, spec.watermark_before, refused)
        self.key_time = KeyTime(spec, self.timer_service, self.timers, self.clock) if spec.source_times else None
        side = SideOutputs()
        has_broadcast = isinstance(self.function, KeyedBroadcastProcessFunction)
        broadcast_state = self.operator_state if has_broadcast else None
        self.context = Context(info, self.timer_service, side, broadcast_state)
        self.on_timer_context = OnTimerContext(info, self.timer_service, side, broadcast_state)
        self.clock.row_time = self.context.timestamp

    # -- emitters of rows ---------------------------------------------------------------------------------------------

    def begin_emitters(self) -> None:
        """Begins to record which keys emit the rows of a new list."""
        self._starts.clear()
        self._emitters.clear()

    def add_emitter(self, position: int, key: Key) -> None:
        """Records that rows of the list from this position on are emitted by this key."""
        self._starts.append(position)
        self._emitters.append(key)

    def emitter_of(self, position: int) -> Key | None:
        """Returns the key that emitted the row at a position of the list; None for a row without a key."""
        found = bisect_right(self._starts, position)
        return self._emitters[found - 1] if found else None

    # -- errors -------------------------------------------------------------------------------------------------------

    def describe_key(self, key: Key) -> Mapping[str, object] | None:
        """Returns the key by column; None for the empty key of broadcast rows."""
        return dict(zip(self.key_columns, key, strict=True)) if key else None

    def add_position(self, context: Context) -> AbstractContextManager[None]:
        """Returns a context manager that adds operator, key and row to errors of declarations and state."""
        return add_position(self.spec.uid, self.key_columns, context)

    def call(self, name: str, call: Callable[[], object]) -> None:
        """Calls a method of the function that is not about a key.

        Raises:
            UserCodeError: the method raised.
        """
        try:
            call()
        except StateflowError:
            raise
        except Exception as e:
            raise self.user_error(name, e) from e

    def find_cause(self, method: str, error: Exception, returned: object) -> Exception:
        """Returns the error to report for a call: `InvalidReturnValue` if `method` did not return rows."""
        return invalid_if_not_iterable(error, returned, row_callable(self.function, method))

    def user_error(self, method: str, error: Exception, key: Key = (), row: object = None) -> UserCodeError:
        """Returns the error that fails the run.

        Args:
            key: empty if there is none.
            row: None if there is none.
        """
        message, hint = message_and_hint(error, f"{method} of an operator")
        return UserCodeError(
            message,
            hint=f"{hint}; nothing of this batch was committed",
            operator=self.spec.uid,
            key=describe_value(self.describe_key(key)),
            row=describe_value(row),
            where=find_user_line(error, self.function),
        )


def _operator_state_store(initial: InitialState, assigned: AssignedState) -> OperatorStateStore:
    parts = initial.parts
    known = parts.base.states if parts and parts.base else ()
    return OperatorStateStore(known, assigned.own, assigned.unions, assigned.broadcasts, initial.limits)


def batch_time(info: TaskInfo) -> BatchTime:
    """Returns epoch, processing time and watermark of a subtask's batch, as keyed state needs them."""
    return BatchTime(info.epoch, epoch_milliseconds(info.processing_time), info.watermark)
