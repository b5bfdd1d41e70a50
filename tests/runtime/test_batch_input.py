"""Input files that fail a batch: which of them a run skips, and which end the run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pyarrow as pa
import pytest

from stateflow import FileSource
from stateflow.api.file_log import ListedFile
from stateflow.api.input_files import CannotRead, CorruptContent, FileShare, UnreadableFile, unreadable_in
from stateflow.api.schema import RowSchema
from stateflow.api.source import Source
from stateflow.checkpoint.barriers import message_with
from stateflow.checkpoint.log.documents import Manifest
from stateflow.errors import BatchFailed, CorruptInput, SchemaMismatch
from stateflow.runtime.job import MAX_QUARANTINE_RECORDS, SkippedFile, quarantine_fields, quarantine_records
from stateflow.runtime.spark.batch_input import BatchInput
from stateflow.runtime.spark.checkpoint_location import SparkLocation
from stateflow.runtime.spark.inputs import FileSearch
from stateflow.storage.memory import MemoryStorage
from tests.support.errors import raises

GARBLED = "java.io.IOException: can not read class org.apache.parquet.format.PageHeader"
TIMEOUT = "java.net.SocketTimeoutException: Read timed out"
FILES = ["file:///in/a%201.parquet", "file:///in/b.parquet", "file:///in/c.parquet"]


def _failure(file: str, cause: str) -> RuntimeError:
    return RuntimeError(
        f"Job aborted: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file {file}.  SQLSTATE: KD001\n"
        f"Caused by: {cause}\n\tat some.Class.method(Class.java:1)\n"
    )


class FakeSource:
    """A file source.

    Args:
        fails: the cause of the failure to read a file alone, by file.
        broken: files whose ends show that they are corrupt.
    """

    has_files = True
    explain_failure = Source.explain_failure

    def __init__(self, policy: str, fails: dict[str, str], broken: Sequence[str] = ()) -> None:
        self.on_corrupt_file = policy
        self.fails = fails
        self.broken = broken
        self.read: list[Sequence[str]] = []

    def file_format(self, files: Sequence[str]) -> None:
        return None

    def read_files(self, _: object, files: Sequence[str], arrange: object = None) -> Any:
        self.read.append(files)

        def save() -> None:
            for file in self.fails.keys() & files:
                raise _failure(file, self.fails[file])

        writer = SimpleNamespace(mode=lambda _: SimpleNamespace(save=save))
        return SimpleNamespace(write=SimpleNamespace(format=lambda _: writer))

    def find_truncated(self, files: Sequence[str]) -> dict[str, str]:
        return {file: "no footer" for file in files if file in self.broken}


def _input(source: FakeSource, files: Sequence[str] = FILES) -> BatchInput:
    listed = [ListedFile(file, 0, 0) for file in files]
    node, location = SimpleNamespace(uid="rows"), SimpleNamespace(batch_files=lambda batch, at: listed)
    frame = cast(Any, SimpleNamespace(sparkSession=None))
    return BatchInput(cast(Any, [node]), cast(Any, {"rows": source}), cast(Any, location), batch_id=0, frame=frame)


def test_a_file_that_also_fails_alone_is_skipped_with_all_other_corrupt_files() -> None:
    source = FakeSource("quarantine", {FILES[0]: GARBLED}, broken=[FILES[2]])
    given = _input(source)
    assert given.skip_corrupt(_failure(FILES[0], GARBLED))
    assert [(s.source, s.file.path) for s in given.skipped] == [("rows", "/in/a 1.parquet"), ("rows", "/in/c.parquet")]
    assert source.read == [FILES[:1], FILES[1:2]], "the other file is read, and no truncated one"


@pytest.mark.parametrize("cause", [TIMEOUT, "java.io.FileNotFoundException: x"])
def test_a_failure_of_the_storage_while_other_corrupt_files_are_looked_for_is_retryable(cause: str) -> None:
    given = _input(FakeSource("quarantine", {FILES[0]: GARBLED, FILES[1]: cause}))
    with raises(BatchFailed) as failed:
        given.skip_corrupt(_failure(FILES[0], GARBLED))
    assert failed.value.retryable


def test_tasks_report_all_corrupt_files_and_those_that_only_spark_may_read(tmp_path: Path) -> None:
    class Flaky:
        """The second attempt at a file that is only read wrongly once succeeds."""

        splits = False
        seen = Counter[str]()

        def row_starts(self, path: str, positions: Sequence[int]) -> Sequence[int]:
            return positions

        def read(self, share: FileShare, schema: RowSchema) -> Iterator[pa.RecordBatch]:
            name = Path(share.path).name
            self.seen[name] += 1
            if name == "corrupt" or (name == "once" and self.seen[name] == 1):
                raise CorruptContent(share.path, "no JSON", "line 1")
            if name == "unknown":
                raise CannotRead("x")
            yield from ()

    names = ["good", "corrupt", "once", "unknown", "gone"]
    for name in names[:-1]:
        (tmp_path / name).write_text("x")
    schema = FileSource(tmp_path, schema=Numbered, format="json").schema
    search = FileSearch({"rows": Flaky()}, {"rows": schema}, [("rows", str(tmp_path / name)) for name in names])
    batches = [pa.RecordBatch.from_pydict({"id": [at]}) for at in range(len(names))]
    found = [row for batch in search.errors(iter(batches)) for row in batch.to_pylist()]
    assert [(row["number"], bool(row["error"])) for row in found] == [(1, True), (3, False), (4, False)]
    corrupt = unreadable_in(found[0]["error"])
    assert corrupt is not None and corrupt.is_corrupt and corrupt.path == str(tmp_path / "corrupt")


@pytest.mark.parametrize("policy", ["fail", "quarantine"])
@pytest.mark.parametrize(("cause", "alone"), [(GARBLED, {}), (GARBLED, {FILES[0]: TIMEOUT}), (TIMEOUT, None)])
def test_a_failure_of_the_storage_or_one_that_does_not_recur_is_retryable(
    policy: str, cause: str, alone: dict[str, str] | None
) -> None:
    source = FakeSource(policy, alone or {})
    given = _input(source)
    with raises(BatchFailed) as failed:
        given.skip_corrupt(_failure(FILES[0], cause))
    assert failed.value.retryable and not given.skipped
    assert source.read == ([] if alone is None else [FILES[:1]])


def test_a_corrupt_file_ends_the_run_unless_the_source_can_skip_files() -> None:
    given = _input(FakeSource("fail", {FILES[0]: GARBLED}))
    with raises(CorruptInput, file="/in/a 1.parquet"):
        given.skip_corrupt(_failure(FILES[0], GARBLED))
    assert not given.skipped


class Numbered(msgspec.Struct):
    number: int


@pytest.mark.parametrize("encoded", [False, True])
def test_an_error_about_a_value_has_the_file_of_its_row(tmp_path: Path, encoded: bool) -> None:
    paths = [tmp_path / f"{name}.json" for name in "abc"]
    for path, text in zip(paths, ['{"number": 1}\n', '{"number": 1}\n{"number": null}\n', "no json\n"], strict=True):
        path.write_text(text)
    source = FileSource(tmp_path, schema=Numbered, format="json")
    given = _input(cast(Any, source), [path.as_uri() for path in paths])
    error = SchemaMismatch("a null", column="number", row=repr({"number": None}))
    if encoded:
        with raises(SchemaMismatch, file=str(paths[1]), column="number"):
            given.skip_corrupt(RuntimeError(message_with(error)))
        return
    assert not given.skip_corrupt(error) and error.facts["file"] == str(paths[1])
    of_transform = SchemaMismatch("a null", column="number", row=repr({"number": 2}))
    assert not given.skip_corrupt(of_transform) and "file" not in of_transform.facts


def test_the_files_of_a_batch_are_those_between_two_offsets_of_the_source_log(tmp_path: Path) -> None:
    location = SparkLocation(tmp_path, MemoryStorage("memory://x"))

    def write(path: str, *lines: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("\n".join(["v1", *lines]))

    def log(name: str, *files: tuple[str, int], time: int = 1) -> None:
        entries = [json.dumps({"path": path, "timestamp": time, "batchId": batch}) for path, batch in files]
        write(f"sources/0/{name}", *entries)

    write("offsets/0", "{}", '{"logOffset":0}', "-")
    write("offsets/1", "{}", '{"logOffset":2}', '{"row": 7}')
    log("0", ("file:///a", 0))
    log("1.compact", ("file:///a", 0), ("file:///b", 1))
    log("2", ("file:///c%20c", 2), ("file:///c!c", 2))
    log("3", ("file:///%C3%A4", 3), time=0)
    write("offsets/2", "{}", '{"logOffset":3}', '{"row": 7}')
    assert [file.path for file in location.batch_files(0, 0)] == ["file:///a"]
    # By time, then by path: a blank is before an exclamation mark.
    assert [file.path for file in location.batch_files(1, 0)] == ["file:///b", "file:///c%20c", "file:///c!c"]
    assert [file.path for file in location.batch_files(2, 0)] == ["file:///%C3%A4"]
    assert location.batch_offsets(1, 1) == ("-", '{"row": 7}')
    # A source without files has none, nor has one that has not begun.
    assert location.batch_files(1, 1) == location.batch_files(0, 1) == []


def test_the_newest_quarantine_records_are_kept_and_all_are_counted() -> None:
    def records(numbers: Sequence[int], at: str, generation: int) -> Any:
        files = [UnreadableFile(f"file:///in/{n}", "garbled", is_corrupt=True) for n in numbers]
        return quarantine_records([SkippedFile("rows", file) for file in files], at, generation)

    most = MAX_QUARANTINE_RECORDS
    first = quarantine_fields(None, records(range(most), "2026-01-01", 3))
    before = Manifest(job_uuid="x", generation=1, ordinal=1, operators=[], sources=[], **first)
    after = quarantine_fields(before, records([most], "2026-01-02", 4))
    assert (after["quarantined_count"], len(after["quarantined"])) == (most + 1, most)
    assert (after["quarantined"][-1].file, after["quarantined"][-1].generation) == (f"/in/{most}", 4)
    assert quarantine_fields(before, ()) == first
