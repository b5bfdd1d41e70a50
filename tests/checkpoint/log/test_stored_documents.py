"""What format version 1 wrote stays readable: golden files of every document of a job root.

A change that makes this fail needs a new format version and a way to read the old one. New files are written with
``STATEFLOW_WRITE_GOLDEN=1``, which never overwrites one. Documents of before format 1 are refused.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from stateflow.checkpoint.log import documents
from stateflow.checkpoint.log.documents import EntryKind, LogEntry
from stateflow.checkpoint.log.manifest_files import seal, unseal
from stateflow.errors import CorruptFile
from stateflow.state import handles
from stateflow.state.handles import StateSchema, SubtaskState
from tests.support.errors import raises

FOLDER = Path(__file__).parents[2] / "data" / "format-1"
JOB = "8f14e45fceea167a5a36dedd4bea2543"
POSITION = documents.SourcePosition(uid="flights", description="files of /data/flights", offset='{"logOffset":7}')
MANIFEST = handles.FileHandle(key="data/5/2-driver/manifest", size=812, sha256="a" * 64)
REF = documents.EntryRef(id=6, sha256="6" * 64, manifest=MANIFEST, at="2026-01-01T00:00:00.000+00:00")
COMMITTABLE = handles.Committable(path="data/f.parquet", size=4096, rows=12, stats='{"numRecords":12}')
PIN = documents.Pin(id="p", checkpoint=REF, owner="ada", reason="a look", since="2026-01-01")
SPARK = documents.SparkPosition(
    batch_id=1,
    offsets=b"v1\n{}\n{}",
    previous_offsets=None,
    commit=b"v1\n{}",
    source_files=[
        documents.SourceFile(path="0/0", content=b"v1"),
        documents.SourceFile(path="0/9.compact", handle=MANIFEST),
    ],
)
FIELDS = [
    handles.FieldSchema(name="flights", type=handles.TypeNode(kind="int", limits={"ge": 0})),
    handles.FieldSchema(name="mean", type=handles.TypeNode(kind="float"), required=False, default="0.0"),
]
STATS = handles.TypeSchema(
    root=handles.TypeNode(kind="class", class_index=0), classes=[handles.ClassSchema(name="Stats", fields=FIELDS)]
)


def _entry(seq: int, kind: EntryKind, second: int, **more: Any) -> LogEntry:
    at = f"2026-01-01T00:00:0{second}.000+00:00"
    given: dict[str, Any] = {"generation": 5, "ordinal": 2, "writer": "host:1", "manifest": MANIFEST}
    given |= {"run": "n5", "runs": 3, "ancestry": documents.Ancestry(), **more}
    return LogEntry(job_uuid=JOB, seq=seq, kind=kind, nonce=f"n{seq}", parent=f"{seq - 1}" * 64, at=at, **given)


def _subtask(number: int, writer: str, **more: Any) -> SubtaskState:
    first, snapshot = number * 2048, f"data/5/2-{writer}/mean-{number}-"
    return SubtaskState(subtask=number, first_group=first, last_group=first + 2047, snapshot=snapshot, **more)


def _manifest(states: list[StateSchema], subtasks: list[SubtaskState], **more: Any) -> documents.Manifest:
    mean = documents.OperatorState(
        uid="mean", parallelism=2, key_types=["string"], key_names=["key"], states=states, subtasks=subtasks
    )
    return documents.Manifest(job_uuid=JOB, generation=5, ordinal=2, sources=[POSITION], operators=[mean], **more)


DOCUMENTS: dict[str, handles.Document] = {
    "FORMAT": documents.JobFormat(
        version=1, job="flights", job_uuid=JOB, max_parallelism=4096, key_types={"mean": ["string"]}, shadow=True
    ),
    "claim": _entry(5, EntryKind.CLAIM, 0, ordinal=0, note="a run", checkpoint=REF, requests=["r1"]),
    "commit": _entry(
        7,
        EntryKind.COMMIT,
        1,
        retained=[REF],
        sources=[POSITION],
        pending=[documents.PendingOutput(checkpoint_id=0, sink="delays", committables=[COMMITTABLE])],
        published={"delays": documents.PublishedOutput(table_id="t", version=3, checkpoint_id=6)},
    ),
    "admin": _entry(
        8, EntryKind.ADMIN, 2, writer="host:2", checkpoint=replace(REF, id=7, sha256="7" * 64), pinned=[PIN]
    ),
    "claim-ancestry": _entry(
        9,
        EntryKind.CLAIM,
        3,
        generation=9,
        ordinal=0,
        checkpoint=REF,
        ancestry=documents.Ancestry(restores=[documents.RestoreStep(seq=9, base=6)]),
    ),
    "claim-savepoint": _entry(
        9,
        EntryKind.CLAIM,
        3,
        generation=9,
        ordinal=0,
        claimed_savepoints=[
            documents.ClaimedSavepoint(
                folder="s3://bucket/kept/before-upgrade-3f2a9c01", id="5" * 32, name="before-upgrade", generation=8
            ),
            documents.ClaimedSavepoint(
                folder="savepoints/weekly-00c0ffee/", id="6" * 32, name="weekly", generation=3, checkpoint=4
            ),
        ],
    ),
    "savepoint-claim": documents.SavepointClaim(
        state=documents.ClaimState.CLAIMED,
        job="flights",
        job_uuid=JOB,
        job_root="s3://bucket/flights",
        generation=8,
        by="os-user:ada@worker-1",
        at="2026-01-01T00:00:03.000+00:00",
    ),
    "manifest": _manifest(
        [StateSchema(name="stats", kind="value", value_type="Stats", type=STATS)],
        [_subtask(0, "t9", files=[handles.StateFile(handle=MANIFEST, local_name="000012.sst")])],
        increment_bytes=1000,
        full_bytes=9000,
        spark=SPARK,
    ),
    "manifest-backends": _manifest(
        [],
        [
            _subtask(0, "t9", backend="memory", inline=b"SFKV\x01" + bytes(12)),
            _subtask(1, "t8", backend="filesystem", files=[handles.StateFile(handle=MANIFEST, local_name="entries")]),
        ],
    ),
    "schema": StateSchema(
        name="stats",
        kind="value",
        value_type="Stats(flights: int, mean: float)",
        type=STATS,
        earlier=[
            handles.TypeSchema(root=handles.TypeNode(kind="serialized"), serializer="words", serializer_version=2)
        ],
    ),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_what_was_written_is_read_also_with_fields_of_a_newer_version(name: str) -> None:
    path, document = FOLDER / name, DOCUMENTS[name]
    if os.environ.get("STATEFLOW_WRITE_GOLDEN") and not path.exists():
        path.write_bytes(seal(document)[0])
    stored = path.read_bytes()
    assert unseal(stored, type(document), name)[0] == document
    line = stored.partition(b"\n")[0].replace(b"{", b'{"later":{"a":[1]},', 1)
    newer = line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n"
    assert unseal(newer, type(document), name)[0] == document


REQUIRED = {
    "FORMAT": ["key_types", "shadow"],
    "claim": ["run", "runs", "ancestry"],
    "commit": ["retained/manifest", "retained/at"],
    "manifest": ["operators/key_names", "operators/states/type"],
}
"""Fields that documents of before format 1 may lack, by document."""


@pytest.mark.parametrize(("name", "path"), [(name, path) for name, paths in REQUIRED.items() for path in paths])
def test_a_document_of_before_format_1_is_refused(name: str, path: str) -> None:
    document = msgspec.json.decode((FOLDER / name).read_bytes().partition(b"\n")[0])
    *outer, field = path.split("/")
    at = document
    for each in outer:
        (at,) = at[each]
    del at[field]
    line = msgspec.json.encode(document)
    with raises(CorruptFile, file=name) as refused:
        unseal(line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n", type(DOCUMENTS[name]), name)
    assert f"`{field}`" in str(refused.value.facts["reason"])
