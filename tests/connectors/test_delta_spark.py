"""What Spark makes of tables that the sink wrote: rows, data skipping, and its own commits in between."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from stateflow.connectors import DeltaSink
from stateflow.connectors.delta.log import checkpoint
from tests.support.delta_tables import Colour, Every, Inner, context, ids, pairs, put, write

pytestmark = pytest.mark.spark

_EVERY = context(Every)
_PAIR = context()
_naive = datetime.fromisoformat
_MICRO = timedelta(microseconds=1)


def _utc(text: str) -> datetime:
    return _naive(text).replace(tzinfo=UTC)


_FILES = [
    [
        Every(
            id=1,
            amount=1.5,
            text="a",
            flag=True,
            raw=b"\x00\xff",
            day=date(2013, 1, 1),
            local=_naive("2013-01-01T05:00:00.123456"),
            instant=_utc("2013-01-01T05:00:00.123456"),
        ),
        Every(id=2, amount=-2.0, text="b"),
    ],
    [Every(id=3), Every(id=4)],
    [Every(id=5, amount=math.nan), Every(id=6, amount=7.0)],
    [Every(id=7, amount=math.nan)],
    [Every(id=8, amount=math.inf), Every(id=9, amount=-math.inf)],
    [Every(id=10, amount=0.0), Every(id=11, amount=-0.0)],
    [Every(id=12, text="x" * 31 + "yz" + "tail"), Every(id=13, text="")],
    [Every(id=14, text="é" * 40), Every(id=15, text="x" * 32 + "\U0010ffff" * 3)],
    [Every(id=16, text="q" * 5000), Every(id=17, text='"quoted"\\ \n\0')],
    [
        Every(id=-(2**63), day=date(1, 1, 1), local=_naive("0001-01-01T00:00:00"), instant=_utc("0001-01-01T00:00:00")),
        Every(
            id=2**63 - 1,
            day=date(9999, 12, 31),
            local=_naive("9999-12-31T23:59:59.999999"),
            instant=_utc("9999-12-31T23:59:59.999999"),
        ),
    ],
    [
        Every(
            id=18,
            day=date(1500, 2, 28),
            local=_naive("1500-03-01T00:00:00.000001"),
            instant=_utc("1899-12-31T23:59:59.999999"),
        )
    ],
    [
        Every(
            id=21,
            price=Decimal("1.50"),
            exact=Decimal("12345678901234567890.1234"),
            time=time(12, 0, 0, 1),
            lasting=timedelta(days=-1, microseconds=1),
            uid=UUID(int=7),
            colour=Colour.BLUE,
            inner=Inner(1, Decimal("-0.01"), [timedelta(1), timedelta(0)]),
            numbers=[1.5, None, math.nan],
            named={"a": Inner(2), "b": None},
        ),
        Every(id=22, price=Decimal("-9999999999.99"), exact=Decimal("0.0001"), time=time(), inner=Inner(-1)),
    ],
    [
        Every(
            id=23,
            price=Decimal("9999999999.99"),
            exact=Decimal("9" * 34 + ".0000"),
            time=time.max,
            lasting=timedelta(9999),
        ),
        Every(id=24, price=Decimal("0.00"), numbers=[], named={}, colour=Colour.RED),
    ],
    [Every(id=19, flag=False, raw=b""), Every(id=20, local=_naive("2013-01-01T05:00:00.124"))],
]

_FILTERS = [
    "id = 5",
    "id > 9223372036854775000",
    "id < 0",
    "id IN (1, 12)",
    "id BETWEEN 3 AND 4",
    "id != 7",
    "id IS NULL",
    "amount = 1.5",
    "amount > 6.5",
    "amount > 1e300",
    "amount < -1e300",
    "amount = double('NaN')",
    "amount = 0.0",
    "amount = -0.0",
    "amount < 0.0",
    "amount >= 0.0",
    "amount <= double('NaN')",
    "amount = double('Infinity')",
    "amount IS NULL",
    "amount IS NOT NULL",
    "NOT (amount > 1)",
    "isnan(amount)",
    "text = 'a'",
    "text > 'w'",
    f"text = '{'x' * 31 + 'yz' + 'tail'}'",
    f"text > '{'x' * 31 + 'y'}'",
    f"text >= '{'x' * 32}'",
    "text LIKE 'xxx%'",
    f"text = '{'é' * 40}'",
    "text > 'é'",
    "text = ''",
    "text < '#'",
    f"text = '{'q' * 5000}'",
    "text IS NULL",
    "startswith(text, 'q')",
    f"text > '{'x' * 32 + chr(0x10FFFF) * 2}'",
    "flag",
    "NOT flag",
    "flag IS NULL",
    "flag = true",
    "raw = X'00FF'",
    "raw IS NOT NULL",
    "day = DATE'2013-01-01'",
    "day < DATE'1600-01-01'",
    "day > DATE'9999-01-01'",
    "day <= DATE'0001-01-01'",
    "local = TIMESTAMP_NTZ'2013-01-01 05:00:00.123456'",
    "local > TIMESTAMP_NTZ'2013-01-01 05:00:00.1234'",
    "local > TIMESTAMP_NTZ'2013-01-01 05:00:00.1239'",
    "local < TIMESTAMP_NTZ'1500-03-01 00:00:00.000002'",
    "local >= TIMESTAMP_NTZ'9999-12-31 23:59:59.999999'",
    "local IS NULL",
    "instant = TIMESTAMP'2013-01-01 05:00:00.123456'",
    "instant > TIMESTAMP'2013-01-01 05:00:00.1234'",
    "instant < TIMESTAMP'1900-01-01 00:00:00'",
    "instant > TIMESTAMP'9999-12-31 23:59:59.999'",
    "instant <= TIMESTAMP'0001-01-01 00:00:00'",
    "instant IS NULL",
    "price = 1.5",
    "price > 9999999999.98",
    "price < -9999999999.98",
    "price IS NULL",
    "exact > 12345678901234567890.1233",
    "exact = 9999999999999999999999999999999999",
    "exact < 0.0002",
    "time = 43200000001",
    "time >= 86399999999",
    "lasting < 0",
    "lasting > 1000",
    f"uid = '{UUID(int=7)}'",
    "colour = 'blue'",
    "colour > 'blue'",
    "inner.number = 1",
    "inner.price < 0",
    "isnan(get(numbers, 2))",
    "size(numbers) = 0",
    "named['a'].number = 2",
    "named['b'] IS NULL",
]


@pytest.fixture(scope="module")
def every(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of many small files with unusual values."""
    table = tmp_path_factory.mktemp("every") / "out"
    sink = DeltaSink(table)
    sink.prepare(_EVERY)
    for token, rows in enumerate(_FILES, 1):
        put(sink, _EVERY, token, rows)
    return table


