"""Small stored documents: damage is found before their content is used."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.checkpoint.log import manifest_files
from stateflow.checkpoint.log.documents import Answer, JobFormat, LogEntry, Manifest
from stateflow.checkpoint.log.manifest_files import LIMIT, read_manifest, seal, unseal, write_manifest
from stateflow.errors import CorruptFile, DataError, MissingFile, TooLarge
from stateflow.state.handles import FileHandle
from stateflow.storage import MemoryStorage
from stateflow.storage.paths import data_folder
from tests.checkpoint.log.memory_job import MemoryJob
from tests.support.errors import raises
from tests.support.graphs import entry

DOCUMENT = JobFormat(
    version=1, job="jöb", job_uuid="0" * 32, max_parallelism=128, key_types={"op": ["string"]}, shadow=False
)
SEALED, DIGEST = seal(DOCUMENT)
LINE = SEALED.split(b"\n")[0]


def _check_refused(data: bytes, kind: Any = JobFormat) -> CorruptFile:
    with raises(CorruptFile, file="the/file") as refused:
        unseal(data, kind, "the/file")
    return refused.value


def test_a_document_comes_back_with_its_hash() -> None:
    assert unseal(SEALED, JobFormat, "FORMAT") == (DOCUMENT, DIGEST)
    assert hashlib.sha256(LINE).hexdigest() == DIGEST
    assert SEALED == LINE + b"\n" + DIGEST.encode() + b"\n"


def test_every_flipped_bit_every_cut_and_other_bytes_are_refused() -> None:
    flipped = [
        SEALED[:at] + bytes([SEALED[at] ^ 1 << bit]) + SEALED[at + 1 :] for at in range(len(SEALED)) for bit in range(8)
    ]
    cuts = [SEALED[:size] for size in range(len(SEALED))]
    others = [SEALED + b"x", SEALED + b"\n", b"\n" + SEALED, SEALED * 2, b"\n", b"\0" * 200, seal(entry(1))[0]]
    for data in (*flipped, *cuts, *others):
        _check_refused(data)
    for kind in (LogEntry, Manifest):
        _check_refused(SEALED, kind)


OTHER_SHAPES = [b"{}", b"[]", b"null", b'{"version": "one"}', b"not json", b'{"job": "\xff"}', b""]


@pytest.mark.parametrize("line", [*OTHER_SHAPES, LINE.replace(b"128", b'"128"')])
def test_a_whole_document_of_another_shape_is_refused(line: bytes) -> None:
    assert _check_refused(line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n").facts["reason"]


@given(st.integers(0, 300), st.integers(-3, 3))
def test_the_writer_refuses_exactly_what_is_above_the_reader_s_limit(length: int, spare: int) -> None:
    document = Answer(id="q", status="done", message="é" * length, at="now")
    size = len(seal(document)[0])
    storage = MemoryStorage()
    if spare < 0:
        with raises(TooLarge, document="Answer", size=size, limit=size + spare):
            seal(document, size + spare)
    else:
        storage.put_new("answer", seal(document, size + spare)[0])
        assert unseal(storage.get("answer", size + spare), Answer, "answer")[0] == document


def _manifest(ordinal: int = 1, job: str = "j") -> Manifest:
    return Manifest(job_uuid=job, generation=1, ordinal=ordinal, operators=[], sources=[])


def _write(storage: MemoryStorage, manifest: Manifest) -> FileHandle:
    return write_manifest(storage, data_folder(1, manifest.ordinal, "driver"), manifest)


def test_a_manifest_is_read_by_its_hash_and_not_only_its_own() -> None:
    """Another whole manifest under its name is refused."""
    storage = MemoryStorage()
    first, second = _write(storage, _manifest(1)), _write(storage, _manifest(2))
    assert read_manifest(storage, first).ordinal == 1
    with raises(CorruptFile, file=second.key):
        read_manifest(storage, msgspec.structs.replace(first, key=second.key))
    storage.delete([first.key])
    with raises(MissingFile, key=first.key):
        read_manifest(storage, first)


def test_a_manifest_of_another_job_is_refused() -> None:
    job = MemoryJob()
    own, other = (_write(job.storage, _manifest(n, uuid)) for n, uuid in enumerate((job.root.job.job_uuid, "other"), 1))
    assert job.root.checkpoints.read_manifest(own).ordinal == 1
    with raises(DataError, file=other.key, job_uuid="other"):
        job.root.checkpoints.read_manifest(other)


def test_a_manifest_above_the_limit_is_not_written_and_one_at_the_limit_can_be_read() -> None:
    storage = MemoryStorage()
    fits = _manifest(job="j" * (1 + LIMIT - len(seal(_manifest())[0])))
    with raises(TooLarge, document="Manifest", size=LIMIT + 1, limit=LIMIT):
        _write(storage, _manifest(job=fits.job_uuid + "j"))
    assert storage.list("") == []
    assert read_manifest(storage, _write(storage, fits)) == fits


@pytest.mark.parametrize(
    ("limit", "is_accepted"), [(1 << 20, False), (2 << 20, False), (8 << 20, True), (32 << 20, True)]
)
def test_the_writer_refuses_exactly_what_would_take_the_reader_too_much_memory(
    monkeypatch: pytest.MonkeyPatch, limit: int, is_accepted: bool
) -> None:
    """A child process decides, except with the largest limit."""
    columns = {f"{number:06x}": {"column": "bigint"} for number in range(10_000)}
    manifest = msgspec.structs.replace(_manifest(), columns=columns)
    stored, _ = seal(manifest)
    monkeypatch.setattr("stateflow.types.decoders.MEMORY_LIMIT", limit)
    monkeypatch.setattr(manifest_files, "MEMORY_LIMIT", limit)
    if is_accepted:
        assert unseal(seal(manifest)[0], Manifest, "file") == (manifest, seal(manifest)[1])
        return
    with raises(TooLarge, document="Manifest", size=len(stored), limit=limit):
        seal(manifest)
    with raises(CorruptFile, file="file"):
        unseal(stored, Manifest, "file")
