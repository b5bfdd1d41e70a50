"""The index of the history: the hash of each of its objects, in an object whose hash the log contains.

A log entry refers to the newest index, and entries are linked by their hashes, so that the history of a job cannot be
changed without a trace: a changed, exchanged or deleted object does not match its hash. Objects that are newer than the
index are not verified yet. Only runs write indexes, each for its own next log entry.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

from stateflow import failpoints
from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import read_document, write_document
from stateflow.errors import DataError, HistoryChanged, MissingFile
from stateflow.state.handles import Document, FileHandle
from stateflow.storage import Storage
from stateflow.storage.paths import HISTORY, history_index_key, history_records, history_seq

LIMIT = 16 << 20
"""Size of the largest history object that is written or read, in bytes."""
_NEW_AT_ONCE = 1000
"""Number of new objects that one update reads; a job root of an older version may have many."""
_READERS = 8
_ATTEMPTS = 3
_SHOWN = 5


class LostIndex(Document, frozen=True, kw_only=True):
    """An index that a run could not read, so that it could not continue it."""

    key: str
    seq: int
    """The newest log entry then. The loss is reported until the history would no longer retain anything older."""


class HistoryIndex(Document, frozen=True, kw_only=True):
    """The hashes of the objects of the history."""

    objects: dict[str, str] = {}
    """SHA-256 by key. A run adds new objects, and removes those beyond ``history.retained`` before it deletes them."""
    lost: list[LostIndex] = []
    """Earlier indexes that were lost, oldest first."""


def keys_beyond(keys: Iterable[str], keep: int) -> list[str]:
    """Returns the keys of all but the newest objects that together have at least `keep` records."""
    beyond = []
    for key in sorted(keys, reverse=True):
        if keep <= 0:
            beyond.append(key)
        keep -= history_records(key)
    return beyond


class HistoryIndexWriter:
    """Extends the index of a job's history, for one run. No protocol step depends on it.

    Args:
        root: the job root.
        head: the log entry that the run was restored from.

    Attributes:
        handle: the newest index, for the run's next log entry; None before the first.
    """

    def __init__(self, root: JobRoot, head: Head) -> None:
        self._root = root
        self._generation = head.entry.generation
        self._index: HistoryIndex | None = None
        # The objects in each index that the newest log entry may refer to, by the key of the index, oldest first.
        self._listed: dict[str, frozenset[str]] = {}
        self._written: list[str] = []
        self.handle = head.entry.history

    def update(self, head: Head, keep: int) -> None:
        """Adds the objects that the index does not contain yet.

        An object that is in the index already is never read again: its hash stays, whatever its content is now, and
        also if the object is missing.

        Args:
            head: the run's newest log entry.
            keep: number of records that the history retains.

        Raises StorageError or ConfigError.
        """
        before = self._load(head)
        found = [blob.key for blob in self._root.storage.list(HISTORY)]
        beyond = frozenset(keys_beyond({*found, *before.objects}, keep))
        kept = {key: digest for key, digest in before.objects.items() if key not in beyond}
        new = islice((key for key in reversed(found) if key not in kept and key not in beyond), _NEW_AT_ONCE)
        objects = dict(sorted({**kept, **_digests(self._root.storage, list(new))}.items()))
        after = HistoryIndex(objects=objects, lost=_still_lost(before.lost, objects, keep))
        if after != before or (self.handle is None and (objects or after.lost)):
            self._write(after, head)

    def listed(self, head: Head) -> frozenset[str]:
        """Returns the objects that must not be deleted: those that the index of `head`, or a newer one, contains."""
        self._load(head)
        # A long run has written many indexes: what only those before the index of `head` contain can go.
        keys = list(self._listed)
        committed = _key(head.entry.history)
        for older in keys[: keys.index(committed)] if committed in keys else ():
            del self._listed[older]
        return frozenset().union(*self._listed.values())

    def _load(self, head: Head) -> HistoryIndex:
        if self._index is None:
            try:
                self._index = read_index(self._root.storage, self.handle)
            except DataError:
                # Not continued, but reported: a new index alone would hide what happened to the older objects.
                assert self.handle is not None
                self._index = HistoryIndex(lost=[LostIndex(key=self.handle.key, seq=head.entry.seq)])
                self.handle = None
            self._listed[_key(self.handle)] = frozenset(self._index.objects)
        return self._index

    def _write(self, index: HistoryIndex, head: Head) -> None:
        storage = self._root.storage
        key = history_index_key(self._generation, self._root.clock.new_id())
        self.handle = write_document(storage, key, index)
        self._index = index
        self._listed[key] = frozenset(index.objects)
        failpoints.hit("history.indexed")
        # A long run writes many. Those of older runs are garbage of the collection.
        committed = _key(head.entry.history)
        storage.delete([old for old in self._written if old != committed])
        self._written = [old for old in self._written if old == committed] + [key]


def _key(handle: FileHandle | None) -> str:
    return handle.key if handle else ""


def _still_lost(lost: list[LostIndex], objects: Iterable[str], keep: int) -> list[LostIndex]:
    """Returns the lost indexes with objects that the history would still retain, as far as it can be known."""

    def is_over(index: LostIndex) -> bool:
        return sum(history_records(key) for key in objects if history_seq(key) > index.seq) >= keep

    return [index for index in lost if not is_over(index)]


@dataclass(frozen=True)
class HistoryCheck:
    """The history of a job compared with its index.

    Attributes:
        verified: keys of the objects that are as in the index.
        changed: keys of objects with another content than in the index.
        missing: keys of objects in the index that do not exist.
        lost: keys of indexes that do not exist, or are not as the log records them.
        unverified: keys of objects that no index contains: they are newer, or a version without indexes wrote them.
    """

    verified: frozenset[str] = frozenset()
    changed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    unverified: frozenset[str] = frozenset()

    def error(self) -> HistoryChanged | None:
        """Returns the error that names what was changed; None if nothing was."""
        facts = {"changed": self.changed, "missing": self.missing, "lost": self.lost}
        found = {name: list(keys[:_SHOWN]) for name, keys in facts.items() if keys}
        if not found:
            return None
        return HistoryChanged(
            "the history was changed after it was recorded",
            hint="state and tables are not affected; find out who can write to the job root, and compare its history "
            "with a copy",
            number=sum(map(len, facts.values())),
            **found,
        )


def check_history(root: JobRoot) -> HistoryCheck:
    """Compares every object of the history with the index; safe while a run is active.

    Raises DataError when the log is damaged, or StorageError.
    """
    head = root.log.read_head()
    for _ in range(_ATTEMPTS):
        found = _check_at(root.storage, head)
        newer = root.log.read_head()
        # A run may have replaced the index, and then have deleted what the new one no longer contains.
        if found.error() is None or _index_of(newer) == _index_of(head):
            break
        head = newer
    return found


def _index_of(head: Head | None) -> FileHandle | None:
    return head.entry.history if head else None


def _check_at(storage: Storage, head: Head | None) -> HistoryCheck:
    handle = _index_of(head)
    try:
        index = read_index(storage, handle)
    except DataError:
        index = HistoryIndex(lost=[LostIndex(key=handle.key if handle else "", seq=0)])
    found = _digests(storage, [blob.key for blob in storage.list(HISTORY)])
    known = index.objects
    return HistoryCheck(
        verified=frozenset(key for key in known if found.get(key) == known[key]),
        changed=tuple(key for key in known if found.get(key, known[key]) != known[key]),
        missing=tuple(key for key in known if key not in found),
        lost=tuple(lost.key for lost in index.lost),
        unverified=frozenset(found.keys() - known.keys()),
    )


def read_index(storage: Storage, handle: FileHandle | None) -> HistoryIndex:
    """Returns the index that a log entry refers to; an empty one for None. Raises MissingFile or CorruptFile."""
    return read_document(storage, handle, HistoryIndex) if handle else HistoryIndex()


def _digests(storage: Storage, keys: list[str]) -> dict[str, str]:
    """Returns the SHA-256 of each object; empty for one that is too large, without those that were deleted."""
    with ThreadPoolExecutor(_READERS) as pool:
        found = zip(keys, pool.map(lambda key: _digest(storage, key), keys), strict=True)
        return {key: digest for key, digest in found if digest is not None}


def _digest(storage: Storage, key: str) -> str | None:
    try:
        return hashlib.sha256(storage.get(key, LIMIT)).hexdigest()
    except MissingFile:
        return None
    except DataError:
        return ""
