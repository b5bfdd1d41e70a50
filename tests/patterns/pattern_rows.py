"""Rows that are written as text, and the matches of a pattern in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from stateflow import OutputTag, Pattern
from stateflow.api.streams.data_stream import DataStream
from stateflow.api.streams.keyed_stream import KeyedStream
from stateflow.testing import KeyedHarness, KeyedInput


class Row(msgspec.Struct, frozen=True):
    """A row: its name is the text without the number at its end."""

    key: str
    at: int
    text: str
    price: float = 0.0

    @property
    def name(self) -> str:
        return self.text.rstrip("0123456789")


class Found(msgspec.Struct, frozen=True):
    key: str
    rows: str


INPUT = KeyedInput(Row, "key", event_time="at")
TIMED_OUT = OutputTag("timed-out", Found)
Condition = Callable[[Row], bool]


def named(*names: str) -> Condition:
    return lambda row: row.name in names


def rows_of(text: str, key: str = "k") -> list[Row]:
    """Rows like ``c a1 a2@10 d:5.0``: by default each at the time after the one before."""
    rows, at = list[Row](), 0
    for each in text.split():
        name, _, price = each.partition(":")
        name, _, given = name.partition("@")
        at = int(given) if given else at + 1
        rows.append(Row(key, at, name, float(price or 0)))
    return rows


def as_text(match: Mapping[str, list[Row]]) -> Found:
    """A match with its rows in the order of time."""
    rows = sorted((row for rows in match.values() for row in rows), key=lambda row: row.at)
    return Found(rows[0].key, " ".join(row.text for row in rows))


def matching(pattern: Pattern) -> Callable[[KeyedStream[DataStream]], DataStream]:
    def declare(rows: KeyedStream[DataStream]) -> DataStream:
        matched = rows.match_pattern(pattern)
        if pattern.within_ms is not None:
            matched = matched.side_output_timed_out(TIMED_OUT, as_text)
        return matched.select(as_text, output=Found, uid="matches")

    return declare


def harness(pattern: Pattern, **settings: Any) -> KeyedHarness:
    tags = () if pattern.within_ms is None else (TIMED_OUT,)
    return KeyedHarness(matching(pattern), INPUT, side_outputs=tags, **settings)


def matches(pattern: Pattern, text: str) -> list[str]:
    """The matches in rows, sorted; checks that nothing is kept of a pattern that has a time limit."""
    with harness(pattern) as h:
        found = list(h.push(*rows_of(text))) + h.drain()
        assert h.timers() == []
        assert pattern.within_ms is None or h.state_entries() == []
        return texts(found)


def texts(found: Iterable[Found]) -> list[str]:
    return sorted(each.rows for each in found)
