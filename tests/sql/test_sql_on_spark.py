"""Expressions have the same values in Spark as in Python, and statements run on Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import deltalake
import msgspec
import pyarrow as pa
import pytest

from stateflow import RowKind, StreamExecutionEnvironment, precision
from stateflow.api.schema import RowSchema
from stateflow.api.sql.expressions.analysis import Analysis
from stateflow.api.sql.expressions.rows import evaluation
from stateflow.api.sql.expressions.spark import spark_sql
from stateflow.api.sql.expressions.sql_types import fields_of
from stateflow.api.sql.expressions.tree import Expression
from stateflow.api.sql.parser import parsed
from stateflow.api.sql.planning.names import RelationScope, Source
from stateflow.api.sql.problems import SqlText
from tests.sql import event_time_job
from tests.sql.delta_job import DeltaJob
from tests.sql.event_time_job import EventTimeJob
from tests.support.stateless_rows import stateless_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


class Values(msgspec.Struct, frozen=True):
    i: int | None
    j: int | None
    x: float | None
    y: float
    s: str | None
    t: str
    b: bool | None
    d: Annotated[Decimal, precision(9, scale=3)] | None
    at: datetime | None
    utc: Annotated[datetime, msgspec.Meta(tz=True)]
    day: date | None


NAN = float("nan")
AT = datetime.fromisoformat("2026-02-28T23:59:58.123456")
ROWS = [
    Values(
        7, -3, 2.5, 2.0, "aBc/d e/f", "%a_'\\", True, Decimal("-1.255"), AT, AT.replace(tzinfo=UTC), date(2024, 2, 29)
    ),
    Values(
        -7,
        3,
        -2.5,
        NAN,
        "",
        "",
        False,
        Decimal("999999.999"),
        datetime.fromisoformat("1969-12-31T01:00:00"),
        datetime(1960, 5, 6, tzinfo=UTC),
        None,
    ),
    Values(None, 5, None, -0.0, None, "x", None, None, None, datetime(2026, 1, 1, tzinfo=UTC), None),
    Values(0, 1 << 40, NAN, 1e300, "  äöü/ ", " é ", None, Decimal(0), AT, AT.replace(tzinfo=UTC), date(1900, 1, 1)),
]
EXPRESSIONS = [
    "i + j * 2 - 1",
    "-i",
    "i / j",
    "MOD(i, j)",
    "i % 3 = 1",
    "i / 2.0E0",
    "x * y + i",
    "0.908 * i",
    "d * 2 - 1.5",
    "d + i",
    "d * d",
    "d > 1 OR d < x",
    "ABS(i) + ABS(j)",
    "ABS(d)",
    "FLOOR(x) + CEIL(x)",
    "FLOOR(d)",
    "CEIL(d) + CEIL(-d)",
    "-ABS(-CAST(d AS DECIMAL(38, 29)))",
    "ROUND(x)",
    "ROUND(y, 1)",
    "ROUND(x, -1)",
    "ROUND(y, -2)",
    "ROUND(i, -1)",
    "ROUND(j, -20)",
    "ROUND(d)",
    "ROUND(d, 2)",
    "ROUND(d, 3) * 1",
    "ROUND(d, 20) * 1",
    "ROUND(d, -1)",
    "ROUND(-d * 2, -6)",
    "ROUND(d, -20)",
    "ROUND(d, 1) + d",
    "CAST(ROUND(CAST(i AS DECIMAL(8, 1)) * 0.01) AS STRING)",
    "SQRT(x)",
    "POWER(j, 2)",
    "x = y OR x > y",
    "y <= y AND x <> x",
    "i = j OR b",
    "i < j AND b",
    "NOT b",
    "b IS TRUE",
    "b IS NOT FALSE",
    "i IS NULL",
    "s IS NOT NULL AND i IN (7, 0, j)",
    "i NOT IN (1, NULL)",
    "i BETWEEN j AND 10",
    "i BETWEEN SYMMETRIC 10 AND j",
    "CASE WHEN i > 0 THEN 'positive' WHEN i < 0 THEN s END",
    "CASE i WHEN 7 THEN 1 WHEN 0 THEN 2.5 ELSE d END",
    "IF(b, x, i)",
    "COALESCE(i, j, 1)",
    "COALESCE(s, t)",
    "NULLIF(i, 7)",
    "IFNULL(s, 'none')",
    "LOWER(s) || UPPER(t)",
    "CONCAT(s, '-', t, '''\\n')",
    "CHAR_LENGTH(s)",
    "TRIM(s) || LTRIM(t) || RTRIM(t)",
    "REPLACE(s, '/', '')",
    "SUBSTRING(s, 2)",
    "SUBSTRING(s FROM -3 FOR 2)",
    "SUBSTR(s, 0, 2)",
    "SPLIT_INDEX(s, '/', 1)",
    "SPLIT_INDEX(s, '/', i)",
    "REGEXP_EXTRACT(s, '([a-z])B(\\w)', 2)",
    "REGEXP_EXTRACT(t, 'a|x')",
    "REGEXP_EXTRACT(s, 'a(B)?(x)?', 2)",
    "REGEXP_EXTRACT(s, '(x)|([a-f])', 1)",
    "REGEXP_EXTRACT(s, '(x)|([a-f])', 2)",
    "REGEXP_EXTRACT(s, '(x*)a(B)', 1)",
    "REGEXP_EXTRACT(s, '(x*)|(.)', 2)",
    "REGEXP_EXTRACT(s, '([e/])?(x)??', 2)",
    "REGEXP_EXTRACT(t, '(\\w)?_(z)?', 2)",
    "REGEXP_EXTRACT(s, '(?i)(q)?^(a)bc?|(x)', 1)",
    "REGEXP_EXTRACT(s, '(?x) (q)? a # a comment', 1)",
    "REGEXP_EXTRACT(s, '(q)?ABC', 1)",
    "s LIKE 'a_c%'",
    "s NOT LIKE '%/%'",
    "CAST(i AS STRING) || CAST(b AS STRING) || CAST(day AS STRING)",
    "CAST(CAST(i AS DOUBLE) / 2 AS BIGINT)",
    "CAST(i AS DOUBLE) / 3",
    "CAST(d AS BIGINT)",
    "CAST(d AS STRING)",
    "CAST(s AS VARCHAR(3)) || CAST(i AS VARCHAR(1))",
    "CAST(i AS TINYINT) + CAST(d AS INT)",
    "CAST(i AS DECIMAL(12, 2))",
    "CAST(d AS DECIMAL(8, 1))",
    "CAST(y AS DOUBLE)",
    "CAST('17' AS BIGINT) + i",
    "CAST(at AS DATE)",
    "CAST(day AS TIMESTAMP)",
    "CAST(utc AS TIMESTAMP)",
    "at + INTERVAL '90' SECOND - INTERVAL '1' DAY",
    "utc - INTERVAL '0.5' SECOND",
    "at > TIMESTAMP '2026-01-01 00:00:00' AND day < DATE '2026-01-01'",
    "DATE_FORMAT(at, 'yyyy-MM-dd''T''HH:mm:ss.SSS')",
    "DATE_FORMAT(utc, 'HH:mm')",
    "YEAR(at) * 10000 + MONTH(at) * 100 + DAYOFMONTH(at)",
    "EXTRACT(HOUR FROM utc) * 60 + MINUTE(utc)",
    "SECOND(at)",
    "i IS NOT DISTINCT FROM j",
    "x IS DISTINCT FROM y OR s IS NOT DISTINCT FROM NULLIF(t, t)",
]


def analysed(text: str) -> Expression:
    (node,) = parsed(f"SELECT {text} AS c")
    columns = {each.name: each for each in fields_of(RowSchema.of(Values))}
    return Analysis(SqlText(text), RelationScope(SqlText(text), (Source("t", columns),))).of(
        node.expressions[0].unalias()
    )


def _computed(expression: Expression) -> list[Any]:
    found = evaluation(expression)
    return [_plain(found(row)) for row in ROWS]


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return str(value.replace(tzinfo=None))
    return repr(value) if isinstance(value, float | Decimal) else value


def test_expressions_have_the_same_values_in_spark_as_in_python(spark_session: SparkSession) -> None:
    frame = spark_session.createDataFrame([msgspec.structs.astuple(row) for row in ROWS], RowSchema.of(Values).ddl)
    made = [analysed(text) for text in EXPRESSIONS]
    selected = frame.selectExpr(*(f"{spark_sql(each)} AS c{n}" for n, each in enumerate(made)))
    types = dict(selected.dtypes)
    assert {f"c{n}": each.type.spark for n, each in enumerate(made)} == types
    found: Sequence[Any] = selected.collect()
    for n, (text, each) in enumerate(zip(EXPRESSIONS, made, strict=True)):
        assert [_plain(row[n]) for row in found] == _computed(each), text


class Named(msgspec.Struct):
    i: int
    name: str


@pytest.mark.parametrize(("cache", "expected"), [(timedelta(days=1), 1), (None, 6)])
def test_joins_with_a_table_share_what_is_read_for_a_time(
    spark_session: SparkSession, cache: timedelta | None, expected: int
) -> None:
    reads: list[int] = []

    def read(spark: SparkSession) -> DataFrame:
        reads.append(1)
        return spark.createDataFrame([(7, "seven"), (8, "eight")], "i bigint, name string")

    env = StreamExecutionEnvironment()
    env.register_table("v", env.from_collection(ROWS, Values, uid="values"))
    env.register_lookup_table("named", read, rows=Named, cache=cache)
    clause = "FROM v JOIN named FOR SYSTEM_TIME AS OF PROCTIME() AS n ON"
    equal = env.sql_query(f"SELECT n.name {clause} v.i = n.i", uid="equal")
    next_one = env.sql_query(f"SELECT n.name, v.t {clause} v.i + 1 = n.i", uid="next")
    left = env.sql_query(
        f"SELECT v.t, n.name {clause.replace('JOIN', 'LEFT JOIN')} v.i = n.i AND v.j < 0 AND n.name <> v.t", uid="left"
    )
    for _batch in range(2):
        # The rows whose `i` is null, or not in the table, are kept.
        assert sorted(stateless_rows(left, {"values": ROWS}, spark_session)) == sorted(
            (row.t, "seven" if row.i == 7 else None) for row in ROWS
        )
        assert stateless_rows(equal, {"values": ROWS}, spark_session) == [("seven",)]
        assert stateless_rows(next_one, {"values": ROWS}, spark_session) == [("eight", ROWS[0].t)]
    assert len(reads) == expected


JOB = """
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Annotated

