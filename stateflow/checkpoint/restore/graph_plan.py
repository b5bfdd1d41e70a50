"""The changes of a job's graph in a restore plan: the request, the result, and what to warn of. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from stateflow.checkpoint.restore.graph_assignment import DroppedState, StateMove
from stateflow.state.handles import Document


@dataclass(frozen=True)
class GraphChanges:
    """Decisions of the user about a graph that has changed.

    Attributes:
        maps: operators, states and sources with new names, each as ``OLD=NEW``; see `graph_map`.
        sources: positions of sources, each as ``UID=POSITION``.
    """

    maps: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


class GraphPlan(Document, frozen=True, kw_only=True):
    """The part of a restore plan about a graph that has changed. An execution must come to the same result."""

    maps: list[str] = []
    """The mappings as given."""
    sources: list[str] = []
    """The positions of sources as given."""
    drop: list[str] = []
    """The operators and states to drop, as given."""
    at: str = ""
    """The time that ``latest`` refers to; empty without positions."""
    moves: list[StateMove] = []
    """States that get another operator or name."""
    dropped: list[DroppedState] = []
    """States that are not restored, of operators that are restored otherwise."""
    old_max_parallelism: int = 0
    """Number of key groups of the target's keyed state; 0 if it is that of the job."""
    max_parallelism: int = 0
    """The number that the state gets; 0 if it is that of the target."""


class SourceAction(StrEnum):
    """What a restore does with the position of a source."""

    KEPT = "kept"
    NEW = "new"
    RESET = "reset"
    REPLACED = "replaced"
    """The position is kept although the source reads other data."""
    REMOVED = "removed"


_CAUTIONS = {
    SourceAction.RESET: "its position is set. Input after the new position that was processed up to the target is "
    "processed again, and its output is written a second time; input before it that was not processed is skipped, and "
    "its output is missing. Rows that are older than the watermark of an operator are late",
    SourceAction.REPLACED: "it reads other data than before, from the same position: if the position does not mean the "
    "same place there, input is lost or processed twice",
    SourceAction.NEW: "the target has no position of it: it begins at its start",
    SourceAction.REMOVED: "the job does not have it: its position is dropped, and input that was not read yet is never "
    "read",
}


def source_caution(action: SourceAction) -> str | None:
    """Returns the caution about a change of a source's position; None if there is none."""
    return _CAUTIONS.get(action)


def renamed_caution(removed: Sequence[str], new: Sequence[str]) -> str | None:
    """Returns the caution about sources that may have been renamed; None if that is not possible.

    Args:
        removed: uids of the sources that the job no longer has.
        new: uids of the sources that the target does not have.
    """
    if not removed or not new:
        return None
    return (
        f"if a new source, {', '.join(new)}, is {removed[0]} under another uid, its input is processed a second time; "
        f"to keep the position, plan with --map {removed[0]}={new[0]}"
    )


def key_groups_caution(graph: GraphPlan) -> str | None:
    """Returns the caution about state that gets another number of key groups; None if it keeps that of the target."""
    if graph.max_parallelism == graph.old_max_parallelism:
        return None
    return (
        f"gets {graph.max_parallelism:,} key groups instead of {graph.old_max_parallelism:,}: the restore writes all "
        "of it again, which takes longer than a copy, and local disk of its size"
    )


def describe_moves(graph: GraphPlan) -> list[str]:
    """Returns one line for each state that gets another operator or name, or is dropped.

    States that an operator gets under their names are one line.
    """
    whole: dict[tuple[str, str], list[str]] = {}
    for move in graph.moves:
        if move.old_state == move.new_state:
            whole.setdefault((move.old, move.new), []).append(move.old_state)
    lines = [f"{old} → {new}: {', '.join(names)}" for (old, new), names in whole.items()]
    lines += [
        f"{move.old}.{move.old_state} → {move.new}.{move.new_state}"
        for move in graph.moves
        if move.old_state != move.new_state
    ]
    return lines + [f"{state.uid}.{state.state}: dropped" for state in graph.dropped]
