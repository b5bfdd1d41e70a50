"""Positions from checkpoints of Spark's Structured Streaming: real ones, damaged ones, and those of another query.

The checkpoints in `spark_checkpoints` were written by Spark 4.2 and Delta 4.4: ``files`` has read eight JSON files in
eight batches, with a compacted log every three entries, ``delta`` a table of three versions in two batches, and
``both`` the union of both sources.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from stateflow import DeltaSource, FileSource, KafkaSource, SavepointWriter, SparkCheckpoint, SparkSource
from stateflow.api.file_log import FilePattern
from stateflow.api.source import InitialPosition, Source
from stateflow.checkpoint.savepoints.catalog import savepoint_at
from stateflow.errors import ConfigError, CorruptFile, StateflowError
from stateflow.runtime.spark.checkpoint_location import QuerySource, checked_log
from tests.support.errors import raises
from tests.support.local_jobs import Growing

WRITTEN = Path(__file__).parent / "spark_checkpoints"


class Order(msgspec.Struct):
    shop: str
    amount: int


FILES = FileSource("/tmp/orders/in", schema=Order, format="json")
DELTA = DeltaSource("/tmp/orders/table", schema=Order)
KAFKA = KafkaSource("broker:9092", schema=Order, topics=["orders", "returns"])


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[str], Path]:
    """Returns a function that copies a checkpoint of Spark."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(WRITTEN / name, tmp_path / name))

    return copy


def _uri(number: int) -> str:
    return f"file:///tmp/orders/in/order%20{number}.json"


def _read_files(position: InitialPosition) -> list[str]:
    """The files of a position, after the check that a start of a job makes of it."""
    (name,) = position.logs
    newest = json.loads(position.offset)["logOffset"]
    checked = checked_log(name, position.logs[name], newest, QuerySource("orders", FilePattern(FILES.path)))
    return [json.loads(line)["path"] for line in checked.splitlines()[1:]]


@pytest.mark.parametrize("batch", [None, 0, 2, 4, 7])
def test_a_file_source_skips_the_files_of_all_batches_up_to_the_imported_one(batch: int | None) -> None:
    checkpoint = SparkCheckpoint(WRITTEN / "files", batch=batch)
    newest = 7 if batch is None else batch
    assert checkpoint.batch == newest
    assert _read_files(checkpoint.source_position(FILES)) == [_uri(number) for number in range(newest + 1)]


@pytest.mark.parametrize("batch", [1, 4, 7])
def test_entries_that_spark_has_removed_are_found_in_a_compact_one(copied: Callable[[str], Path], batch: int) -> None:
    folder = copied("files")
    for number in (0, 1, 3, 4):
        (folder / "sources" / "0" / str(number)).unlink()
    position = SparkCheckpoint(folder, batch=batch).source_position(FILES)
    assert _read_files(position) == [_uri(number) for number in range(batch + 1)]


def test_a_delta_source_continues_at_the_version_that_spark_reads_next() -> None:
    checkpoint = SparkCheckpoint(WRITTEN / "delta")
    position = json.loads(checkpoint.source_position(DELTA).offset)
    assert position == json.loads(checkpoint.offsets[0])
    assert position["reservoirVersion"] == 3
    within = json.loads(SparkCheckpoint(WRITTEN / "delta", batch=0).source_position(DELTA).offset)
    assert within["isStartingVersion"] and within["reservoirVersion"] == 2


def test_a_kafka_source_continues_at_the_offsets_of_its_own_topics(copied: Callable[[str], Path]) -> None:
    folder = copied("files")
    lines = (folder / "offsets" / "7").read_text().splitlines()
    offsets = {"orders": {"0": 1200, "1": 1150}}
    (folder / "offsets" / "7").write_text("\n".join([*lines[:2], json.dumps(offsets)]))
    checkpoint = SparkCheckpoint(folder)
    assert json.loads(checkpoint.source_position(KAFKA).offset) == offsets
    with raises(ConfigError, topics=["orders"], batch=7, number=0):
        checkpoint.source_position(KafkaSource("broker:9092", schema=Order, topics="returns"))


