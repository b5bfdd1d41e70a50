"""Times: their formats, in the patterns that Java and Spark use, and arithmetic with units."""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import MAXYEAR, MINYEAR, UTC, date, datetime, time, timedelta

_PARTS = re.compile(r"'(?:[^']|'')*'|([A-Za-z])\1*|[^A-Za-z']+")
_RESERVED = re.compile(r"[\[\]{}#]")
_EPOCH = datetime.fromisoformat("1970-01-01")
LENGTHS = {
    "SECOND": timedelta(seconds=1),
    "MINUTE": timedelta(minutes=1),
    "HOUR": timedelta(hours=1),
    "DAY": timedelta(days=1),
    "WEEK": timedelta(days=7),
}
"""Units of a fixed length."""
_QUOTE = "'"
MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
"""The months of other units."""


def in_utc(value: date) -> datetime:
    """Returns a time as the clock shows it in UTC; of a date, its begin."""
    if not isinstance(value, datetime):
        return datetime.combine(value, time())
    return value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)


# -- formats ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DateFormats:
    """The letters of patterns, with English names of days and months.

    Attributes:
        letters: the text of each, for a time.
    """

    letters: dict[str, Callable[[datetime], str]]

    def unknown(self, pattern: str) -> str:
        """Returns the first part of a pattern that is not supported; empty if there is none."""
        rest = pattern
        for found in _PARTS.finditer(pattern):
            part = found[0]
            rest = pattern[found.end() :]
            # Java has other uses of some characters.
            if part[0] != "'" and (part not in self.letters if part[0].isalpha() else _RESERVED.search(part)):
                return part
        return "'" if "'" in rest else ""

    def quote_literals(self, pattern: str) -> str:
        """Returns a pattern with all characters in quotes that are not letters of a time."""
        parts = (found[0] for found in _PARTS.finditer(pattern))
        return "".join(part if part[0].isalpha() or part[0] == "'" else f"'{part}'" for part in parts)

    def text(self, value: datetime, pattern: str) -> str:
        """Returns a time as text."""
        return "".join(self._part(value, found[0]) for found in _PARTS.finditer(pattern))

    def _part(self, value: datetime, part: str) -> str:
        if part[0] == "'":
            return part[1:-1].replace("''", "'") or "'"
        return self.letters[part](value)


def _numbers(letter: str, name: str) -> dict[str, Callable[[datetime], str]]:
    return {letter: lambda value: str(getattr(value, name)), letter * 2: lambda value: f"{getattr(value, name):02}"}


def _fraction(width: int) -> Callable[[datetime], str]:
    return lambda value: f"{value.microsecond:06}000"[:width]


_ABBREVIATED = 3
FORMATS = DateFormats(
    {
        "yyyy": lambda value: f"{value.year:04}",
        "yy": lambda value: f"{value.year % 100:02}",
        **_numbers("M", "month"),
        "MMM": lambda value: calendar.month_name[value.month][:_ABBREVIATED],
        "MMMM": lambda value: calendar.month_name[value.month],
        **_numbers("d", "day"),
        "DDD": lambda value: f"{value.timetuple().tm_yday:03}",
        "EEE": lambda value: calendar.day_name[value.weekday()][:_ABBREVIATED],
        "EEEE": lambda value: calendar.day_name[value.weekday()],
        **_numbers("H", "hour"),
        "h": lambda value: str((value.hour + 11) % 12 + 1),
        "hh": lambda value: f"{(value.hour + 11) % 12 + 1:02}",
        "a": lambda value: "AM" if value.hour < 12 else "PM",
        **_numbers("m", "minute"),
        **_numbers("s", "second"),
        **{"S" * width: _fraction(width) for width in range(1, 10)},
    }
)


# -- units ------------------------------------------------------------------------------------------------------------


def floor_sql(unit: str, value: str) -> str:
    """Returns Spark SQL of the begin of the unit that a time is in. Weeks begin with Sunday."""
    begin = f"date_trunc({unit}, {value})"
    if unit == "'WEEK'":
        begin = f"(date_trunc('WEEK', {value} + INTERVAL '1' DAY) - INTERVAL '1' DAY)"
    return begin


