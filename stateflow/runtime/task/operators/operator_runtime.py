"""What the parts of a keyed operator share: the function, its contexts, state, timers and clock."""

from __future__ import annotations

from dataclasses import dataclass

from stateflow.api.functions.connected import KeyedBroadcastProcessFunction
from stateflow.api.functions.process import Context, KeyedFunction, OnTimerContext, TaskInfo, has_timers
from stateflow.api.functions.timers import TimerService
from stateflow.api.side_outputs import SideOutputs
from stateflow.checkpoint.restore.redistribution import AssignedState
from stateflow.clock import epoch_milliseconds
from stateflow.config.state_settings import EntryLimits
from stateflow.runtime.task.operator_state import OperatorParts
from stateflow.runtime.task.operators.emitters import Emitters
from stateflow.runtime.task.operators.function_errors import FunctionErrors
from stateflow.runtime.task.operators.key_time import KeyTime
from stateflow.runtime.task.operators.key_types import KeyTypes
from stateflow.runtime.task_spec import ChainSpec
from stateflow.state.backends.base import KeyedStateBackend
from stateflow.state.kinds.key_context import BatchTime
from stateflow.state.kinds.keyed_state import KeyedState
from stateflow.state.kinds.operator_state import OperatorStateStore
from stateflow.state.kinds.timer_index import TimerIndex
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
        self.errors = FunctionErrors(spec.uid, spec.keying.columns, self.function)
        self.emitters = Emitters()
        self.state = KeyedState(
            initial.backend,
            spec.known_states,
            batch_time(info),
            undoable=spec.on_error is not None,
            limits=initial.limits,
        )
        self.clock = self.state.clock
        self.assigned = initial.parts.assigned() if initial.parts else AssignedState()
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


def _operator_state_store(initial: InitialState, assigned: AssignedState) -> OperatorStateStore:
    parts = initial.parts
    known = parts.base.states if parts and parts.base else ()
    return OperatorStateStore(known, assigned.own, assigned.unions, assigned.broadcasts, initial.limits)


def batch_time(info: TaskInfo) -> BatchTime:
    """Returns epoch, processing time and watermark of a subtask's batch, as keyed state needs them."""
    return BatchTime(info.epoch, epoch_milliseconds(info.processing_time), info.watermark)
