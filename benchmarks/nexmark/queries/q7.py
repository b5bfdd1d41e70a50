"""The highest bids of each ten seconds."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import msgspec
import numpy as np
import pyarrow as pa

from benchmarks.nexmark.tables import WATERMARKS, Tables
from stateflow import Context, DataStream, KeyedProcessFunction, OnTimerContext, RuntimeContext, ValueStateDescriptor

_SIZE_MS = 10_000


class Bid(msgspec.Struct):
    """A bid."""

    auction: int
    price: int
    bidder: int
    dateTime: datetime
    extra: str


class BidOfWindow(msgspec.Struct):
    """A bid, the end of a window in milliseconds, and whether the bid counts for its highest price."""

    auction: int
    price: int
    bidder: int
    dateTime: datetime
    extra: str
    end: int
    counts: bool


class Highest(msgspec.Struct):
    """The highest price of a window, and the bids that have at least this price."""

    price: int
    bids: list[Bid]


class HighestBids(KeyedProcessFunction[BidOfWindow, Bid]):
    """Emits the highest bids of a window at its end."""

    def open(self, ctx: RuntimeContext) -> None:
        self.highest = ctx.get_state(ValueStateDescriptor("highest", Highest))

    def process_element(self, row: BidOfWindow, ctx: Context) -> None:
        highest = self.highest.value() or Highest(0, [])
        if row.counts:
            highest.price = max(highest.price, row.price)
        bids = [*highest.bids, Bid(row.auction, row.price, row.bidder, row.dateTime, row.extra)]
        highest.bids = [bid for bid in bids if bid.price >= highest.price]
        self.highest.update(highest)
        ctx.timer_service().register_event_time_timer(row.end)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Bid]:
        highest = self.highest.value()
        assert highest is not None
        yield from (bid for bid in highest.bids if bid.price == highest.price)
        self.highest.clear()


def candidates(bids: pa.RecordBatch) -> pa.RecordBatch:
    """Returns for each window the bids of an Arrow batch that may be highest: no other bid of the batch is higher.

    A bid at the end of a window belongs to that window as well, but does not count for its highest price.
    """
    times = np.asarray(bids.column("dateTime").cast(pa.timestamp("ms")).cast(pa.int64()))
    prices = np.asarray(bids.column("price"))
    ends, window = np.unique(times // _SIZE_MS * _SIZE_MS + _SIZE_MS, return_inverse=True)
    highest = np.zeros(len(ends), np.int64)
    np.maximum.at(highest, window, prices)
    inside = _with_windows(bids, np.flatnonzero(prices == highest[window]), ends[window], counts=True)
    at_end = _with_windows(bids, np.flatnonzero(times % _SIZE_MS == 0), times, counts=False)
    return pa.concat_batches([inside, at_end])


def _with_windows(bids: pa.RecordBatch, rows: np.ndarray, ends: np.ndarray, counts: bool) -> pa.RecordBatch:
    some = bids.take(pa.array(rows))
    return some.append_column("end", pa.array(ends[rows])).append_column(
        "counts", pa.array([counts] * len(rows), pa.bool_())
    )


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    highest = tables.bids(Bid).transform_columns(candidates, output=BidOfWindow)
    windows = highest.assign_timestamps_and_watermarks(WATERMARKS).key_by("end")
    return windows.process(HighestBids(), output=Bid, uid="highest-bids")
