"""Errors with a position in the text of a statement."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NoReturn

from sqlglot import exp

from stateflow.errors import JobDefinitionError

_SHOWN = 80
"""Characters of a construct that an error shows."""


@dataclass(frozen=True)
class Position:
    """Where a construct begins in a statement.

    Attributes:
        line, column: from 1.
        text: its beginning.
    """

    line: int
    column: int
    text: str


@dataclass(frozen=True)
class SqlText:
    """The text of statements."""

    text: str

    def at(self, start: int, end: int) -> Position:
        """Returns the position of the characters from `start` to before `end`."""
        line = self.text.count("\n", 0, start) + 1
        column = start - (self.text.rfind("\n", 0, start) + 1) + 1
        shown = " ".join(self.text[start : min(end, start + _SHOWN)].split())
        return Position(line, column, shown)

    def of(self, node: exp.Expr) -> Position:
        """Returns the position of a parsed construct."""
        # Positions in a hint are relative to the hint.
        parts = (each for each in node.walk(prune=_is_hint) if not _is_hint(each))
        found = [(each.meta["start"], each.meta["end"]) for each in parts if "start" in each.meta]
        if not found:
            return self.of(node.parent) if node.parent is not None else self.at(0, len(self.text))
        return self.at(min(start for start, _ in found), max(end for _, end in found) + 1)

    def fail(self, node: exp.Expr, message: str, hint: str, **facts: object) -> NoReturn:
        """Raises JobDefinitionError with the position of a construct."""
        raise error_at(self.of(node), message, hint, **facts)

    def check_parts(self, node: exp.Expr, known: Collection[str], ways_out: Mapping[str, str] | None = None) -> None:
        """Raises JobDefinitionError if a construct has a part that its caller does not read, and so would ignore.

        Args:
            known: the names of the parts that the caller reads.
            ways_out: hints for others.
        """
        for name, value in node.args.items():
            if value and name not in known:
                part = value[0] if isinstance(value, list) else value
                where = part if isinstance(part, exp.Expr) else node
                hint = (ways_out or {}).get(name, "leave it out")
                self.fail(where, "a clause is not supported", hint, clause=name.upper())


def _is_hint(node: exp.Expr) -> bool:
    return isinstance(node, exp.Hint)


def error_at(position: Position, message: str, hint: str, **facts: object) -> JobDefinitionError:
    """Returns the error of a statement."""
    at = {"line": position.line, "column": position.column, "sql": position.text}
    return JobDefinitionError(message, hint=hint, **at, **facts)
