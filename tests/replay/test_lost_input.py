"""A source that no longer has the rows of a batch: the error says what is lost, and which batches are left."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stateflow
from stateflow.connectors.partition_offsets import Gap, gaps_between
from stateflow.errors import InputLost
from stateflow.replay.input import PlannedBatch, deleted_file
from stateflow.replay.report import ReplayReport
from stateflow.runtime.task import store_cache
from tests.support import folder_tables, root_files
from tests.support.errors import raises
from tests.support.ledger_job import LedgerJob

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
