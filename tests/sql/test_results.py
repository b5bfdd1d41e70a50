"""Results of queries are those of SQLite over all rows, whatever the batches and the parallelism."""

from __future__ import annotations

import sqlite3
import statistics
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateflow import StreamExecutionEnvironment, precision
from stateflow.api.changelog import Changelog
from stateflow.errors import StateflowError
from stateflow.testing import KeyedHarness, KeyedInput, sql_query
from tests.sql.sql_jobs import BIDS, START, TABLES, TUMBLE, WATERMARKS, Auction, Bid, Rows, declared, queries
from tests.support.local_jobs import LocalJobs

NAN = float("nan")


def expected(query: str, tables: Mapping[str, Sequence[Any]] = TABLES) -> list[tuple[Any, ...]]:
    """Returns the rows that SQLite finds."""
    database = sqlite3.connect(":memory:")
    for name, rows in tables.items():
        fields = [field.name for field in msgspec.structs.fields(type(rows[0]))]
        database.execute(f"CREATE TABLE {name} ({', '.join(fields)})")
        values = [tuple(_plain(value) for value in msgspec.structs.astuple(row)) for row in rows]
        database.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(fields))})", values)
    return database.execute(query).fetchall()


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, datetime) else value


def _comparable(rows: list[tuple[Any, ...]], *, in_seconds: bool) -> list[tuple[Any, ...]]:
    def plain(value: Any) -> Any:
        if in_seconds and isinstance(value, str) and value[:4] == "2026":
            return int((datetime.fromisoformat(value) - START).total_seconds())
        return value

    return sorted((tuple(plain(value) for value in row) for row in rows), key=repr)


@pytest.mark.parametrize(("query", "same"), queries("queries.sql"))
def test_results_are_those_of_sqlite(tmp_path: Path, query: str, same: str) -> None:
    found = Rows(tmp_path, query, parallelism=2, source__max_rows_per_batch=7)
    in_seconds = "strftime" in same
    assert _comparable(found.final, in_seconds=in_seconds) == _comparable(expected(same), in_seconds=in_seconds)


TIED = [Bid(1, n // 2 % 2, n, name, START) for n, name in enumerate(["first", "second", "third", "last"])]
LAST = "(SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY at DESC) AS n FROM bid)"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (f"SELECT auction, channel FROM {LAST} WHERE n = 1", (1, "last")),
        (f"SELECT auction, channel FROM {LAST} WHERE n = 1 AND bidder = 1", (1, "last")),
        (f"SELECT channel, COUNT(*) AS c FROM {LAST} WHERE n = 1 GROUP BY channel", ("last", 1)),
        (f"SELECT auction, channel FROM {LAST.replace(' DESC', '')} WHERE n = 1 AND bidder = 0", (1, "first")),
    ],
)
@pytest.mark.parametrize("size", [1, 9])
def test_of_rows_with_equal_times_the_last_one_that_arrives_is_the_last(
    tmp_path: Path, query: str, expected: tuple[Any, ...], size: int
) -> None:
    assert Rows(tmp_path, query, tables={"bid": TIED}, source__max_rows_per_batch=size).final == [expected]


@pytest.mark.parametrize("kind", ["TUMBLE", "SESSION"])
@pytest.mark.parametrize("size", [1, 2, 9])
def test_first_and_last_value_of_windows_are_by_event_time(tmp_path: Path, kind: str, size: int) -> None:
    bids = [Bid(1, n, n, "x", START + timedelta(seconds=at)) for n, at in enumerate([6, 4, 4, 6, 5])]
    query = f"SELECT auction, FIRST_VALUE(price) AS f, LAST_VALUE(price) AS l FROM {TUMBLE.replace('TUMBLE', kind)} "
    query += "GROUP BY auction, window_start, window_end"
    assert Rows(tmp_path, query, tables={"bid": bids}, source__max_rows_per_batch=size).final == [(1, 1, 3)]


