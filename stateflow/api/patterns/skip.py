"""Which matches are discarded after a match."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from stateflow.errors import StateError


class SkipTo(StrEnum):
    """Where matching continues after a match."""

    ANYWHERE = "no skip"
    NEXT_ROW = "next row"
    PAST_LAST_ROW = "past last row"
    FIRST = "first"
    LAST = "last"


@dataclass(frozen=True)
class AfterMatchSkipStrategy:
    """Which partial matches and later matches are discarded after a match. As Flink's class of this name.

    With any other strategy than `no_skip`, a match waits until no earlier row has an unfinished partial match, because
    that one might become a match which discards it.

    Attributes:
        to: where matching continues.
        stage: name of the stage, of `skip_to_first` and `skip_to_last`.
        raises_on_miss: whether a match without a row of that stage is an error.
    """

    to: SkipTo = SkipTo.ANYWHERE
    stage: str = ""
    raises_on_miss: bool = False

    @classmethod
    def no_skip(cls) -> AfterMatchSkipStrategy:
        """Discards nothing: every match is emitted. The default."""
        return cls()

    @classmethod
    def skip_to_next(cls) -> AfterMatchSkipStrategy:
        """Discards all others that begin with the same row."""
        return cls(SkipTo.NEXT_ROW)

    @classmethod
    def skip_past_last_row(cls) -> AfterMatchSkipStrategy:
        """Discards all others that begin with a row up to the last row of the match."""
        return cls(SkipTo.PAST_LAST_ROW)

    @classmethod
    def skip_to_first(cls, stage: str) -> AfterMatchSkipStrategy:
        """Discards all others that begin before the first row of a stage in the match.

        Args:
            stage: name of the stage.
        """
        return cls(SkipTo.FIRST, stage)

    @classmethod
    def skip_to_last(cls, stage: str) -> AfterMatchSkipStrategy:
        """Discards all others that begin before the last row of a stage in the match. Args: as `skip_to_first`."""
        return cls(SkipTo.LAST, stage)

    def raise_on_miss(self) -> AfterMatchSkipStrategy:
        """Makes it an error if a match has no row of the stage, or if the stage's row is the first one of the match.

        Otherwise such a match discards nothing. The error ends the run, since it is one of the pattern.
        """
        return replace(self, raises_on_miss=True)

    @property
    def skips(self) -> bool:
        """Whether a match may discard others."""
        return self.to is not SkipTo.ANYWHERE

    def find_first_kept(self, path: Sequence[tuple[str, int]]) -> int:
        """Returns the number of the first row with which others may begin.

        Args:
            path: stage and number of each row of the match, the last one first.

        Raises:
            StateError: the match has no row of the stage, and that is an error.
        """
        first, last = path[-1][1], path[0][1]
        if self.to is SkipTo.ANYWHERE:
            return first
        if self.to is SkipTo.NEXT_ROW:
            return first + 1
        if self.to is SkipTo.PAST_LAST_ROW:
            return last + 1
        rows = [number for name, number in path if name == self.stage]
        found = (rows[-1] if self.to is SkipTo.FIRST else rows[0]) if rows else first
        if self.raises_on_miss and found == first:
            raise StateError(
                "a match cannot be continued at the stage that its pattern skips to",
                hint="skip to a stage that each match has, and that is not its first one",
                stage=self.stage,
                rows=len(rows),
            )
        return found
