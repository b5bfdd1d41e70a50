"""Decides which stored objects are garbage. Pure functions.

Reference counts are not stored; they follow from the manifests of the head and of the checkpoints that it keeps. A file
is garbage when none of these refers to it and no later commit can: a commit refers only to its parent's files, or to
files of its own generation with an ordinal above its parent's. So garbage at a verified head stays garbage, however
long the collector is then paused. No lock, clock or age is needed.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Set
from dataclasses import dataclass

from stateflow.checkpoint.log.checkpoint_log import is_old_entry
from stateflow.checkpoint.log.documents import LogEntry
from stateflow.storage import BlobInfo
from stateflow.storage.paths import (
    DATA,
    FORMAT,
    HISTORY,
    HISTORY_INDEX,
    LOG,
    PROBE,
    REQUESTS,
    SAVEPOINTS,
    SERVERS,
    SPARK,
    DataKey,
    entry_seq,
    owned_generation,
    parse_data,
)

COLLECTED_AREAS = (DATA, SPARK, PROBE, HISTORY_INDEX, LOG)
"""Key prefixes that are searched for garbage."""
RUN_AREAS = (SPARK, PROBE, HISTORY_INDEX, LOG)
"""Key prefixes where the newest entry alone determines what is garbage."""


@dataclass(frozen=True)
class GarbageScan:
    """The objects that a collection may delete, and keys that it does not know and does not delete."""

    garbage: tuple[BlobInfo, ...]
    unknown: tuple[str, ...]


class Fate(enum.Enum):
    """Whether a collection deletes a stored object, and why."""

    NEEDED = "a checkpoint needs it"
    AHEAD = "the newest run has not committed it yet: its next commit may need it"
    KEPT_ENTRY = "it is the newest log entry, the current checkpoint's entry, or newer than this command has seen"
    RUNNING = "it belongs to the newest run"
    FORMAT = "the file identifies the job root and its format"
    HISTORY = "it is history; a run deletes old records"
    SAVEPOINT = "it belongs to a savepoint; `stateflow savepoint dispose` deletes it"
    UNFINISHED = "it belongs to an unfinished or partly deleted savepoint; a collection deletes it"
    REQUEST = "it is a request to a run, or its answer; a run deletes old ones"
    SERVER = "it is the lease of a state server; servers delete those that have ended"
    OUTSIDE = "it is outside of what a collection searches"
    GARBAGE = "nothing needs it, and no later commit can"
    UNKNOWN = "it does not have a name that stateflow uses"

    @property
    def is_deletable(self) -> bool:
        """Whether the object can be deleted, now and at any later time."""
        return self is Fate.GARBAGE


_OUTSIDE = {HISTORY: Fate.HISTORY, SAVEPOINTS: Fate.SAVEPOINT, REQUESTS: Fate.REQUEST, SERVERS: Fate.SERVER}
"""Key prefixes with separate retention rules, which `find_garbage` does not search."""


def find_garbage(head: LogEntry, live: Set[str], blobs: Iterable[BlobInfo]) -> GarbageScan:
    """Returns the garbage among stored objects.

    Args:
        head: a verified newest entry.
        live: keys of all objects that `head` needs: the manifests of its own and of kept checkpoints, the files in
            these manifests, lists of retained checkpoints and of pending output, and the log entries of checkpoints
            whose references have no manifest, and the index of the history.
        blobs: the stored objects below `COLLECTED_AREAS`.
    """
    garbage, unknown = [], []
    for blob in blobs:
        fate = fate_of(head, live, blob.key)
        if fate is Fate.UNKNOWN:
            unknown.append(blob.key)
        elif fate.is_deletable:
            garbage.append(blob)
    return GarbageScan(tuple(garbage), tuple(unknown))


def fate_of(head: LogEntry, live: Set[str], key: str) -> Fate:
    """Returns whether one object is garbage, and why. `key` may be any key; other arguments as for `find_garbage`."""
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
    return Fate.UNKNOWN if key.startswith(COLLECTED_AREAS) else _fate_outside(key)


def _fate_outside(key: str) -> Fate:
    if key == FORMAT:
        return Fate.FORMAT
    return next((fate for area, fate in _OUTSIDE.items() if key.startswith(area)), Fate.OUTSIDE)


def is_past(data: DataKey, head: LogEntry) -> bool:
    """Returns whether no commit after `head` can refer to this file.

    The ordinal decides, not the sequence number: a driver whose COMMIT was delayed by ADMIN entries gets a higher
    sequence number than it expected when it named its files.
    """
    if data.generation != head.generation:
        return data.generation < head.generation
    return data.ordinal <= head.ordinal
