"""What may be deleted. Pure.

Reference counts are never stored; they follow from the manifests of the head and of everything that it keeps. A file
is garbage when none of them names it and no commit to come can: a commit refers only to its parent's files, or to
files of its own generation with an ordinal above its parent's. So what is garbage at a verified head is garbage for
ever, however long the collector then sleeps. It needs no lock, no clock and no age.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Set
from dataclasses import dataclass

from stateflow.checkpoint.documents import LogEntry
from stateflow.storage import BlobInfo
from stateflow.storage.paths import (
    DATA,
    FORMAT,
    HISTORY,
    LOG,
    PROBE,
    REQUESTS,
    SAVEPOINTS,
    SPARK,
    DataKey,
    entry_seq,
    owned_generation,
    parse_data,
)

COLLECTED = (DATA, SPARK, PROBE, LOG)
"""Where garbage is looked for."""
OF_RUNS = (SPARK, PROBE, LOG)
"""What runs leave whether they commit or not; what of it is garbage, the newest entry alone says."""


@dataclass(frozen=True)
class Findings:
    """What a collection may delete, and names that it does not know and leaves alone."""

    garbage: tuple[BlobInfo, ...]
    unknown: tuple[str, ...]


class Fate(enum.Enum):
    """What becomes of a stored object, and why."""

    NEEDED = "a checkpoint needs it"
    AHEAD = "the newest run has not committed beyond it: its next commit may need it"
    KEPT_ENTRY = "it is the log's newest entry, the present checkpoint's, or newer than this command has seen"
    RUNNING = "it belongs to the newest run"
    FORMAT = "it says whose job root this is, and of which format"
    HISTORY = "it is history; a run lets old records go"
    SAVEPOINT = "it belongs to a savepoint; `stateflow savepoint dispose` deletes one"
    UNFINISHED = "of a savepoint that nobody completed, or that is being disposed of: a collection removes it"
    REQUEST = "it is a request to a run, or its answer; a run lets old ones go"
    OUTSIDE = "no collection looks at it"
    GARBAGE = "nothing needs it, and no commit to come can"
    UNKNOWN = "its name is none that stateflow gives"

    @property
    def may_go(self) -> bool:
        """Whether deleting it harms nobody, now and for ever."""
        return self is Fate.GARBAGE


_OUTSIDE = {HISTORY: Fate.HISTORY, SAVEPOINTS: Fate.SAVEPOINT, REQUESTS: Fate.REQUEST}
"""What has owners of its own, and rules of its own: `find_garbage` names none of it."""


def find_garbage(head: LogEntry, live: Set[str], blobs: Iterable[BlobInfo]) -> Findings:
    """Splits what is stored.

    Args:
        head: a verified newest entry.
        live: keys of all objects that `head` needs: the files that the manifests of it and of the checkpoints it keeps
            name, these manifests, lists of retained checkpoints and of pending output, and the log entries of
            checkpoints whose references lack what an entry says.
        blobs: what is stored below the areas that are collected.
    """
    garbage, unknown = [], []
    for blob in blobs:
        fate = fate_of(head, live, blob.key)
        if fate is Fate.UNKNOWN:
            unknown.append(blob.key)
        elif fate.may_go:
            garbage.append(blob)
    return Findings(tuple(garbage), tuple(unknown))


def fate_of(head: LogEntry, live: Set[str], key: str) -> Fate:
    """What becomes of one object. Arguments as for `find_garbage`; `key` may be any key of the job root."""
    if key in live:
        return Fate.NEEDED
    data, seq, generation = parse_data(key), entry_seq(key), owned_generation(key)
    if data is not None:
        return Fate.GARBAGE if is_past(data, head) else Fate.AHEAD
    if seq is not None:
        return Fate.GARBAGE if is_old_entry(head, seq) else Fate.KEPT_ENTRY
    if generation is not None:
        is_over = generation < head.generation or (generation == head.generation and head.ended)
        return Fate.GARBAGE if is_over else Fate.RUNNING
    return Fate.UNKNOWN if key.startswith(COLLECTED) else _fate_outside(key)


def _fate_outside(key: str) -> Fate:
    if key == FORMAT:
        return Fate.FORMAT
    return next((fate for area, fate in _OUTSIDE.items() if key.startswith(area)), Fate.OUTSIDE)


def is_past(data: DataKey, head: LogEntry) -> bool:
    """Whether no commit after `head` can bring this file in.

    The ordinal decides, not the sequence number: a driver whose COMMIT was delayed by ADMIN entries gets a higher
    sequence number than it expected when it named its files.
    """
    if data.generation != head.generation:
        return data.generation < head.generation
    return data.ordinal <= head.ordinal


def is_old_entry(head: LogEntry, seq: int) -> bool:
    """Whether an entry is not needed, as far as it does not belong to a checkpoint that is read from it.

    The newest entry says all, and whoever stands on an older one of the same run knows it by the run's nonce. The
    present checkpoint's own entry stays nevertheless: should the newest file get lost, the job stands there. Where an
    older version claimed the job, there is no nonce, and appenders follow the entries one by one: all from the present
    checkpoint on stay.
    """
    present = head.seq if head.is_checkpoint else (head.checkpoint.id if head.checkpoint else 0)
    return seq < head.seq and seq != present if head.run else seq < present
