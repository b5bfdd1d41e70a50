"""What is done about a file that a batch failed on: which failures skip it, and which end the run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stateflow.api.input_files import UnreadableFile
from stateflow.api.source import Source
from stateflow.checkpoint.log.documents import Manifest
from stateflow.errors import BatchFailed, CorruptInput
from stateflow.runtime.quarantine import MAX_QUARANTINE_RECORDS, SkippedFile, quarantine_fields, quarantine_records
from stateflow.runtime.spark.batch_input import BatchInput
from stateflow.runtime.spark.checkpoint_location import SparkLocation
from stateflow.storage.memory import MemoryStorage

GARBLED = "java.io.IOException: can not read class org.apache.parquet.format.PageHeader"
TIMEOUT = "java.net.SocketTimeoutException: Read timed out"
FILES = ["file:///in/a%201.parquet", "file:///in/b.parquet", "file:///in/c.parquet"]


def _failure(file: str, cause: str) -> RuntimeError:
    return RuntimeError(
        f"Job aborted: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file {file}.  SQLSTATE: KD001\n"
        f"Caused by: {cause}\n\tat some.Class.method(Class.java:1)\n"
    )


class FakeSource(Source):
    """Files that fail as a test says when they are read alone.

    Args:
        fails: what reading a file fails with, by file.
        broken: files whose ends show that they are corrupt.
    """

    def __init__(self, policy: Any, fails: dict[str, str], broken: Sequence[str] = ()) -> None:
        self.on_corrupt_file = policy
        self.fails = fails
        self.broken = broken
        self.read: list[str] = []

    @property
    def description(self) -> str:
        return "fake"

    def check(self, spark: Any) -> None:
        raise NotImplementedError

    def stream(self, spark: Any, limits: Any) -> Any:
        raise NotImplementedError

    def read_files(self, spark: Any, files: Sequence[str]) -> Any:
        (file,) = files
        self.read.append(file)

        def collect() -> None:
            if file in self.fails:
                raise _failure(file, self.fails[file])

        return SimpleNamespace(selectExpr=lambda *_: SimpleNamespace(collect=collect))

    def truncated(self, files: Sequence[str]) -> dict[str, str]:
        return {file: "no footer" for file in files if file in self.broken}


def _input(source: Source) -> BatchInput:
    frame = cast(Any, SimpleNamespace(sparkSession=None))
    return BatchInput([], {"rows": source}, lambda: {"rows": FILES}, frame)


def _skipped(given: BatchInput) -> list[tuple[str, str]]:
    return [(s.source, s.file.path) for s in given.skipped]


def test_a_file_that_fails_again_alone_is_skipped_and_all_others_without_an_end_with_it() -> None:
    source = FakeSource("quarantine", {FILES[0]: GARBLED}, broken=[FILES[2]])
    given = _input(source)
    assert given.skip_corrupt(_failure(FILES[0], GARBLED))
    assert _skipped(given) == [("rows", "/in/a 1.parquet"), ("rows", "/in/c.parquet")]
    # Nobody else is read for it, and the next one that the batch fails on is skipped as well.
    assert source.read == [FILES[0]]
    source.fails[FILES[1]] = GARBLED
    assert given.skip_corrupt(_failure(FILES[1], GARBLED))
    assert len(given.skipped) == 3


@pytest.mark.parametrize("policy", ["fail", "quarantine"])
@pytest.mark.parametrize("alone", [None, TIMEOUT])
def test_a_failure_that_does_not_come_again_alone_is_tried_again(policy: str, alone: str | None) -> None:
    given = _input(FakeSource(policy, {} if alone is None else {FILES[0]: alone}))
    with pytest.raises(BatchFailed) as failed:
        given.skip_corrupt(_failure(FILES[0], GARBLED))
    assert failed.value.retryable and not given.skipped


def test_a_corrupt_file_ends_the_run_when_a_source_without_files_is_read_with_it() -> None:
    stream = cast(Any, SimpleNamespace(has_files=False))
    files = FakeSource("quarantine", {FILES[0]: GARBLED})
    given = BatchInput(
        [],
        {"rows": files, "stream": stream},
        lambda: {"rows": FILES, "stream": []},
        cast(Any, SimpleNamespace(sparkSession=None)),
    )
    with pytest.raises(CorruptInput) as ended:
        given.skip_corrupt(_failure(FILES[0], GARBLED))
    assert ended.value.facts["sources"] == ["stream"] and not given.skipped


def test_a_storage_that_fails_skips_nothing_and_reads_nothing_again() -> None:
    source = FakeSource("quarantine", {})
    with pytest.raises(BatchFailed):
        _input(source).skip_corrupt(_failure(FILES[0], TIMEOUT))
    assert source.read == []


def test_a_corrupt_file_ends_the_run_unless_it_may_be_skipped() -> None:
    given = _input(FakeSource("fail", {FILES[0]: GARBLED}))
    with pytest.raises(CorruptInput) as ended:
        given.skip_corrupt(_failure(FILES[0], GARBLED))
    assert ended.value.facts["file"] == "/in/a 1.parquet"


def test_a_corrupt_file_that_a_transform_reads_is_never_skipped() -> None:
    with pytest.raises(CorruptInput):
        _input(FakeSource("quarantine", {})).skip_corrupt(_failure("file:/lookup/table.parquet", GARBLED))


def test_any_other_failure_is_none_of_a_file() -> None:
    assert not _input(FakeSource("quarantine", {})).skip_corrupt(ValueError("reading file x"))


def test_a_batch_s_files_are_those_between_two_positions_of_the_source_s_log(tmp_path: Path) -> None:
    location = SparkLocation(tmp_path, MemoryStorage("memory://x"))

    def offsets(batch: int, *lines: str) -> None:
        (tmp_path / "offsets").mkdir(exist_ok=True)
        (tmp_path / "offsets" / str(batch)).write_text("\n".join(["v1", "{}", *lines]))

    def entry(source: int, name: str, *files: tuple[str, int]) -> None:
        folder = tmp_path / "sources" / str(source)
        folder.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps({"path": path, "timestamp": 1, "batchId": batch}) for path, batch in files]
        (folder / name).write_text("\n".join(["v1", *lines]))

    offsets(0, '{"logOffset":0}', "-")
    offsets(1, '{"logOffset":2}', '{"row": 7}')
    entry(0, "0", ("file:///a", 0))
    entry(0, "1.compact", ("file:///a", 0), ("file:///b", 1))
    entry(0, "2", ("file:///c%20c", 2))
    assert location.batch_files(0, 0) == ["file:///a"]
    assert location.batch_files(1, 0) == ["file:///b", "file:///c%20c"]
    # A source of another kind has none, and neither has one that has not begun.
    assert location.batch_files(1, 1) == location.batch_files(0, 1) == []


def test_the_newest_records_stay_and_all_are_counted() -> None:
    found = quarantine_records([_file(n) for n in range(MAX_QUARANTINE_RECORDS)], "2026-01-01", 3)
    first = quarantine_fields(None, found)
    before = Manifest(job_uuid="x", generation=1, ordinal=1, operators=[], sources=[], **first)
    after = quarantine_fields(before, quarantine_records([_file(MAX_QUARANTINE_RECORDS)], "2026-01-02", 4))
    assert (
        after["quarantined_count"] == MAX_QUARANTINE_RECORDS + 1 and len(after["quarantined"]) == MAX_QUARANTINE_RECORDS
    )
    assert (after["quarantined"][-1].file, after["quarantined"][-1].generation) == (f"/in/{MAX_QUARANTINE_RECORDS}", 4)
    assert quarantine_fields(before, ()) == first


def _file(number: int) -> SkippedFile:
    return SkippedFile("rows", UnreadableFile(f"file:///in/{number}", "garbled", is_corrupt=True))
