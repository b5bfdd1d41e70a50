"""The stages of a pattern."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from stateflow.api.patterns.conditions import ALWAYS, Condition


class Contiguity(StrEnum):
    """Which rows may be between the row of a stage and the row before it."""

    NEXT = "next"
    """None."""
    FOLLOWED_BY = "followed by"
    """Rows that the stage does not accept."""
    FOLLOWED_BY_ANY = "followed by any"
    """Any rows: also rows that the stage accepts, which are then matched by other matches."""
    NOT_NEXT = "not next"
    NOT_FOLLOWED_BY = "not followed by"

    @property
    def is_negative(self) -> bool:
        """Whether the stage refuses rows in place of matching them."""
        return self in (Contiguity.NOT_NEXT, Contiguity.NOT_FOLLOWED_BY)


@dataclass(frozen=True)
class Stage:
    """A stage of a pattern.

    Attributes:
        name: unique within the pattern.
        contiguity: how its first row follows the stage before.
        condition: which rows it accepts.
        least, most: how many rows it matches; `most` is None for no bound.
        is_optional: whether it may match no row.
        inner: how its further rows follow each other.
        is_greedy: whether a row that the stage accepts is never one of the next stage.
        until: a row for which this holds ends the stage; None for no such row.
    """

    name: str
    contiguity: Contiguity
    condition: Condition = ALWAYS
    least: int = 1
    most: int | None = 1
    is_optional: bool = False
    inner: Contiguity = Contiguity.FOLLOWED_BY
    is_greedy: bool = False
    until: Condition | None = None

    @property
    def is_single(self) -> bool:
        """Whether it matches one row at most."""
        return self.most == 1

    def __str__(self) -> str:
        """The stage as text, without its condition. Stored with partial matches, so part of the stored format."""
        parts = [self.contiguity, self.name]
        if not self.is_single:
            parts += [f"{{{self.least},{'' if self.most is None else self.most}}}", f"({self.inner})"]
        parts += [word for word, given in self._options.items() if given]
        return " ".join(parts)

    @property
    def _options(self) -> dict[str, bool]:
        return {"optional": self.is_optional, "greedy": self.is_greedy, "until": self.until is not None}
