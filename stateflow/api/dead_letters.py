"""Dead letters: rows that a function failed on, kept instead of failing the run."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from stateflow.api.side_outputs import OutputTag
from stateflow.errors import JobDefinitionError


class DeadLetter(msgspec.Struct, frozen=True):
    """A row that a function raised for, and why.

    Attributes:
        operator: its uid; for a row function on an unkeyed stream, the function's name.
        key: JSON of the key columns; empty without a key.
        row: JSON of the row, so that it can be mended and sent again; what `repr` gives of a row that has no JSON.
        error: the exception's type and text.
        where: file and line where it was raised.
        batch: number of the batch along the job's state.
    """

    operator: str
    key: str
    row: str
    error: str
    where: str
    batch: int


@dataclass(frozen=True)
class DeadLetters:
    """A value of `on_error`: rows that a function raises for become dead letters, which are committed with their batch.

    What the failing call did to state, and what it emitted, is taken back. `get_dead_letters` of the resulting stream
    has them, and something must consume it.

    Args:
        budget: rows of one batch that may fail. With one more the run fails, and the batch leaves nothing behind. Of a
            row function on an unkeyed stream, each task counts its own.
    """

    budget: int

    def __post_init__(self) -> None:
        if isinstance(self.budget, bool) or not isinstance(self.budget, int) or self.budget < 1:
            raise JobDefinitionError("a budget of dead letters must be a positive number", hint="DeadLetters(budget="
                                     "100); without dead letters, leave on_error out", budget=self.budget)  # fmt: skip


OnError = DeadLetters | None
"""None: the run fails, and the batch leaves nothing behind."""
FAIL = "fail"

DEAD_LETTERS = OutputTag("dead-letters", DeadLetter)
"""The side output of an operator that has some."""


def checked_policy(on_error: object) -> OnError:
    """What a user gave as `on_error`. Raises JobDefinitionError for anything but ``"fail"`` and `DeadLetters`."""
    if on_error == FAIL:
        return None
    if not isinstance(on_error, DeadLetters):
        raise JobDefinitionError("on_error must be \"fail\" or DeadLetters(budget=…)", hint="\"fail\" is the default",
                                 given=repr(on_error))  # fmt: skip
    return on_error
