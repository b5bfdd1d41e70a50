"""Which batches a checkpoint consists of, and whether the sources still have their rows: what is lost is named."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import stateflow
from stateflow.checkpoint.log.documents import BatchRecord, Manifest, SourcePosition
from stateflow.connectors.partition_offsets import Gap, gaps_between
from stateflow.errors import CorruptFile, InputLost
from stateflow.replay.input import PlannedBatch, deleted_file, plan_replay
from stateflow.replay.report import ReplayReport
from stateflow.replay.spark import lost_files
from stateflow.runtime.task import store_cache
from tests.checkpoint.records import record as checkpoint_record
from tests.support import folder_tables, root_files
from tests.support.errors import raises
from tests.support.ledger_job import LedgerJob

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


# -- rows that a source no longer has ---------------------------------------------------------------------------------

partitions = st.dictionaries(st.sampled_from("abc"), st.integers(0, 6), max_size=3)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[LedgerJob]:
    job = LedgerJob(tmp_path, spark=False, source__max_rows_per_batch=6, checkpoints__retained=50)
    (tmp_path / "in").mkdir()
    yield job
    job.close()
    store_cache.close_all()


def _replay(job: LedgerJob, batch: int) -> ReplayReport:
    given = {name.replace("__", "."): str(value) for name, value in job.settings.items()}
    settings = {**given, "local_dir": str(job.local)}
    return stateflow.replay_batch(job.job_file, job.job_root, batch, settings=settings)


def test_the_error_has_the_source_the_batch_the_lost_rows_and_the_batches_left(job: LedgerJob) -> None:
    job.send("a", 18)
    job.finish(checkpoints__asynchronous="no")
    # After the batches with rows, one in which timers fire.
    first, second, third, *others = (ref["id"] for ref in root_files.kept_refs(job.root))
    (job.folder / "in" / "a.first").write_text("8")
    with raises(InputLost, source="entries", batch=second, lost=["a: offsets [6, 8)"], left=[first, third, *others]):
        _replay(job, second)
    assert _replay(job, third).is_same


@pytest.mark.slow(reason="runs a job and a replay of several batches")
def test_rows_of_a_later_batch_that_are_lost_do_not_prevent_a_replay(job: LedgerJob) -> None:
    job.send("b", 2)
    job.finish(checkpoints__asynchronous="no")
    job.send("a", 6)
    job.finish(checkpoints__asynchronous="no")
    job.send("b", 3)
    job.finish(checkpoints__asynchronous="no")
    _, second, third = folder_tables.by_token(job.folder / "entries")
    (job.folder / "in" / "b.first").write_text("4")
    assert _replay(job, second).is_same
    with raises(InputLost, batch=third, lost=["b: offsets [2, 4)"]):
        _replay(job, third)


@given(partitions, partitions, partitions, partitions)
def test_rows_between_two_positions_are_lost_if_one_of_them_does_not_exist(
    start: dict[str, int], moved: dict[str, int], earliest: dict[str, int], sizes: dict[str, int]
) -> None:
    end = {name: start.get(name, 0) + moved.get(name, 0) for name in start.keys() | moved.keys()}
    ends = {name: first + sizes.get(name, 0) for name, first in earliest.items()}
    exists = {name: set(range(first, ends[name])) for name, first in earliest.items()}
    lost = {n for n in start if n in end and not set(range(start[n], end[n])) <= exists.get(n, set())}
    assert {gap.partition for gap in gaps_between(start, end, earliest, ends)} == lost


def test_a_gap_names_what_is_lost() -> None:
    (gap,) = gaps_between({"a": 2}, {"a": 9}, {"a": 5}, {"a": 20})
    assert gap == Gap("a", 2, 5)
    # Created again, with fewer rows.
    (gap,) = gaps_between({"a": 2}, {"a": 9}, {"a": 0}, {"a": 4})
    assert gap == Gap("a", 9, 4)


def _missing(path: str) -> str:
    return f"[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file {path}. File does not exist."


@pytest.mark.parametrize(
    ("path", "source"), [("file:///data/items/x%201.parquet", "items"), ("file:///other/x.parquet", "orders")]
)
def test_a_file_that_spark_does_not_find_belongs_to_the_source_that_reads_its_folder(path: str, source: str) -> None:
    sources: dict[str, Any] = {"orders": "KafkaSource[orders]", "items": "DeltaSource[rows:/data/items]"}
    batch = PlannedBatch(
        datetime(2026, 1, 31, tzinfo=UTC), 1, {"orders": "1", "items": "1"}, {"orders": "2", "items": "2"}
    )
    found = deleted_file(_missing(path), batch, sources)
    assert found is not None
    assert (found.facts["source"], found.facts["start"], found.facts["end"]) == (source, "1", "2")
    assert deleted_file("[FAILED_READ_FILE.NO_HINT] Encountered error", batch, sources) is None