import msgspec

from stateflow import DeltaSink, FileSource, WatermarkStrategy, precision


class Timed(msgspec.Struct):
    auction: int
    # The name of a column of the look-up table.
    name: datetime


class Owner(msgspec.Struct):
    auction: int
    name: str


class Bid(msgspec.Struct):
    auction: int
    amount: Annotated[Decimal, precision(9, scale=2)]


def build(env):
    env.register_table("bid", env.from_source(FileSource(env.parameter("bids"), schema=Bid), uid="bids"))
    # A class that no worker can import, in the rows of a source and in a function.
    made = msgspec.defstruct("Auction", [("id", int), ("category", str, "y")])
    auctions = env.from_collection([made(0, "x"), made(1)], made, uid="auctions")
    env.register_table("auction", auctions.map(lambda row: made(row.id + 1, row.category), output=made))
    env.register_lookup_table(
        "owner",
        lambda spark: spark.createDataFrame([(1, "one", 7), (3, "three", 8)], "auction bigint, name string, more int"),
        rows=Owner,
        cache=timedelta(hours=1),
    )
    sinks = {"totals": ("auction",), "joined": (), "best": ("auction", "place"), "counts": ("n",)}
    sinks |= {"named": (), "owned": ("name",), "viewed": ()}
    timed = [Timed(n % 5, datetime(2026, 1, 1, minute=n)) for n in range(40)]
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("name")
    stream = env.from_collection(timed, Timed, uid="timed").assign_timestamps_and_watermarks(strategy)
    env.register_table("timed", stream)
    for name, keys in sinks.items():
        sink = DeltaSink(f"{env.parameter('tables')}/{name}", mode="upsert" if keys else "append", keys=keys)
        env.register_sink(name, sink)
    best = "SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY amount DESC) AS place FROM bid"
    env.sql(f'''
        INSERT INTO totals SELECT auction, COUNT(*) + 1 AS n, SUM(amount * 2) AS total FROM bid GROUP BY auction;
        INSERT INTO joined SELECT b.amount * 2 AS double, a.category FROM bid b JOIN auction a ON a.id = b.auction;
        INSERT INTO best SELECT auction, place, amount FROM ({best}) WHERE place <= 2;
        INSERT INTO counts SELECT n, COUNT(*) AS auctions FROM
            (SELECT auction, COUNT(*) AS n FROM bid WHERE amount > 1 GROUP BY auction) GROUP BY n;
        INSERT INTO named SELECT b.amount, b.auction AS `of`, o.name
            FROM bid b LEFT JOIN owner FOR SYSTEM_TIME AS OF PROCTIME() AS o ON b.auction + 1 = o.auction;
        INSERT INTO owned SELECT o.name, COUNT(*) AS n
            FROM bid b JOIN owner FOR SYSTEM_TIME AS OF PROCTIME() AS o
            ON b.auction = o.auction AND o.auction = b.auction AND b.amount > 2 AND o.name <> 'one' GROUP BY o.name;
        CREATE TEMPORARY VIEW v AS SELECT t.auction, o.name AS owner
            FROM (SELECT auction FROM timed) AS t
            JOIN owner FOR SYSTEM_TIME AS OF PROCTIME() AS o ON t.auction = o.auction;
        INSERT INTO viewed SELECT auction, owner FROM v
    ''')
