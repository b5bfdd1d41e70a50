"""Operator state between a manifest and a task: reading the parts of all subtasks, writing one's own."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import msgspec

from stateflow.checkpoint.documents import OperatorState
from stateflow.checkpoint.files import write_bytes
from stateflow.checkpoint.redistribution import Assigned, Written, assign
from stateflow.decoders import msgpack_decoder
from stateflow.errors import CorruptFile, StateError
from stateflow.runtime.specs import BatchInfo, UnitSpec
from stateflow.serializers import decode_key, decode_untyped
from stateflow.state.handles import Document, OperatorContent, OperatorPart, StateSchema
from stateflow.state.transfer import check_content
from stateflow.storage import Storage
from stateflow.storage.paths import check_key

INLINE_BYTES = 20_000
"""A part up to this size is kept in the manifest, and sent to every task; a larger one is a file."""
LIMIT_BYTES = 1 << 28
"""A part cannot be larger: it is in memory as a whole."""


class OperatorBase(Document, frozen=True, kw_only=True):
    """Operator state of a base, as tasks are sent it."""

    parallelism: int
    states: list[StateSchema]
    parts: list[OperatorPart]


def encode_operator_base(state: OperatorState) -> bytes:
    """For `UnitSpec.operator_base`."""
    base = OperatorBase(parallelism=state.parallelism, states=state.operator_states, parts=state.parts)
    return msgspec.msgpack.encode(base)


@dataclass(frozen=True)
class OperatorParts:
    """The operator state that a subtask starts from, read when it is needed.

    Attributes:
        base: None when the operator is new.
    """

    uid: str
    subtask: int
    parallelism: int
    batch: BatchInfo
    base: OperatorBase | None

    @classmethod
    def of(cls, unit: UnitSpec, subtask: int, parallelism: int, batch: BatchInfo) -> OperatorParts:
        """Those that `unit` was sent."""
        data = unit.operator_base
        base = msgpack_decoder(OperatorBase).decode(data) if data else None
        return cls(unit.uid, subtask, parallelism, batch, base)

    def has(self, part: OperatorPart) -> bool:
        """Whether the base has this very part."""
        return self.base is not None and part in self.base.parts

    def assigned(self) -> Assigned:
        """What the subtask starts from. Raises MissingFile or CorruptFile."""
        if self.base is None:
            return Assigned()
        storage = self.batch.storage if any(part.handle for part in self.base.parts) else None
        contents = {part.subtask: read_part(storage, part) for part in self.base.parts}
        written = Written(contents, self.base.parallelism)
        return assign(written, self.subtask, self.parallelism, self.batch.max_parallelism)

    def kept(self, attempt: str) -> OperatorPart | None:
        """The part of a subtask that has not worked."""
        if self.base is None or not self.base.parts:
            return None
        if self.base.parallelism == self.parallelism and not self.batch.full:
            return self._own()
        return self.written(self.assigned().own, attempt)

    def written(self, content: OperatorContent, attempt: str) -> OperatorPart | None:
        """The part that has `content`: the one of before when nothing has changed.

        Raises StateError when it is too large.
        """
        if content == OperatorContent():
            return None
        data = msgspec.msgpack.encode(content)
        before = self._own() if self.base and self.base.parallelism == self.parallelism else None
        if before is not None and _is_same(before, data) and not self.batch.full:
            return before
        if len(data) <= INLINE_BYTES:
            return OperatorPart(subtask=self.subtask, content=data)
        if len(data) > LIMIT_BYTES:
            raise StateError("the operator state of a subtask is too large", hint="it is in memory as a whole; keep "
                             "what is large in keyed state", operator=self.uid, subtask=self.subtask, bytes=len(data),
                             limit=LIMIT_BYTES)  # fmt: skip
        key = f"{self.batch.data_folder(attempt)}{self.uid}-{self.subtask}-operator"
        return OperatorPart(subtask=self.subtask, handle=write_bytes(self.batch.storage, key, data))

    def _own(self) -> OperatorPart | None:
        parts = self.base.parts if self.base else []
        return next((part for part in parts if part.subtask == self.subtask), None)


def read_part(storage: Storage | None, part: OperatorPart) -> OperatorContent:
    """What a part has. Raises MissingFile or CorruptFile, naming the file.

    Args:
        storage: not needed for one that is in the manifest.
    """
    data, name = part.content, "the manifest"
    if part.handle is not None:
        assert storage is not None
        name = part.handle.key
        data = storage.get(check_key(name), LIMIT_BYTES)
        check_content(part.handle, len(data), hashlib.sha256(data).hexdigest())
    try:
        return msgpack_decoder(OperatorContent).decode(data)
    except (msgspec.DecodeError, RecursionError) as e:
        raise CorruptFile("stored operator state cannot be read", hint="go back to an older checkpoint", file=name,
                          subtask=part.subtask, reason=str(e)) from e  # fmt: skip


def check_part(storage: Storage, part: OperatorPart) -> None:
    """Decodes all that a part has. Raises MissingFile or CorruptFile, naming the file."""
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