@pytest.mark.parametrize(
    ("micros", "condition", "is_pair"),
    [
        ((900, 100), "a.at = b.at", False),
        ((900, 900), "a.at = b.at", True),
        ((900, 100), "b.at BETWEEN a.at AND a.at + INTERVAL '1' HOUR", False),
        ((100, 900), "b.at BETWEEN a.at AND a.at + INTERVAL '1' HOUR", True),
        ((900, 100), "b.at < a.at AND b.at > a.at - INTERVAL '1' HOUR", True),
        ((100, 100), "b.at < a.at AND b.at > a.at - INTERVAL '1' HOUR", False),
        ((100, 2_600), "a.at > b.at - INTERVAL '0.0025' SECOND AND a.at <= b.at", False),
        ((600, 3_099), "a.at > b.at - INTERVAL '0.0025' SECOND AND a.at <= b.at", True),
        ((0, 2_500), "b.at - INTERVAL '0.0025' SECOND <= a.at AND a.at < b.at", True),
    ],
)
def test_an_interval_join_compares_microseconds(
    tmp_path: Path, micros: tuple[int, int], condition: str, is_pair: bool
) -> None:
    times = [START + timedelta(microseconds=each) for each in micros]
    tables: dict[str, list[Any]] = {"auction": [Auction(1, 1, "x", times[0])], "bid": [Bid(1, 1, 1, "a", times[1])]}
    query = f"SELECT a.id, b.at AS time FROM auction AS a JOIN bid AS b ON a.id = b.auction AND {condition}"
    assert [row[0] for row in Rows(tmp_path, query, tables=tables).final] == [1] * is_pair


@pytest.mark.parametrize(
    "query",
    [
        "SELECT b.bidder, a.seller FROM bid AS b JOIN auction AS a ON b.auction = a.id"
        " AND a.at BETWEEN b.at AND b.at + INTERVAL '200' SECOND WHERE b.price > 1",
        "SELECT b.bidder, a.seller FROM (SELECT * FROM bid WHERE price > 1) AS b JOIN auction AS a"
        " ON b.auction = a.id AND a.at BETWEEN b.at AND b.at + INTERVAL '200' SECOND",
        "SELECT bidder, COUNT(*) AS n FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(at), INTERVAL '40' SECOND))"
        " WHERE price > 1 GROUP BY bidder, window_start, window_end",
        "SELECT a.seller, b.bidder FROM (SELECT * FROM auction WHERE seller <> 1) AS a LEFT JOIN bid"
        " FOR SYSTEM_TIME AS OF a.at AS b ON a.id = b.auction",
    ],
    ids=["where-after", "where-before", "windows", "temporal"],
)
def test_rows_that_where_drops_advance_the_watermark(tmp_path: Path, query: str) -> None:
    def at(*seconds: int) -> list[datetime]:
        return [START + timedelta(seconds=each) for each in seconds]

    # While the second bid is dropped, auctions are far ahead: it holds the watermark back for the third one.
    prices = zip([9, 1, 9, 9], at(0, 10, 20, 30), strict=True)
    bids = [Bid(1, n, price, "a", time) for n, (price, time) in enumerate(prices)]
    auctions = [Auction(1, n, "x", time) for n, time in enumerate(at(100, 150, 151, 152, 153))]
    tables: dict[str, list[Any]] = {"bid": bids, "auction": auctions}
    one, many = (
        Rows(tmp_path / f"{rows}", query, tables=tables, source__max_rows_per_batch=rows).final for rows in (1, 100)
    )
    assert one == many and len(one) >= 2