def test_the_sources_of_a_query_are_distinguished_by_number_and_kind() -> None:
    checkpoint = SparkCheckpoint(WRITTEN / "both")
    assert len(checkpoint.offsets) == 2
    files = next(at for at, offset in enumerate(checkpoint.offsets) if "logOffset" in offset)
    assert len(_read_files(checkpoint.source_position(FILES, files))) == 8
    assert json.loads(checkpoint.source_position(DELTA, 1 - files).offset)["reservoirVersion"] == 3
    for number in (None, -1, 2):
        with raises(ConfigError, number=number):
            checkpoint.source_position(FILES, number)
    others: list[tuple[Source, int]] = [(DELTA, files), (FILES, 1 - files), (KAFKA, files), (KAFKA, 1 - files)]
    for source, number in others:
        with raises(ConfigError, number=number, source=source.description):
            checkpoint.source_position(source, number)
    with raises(ConfigError, number=files):
        checkpoint.source_position(Growing([Order("a", 1)], Order), files)


def test_files_of_another_folder_are_refused() -> None:
    other = FileSource("/tmp/orders/other", schema=Order, format="json")
    with raises(ConfigError, count=8, source=other.path):
        SparkCheckpoint(WRITTEN / "files").source_position(other)
    # A source of any format does not know its files.
    anywhere = SparkSource("json", schema=Order, path="/tmp/orders/in")
    position = SparkCheckpoint(WRITTEN / "files").source_position(anywhere)
    assert len(_read_files(position)) == 8


def test_a_savepoint_has_the_positions_and_the_watermark(tmp_path: Path, copied: Callable[[str], Path]) -> None:
    folder = copied("files")
    (folder / "commits" / "7").write_text('v2\n{"nextBatchWatermarkMs":1767398400000,"stateUniqueIds":{}}')
    checkpoint = SparkCheckpoint(folder)
    assert checkpoint.watermark == 1767398400000
    assert SparkCheckpoint(folder, batch=6).watermark is None
    assert datetime.fromtimestamp(checkpoint.time / 1000, UTC).year >= 2026
    writer = SavepointWriter.new("orders")
    position = checkpoint.source_position(FILES)
    writer.with_source("orders", FILES, position, watermark=checkpoint.watermark).write(tmp_path / "savepoint")
    manifest = savepoint_at(str(tmp_path / "savepoint")).document.manifest
    assert [(s.uid, s.offset) for s in manifest.sources] == [("orders", '{"logOffset":0}')]
    assert [(w.uid, w.watermark) for w in manifest.watermarks] == [("orders", 1767398400000)]
    assert manifest.spark is not None
    assert [file.path for file in manifest.spark.source_files] == ["0/0"]


def test_a_source_that_was_not_read_begins_at_its_start(copied: Callable[[str], Path]) -> None:
    folder = copied("files")
    _replace(folder / "offsets" / "7", b'{"logOffset":7}', b"-")
    assert SparkCheckpoint(folder).source_position(FILES) == InitialPosition("-")


def test_only_committed_batches_are_imported(copied: Callable[[str], Path]) -> None:
    folder = copied("files")
    (folder / "commits" / "7").unlink()
    assert SparkCheckpoint(folder).batch == 6
    with raises(ConfigError, batch=7, planned=7, committed=[0, 6]):
        SparkCheckpoint(folder, batch=7)
    shutil.rmtree(folder / "commits")
    with raises(ConfigError, batch=None, planned=7, committed=[]):
        SparkCheckpoint(folder)
    with raises(ConfigError):
        SparkCheckpoint(folder / "offsets")
    with raises(ConfigError):
        SparkCheckpoint(folder / "nothing")


def _replace(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))


def _import(folder: Path) -> InitialPosition:
    return SparkCheckpoint(folder).source_position(FILES)


