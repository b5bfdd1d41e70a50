"""The fuzz target for operator state and raw state of a savepoint."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from stateflow.checkpoint.log.documents import OperatorState
from stateflow.checkpoint.restore.state_assignment import WrittenState, assign
from stateflow.runtime.restore.state_import import StateLocation, check_no_raw_keyed, has_raw_state
from stateflow.state.handles import OperatorContent, OperatorPart
from stateflow.state.operator_content import check_parts, read_parts
from stateflow.storage import MemoryStorage
from tests.fuzz.mutations import changed_bytes
from tests.fuzz.target import Target

_GROUPS = 16
_HEADS = (b"\xdd\xff\xff\xff\xff", b"\xdf\x7f\xff\xff\xff", b"\xdc\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x90", b"\x80")
"""Beginnings of collections and bytes, most of them with a length that does not fit."""


@contextmanager
def operator_state(_: Path) -> Iterator[Target]:
    """Changes one of two parts; what is read is divided among another number of subtasks, which lose nothing."""
    parts = [msgspec.msgpack.encode(_content(subtask)) for subtask in range(2)]
    storage = MemoryStorage()

    def mutate(rng: random.Random) -> bytes:
        data = parts[1]
        if rng.random() < 0.4:
            at = rng.choice([n for n, byte in enumerate(data) if 0x80 <= byte <= 0x9F or byte == 0xC4])
            data = data[:at] + rng.choice(_HEADS) + data[at + 1 :]
        return changed_bytes(rng, data, parts) if rng.random() < 0.7 else data

    def read(data: bytes) -> None:
        stored = [OperatorPart(subtask=0, memory=0, content=parts[0]), OperatorPart(subtask=1, memory=0, content=data)]
        contents = {part.subtask: content for part, content in read_parts(storage, stored)}
        shares = [assign(WrittenState(contents, 2), subtask, 3, _GROUPS).own for subtask in range(3)]
        for field in ("raw", "raw_keyed"):
            kept = sorted(piece for share in shares for piece in getattr(share, field))
            assert kept == sorted(piece for content in contents.values() for piece in getattr(content, field))
        operator = OperatorState(
            uid="op", parallelism=2, key_types=[], key_names=[], states=[], subtasks=[], parts=stored
        )
        assert has_raw_state(operator, StateLocation(storage))
        check_parts(storage, stored)
        check_no_raw_keyed([operator], StateLocation(storage))

    yield Target(mutate, read)


def _content(subtask: int) -> OperatorContent:
    value = msgspec.msgpack.encode(subtask)
    return OperatorContent(
        lists={"numbers": [value] * 3, "empty": []},
        unions={"all": [value]},
        raw=[b"raw", b""],
        # The target's end refuses it, so only the part that is changed has it.
        raw_keyed=[(group, b"piece") for group in range(8, 12)] if subtask else [],
    )
