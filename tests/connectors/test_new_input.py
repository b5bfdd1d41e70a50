"""What sources find out without Spark: whether there is new input, where it begins, and what Spark's errors are."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from stateflow import DeltaSource, FileSource, KafkaSource, SparkSource
from stateflow.api.input_files import file_uri
from stateflow.api.source import FROM_START, CollectionSource, StartKind, StartPosition
from stateflow.config.settings import SourceSettings
from stateflow.connectors.delta.commits import TableLog
from stateflow.connectors.kafka.client import Partition, Topics, format_offsets
from stateflow.connectors.partition_offsets import gaps_after, has_new_rows, shorten_texts
from stateflow.connectors.stream_reader import new_reader
from stateflow.connectors.table_folder import DiskFolder
from stateflow.errors import ConfigError, CorruptFile, InputLost, JobDefinitionError
from tests.connectors.partitioned_lists import Item, Lists, items_of
from tests.support.errors import raises


class Row(msgspec.Struct):
    name: str
    number: int


# -- files ------------------------------------------------------------------------------------------------------------


def _log(number: int, *files: Path) -> bytes:
    """An entry of Spark's log of files, as Spark writes it."""
    lines = [json.dumps({"path": file_uri(file), "timestamp": 1, "batchId": number}) for file in files]
    return "\n".join(["v1", *lines]).encode()


def _offset(number: int) -> str:
    return json.dumps({"logOffset": number})


