"""Nexmark's events as Arrow tables. Any slice of the stream can be generated, and is equal wherever it is generated."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, auto

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.nexmark import rules, texts
from benchmarks.nexmark.randomness import Draws, Numbers
from benchmarks.nexmark.rules import Stream

_Mask = npt.NDArray[np.bool_]
_OUT_OF_ORDER_STEP = 953

SCHEMA = pa.schema(
    [
        pa.field("event_type", pa.int32(), nullable=False),
        pa.field("dateTime", pa.timestamp("ms"), nullable=False),
        pa.field("extra", pa.string(), nullable=False),
        *(pa.field(f"person_{name}", pa.int64() if name == "id" else pa.string()) for name in (
            *("id", "name", "emailAddress", "creditCard", "city", "state"),
        )),
        pa.field("auction_id", pa.int64()),
        pa.field("auction_itemName", pa.string()),
        pa.field("auction_description", pa.string()),
        pa.field("auction_initialBid", pa.int64()),
        pa.field("auction_reserve", pa.int64()),
        pa.field("auction_expires", pa.timestamp("ms")),
        pa.field("auction_seller", pa.int64()),
        pa.field("auction_category", pa.int64()),
        pa.field("bid_auction", pa.int64()),
        pa.field("bid_bidder", pa.int64()),
        pa.field("bid_price", pa.int64()),
        pa.field("bid_channel", pa.string()),
        pa.field("bid_url", pa.string()),
    ]
)  # fmt: skip
"""One table: what all events have, and the columns of each type, which are null in the events of another."""


class _Draw(IntEnum):
    """The random decisions about an event. Texts take two draws each."""

    EXTRA = 0
    EXTRA_LENGTH = auto()
    FIRST_NAME = auto()
    LAST_NAME = auto()
    EMAIL_USER = auto()
    EMAIL_USER_LENGTH = auto()
    EMAIL_HOST = auto()
    EMAIL_HOST_LENGTH = auto()
    CARD = auto()
    CARD_1 = auto()
    CARD_2 = auto()
    CARD_3 = auto()
    CITY = auto()
    STATE = auto()
    ITEM_NAME = auto()
    ITEM_NAME_LENGTH = auto()
    DESCRIPTION = auto()
    DESCRIPTION_LENGTH = auto()
    INITIAL_BID = auto()
    RESERVE = auto()
    AUCTION_LENGTH = auto()
    HOT_SELLER = auto()
    SELLER = auto()
    CATEGORY = auto()
    HOT_AUCTION = auto()
    AUCTION = auto()
    HOT_BIDDER = auto()
    BIDDER = auto()
    PRICE = auto()
    HOT_CHANNEL = auto()
    CHANNEL = auto()


@dataclass(frozen=True)
class _Events:
    """Some events of one type: their numbers, times, and random values."""

    stream: Stream
    numbers: Numbers
    times: Numbers
    draws: Draws


@dataclass(frozen=True)
class _Part:
    """The columns of the events of one type, and how long their column `extra` is."""

    columns: dict[str, pa.Array]
    extra: Numbers


def generate(stream: Stream, first: int, count: int) -> pa.Table:
    """Returns events of the stream from position `first` on, in order, with `SCHEMA`."""
    numbers = _numbers(stream, np.arange(first, first + count, dtype=np.int64))
    offsets = numbers % rules.GROUP
    masks = {
        _persons: offsets < rules.PERSONS,
        _auctions: (offsets >= rules.PERSONS) & (offsets < rules.PERSONS + rules.AUCTIONS),
        _bids: offsets >= rules.PERSONS + rules.AUCTIONS,
    }
    columns: dict[str, pa.Array] = {}
    types = np.zeros(count, np.int32)
    extra = np.zeros(count, np.int64)
    for event_type, (events_of, mask) in enumerate(masks.items()):
        some = numbers[mask]
        part = events_of(_Events(stream, some, times_ms(stream, some), Draws(stream.seed, some)))
        columns |= {name: _spread(array, mask) for name, array in part.columns.items()}
        types[mask], extra[mask] = event_type, part.extra
    columns["event_type"] = pa.array(types)
    columns["dateTime"] = _timestamps(times_ms(stream, numbers))
    columns["extra"] = texts.letters(stream.seed).cut(texts.spans(Draws(stream.seed, numbers), _Draw.EXTRA, extra))
    return pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def times_ms(stream: Stream, numbers: Numbers) -> Numbers:
    """Returns the event times of event numbers, in milliseconds since the epoch."""
    delay_us = 1_000_000.0 / stream.events_per_second
    return rules.BASE_TIME_MS + (numbers * delay_us).astype(np.int64) // 1000


def last_person(numbers: Numbers) -> Numbers:
    """Returns for event numbers the last person generated until then, counted from 0."""
    groups, offsets = np.divmod(numbers, rules.GROUP)
    persons: Numbers = groups * rules.PERSONS + np.minimum(offsets, rules.PERSONS - 1)
    return persons


def last_auction(numbers: Numbers) -> Numbers:
    """Returns for event numbers of auctions and bids the last auction generated until then, counted from 0."""
    groups, offsets = np.divmod(numbers, rules.GROUP)
    auctions: Numbers = groups * rules.AUCTIONS + np.minimum(offsets - rules.PERSONS, rules.AUCTIONS - 1)
    return auctions


def _numbers(stream: Stream, positions: Numbers) -> Numbers:
    group = stream.out_of_order_group
    return positions // group * group + positions * _OUT_OF_ORDER_STEP % group


def _persons(events: _Events) -> _Part:
    draws, seed = events.draws, events.stream.seed
    names = pa.array([f"{first} {last}" for first in rules.FIRST_NAMES for last in rules.LAST_NAMES])
    name = draws.below(_Draw.FIRST_NAME, len(rules.FIRST_NAMES)) * len(rules.LAST_NAMES)
    name += draws.below(_Draw.LAST_NAME, len(rules.LAST_NAMES))
    words = texts.words(seed)
    user = words.cut(words.trimmed(texts.short_spans(draws, _Draw.EMAIL_USER, 7)))
    host = words.cut(words.trimmed(texts.short_spans(draws, _Draw.EMAIL_HOST, 5)))
    fours = pa.array([f"{number:04d}" for number in range(10_000)])
    card = [fours.take(pa.array(draws.below(_Draw.CARD + n, len(fours)))) for n in range(4)]
    text = {
        "person_name": names.take(pa.array(name)),
        "person_emailAddress": pc.binary_join_element_wise(user, "@", host, ".com", ""),
        "person_creditCard": pc.binary_join_element_wise(*card, " "),
        "person_city": pa.array(rules.US_CITIES).take(pa.array(draws.below(_Draw.CITY, len(rules.US_CITIES)))),
        "person_state": pa.array(rules.US_STATES).take(pa.array(draws.below(_Draw.STATE, len(rules.US_STATES)))),
    }
    ids = pa.array(last_person(events.numbers) + rules.FIRST_PERSON_ID)
    size = np.full(len(ids), 8)
    for column in text.values():
        size += _lengths(column)
    return _Part({"person_id": ids, **text}, _extra_lengths(draws, size, rules.PERSON_BYTES))


def _auctions(events: _Events) -> _Part:
    draws, words = events.draws, texts.words(events.stream.seed)
    item_name = words.trimmed(texts.short_spans(draws, _Draw.ITEM_NAME, 20))
    description = words.trimmed(texts.short_spans(draws, _Draw.DESCRIPTION, 100))
    hot = last_person(events.numbers) // rules.HOT_EVERY * rules.HOT_EVERY
    is_hot = draws.below(_Draw.HOT_SELLER, rules.HOT_SELLER_ODDS) > 0
    seller = np.where(is_hot, hot, _active_person(events, _Draw.SELLER))
    initial_bid = _prices(draws, _Draw.INITIAL_BID)
    columns = {
        "auction_id": pa.array(last_auction(events.numbers) + rules.FIRST_AUCTION_ID),
        "auction_itemName": words.cut(item_name),
        "auction_description": words.cut(description),
        "auction_initialBid": pa.array(initial_bid),
        "auction_reserve": pa.array(initial_bid + _prices(draws, _Draw.RESERVE)),
        "auction_expires": _timestamps(_expirations(events)),
        "auction_seller": pa.array(seller + rules.FIRST_PERSON_ID),
        "auction_category": pa.array(rules.FIRST_CATEGORY_ID + draws.below(_Draw.CATEGORY, rules.CATEGORIES)),
    }
    size = 6 * 8 + item_name.lengths + description.lengths
    return _Part(columns, _extra_lengths(draws, size, rules.AUCTION_BYTES))


def _expirations(events: _Events) -> Numbers:
    """Returns when auctions end: on average when as many more have begun as are in flight, at most after twice that."""
    ahead = rules.IN_FLIGHT_AUCTIONS * rules.GROUP // rules.AUCTIONS
    horizon = times_ms(events.stream, events.numbers + ahead) - events.times
    return events.times + 1 + events.draws.below(_Draw.AUCTION_LENGTH, np.maximum(horizon * 2, 1))


def _bids(events: _Events) -> _Part:
    draws, seed = events.draws, events.stream.seed
    last = last_auction(events.numbers)
    oldest = np.maximum(last - rules.IN_FLIGHT_AUCTIONS, 0)
    any_auction = oldest + draws.below(_Draw.AUCTION, last - oldest + 1 + rules.ID_LEAD)
    hot_auction = last // rules.HOT_EVERY * rules.HOT_EVERY
    auction = np.where(draws.below(_Draw.HOT_AUCTION, rules.HOT_AUCTION_ODDS) > 0, hot_auction, any_auction)
    hot_bidder = last_person(events.numbers) // rules.HOT_EVERY * rules.HOT_EVERY + 1
    is_hot = draws.below(_Draw.HOT_BIDDER, rules.HOT_BIDDER_ODDS) > 0
    bidder = np.where(is_hot, hot_bidder, _active_person(events, _Draw.BIDDER))
    hot_channels = len(rules.HOT_CHANNELS)
    from_hot = draws.below(_Draw.HOT_CHANNEL, 2) > 0
    channel = draws.below(_Draw.CHANNEL, np.where(from_hot, hot_channels, rules.CHANNELS))
    at = pa.array(np.where(from_hot, channel, channel + hot_channels))
    names, urls = texts.channels(seed)
    columns = {
        "bid_auction": pa.array(auction + rules.FIRST_AUCTION_ID),
        "bid_bidder": pa.array(bidder + rules.BIDDER_OFFSET),
        "bid_price": pa.array(_prices(draws, _Draw.PRICE)),
        "bid_channel": names.take(at),
        "bid_url": urls.take(at),
    }
    return _Part(columns, _extra_lengths(draws, np.full(len(auction), 4 * 8), rules.BID_BYTES))


def _active_person(events: _Events, draw: int) -> Numbers:
    """One of the last persons, or of the next few."""
    persons = last_person(events.numbers) + 1
    active = np.minimum(persons, rules.ACTIVE_PERSONS)
    return persons - active + events.draws.below(draw, active + rules.ID_LEAD)


def _prices(draws: Draws, draw: int) -> Numbers:
    return np.floor(np.power(10.0, draws.fraction(draw) * 6.0) * 100.0 + 0.5).astype(np.int64)


def _extra_lengths(draws: Draws, size: Numbers, average: int) -> Numbers:
    missing = np.maximum(average - size, 0)
    delta = np.floor(missing * 0.2 + 0.5).astype(np.int64)
    return missing - delta + draws.below(_Draw.EXTRA_LENGTH, 2 * delta)


def _lengths(column: pa.Array) -> Numbers:
    return np.asarray(pc.binary_length(column), np.int64)


def _timestamps(times: Numbers) -> pa.Array:
    return pa.array(times).cast(pa.timestamp("ms"))


def _spread(array: pa.Array, mask: _Mask) -> pa.Array:
    """Returns an array with the values where the mask is true, and nulls elsewhere."""
    return array.take(pa.array(np.cumsum(mask) - 1, mask=~mask))