"""


BIDS = [(n % 5, Decimal(n) / 4) for n in range(40)]


class SqlJob(DeltaJob):
    """The job, whose batches have all bids that were delivered."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, JOB, {"bids": pa.schema([("auction", pa.int64()), ("amount", pa.decimal128(9, 2))])})

    def check(self, bids: Sequence[tuple[int, Decimal]]) -> None:
        """Compares the tables with the results of all bids so far in plain Python."""
        names = {1: "one", 3: "three"}
        amounts = {key: sorted((amount for of, amount in bids if of == key), reverse=True) for key in range(5)}
        assert self.rows("totals") == Counter((key, len(of) + 1, 2 * sum(of)) for key, of in amounts.items())
        assert self.rows("joined") == Counter((2 * amount, " xy"[of]) for of, amount in bids if of in (1, 2))
        best = Counter((key, n, amount) for key, of in amounts.items() for n, amount in enumerate(of[:2], 1))
        assert self.rows("best") == best
        counts = Counter(sum(amount > 1 for amount in of) for of in amounts.values())
        assert self.rows("counts") == Counter((n, auctions) for n, auctions in counts.items() if n)
        assert self.rows("named") == Counter((amount, of, names.get(of + 1)) for of, amount in bids)
        assert self.rows("viewed") == Counter({(1, "one"): 8, (3, "three"): 8})
        assert self.rows("owned") == Counter([("three", sum(amount > 2 for amount in amounts[3]))])


