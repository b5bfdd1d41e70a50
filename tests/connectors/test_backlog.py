"""How much input waits at a source, compared with a count of what the test has written."""

from __future__ import annotations

import gzip
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import parquet

from stateflow import DeltaSource, FileSource, KafkaSource, SparkSource
from stateflow.api.input_files import file_uri
from stateflow.api.source import FROM_START, Backlog, CollectionSource
from stateflow.connectors.kafka.client import KafkaClient, format_offsets
from stateflow.connectors.partition_offsets import count_waiting
from stateflow.connectors.partitioned.positions import Offsets, format_position
from stateflow.errors import ConfigError
from tests.connectors.partitioned_lists import Lists, items_of
from tests.servers.kafka import Kafka, kafka_broker
from tests.support.errors import raises
from tests.support.processes import wait_for

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Row(msgspec.Struct):
    id: int


# -- files ------------------------------------------------------------------------------------------------------------


def _log(number: int, *files: Path) -> bytes:
    """An entry of Spark's log of files, as Spark writes it."""
    lines = [json.dumps({"path": file_uri(file), "timestamp": 1, "batchId": number}) for file in files]
    return "\n".join(["v1", *lines]).encode()


def _offset(number: int) -> str:
    return json.dumps({"logOffset": number})


def _parquet(folder: Path, name: str, rows: int, at: datetime = NOON) -> Path:
    file = folder / name
    folder.mkdir(exist_ok=True)
    parquet.write_table(pa.table({"id": range(rows)}), file)
    os.utime(file, (at.timestamp(), at.timestamp()))
    return file


def test_files_that_were_not_read_wait_since_the_oldest_of_them(tmp_path: Path) -> None:
    read = _parquet(tmp_path, "a.parquet", 5, NOON - timedelta(hours=9))
    waiting = [_parquet(tmp_path, f"b{n}.parquet", 10 + n, NOON + timedelta(minutes=n)) for n in range(3)]
    _parquet(tmp_path / "_hidden", "c.parquet", 100)
    found = FileSource(tmp_path, schema=Row).backlog(_offset(0), [_log(0, read)])
    assert found == Backlog(33, sum(file.stat().st_size for file in waiting), 3, NOON)
    every = FileSource(tmp_path, schema=Row).backlog(FROM_START, ())
    assert (every.rows, every.files, every.oldest_at) == (38, 4, NOON - timedelta(hours=9))
    none = FileSource(tmp_path, schema=Row).backlog(_offset(1), [_log(0, read), _log(1, *waiting)])
    assert none == Backlog(0, 0, 0)


def test_rows_of_many_files_are_estimated_from_a_few(tmp_path: Path) -> None:
    for number in range(50):
        _parquet(tmp_path, f"{number:02d}.parquet", 1000)
    found = FileSource(tmp_path, schema=Row).backlog(FROM_START, ())
    assert (found.files, found.exact) == (50, False)
    assert found.rows == pytest.approx(50_000, rel=0.01)


@pytest.mark.parametrize(
    ("format", "line", "options", "header"),
    [("json", '{"id": 1234567}', {}, ""), ("csv", "1234567", {"header": "true"}, "id\n"), ("text", "abcdefg", {}, "")],
)
def test_rows_of_text_files_are_estimated_from_their_first_lines(
    tmp_path: Path, format: str, line: str, options: dict[str, Any], header: str
) -> None:
    class Line(msgspec.Struct):
        value: str

    for number in range(20):
        (tmp_path / f"{number}.{format}").write_text(header + f"{line}\n" * 10_000)
    source = FileSource(tmp_path, schema=Line if format == "text" else Row, format=format, **options)
    found = source.backlog(FROM_START, ())
    assert (found.files, found.exact) == (20, False)
    assert found.rows == pytest.approx(200_000, rel=0.01)


