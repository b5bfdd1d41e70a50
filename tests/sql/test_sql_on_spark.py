"""Expressions have the same values in Spark as in Python, and statements run on Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import msgspec
import pyarrow as pa
import pytest

from stateflow import RowKind, StreamExecutionEnvironment
from tests.sql import event_time_job
from tests.sql.delta_job import DeltaJob
from tests.sql.event_time_job import EventTimeJob
from tests.sql.test_functions import NAN, ROWS, Values
from tests.support.spark_harness import stateless_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


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
from datetime import datetime

import msgspec

from stateflow import DeltaSink, FileSource, WatermarkStrategy


class Left(msgspec.Struct):
    k: str | None
    x: float | None
    v: int
    t: datetime


class Right(msgspec.Struct):
    name: str | None
    w: int


def build(env):
    rows = env.from_source(FileSource(env.parameter("l"), schema=Left), uid="l")
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("t")
    env.register_table("l", rows.assign_timestamps_and_watermarks(strategy))
    env.register_table("r", env.from_source(FileSource(env.parameter("r"), schema=Right), uid="r"))
    for number, query in enumerate(env.parameter("queries").split(";")):
        changes = env.sql_query(query, uid=f"q{number}").as_append_only()
        changes.sink_to(DeltaSink(f"{env.parameter('tables')}/q{number}"), uid=f"out{number}")
"""
NULL_KEYS = [
    "SELECT k, x, COUNT(*) AS n, SUM(v) AS s FROM l GROUP BY k, x",
    "SELECT x, MIN(v) AS m FROM l GROUP BY x",
    "SELECT DISTINCT k FROM l",
    "SELECT k, v, SUM(v) OVER (PARTITION BY k ORDER BY t ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS s FROM l",
    "SELECT k, v FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY v) AS n FROM l) WHERE n = 1",
    *(
        f"SELECT l.k, l.v, r.name, r.w FROM l {how} JOIN r ON {on}"
        for how in ("", "LEFT", "FULL")
        for on in ("l.k = r.name", "l.k IS NOT DISTINCT FROM r.name AND l.v < r.w")
    ),
]
IN_WINDOWS = {
    f"SELECT k, window_start, SUM(v) AS s FROM TABLE({window}) GROUP BY k, window_start, window_end": (
        f"SELECT k, {of_spark}.start, SUM(v) AS s FROM l GROUP BY k, {of_spark}(t, '60 minutes')"
    )
    for window, of_spark in {
        "TUMBLE(TABLE l, DESCRIPTOR(t), INTERVAL '60' MINUTE)": "window",
        "SESSION(TABLE l PARTITION BY k, DESCRIPTOR(t), INTERVAL '60' MINUTE)": "session_window",
    }.items()
}
"""The queries, and the same ones as Spark has them."""


@pytest.mark.slow
def test_groups_windows_and_joins_of_null_keys_are_those_of_spark_sql(
    tmp_path: Path, spark_session: SparkSession
) -> None:
    keys, floats = (None, "", "a", "b"), (None, 0.0, -0.0, NAN, 1.5)
    start = datetime(2026, 1, 1)  # noqa: DTZ001 - a column without time zone
    # Between two rows of a key are 44 minutes, or 74.
    times = [start + timedelta(minutes=11 * n + 30 * (n // 10)) for n in range(40)]
    lefts = [(keys[n * 7 % 4], floats[n * 3 % 5], n, times[n]) for n in range(40)]
    rights = [(keys[n * 5 % 4], n * 6) for n in range(9)]
    left = pa.schema([("k", pa.string()), ("x", pa.float64()), ("v", pa.int64()), ("t", pa.timestamp("us"))])
    right = pa.schema([("name", pa.string()), ("w", pa.int64())])
    job = DeltaJob(tmp_path, NULL_KEYS_JOB, {"l": left, "r": right})
    job.deliver("l", lefts)
    job.deliver("r", rights)
    queries = {**{query: query for query in NULL_KEYS}, **IN_WINDOWS}
    job.run(job__queries=";".join(queries), run__drain="yes")
    spark_session.createDataFrame(lefts, "k string, x double, v bigint, t timestamp_ntz").createOrReplaceTempView("l")
    spark_session.createDataFrame(rights, "name string, w bigint").createOrReplaceTempView("r")
    for number, (query, of_spark) in enumerate(queries.items()):
        found: Counter[str] = Counter()
        table = deltalake.DeltaTable(str(tmp_path / "tables" / f"q{number}"))
        for row in pa.table(table.to_pyarrow_table()).to_pylist():
            kind = RowKind(row.pop("row_kind", RowKind.INSERT))
            found[_with_one_zero(row.values())] += -1 if kind.is_retraction else 1
        assert +found == Counter(_with_one_zero(row) for row in spark_session.sql(of_spark).collect()), query


def _with_one_zero(row: Iterable[Any]) -> str:
    """Returns a row as text. Both zeros are one key: Spark emits 0.0, and an operator the one of its first row."""
    return repr(tuple(value + 0.0 if isinstance(value, float) else value for value in row))