@pytest.mark.parametrize(
    ("size", "results", "late"),
    [
        # Seconds of event time 1, 15, 4, 31, 5, 2: row 4 corrects its window for ten seconds, 5 and 2 are too late.
        (1, [("00", 1), ("00", 2), ("10", 1), ("30", 1)], [("05", "a"), ("02", "a")]),
        (6, [("00", 4), ("10", 1), ("30", 1)], []),
    ],
)
def test_late_rows_correct_their_window_for_a_time_and_then_go_to_a_table(
    tmp_path: Path, size: int, results: list[tuple[str, int]], late: list[tuple[str, str]]
) -> None:
    rows = [Bid(1, 1, 5, "a", START + timedelta(seconds=at)) for at in (1, 15, 4, 31, 5, 2)]
    jobs = LocalJobs(tmp_path, source__max_rows_per_batch=size)
    query = f"SELECT auction + 1 AS k, window_start, COUNT(*) AS n FROM {TUMBLE} WHERE price > 4 GROUP BY auction + 1, "

    def build(env: StreamExecutionEnvironment) -> None:
        bids = env.from_collection(rows, Bid, uid="bids").assign_timestamps_and_watermarks(WATERMARKS)
        env.register_table("bid", bids)
        env.register_sink("late", jobs.sink("late"))
        lateness = timedelta(seconds=10)
        made = env.sql_query(
            f"{query} window_start, window_end", uid="counts", allowed_lateness=lateness, late_rows="late_bid"
        )
        assert made._changelog == Changelog(("k", "window_start"))
        made.as_append_only().sink_to(jobs.sink("out"), uid="out")
        env.sql("INSERT INTO late SELECT at, channel FROM late_bid WHERE price < 9")

    jobs.run(build)
    assert [(row["window_start"][-2:], row["n"]) for row in jobs.sink("out").rows()] == results
    assert [(row["at"][-2:], row["channel"]) for row in jobs.sink("late").rows()] == late


def test_a_statement_with_lateness_is_tested_in_the_harness() -> None:
    query = f"SELECT auction, window_end, COUNT(*) AS n FROM {TUMBLE} GROUP BY auction, window_start, window_end"
    declared_query = sql_query(query, "bid", allowed_lateness=timedelta(seconds=10))
    with KeyedHarness(declared_query, KeyedInput(Bid, event_time="at", out_of_orderness=timedelta())) as h:
        for at in (1, 15, 4, 31, 5):
            h.push(Bid(1, 1, 5, "a", START + timedelta(seconds=at)))
        assert [(row.window_end.second, row.n) for row in h.output] == [(10, 1), (10, 2), (20, 1)]


def test_rows_that_do_not_pass_extend_no_session(tmp_path: Path) -> None:
    """As in Flink, whose planner moves the condition before the assignment to windows."""
    times = [START + timedelta(seconds=each) for each in (0, 4, 8)]
    tables = {"bid": [Bid(1, 1, price, "a", at) for price, at in zip([9, 1, 9], times, strict=True)]}
    query = (
        "SELECT window_start AS w, COUNT(*) AS n FROM TABLE(SESSION(TABLE bid PARTITION BY auction, DESCRIPTOR(at), "
        "INTERVAL '6' SECOND)) {} GROUP BY auction, window_start, window_end"
    )
    assert Rows(tmp_path / "all", query.format(""), tables=tables).final == [(str(START), 3)]
    found = Rows(tmp_path / "some", query.format("WHERE price > 1"), tables=tables).final
    assert found == [(str(START), 1), (str(times[2]), 1)]


@pytest.mark.parametrize(("columns", "names"), [("auction", ["auction"]), ("at, auction", ["at", "auction"])])
def test_distinct_rows_have_the_columns_of_the_query(tmp_path: Path, columns: str, names: list[str]) -> None:
    """Over a stream with a function in Python, which passes the event time on."""
    jobs = LocalJobs(tmp_path)

    def build(env: StreamExecutionEnvironment) -> None:
        stream = env.from_collection(BIDS, Bid, uid="bids").assign_timestamps_and_watermarks(WATERMARKS)
        env.register_table("bid", stream.filter(lambda bid: bid.bidder > 0))
        env.sql_query(f"SELECT DISTINCT {columns} FROM bid", uid="query").sink_to(jobs.sink("out"), uid="out")

    jobs.run(build)
    rows = jobs.sink("out").rows()
    assert [[*row] for row in rows] == [names] * len(rows)
    same = expected(f"SELECT DISTINCT {columns} FROM bid WHERE bidder > 0")
    assert sorted(tuple(row.values()) for row in rows) == sorted(same)


