"""Opens and closes the function of a keyed operator, in Flink's order of calls."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from stateflow.api.functions.adapters import user_function
from stateflow.api.functions.checkpointed import (
    CheckpointedFunction,
    CheckpointListener,
    FunctionInitializationContext,
    FunctionSnapshotContext,
)
from stateflow.api.functions.process import RuntimeContext
from stateflow.runtime.task.operators.operator_runtime import InitialState, OperatorRuntime
from stateflow.state.handles import OperatorContent


class FunctionLifecycle:
    """Calls the methods of a function that frame its rows, and keeps its raw state."""

    def __init__(self, runtime: OperatorRuntime) -> None:
        self._runtime = runtime
        self._hooks = user_function(runtime.function)
        self._raw = runtime.assigned.own

    def open(self, initial: InitialState) -> None:
        """Calls `initialize_state`, `open` and `notify_checkpoint_complete`."""
        runtime, hooks = self._runtime, self._hooks
        context = RuntimeContext(runtime.state, runtime.info)
        with runtime.errors.adding_position(runtime.context):
            if isinstance(hooks, CheckpointedFunction):
                stores = (runtime.operator_state, context)
                given = FunctionInitializationContext(initial.is_restored, stores, self._raw, runtime.info)
                runtime.errors.call("initialize_state", partial(hooks.initialize_state, given))
            runtime.errors.call("open", partial(runtime.function.open, context))
        if isinstance(hooks, CheckpointListener) and initial.is_restored and initial.checkpoint_id:
            notify = partial(hooks.notify_checkpoint_complete, initial.checkpoint_id)
            runtime.errors.call("notify_checkpoint_complete", notify)

    def finish(self) -> None:
        """Calls `snapshot_state` and `close`."""
        runtime, hooks = self._runtime, self._hooks
        if isinstance(hooks, CheckpointedFunction):
            context = FunctionSnapshotContext(runtime.info, runtime.groups)
            runtime.errors.call("snapshot_state", partial(hooks.snapshot_state, context))
            raw = context.get_raw_operator_state_output().partitions
            self._raw = OperatorContent(raw=raw, raw_keyed=context.get_raw_keyed_state_output().pieces)
        self.close()

    def close(self) -> None:
        """Calls `close`."""
        self._runtime.errors.call("close", self._runtime.function.close)

    @property
    def operator_content(self) -> OperatorContent:
        """The operator state to store; after `finish`."""
        keeps_broadcasts = self._runtime.info.subtask == 0
        content = self._runtime.operator_state.content(keeps_broadcasts=keeps_broadcasts)
        return replace(content, raw=self._raw.raw, raw_keyed=self._raw.raw_keyed)
