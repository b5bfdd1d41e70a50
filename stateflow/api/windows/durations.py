"""Durations that declare windows, in milliseconds."""

from __future__ import annotations

from datetime import timedelta

from stateflow.errors import JobDefinitionError

_MILLISECOND = timedelta(milliseconds=1)


def duration_ms(what: str, duration: object) -> int:
    """Returns a duration in milliseconds, of any sign.

    Args:
        what: what it is the duration of, for the error.

    Raises:
        JobDefinitionError: it is no timedelta.
    """
    if not isinstance(duration, timedelta):
        raise JobDefinitionError(f"{what} is not a duration", hint="pass a timedelta", given=repr(duration)[:200])
    return duration // _MILLISECOND


def positive_ms(what: str, duration: object) -> int:
    """Returns a duration of a millisecond or more. Raises JobDefinitionError for another one."""
    length = duration_ms(what, duration)
    if length <= 0:
        raise JobDefinitionError(
            f"{what} is not positive", hint="pass a timedelta of a millisecond or more", given=repr(duration)
        )
    return length
