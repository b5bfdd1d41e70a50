"""Dead letters: rows for which a function raised, or records that cannot be decoded, instead of a failed run."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from stateflow.api.side_outputs import OutputTag
from stateflow.errors import JobDefinitionError

LONGEST_KEY = 10_000
"""Characters of the key in a dead letter."""
LONGEST_ROW = 1_000_000
"""Characters of the row in a dead letter: a sink gets as many letters as the budget permits."""


class DeadLetter(msgspec.Struct, frozen=True):
    """A row for which a function raised, and the error.

    A text that is too long is cut, and ends with ``… (N characters)``, where N is its whole length.

    Attributes:
        operator: uid of the operator, or of the source whose record cannot be decoded; for a row function on an unkeyed
            stream, the function's name.
        key: the key columns as JSON, up to 10,000 characters; empty for an unkeyed stream.
        row: the row as JSON, so that it can be corrected and processed again, up to 1,000,000 characters; its `repr` if
            it cannot be encoded.
        error: the exception's type and text, up to 10,000 characters.
        where: file and line that raised it; empty for a row whose key is larger than ``state.max_key_bytes``, and for a
            record that cannot be decoded.
        batch: epoch of the batch: its number along the job's state, over all runs and restores.
    """

    operator: str
    key: str
    row: str
    error: str
    where: str
    batch: int


@dataclass(frozen=True)
class DeadLetters:
    """A value of `on_error`: rows for which a function raises become dead letters, committed with their batch.

    So do records that a source cannot decode.

    State changes and emitted rows of the failing call are rolled back. `get_dead_letters` of the resulting stream
    returns the dead letters; an operator or a sink must consume them.

    Args:
        budget: number of rows of one batch that may fail. With one more, the run fails and nothing of the batch is
            committed. For a row function on an unkeyed stream, and for a source, each task has this budget.
    """

    budget: int

    def __post_init__(self) -> None:
        if isinstance(self.budget, bool) or not isinstance(self.budget, int) or self.budget < 1:
            raise JobDefinitionError(
                "the budget of dead letters must be a positive number",
                hint="pass on_error=DeadLetters(budget=100), or omit on_error",
                budget=self.budget,
            )


OnError = DeadLetters | None
"""None: the run fails, and nothing of the batch is committed."""
FAIL = "fail"
"""The value of `on_error` for this."""

DEAD_LETTERS = OutputTag("dead-letters", DeadLetter)
"""The side output with an operator's dead letters."""


def check_policy(on_error: object) -> OnError:
    """Returns the policy of an `on_error`. Raises JobDefinitionError unless it is ``"fail"`` or `DeadLetters`."""
    if on_error == FAIL:
        return None
    if not isinstance(on_error, DeadLetters):
        raise JobDefinitionError(
            'on_error must be "fail" or DeadLetters(budget=…)', hint='"fail" is the default', given=repr(on_error)
        )
    return on_error