def test_rows_of_files_that_cannot_be_sampled_are_unknown_and_files_and_bytes_are_not(tmp_path: Path) -> None:
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(b'{"id": 1}\n' * 100))
    found = FileSource(tmp_path, schema=Row, format="json").backlog(FROM_START, ())
    assert (found.rows, found.files, found.size_bytes) == (None, 1, (tmp_path / "a.json.gz").stat().st_size)
    assert found.unknown
    (tmp_path / "b.parquet").write_bytes(b"not Parquet")
    corrupt = FileSource(tmp_path, schema=Row, pathGlobFilter="*.parquet").backlog(FROM_START, ())
    assert (corrupt.rows, corrupt.files, corrupt.size_bytes) == (None, 1, 11)


def test_files_that_only_spark_can_list_are_unknown(tmp_path: Path) -> None:
    for path in ("s3a://bucket/in", str(tmp_path / "{a,b}")):
        found = FileSource(path, schema=Row).backlog(_offset(0), [_log(0)])
        assert (found.files, found.rows) == (None, None) and found.unknown
    _parquet(tmp_path, "a.parquet", 1)
    other = FileSource(tmp_path, schema=Row).backlog(_offset(0), [_log(1, tmp_path / "a.parquet")])
    assert other.files is None and other.unknown


@pytest.mark.slow(reason="creates ten thousand files")
def test_ten_thousand_files_are_counted_in_a_second_of_cpu(tmp_path: Path) -> None:
    for number in range(10_000):
        os.close(os.open(tmp_path / f"{number:05d}.json", os.O_CREAT | os.O_WRONLY))
    read = [tmp_path / f"{number:05d}.json" for number in range(2_500)]
    log, began = _log(0, *read), time.thread_time()
    found = FileSource(tmp_path, schema=Row, format="json").backlog(_offset(0), [log])
    assert (found.files, found.size_bytes, found.rows) == (7_500, 0, 0)
    assert time.thread_time() - began < 1


# -- Delta ------------------------------------------------------------------------------------------------------------


def _position(table: DeltaTable, version: int, **changes: object) -> str:
    """The position at the start of a version, as Spark writes it."""
    offset = {"sourceVersion": 1, "reservoirId": str(table.metadata().id), "reservoirVersion": version, "index": -1}
    return json.dumps({**offset, "isStartingVersion": False, **changes})


def _append(path: Path, rows: int) -> DeltaTable:
    write_deltalake(str(path), pa.table({"id": pa.array(range(rows), pa.int64())}), mode="append")
    return DeltaTable(str(path))


def test_rows_of_a_table_wait_from_the_version_of_the_position_on(tmp_path: Path) -> None:
    path = tmp_path / "t"
    for rows in (1, 10, 100):
        table = _append(path, rows)
    sizes = dict(zip((1, 10, 100), _added_bytes(path), strict=True))
    os.utime(path / "_delta_log" / f"{1:020d}.json", (NOON.timestamp(), NOON.timestamp()))
    source = DeltaSource(path, schema=Row)
    assert source.backlog(_position(table, 1), ()) == Backlog(110, sizes[10] + sizes[100], 2, NOON)
    assert source.backlog(_position(table, 3), ()) == Backlog(0, 0, 0)
    assert source.backlog(_position(table, 1, index=0), ()).rows == 100
    # A first read of the whole table, of which it has read two of three files.
    whole = source.backlog(_position(table, 2, index=1, isStartingVersion=True), ())
    assert (whole.rows, whole.files) == (100, 1)
    assert source.backlog(FROM_START, ()).rows == 111
    assert DeltaSource(path, schema=Row, start="latest").backlog(FROM_START, ()).rows == 0
    assert DeltaSource(path, schema=Row, start=2).backlog(FROM_START, ()).rows == 100


def _added_bytes(table: Path) -> Iterator[int]:
    for entry in sorted((table / "_delta_log").glob("*.json")):
        actions = map(json.loads, entry.read_text().splitlines())
        yield sum(action["add"]["size"] for action in actions if "add" in action)


def test_versions_that_only_rewrite_rows_have_none_that_wait(tmp_path: Path) -> None:
    path = tmp_path / "t"
    for rows in (5, 7):
        table = _append(path, rows)
    table.optimize.compact()
    table.delete("id < 3")
    source = DeltaSource(path, schema=Row, skip_changes=True)
    assert source.backlog(_position(table, 0), ()).rows == 12
    assert source.backlog(_position(table, 2), ()).rows == 0


