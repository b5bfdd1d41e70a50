"""Small stored documents: damage is found before anything in them is believed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stateflow.checkpoint import history as history_records
from stateflow.checkpoint.history import read_history, read_records, trim_history, write_records
from stateflow.checkpoint.log.documents import Answer, JobFormat, LogEntry, Manifest
from stateflow.checkpoint.log.manifest_files import read_manifest, write_manifest
from stateflow.checkpoint.log.records import ABORTED, CheckpointRecord, seq_of
from stateflow.checkpoint.log.sealed_json import LIMIT, seal, unseal
from stateflow.errors import CorruptFile, MissingFile, TooLarge
from stateflow.storage import MemoryStorage
from stateflow.storage.paths import data_folder, history
from tests.support.errors import raises
from tests.support.graphs import entry

DOCUMENT = JobFormat(version=1, job="jöb", job_uuid="0" * 32, max_parallelism=128, key_types={"op": ["string"]})
SEALED, DIGEST = seal(DOCUMENT)


def test_a_document_comes_back_with_its_hash() -> None:
    assert unseal(SEALED, JobFormat, "FORMAT") == (DOCUMENT, DIGEST)
    line, digest, rest = SEALED.split(b"\n")
    assert (hashlib.sha256(line).hexdigest(), digest.decode(), rest) == (DIGEST, DIGEST, b"")


def _refused(data: bytes, kind: Any = JobFormat) -> CorruptFile:
    with raises(CorruptFile, file="the/file") as refused:
        unseal(data, kind, "the/file")
    return refused.value


def test_every_flipped_bit_is_found() -> None:
    for bit in range(len(SEALED) * 8):
        damaged = bytearray(SEALED)
        damaged[bit // 8] ^= 1 << bit % 8
        _refused(bytes(damaged))


def test_every_cut_is_found() -> None:
    for size in range(len(SEALED)):
        _refused(SEALED[:size])


@pytest.mark.parametrize("data", [SEALED + b"x", SEALED + b"\n", b"\n" + SEALED, SEALED * 2, b"", b"\n", b"\0" * 200])
def test_more_or_other_bytes_are_found(data: bytes) -> None:
    _refused(data)


@given(st.binary(max_size=100))
def test_no_bytes_pass_by_chance(data: bytes) -> None:
    _refused(data)


def _sealed(line: bytes) -> bytes:
    """A document whose hash is right, whatever it says."""
    return line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n"


@pytest.mark.parametrize(
    "line",
    [
        b"{}",
        b"[]",
        b"null",
        b'{"version": "one"}',
        b"not json",
        b'{"job": "\xff"}',
        b"",
        SEALED.split(b"\n")[0].replace(b"128", b'"128"'),
    ],
)
def test_a_whole_document_of_another_shape_is_found(line: bytes) -> None:
    assert _refused(_sealed(line)).facts["reason"]


def test_a_document_of_another_kind_is_found() -> None:
    _refused(seal(entry(1))[0])
    _refused(SEALED, LogEntry)
    _refused(SEALED, Manifest)


def test_a_newer_version_s_fields_are_passed_over() -> None:
    line = SEALED.split(b"\n")[0]
    assert unseal(_sealed(line[:-1] + b', "later": [1]}'), JobFormat, "FORMAT")[0] == DOCUMENT


# -- manifests ----------------------------------------------------------------------------------------------------


def test_a_manifest_is_read_by_its_hash_and_not_only_its_own() -> None:
    """Another whole manifest under its name is not it."""
    storage = MemoryStorage()
    first, second = (
        write_manifest(
            storage,
            data_folder(1, n, "driver"),
            Manifest(job_uuid="j", generation=1, ordinal=n, operators=[], sources=[]),
        )
        for n in (1, 2)
    )
    assert read_manifest(storage, first).ordinal == 1
    with raises(CorruptFile, file=second.key):
        read_manifest(storage, msgspec.structs.replace(first, key=second.key))
    storage.delete([first.key])
    with raises(MissingFile, key=first.key):
        read_manifest(storage, first)


@given(st.integers(0, 300), st.integers(-3, 3))
def test_whatever_is_written_can_be_read(length: int, spare: int) -> None:
    """The writer refuses exactly what is above the reader's limit."""
    document = Answer(id="q", status="done", message="é" * length, at="now")
    size = len(seal(document)[0])
    storage = MemoryStorage()
    if spare < 0:
        with raises(TooLarge, document="Answer", size=size, limit=size + spare):
            seal(document, size + spare)
    else:
        storage.put_new("answer", seal(document, size + spare)[0])
        assert unseal(storage.get("answer", size + spare), Answer, "answer")[0] == document


