"""The newest bid of each item, and its three best ones, in Delta tables by key.

``job.folder`` has ``bids.jsonl`` and gets ``tables/``. With ``job.spark=yes`` Spark reads the files of ``in/``.
"""

from pathlib import Path

import msgspec

from stateflow import DeltaSink, RowKind, StreamExecutionEnvironment
from tests.support.jobs.sources import scripted


class Bid(msgspec.Struct):
    item: str
    at: int
    price: int
    number: int


class RankedBid(msgspec.Struct):
    place: int
    item: str
    at: int
    price: int
    number: int


class BidChange(msgspec.Struct):
    kind: RowKind
    item: str
    at: int
    price: int
    number: int


def build(env: StreamExecutionEnvironment) -> None:
    folder = Path(env.parameter("folder"))
    bids = env.from_source(scripted(env, Bid, "bids"), uid="bids").key_by("item")

    newest = bids.deduplicate(keep="last", order_by="at", uid="newest")
    newest.sink_to(DeltaSink(folder / "tables/newest", mode="upsert", keys="item"), uid="newest-table")

    order = [("price", "desc"), "at", "number"]
    best = bids.top_n(3, order_by=order, output=RankedBid, rank="place", uid="best")
    best.sink_to(DeltaSink(folder / "tables/best", mode="upsert", keys=("item", "place")), uid="best-table")

    changes = bids.top_n(3, order_by=order, output=BidChange, uid="changes")
    changes.sink_to(DeltaSink(folder / "tables/changes", mode="upsert", keys="number"), uid="changes-table")