def test_a_table_that_was_replaced_or_is_missing_is_unknown_or_an_error(tmp_path: Path) -> None:
    table = _append(tmp_path / "t", 1)
    found = DeltaSource(tmp_path / "t", schema=Row).backlog(_position(table, 0, reservoirId="other"), ())
    assert found.rows is None and found.unknown
    with raises(ConfigError):
        DeltaSource(tmp_path / "none", schema=Row).backlog(FROM_START, ())


def test_what_waits_is_told_without_the_entries_that_a_batch_reads(tmp_path: Path) -> None:
    for rows in (1, 10, 100):
        table = _append(tmp_path / "t", rows)
    source = DeltaSource(tmp_path / "t", schema=Row, start=0)
    source.files_between(_position(table, 0), _position(table, 1))
    # A thread that is asked next to a batch must not see, add or forget an entry of the batch.
    kept = dict(source._log._commits)
    assert source.backlog(_position(table, 0), ()).rows == 111
    assert source.backlog(FROM_START, ()).rows == 111
    assert source._log._commits == kept and kept.keys() == {0}


def test_the_rows_of_many_versions_are_estimated_from_a_few_entries_and_one_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = _append(tmp_path / "t", 1)
    source = DeltaSource(tmp_path / "t", schema=Row)
    source._log.head()
    add = {"path": "a", "partitionValues": {}, "size": 5, "dataChange": True, "stats": '{"numRecords":10}'}
    for version in range(1, 402):
        (tmp_path / "t" / "_delta_log" / f"{version:020d}.json").write_text(json.dumps({"add": add}))
    source._log.head()
    folder, calls = type(source._log.table), Counter[str]()

    def count(name: str) -> None:
        own = getattr(folder, name)

        def counted(*arguments: Any) -> Any:
            calls[name] += 1
            return own(*arguments)

        monkeypatch.setattr(folder, name, counted)

    for name in ("open", "info", "files"):
        count(name)
    found = source.backlog(_position(table, 1), ())
    assert (found.rows, found.size_bytes, found.files, found.exact) == (4010, 2005, 401, False)
    assert found.oldest_at is not None and found.unknown == ""
    assert calls["open"] <= 200 and calls["info"] + calls["files"] < 10, calls
    some = source.backlog(_position(table, 302), ())
    assert (some.rows, some.files, some.exact) == (1000, 100, True)


# -- partitions and lists ---------------------------------------------------------------------------------------------


def test_offsets_after_the_position_wait() -> None:
    ends, firsts = {"old": 10, "kept": 10, "new": 4, "again": 2}, {"kept": 6, "new": 1}
    position = {"old": 7, "kept": 2, "again": 9, "gone": 3}
    # Three, four of those that still exist, three of a new one, none of a partition that was created again.
    assert count_waiting(position, firsts, ends) == 3 + 4 + 3 + 0


def test_a_partitioned_source_counts_offsets_and_may_tell_the_oldest_time() -> None:
    class Dated(Lists):
        def oldest_waiting(self, position: Offsets) -> datetime | None:
            return NOON + timedelta(minutes=min(position.values()))

    items = {"a": items_of("a", 10), "b": items_of("b", 4)}
    assert Lists(items).backlog(format_position({"a": 7, "b": 4})) == Backlog(rows=3, exact=False)
    assert Lists(items).backlog(None).rows == 14
    assert Lists(items, start="latest").backlog(None).rows == 0
    dated = Dated(items)
    assert dated.backlog(format_position({"a": 7, "b": 4})).oldest_at == NOON + timedelta(minutes=4)
    assert dated.backlog(format_position({"a": 10, "b": 4})).oldest_at is None


def test_ten_thousand_partitions_are_counted_in_a_second_of_cpu() -> None:
    source = Lists({f"p{n}": [None] * 3 for n in range(10_000)})
    position, began = format_position({f"p{n}": 1 for n in range(10_000)}), time.thread_time()
    assert source.backlog(position).rows == 20_000
    assert time.thread_time() - began < 1


