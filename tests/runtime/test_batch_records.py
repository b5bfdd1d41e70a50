"""Records of batches between two checkpoints: all of them, or none."""

from __future__ import annotations

from stateflow.checkpoint.log.documents import BatchRecord, Manifest
from stateflow.runtime.driver.checkpointing import BatchRecords, PendingCheckpoint


def _record(ordinal: int, position: str = "7") -> BatchRecord:
    return BatchRecord(ordinal=ordinal, processing_time="", checkpoint_id=0, offsets=[position], spark_time=ordinal)


def _after(count: int, position: str = "7") -> BatchRecords:
    records = BatchRecords()
    for ordinal in range(count):
        records.add([_record(ordinal, position)])
    return records


def test_the_last_batch_has_its_position_in_the_manifest() -> None:
    first, last = _after(2).stored
    assert (first.offsets, first.spark_time) == (["7"], 0)
    assert (last.offsets, last.spark_time) == ([], None)
    assert _after(1, "x" * (2 << 20)).stored[0].ordinal == 0


def test_more_batches_than_a_manifest_records_take_no_memory() -> None:
    assert len(_after(1000).stored) == 1000
    for many in (_after(1002), _after(3, "x" * (1 << 20))):
        assert many.stored == many.records == []


def test_an_aborted_checkpoint_passes_its_batches_on() -> None:
    def pending(records: BatchRecords) -> PendingCheckpoint:
        manifest = Manifest(job_uuid="", generation=1, ordinal=1, operators=[], sources=[])
        return PendingCheckpoint(manifest, batches=records)

    both = pending(_after(2)).merged_after(pending(_after(3)))
    assert [record.ordinal for record in both.document.batches] == [0, 1, 2, 0, 1]
    assert pending(_after(2)).merged_after(pending(_after(1002))).document.batches == []
