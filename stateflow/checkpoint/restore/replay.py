"""Counts the checkpoints of a job since a target and the rows read for them, which runs after a restore repeat."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass

from stateflow.checkpoint.history import read_pending_records, read_records
from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.lineage import is_ancestor
from stateflow.checkpoint.log.records import COMPLETED, CheckpointRecord


@dataclass(frozen=True)
class Replay:
    """What runs after a restore repeat.

    Attributes:
        rows: number of rows that the job has read since the target.
        checkpoints: number of checkpoints that it has completed since the target.
    """

    rows: int
    checkpoints: int


def replay_since(root: JobRoot, head: Head, checkpoint_id: int) -> Replay | None:
    """Returns what the job has done since a checkpoint; None when records are missing, or a restore has undone it.

    Args:
        root: the job root.
        head: the newest entry.
        checkpoint_id: id of the checkpoint.
    """
    retained = {ref.id for ref in root.checkpoints.restorable(head)}
    return count_replay(
        head, retained, checkpoint_id, read_records(root.storage, pending=read_pending_records(root, head))
    )


def count_replay(
    head: Head, retained: Set[int], checkpoint_id: int, records: Iterable[CheckpointRecord]
) -> Replay | None:
    """Returns the rows and checkpoints in records after a checkpoint. Pure.

    Returns None when records are missing, or when a restore has undone the checkpoint: what the current state has read
    is then not the input after that checkpoint.

    Args:
        head: the newest entry.
        retained: ids of the checkpoints that the job can continue from.
        checkpoint_id: id of the checkpoint.
        records: records of checkpoints, in any order.
    """
    if is_ancestor(head, checkpoint_id, retained) is False:
        return None
    known = {r.checkpoint_id: r.rows_in for r in records if r.status == COMPLETED}
    restores = {r.seq for r in head.entry.ancestry.restores} if head.entry.ancestry else set()
    needed = {number for number in retained if number > checkpoint_id} - restores
    is_trimmed = all(number > checkpoint_id for number in known) and checkpoint_id > 0
    if is_trimmed or not needed <= known.keys():
        return None
    since = {number: is_ancestor(head, number, retained) for number in known if number > checkpoint_id}
    if None in since.values():
        return None
    ours = [known[number] for number, is_ours in since.items() if is_ours]
    return Replay(sum(ours), len(ours))


def is_run_open(head: Head) -> bool:
    """Returns whether the job's newest run has not ended cleanly: it is running, was killed, or failed."""
    # A restore command appends a CLAIM like a run, but commits no checkpoint.
    restores = {r.seq for r in head.entry.ancestry.restores} if head.entry.ancestry else set()
    is_restore = head.entry.generation in restores and head.entry.ordinal == 0
    return not head.entry.ended and not is_restore
