"""Functions that take part in checkpoints: with operator state, raw state, and word of what is committed."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from typing import BinaryIO

from stateflow.api.functions import RuntimeContext, TaskInfo
from stateflow.keygroups import KeyGroupRange
from stateflow.state.handles import OperatorContent
from stateflow.state.operator_state import OperatorStateStore
from stateflow.state.raw_state import RawKeyedStateOutput, RawOperatorStateOutput


class FunctionInitializationContext:
    """Given to `initialize_state`.

    Attributes:
        is_restored: whether the operator is part of the checkpoint that the batch starts from: false in its first
            batch only.
        info: the subtask.
    """

    def __init__(
        self,
        is_restored: bool,
        stores: tuple[OperatorStateStore, RuntimeContext],
        raw: OperatorContent,
        info: TaskInfo,
    ) -> None:
        self.is_restored = is_restored
        self.info = info
        self._operator, self._keyed = stores
        self._raw = raw

    def get_operator_state_store(self) -> OperatorStateStore:
        """Where lists of the subtask, and broadcast state, are declared."""
        return self._operator

    def get_keyed_state_store(self) -> RuntimeContext:
        """Where keyed state is declared, as in `open`."""
        return self._keyed

    def get_raw_operator_state_inputs(self) -> Iterator[BinaryIO]:
        """The partitions that were written, of this subtask."""
        return (BytesIO(piece) for piece in self._raw.raw)

    def get_raw_keyed_state_inputs(self) -> Iterator[tuple[int, BinaryIO]]:
        """The key groups of this subtask that something was written for, and what."""
        return ((group, BytesIO(piece)) for group, piece in self._raw.raw_keyed)


class FunctionSnapshotContext:
    """Given to `snapshot_state`.

    Attributes:
        info: the subtask.
    """

    def __init__(self, info: TaskInfo, groups: KeyGroupRange) -> None:
        self.info = info
        self._raw = RawOperatorStateOutput()
        self._raw_keyed = RawKeyedStateOutput(groups)

    def get_raw_operator_state_output(self) -> RawOperatorStateOutput:
        """Takes bytes that replace the raw operator state of this subtask."""
        return self._raw

    def get_raw_keyed_state_output(self) -> RawKeyedStateOutput:
        """Takes bytes that replace the raw keyed state of this subtask."""
        return self._raw_keyed


class CheckpointedFunction:
    """A function with operator state: to be a base class beside that of a keyed operator's function.

    Objects live for one batch, so both methods are called in every batch in which the subtask has rows; in others, its
    state stays as it is.
    """

    def initialize_state(self, ctx: FunctionInitializationContext) -> None:
        """Called before `open`. Declare operator state here."""

    def snapshot_state(self, ctx: FunctionSnapshotContext) -> None:
        """Called at the barrier, after the last row. Raw state that is not written now is gone."""


class CheckpointListener:
    """A function that hears of checkpoints: to be a base class beside that of a keyed operator's function."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Called after `open` with the id of the committed checkpoint that the batch starts from.

        Not every checkpoint is told: a subtask without rows hears nothing, the last batch of a run is told in the next
        run, and one that is tried again is told again. A later id stands for all before it.
        """
