"""Side outputs: rows that a function emits in addition to its main output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from stateflow.errors import JobDefinitionError

T = TypeVar("T")

MAIN = ""
"""Name of the main output, where side outputs have the name of their tag."""


@dataclass(frozen=True)
class OutputTag(Generic[T]):
    """Identifies a side output of an operator.

    Args:
        name: unique within the operator.
        row_class: class of the rows.
    """

    name: str
    row_class: type[T]

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise JobDefinitionError(
                "an output tag needs a name", hint='declare OutputTag("late", LateRow)', given=repr(self.name)
            )


def check_late_tag(tag: object, row_class: type[object]) -> None:
    """Raises JobDefinitionError if `tag` is not a side output for late rows of this class."""
    if not isinstance(tag, OutputTag) or tag.row_class is not row_class:
        raise JobDefinitionError(
            "the side output of late rows needs a tag of the class of the rows",
            hint=f'OutputTag("late", {row_class.__name__})',
            given=repr(tag)[:200],
        )


class SideOutputs:
    """Buffers the rows that a function emits to side outputs."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: dict[str, list[object]] = {}

    def add(self, tag: OutputTag[T], row: T) -> None:
        """Appends a row to the output of `tag`. Raises JobDefinitionError if `tag` is not an OutputTag."""
        if not isinstance(tag, OutputTag):
            raise JobDefinitionError(
                "ctx.output needs the OutputTag of a side output",
                hint='declare OutputTag("late", LateRow); return or yield rows of the main output',
                given=repr(tag)[:200],
            )
        self._rows.setdefault(tag.name, []).append(row)

    def mark(self) -> dict[str, int]:
        """Returns the current number of rows per output, for `rollback`."""
        return {name: len(rows) for name, rows in self._rows.items()}

    def since(self, mark: dict[str, int]) -> dict[str, list[object]]:
        """Returns the rows that were added since `mark`, by tag name."""
        return {name: rows[mark.get(name, 0) :] for name, rows in self._rows.items()}

    def rollback(self, mark: dict[str, int]) -> None:
        """Removes the rows that were added since `mark`."""
        for name, rows in self._rows.items():
            del rows[mark.get(name, 0) :]

    def take(self) -> dict[str, list[object]]:
        """Returns the rows by tag name, and removes them."""
        rows, self._rows = self._rows, {}
        return rows
