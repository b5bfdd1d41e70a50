"""The numbers of Nexmark's event model, as github.com/nexmark/nexmark defines them (GeneratorConfig and its models)."""

from __future__ import annotations

from dataclasses import dataclass

PERSON, AUCTION, BID = 0, 1, 2
"""Values of the column `event_type`."""

PERSONS, AUCTIONS, BIDS = 1, 3, 46
"""Events of each type in each group of consecutive event numbers, in this order."""
GROUP = PERSONS + AUCTIONS + BIDS

FIRST_PERSON_ID = 1000
FIRST_AUCTION_ID = 1000
FIRST_CATEGORY_ID = 10
CATEGORIES = 5

ID_LEAD = 10
"""An event may name a person or an auction whose own event comes later: one of so many next ones."""
ACTIVE_PERSONS = 1000
IN_FLIGHT_AUCTIONS = 100

HOT_EVERY = 100
"""One of so many persons or auctions is hot: the first of each hundred; of bidders, the second."""
HOT_SELLER_ODDS = 4
"""One auction of so many has a seller that is drawn from all active persons; the others have the hot one."""
HOT_AUCTION_ODDS = 2
HOT_BIDDER_ODDS = 4

BIDDER_OFFSET = 2 * FIRST_PERSON_ID
"""Nexmark adds the first id to a bidder twice: a bidder is the person whose event comes a thousand persons later."""

PERSON_BYTES, AUCTION_BYTES, BID_BYTES = 200, 500, 100
"""Average sizes. The column `extra` fills an event up to its average, within a fifth of what is missing."""

HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
CHANNELS = 10_000
"""Of the other half of the bids."""

US_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
US_CITIES = (
    *("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland"),
    *("Bend", "Redmond", "Seattle", "Kent", "Cheyenne"),
)
FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")

BASE_TIME_MS = 1_436_918_400_000
"""Time of event 0: 2015-07-15 00:00 UTC. Nexmark's own source takes the time of its start, which no run can repeat."""


@dataclass(frozen=True)
class Stream:
    """Which stream of events: equal values give equal events.

    Attributes:
        events_per_second: in event time. Nexmark's default; ten million events are then 1,000 seconds.
        out_of_order_group: events of each group of so many come in another order than that of their times, always the
            same; 1 for events in order. It has to be prime to 953, or events would be repeated.
    """

    seed: int = 1
    events_per_second: int = 10_000
    out_of_order_group: int = 1
