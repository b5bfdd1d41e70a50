"""Decides whether two snapshots differ more than is allowed. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stateflow.compare.summary import StateDiff


@dataclass(frozen=True)
class DiffLimits:
    """How much a state may differ; each limit holds for each state alone.

    Attributes:
        keys: number of keys that may differ; None for any number.
        fraction: part of a state's keys that may differ, from 0 to 1; None for any part. The keys must be counted.
    """

    keys: int | None = 0
    fraction: float | None = None

    def exceeded_by(self, state: StateDiff) -> bool:
        """Returns whether a state differs more than allowed."""
        if self.keys is not None and state.keys > self.keys:
            return True
        return self.fraction is not None and state.keys > 0 and (state.fraction or 1.0) > self.fraction


def states_beyond(states: Iterable[StateDiff], limits: DiffLimits, ignored: Iterable[str] = ()) -> list[StateDiff]:
    """Returns the states that differ more than allowed.

    Args:
        states: the differences by state.
        limits: what is allowed.
        ignored: states that may differ in any way, each as ``OPERATOR`` or ``OPERATOR.STATE``.
    """
    names = set(ignored)
    return [
        state
        for state in states
        if not {state.operator, f"{state.operator}.{state.state}"} & names and limits.exceeded_by(state)
    ]