def test_a_list_has_the_rows_that_were_not_read() -> None:
    source = CollectionSource([Row(n) for n in range(7)], Row)
    assert source.backlog(None) == Backlog(rows=7)
    assert source.backlog('{"row":5}') == Backlog(rows=2)
    assert source.backlog('{"row":9}') == Backlog(rows=0)


def test_a_source_that_has_no_way_to_tell_says_so() -> None:
    found = SparkSource("rate", schema=Row, name="rate").backlog(FROM_START, ())
    assert (found.rows, found.size_bytes, found.files, found.oldest_at) == (None, None, None, None)
    assert found.unknown


# -- Kafka ------------------------------------------------------------------------------------------------------------


class Sent(msgspec.Struct):
    id: int
    sent: Annotated[datetime, msgspec.Meta(tz=True)]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with kafka_broker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


def _millis(at: datetime) -> int:
    return int(at.timestamp() * 1000)


@pytest.mark.slow(reason="starts Kafka")
def test_records_of_kafka_wait_between_the_position_and_the_ends(kafka: Kafka) -> None:
    kafka.create("flights", 3)
    for number in range(10):
        at = NOON + timedelta(minutes=number)
        kafka.send("flights", {"value": b'{"id": 1}', "timestamp": _millis(at)}, partition=0)
    for number in range(4):
        at = NOON + timedelta(hours=1, minutes=number)
        kafka.send("flights", {"value": b'{"id": 1}', "timestamp": _millis(at)}, partition=1)
    source = KafkaSource(kafka.address, topics="flights", schema=Row)
    position = format_offsets({("flights", 0): 7, ("flights", 1): 1, ("flights", 2): 0})
    assert source.backlog(position, ()) == Backlog(rows=6, oldest_at=NOON + timedelta(minutes=7), exact=False)
    assert source.backlog(FROM_START, ()) == Backlog(rows=14, oldest_at=NOON, exact=False)
    all_read = format_offsets({("flights", 0): 10, ("flights", 1): 4, ("flights", 2): 0})
    assert source.backlog(all_read, ()) == Backlog(rows=0, exact=False)
    # Records that retention has removed do not wait.
    kafka.delete_records("flights", 0, 9)
    assert source.backlog(position, ()).rows == 1 + 3
    later = KafkaSource(kafka.address, topics="flights", schema=Row, start=NOON + timedelta(hours=1, minutes=2))
    assert later.backlog(FROM_START, ()).rows == 2
    given = KafkaSource(kafka.address, topics="flights", schema=Row, start={"flights": {0: 9, 1: 3, 2: 0}})
    assert given.backlog(FROM_START, ()).rows == 2


@pytest.mark.slow(reason="starts Kafka")
def test_records_of_transactions_that_were_not_committed_have_no_time(kafka: Kafka) -> None:
    kafka.create("aborted", 1)
    kafka.send_aborted("aborted", b"{}")
    source = KafkaSource(kafka.address, topics="aborted", schema=Row)
    # The offsets of the record and of the mark that ends the transaction count, and no record has a time.
    wait_for(lambda: source.backlog(FROM_START, ()).rows == 2, lambda: "the end of the transaction")
    assert source.backlog(FROM_START, ()) == Backlog(rows=2, exact=False)


@pytest.mark.slow(reason="starts Kafka")
def test_one_record_of_each_of_many_partitions_is_read(kafka: Kafka) -> None:
    kafka.create("many", 250)
    for number in range(250):
        at = NOON - timedelta(minutes=number)
        kafka.send("many", {"value": b"{}", "timestamp": _millis(at)}, partition=number)
    found = KafkaSource(kafka.address, topics="many", schema=Row).backlog(FROM_START, ())
    assert (found.rows, found.oldest_at) == (250, NOON - timedelta(minutes=249))


@pytest.mark.slow(reason="starts Kafka")
def test_the_time_for_the_oldest_records_is_limited(kafka: Kafka) -> None:
    kafka.create("late", 1)
    kafka.send("late", b"{}")
    client = KafkaClient(kafka.address, {})
    assert client.oldest_time({("late", 0): 0}, committed=True, seconds=0) == (None, False)
    assert not [thread for thread in threading.enumerate() if "backlog" in thread.name]