def test_a_document_of_real_size_that_could_not_be_read_is_not_written() -> None:
    """Two bytes around the limit that all readers have."""
    storage = MemoryStorage()
    manifest = Manifest(job_uuid="j", generation=1, ordinal=1, operators=[], sources=[])
    room = LIMIT - len(seal(manifest)[0])
    fits, exceeds = (msgspec.structs.replace(manifest, job_uuid="j" * (1 + room + n)) for n in (0, 1))
    with raises(TooLarge, document="Manifest", size=LIMIT + 1, limit=LIMIT):
        write_manifest(storage, data_folder(1, 1, "driver"), exceeds)
    assert storage.list("") == []
    assert read_manifest(storage, write_manifest(storage, data_folder(1, 1, "driver"), fits)) == fits


# -- history ------------------------------------------------------------------------------------------------------


def _record(checkpoint: int) -> CheckpointRecord:
    return CheckpointRecord(
        checkpoint_id=checkpoint,
        generation=1,
        ordinal=checkpoint,
        committed_at="now",
        duration_ms=1.5,
        increment_bytes=1,
        full_bytes=2,
        files=3,
        rows_in=4,
        rows_out={},
    )


def _ids(records: Iterable[CheckpointRecord]) -> list[int]:
    return [record.checkpoint_id for record in records]


def test_history_is_for_people_so_a_record_that_is_damaged_is_left_out() -> None:
    storage = MemoryStorage()
    # As older versions stored them, and as this one does.
    storage.put_new(history(1, "checkpoint"), msgspec.json.encode(_record(1)))
    write_records(storage, [_record(2), _record(3)], "ab" * 16)
    write_records(storage, [_record(4)], "cd" * 16)
    write_records(storage, [], "ef" * 16)
    for number, data in ((5, b"{}"), (6, b'{"committed_at": "\xff"}'), (7, b"x" * (17 << 20))):
        storage.put_new(history(number, "checkpoint"), data)
        storage.put_new(history(number, "checkpoints-2-01234567"), data)
    assert _ids(read_records(storage)) == [1, 2, 3, 4]
    assert _ids(read_records(storage, newest=2)) == [3, 4]


def test_of_the_history_at_least_so_many_records_are_kept() -> None:
    storage = MemoryStorage()
    for first in range(1, 31, 3):
        write_records(storage, [_record(n) for n in range(first, first + 3)], "ab" * 16)
    trim_history(storage, keep=30)
    assert _ids(read_records(storage)) == list(range(1, 31))
    trim_history(storage, keep=7)
    assert _ids(read_records(storage)) == list(range(22, 31))


def test_records_that_are_too_many_for_one_object_are_divided_and_none_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Aborted ones, which all have the id of the checkpoint before them."""
    storage = MemoryStorage()
    records = [replace(_record(7), ordinal=n, status=ABORTED) for n in range(9)]
    too_large = replace(_record(8), by="x" * 2000)
    monkeypatch.setattr(history_records, "LIMIT", 2 * len(msgspec.json.encode(records[0])) + 10)
    write_records(storage, [*records, too_large], "ab" * 16)
    assert sorted(r.ordinal for r in read_records(storage)) == list(range(9))


def test_a_record_that_is_told_twice_is_one_and_the_stored_one_counts() -> None:
    storage = MemoryStorage()
    write_records(storage, [_record(1), _record(2)], "ab" * 16)
    write_records(storage, [_record(2), _record(3)], "cd" * 16)
    told = [replace(_record(n), duration_ms=9) for n in (3, 4)]
    assert [(r.checkpoint_id, r.duration_ms) for r in read_records(storage, pending=told)] == [
        (1, 1.5),
        (2, 1.5),
        (3, 1.5),
        (4, 9),
    ]
    assert _ids(read_records(storage, newest=3, pending=told)) == [2, 3, 4]
    aborted = replace(_record(5), status=ABORTED)
    assert _ids(read_records(storage, pending=[aborted])) == [1, 2, 3, 5]
    assert [seq_of(r) for r in read_history(storage, [aborted, *told])] == [1, 2, 3, 4]
