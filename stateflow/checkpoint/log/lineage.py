"""From which checkpoints a job's present state came, as its newest log entry tells. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Set

from stateflow.checkpoint.log import Head


def came_from(head: Head, checkpoint_id: int, retained: Set[int]) -> bool | None:
    """Whether the job's present state came from a checkpoint; False for one that a restore has undone.

    Args:
        retained: ids of the checkpoints that the job can continue from.

    None where that cannot be told: the log was begun by a version that did not record its restores.
    """
    if checkpoint_id in retained:
        return True
    known = head.entry.ancestry
    if known is None:
        return None
    parts = line_of({r.seq: r.base for r in known.restores}, head.entry.seq)
    if not any(checkpoint_id in part for part in parts):
        return False
    return True if checkpoint_id >= known.since else None


def line_of(restores: Mapping[int, int], newest: int) -> list[range]:
    """The numbers that are not on a branch which a restore has left, newest first.

    Args:
        restores: number of each restore's own entry, and of the checkpoint that it went back to.
        newest: number of the newest entry.
    """
    parts = []
    while (back := max((seq for seq in restores if seq <= newest), default=0)) > 0:
        parts.append(range(back, newest + 1))
        # Before that the line is the one on which this checkpoint was made.
        newest = min(restores[back], back - 1)
    return [*parts, range(1, newest + 1)]
