"""The stored partial matches of a key, and the rows that they have matched.

Partial matches that have begun alike share what they have in common: each row that was added to one is a node with the
node before it. Nodes and rows are counted, and removed with the last partial match that has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic, Literal, TypeVar

import msgspec

from stateflow.api.patterns.conditions import MatchedRows, StagePath
from stateflow.state.kinds.maps.map_state import MapState

Row = TypeVar("Row")

Path = list[tuple[str, int]]
"""Stage and number of each row of a match, the last one first."""


class PartialMatch(msgspec.Struct, array_like=True, frozen=True):
    """A match that is not complete, or that waits for others.

    Attributes:
        state: name of the state of the automaton.
        node: the number of its last node.
        first: the number of its first row.
        began: event time of its first row, in milliseconds since 1970.
    """

    state: str
    node: int
    first: int
    began: int


class MatchedNode(msgspec.Struct, array_like=True):
    """A row of a partial match.

    Attributes:
        stage: the stage that the row was added to.
        row: the number of the row.
        before: the number of the node before it; None for the first row.
        references: number of partial matches that end with it, and of nodes after it.
        begin: the number of the first node of the stage.
    """

    stage: str
    row: int
    before: int | None
    references: int
    begin: int


class PartialMatches(msgspec.Struct):
    """All partial matches of a key, in the order of their first rows.

    Attributes:
        pattern: the pattern that they belong to, as text.
        partial: matches that are not complete.
        completed: matches that an earlier partial match may discard when it is complete.
        nodes: by number.
        rows: how many nodes have a row, by its number.
        number: the number of the next row or node.
        expires: event time of the timer that removes the earliest partial match; None without one.
    """

    pattern: str
    partial: list[PartialMatch] = []
    completed: list[PartialMatch] = []
    nodes: dict[int, MatchedNode] = {}
    rows: dict[int, int] = {}
    number: int = 0
    expires: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is no partial match."""
        return not self.partial and not self.completed


def stored_class(structure: str) -> type[PartialMatches]:
    """Returns the class that partial matches of a pattern are stored as.

    The text of the pattern is part of the type: stored partial matches of another pattern are incompatible with it,
    which is found before a run starts.
    """
    pattern: object = Literal.__getitem__(structure)
    made = msgspec.defstruct("PartialMatches", [("pattern", pattern)], bases=(PartialMatches,))
    assert issubclass(made, PartialMatches)
    return made


class MatchBuffer(Generic[Row]):
    """The partial matches of the current key, and their rows.

    Args:
        matches: the stored partial matches, which are changed.
        rows: the state with the rows that they have matched, by number.
    """

    def __init__(self, matches: PartialMatches, rows: MapState[int, Row]) -> None:
        self.matches = matches
        self.changed = False
        self._stored = rows
        self._read: dict[int, Row] = {}
        self._new: int | None = None

    # -- rows ---------------------------------------------------------------------------------------------------------

    def begin_row(self, row: Row) -> None:
        """Sets the row that `take` adds."""
        self._new = self.matches.number
        self._read[self._new] = row

    def end_row(self) -> None:
        """Stores the row if a partial match has it."""
        assert self._new is not None
        if self._new in self.matches.rows:
            self._stored.put(self._new, self._read[self._new])
        else:
            del self._read[self._new]
        self._new = None

    def row(self, number: int) -> Row:
        """Returns a row that a partial match has."""
        if number not in self._read:
            row = self._stored.get(number)
            assert row is not None
            self._read[number] = row
        return self._read[number]

    # -- matches ------------------------------------------------------------------------------------------------------

    def take(self, stage: str, before: int | None) -> int:
        """Adds the current row after a node, and returns its node, to which nothing refers yet."""
        assert self._new is not None
        matches = self.matches
        matches.number = max(matches.number, self._new) + 1
        number = matches.number
        previous = None if before is None else matches.nodes[before]
        begin = number if previous is None or previous.stage != stage else previous.begin
        matches.nodes[number] = MatchedNode(stage, self._new, before, 0, begin)
        matches.rows[self._new] = matches.rows.get(self._new, 0) + 1
        if before is not None:
            self.hold(before)
        self.changed = True
        return number

    @property
    def current_row(self) -> int:
        """The number of the current row."""
        assert self._new is not None
        return self._new

    def hold(self, node: int) -> None:
        """Adds a reference to a node."""
        self.matches.nodes[node].references += 1

    def release(self, node: int) -> None:
        """Removes a reference to a node; removes nodes and rows that no partial match has then."""
        nodes, rows, at = self.matches.nodes, self.matches.rows, node
        while True:
            found = nodes[at]
            found.references -= 1
            if found.references > 0:
                return
            del nodes[at]
            rows[found.row] -= 1
            if not rows[found.row]:
                del rows[found.row]
                if found.row != self._new:
                    self._stored.remove(found.row)
            if found.before is None:
                return
            at = found.before

    def path(self, node: int | None) -> Path:
        """Returns the rows up to a node, the last one first."""
        return [(each.stage, each.row) for each in self._nodes(node)]

    def matched(self, node: int | None) -> MatchedRows[Row]:
        """Returns the rows up to a node, for conditions."""
        return MatchedRows(_Path(self.matches.nodes, node), self.row)

    def match(self, path: Path) -> dict[str, list[Row]]:
        """Returns the rows of a match by stage, in their order."""
        found: dict[str, list[Row]] = {}
        for stage, number in reversed(path):
            found.setdefault(stage, []).append(self.row(number))
        return found

    def _nodes(self, node: int | None) -> Iterator[MatchedNode]:
        while node is not None:
            found = self.matches.nodes[node]
            yield found
            node = found.before


class _Path(StagePath):
    """The rows of a partial match; the first and the last row of a stage are found without reading the others."""

    __slots__ = ("_node", "_nodes")

    def __init__(self, nodes: Mapping[int, MatchedNode], node: int | None) -> None:
        self._nodes = nodes
        self._node = node

    def first(self, stage: str) -> int | None:
        last = self._last(stage)
        return None if last is None else self._nodes[last.begin].row

    def last(self, stage: str) -> int | None:
        last = self._last(stage)
        return None if last is None else last.row

    def rows(self, stage: str) -> list[int]:
        found: list[int] = []
        node = self._last(stage)
        while node is not None and node.stage == stage:
            found.append(node.row)
            node = None if node.before is None else self._nodes[node.before]
        return found[::-1]

    def _last(self, stage: str) -> MatchedNode | None:
        at = self._node
        while at is not None:
            node = self._nodes[at]
            if node.stage == stage:
                return node
            at = self._nodes[node.begin].before
        return None