@pytest.mark.parametrize(
    ("path", "content", "error"),
    [
        ("metadata", b"", CorruptFile), ("metadata", b'{"id":7}', CorruptFile), ("commits/7", b"", CorruptFile),
        ("commits/7", b"v1", CorruptFile), ("commits/7", b'v1\n{"nextBatchWatermarkMs":-1}', CorruptFile),
        ("commits/7", b'v1\n{"nextBatchWatermarkMs":1e300}', CorruptFile),
        ("commits/7", b'v3\n{"nextBatchWatermarkMs":0}', ConfigError), ("offsets/7", None, CorruptFile),
        ("offsets/7", b"", CorruptFile), ("offsets/7", b"\0" * 500, CorruptFile),
        ("offsets/7", b"v1\n{}", CorruptFile), ("offsets/7", b"v1\n{}\n", CorruptFile),
        ("offsets/7", b'v1\n{}\n{"logOffset":7}\r', CorruptFile),
        ("offsets/7", b'v1\n{}\n{"logOffset":7}\n{"logOffset":7}', CorruptFile),
        ("offsets/7", b'v1\n[\n{"logOffset":7}', CorruptFile),
        ("offsets/7", b"v1\n" + b'{"a":' * 100_000 + b'\n{"logOffset":7}', CorruptFile),
        ("offsets/7", b'v2\n{}\n0:{"logOffset":7}', ConfigError), ("offsets/7", b"v1\n{}\n7", ConfigError),
        ("offsets/7", b"v1\n{}\n" + b"[" * 100_000, ConfigError),
        ("offsets/7", b'v1\n{}\n{"logOffset":-1}', ConfigError),
        ("offsets/7", b'v1\n{}\n{"logOffset":8}', CorruptFile),
        ("offsets/7", b'v1\n{}\n{"logOffset":999999999999999999}', CorruptFile),
        ("offsets/7", b'v1\n{}\n{"logOffset":7,"more":1}', ConfigError), ("sources/0/7", None, CorruptFile),
        ("sources/0/7", b"", CorruptFile), ("sources/0/7", b"v1", CorruptFile),
        ("sources/0/7", b'v1\n{"path":"file:///tmp/orders/in/x","timestamp":1,"batchId":6}', CorruptFile),
        ("sources/0/7", b'v1\n{"path":"file:///tmp/orders/in/x","timestamp":1,"batchId":8}', CorruptFile),
        ("sources/0/7", b'v1\n{"path":"file:///tmp/orders/in/../x","timestamp":1,"batchId":7}', ConfigError),
        ("sources/0/7", b'v1\n{"path":"file:///etc/passwd","timestamp":1,"batchId":7}', ConfigError),
        ("sources/0/7", b'v1\n{"path":"hdfs://other/tmp/orders/in/x","timestamp":1,"batchId":7}', ConfigError),
        ("sources/0/7", b'v1\n{"path":7}', CorruptFile), ("sources/0/7", b"v2\n{}", ConfigError),
        ("sources/0/5.compact", b"v1", CorruptFile),
    ],
)  # fmt: skip
def test_a_damaged_or_forged_file_is_an_error_that_names_its_path(
    copied: Callable[[str], Path], path: str, content: bytes | None, error: type[StateflowError]
) -> None:
    folder = copied("files")
    if content is None:
        (folder / path).unlink()
    else:
        (folder / path).write_bytes(content)
    with raises(error) as caught:
        _import(folder)
    assert str(folder) in repr(caught.value.facts)
    assert caught.value.hint


def test_a_file_that_is_a_link_or_a_folder_is_an_error(copied: Callable[[str], Path], tmp_path: Path) -> None:
    folder = copied("files")
    (folder / "offsets" / "7").rename(tmp_path / "elsewhere")
    (folder / "offsets" / "7").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StateflowError):
        _import(folder)
    (folder / "offsets" / "7").unlink()
    (folder / "offsets" / "7").mkdir()
    with pytest.raises(StateflowError):
        _import(folder)
