"""Bids with a number of their channel, which is known or part of the URL."""

from __future__ import annotations

import msgspec

from benchmarks.nexmark.tables import Tables, select
from stateflow.api.streams.data_stream import DataStream

_KNOWN = "lower(channel) IN ('apple', 'google', 'facebook', 'baidu')"
_CHANNEL_ID = r"""
    CASE lower(channel)
        WHEN 'apple' THEN '0'
        WHEN 'google' THEN '1'
        WHEN 'facebook' THEN '2'
        WHEN 'baidu' THEN '3'
        ELSE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2)
    END
"""
# Cheaper than to evaluate the pattern a second time.
_HAS_CHANNEL_ID = "contains(url, '&channel_id=') OR startswith(url, 'channel_id=')"


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


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    columns = ["auction", "bidder", "price", "channel", f"{_CHANNEL_ID} AS channel_id"]
    return select(tables.bids(Bid), BidOfChannel, columns, where=f"{_KNOWN} OR {_HAS_CHANNEL_ID}")
