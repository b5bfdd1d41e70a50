"""A source in Python with partitions: positions, splits and limits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import ArrayType, DataType, LongType, StringType, StructType, TimestampNTZType

from stateflow import BadRow, ColumnPolicy, DeadLetters, PartitionedSource, Split
from stateflow.api.schema import RejectedRecord, RowSchema
from stateflow.api.source import LocalSource, Slice, StartKind, StartPosition, local_position, spark_position
from stateflow.checkpoint.barriers import error_in_text
from stateflow.config.settings import SourceSettings
from stateflow.connectors import python as python_source
from stateflow.connectors.partitioned.positions import limit_end
from stateflow.connectors.partitioned.spark_reader import PartitionedInput
from stateflow.connectors.stream_reader import new_reader
from stateflow.environment import StreamExecutionEnvironment
from stateflow.errors import (
    BatchFailed,
    ConfigError,
    CorruptInput,
    InputLost,
    JobDefinitionError,
    SchemaMismatch,
    StateflowError,
    StorageError,
    UserCodeError,
)
from tests.connectors.partitioned_lists import NO_LIMITS, Item, Lists, items_of, rows_of
from tests.runtime.timer_jobs import STRATEGY, Alarm, Event, Note, TimerJobs
from tests.support.errors import raises
from tests.support.local_jobs import LocalJobs

STEPS = st.lists(
    st.tuples(
        st.sampled_from("abc"),  # the partition that grows, and exists from then on
        st.integers(0, 9),
        st.none() | st.integers(1, 12),  # the limit of the batch
        st.integers(0, 3),  # how many committed positions a restore goes back, before the batch
    ),
    min_size=1,
    max_size=12,
)


@given(STEPS, st.none() | st.integers(1, 4))
def test_each_row_is_read_once_after_a_position_whatever_the_batches_are(
    steps: list[tuple[str, int, int | None, int]], split_size: int | None
) -> None:
    source = Lists({}, split_size=split_size)
    committed: list[tuple[str | None, list[object]]] = [(None, [])]
    for name, more, limit, back in steps:
        known = source.items.setdefault(name, [])
        source.items[name] = [*known, *items_of(name, more, len(known))]
        del committed[max(1, len(committed) - back) :]
        position, before = committed[-1]
        found = source.read(position, SourceSettings(max_rows_per_batch=limit))
        if found is None:
            assert source.has_new_input(str(position)) is False
            continue
        committed.append((found.position, [*before, *found.rows]))
        offsets = source.parse_offsets(found.position)
        assert offsets.keys() == source.items.keys()
        wanted = [item for name, end in sorted(offsets.items()) for item in source.items[name][:end]]
        assert sorted(committed[-1][1], key=repr) == sorted(wanted, key=repr)
        if limit is not None:
            assert len(found.rows) <= max(limit, len(source.items))
        # Not restored, but planned again, as after a failed task.
        start = position or source.first_position()
        splits = source.splits_of(start, found.position)
        assert splits == source.splits_of(start, found.position)
        assert all(split.end - split.start <= (split_size or 1000) for split in splits)


OFFSETS = st.dictionaries(st.sampled_from("abcde"), st.tuples(st.integers(0, 50), st.integers(0, 10**6)), min_size=1)


@given(OFFSETS, st.integers(1, 1000))
def test_every_partition_with_rows_makes_progress_within_the_limit(
    partitions: dict[str, tuple[int, int]], limit: int
) -> None:
    start = {name: first for name, (first, _) in partitions.items()}
    ends = {name: first + count for name, (first, count) in partitions.items()}
    end = limit_end(start, ends, limit)
    taken = {name: end[name] - start[name] for name in start}
    new = {name for name, (_, count) in partitions.items() if count}
    assert {name for name, count in taken.items() if count > 0} == new
    assert all(0 <= count <= partitions[name][1] for name, count in taken.items())
    assert sum(taken.values()) <= max(limit, len(new))


def test_a_job_can_begin_at_the_end_and_a_partition_that_appears_later_is_read_from_its_start() -> None:
    source = Lists({"a": items_of("a", 3)}, start="latest")
    first = source.read(None, NO_LIMITS)
    assert first is not None and (first.rows, json.loads(first.position)) == ([], {"a": 3})
    assert source.read(first.position, NO_LIMITS) is None
    source.items |= {"a": items_of("a", 5), "b": items_of("b", 2)}
    assert rows_of(source, first.position) == [*items_of("a", 2, first=3), *items_of("b", 2)]


class _Moving(Lists):
    """With each question, five rows arrive and the five oldest are removed; three exist."""

    asked = 0

    def starts(self) -> Mapping[str, int]:
        self.asked += 1
        return {"a": 5 * self.asked}

    def ends(self) -> Mapping[str, int]:
        self.asked += 1
        return {"a": 5 * self.asked + 3}


def test_rows_may_be_removed_while_a_source_is_asked_for_its_offsets() -> None:
    found = _Moving({}).available()
    assert (found.starts, found.ends) == ({"a": 5}, {"a": 13})


def test_a_position_is_chosen_by_its_kind_or_given_as_offsets() -> None:
    source = Lists({"b": items_of("b", 2), "a": items_of("a", 3)})
    latest = source.initial_position(StartPosition(StartKind.LATEST, datetime(2026, 1, 1, tzinfo=UTC)))
    assert latest.offset == '{"a":3,"b":2}'
    given = source.initial_position(StartPosition(StartKind.POSITION, position='{"b": 1, "a": 0}'))
    assert given.offset == '{"a":0,"b":1}'
    assert rows_of(source, given.offset) == [*items_of("a", 3), *items_of("b", 1, first=1)]
    assert local_position(json.dumps(spark_position(given.offset))) == given.offset


@pytest.mark.parametrize("position", ["", "7", "[1]", '{"a":-1}', '{"a":1.5}', '{"a":true}', '{"":1}', '{"a":1e400}'])
def test_what_is_no_position_is_refused(position: str) -> None:
    with raises(ConfigError, source="Lists", position=position):
        Lists({"a": []}).initial_position(StartPosition(StartKind.POSITION, position=position))


@pytest.mark.parametrize(
    ("items", "first", "position", "lost", "continues_with"),
    [
        ({"a": 9}, {"a": 5}, {"a": 2}, "a: offsets [2, 5)", [("a", 5), ("a", 6), ("a", 7), ("a", 8)]),
        ({"b": 1}, {}, {"a": 2, "b": 1}, "a: no longer exists; the position is 2", []),
        ({"a": 2}, {}, {"a": 7}, "a: ends at 2, before the position 7", [("a", 0), ("a", 1)]),
    ],
    ids=["removed", "vanished", "created-again"],
)
def test_rows_that_are_gone_end_the_run_before_a_batch_unless_the_source_may_continue(
    items: dict[str, int],
    first: dict[str, int],
    position: dict[str, int],
    lost: str,
    continues_with: list[tuple[str, int]],
) -> None:
    source = Lists({name: items_of(name, count) for name, count in items.items()})
    source.first = first
    text = json.dumps(position)
    for call in (source.check_position, lambda at: source.read(at, NO_LIMITS)):
        with raises(InputLost, source="Lists", lost=[lost]):
            call(text)
    assert source.holds(text) is False
    assert source.has_new_input(text) is not False
    lenient = Lists(source.items, on_data_loss="continue")
    lenient.first = first
    lenient.check_position(text)
    found = lenient.read(text, NO_LIMITS)
    assert found is not None
    assert [(row.name, row.number) for row in found.rows] == continues_with  # type: ignore[attr-defined]
    assert lenient.parse_offsets(found.position) == items
    assert lenient.holds(found.position) is True


def test_a_partition_that_was_created_again_is_read_from_its_start_also_once_longer_than_before() -> None:
    source = Lists({"a": items_of("a", 3)}, on_data_loss="continue")
    end = source.next_position('{"a":7}', NO_LIMITS)
    source.items["a"] = items_of("a", 20)
    assert source.splits_of('{"a":7}', end) == [Split("a", 0, 3)]


# -- the user's code --------------------------------------------------------------------------------------------------


class Broken(Lists):
    """Raises an exception, or returns what is wrong, where a test wants it."""

    def __init__(self, **results: Any) -> None:
        super().__init__({"a": items_of("a", 4)})
        self.results = results

    def _result(self, name: str, otherwise: Callable[[], Any]) -> Any:
        result = self.results.get(name)
        if isinstance(result, Exception):
            raise result
        return otherwise() if result is None else result

    def starts(self) -> Mapping[str, int]:
        return self._result("starts", super().starts)  # type: ignore[no-any-return]

    def ends(self) -> Mapping[str, int]:
        return self._result("ends", super().ends)  # type: ignore[no-any-return]

    def plan_splits(self, start: Mapping[str, int], end: Mapping[str, int]) -> Sequence[Split]:
        return self._result("plan_splits", lambda: [Split("a", 0, 4)])  # type: ignore[no-any-return]

    def read_split(self, split: Split) -> Iterator[object]:
        return self._result("read_split", lambda: self.items["a"])  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["starts", "ends", "plan_splits", "read_split"])
def test_an_exception_of_the_user_s_code_has_its_class_and_line_and_may_be_retried(name: str) -> None:
    with raises(BatchFailed, source="Lists", reason="LookupError: no such page") as caught:
        Broken(**{name: LookupError("no such page")}).read(None, NO_LIMITS)
    file, _, line = str(caught.value.facts["where"]).rpartition(":")
    assert file == __file__ and "raise result" in Path(file).read_text().splitlines()[int(line) - 1]
    assert caught.value.retryable
    with raises(StorageError):
        Broken(**{name: StorageError("the service does not answer")}).read(None, NO_LIMITS)


def test_a_restore_is_possible_while_the_system_does_not_answer() -> None:
    assert Broken(ends=OSError("no route")).holds('{"a":1}') is None
    assert Broken(ends=StorageError("no route")).holds('{"a":1}') is None
    assert Broken().holds('{"a":1}') is True


@pytest.mark.parametrize(
    "results",
    [
        {"ends": {"a": -1}}, {"ends": {"a": 1.5}}, {"ends": {"a": 2**63}}, {"ends": {1: 1}}, {"ends": 3},
        {"starts": {"a": 5}}, {"plan_splits": []}, {"plan_splits": [Split("a", 0, 3)]},
        {"plan_splits": [Split("a", 0, 2), Split("a", 3, 4)]}, {"plan_splits": [Split("a", 0, 3), Split("a", 2, 4)]},
        {"plan_splits": [Split("a", 0, 4), Split("b", 0, 1)]}, {"plan_splits": [Split("a", 0, 5)]}, {"read_split": [3]},
    ],
    ids=str,
)  # fmt: skip
def test_what_the_user_s_code_returns_is_checked_before_rows_can_be_lost(results: dict[str, Any]) -> None:
    with raises(UserCodeError, source="Lists"):
        Broken(**results).read(None, NO_LIMITS)


def test_splits_can_be_planned_in_another_way() -> None:
    halves = [Split("a", 2, 4, "second"), Split("a", 0, 2, "first")]
    source = Broken(plan_splits=halves, read_split=items_of("a", 2))
    assert source.splits_of('{"a":0}', '{"a":4}') == halves


@pytest.mark.parametrize("arguments", [{"start": "first"}, {"on_data_loss": "ignore"}, {"split_size": 0}])
def test_arguments_are_checked(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Lists({}, **arguments)
    with raises(JobDefinitionError):
        Lists({}, on_error="ignore")


# -- jobs without Spark -----------------------------------------------------------------------------------------------


def test_runs_continue_at_the_position_of_the_checkpoint_and_bad_rows_are_dead_letters(tmp_path: Path) -> None:
    bad = {"name": "b", "number": "x", "note": None}
    source = Lists({"a": items_of("a", 9), "b": [*items_of("b", 2), bad]}, on_error=DeadLetters(budget=5))

    def build(env: StreamExecutionEnvironment) -> None:
        rows = env.from_source(source, uid="rows")
        rows.sink_to(jobs.sink("out"), uid="out")
        rows.get_dead_letters().sink_to(jobs.sink("letters"), uid="letters")

    jobs = LocalJobs(tmp_path)
    jobs.run(build)
    source.items["a"] = items_of("a", 12)
    source.items["c"] = items_of("c", 1)
    jobs.run(build)
    wanted = [*items_of("a", 12), *items_of("b", 2), *items_of("c", 1)]
    assert sorted(jobs.rows()) == [(row.name, row.number, row.note) for row in wanted]  # type: ignore[attr-defined]
    (letter,) = jobs.letters()
    record = json.loads(letter.row)
    assert (letter.operator, record["topic"], record["offset"]) == ("rows", "b", 2)
    assert "number" in letter.error


def test_the_watermark_is_the_lowest_of_the_partitions_that_are_not_idle(tmp_path: Path) -> None:
    hour = 3_600_000
    source = Lists({"fast": [Event("f", 9 * hour)], "slow": [Event("s", hour)]}, row=Event)

    def streams(env: StreamExecutionEnvironment) -> Any:
        return env.from_source(source, uid="rows").assign_timestamps_and_watermarks(STRATEGY)

    jobs = TimerJobs(tmp_path)
    jobs.process(streams, Alarm(hour))
    assert jobs.notes("timer") == []
    source.items["slow"] = [Event("s", hour), Event("s", 3 * hour)]
    jobs.process(streams, Alarm(hour))
    # The slow partition alone has rows now: the other one is idle, and its watermark does not count.
    notes: list[Note] = jobs.notes("timer")
    assert [(note.key, note.at) for note in notes] == [("s", 2 * hour)]


def test_a_partition_with_only_rejected_rows_holds_the_watermark_back_as_others_with_rows_do(tmp_path: Path) -> None:
    hour, bad = 3_600_000, {"key": "s", "at": "x"}
    items: dict[str, list[object]] = {"fast": [Event("f", 9 * hour)], "slow": [Event("s", hour)]}
    source = Lists(items, row=Event, on_error=DeadLetters(budget=5))

    def streams(env: StreamExecutionEnvironment) -> Any:
        rows = env.from_source(source, uid="rows")
        rows.get_dead_letters().sink_to(jobs.sink("letters"), uid="letters")
        return rows.assign_timestamps_and_watermarks(STRATEGY.with_idleness(timedelta()))

    jobs = TimerJobs(tmp_path)
    for number, rejected in ((10, [bad]), (11, [])):
        jobs.process(streams, Alarm(hour))
        assert jobs.notes("timer") == []
        source.items["fast"] = [*source.items["fast"], Event("f", number * hour)]
        source.items["slow"] = [*source.items["slow"], *rejected]
    jobs.process(streams, Alarm(hour))
    assert ("s", 2 * hour) in [(note.key, note.at) for note in jobs.notes("timer")]


# -- rows of a partitioned source -------------------------------------------------------------------------------------


def _row(**values: object) -> dict[str, object]:
    return {"name": "a", "number": 1, "note": None, **values}


def test_rows_are_objects_dicts_or_arrow_data() -> None:
    table = pa.table({"number": pa.array([3, 4], pa.int16()), "name": ["a", "b"], "note": ["x", None]})
    source = Lists({"p": [Item("a", 1), _row(number=2), table, *table.to_batches()]})
    numbers = [(row.name, row.number, row.note) for row in rows_of(source)]  # type: ignore[attr-defined]
    assert numbers == [("a", 1, None), ("a", 2, None), *[("a", 3, "x"), ("b", 4, None)] * 2]


BAD: list[tuple[object, str]] = [
    (_row(number="1"), "number"),
    (_row(name=None), "name"),
    ({"name": "a", "number": 1}, "note"),
    (Item("a", "1"), "number"),  # type: ignore[arg-type]
    (Item(None, 1), "name"),  # type: ignore[arg-type]
    (BadRow(b"\xff", "not a record"), "not a record"),
    (BadRow("{", "not a record", offset=77), "not a record"),
]


def test_rows_that_do_not_fit_are_rejected_one_by_one_with_their_position() -> None:
    rows = [Item("a", 0), *(bad for bad, _ in BAD), Item("a", 9)]
    found = rows_of(Lists({"p": rows}, on_error=DeadLetters(budget=9), split_size=2))
    assert [row for row in found if isinstance(row, Item)] == [Item("a", 0), Item("a", 9)]
    records = sorted((row for row in found if isinstance(row, RejectedRecord)), key=lambda each: each.offset)
    assert [record.offset for record in records] == [1, 2, 3, 4, 5, 6, 77]
    assert {record.topic for record in records} == {"p"}
    for record, (_, reason) in zip(records, BAD, strict=True):
        assert reason in record.reason
    assert json.loads(records[3].value or "") == {"name": "a", "number": "1", "note": None}
    assert [record.value for record in records[5:]] == ["base64:/w==", "{"]


@pytest.mark.parametrize("bad", [bad for bad, _ in BAD], ids=str)
def test_without_dead_letters_a_row_that_does_not_fit_ends_the_run(bad: object) -> None:
    with raises(CorruptInput, topic="p", partition=0):
        Lists({"p": [Item("a", 0), bad]}).read(None, NO_LIMITS)


@pytest.mark.parametrize(
    ("policy", "row", "wanted"),
    [
        (ColumnPolicy(), {"more": 1}, [("a", 1, None)]),
        (ColumnPolicy(added="refuse"), {"more": 1}, None),
        (ColumnPolicy(missing="null"), {"note": ...}, [("a", 1, None)]),
        (ColumnPolicy(), {"note": ...}, None),
        (ColumnPolicy(missing="null"), {"number": ...}, None),
    ],
    ids=["added", "added-refused", "missing-null", "missing-refused", "missing-required"],
)
def test_columns_of_a_dict_and_of_an_arrow_batch_follow_the_same_policy(
    policy: ColumnPolicy, row: dict[str, object], wanted: list[tuple[object, ...]] | None
) -> None:
    values = {name: value for name, value in _row(**row).items() if value is not ...}
    kinds = {"name": pa.string(), "number": pa.int64(), "note": pa.string(), "more": pa.int64()}
    batch = pa.RecordBatch.from_pylist([values], pa.schema([(name, kinds[name]) for name in values]))
    for item, error in ((values, CorruptInput), (batch, SchemaMismatch)):
        source = Lists({"p": [item]}, columns=policy)
        if wanted is None:
            with raises(error):
                source.read(None, NO_LIMITS)
        else:
            assert [(r.name, r.number, r.note) for r in rows_of(source)] == wanted  # type: ignore[attr-defined]


class Typed(msgspec.Struct):
    number: int
    ratio: float
    at: datetime
    parts: list[Item] = []


_PARTS = pa.list_(pa.struct({"name": pa.string(), "number": pa.int32(), "note": pa.string()}))


@pytest.mark.parametrize(
    ("column", "values", "fits"),
    [
        ("number", pa.array([1], pa.uint32()), True), ("number", pa.array([1], pa.uint64()), False),
        ("number", pa.array([1.0], pa.float32()), False), ("number", pa.array(["1"]), False),
        ("number", pa.array([None], pa.int64()), False), ("ratio", pa.array([1], pa.int32()), True),
        ("ratio", pa.array([1], pa.int64()), False), ("at", pa.array([1], pa.timestamp("s")), True),
        ("at", pa.array([1], pa.timestamp("ns")), False), ("at", pa.array([1], pa.timestamp("us", tz="UTC")), False),
        ("at", pa.array([2**60], pa.timestamp("s")), False),
        ("parts", pa.array([[{"name": "a", "number": 1, "note": "x"}]], _PARTS), True),
        ("parts", pa.array([[{"name": None, "number": 1, "note": "x"}]], _PARTS), False),
    ],
    ids=str,
)  # fmt: skip
def test_arrow_columns_are_widened_but_never_changed(column: str, values: pa.Array, fits: bool) -> None:
    table = {"number": pa.array([1]), "ratio": pa.array([1.0]), "at": pa.array([1], pa.timestamp("us"))}
    table["parts"] = pa.array([[]], _PARTS)
    source = Lists({"p": [pa.table({**table, column: values})]}, row=Typed)
    if fits:
        (row,) = rows_of(source)
        assert msgspec.to_builtins(getattr(row, column)) == msgspec.to_builtins(values.to_pylist()[0])
    else:
        with pytest.raises(SchemaMismatch) as caught:
            source.read(None, NO_LIMITS)
        assert str(caught.value.facts["column"]).startswith(column)


def test_a_column_of_the_same_type_in_the_place_of_another_is_taken_for_a_rename() -> None:
    batch = pa.RecordBatch.from_pydict({"name": ["a"], "number": [1], "remark": ["x"]})
    with raises(SchemaMismatch, column="remark", renamed_to="note", position=3):
        Lists({"p": [batch]}, columns=ColumnPolicy(missing="null")).read(None, NO_LIMITS)
    twice = pa.RecordBatch.from_arrays([pa.array(["a"])] * 2, names=["name", "name"])
    with raises(SchemaMismatch, columns=["name"]):
        Lists({"p": [twice]}).read(None, NO_LIMITS)


# -- as Spark's processes call sources in Python ----------------------------------------------------------------------


class Row(msgspec.Struct):
    number: int
    at: datetime | None
    tags: list[str | None]


RECORD = StructType().add("topic", StringType()).add("partition", LongType()).add("offset", LongType())
RECORD = RECORD.add("key", StringType()).add("value", StringType()).add("reason", StringType())
TAGS: DataType = ArrayType(StringType())
COLUMNS = StructType().add("number", LongType()).add("at", TimestampNTZType()).add("tags", TAGS)
COLUMNS = COLUMNS.add("_sf_split", StringType()).add("_sf_rejected", RECORD)


class Numbers(PartitionedSource):
    """Partitions of numbers; every fifth one cannot be decoded."""

    def __init__(self, **ends: int) -> None:
        super().__init__(schema=Row, on_error=DeadLetters(9), split_size=4)
        self.until = ends

    @property
    def description(self) -> str:
        return "Numbers"

    def ends(self) -> Mapping[str, int]:
        return self.until

    def read_split(self, split: Split) -> Iterator[object]:
        for number in range(split.start, split.end):
            yield BadRow(str(number), "fifth") if number % 5 == 4 else Row(number, None, [None, str(number)])


def _reader(source: PartitionedSource, limit: int | None = None) -> Any:
    stream = PartitionedInput(source, SourceSettings(max_rows_per_batch=limit))
    return new_reader(stream, COLUMNS, available_now=True)


def test_batches_of_a_query_have_each_row_once_with_its_partition_and_end_at_the_target() -> None:
    source = Numbers(a=9, b=3)
    reader = _reader(source, limit=5)
    reader.prepareForTriggerAvailableNow()
    source.until = {"a": 30, "b": 3, "c": 7}
    offset, batches, found = reader.initialOffset(), 0, []
    while (end := reader.latestOffset(offset, ReadAllAvailable())) != offset:
        for partition in reader.partitions(offset, end):
            for batch in reader.read(partition):
                assert batch.schema.names == COLUMNS.names
                found += batch.to_pylist()
        offset, batches = end, batches + 1
    assert reader.partitions(offset, offset) == []
    rows = [(row["_sf_split"], row["number"], row["tags"]) for row in found if row["_sf_rejected"] is None]
    wanted = [(name, n, [None, str(n)]) for name, last in (("a", 9), ("b", 3)) for n in range(last) if n % 5 != 4]
    assert sorted(rows) == sorted(wanted)
    (rejected,) = [row["_sf_rejected"] for row in found if row["_sf_rejected"] is not None]
    assert (rejected["topic"], rejected["offset"], rejected["value"]) == ("a", 4, "4")
    assert batches == 3


class Failing(LocalSource):
    schema = RowSchema.of(Row)

    def __init__(self, error: Exception) -> None:
        self.error = error

    @property
    def description(self) -> str:
        return "Failing"

    def read(self, position: str | None, limits: SourceSettings) -> Slice | None:
        raise self.error


def _forwarded(error: BaseException) -> StateflowError:
    found = error_in_text(f"Traceback of Spark: {error} and more")
    assert found is not None
    return found


@pytest.mark.parametrize("kind", [LookupError, StorageError])
def test_an_exception_of_a_source_that_the_driver_reads_has_its_class_and_line(kind: type[Exception]) -> None:
    reader = python_source._Reader(Failing(kind("no such page")), SourceSettings())
    with pytest.raises(RuntimeError) as caught:
        reader.read(reader.initialOffset())
    error = _forwarded(caught.value)
    if kind is StorageError:
        assert type(error) is StorageError
        return
    assert type(error) is BatchFailed and error.facts["reason"] == "LookupError: no such page"
    file, _, line = str(error.facts["where"]).rpartition(":")
    assert file == __file__ and "raise self.error" in Path(file).read_text().splitlines()[int(line) - 1]


class Shrinking(LocalSource):
    """Numbers in slices of two, of which only some are left; it then has no more rows, or stays where it is."""

    schema = RowSchema.of(Row)

    def __init__(self, left: int, *, stays: bool) -> None:
        self.left = left
        self.stays = stays

    @property
    def description(self) -> str:
        return "Shrinking"

    def read(self, position: str | None, limits: SourceSettings) -> Slice | None:
        start = int(position or "0")
        rows = [Row(number, None, []) for number in range(start, min(start + 2, self.left))]
        return Slice(rows, str(start + len(rows))) if rows or self.stays else None


@pytest.mark.parametrize("stays", [True, False])
def test_rows_that_a_source_does_not_return_again_are_an_error_that_the_driver_can_read(stays: bool) -> None:
    reader = python_source._Reader(Shrinking(6, stays=stays), SourceSettings())
    start, end = {"position": "2"}, {"position": "6"}
    assert len(list(reader.readBetweenOffsets(start, end))) == 2, "one value for each slice"
    reader = python_source._Reader(Shrinking(4, stays=stays), SourceSettings())
    with pytest.raises(RuntimeError) as caught:
        list(reader.readBetweenOffsets(start, end))
    error = _forwarded(caught.value)
    assert type(error) is InputLost and error.facts["source"] == "Shrinking"


def test_what_is_lost_ends_the_query_before_a_split_is_planned() -> None:
    reader = _reader(Numbers(a=9))
    with pytest.raises(RuntimeError) as caught:
        reader.latestOffset({"position": '{"a":2,"b":1}'}, ReadAllAvailable())
    error = _forwarded(caught.value)
    assert type(error) is InputLost and error.facts["source"] == "Numbers"
