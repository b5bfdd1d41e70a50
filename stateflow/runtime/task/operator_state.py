"""Reads the operator state of all subtasks from a manifest, and writes that of one subtask."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import msgspec

from stateflow.checkpoint.log.documents import OperatorState
from stateflow.checkpoint.log.manifest_files import write_bytes
from stateflow.checkpoint.restore.redistribution import AssignedState, WrittenState, assign
from stateflow.errors import CorruptFile, StateError
from stateflow.runtime.task_spec import BatchInfo, TaskSpec
from stateflow.state.files.host_cache import check_content
from stateflow.state.handles import Document, OperatorContent, OperatorPart, StateSchema
from stateflow.storage import Storage
from stateflow.storage.paths import check_key
from stateflow.types.decoders import msgpack_decoder
from stateflow.types.serializers import decode_key, decode_untyped

INLINE_BYTES = 20_000
"""A part up to this size is stored in the manifest and sent to every task; a larger one is a file."""
LIMIT_BYTES = 1 << 28
"""Largest size of a part, which is held in memory as a whole."""


class OperatorBase(Document, frozen=True, kw_only=True):
    """The operator state of a base, as tasks receive it."""

    parallelism: int
    states: list[StateSchema]
    parts: list[OperatorPart]


def encode_operator_base(state: OperatorState) -> bytes:
    """Returns the msgpack for `ChainSpec.operator_base`."""
    base = OperatorBase(parallelism=state.parallelism, states=state.operator_states, parts=state.parts)
    return msgspec.msgpack.encode(base)


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

    def assigned(self) -> AssignedState:
        """Reads and returns this subtask's share of the operator state.

        Raises:
            MissingFile: a file of a part does not exist.
            CorruptFile: a part is damaged.
        """
        if self.base is None:
            return AssignedState()
        storage = self.batch.environment.storage if any(part.handle for part in self.base.parts) else None
        contents = {part.subtask: read_part(storage, part) for part in self.base.parts}
        written = WrittenState(contents, self.base.parallelism)
        return assign(written, self.subtask, self.parallelism, self.batch.settings.max_parallelism)

    def carry_over(self, attempt: str) -> OperatorPart | None:
        """Returns the part of a subtask that did not run its operator; None without operator state."""
        if self.base is None or not self.base.parts:
            return None
        if self.base.parallelism == self.parallelism and not self.batch.settings.full_snapshot:
            return self._own()
        return self.write(self.assigned().own, attempt)

    def write(self, content: OperatorContent, attempt: str) -> OperatorPart | None:
        """Stores operator state and returns its part: the base's own part if nothing changed, None if it is empty.

        Raises:
            StateError: the content exceeds `LIMIT_BYTES`.
        """
        if content == OperatorContent():
            return None
        data = msgspec.msgpack.encode(content)
        before = self._own() if self.base and self.base.parallelism == self.parallelism else None
        if before is not None and _is_same(before, data) and not self.batch.settings.full_snapshot:
            return before
        if len(data) <= INLINE_BYTES:
            return OperatorPart(subtask=self.subtask, content=data)
        if len(data) > LIMIT_BYTES:
            raise StateError(
                "the operator state of a subtask is too large",
                hint="operator state is held in memory as a whole; keep large state in keyed state",
                operator=self.uid,
                subtask=self.subtask,
                bytes=len(data),
                limit=LIMIT_BYTES,
            )
        key = f"{self.batch.id.data_folder(attempt)}{self.uid}-{self.subtask}-operator"
        return OperatorPart(subtask=self.subtask, handle=write_bytes(self.batch.environment.storage, key, data))

    def new_bytes(self, part: OperatorPart | None) -> int:
        """Returns the size of the file of a part that the base does not contain; 0 without such a file."""
        if part is None or part.handle is None or (self.base is not None and part in self.base.parts):
            return 0
        return part.handle.size

    def _own(self) -> OperatorPart | None:
        parts = self.base.parts if self.base else []
        return next((part for part in parts if part.subtask == self.subtask), None)


def read_part(storage: Storage | None, part: OperatorPart) -> OperatorContent:
    """Reads and returns the content of a part.

    Args:
        storage: not needed for a part that is stored in the manifest.

    Raises:
        MissingFile: the part's file does not exist.
        CorruptFile: the part is damaged.
    """
    data, name = part.content, "the manifest"
    if len(data) > INLINE_BYTES:
        raise CorruptFile(
            "the operator state of a subtask in a manifest is larger than any that is stored there",
            hint="restore an older checkpoint",
            subtask=part.subtask,
            bytes=len(data),
            limit=INLINE_BYTES,
        )
    if part.handle is not None:
        assert storage is not None
        name = part.handle.key
        data = storage.get(check_key(name), LIMIT_BYTES)
        check_content(part.handle, len(data), hashlib.sha256(data).hexdigest())
    try:
        return msgpack_decoder(OperatorContent).decode(data)
    except (msgspec.DecodeError, RecursionError) as e:
        raise CorruptFile(
            "stored operator state cannot be read",
            hint="restore an older checkpoint",
            file=name,
            subtask=part.subtask,
            reason=str(e),
        ) from e


def check_part(storage: Storage, part: OperatorPart) -> None:
    """Decodes everything in a part; raises as `read_part` does."""
    content = read_part(storage, part)
    for elements in (*content.lists.values(), *content.unions.values()):
        for element in elements:
            decode_untyped(element)
    for entries in content.broadcasts.values():
        for key, value in entries.items():
            decode_key(key)
            decode_untyped(value)


def _is_same(part: OperatorPart, data: bytes) -> bool:
    if part.handle is None:
        return part.content == data
    return (part.handle.size, part.handle.sha256) == (len(data), hashlib.sha256(data).hexdigest())
