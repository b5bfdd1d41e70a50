"""Rows with every type of a column, for property tests of sources and sinks."""

from __future__ import annotations

import datetime
import decimal

from hypothesis import strategies as st

from tests.support.delta_tables import Colour, Every, Inner

_LONGEST = datetime.timedelta(99_000_000)
_LONG = st.integers(-(1 << 63), (1 << 63) - 1)


def _decimals(digits: int, scale: int) -> st.SearchStrategy[decimal.Decimal]:
    largest = 10**digits - 1
    return st.integers(-largest, largest).map(lambda n: decimal.Decimal(n).scaleb(-scale, decimal.Context(prec=100)))


def every_row(texts: st.SearchStrategy[str], floats: st.SearchStrategy[float]) -> st.SearchStrategy[Every]:
    """Rows in which each field but `id` may be None."""
    prices, durations = _decimals(12, 2), st.timedeltas(-_LONGEST, _LONGEST)
    inners = st.builds(Inner, _LONG, st.none() | prices, st.lists(durations, max_size=2))
    return st.builds(
        Every,
        id=_LONG,
        amount=st.none() | floats,
        text=st.none() | texts,
        flag=st.none() | st.booleans(),
        raw=st.none() | st.binary(max_size=5),
        day=st.none() | st.dates(),
        local=st.none() | st.datetimes(),
        instant=st.none() | st.datetimes(timezones=st.just(datetime.UTC)),
        price=st.none() | prices,
        exact=st.none() | _decimals(38, 4),
        time=st.none() | st.times(),
        lasting=st.none() | durations,
        uid=st.none() | st.uuids(),
        colour=st.none() | st.sampled_from(Colour),
        inner=st.none() | inners,
        numbers=st.none() | st.lists(st.none() | floats, max_size=3),
        named=st.none() | st.dictionaries(texts, st.none() | inners, max_size=2),
    )
