"""Users that move between seats: rows of a key of a sink come from several keys of an operator."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from hypothesis import strategies as st

from stateflow import RowKind


class SeatChange(msgspec.Struct, frozen=True):
    kind: RowKind
    seat: int
    user: int
    note: float | None
    tags: list[str]


Move = tuple[int, int, float | None]
"""User, wanted seat, note."""
SEATS = 4
notes = st.sampled_from([None, 0.0, -0.0, 1.5, math.nan, math.inf])
moves = st.tuples(st.integers(0, 3), st.integers(0, SEATS), notes)
histories = st.lists(st.lists(moves, max_size=8), min_size=1, max_size=4)
"""Moves of each checkpoint."""


class Seats:
    """The seats after some moves, by plain Python. A user moves to a seat that is free, or else leaves."""

    def __init__(self) -> None:
        self.rows: dict[int, SeatChange] = {}

    def move(self, move: Move) -> list[SeatChange]:
        """Returns the changes that a move makes, which come from the task of its user."""
        user, seat, note = move
        before = self.rows.pop(user, None)
        taken = {row.seat for row in self.rows.values()}
        kind = RowKind.UPDATE_AFTER if before else RowKind.INSERT
        stays = seat < SEATS and seat not in taken
        found = []
        if before:
            found.append(msgspec.structs.replace(before, kind=RowKind.UPDATE_BEFORE if stays else RowKind.DELETE))
        if stays:
            self.rows[user] = SeatChange(kind, seat, user, note, [str(note)])
            found.append(self.rows[user])
        return found

    @property
    def table(self) -> list[str]:
        """The rows of the table, as texts, in which NaN equals NaN."""
        return as_texts([msgspec.structs.asdict(row) for row in self.rows.values()])


def as_texts(rows: list[dict[str, Any]]) -> list[str]:
    """Returns rows as texts without their kind."""
    return sorted(
        repr(
            sorted(
                (name, value + 0.0 if name == "note" and value is not None else value) for name, value in row.items()
            )
        )
        for row in [{name: value for name, value in row.items() if name != "kind"} for row in rows]
    )
