"""The kind of a row in a changelog."""

from __future__ import annotations

from enum import StrEnum


class RowKind(StrEnum):
    """The kind of a row in a changelog, with the names and short forms of Flink.

    A row class with a field of this type describes a changelog.
    """

    INSERT = "+I"
    """Adds the row."""
    UPDATE_BEFORE = "-U"
    """Retracts a row that the next `UPDATE_AFTER` replaces."""
    UPDATE_AFTER = "+U"
    """Replaces the row of its key."""
    DELETE = "-D"
    """Retracts a row, without replacement."""

    @property
    def is_retraction(self) -> bool:
        """Whether the row is retracted."""
        return self in RETRACTIONS


RETRACTIONS = (RowKind.UPDATE_BEFORE, RowKind.DELETE)
"""The kinds of rows that are retracted."""
