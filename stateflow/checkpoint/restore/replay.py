"""What the job has read since a checkpoint, by its records: a restore makes the next runs read that again."""

from __future__ import annotations

from collections.abc import Iterable, Set

from stateflow.checkpoint.ancestry import came_from
from stateflow.checkpoint.history import COMPLETED, CheckpointRecord, read_records
from stateflow.checkpoint.jobroot import JobRoot
from stateflow.checkpoint.log import Head
from stateflow.checkpoint.untold import told_at


def rows_since(root: JobRoot, head: Head, checkpoint_id: int) -> int | None:
    """Rows that the job's present state has read since a checkpoint; None when records of that time are missing."""
    retained = {ref.id for ref in root.line(head)}
    return count_rows(head, retained, checkpoint_id, read_records(root.storage, told=told_at(root, head)))


def count_rows(
    head: Head, retained: Set[int], checkpoint_id: int, records: Iterable[CheckpointRecord]
) -> int | None:
    """As `rows_since`, of records in any order; pure.

    Args:
        retained: ids of the checkpoints that the job can continue from.
    """
    known = {r.checkpoint_id: r.rows_in for r in records if r.status == COMPLETED}
    restores = {r.seq for r in head.entry.ancestry.restores} if head.entry.ancestry else set()
    needed = {number for number in retained if number > checkpoint_id} - restores
    is_trimmed = all(number > checkpoint_id for number in known) and checkpoint_id > 0
    if is_trimmed or not needed <= known.keys():
        return None
    since = {number: came_from(head, number, retained) for number in known if number > checkpoint_id}
    if None in since.values():
        return None
    return sum(known[number] for number, is_ours in since.items() if is_ours)


def is_run_open(head: Head) -> bool:
    """Whether the job's newest run has not ended in good order: it works, or it was killed."""
    # A restore claims the job as a run does, and commits nothing.
    restores = {r.seq for r in head.entry.ancestry.restores} if head.entry.ancestry else set()
    is_restore = head.entry.generation in restores and head.entry.ordinal == 0
    return not head.entry.ended and not is_restore
