"""What it is when a rule is broken, and errors that break none."""

from __future__ import annotations

from stateflow.errors import DataError, MissingFile


class Violation(BaseException):
    """The protocol broke one of its promises. No `Exception`: code under test that catches those must not hide it."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule} {text}")
        self.rule = rule


def misses_output(error: DataError) -> bool:
    """Whether files of output were deleted before the checkpoint that has them was published."""
    return isinstance(error, MissingFile) and "checkpoint" in error.facts


def is_not_retained(error: DataError) -> bool:
    """Whether a checkpoint was needed that the job has let go."""
    return type(error) is DataError and {"checkpoint", "oldest"} <= error.facts.keys()
