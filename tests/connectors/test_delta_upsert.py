"""Upserts into a Delta table: the rows of each checkpoint replace those of their keys, and plain dictionaries agree."""

from __future__ import annotations

import datetime
import decimal
import pickle
import uuid
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stateflow import KafkaSink, PostgresSink
from stateflow.api.changelog import Changelog
from stateflow.api.schema import RowSchema
from stateflow.api.sink import Sink, SinkContext, Writing
from stateflow.connectors import DeltaSink
from stateflow.connectors.data_files import FileName, Limits
from stateflow.connectors.delta import versions
from stateflow.connectors.delta_types import target_schema
from stateflow.connectors.partitions import (
    NULL,
    PartitionedWriter,
    StoredRows,
    parse_partition_folder,
    parse_partition_value,
)
from stateflow.connectors.table_folder import DiskFolder
from stateflow.errors import JobDefinitionError, SchemaMismatch, SinkDiverged, SinkRefused
from stateflow.runtime.task.row_conversion import check_required, to_batch
from stateflow.state.handles import Committable
from tests.support.delta_tables import Colour, Every, Instant, Price, batch, checkpoint, context, put, write
from tests.support.errors import raises
from tests.support.examples import one_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Position(msgspec.Struct, kw_only=True):
    carrier: str
    number: int
    at: int | None = None
    place: str | None = None
    gone: bool | None = None


KEYS = ("carrier", "number")
_ROWS = st.builds(
    Position,
    carrier=st.sampled_from(["A", "B", "Ä" * 40]),
    number=st.integers(-2, 2),
    at=st.none() | st.integers(0, 3),
    place=st.none() | st.text(max_size=2),
    gone=st.none() | st.booleans(),
)


def _sink(folder: Path, **more: Any) -> DeltaSink:
    return DeltaSink(folder, **{"mode": "upsert", "keys": KEYS, "deletes": "gone", **more})


def _table(rows: dict[tuple[Any, ...], Position]) -> list[dict[str, Any]]:
    kept = [msgspec.to_builtins(row) for row in rows.values() if not row.gone]
    return _sorted([{name: value for name, value in row.items() if name != "gone"} for row in kept])


def _visible(folder: Path) -> list[dict[str, Any]]:
    return _sorted(_rows(folder))


def _rows(folder: Path) -> list[dict[str, Any]]:
    return [row for uri in DeltaTable(str(folder)).file_uris() for row in pq.read_table(uri).to_pylist()]


def _sorted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["carrier"], row["number"]))


def _files(sink: DeltaSink, about: SinkContext, token: int, parts: list[list[Position]]) -> list[Committable]:
    writings = (Writing(1, token, subtask, "a") for subtask in range(len(parts)))
    return [file for rows, writing in zip(parts, writings, strict=True) for file in write(sink, about, rows, writing)]


@pytest.mark.long(reason="draws many histories of a table")
@given(st.lists(st.lists(st.lists(_ROWS, max_size=6), max_size=2), max_size=5), st.booleans(), st.booleans())
@settings(max_examples=40)
def test_a_table_has_the_last_row_of_each_key(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[list[Position]]], ordered: bool, large: bool
) -> None:
    folder: Path = tmp_path_factory.mktemp("upsert") / "table"
    about = context(Position)
    sink = _sink(folder, order_by="at" if ordered else ())
    sink.prepare(about)
    expected: dict[tuple[Any, ...], Position] = {}
    with pytest.MonkeyPatch.context() as patch:
        # Each data file is written again by itself, or all of them together.
        patch.setattr(versions, "_COMBINED_BYTES", 0 if large else 1 << 30)
        for token, parts in enumerate(batches, 1):
            files = _files(sink, about, token, parts)
            assert sink.open_table(about).commit(token, files) == token
            rows = [row for part in parts for row in part]
            if ordered:
                rows.sort(key=lambda row: -1 if row.at is None else row.at)
            expected |= {(row.carrier, row.number): row for row in rows}
            assert _visible(folder) == _table(expected)
            assert not [file for file in files if (folder / file.path).exists()]
    names = {Path(uri).name for uri in DeltaTable(str(folder)).file_uris()}
    assert sink.sweep(about, lambda *_: True) == []
    assert names <= {path.name for path in folder.glob("*.parquet")}