def floor(unit: str, value: datetime) -> datetime:
    """Returns the begin of the unit that a time is in."""
    at = in_utc(value)
    if unit in MONTHS:
        first = (at.month - 1) // MONTHS[unit] * MONTHS[unit] + 1
        begin = datetime.combine(date(at.year, first, 1), time())
    else:
        # The first day of 1970 is a Thursday.
        since = at - _EPOCH + (LENGTHS["DAY"] * 4 if unit == "WEEK" else timedelta())
        begin = at - since % LENGTHS[unit]
    return begin.replace(tzinfo=value.tzinfo and UTC)


def ceil_sql(unit: str, value: str) -> str:
    """Returns Spark SQL of the first begin of a unit that is not before a time."""
    begin = floor_sql(unit, value)
    return f"(CASE WHEN {begin} = {value} THEN {value} ELSE {begin} + INTERVAL {_interval(unit, 1)} END)"


def ceil(unit: str, value: datetime) -> datetime:
    """Returns the first begin of a unit that is not before a time."""
    begin = floor(unit, value)
    return begin if begin == value else add_units(unit, 1, begin)


def render_addition(unit: str, number: str, value: str) -> str:
    """Returns Spark SQL of a time that is later by a number of units."""
    return f"({value} + INTERVAL {_interval(unit, 1)} * {number})"


def add_units(unit: str, number: int, value: datetime) -> datetime:
    """Returns a time that is later by a number of units; if a month is too short, its last day."""
    if unit not in MONTHS:
        return value + LENGTHS[unit] * number
    months = value.year * 12 + value.month - 1 + MONTHS[unit] * number
    year, month = months // 12, months % 12 + 1
    if not MINYEAR <= year <= MAXYEAR:
        raise OverflowError(f"the year {year}")
    return value.replace(year=year, month=month, day=min(value.day, calendar.monthrange(year, month)[1]))


def difference_sql(unit: str, first: str, second: str) -> str:
    """Returns Spark SQL of the number of whole units from one time to another."""
    name = unit.strip(_QUOTE)
    if name in MONTHS:
        first, second = (f"date_trunc('MILLISECOND', CAST({each} AS TIMESTAMP))" for each in (first, second))
        later = f"({second} >= {first})"
        return f"(IF({later}, {_months_sql(first, second)}, -{_months_sql(second, first)}) div {MONTHS[name]}L)"
    first, second = (f"unix_millis(CAST({each} AS TIMESTAMP))" for each in (first, second))
    return f"(({second} - {first}) div {LENGTHS[name] // timedelta(milliseconds=1)}L)"


def _months_sql(first: str, second: str) -> str:
    """Returns Spark SQL of the months from one time to one that is not before it."""
    months = f"((year({second}) - year({first})) * 12 + month({second}) - month({first}))"
    return f"({months} - IF({first} + INTERVAL '1' MONTH * {months} > {second}, 1, 0))"


def difference(unit: str, first: datetime, second: datetime) -> int:
    """Returns the number of whole units from one time to another; as in Flink, of their milliseconds.

    As many whole months as can be added: from the last day of January to the last one of February is one.
    """
    millis = [(in_utc(each) - _EPOCH) // timedelta(milliseconds=1) for each in (first, second)]
    if unit in MONTHS:
        begin, end = (_EPOCH + timedelta(milliseconds=each) for each in sorted(millis))
        months = (end.year - begin.year) * 12 + end.month - begin.month
        months -= add_units("MONTH", months, begin) > end
        whole = months // MONTHS[unit]
    else:
        whole = abs(millis[1] - millis[0]) // (LENGTHS[unit] // timedelta(milliseconds=1))
    return whole if millis[1] >= millis[0] else -whole


def _interval(unit: str, number: int) -> str:
    name = unit.strip(_QUOTE)
    number, name = {"WEEK": (7 * number, "DAY"), "QUARTER": (3 * number, "MONTH")}.get(name, (number, name))
    return f"'{number}' {name}"