def _text(row: list[Any]) -> str:
    """NaN is not equal to itself, and time zones of one meaning are not equal to each other."""
    return " ".join(v.isoformat() if isinstance(v, datetime) else repr(v) for v in row)


def _stored(value: Any) -> Any:
    """Returns a value as a Delta table contains it: durations and times are microseconds."""
    if isinstance(value, time):
        return timedelta(hours=value.hour, minutes=value.minute, seconds=value.second) // _MICRO + value.microsecond
    if isinstance(value, timedelta):
        return value // _MICRO
    if isinstance(value, Colour):
        return value.value
    if isinstance(value, Inner):
        return {name: _stored(getattr(value, name)) for name in Inner.__struct_fields__}
    if isinstance(value, list):
        return [_stored(each) for each in value]
    if isinstance(value, dict):
        return [(key, _stored(each)) for key, each in value.items()]
    return str(value) if isinstance(value, UUID) else value


def _fresh(spark: SparkSession) -> None:
    """Makes Spark read tables from their logs again."""
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def test_every_value_comes_back(spark: SparkSession, every: Path) -> None:
    written = [[_stored(getattr(row, f)) for f in Every.__struct_fields__] for rows in _FILES for row in rows]
    read = [list(row.values()) for row in spark.sql(f"SELECT * FROM delta.`{every}`").toArrow().to_pylist()]
    assert sorted(map(_text, read)) == sorted(map(_text, written))


