"""A job with statements over event time on Spark, and its tables by nested loops in plain Python."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from tests.sql.delta_job import DeltaJob

Rows = Counter[tuple[Any, ...]]

JOB = """
from datetime import datetime, timedelta

import msgspec

from stateflow import DeltaSink, FileSource, WatermarkStrategy


class Bid(msgspec.Struct):
    auction: int
    price: int
    at: datetime


class Rate(msgspec.Struct):
    auction: int
    rate: int
    at: datetime


WATERMARKS = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(seconds=5)).with_timestamp_column("at")


def build(env):
    for name, rows in {"bid": Bid, "rate": Rate}.items():
        stream = env.from_source(FileSource(env.parameter(name), schema=rows), uid=f"{name}s")
        env.register_table(name, stream.assign_timestamps_and_watermarks(WATERMARKS))
    for name in ("tumbled", "hopped", "sessions", "preceding", "matched", "valued"):
        env.register_sink(name, DeltaSink(f"{env.parameter('tables')}/{name}"))
    env.sql('''
        INSERT INTO tumbled SELECT auction, window_start, COUNT(*) AS n, SUM(price) AS total
            FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(at), INTERVAL '10' SECOND))
            GROUP BY auction, window_start, window_end;
        INSERT INTO hopped SELECT window_end, auction, MAX(price) AS highest
            FROM TABLE(HOP(TABLE bid, DESCRIPTOR(at), INTERVAL '4' SECOND, INTERVAL '12' SECOND))
            GROUP BY auction, window_start, window_end;
        INSERT INTO sessions SELECT auction, window_start, window_end, COUNT(*) AS n
            FROM TABLE(SESSION(TABLE bid PARTITION BY auction, DESCRIPTOR(at), INTERVAL '6' SECOND))
            GROUP BY auction, window_start, window_end;
        INSERT INTO preceding SELECT auction, at, price,
            COUNT(*) OVER (PARTITION BY auction ORDER BY at
                RANGE BETWEEN INTERVAL '8' SECOND PRECEDING AND CURRENT ROW) AS n,
            SUM(price) OVER (PARTITION BY auction ORDER BY at
                RANGE BETWEEN INTERVAL '8' SECOND PRECEDING AND CURRENT ROW) AS total
            FROM bid;
        INSERT INTO matched SELECT b.auction, b.price, r.rate FROM bid AS b
            JOIN rate AS r ON b.auction = r.auction AND b.at BETWEEN r.at - INTERVAL '1' SECOND
                                                                 AND r.at + INTERVAL '7' SECOND;
        INSERT INTO valued SELECT b.auction, b.at, b.price * r.rate AS value FROM bid AS b
            LEFT JOIN rate FOR SYSTEM_TIME AS OF b.at AS r ON b.auction = r.auction
    ''')
"""

START = datetime.fromisoformat("2026-01-01")
SECOND = timedelta(seconds=1)
LENGTH = 15
"""Seconds of event time of a file."""


class Bid(NamedTuple):
    auction: int
    price: int
    at: datetime


class Rate(NamedTuple):
    auction: int
    rate: int
    at: datetime


def _time(seconds: float, rng: random.Random) -> datetime:
    """A time that is up to four seconds before, so that rows of a file may precede those of the file before."""
    return START + seconds * SECOND - rng.randrange(40) * SECOND / 10


def inputs(files: int) -> tuple[list[list[Bid]], list[list[Rate]]]:
    """Returns the rows of each file, out of order by less than the watermarks allow."""
    rng = random.Random(11)
    bids = [
        [Bid(rng.randrange(7), rng.randrange(100), _time(first + n / 2, rng)) for n in range(2 * LENGTH)]
        for first in range(0, files * LENGTH, LENGTH)
    ]
    # An auction has one rate at a time.
    rates = [
        [Rate(n % 5, rng.randrange(2, 9), _time(n, rng)) for n in range(first, first + LENGTH)]
        for first in range(0, files * LENGTH, LENGTH)
    ]
    return bids, rates


def expected(bids: Sequence[Bid], rates: Sequence[Rate]) -> dict[str, Rows]:
    """Returns the rows of each table once all windows have ended."""
    return {
        "tumbled": Counter((*key, len(of), sum(of)) for key, of in _windows(bids, 10, 10).items()),
        "hopped": Counter(
            (start + 12 * SECOND, auction, max(of)) for (auction, start), of in _windows(bids, 12, 4).items()
        ),
        "sessions": _sessions(bids),
        "preceding": _preceding(bids),
        "matched": Counter(
            (bid.auction, bid.price, rate.rate)
            for bid in bids
            for rate in rates
            if bid.auction == rate.auction and -SECOND <= bid.at - rate.at <= 7 * SECOND
        ),
        "valued": Counter((bid.auction, bid.at, _value(bid, rates)) for bid in bids),
    }


def _windows(bids: Sequence[Bid], size: int, slide: int) -> dict[tuple[int, datetime], list[int]]:
    """Returns the prices by auction and start of the window."""
    found = defaultdict(list)
    for bid in bids:
        last = bid.at - (bid.at - datetime.fromisoformat("1970-01-01")) % (slide * SECOND)
        for number in range(size // slide):
            found[bid.auction, last - number * slide * SECOND].append(bid.price)
    return found


def _sessions(bids: Sequence[Bid]) -> Rows:
    gap, sessions = 6 * SECOND, list[list[Bid]]()
    for bid in sorted(bids, key=lambda bid: (bid.auction, bid.at)):
        before = sessions[-1][-1] if sessions else None
        if before is not None and before.auction == bid.auction and bid.at - before.at <= gap:
            sessions[-1].append(bid)
        else:
            sessions.append([bid])
    return Counter((of[0].auction, of[0].at, of[-1].at + gap, len(of)) for of in sessions)


def _preceding(bids: Sequence[Bid]) -> Rows:
    found = Rows()
    for bid in bids:
        of = [each.price for each in bids if each.auction == bid.auction and 0 <= (bid.at - each.at) / SECOND <= 8]
        found[bid.auction, bid.at, bid.price, len(of), sum(of)] += 1
    return found


def _value(bid: Bid, rates: Sequence[Rate]) -> int | None:
    """Returns the price at the newest rate of the auction; None before its first one."""
    valid = [rate for rate in rates if rate.auction == bid.auction and rate.at <= bid.at]
    return bid.price * max(valid, key=lambda rate: rate.at).rate if valid else None


class EventTimeJob(DeltaJob):
    """The job, whose batches have a file of bids and one of rates."""

    def __init__(self, folder: Path) -> None:
        at = ("at", pa.timestamp("us"))
        schemas = {
            name: pa.schema([("auction", pa.int64()), (value, pa.int64()), at])
            for name, value in {"bid": "price", "rate": "rate"}.items()
        }
        super().__init__(folder, JOB, schemas)

    def tables(self) -> dict[str, Rows]:
        """The rows of each table."""
        return {name: self.rows(name) for name in expected([], [])}