@pytest.mark.parametrize(
    ("digits", "made"), [((32, 8, 5), (30, 5)), ((32, 8, 10), (32, 8)), ((10, 10, 2), (3, 2)), ((9, 3, -2), (7, 0))]
)
def test_a_rounded_decimal_has_the_digits_of_flink(digits: tuple[int, int, int], made: tuple[int, int]) -> None:
    precision, scale, places = digits
    text = f"SELECT ROUND(CAST(price AS DECIMAL({precision}, {scale})), {places}) AS v FROM bid"
    found: list[str] = []

    def build(env: StreamExecutionEnvironment) -> None:
        found.append(env.sql_query(text, uid="query").schema.column("v").spark_type)

    declared(build)
    assert found == [f"decimal({made[0]},{made[1]})"]


@pytest.mark.parametrize("text", ["CAST('32768' AS SMALLINT)", "TIMESTAMPADD(YEAR, 7974, at)"])
def test_a_value_that_its_type_does_not_have_is_an_error_that_is_not_retried(tmp_path: Path, text: str) -> None:
    tables = {"bid": [Bid(7, 1, 1246, "abcdef", START)]}
    with pytest.raises(StateflowError) as caught:
        Rows(tmp_path, f"SELECT {text} AS v FROM bid", tables=tables)
    assert "OverflowError" in str(caught.value) and not caught.value.retryable


bids = st.lists(
    st.builds(
        Bid,
        auction=st.integers(0, 2),
        bidder=st.integers(0, 2),
        price=st.none() | st.integers(-5, 5),
        channel=st.sampled_from("ab"),
        at=st.just(START),
    ),
    min_size=1,
    max_size=25,
)


class Left(msgspec.Struct, frozen=True):
    k: str | None
    i: int | None
    v: int
    at: datetime


class Right(msgspec.Struct, frozen=True):
    name: str | None
    number: int | None
    w: int
    since: datetime


def _at(row: tuple[int, Any]) -> Any:
    number, made = row
    return made(START + timedelta(seconds=number))


keys, numbers = st.none() | st.sampled_from(["", "a"]), st.none() | st.integers(0, 1)
lefts = st.lists(st.builds(lambda k, i, v: lambda at: Left(k, i, v, at), keys, numbers, st.integers(0, 3)), min_size=1)
rights = st.lists(
    st.builds(lambda k, i, w: lambda at: Right(k, i, w, at), keys, numbers, st.integers(0, 3)), min_size=1
)


def null_tables(left: list[Any], right: list[Any]) -> dict[str, list[Any]]:
    return {"l": [*map(_at, enumerate(left))], "r": [*map(_at, enumerate(right))]}


@pytest.mark.parametrize(("query", "same"), queries("queries_of_null_keys.sql"))
@given(left=lefts, right=rights, size=st.integers(1, 9), parallelism=st.integers(1, 3))
@settings(max_examples=3, deadline=None)
def test_null_is_a_group_of_its_own_and_joins_nothing(
    tmp_path_factory: pytest.TempPathFactory,
    query: str,
    same: str,
    left: list[Any],
    right: list[Any],
    size: int,
    parallelism: int,
) -> None:
    tables, in_seconds = null_tables(left, right), "strftime" in same
    folder = tmp_path_factory.mktemp("job")
    found = Rows(folder, query, tables=tables, parallelism=parallelism, source__max_rows_per_batch=size)
    assert _comparable(found.final, in_seconds=in_seconds) == _comparable(expected(same, tables), in_seconds=in_seconds)


class Amount(msgspec.Struct, frozen=True):
    key: str
    d: Annotated[Decimal, precision(9, scale=2)] | None
    x: float | None
    at: datetime