def test_filters_find_the_rows_that_a_full_scan_finds(spark: SparkSession, every: Path) -> None:
    filtered = [f"SELECT {i} AS filter, id FROM delta.`{every}` WHERE {f}" for i, f in enumerate(_FILTERS)]
    found: dict[str, set[int]] = {f: set() for f in _FILTERS}
    for row in spark.sql(" UNION ALL ".join(filtered)).collect():
        found[_FILTERS[row.filter]].add(row.id)
    flags = ", ".join(f"({f}) AS f{i}" for i, f in enumerate(_FILTERS))
    scanned = spark.sql(f"SELECT id, {flags} FROM delta.`{every}`").collect()
    assert found == {f: {row.id for row in scanned if row[f"f{i}"]} for i, f in enumerate(_FILTERS)}


@pytest.mark.parametrize(
    ("condition", "files"),
    [
        ("id = 5", 2),
        ("amount = 1.5", 4),
        ("text = 'b'", 3),
        ("day = DATE'1500-02-28'", 2),
        ("flag IS NOT NULL", 2),
        ("local > TIMESTAMP_NTZ'2013-01-01 05:00:00.130'", 1),
        ("instant < TIMESTAMP'1900-01-01'", 2),
        ("price > 9999999999.98", 1),
        ("time > 86399999998", 1),
        ("lasting < 0", 1),
        ("colour = 'blue'", 1),
    ],
)
def test_files_that_cannot_match_are_skipped(spark: SparkSession, every: Path, condition: str, files: int) -> None:
    assert len(spark.sql(f"SELECT * FROM delta.`{every}` WHERE {condition}").inputFiles()) <= files


def test_aggregates_from_statistics_alone_are_right(spark: SparkSession, every: Path) -> None:
    columns = ", ".join(f"min({c}), max({c})" for c in ("id", "amount", "day"))
    query = f"SELECT count(*), {columns} FROM delta.`{every}`"
    answered = spark.sql(query).collect()
    spark.conf.set("spark.databricks.delta.optimizeMetadataQuery.enabled", "false")
    try:
        assert repr(answered) == repr(spark.sql(query).collect())
    finally:
        spark.conf.unset("spark.databricks.delta.optimizeMetadataQuery.enabled")


def test_spark_reads_columns_that_a_sink_has_added_and_writes_to_the_table(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "out"
    sink = DeltaSink(table)
    sink.prepare(_PAIR)
    put(sink, _PAIR, 1, pairs(1, 1))
    wider = DeltaSink(table, schema_evolution="add-columns")
    about = context(msgspec.defstruct("Wider", [("id", int), ("text", str | None), ("at", datetime), ("inner", Inner)]))
    wider.prepare(about)
    put(wider, about, 2, [about.schema.row_class(2, "b", _naive("2026-01-01T00:00:00"), Inner(5))])
    _fresh(spark)
    spark.sql(f"INSERT INTO delta.`{table}` VALUES (3, 'c', TIMESTAMP_NTZ'2026-01-02', NULL)")
    put(wider, about, 3, [about.schema.row_class(4, "d", _naive("2026-01-03T00:00:00"), Inner(6))])
    found = spark.sql(f"SELECT id, day(at) AS day, inner.number FROM delta.`{table}` ORDER BY id").collect()
    assert [tuple(row) for row in found] == [(1, None, None), (2, 1, 5), (3, 2, None), (4, 3, 6)]


# --- Spark's own commits in between


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def sink(table: Path) -> DeltaSink:
    made = DeltaSink(table)
    made.prepare(_PAIR)
    return made


def _ids(spark: SparkSession, table: Path, version: int | None = None) -> list[int]:
    at = "" if version is None else f" VERSION AS OF {version}"
    return sorted(row.id for row in spark.sql(f"SELECT id FROM delta.`{table}`{at}").collect())


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO delta.`{t}` VALUES (7, 'x')",
        "OPTIMIZE delta.`{t}`",
        "DELETE FROM delta.`{t}` WHERE id = 2",
        "ALTER TABLE delta.`{t}` ADD COLUMN more INT",
    ],
)
def test_a_commit_of_spark_in_between_costs_one_more_try(
    spark: SparkSession, sink: DeltaSink, table: Path, statement: str
) -> None:
    for token in (1, 2):
        put(sink, _PAIR, token, pairs(token, 1))
    files = write(sink, _PAIR, pairs(3, 1))
    stale = sink.open_table(_PAIR)
    spark.sql(statement.format(t=table)).collect()
    expected = [*_ids(spark, table), 3]
    assert stale.commit(3, files) is None
    opened = sink.open_table(_PAIR)
    assert (opened.token, opened.missing(files)) == (2, [])
    assert opened.commit(3, files) is not None
    assert _ids(spark, table) == sorted(expected)


