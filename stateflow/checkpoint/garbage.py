"""What may be deleted. Pure.

Reference counts are never stored; they follow from the manifests of the head and of everything that it keeps. A file
is garbage when none of them names it and no commit to come can: a commit refers only to its parent's files, or to
files of its own generation with an ordinal above its parent's. So what is garbage at a verified head is garbage for
ever, however long the collector then sleeps. It needs no lock, no clock and no age.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass

from stateflow.checkpoint.documents import LogEntry
from stateflow.storage import BlobInfo
from stateflow.storage.paths import DataKey, entry_seq, owned_generation, parse_data


@dataclass(frozen=True)
class Findings:
    """What a collection may delete, and names that it does not know and leaves alone."""

    garbage: tuple[BlobInfo, ...]
    unknown: tuple[str, ...]


def find_garbage(head: LogEntry, live: Set[str], blobs: Iterable[BlobInfo]) -> Findings:
    """Splits what is stored.

    Args:
        head: a verified newest entry.
        live: keys of all files that the manifests of `head` and of the checkpoints it keeps name, and of these
            manifests.
        blobs: what is stored below ``data/``, ``log/``, ``spark/`` and ``probe/``.
    """
    garbage, unknown = [], []
    for blob in blobs:
        verdict = _is_garbage(head, live, blob.key)
        if verdict is None:
            unknown.append(blob.key)
        elif verdict:
            garbage.append(blob)
    return Findings(tuple(garbage), tuple(unknown))


def _is_garbage(head: LogEntry, live: Set[str], key: str) -> bool | None:
    data = parse_data(key)
    if data is not None:
        return key not in live and is_past(data, head)
    seq = entry_seq(key)
    if seq is not None:
        return _is_old_entry(head, seq)
    generation = owned_generation(key)
    return None if generation is None else generation < head.generation


def is_past(data: DataKey, head: LogEntry) -> bool:
    """Whether no commit after `head` can bring this file in.

    The ordinal decides, not the sequence number: a driver whose COMMIT was delayed by ADMIN entries gets a higher
    sequence number than it expected when it named its files.
    """
    if data.generation != head.generation:
        return data.generation < head.generation
    return data.ordinal <= head.ordinal


def _is_old_entry(head: LogEntry, seq: int) -> bool:
    """Entries from the present checkpoint on stay: whoever appends must be able to follow them one by one."""
    kept = {r.id for r in head.retained} | {p.checkpoint.id for p in head.pinned}
    present = head.seq if head.is_checkpoint else (head.checkpoint.id if head.checkpoint else 0)
    return seq < present and seq not in kept
