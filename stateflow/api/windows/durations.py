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


def duration_text(milliseconds: int) -> str:
    """Returns a duration such as ``1 d 12 h``, without units that are zero."""
    rest, found = abs(milliseconds), []
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1)):
        count, rest = divmod(rest, size)
        if count:
            found.append(f"{count} {unit}")
    return ("-" if milliseconds < 0 else "") + " ".join(found)


def positive_ms(what: str, duration: object) -> int:
    """Returns a duration of a millisecond or more. Raises JobDefinitionError for another one."""
    length = duration_ms(what, duration)
    if length <= 0:
        raise JobDefinitionError(
            f"{what} is not positive", hint="pass a timedelta of a millisecond or more", given=repr(duration)
        )
    return length
