"""Bids with a number of their channel, which is known or part of the URL."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.nexmark.tables import Tables
from stateflow import DataStream

_KNOWN = pa.array(["apple", "google", "facebook", "baidu"])
_CHANNEL_ID = "(?:&|^)channel_id=(?P<id>[^&]*)"


class Bid(msgspec.Struct):
    """What the query needs of a bid."""

    auction: int
    bidder: int
    price: int
    channel: str
    url: str


class BidOfChannel(msgspec.Struct):
    """A bid with the number of its channel."""

    auction: int
    bidder: int
    price: int
    channel: str
    channel_id: str


def with_channel_id(bids: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the bids whose channel has a number, with this number."""
    known = pc.index_in(pc.utf8_lower(bids.column("channel")), _KNOWN)
    # The pattern is evaluated only where it is needed.
    url = pc.if_else(known.is_null(), bids.column("url"), None)
    of_url = pc.struct_field(pc.extract_regex(url, _CHANNEL_ID), "id")
    channel_id = pc.coalesce(known.cast(pa.string()), of_url)
    found = bids.drop_columns(["url"]).append_column("channel_id", channel_id)
    return found.filter(channel_id.is_valid())


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    return tables.bids(Bid).transform_columns(with_channel_id, output=BidOfChannel)