def test_only_files_with_a_key_are_written_again(tmp_path: Path) -> None:
    # Names of folders are not columns.
    folder = tmp_path / "number=7" / "t"
    sink, about = _sink(folder), context(Position)
    sink.prepare(about)
    for token, carrier in enumerate("ABC", 1):
        put(sink, about, token, [Position(carrier=carrier, number=n) for n in range(4)])
    before = set(DeltaTable(str(folder)).file_uris())
    put(sink, about, 4, [Position(carrier="B", number=2, place="x"), Position(carrier="A", number=9)])
    after = set(DeltaTable(str(folder)).file_uris())
    assert (len(before - after), len(before & after), len(after - before)) == (1, 2, 1)
    found = [row for uri in after for row in pq.read_table(uri, partitioning=None).to_pylist()]
    assert len(found) == 13 and {row["number"] for row in found if row["carrier"] == "A"} == {0, 1, 2, 3, 9}


def test_a_commit_of_another_writer_makes_the_handle_stale_and_leaves_no_file(tmp_path: Path) -> None:
    sink, about = _sink(tmp_path / "t"), context(Position)
    sink.prepare(about)
    put(sink, about, 1, [Position(carrier="A", number=1)])
    stale, newer = sink.open_table(about), sink.open_table(about)
    files = _files(sink, about, 2, [[Position(carrier="A", number=1, place="x")]])
    DeltaTable(str(tmp_path / "t")).alter.set_table_description("another version")
    known = set((tmp_path / "t").glob("*.parquet"))
    assert stale.commit(2, files) is None and newer.commit(2, files) is None
    assert set((tmp_path / "t").glob("*.parquet")) == known
    assert sink.open_table(about).commit(2, files) is not None
    assert [row["place"] for row in _visible(tmp_path / "t")] == ["x"]


class Wide(Every, kw_only=True):
    key: datetime.date


def test_rows_of_every_type_are_written_again_unchanged(tmp_path: Path) -> None:
    sink, about = DeltaSink(tmp_path / "t", mode="upsert", keys=["key"]), context(Wide)
    sink.prepare(about)
    days = [datetime.date(2026, 1, day) for day in range(1, 4)]
    time, lasting = datetime.time(1, 2, 3, 4), datetime.timedelta(microseconds=5)
    given: dict[str, Any] = {"text": "a", "time": time, "lasting": lasting, "numbers": [1.5, None]}
    rows = [Wide(key=day, id=n, **given) for n, day in enumerate(days)]
    put(sink, about, 1, rows)
    before = {row["key"]: row for row in _rows(tmp_path / "t")}
    put(sink, about, 2, [Wide(key=days[0], id=9)])
    after = {row["key"]: row for row in _rows(tmp_path / "t")}
    assert after[days[0]]["id"] == 9
    assert [after[day] for day in days[1:]] == [before[day] for day in days[1:]]


