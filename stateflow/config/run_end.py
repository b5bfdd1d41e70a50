"""The setting ``run.until``: when a run ends. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from zoneinfo import ZoneInfo

from stateflow.config.durations import parse_duration
from stateflow.errors import ConfigError

INPUT_ENDS, STOPPED = "input-ends", "stopped"

_TIME_OF_DAY = re.compile(r"(?P<time>\d\d:\d\d(:\d\d)?)(\s+(?P<zone>[A-Za-z][\w+/-]*))?", re.ASCII)


@dataclass(frozen=True)
class RunEnd:
    """When a run ends.

    Attributes:
        continuous: whether the run waits for more input when it has processed all of it.
        after: how long a continuous run lasts; None without such a limit.
        at: the time of day at which a continuous run ends; None without one.
        zone: the time zone of `at`.
    """

    continuous: bool = False
    after: timedelta | None = None
    at: time | None = None
    zone: tzinfo = UTC

    def next_time(self, now: datetime) -> datetime | None:
        """Returns the next occurrence of the time of day after `now`, in UTC; None without a time of day."""
        if self.at is None:
            return None
        today = now.astimezone(self.zone).date()
        # The day is added to the date, not to the time: a day has 23 or 25 hours when the clocks change.
        times = (datetime.combine(today + timedelta(days=days), self.at, self.zone).astimezone(UTC) for days in (0, 1))
        return next(each for each in times if each > now)


def parse_run_end(text: str) -> RunEnd:
    """Parses a value of ``run.until``.

    Raises:
        ConfigError: the value has none of the allowed forms.
    """
    if text.lower().replace("_", "-") == INPUT_ENDS:
        return RunEnd()
    if text.lower() == STOPPED:
        return RunEnd(continuous=True)
    try:
        return _time_of_day(text) or _duration(text)
    except (ValueError, OverflowError, KeyError, OSError) as e:
        raise ConfigError(
            "invalid value of a setting",
            hint=f"expected {INPUT_ENDS}, {STOPPED}, a duration such as 90 min or 8h, or a time of day such as 18:00 "
            "(in UTC) or 18:00 Europe/Berlin",
            name="run.until",
            value=text,
        ) from e


def _time_of_day(text: str) -> RunEnd | None:
    """Returns the end at a time of day; None for a text that is none. Raises for an unknown hour or zone."""
    found = _TIME_OF_DAY.fullmatch(text.strip())
    if found is None:
        return None
    zone = ZoneInfo(found["zone"]) if found["zone"] else UTC
    return RunEnd(continuous=True, at=time.fromisoformat(found["time"]), zone=zone)


def _duration(text: str) -> RunEnd:
    duration = parse_duration(text)
    if not duration:
        raise ValueError(text)
    return RunEnd(continuous=True, after=duration)