@pytest.mark.slow
def test_statements_on_spark_continue_from_a_checkpoint_with_more_rows(tmp_path: Path) -> None:
    job = SqlJob(tmp_path)
    job.deliver("bids", BIDS[:24])
    first = job.run()
    job.check(BIDS[:24])
    job.deliver("bids", BIDS[24:])
    second = job.run()
    assert (second["started_from"], second["rows_in"]) == (first["checkpoint_id"], len(BIDS) - 24)
    job.check(BIDS)


@pytest.mark.slow
def test_windows_and_joins_of_event_time_on_spark_are_those_of_plain_python(tmp_path: Path) -> None:
    job = EventTimeJob(tmp_path)
    bids, rates = event_time_job.inputs(files=4)
    wanted = event_time_job.expected([*chain(*bids)], [*chain(*rates)])

    def run(first: int, **settings: object) -> dict[str, Any]:
        for number in range(first, first + 2):
            job.deliver("bid", bids[number])
            job.deliver("rate", rates[number])
        return job.run(source__max_files_per_batch=1, **settings)

    before = run(0, parallelism=2)
    assert all(emitted and emitted < wanted[name] for name, emitted in job.tables().items())
    after = run(2, parallelism=3, run__drain="yes")
    assert job.tables() == wanted
    assert (after["started_from"], after["stopped_because"]) == (before["checkpoint_id"], "drained")
    assert all(each["batches"] >= 2 and each["late_rows_dropped"] == 0 for each in (before, after))