@pytest.mark.parametrize(
    "given",
    [
        {"mode": "append"}, {"keys": ()}, {"keys": "nothing"}, {"deletes": "place"}, {"deletes": "carrier"},
        {"order_by": "nothing"},
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_refused(given: dict[str, Any], tmp_path: Path) -> None:
    with raises(JobDefinitionError):
        _sink(tmp_path / "t", **given).check(context(Position))


class MaybeKeyed(msgspec.Struct):
    key: str | None
    number: int


@pytest.mark.parametrize(
    "sink",
    [
        DeltaSink("t", mode="upsert", keys=["number", "key"]),
        PostgresSink("postgresql://localhost/d", table="t", mode="upsert", keys=["number", "key"]),
        KafkaSink("localhost:1", topic="t", key=["number", "key"]).for_changelog(
            Changelog(("number", "key"), "kind", retracts=True)
        ),
    ],
    ids=lambda sink: type(sink).__name__,
)
def test_a_null_in_the_key_of_a_sink_ends_the_run(sink: Sink) -> None:
    """As in Flink, whose primary keys are NOT NULL: columns of a query may be nullable, if no value is null."""
    rows = to_batch([MaybeKeyed("a", 1), MaybeKeyed(None, 2)], RowSchema.of(MaybeKeyed))
    check_required(rows.slice(0, 1), sink.required_columns)
    with raises(SchemaMismatch, column="key", row="{'key': None, 'number': 2}"):
        check_required(rows, sink.required_columns)


@pytest.mark.parametrize("name", ["delta.appendOnly", "delta.enableChangeDataFeed"])
def test_a_table_whose_files_must_not_be_written_again_is_refused(name: str, tmp_path: Path) -> None:
    sink, about = _sink(tmp_path / "t"), context(Position)
    sink.prepare(about)
    DeltaTable(str(tmp_path / "t")).alter.set_table_properties({name: "true"})
    with raises(SinkRefused):
        sink.open_table(about)


def test_a_table_with_other_columns_or_without_a_file_is_refused(tmp_path: Path) -> None:
    sink, about = _sink(tmp_path / "t", deletes=""), context(Position)
    sink.prepare(about)
    with raises(SchemaMismatch, columns=["gone"]):
        _sink(tmp_path / "t").check(about)
    put(sink, about, 1, [Position(carrier="A", number=1)])
    for path in (tmp_path / "t").glob("*.parquet"):
        path.unlink()
    with raises(SinkDiverged):
        put(sink, about, 2, [Position(carrier="A", number=1)])


# -- partitions: other readers read the rows that were written, whatever the values are -------------------------------


class Reading(msgspec.Struct, kw_only=True):
    id: int
    text: str | None = None
    number: int | None = None
    flag: bool | None = None
    day: datetime.date | None = None
    local: datetime.datetime | None = None
    instant: Instant | None = None
    price: Price | None = None
    time: datetime.time | None = None
    lasting: datetime.timedelta | None = None
    uid: uuid.UUID | None = None
    colour: Colour | None = None


class Visit(msgspec.Struct, kw_only=True):
    id: int
    day: int
    place: str | None = None
    gone: bool | None = None


HOSTILE = ["../x", "a/b", "%2F", "a%25b", "\n", "\x00\x7f", "~", "a b", "é ☃ 🐟", NULL, "=", ".", "..", "_x", "x=1/y=2"]
_PARTITIONS = [name for name in Reading.__struct_fields__ if name != "id"]
_naive = st.datetimes(datetime.datetime.fromisoformat("1800-01-01"), datetime.datetime.fromisoformat("2200-01-01"))
_READINGS = st.builds(
    Reading,
    id=st.integers(0, 9),
    text=st.none() | st.sampled_from(HOSTILE) | st.text(st.characters(codec="utf-8"), max_size=8),
    number=st.none() | st.integers(-(2**63), 2**63 - 1),
    flag=st.none() | st.booleans(),
    day=st.none() | st.dates(),
    local=st.none() | _naive,
    instant=st.none() | _naive.map(lambda t: t.replace(tzinfo=datetime.UTC)),
    price=st.none() | st.decimals(-10, 10, places=2),
    time=st.none() | st.times(),
    lasting=st.none() | st.timedeltas(datetime.timedelta(-10), datetime.timedelta(10)),
    uid=st.none() | st.uuids(),
    colour=st.none() | st.sampled_from(Colour),
)


def _prepared(folder: Path, about: SinkContext, **options: Any) -> DeltaSink:
    sink = DeltaSink(folder, **options)
    sink.prepare(about)
    return sink


def _expected(about: SinkContext, rows: list[Any], partitions: Collection[str]) -> list[dict[str, Any]]:
    """The rows as Arrow has them; a time and a duration are microseconds, and an empty text of a partition is null."""
    found = batch(about, rows).to_pylist()
    zero = datetime.datetime.fromisoformat("0001-01-01")
    for row in found:
        for name, value in row.items():
            if isinstance(value, datetime.time):
                row[name] = (datetime.datetime.combine(zero, value) - zero) // datetime.timedelta(microseconds=1)
            if isinstance(value, datetime.timedelta):
                row[name] = value // datetime.timedelta(microseconds=1)
        if "text" in partitions:
            row["text"] = row["text"] or None
    return _in_order(found)


def _in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=repr)


def _read(folder: Path) -> list[dict[str, Any]]:
    """The rows as deltalake reads them, which takes the values of partitions from the log."""
    rows = QueryBuilder().register("t", DeltaTable(str(folder))).execute("SELECT * FROM t").read_all()
    found: list[dict[str, Any]] = pa.table(rows).to_pylist()
    return found


@given(
    st.lists(_READINGS, min_size=1, max_size=12),
    st.lists(st.sampled_from(_PARTITIONS), min_size=1, max_size=3).map(set),
)
@example([Reading(id=i, text=text) for i, text in enumerate(HOSTILE)], {"text"})
@example([Reading(id=1, price=decimal.Decimal("0.00")), Reading(id=2, price=decimal.Decimal("-0.10"))], {"price"})
@one_in(3)
def test_another_reader_finds_the_rows_and_values_of_each_partition(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Reading], columns: set[str]
) -> None:
    folder: Path = tmp_path_factory.mktemp("partitions") / "table"
    about = context(Reading)
    sink = _prepared(folder, about, partition_by=sorted(columns))
    files = put(pickle.loads(pickle.dumps(sink)), about, 1, rows)
    found = [{name: row[name] for name in about.schema.names} for row in _read(folder)]
    assert _in_order(found) == _expected(about, rows, columns)
    for file in files:
        name = FileName.parse(file.path)
        assert name is not None and set(parse_partition_folder(name.folder)) == columns
        assert not set(pa.parquet.read_schema(folder / file.path).names) & columns
    assert sink.open_table(about).missing(files) == []


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("7", pa.int64(), 7), ("TRUE", pa.bool_(), True), ("2026-01-05", pa.date32(), datetime.date(2026, 1, 5)),
        ("1.5", pa.decimal128(12, 2), decimal.Decimal("1.50")),
        ("2026-01-05 10:00:00", pa.timestamp("us"), datetime.datetime.fromisoformat("2026-01-05T10:00")),
        ("2026-01-05T10:00:00Z", pa.timestamp("us", "UTC"), datetime.datetime(2026, 1, 5, 10, tzinfo=datetime.UTC)),
        ("", pa.string(), None), ("x", pa.string(), "x"),
    ],
)  # fmt: skip
def test_values_of_other_writers_are_read(text: str, kind: pa.DataType, value: object) -> None:
    assert parse_partition_value(text, kind).as_py() == value


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("x", pa.int64()), ("9" * 30, pa.int64()), ("maybe", pa.bool_()), ("1.2.3", pa.decimal128(12, 2)),
        ("2026-01-05 10:00:00", pa.timestamp("us", "UTC")),
    ],
)  # fmt: skip
def test_a_value_that_has_several_meanings_or_none_is_an_error(text: str, kind: pa.DataType) -> None:
    with pytest.raises(ValueError):
        parse_partition_value(text, kind)