CENTS = Decimal("0.00")
AMOUNTS = [
    Amount("ab"[n % 2], None if n % 5 == 4 else Decimal(n) / 4, [0.0, -0.0, 1.5, None, NAN][n % 5], START)
    for n in range(20)
]


def _amounts(query: str, folder: Path) -> list[tuple[Any, ...]]:
    return Rows(folder, query, tables={"amount": AMOUNTS}).final


def test_decimals_are_added_and_averaged_exactly_also_over_corrected_rows(tmp_path: Path) -> None:
    expected = []
    for key in "ab":
        own = [each.d for each in AMOUNTS if each.key == key and each.d is not None]
        mean = (sum(own, CENTS) / len(own)).quantize(Decimal("0.000001"), ROUND_HALF_UP)
        expected.append((key, str(sum(own, CENTS)), str(mean), len(set(own))))
    query = "SELECT key, SUM(d) AS s, AVG(d) AS a, COUNT(DISTINCT d) AS n FROM amount GROUP BY key"
    assert _amounts(query, tmp_path / "sums") == expected
    totals = "SELECT key, SUM(d) AS s, COUNT(*) AS n FROM amount GROUP BY key"
    found = _amounts(f"SELECT n, SUM(s) AS t, AVG(s) AS a FROM ({totals}) GROUP BY n", tmp_path / "totals")
    total = sum((each.d for each in AMOUNTS if each.d is not None), CENTS)
    assert found == [(10, str(total), str((total / 2).quantize(Decimal("0.000001"))))]
    by_sign = f"SELECT s > 0 AS positive, COUNT(DISTINCT s) AS n, MAX(s) AS m FROM ({totals}) GROUP BY s > 0"
    sums = {key: sum((each.d for each in AMOUNTS if each.key == key and each.d is not None), CENTS) for key in "ab"}
    wanted = {
        positive: (len(set(own)), str(max(own)))
        for positive in (False, True)
        if (own := [value for value in sums.values() if (value > 0) == positive])
    }
    assert {row[0]: row[1:] for row in _amounts(by_sign, tmp_path / "signs")} == wanted


def test_deviations_are_those_of_pythons_statistics_and_distinct_doubles_are_values(tmp_path: Path) -> None:
    query = """SELECT key, STDDEV_POP(d2) AS a, STDDEV_SAMP(d2) AS b, STDDEV(d2) AS c, VAR_POP(d2) AS d,
               VAR_SAMP(d) AS e, COUNT(DISTINCT x) AS n
               FROM (SELECT key, CAST(d AS DOUBLE) AS d2, d, x FROM amount) GROUP BY key"""
    for key, *found in _amounts(query, tmp_path):
        own = [float(each.d) for each in AMOUNTS if each.key == key and each.d is not None]
        sample = statistics.stdev(own)
        expected = [statistics.pstdev(own), sample, sample, statistics.pvariance(own), sample**2, 3]
        assert found == pytest.approx(expected)
    assert [
        row[1:] for row in _amounts("SELECT d, VAR_POP(x) AS v FROM amount WHERE d = 0.5 GROUP BY d", tmp_path / "one")
    ] == [(0.0,)]


def test_deviations_follow_retracted_values(tmp_path: Path) -> None:
    sums: dict[int, int] = {}
    for bid in BIDS:
        sums[bid.auction] = sums.get(bid.auction, 0) + (bid.price or 0)
    totals = "SELECT auction, MOD(auction, 2) AS odd, SUM(price) AS total FROM bid GROUP BY auction"
    items = "STDDEV(total) AS a, STDDEV_POP(total) AS b, VAR_SAMP(total) AS c, VAR_POP(total) AS d"
    rows = Rows(tmp_path, f"SELECT odd, {items} FROM ({totals}) GROUP BY odd", source__max_rows_per_batch=7).final
    made = (statistics.stdev, statistics.pstdev, statistics.variance, statistics.pvariance)
    for odd, *values in rows:
        own = [float(total) for auction, total in sums.items() if auction % 2 == odd]
        assert values == pytest.approx([of(own) for of in made])
    assert len(rows) == 2
