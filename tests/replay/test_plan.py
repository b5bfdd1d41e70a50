"""Which batches a checkpoint consists of: as they were recorded, or what is known without a record."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from stateflow.checkpoint.log.documents import BatchRecord, Manifest, SourcePosition
from stateflow.errors import CorruptFile
from stateflow.replay.input import plan_replay
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