def test_spark_and_the_sink_see_each_others_tokens(spark: SparkSession, sink: DeltaSink, table: Path) -> None:
    put(sink, _PAIR, 4, pairs(0, 1))
    rows = spark.createDataFrame([(1, "x")], "id BIGINT, text STRING").coalesce(1)
    for token in (4, 5):
        options = {"txnAppId": _PAIR.application, "txnVersion": token}
        rows.write.format("delta").mode("append").options(**options).save(str(table))
    assert _ids(spark, table) == [0, 1]
    assert sink.open_table(_PAIR).token == 5


def test_a_vacuumed_file_is_missing(spark: SparkSession, sink: DeltaSink, table: Path) -> None:
    put(sink, _PAIR, 1, pairs(0, 1))
    pending = write(sink, _PAIR, pairs(1, 1))
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    try:
        spark.sql(f"VACUUM delta.`{table}` RETAIN 0 HOURS").collect()
    finally:
        spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
    assert sink.open_table(_PAIR).missing(pending) == [pending[0].path]
    assert _ids(spark, table) == [0]


def test_older_versions_can_be_read_after_a_sweep(spark: SparkSession, sink: DeltaSink, table: Path) -> None:
    for token in (1, 2, 3):
        put(sink, _PAIR, token, pairs(token, 1))
    spark.sql(f"OPTIMIZE delta.`{table}`").collect()
    [lost] = write(sink, _PAIR, pairs(9, 1))
    assert sink.sweep(_PAIR, lambda generation, ordinal, path: True) == [lost.path]
    _fresh(spark)
    assert [_ids(spark, table, version) for version in (2, 4)] == [[1, 2], [1, 2, 3]]


def test_spark_reads_delta_checkpoints_that_the_sink_made(spark: SparkSession, sink: DeltaSink, table: Path) -> None:
    DeltaTable(str(table)).alter.set_table_properties({"delta.checkpointInterval": "4"})
    for token in range(1, 10):
        put(sink, _PAIR, token, pairs(token, 1))
    assert len(list((table / "_delta_log").glob("*.checkpoint.parquet"))) == 2
    for entry in sorted((table / "_delta_log").glob("*.json"))[:7]:
        entry.unlink()
    _fresh(spark)
    assert _ids(spark, table) == list(range(1, 10))


def test_the_sink_reads_delta_checkpoints_that_spark_made(spark: SparkSession, sink: DeltaSink, table: Path) -> None:
    put(sink, _PAIR, 3, pairs(0, 1))
    for i in range(1, 11):
        spark.sql(f"INSERT INTO delta.`{table}` VALUES ({i}, 'x')").collect()
    made = [p.name for p in (table / "_delta_log").glob("*.checkpoint*")]
    assert made, "Spark made none"
    for entry in sorted((table / "_delta_log").glob("*.json"))[:10]:
        entry.unlink()
    for reader in (sink, DeltaSink(table)):
        assert reader.open_table(_PAIR).token == 3
    put(sink, _PAIR, 4, pairs(50, 1))
    checkpoint(table)
    assert ids(table) == _ids(spark, table) == [*range(11), 50]


def test_history_shows_what_was_published(spark: SparkSession, sink: DeltaSink, table: Path) -> None:
    put(sink, _PAIR, 4, pairs(0, 3))
    newest: Any = spark.sql(f"DESCRIBE HISTORY delta.`{table}` LIMIT 1").collect()[0]
    assert (newest.operation, newest.operationParameters["epochId"]) == ("STREAMING UPDATE", "4")
    assert newest.operationMetrics["numOutputRows"] == "3"
    assert newest.isBlindAppend is True
