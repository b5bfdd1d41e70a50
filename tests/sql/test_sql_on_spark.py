"""Expressions have the same values in Spark as in Python, and statements run on Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest
from pyarrow import parquet

from stateflow import StreamExecutionEnvironment
from tests.sql.test_functions import ROWS, Values
from tests.support import delta_tables
from tests.support.job_fixture import JobFixture
from tests.support.processes import spawn
from tests.support.spark_harness import stateless_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


class Named(msgspec.Struct):
    i: int
    name: str


@pytest.mark.parametrize(("cache", "expected"), [(timedelta(days=1), 1), (None, 6)])
@pytest.mark.slow(reason="Spark reads a table for each join")
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


class SqlJob(JobFixture):
    """The job, whose batches have all bids that were delivered."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, {"job__bids": folder / "bids", "job__tables": folder / "tables"}, launcher=spawn)
        (folder / "bids").mkdir()
        (folder / "job.py").write_text(JOB)

    @property
    def job_file(self) -> str:
        return str(self.folder / "job.py")

    def deliver(self, bids: Sequence[tuple[int, Decimal]]) -> None:
        schema = pa.schema([("auction", pa.int64()), ("amount", pa.decimal128(9, 2))])
        rows = [dict(zip(schema.names, bid, strict=True)) for bid in bids]
        parquet.write_table(pa.Table.from_pylist(rows, schema), self.folder / "bids" / f"{len(bids)}.parquet")

    def rows(self, name: str) -> Counter[tuple[Any, ...]]:
        return Counter(tuple(row.values()) for row in delta_tables.rows(self.table(name)))

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


@pytest.mark.matrix
@pytest.mark.slow(reason="Spark computes each query")
def test_statements_on_spark_continue_from_a_checkpoint_with_more_rows(tmp_path: Path) -> None:
    job = SqlJob(tmp_path / "job")
    job.deliver(BIDS[:24])
    first = job.finish().result
    job.check(BIDS[:24])
    job.deliver(BIDS[24:])
    second = job.finish().result
    assert (second["start_checkpoint_id"], second["rows_in"]) == (first["checkpoint_id"], len(BIDS) - 24)
    job.check(BIDS)
