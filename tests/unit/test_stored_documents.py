"""What format version 1 wrote stays readable: golden files of every document of a job root.

A change that makes this fail needs a new format version and a way to read the old one. New files are written with
``STATEFLOW_WRITE_GOLDEN=1``, which never touches one that is there.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from stateflow.checkpoint.log.documents import (
    Ancestry,
    EntryKind,
    EntryRef,
    JobFormat,
    LogEntry,
    Manifest,
    OperatorState,
    PendingOutput,
    Pin,
    PublishedOutput,
    RestoreStep,
    SourceFile,
    SourcePosition,
    SparkPosition,
)
from stateflow.checkpoint.log.sealed_json import seal, unseal
from stateflow.state.handles import (
    ClassSchema,
    Committable,
    Document,
    FieldSchema,
    FileHandle,
    StateFile,
    StateSchema,
    SubtaskState,
    TypeNode,
    TypeSchema,
)

FOLDER = Path(__file__).parents[1] / "data" / "format-1"
JOB = "8f14e45fceea167a5a36dedd4bea2543"
REF = EntryRef(id=6, sha256="6" * 64)
POSITION = SourcePosition(uid="flights", description="files of /data/flights", offset='{"logOffset":7}')
MANIFEST = FileHandle(key="data/5/2-driver/manifest", size=812, sha256="a" * 64)
COMMITTABLE = Committable(path="data/f.parquet", size=4096, rows=12, stats='{"numRecords":12}')

DOCUMENTS: dict[str, Document] = {
    "FORMAT": JobFormat(version=1, job="flights", job_uuid=JOB, max_parallelism=4096, key_types={"mean": ["string"]}),
    "claim": LogEntry(
        job_uuid=JOB,
        seq=5,
        kind=EntryKind.CLAIM,
        generation=5,
        ordinal=0,
        writer="host:1",
        nonce="n5",
        parent="4" * 64,
        at="2026-01-01T00:00:00.000+00:00",
        note="a run",
        checkpoint=REF,
        manifest=MANIFEST,
        requests=["r1"],
    ),
    "commit": LogEntry(
        job_uuid=JOB,
        seq=7,
        kind=EntryKind.COMMIT,
        generation=5,
        ordinal=2,
        writer="host:1",
        nonce="n7",
        parent="6" * 64,
        at="2026-01-01T00:00:01.000+00:00",
        manifest=MANIFEST,
        retained=[REF],
        sources=[POSITION],
        pending=[PendingOutput(checkpoint_id=0, sink="delays", committables=[COMMITTABLE])],
        published={"delays": PublishedOutput(table_id="t", version=3, checkpoint_id=6)},
    ),
    "admin": LogEntry(
        job_uuid=JOB,
        seq=8,
        kind=EntryKind.ADMIN,
        generation=5,
        ordinal=2,
        writer="host:2",
        nonce="n8",
        parent="7" * 64,
        at="2026-01-01T00:00:02.000+00:00",
        checkpoint=EntryRef(id=7, sha256="7" * 64),
        manifest=MANIFEST,
        pinned=[Pin(id="p", checkpoint=REF, owner="ada", reason="a look", since="2026-01-01")],
    ),
    "claim-ancestry": LogEntry(
        job_uuid=JOB,
        seq=9,
        kind=EntryKind.CLAIM,
        generation=9,
        ordinal=0,
        writer="host:1",
        nonce="n9",
        parent="8" * 64,
        at="2026-01-01T00:00:03.000+00:00",
        checkpoint=REF,
        manifest=MANIFEST,
        ancestry=Ancestry(since=1, restores=[RestoreStep(seq=9, base=6)]),
    ),
    "manifest": Manifest(
        job_uuid=JOB,
        generation=5,
        ordinal=2,
        increment_bytes=1000,
        full_bytes=9000,
        sources=[POSITION],
        operators=[
            OperatorState(
                uid="mean",
                parallelism=2,
                key_types=["string"],
                states=[StateSchema(name="stats", kind="value", value_type="Stats")],
                subtasks=[
                    SubtaskState(
                        subtask=0,
                        first_group=0,
                        last_group=2047,
                        snapshot="data/5/2-t9/mean-0-",
                        files=[StateFile(handle=MANIFEST, local_name="000012.sst")],
                    )
                ],
            )
        ],
        spark=SparkPosition(
            batch_id=1,
            offsets=b"v1\n{}\n{}",
            previous_offsets=None,
            commit=b"v1\n{}",
            source_files=[SourceFile(path="0/0", content=b"v1"), SourceFile(path="0/9.compact", handle=MANIFEST)],
        ),
    ),
    "manifest-backends": Manifest(
        job_uuid=JOB,
        generation=5,
        ordinal=2,
        sources=[POSITION],
        operators=[
            OperatorState(
                uid="mean",
                parallelism=2,
                key_types=["string"],
                states=[],
                subtasks=[
                    SubtaskState(
                        subtask=0,
                        first_group=0,
                        last_group=2047,
                        snapshot="data/5/2-t9/mean-0-",
                        backend="memory",
                        inline=b"SFKV\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
                    ),
                    SubtaskState(
                        subtask=1,
                        first_group=2048,
                        last_group=4095,
                        snapshot="data/5/2-t8/mean-1-",
                        backend="filesystem",
                        files=[StateFile(handle=MANIFEST, local_name="entries")],
                    ),
                ],
            )
        ],
    ),
    "schema": StateSchema(
        name="stats",
        kind="value",
        value_type="Stats(flights: int, mean: float)",
        type=TypeSchema(
            root=TypeNode(kind="class", class_index=0),
            classes=[
                ClassSchema(
                    name="Stats",
                    fields=[
                        FieldSchema(name="flights", type=TypeNode(kind="int", limits={"ge": 0})),
                        FieldSchema(name="mean", type=TypeNode(kind="float"), required=False, default="0.0"),
                    ],
                )
            ],
        ),
        earlier=[TypeSchema(root=TypeNode(kind="serialized"), serializer="words", serializer_version=2)],
    ),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_what_was_written_is_read(name: str) -> None:
    path = FOLDER / name
    if os.environ.get("STATEFLOW_WRITE_GOLDEN") and not path.exists():
        path.write_bytes(seal(DOCUMENTS[name])[0])
    stored = path.read_bytes()
    assert unseal(stored, type(DOCUMENTS[name]), name)[0] == DOCUMENTS[name]


def test_fields_of_a_newer_version_are_left_aside() -> None:
    line = seal(DOCUMENTS["commit"])[0].partition(b"\n")[0].replace(b"{", b'{"later":{"a":[1]},', 1)
    stored = line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n"
    assert unseal(stored, LogEntry, "commit")[0] == DOCUMENTS["commit"]
