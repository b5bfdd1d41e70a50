"""The checkpoints that a job's current state descends from, according to its newest log entry. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Set

from stateflow.checkpoint.log.checkpoint_log import Head


def is_ancestor(head: Head, checkpoint_id: int, retained: Set[int]) -> bool | None:
    """Returns whether the job's current state descends from a checkpoint; False for one that a restore has undone.

    Returns None where this is unknown: the log was started by a version that did not record restores.

    Args:
        head: the newest entry.
        checkpoint_id: id of the checkpoint.
        retained: ids of the checkpoints that the job can continue from.
    """
    if checkpoint_id in retained:
        return True
    known = head.entry.ancestry
    if known is None:
        return None
    parts = lineage_ranges({r.seq: r.base for r in known.restores}, head.entry.seq)
    if not any(checkpoint_id in part for part in parts):
        return False
    return True if checkpoint_id >= known.since else None


def lineage_ranges(restores: Mapping[int, int], newest: int) -> list[range]:
    """Returns the ranges of entry numbers that no restore has undone, newest first.

    Args:
        restores: number of the restored checkpoint, by number of the restore's own entry.
        newest: number of the newest entry.
    """
    parts = []
    for restored_at in sorted(restores, reverse=True):
        if 0 < restored_at <= newest:
            parts.append(range(restored_at, newest + 1))
            # Before the restore, the lineage is that of the restored checkpoint.
            newest = min(restores[restored_at], restored_at - 1)
    return [*parts, range(1, newest + 1)]
