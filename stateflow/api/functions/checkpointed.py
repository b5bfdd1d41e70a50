"""Mix-ins for functions with operator state, raw state, or notifications of checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from typing import BinaryIO

from stateflow.api.functions.process import RuntimeContext, TaskInfo
from stateflow.state.handles import OperatorContent
from stateflow.state.kinds.operator_state import OperatorStateStore
from stateflow.state.kinds.raw_state import RawKeyedStateOutput, RawOperatorStateOutput
from stateflow.types.key_groups import KeyGroupRange


class FunctionInitializationContext:
    """The argument of `initialize_state`.

    Attributes:
        is_restored: whether the checkpoint from which the batch starts contains the operator; false only in its first
            batch.
        info: the subtask.
    """

    def __init__(
        self,
        is_restored: bool,
        info: TaskInfo,
        *,
        operator: OperatorStateStore,
        keyed: RuntimeContext,
        raw: OperatorContent,
    ) -> None:
        self.is_restored = is_restored
        self.info = info
        self._operator = operator
        self._keyed = keyed
        self._raw = raw

    def get_operator_state_store(self) -> OperatorStateStore:
        """Returns the store for declarations of operator lists and broadcast state."""
        return self._operator

    def get_keyed_state_store(self) -> RuntimeContext:
        """Returns the context for declarations of keyed state, as in `open`."""
        return self._keyed

    def get_raw_operator_state_inputs(self) -> Iterator[BinaryIO]:
        """Yields the raw operator state of this subtask, partition by partition."""
        return (BytesIO(piece) for piece in self._raw.raw)

    def get_raw_keyed_state_inputs(self) -> Iterator[tuple[int, BinaryIO]]:
        """Yields the raw keyed state of this subtask, with its key group."""
        return ((group, BytesIO(piece)) for group, piece in self._raw.raw_keyed)


class FunctionSnapshotContext:
    """The argument of `snapshot_state`.

    Attributes:
        info: the subtask.
    """

    def __init__(self, info: TaskInfo, groups: KeyGroupRange) -> None:
        self.info = info
        self._raw = RawOperatorStateOutput()
        self._raw_keyed = RawKeyedStateOutput(groups)

    def get_raw_operator_state_output(self) -> RawOperatorStateOutput:
        """Returns the output for bytes that replace the raw operator state of this subtask."""
        return self._raw

    def get_raw_keyed_state_output(self) -> RawKeyedStateOutput:
        """Returns the output for bytes that replace the raw keyed state of this subtask."""
        return self._raw_keyed


class CheckpointedFunction:
    """Mix-in for keyed functions that use operator state.

    An object lives for one batch, so both methods are called in every batch in which the subtask has rows. In other
    batches, its operator state does not change.
    """

    def initialize_state(self, ctx: FunctionInitializationContext) -> None:
        """Called before `open`, to declare operator state."""

    def snapshot_state(self, ctx: FunctionSnapshotContext) -> None:
        """Called at the barrier, after the last row. Raw state that is not written again is lost."""


class CheckpointListener:
    """Mix-in for keyed functions that are notified of completed checkpoints."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Called after `open` with the id of the committed checkpoint that the batch starts from.

        Not every checkpoint is notified: a subtask without rows receives no call, the checkpoint of a run's last batch
        is notified in the next run, and a retried batch repeats the call. An id implies all earlier checkpoints.
        """
