"""Runs of SQL statements over registered tables, without Spark."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from stateflow import RowKind, StreamExecutionEnvironment, WatermarkStrategy
from stateflow.api.changelog import Changelog
from stateflow.environment import declare
from stateflow.testing.harness.job import CollectedRows
from tests.support.local_jobs import LocalJobs

START = datetime.fromisoformat("2026-01-01")


class Bid(msgspec.Struct, frozen=True):
    """A bid, in seconds of event time from `START`."""

    auction: int
    bidder: int
    price: int | None
    channel: str
    at: datetime


class Auction(msgspec.Struct, frozen=True):
    id: int
    seller: int
    category: str
    at: datetime


class Country(msgspec.Struct, frozen=True):
    """A row of a look-up table, which only Spark reads."""

    seller: int
    name: str


BIDS = [
    Bid(n * 7 % 5, n * 3 % 4, None if n % 11 == 5 else n * 13 % 17, "abc"[n * 5 % 3], START + timedelta(seconds=n))
    for n in range(60)
]
AUCTIONS = [Auction(n % 6, n % 3, "xy"[n % 2], START + timedelta(seconds=4 * n)) for n in range(12)]
TABLES: Mapping[str, Sequence[Any]] = {"bid": BIDS, "auction": AUCTIONS}
TUMBLE = "TABLE(TUMBLE(TABLE bid, DESCRIPTOR(at), INTERVAL '10' SECOND))"
IN_SQLITE = "-- In SQLite:"
SECONDS = "CAST(strftime('%s', {}) AS INTEGER) - CAST(strftime('%s', '2026-01-01') AS INTEGER)"
NAMES = {"TENS": TUMBLE, "SECONDS": SECONDS.format("at"), "SECONDS_SINCE": SECONDS.format("since")}
"""What the files of queries have in braces; the seconds are those since `START`."""
WATERMARKS = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("at")


def register(env: StreamExecutionEnvironment, tables: Mapping[str, Sequence[Any]] = TABLES) -> None:
    for name, rows in tables.items():
        stream = env.from_collection(rows, type(rows[0]), uid=f"{name}s")
        # The last column has the event time.
        *_, time = msgspec.structs.fields(type(rows[0]))
        env.register_table(name, stream.assign_timestamps_and_watermarks(WATERMARKS.with_timestamp_column(time.name)))


def queries(file: str) -> list[tuple[str, str]]:
    """The queries of a file, each with the one for SQLite, which is the same if the file has no other one."""
    lines = [line for line in data(file).splitlines() if line == IN_SQLITE or not line.startswith("--")]
    text = " ".join(" ".join(lines).split())
    for name, value in NAMES.items():
        text = text.replace(f"{{{name}}}", value)
    pairs = [statement.partition(IN_SQLITE) for statement in text.split(";")[:-1]]
    return [(query.strip(), (same or query).strip()) for query, _, same in pairs]


def data(file: str) -> str:
    return (Path(__file__).parent / "data" / file).read_text(encoding="utf-8")


def declared(declare_statements: Callable[[StreamExecutionEnvironment], object]) -> StreamExecutionEnvironment:
    """Returns the environment after `build`, without a run."""

    def build(env: StreamExecutionEnvironment) -> None:
        register(env)
        env.register_lookup_table("country", lambda spark: spark.table("country"), rows=Country)
        env.register_sink("out", CollectedRows())
        declare_statements(env)

    env, _ = declare(build, "job", ())
    return env


class Rows:
    """The rows that a query emits, with times as text."""

    def __init__(
        self, folder: Path, query: str, *, tables: Mapping[str, Sequence[Any]] = TABLES, **settings: Any
    ) -> None:
        jobs = LocalJobs(folder, **settings)
        self.changelog: Changelog | None = None

        def build(env: StreamExecutionEnvironment) -> None:
            register(
                env, {name: rows for name, rows in tables.items() if re.search(rf"(FROM|JOIN|TABLE) {name}\b", query)}
            )
            stream = env.sql_query(query, uid="query")
            self.changelog = stream._changelog
            stream.as_append_only().sink_to(jobs.sink("out"), uid="out")

        jobs.run(build)
        self.rows = jobs.sink("out").rows()

    @property
    def final(self) -> list[tuple[Any, ...]]:
        """The rows that a sink keeps after all changes, without their kinds."""
        changelog = self.changelog or Changelog()
        kept: dict[Any, Any] = {}
        every: list[tuple[Any, ...]] = []
        for row in self.rows:
            is_retracted = bool(changelog.row_kind) and RowKind(row.pop(changelog.row_kind)).is_retraction
            values, key = tuple(row.values()), tuple(row[name] for name in changelog.keys)
            if is_retracted and key:
                assert kept.pop(key) == values
            elif is_retracted:
                every.remove(values)
            elif key:
                kept[key] = values
            else:
                every.append(values)
        return sorted([*kept.values(), *every], key=repr)