def test_many_partitions_need_few_open_files_and_little_memory(tmp_path: Path) -> None:
    about = context(Reading)
    name = FileName.first(about, Writing(1, 1, 0, "a"))
    how = StoredRows(about.schema, target_schema(about.schema), "out", ["number"])
    writer = PartitionedWriter(DiskFolder(tmp_path), name, how, Limits(row_group_bytes=20_000))
    rows = [Reading(id=i, number=i % 100, text="x" * 50) for i in range(300)]
    largest = 0
    for _ in range(4):
        writer.write(batch(about, rows))
        largest = max(largest, sum(1 for path in Path("/proc/self/fd").iterdir() if _is_below(path, tmp_path)))
    files = writer.close()
    assert 0 < largest <= 32
    assert len({file.path.rpartition("/")[2] for file in files}) == len(files) > 100
    assert sum(file.rows for file in files) == 4 * len(rows)


def _is_below(descriptor: Path, folder: Path) -> bool:
    try:
        return str(descriptor.readlink()).startswith(str(folder))
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("columns", [["amount"], ["raw"], ["inner"], ["numbers"], ["day", "day"], ["none"]])
def test_columns_that_cannot_be_partition_columns_are_refused(tmp_path: Path, columns: list[str]) -> None:
    with raises(JobDefinitionError):
        DeltaSink(tmp_path / "t", partition_by=columns).check(context(Every))


def test_a_table_cannot_have_only_partition_columns(tmp_path: Path) -> None:
    with raises(JobDefinitionError, partition_by=["id", "text"]):
        DeltaSink(tmp_path / "t", partition_by=["id", "text"]).check(context())


def test_the_partitions_of_an_existing_table_must_be_those_of_the_sink(tmp_path: Path) -> None:
    about = context(Reading)
    sink = _prepared(tmp_path / "t", about, partition_by=["day", "text"])
    for columns, column in (((), "day"), (("day",), "text"), (("day", "text", "number"), "number")):
        with raises(SinkRefused, property="PARTITIONED BY", column=column):
            DeltaSink(sink.table, partition_by=columns).check(about)
    DeltaSink(sink.table, partition_by=["text", "day"]).prepare(about)


