"""Side outputs: rows that a function emits beside its main output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from stateflow.errors import JobDefinitionError

T = TypeVar("T")

MAIN = ""
"""Stands where a tag's name stands, for the main output."""


@dataclass(frozen=True)
class OutputTag(Generic[T]):
    """Names a side output of an operator.

    Args:
        name: of the output, within its operator.
        row_class: class of its rows.
    """

    name: str
    row_class: type[T]

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise JobDefinitionError("an output tag needs a name", hint="OutputTag(\"late\", LateRow)",
                                     given=repr(self.name))  # fmt: skip


class SideOutputs:
    """What a function put into its side outputs since it was last asked."""

    __slots__ = ("_rows",)

    def __init__(self) -> None:
        self._rows: dict[str, list[Any]] = {}

    def add(self, tag: OutputTag[Any], row: Any) -> None:
        """Appends a row to the output that `tag` names. Raises JobDefinitionError for something that is no tag."""
        if not isinstance(tag, OutputTag):
            raise JobDefinitionError("ctx.output needs the OutputTag of a side output", hint="declare one, as "
                                     "OutputTag(\"late\", LateRow); return or yield rows of the main output",
                                     given=repr(tag)[:200])  # fmt: skip
        self._rows.setdefault(tag.name, []).append(row)

    def mark(self) -> dict[str, int]:
        """How much there is, for `take_back`."""
        return {name: len(rows) for name, rows in self._rows.items()}

    def take_back(self, mark: dict[str, int]) -> None:
        """Forgets what was added since `mark`."""
        for name, rows in self._rows.items():
            del rows[mark.get(name, 0) :]

    def take(self) -> dict[str, list[Any]]:
        """The rows by the tag's name; they are forgotten here."""
        rows, self._rows = self._rows, {}
        return rows
