"""Forged operator state, in a manifest or in files."""

from __future__ import annotations

from pathlib import Path

import msgspec

from stateflow.checkpoint.log.documents import Manifest, OperatorState, Origin, Savepoint
from stateflow.checkpoint.log.manifest_files import seal, unseal, write_bytes
from stateflow.operations import RekeyRequest, rekey_savepoint
from stateflow.state.handles import OperatorPart
from stateflow.state.operator_content import check_parts
from stateflow.storage import PosixStorage


def operator_content(field: str, unit: bytes, size: int, then: bytes = b"") -> bytes:
    """The msgpack of an `OperatorContent` of about `size` bytes.

    Args:
        field: its field, an array.
        unit: the elements of the array.
        size: the size of the array.
        then: another field with its value.
    """
    count = size // len(unit)
    start = bytes([0x82 if then else 0x81]) + msgspec.msgpack.encode(field) + b"\xdd" + count.to_bytes(4, "big")
    return start + unit * count + then


def map_of_names() -> bytes:
    """The msgpack of an `OperatorContent` of 500 KB, with many broadcast states."""
    return msgspec.msgpack.encode({"broadcasts": {f"{n:04x}": {} for n in range(1 << 16)}})


def write_manifest(folder: Path, contents: list[bytes], *, inline: bool) -> None:
    """Writes a job root with a manifest, whose operator has these parts, in the manifest or in files."""
    storage = PosixStorage(folder / "root")
    parts = [
        OperatorPart(subtask=n, memory=0, content=content)
        if inline
        else OperatorPart(subtask=n, memory=0, handle=write_bytes(storage, f"data/{n}", content))
        for n, content in enumerate(contents)
    ]
    operator = OperatorState(
        uid="u", parallelism=len(parts), key_types=[], key_names=[], states=[], subtasks=[], parts=parts
    )
    manifest = Manifest(job_uuid="0" * 32, generation=1, ordinal=1, operators=[operator], sources=[])
    (folder / "manifest").write_bytes(seal(manifest)[0])


def write_savepoint(folder: Path, contents: list[bytes]) -> None:
    """Writes a savepoint with one key group, whose operator has these parts."""
    storage = PosixStorage(folder / "sp")
    parts = [
        OperatorPart(subtask=n, memory=0, handle=write_bytes(storage, f"files/{n}", content))
        for n, content in enumerate(contents)
    ]
    operator = OperatorState(
        uid="u", parallelism=len(parts), key_types=[], key_names=[], states=[], subtasks=[], parts=parts
    )
    manifest = Manifest(job_uuid="0" * 32, generation=1, ordinal=1, operators=[operator], sources=[])
    document = Savepoint(
        version=1,
        id="0" * 32,
        name="n",
        origin=Origin.MANUAL,
        made_at="2026-01-01T00:00:00+00:00",
        committed_at="2026-01-01T00:00:00+00:00",
        by="b",
        job="j",
        job_uuid="0" * 32,
        max_parallelism=1,
        checkpoint_id=1,
        manifest=manifest,
        sinks={},
    )
    (folder / "sp" / "_savepoint").write_bytes(seal(document)[0])


def rekey(folder: Path) -> None:
    """Copies the savepoint with another number of key groups, for which raw keyed state is looked for."""
    rekey_savepoint(RekeyRequest(str(folder / "sp"), 8, str(folder / "copies")))


def check_manifest(folder: Path) -> None:
    manifest, _ = unseal((folder / "manifest").read_bytes(), Manifest, "manifest")
    check_parts(PosixStorage(folder / "root"), manifest.operators[0].parts)