def test_unpublished_files_are_swept_from_partitions_and_a_rewind_restores_them(tmp_path: Path) -> None:
    about = context(Reading)
    sink = _prepared(tmp_path / "t", about, partition_by=["day", "text"])
    rows = [Reading(id=i, text=text) for i, text in enumerate(["a", "%2F", None])]
    put(sink, about, 1, rows)
    put(sink, about, 2, [Reading(id=7, text="a"), Reading(id=8, day=datetime.date(2026, 1, 5))])
    lost = write(sink, about, [Reading(id=9, text="a"), Reading(id=9, text="new/x")], Writing(1, 3, 0, "lost"))
    assert sink.sweep(about, lambda generation, ordinal, path: ordinal < 3) == []
    assert sink.sweep(about, lambda generation, ordinal, path: True) == sorted(file.path for file in lost)
    opened = sink.open_table(about)
    plan = opened.plan_rewind(1)
    assert (plan.to_version, plan.rows_removed) == (1, 2)
    assert opened.rewind(plan.to_version, 3) == 3
    found = [{name: row[name] for name in about.schema.names} for row in _read(tmp_path / "t")]
    assert _in_order(found) == _expected(about, rows, ("day", "text"))
    checkpoint(tmp_path / "t")
    assert sink.sweep(about, lambda generation, ordinal, path: True) == []
    assert sink.open_table(about).plan_rewind(3).to_version is None
    assert sink.other_jobs(context(Reading, job="x")) == {about.job_uuid}


# -- upserts ----------------------------------------------------------------------------------------------------------

_VISITS = st.builds(
    Visit,
    id=st.integers(0, 4),
    day=st.integers(0, 2),
    place=st.none() | st.sampled_from(["a", "A", "", "../x", "a/b", "%2F", "e\u0301", "\u00e9", NULL]),
    gone=st.none() | st.booleans(),
)


@given(
    st.lists(st.lists(_VISITS, max_size=6), max_size=5),
    st.sampled_from([["id"], ["id", "day"]]),
    st.sampled_from([["day"], ["place"], ["place", "day"], ["id"]]),
)
@example([[Visit(id=1, day=1)], [Visit(id=1, day=2)]], ["id"], ["day"])
@one_in(3)
def test_an_upsert_moves_rows_between_partitions_like_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[Visit]], keys: list[str], columns: list[str]
) -> None:
    folder: Path = tmp_path_factory.mktemp("upsert") / "table"
    about = context(Visit)
    sink = _prepared(folder, about, mode="upsert", keys=keys, deletes="gone", partition_by=columns)
    expected: dict[tuple[int, ...], dict[str, Any]] = {}
    for token, rows in enumerate(batches, 1):
        put(sink, about, token, rows)
        for row in rows:
            key = tuple(getattr(row, name) for name in keys)
            expected.pop(key, None)
            if not row.gone:
                place = (row.place or None) if "place" in columns else row.place
                expected[key] = {"id": row.id, "day": row.day, "place": place}
    found = [{name: row[name] for name in ("id", "day", "place")} for row in _read(folder)]
    assert _in_order(found) == _in_order(list(expected.values()))
    assert sink.sweep(about, lambda generation, ordinal, path: True) == []


# -- Spark ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow(reason="Spark reads and writes tables")
@pytest.mark.spark
def test_spark_reads_and_extends_a_partitioned_table(spark: SparkSession, tmp_path: Path) -> None:
    about, folder = context(Reading), tmp_path / "t"
    sink = _prepared(folder, about, partition_by=["text", "instant", "price", "day", "flag"])
    at = datetime.datetime(2026, 1, 5, 10, 0, 0, 123456, datetime.UTC)
    rows = [Reading(id=i, text=text) for i, text in enumerate(HOSTILE)]
    rows += [Reading(id=50, instant=at, price=decimal.Decimal("-1.10"), day=at.date(), flag=True)]
    put(sink, about, 1, rows)
    frame = spark.read.format("delta").load(str(folder))
    assert {row.id: row.text for row in frame.select("id", "text").collect()} == {row.id: row.text for row in rows}
    wanted = frame.where("instant = timestamp'2026-01-05 10:00:00.123456Z' AND flag AND price = -1.1")
    assert [(row.id, row.price, row.day) for row in wanted.collect()] == [(50, decimal.Decimal("-1.10"), at.date())]
    frame.where("id >= 13").write.format("delta").mode("append").save(str(folder))
    spark.sql(f"DELETE FROM delta.`{folder}` WHERE text = '%2F'").collect()
    put(sink, about, 2, [Reading(id=60, text="a/b")])
    kept = [row.id for row in rows if row.text != "%2F"] + [row.id for row in rows if row.id >= 13] + [60]
    assert sorted(row["id"] for row in _read(folder)) == sorted(kept)
    assert sorted(row.id for row in spark.read.format("delta").load(str(folder)).collect()) == sorted(kept)
    assert sink.open_table(about).plan_rewind(1).to_version == 3