NULL_KEYS_JOB = """
import msgspec

from stateflow import DeltaSink, FileSource


class Left(msgspec.Struct):
    k: str | None
    x: float | None
    v: int


class Right(msgspec.Struct):
    name: str | None
    w: int


def build(env):
    for name, schema in (("l", Left), ("r", Right)):
        env.register_table(name, env.from_source(FileSource(env.parameter(name), schema=schema), uid=name))
    for number, query in enumerate(env.parameter("queries").split(";")):
        changes = env.sql_query(query, uid=f"q{number}").as_append_only()
        changes.sink_to(DeltaSink(f"{env.parameter('tables')}/q{number}"), uid=f"out{number}")
"""
NULL_KEYS = [
    "SELECT k, x, COUNT(*) AS n, SUM(v) AS s FROM l GROUP BY k, x",
    "SELECT x, MIN(v) AS m FROM l GROUP BY x",
    "SELECT DISTINCT k FROM l",
    "SELECT k, v FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY v) AS n FROM l) WHERE n = 1",
    *(
        f"SELECT l.k, l.v, r.name, r.w FROM l {how} JOIN r ON {on}"
        for how in ("", "LEFT", "FULL")
        for on in ("l.k = r.name", "l.k IS NOT DISTINCT FROM r.name AND l.v < r.w")
    ),
]


@pytest.mark.slow
def test_groups_and_joins_of_null_keys_are_those_of_spark_sql(tmp_path: Path, spark_session: SparkSession) -> None:
    keys, floats = (None, "", "a", "b"), (None, 0.0, -0.0, NAN, 1.5)
    lefts = [(keys[n * 7 % 4], floats[n * 3 % 5], n) for n in range(40)]
    rights = [(keys[n * 5 % 4], n * 6) for n in range(9)]
    left = pa.schema([("k", pa.string()), ("x", pa.float64()), ("v", pa.int64())])
    right = pa.schema([("name", pa.string()), ("w", pa.int64())])
    job = DeltaJob(tmp_path, NULL_KEYS_JOB, {"l": left, "r": right})
    job.deliver("l", lefts)
    job.deliver("r", rights)
    job.run(job__queries=";".join(NULL_KEYS))
    spark_session.createDataFrame(lefts, "k string, x double, v bigint").createOrReplaceTempView("l")
    spark_session.createDataFrame(rights, "name string, w bigint").createOrReplaceTempView("r")
    for number, query in enumerate(NULL_KEYS):
        found: Counter[str] = Counter()
        table = deltalake.DeltaTable(str(tmp_path / "tables" / f"q{number}"))
        for row in pa.table(table.to_pyarrow_table()).to_pylist():
            kind = RowKind(row.pop("row_kind", RowKind.INSERT))
            found[_with_one_zero(row.values())] += -1 if kind.is_retraction else 1
        assert +found == Counter(_with_one_zero(row) for row in spark_session.sql(query).collect()), query


def _with_one_zero(row: Iterable[Any]) -> str:
    """Returns a row as text. Both zeros are one key: Spark emits 0.0, and an operator the one of its first row."""
    return repr(tuple(value + 0.0 if isinstance(value, float) else value for value in row))
