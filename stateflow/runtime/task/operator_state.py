"""The operator state that a subtask starts from, and the part that it writes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import msgspec

from stateflow.checkpoint.log.manifest_files import operator_state_too_large, write_bytes
from stateflow.checkpoint.restore.state_assignment import AssignedState, WrittenOperatorState, assign
from stateflow.runtime.executor import BatchInfo, OperatorBase, TaskSpec
from stateflow.state.handles import OperatorContent, OperatorPart
from stateflow.state.operator_content import StoredContent, read_parts
from stateflow.types.decoders import MEMORY_LIMIT, TooMuchMemory, msgpack_decoder

INLINE_BYTES = 20_000
"""A part up to this size is stored in the manifest and sent to every task; a larger one is a file."""


@dataclass(frozen=True)
class OperatorParts:
    """The operator state that a subtask starts from; read when it is needed.

    Attributes:
        base: None for a new operator.
    """

    uid: str
    subtask: int
    parallelism: int
    batch: BatchInfo
    base: OperatorBase | None

    @classmethod
    def of(cls, task: TaskSpec) -> OperatorParts:
        """Returns the operator state that the task received."""
        data = task.chain.operator_base
        base = msgpack_decoder(OperatorBase).decode(data) if data else None
        return cls(task.chain.uid, task.subtask, task.level.parallelism, task.batch, base)

    def read_assigned(self) -> AssignedState:
        """Reads and returns this subtask's share of the operator state.

        Raises:
            MissingFile: a file of a part does not exist.
            CorruptFile: a part is damaged.
        """
        if self.base is None:
            return AssignedState()
        storage = self.batch.environment.storage if any(part.handle for part in self.base.parts) else None
        contents = {part.subtask: content for part, content in read_parts(storage, self.base.parts)}
        written = WrittenOperatorState(contents, self.base.parallelism)
        return assign(written, self.subtask, self.parallelism, self.batch.settings.max_parallelism)

    def carry_over(self, attempt: str) -> OperatorPart | None:
        """Returns the part of a subtask that did not run its operator; None without operator state."""
        if self.base is None or not self.base.parts:
            return None
        if self.base.parallelism == self.parallelism and not self.batch.settings.full_snapshot:
            return self._own()
        return self.write(self.read_assigned().own, attempt)

    def write(self, content: OperatorContent, attempt: str) -> OperatorPart | None:
        """Stores operator state and returns its part: the base's own part if nothing changed, None if it is empty.

        Raises:
            StateError: reading it would take too much memory.
        """
        if content == OperatorContent():
            return None
        data = msgspec.msgpack.encode(content)
        before = self._own() if self.base and self.base.parallelism == self.parallelism else None
        if before is not None and _is_same(before, data) and not self.batch.settings.full_snapshot:
            return before
        memory = self._memory(data)
        if len(data) <= INLINE_BYTES:
            return OperatorPart(subtask=self.subtask, content=data, memory=memory)
        key = f"{self.batch.id.data_folder(attempt)}{self.uid}-{self.subtask}-operator"
        handle = write_bytes(self.batch.environment.storage, key, data)
        return OperatorPart(subtask=self.subtask, handle=handle, memory=memory)

    def new_bytes(self, part: OperatorPart | None) -> int:
        """Returns the size of the file of a part that the base does not contain; 0 without such a file."""
        if part is None or part.handle is None or (self.base is not None and part in self.base.parts):
            return 0
        return part.handle.size

    def _memory(self, data: bytes) -> int:
        """Returns the memory that a part takes when it is read. Raises StateError above the limit."""
        try:
            return StoredContent.of(data, MEMORY_LIMIT).memory
        except TooMuchMemory as e:
            raise operator_state_too_large(self.uid, subtask=self.subtask, size_bytes=len(data)) from e

    def _own(self) -> OperatorPart | None:
        parts = self.base.parts if self.base else []
        return next((part for part in parts if part.subtask == self.subtask), None)


def _is_same(part: OperatorPart, data: bytes) -> bool:
    if part.handle is None:
        return part.content == data
    return (part.handle.size, part.handle.sha256) == (len(data), hashlib.sha256(data).hexdigest())
