"""Which batches a checkpoint consists of, as recorded or as far as known, and whether their files are as they were."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from stateflow.checkpoint.log.documents import BatchRecord, Manifest, SourcePosition
from stateflow.errors import CorruptFile
from stateflow.replay.input import plan_replay
from stateflow.replay.spark import lost_files
from tests.checkpoint.records import record as checkpoint_record
from tests.support.errors import raises

TIME = "2026-01-31T03:00:00.000001+00:00"


def _manifest(epoch: int, offsets: dict[str, str], **more: object) -> Manifest:
    sources = [SourcePosition(uid=uid, description=uid, offset=offset) for uid, offset in offsets.items()]
    manifest = Manifest(job_uuid="j", generation=1, ordinal=epoch, operators=[], sources=sources, epoch=epoch)
    return replace(manifest, **more)


BASE = _manifest(4, {"a": "1"})


def test_recorded_batches_continue_one_another_up_to_the_positions_of_the_checkpoint() -> None:
    records = [
        BatchRecord(ordinal=1, processing_time=TIME, checkpoint_id=3, offsets=["2", "5"], spark_time=7),
        BatchRecord(ordinal=2, processing_time=TIME, checkpoint_id=3, watermarks={"op": 9}),
    ]
    found = plan_replay(_manifest(6, {"a": "3", "b": "5"}, batches=records), BASE)
    first, second = found.batches
    assert (first.start, first.end, first.spark_time) == ({"a": "1", "b": "-"}, {"a": "2", "b": "5"}, 7)
    assert (second.start, second.end, second.watermarks) == (first.end, {"a": "3", "b": "5"}, {"op": 9})
    assert first.processing_time == datetime(2026, 1, 31, 3, microsecond=1, tzinfo=UTC)
    assert not found.deviation


@pytest.mark.parametrize(("epoch", "joined"), [(5, False), (7, True)])
def test_batches_without_records_run_as_one_at_the_time_of_the_last(epoch: int, joined: bool) -> None:
    last = checkpoint_record(1, triggered_at=TIME)
    found = plan_replay(_manifest(epoch, {"a": "3"}, record=last), BASE)
    (batch,) = found.batches
    assert (batch.start, batch.end) == ({"a": "1"}, {"a": "3"})
    assert batch.processing_time == datetime(2026, 1, 31, 3, microsecond=1, tzinfo=UTC)
    assert (f"{epoch - 4} batches" in found.deviation) is joined


@pytest.mark.parametrize(
    "record",
    [
        BatchRecord(ordinal=1, processing_time=TIME, checkpoint_id=3, offsets=[]),
        BatchRecord(ordinal=1, processing_time="noon", checkpoint_id=3, offsets=["2"]),
    ],
)
def test_a_record_that_cannot_be_true_is_refused(record: BatchRecord) -> None:
    last = BatchRecord(ordinal=2, processing_time=TIME, checkpoint_id=3)
    with raises(CorruptFile):
        plan_replay(_manifest(6, {"a": "3"}, batches=[record, last]), BASE)


# -- files of the batches ---------------------------------------------------------------------------------------------


def _log(number: int, *files: Path) -> bytes:
    lines = [
        json.dumps({"path": file.as_uri(), "timestamp": file.stat().st_mtime_ns // 1_000_000, "batchId": number})
        for file in files
    ]
    return "\n".join(["v1", *lines]).encode()


def _offset(number: int) -> str:
    return json.dumps({"logOffset": number})


def test_missing_and_changed_files_of_the_batch_are_reported_and_no_others(tmp_path: Path) -> None:
    files = [tmp_path / f"{name} 1.json" for name in "abcd"]
    for file in files:
        file.write_text("{}")
    before, missing, changed, after = files
    logs = [_log(0, before), _log(1, missing, changed), _log(2, after)]
    assert lost_files(logs, "-", _offset(2)) == []
    for file in (before, missing, after):
        file.unlink()
    os.utime(changed, (1, 1))
    found = lost_files(logs, _offset(0), _offset(1))
    assert [each.startswith(f"{file}: ") for each, file in zip(found, (missing, changed), strict=True)] == [True, True]
    assert len(lost_files(logs, "-", _offset(0))) == 1


def test_files_on_other_file_systems_are_left_to_spark() -> None:
    line = json.dumps({"path": "s3a://bucket/file.json", "timestamp": 1, "batchId": 0})
    assert lost_files([f"v1\n{line}".encode()], "-", _offset(0)) == []
