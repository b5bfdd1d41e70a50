"""Durations as text, such as ``90s``, ``10 min``, ``500ms``, ``2h`` or ``1 day``."""

from __future__ import annotations

import re
from datetime import timedelta

_UNITS = {
    0.001: ("ms", "milli", "millis", "millisecond", "milliseconds"),
    1.0: ("s", "sec", "secs", "second", "seconds"),
    60.0: ("m", "min", "mins", "minute", "minutes"),
    3600.0: ("h", "hour", "hours"),
    86400.0: ("d", "day", "days"),
}
"""Names of the units of a duration, by their length in seconds."""
_SECONDS = {name: seconds for seconds, names in _UNITS.items() for name in names}
_DURATION = re.compile(r"\s*(?P<number>\d+(\.\d*)?|\.\d+)\s*(?P<unit>[a-z]+)\s*", re.IGNORECASE | re.ASCII)


def parse_duration(text: str) -> timedelta:
    """Parses a duration such as ``90s``, ``10 min``, ``500ms``, ``2h`` or ``1 day``.

    Raises:
        ValueError: the text is not a number with a unit.
        OverflowError: the duration is too long for a timedelta.
    """
    found = _DURATION.fullmatch(text)
    if found is None or found["unit"].lower() not in _SECONDS:
        raise ValueError(text)
    return timedelta(seconds=float(found["number"]) * _SECONDS[found["unit"].lower()])