def _add(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    return path


def _has_new(path: Path | str, offset: str, *logs: bytes) -> bool | None:
    return FileSource(path, schema=Row, format="json").has_new_input(offset, logs)


def test_a_file_is_new_until_the_log_names_the_file(tmp_path: Path) -> None:
    first, second = _add(tmp_path / "a b%.json"), _add(tmp_path / "day=1" / "ü.json")
    assert _has_new(tmp_path, _offset(0), _log(0, first)) is True
    assert _has_new(tmp_path, _offset(1), _log(0, first), _log(1, second)) is False
    _add(tmp_path / "_day=2" / "c.json")
    assert _has_new(tmp_path, _offset(1), _log(0, first), _log(1, second)) is True


def test_files_that_spark_ignores_are_not_new(tmp_path: Path) -> None:
    read = _add(tmp_path / "a.json")
    for name in (".b.json", "_SUCCESS", "_temporary/c.json", ".d/e.json", "f.json._COPYING_"):
        _add(tmp_path / name)
    assert _has_new(tmp_path, _offset(0), _log(0, read)) is False
    # Spark lists summaries of Parquet files.
    _add(tmp_path / "_metadata")
    assert _has_new(tmp_path, _offset(0), _log(0, read)) is True


def test_files_that_were_deleted_after_they_were_read_are_not_new(tmp_path: Path) -> None:
    read = _add(tmp_path / "a.json")
    read.unlink()
    assert _has_new(tmp_path, _offset(0), _log(0, read)) is False


def test_links_to_folders_are_followed(tmp_path: Path) -> None:
    _add(tmp_path / "elsewhere" / "a.json")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link").symlink_to(tmp_path / "elsewhere")
    assert _has_new(tmp_path / "in", _offset(0), _log(0)) is True
    assert _has_new(tmp_path / "in", _offset(0), _log(0, tmp_path / "in" / "link" / "a.json")) is False


def test_a_pattern_matches_as_in_hadoop(tmp_path: Path) -> None:
    read = _add(tmp_path / "x1" / "a.json")
    _add(tmp_path / "y1" / "b.json")
    assert _has_new(tmp_path / "x?", _offset(0), _log(0, read)) is False
    assert _has_new(tmp_path / "*", _offset(0), _log(0, read)) is True
    _add(tmp_path / ".x" / "c.json")
    assert _has_new(tmp_path / "*x*", _offset(0), _log(0, read)) is True


@pytest.mark.parametrize("name", ["none", "none*", "{a,b}", "[a]", "a\\b"])
def test_folders_that_only_spark_can_list_are_unknown(tmp_path: Path, name: str) -> None:
    assert _has_new(tmp_path / name, _offset(0), _log(0)) is None


@pytest.mark.parametrize(
    "offset", ["", "-", "{}", "1", '{"logOffset":0,"more":1}', '{"position":"a"}', '{"a":' * 10_000]
)
def test_positions_that_are_not_those_of_files_are_unknown(tmp_path: Path, offset: str) -> None:
    assert _has_new(tmp_path, offset, _log(0)) is None


def test_an_entry_of_another_position_is_unknown(tmp_path: Path) -> None:
    read = _add(tmp_path / "a.json")
    for log in (_log(1, read), b"v2\n", b"v1\nx", b'v1\n{"path":"file:/a"}'):
        assert _has_new(tmp_path, _offset(0), log) is None


# -- Delta ------------------------------------------------------------------------------------------------------------


def _table(path: Path, *ids: int) -> DeltaTable:
    write_deltalake(str(path), pa.table({"id": pa.array(ids, pa.int64())}), mode="append")
    return DeltaTable(str(path))


def _position(table: DeltaTable, version: int, **changes: object) -> str:
    """The position at the start of a version, as Spark writes it."""
    offset = {"sourceVersion": 1, "reservoirId": str(table.metadata().id), "reservoirVersion": version, "index": -1}
    return json.dumps({**offset, "isStartingVersion": False, **changes})


class Id(msgspec.Struct):
    id: int


def _table_has_new(path: Path, offset: str) -> bool | None:
    return DeltaSource(path, schema=Id).has_new_input(offset, ())


def test_a_table_has_new_input_from_the_next_version_on(tmp_path: Path) -> None:
    table = _table(tmp_path / "t", 1)
    assert _table_has_new(tmp_path / "t", _position(table, 1)) is False
    assert _table_has_new(tmp_path / "t", _position(table, 0)) is True
    table = _table(tmp_path / "t", 2)
    assert _table_has_new(tmp_path / "t", _position(table, 1)) is True
    assert _table_has_new(tmp_path / "t", _position(table, 2)) is False


@pytest.mark.parametrize("changes", [{"index": 0}, {"isStartingVersion": True}, {"sourceVersion": 3}], ids=str)
def test_positions_within_a_version_are_unknown(tmp_path: Path, changes: dict[str, object]) -> None:
    table = _table(tmp_path / "t", 1)
    assert _table_has_new(tmp_path / "t", _position(table, 1, **changes)) is None


def test_a_table_that_was_replaced_or_restored_is_unknown(tmp_path: Path) -> None:
    table = _table(tmp_path / "t", 1)
    assert _table_has_new(tmp_path / "t", _position(table, 2)) is None
    before = _position(table, 1)
    shutil.rmtree(tmp_path / "t")
    with raises(ConfigError):
        _table_has_new(tmp_path / "t", before)
    _table(tmp_path / "t", 1)
    assert _table_has_new(tmp_path / "t", before) is None


def test_a_position_in_a_replaced_table_or_before_its_log_is_lost_input(tmp_path: Path) -> None:
    for number in range(3):
        table = _table(tmp_path / "t", number)
    source = DeltaSource(tmp_path / "t", schema=Id)
    table.create_checkpoint()
    for version in (0, 1):
        (tmp_path / "t" / "_delta_log" / f"{version:020d}.json").unlink()
    source.check_position(_position(table, 2))
    with raises(InputLost, lost="versions [1, 2)"):
        source.check_position(_position(table, 1))
    with raises(InputLost, before="other", now=str(table.metadata().id)):
        source.check_position(_position(table, 2, reservoirId="other"))


def test_a_time_is_the_first_version_that_was_committed_then_or_later(tmp_path: Path) -> None:
    times = [datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in (1, 2)]
    for number, time in enumerate(times):
        _table(tmp_path / "t", number)
        os.utime(tmp_path / "t" / "_delta_log" / f"{number:020d}.json", (time.timestamp(),) * 2)
    first, second = times
    for time, version in ((first, 0), (second, 1), (second + timedelta(milliseconds=1), 2)):
        found = DeltaSource(tmp_path / "t", schema=Id).initial_position(StartPosition(StartKind.TIMESTAMP, time))
        assert json.loads(found.offset)["reservoirVersion"] == version


def _entry(table: Path, version: int) -> Path:
    return table / "_delta_log" / f"{version:020d}.json"


def _since(table: Path, millis: int) -> int:
    """The version at which a job begins that reads from a time on."""
    return DeltaSource(table, schema=Id)._log.first_version_since(millis)


def _commit_times(table: Path, files: Sequence[int], own: dict[int, int], **properties: str) -> None:
    """Writes versions whose entries have such modification times, in milliseconds, and some a time of the commit."""
    _table(table, 1)
    first = [json.loads(line) for line in _entry(table, 0).read_text().splitlines()]
    about = next(action["metaData"] for action in first if "metaData" in action)
    about["configuration"] = {f"delta.{name}": value for name, value in properties.items()}
    for version, modified in enumerate(files):
        info = {"timestamp": 1, **({"inCommitTimestamp": own[version]} if version in own else {})}
        last = version == len(files) - 1
        actions = [{"commitInfo": info}, *(each for each in first if version == 0 and "commitInfo" not in each)]
        actions += [{"metaData": about}] if last and version else []
        _entry(table, version).write_text("".join(json.dumps(action) + "\n" for action in actions))
        os.utime(_entry(table, version), ns=(modified * 10**6,) * 2)


def test_a_time_is_found_among_the_times_of_files_as_they_are_ordered(tmp_path: Path) -> None:
    # Without a time in the commits, Delta has 100, 200, 201, 202, 400: a file that is not later counts as later by 1.
    _commit_times(tmp_path / "t", [100, 200, 50, 202, 400], {1: 7})
    expected = {0: 0, 100: 0, 101: 1, 200: 1, 201: 2, 202: 3, 203: 4, 400: 4, 401: 5}
    assert {millis: _since(tmp_path / "t", millis) for millis in expected} == expected


def test_a_time_is_found_among_the_times_of_commits_from_the_version_that_has_enabled_them(tmp_path: Path) -> None:
    enabled = {"enableInCommitTimestamps": "true"}
    # A copy of the table has changed the times of its files.
    _commit_times(tmp_path / "all", [900] * 4, {0: 10, 1: 20, 2: 30, 3: 40}, **enabled)
    expected = {0: 0, 10: 0, 11: 1, 30: 2, 31: 3, 40: 3, 41: 4}
    assert {millis: _since(tmp_path / "all", millis) for millis in expected} == expected
    since = {"inCommitTimestampEnablementVersion": "2", "inCommitTimestampEnablementTimestamp": "300"}
    _commit_times(tmp_path / "some", [100, 900, 1, 1], {2: 300, 3: 400}, **enabled, **since)
    # Before the time of the enabling, only versions before it are candidates; 900 is the time of the copy.
    expected = {0: 0, 101: 1, 299: 1, 300: 2, 301: 3, 400: 3, 401: 4}
    assert {millis: _since(tmp_path / "some", millis) for millis in expected} == expected
    disabled = {"enableInCommitTimestamps": "false"}
    _commit_times(tmp_path / "none", [100, 200], {0: 1000, 1: 2000}, **disabled, **since)
    assert _since(tmp_path / "none", 150) == 1


def test_times_of_commits_that_are_missing_or_wrong_are_named(tmp_path: Path) -> None:
    enabled = {"enableInCommitTimestamps": "true"}
    _commit_times(tmp_path / "t", [900] * 3, {0: 10, 2: 30}, **enabled)
    with raises(CorruptFile, property="delta.enableInCommitTimestamps", file=str(_entry(tmp_path / "t", 1))):
        _since(tmp_path / "t", 20)
    _commit_times(tmp_path / "u", [900], {0: 10}, **enabled, inCommitTimestampEnablementVersion="x")
    with raises(CorruptFile, property="delta.inCommitTimestampEnablementVersion", value="x"):
        _since(tmp_path / "u", 20)


def test_few_entries_are_read_to_find_a_time_and_none_once_a_job_has_a_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "t"
    for case, most in (({}, 0), ({"enableInCommitTimestamps": "true"}, 10)):
        shutil.rmtree(table, ignore_errors=True)
        _commit_times(table, range(1, 151), {version: version + 1 for version in range(150)}, **case)
        start = datetime.fromtimestamp(0.1, UTC)
        source = DeltaSource(table, schema=Id, start=start)
        source._log.head()
        opened: list[str] = []
        own = DiskFolder.open

        def opens(folder: DiskFolder, path: str, own: Any = own, opened: list[str] = opened) -> Any:
            opened.append(path)
            return own(folder, path)

        monkeypatch.setattr(DiskFolder, "open", opens)
        assert source._first_offset().reservoirVersion == 99
        assert len(opened) <= most, opened
        monkeypatch.setattr(DiskFolder, "open", own)
    stream = source._positions(SourceSettings())
    monkeypatch.setattr(TableLog, "first_version_since", None)
    # A query that continues asks for the position after its own; on Spark 4.0 and 4.1 it has planned the last batch.
    at = {**json.loads(_position(DeltaTable(str(table)), 150)), "reservoirId": source._log.head().metadata.id}
    one_batch: Any = new_reader(stream, StructType(), available_now=False)
    assert one_batch.partitions(at, at) == [] and one_batch.latestOffset() == at
    reader: Any = new_reader(stream, StructType(), available_now=True)
    assert reader.latestOffset(at, None) == at


def test_a_time_in_the_future_is_refused_and_one_that_has_passed_is_stored(tmp_path: Path) -> None:
    table = tmp_path / "t"
    _table(table, 1)
    now = datetime.now(UTC)
    later = now + timedelta(hours=1)
    source = DeltaSource(table, schema=Id, start=later)
    for begin in (source._positions(SourceSettings()).first_position, lambda: source.first_offset({})):
        with raises(ConfigError, table=str(table), time=later.isoformat()):
            begin()
    with raises(ConfigError, time=later.isoformat()):
        source.initial_position(StartPosition(StartKind.TIMESTAMP, later))
    os.utime(_entry(table, 0), (1, 1))
    source = DeltaSource(table, schema=Id, start=now.replace(tzinfo=None))
    # No version was committed since: what is committed from now on is read, also by the next run.
    assert source._positions(SourceSettings()).first_position()["reservoirVersion"] == 1
    assert json.loads(source.first_offset({}))["reservoirVersion"] == 1


@pytest.mark.parametrize("start", ["latest", datetime(2020, 1, 1, tzinfo=UTC)])
def test_a_first_batch_whose_begin_is_not_known_any_more_is_lost_input(tmp_path: Path, start: Any) -> None:
    for number in range(3):
        table = _table(tmp_path / "t", number)
    table.create_checkpoint()
    for version in range(2):
        _entry(tmp_path / "t", version).unlink()
    source = DeltaSource(tmp_path / "t", schema=Id, start=start)
    with raises(InputLost, source=source.description):
        source.files_between(FROM_START, _position(table, 1))


def test_a_source_of_spark_keeps_a_position_in_the_same_data_only_and_can_be_read_again() -> None:
    source = SparkSource("json", schema=Id, path="/a")
    assert source.can_keep("SparkSource[json:/a]") and not source.can_keep("SparkSource[json:/b]")
    for format, name in (("Socket", "a"), ("json", "")):
        with raises(JobDefinitionError, format=format):
            SparkSource(format, schema=Id, name=name)


# -- Kafka ------------------------------------------------------------------------------------------------------------


class FakeClient:
    """Partitions with their ends, their first offsets, and how many records at the end are of open transactions."""

    def __init__(self, ends: dict[Partition, int], uncommitted: int = 0, first: int = 0) -> None:
        self._ends, self._uncommitted, self._first = ends, uncommitted, first

    def partitions(self, topics: Topics) -> list[Partition]:
        return [partition for partition in self._ends if topics.matches(partition[0])]

    def ends(self, partitions: Collection[Partition], *, committed: bool = True) -> dict[Partition, int]:
        return {p: self._ends[p] - (self._uncommitted if committed else 0) for p in partitions}

    def earliest(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        return dict.fromkeys(partitions, self._first)


class FakeKafka(KafkaSource):
    def __init__(self, client: FakeClient, **arguments: Any) -> None:
        super().__init__("nowhere:1", schema=Row, **({"topics": "a"} | arguments))
        self._fake = client

    def _client(self) -> Any:
        return self._fake


def _kafka_has_new(
    position: dict[Partition, int],
    ends: dict[Partition, int],
    uncommitted: int = 0,
    logs: Sequence[bytes] = (),
    **arguments: Any,
) -> bool | None:
    return FakeKafka(FakeClient(ends, uncommitted), **arguments).has_new_input(format_offsets(position), logs)


def test_only_committed_records_are_new_input_unless_an_option_says_otherwise() -> None:
    assert _kafka_has_new({("a", 0): 3}, {("a", 0): 5}, uncommitted=2) is False
    option = {"kafka.Isolation.Level": "read_uncommitted"}
    assert _kafka_has_new({("a", 0): 3}, {("a", 0): 5}, uncommitted=2, options=option) is True


# -- what is new and what is lost after a position of offsets by partition --------------------------------------------


@given(st.data())
def test_gaps_are_the_rows_between_a_position_and_the_first_that_exists(data: st.DataObject) -> None:
    stored = {
        ("t", number): range(*sorted(data.draw(st.tuples(st.integers(0, 9), st.integers(0, 9)))))
        for number in range(data.draw(st.integers(0, 3)))
    }
    position = data.draw(st.dictionaries(st.tuples(st.just("t"), st.integers(0, 4)), st.integers(0, 9)))
    gaps = gaps_after(
        position, {p: each.start for p, each in stored.items()}, {p: each.stop for p, each in stored.items()}
    )
    found = {gap.partition: (gap.start, gap.end) for gap in gaps}
    expected: dict[tuple[str, int], tuple[int, int | None]] = {}
    for partition, start in position.items():
        each = stored.get(partition)
        if each is None:
            expected[partition] = start, None
        elif start < each.start:
            expected[partition] = start, each.start
        elif start > each.stop:
            expected[partition] = start, each.stop
    assert found == expected


def test_of_many_partitions_the_first_are_shown_and_the_others_counted() -> None:
    names = [f"p{number}" for number in range(9)]
    assert [shorten_texts(names[:count]) for count in (0, 5)] == [[], names[:5]]
    assert shorten_texts(names) == [*names[:5], "and 4 more partitions"]


_OFFSETS = st.dictionaries(st.sampled_from("ab"), st.integers(0, 3))


@given(position=_OFFSETS, ends=_OFFSETS)
def test_only_a_position_of_the_same_partitions_has_or_has_no_new_rows(
    position: dict[str, int], ends: dict[str, int]
) -> None:
    comparable = position.keys() == ends.keys() and all(ends[name] >= at for name, at in position.items())
    assert has_new_rows(position, ends) == (position != ends if comparable else None)


# -- the earliest positions, also of sources that begin elsewhere in a new job ----------------------------------------

_BROKER = FakeClient({("a", 0): 9, ("a", 1): 9}, first=7)


def test_a_source_whose_new_job_begins_at_its_start_is_read_as_in_a_new_job() -> None:
    for source in (CollectionSource([], Item), Lists({}), DeltaSource("/t", schema=Item), FakeKafka(_BROKER)):
        assert source.earliest_position().offset == FROM_START


@pytest.mark.parametrize("start", ["latest", {"a": {0: 9, 1: 9}}], ids=["latest", "offsets"])
def test_a_source_that_begins_elsewhere_in_a_new_job_returns_its_first_offsets(start: Any) -> None:
    source = FakeKafka(_BROKER, start=start)
    assert source.earliest_position().offset == '{"a":{"0":7,"1":7}}'
    lists = Lists({"a": items_of("a", 5), "b": items_of("b", 2)}, start="latest")
    lists.first = {"a": 3}
    assert lists.earliest_position().offset == '{"a":3,"b":0}'


@pytest.mark.parametrize("start", ["latest", 3])
def test_a_delta_source_that_begins_elsewhere_is_refused(start: Any) -> None:
    with raises(ConfigError, source="DeltaSource[rows:/t]", start=str(start)):
        DeltaSource("/t", schema=Item, start=start).earliest_position()
