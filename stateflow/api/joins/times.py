"""The event time of the rows that are joined."""

from __future__ import annotations

from stateflow.api.functions.process import Context
from stateflow.errors import StateError


def time_of_row(ctx: Context) -> int:
    """Returns the event time of the current row, in milliseconds since 1970.

    Raises:
        StateError: the row has none.
    """
    timestamp = ctx.timestamp()
    if timestamp is None:
        raise StateError(
            "a row of a join by event time has no event time",
            hint="filter rows whose timestamp column is null before key_by",
        )
    return timestamp
