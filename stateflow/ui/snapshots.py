"""Job roots in memory: the newest log entry, its manifest and the records of the history, read once and then followed.

Records are immutable, so a look at a job root that has not changed is one or two lists. The list of the history begins
some objects before its end, because the record of an action may have the number of an older log entry; from time to
time it is the whole list, which shows what was trimmed. The newest records are only in the manifest of the newest log
entry.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

from stateflow.checkpoint.history import (
    LIMIT,
    HistoryCheck,
    HistoryIndex,
    Integrity,
    compare_with_index,
    decode_records,
    read_index_of,
    record_identity,
)
from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.documents import (
    ABORTED,
    SAVEPOINT_RECORD,
    ActionRecord,
    CheckpointRecord,
    Manifest,
    Record,
    is_position,
    seq_of,
)
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.clock import Clock
from stateflow.errors import DataError, MissingFile, UnknownJob
from stateflow.helpers import DaemonExecutor
from stateflow.operations.checkpoints import ActionEntry, Entries, Entry
from stateflow.operations.job_root import open_root_in
from stateflow.operations.status import JobDescription, describe_at, read_newest_manifest
from stateflow.requesters import NameSource, Requester
from stateflow.runtime.backlog import StoredBacklog, read_stored_backlog
from stateflow.storage import BlobInfo, Storage
from stateflow.storage.paths import (
    BACKLOG,
    FORMAT,
    HISTORY,
    LOG,
    history_key,
    history_records,
    history_seq,
    log_entry,
    progress_folder,
)

LARGEST_HISTORY = 20_000
"""Records of a job root that are read, the newest ones: twice as many as a history retains by default."""
_BRIEF = 64
"""Newest objects of the history that are read for a list of jobs, which has no older records."""
_BRIEF_SAVEPOINTS = 16
_AT_ONCE = 256
"""Objects that a look reads, so that it ends before its deadline."""
_OVERLAP = 500
"""Newest objects of the history that are listed again at each look: with the new ones, one page of a bucket."""
_WHOLE_LIST = timedelta(seconds=60)
"""Time between two lists of the whole history."""
_TIME_STEP = timedelta(seconds=2)
"""Steps in which file systems count time: a folder that has changed later than this before may do so again unseen."""
_READERS = 8
_GROWTH = 3
"""Bytes in memory for each byte of a stored document, measured with records of jobs of several operators."""


class Extent(IntEnum):
    """How much of a job's history is read."""

    NEWEST = 0
    """The newest records, and the newest ones of savepoints and of their disposal."""
    ACTIONS = 1
    """Also all actions of persons."""
    WHOLE = 2
    """All records, up to `LARGEST_HISTORY`."""


class PointKey(NamedTuple):
    """Place of a point among all points of a job: the number of its log entry, and what identifies its record."""

    seq: int
    generation: int
    ordinal: int
    kind: str


@dataclass(frozen=True)
class HistoryObject:
    """An object of the history, decoded.

    Attributes:
        blob: the object as it was listed.
        sha256: hash of its content.
        records: its records; none if it does not decode.
    """

    blob: BlobInfo
    sha256: str
    records: Sequence[Record]

    @property
    def digest(self) -> int:
        """Identifies the object; the sum of several identifies these."""
        return int.from_bytes(hashlib.sha256(f"{self.blob.key} {self.sha256}".encode()).digest()[:16])

    @property
    def is_of_person(self) -> bool:
        """Whether it has an action of a person."""
        return any(isinstance(each, ActionRecord) and is_of_person(each) for each in self.records)


def is_of_person(record: ActionRecord) -> bool:
    """Returns whether a person did, approved or requested an action, and not a schedule or a run."""
    people = (Requester.parse(each).source for each in (record.by, record.requested_by) if each)
    return any(source not in (NameSource.PROCESS, NameSource.AIRFLOW_DAG) for source in people)


@dataclass(frozen=True)
class Point:
    """A record of a checkpoint or a restore, with its place among all points.

    Attributes:
        key: its place.
        record: the record.
        source: key of its object; empty if only the manifest of the newest log entry has it.
    """

    key: PointKey
    record: Record
    source: str

    @property
    def is_aborted(self) -> bool:
        """Whether it is a checkpoint that was not completed."""
        return isinstance(self.record, CheckpointRecord) and self.record.status == ABORTED


@dataclass(frozen=True)
class Action:
    """A record of an action.

    Attributes:
        record: the record.
        source: key of its object.
    """

    record: ActionRecord
    source: str


@dataclass(frozen=True)
class History:
    """The records of the objects that were read, in their order. A change costs little, compared with making it again.

    Attributes:
        points: checkpoints, also aborted ones, and restores, oldest first.
        actions: actions, oldest first.
        digest: identifies the objects, whatever order they were read in.
        size: bytes of the objects.
    """

    points: Sequence[Point] = ()
    actions: Sequence[Action] = ()
    digest: int = 0
    size: int = 0

    def changed(self, removed: Sequence[HistoryObject], added: Sequence[HistoryObject]) -> History:
        """Returns the history without some objects and with others."""
        gone = {each.blob.key for each in removed}
        points = [each for each in self.points if each.source not in gone] if gone else self.points
        actions = [each for each in self.actions if each.source not in gone] if gone else self.actions
        read = [(each.blob.key, record) for each in added for record in each.records]
        new = [Point(_point_key(record), record, key) for key, record in read if is_position(record)]
        done = [Action(record, key) for key, record in read if isinstance(record, ActionRecord)]
        difference = sum(each.digest for each in added) - sum(each.digest for each in removed)
        return History(
            merge_points(points, new),
            sorted([*actions, *done], key=lambda each: (each.record.ended_at, each.source)) if done else actions,
            (self.digest + difference) % (1 << 128),
            self.size + sum(each.blob.size for each in added) - sum(each.blob.size for each in removed),
        )


def merge_points(points: Sequence[Point], new: Sequence[Point]) -> Sequence[Point]:
    """Returns all points in their order, each once, by the object that `points` has it from."""
    if not new:
        return points
    ordered = sorted([*new, *points], key=lambda each: each.key)
    later = itertools.chain(itertools.islice(ordered, 1, None), [None])
    return [each for each, after in zip(ordered, later, strict=True) if after is None or after.key != each.key]


@dataclass(frozen=True, eq=False)
class Position:
    """A log entry with what it refers to.

    Attributes:
        head: the newest log entry.
        blob: the entry as it was listed.
        manifest: the manifest of its checkpoint; None without one, or if it is damaged.
        description: the status of the job.
        entries: makes entries of records.
        index: the index of the history.
        backlog: the newest report of the input that waits; None if there is none.
    """

    head: Head
    blob: BlobInfo
    manifest: Manifest | None
    description: JobDescription
    entries: Entries
    index: HistoryIndex
    backlog: StoredBacklog | None


@dataclass(frozen=True)
class Snapshot:
    """A job root as it was at one look. All values are immutable.

    Attributes:
        root: the job root.
        position: its newest log entry; None if no run has begun.
        objects: the objects of the history that were read, by key, in order of the keys.
        history: their records.
        extent: how much of the history was read.
        truncated: whether the history has older records than those that are ever read.
        savepoints_known: whether the record of each savepoint that the job ever made was read; False also if the oldest
            records were deleted, or one is damaged.
    """

    root: JobRoot
    position: Position | None = None
    objects: Mapping[str, HistoryObject] = field(default_factory=dict)
    history: History = History()
    extent: Extent = Extent.NEWEST
    truncated: bool = False
    savepoints_known: bool = False

    @property
    def complete(self) -> bool:
        """Whether all objects were read."""
        return self.extent is Extent.WHOLE

    @cached_property
    def version(self) -> str:
        """Identifies the content: another process that reads the same objects has the same version."""
        position = _facts_of(self.position) if self.position else None
        facts = (self.root.job.job_uuid, position, self.history.digest, *self.coverage)
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]

    @property
    def coverage(self) -> tuple[int, bool, bool]:
        """The extent that was read, and which gaps are known."""
        return int(self.extent), self.truncated, self.savepoints_known

    @property
    def memory(self) -> int:
        """Bytes of memory that it takes, as an estimate."""
        head = self.position.head.entry if self.position else None
        return (self.history.size + (head.manifest.size if head and head.manifest else 0)) * _GROWTH

    @cached_property
    def points(self) -> Sequence[Point]:
        """The checkpoints, also aborted ones, and restores, oldest first."""
        if self.position is None or self.position.manifest is None:
            return self.history.points
        pending = self.position.manifest.pending_records(self.position.head.checkpoint_id)
        return merge_points(self.history.points, [Point(_point_key(record), record, "") for record in pending])

    @property
    def actions(self) -> Sequence[Action]:
        """The actions, oldest first."""
        return self.history.actions

    @cached_property
    def check(self) -> HistoryCheck:
        """The comparison of the objects with the index of the history; only of those that were read."""
        found = {key: each.sha256 for key, each in self.objects.items()}
        index = self.position.index if self.position else HistoryIndex()
        if not self.complete or self.truncated:
            index = HistoryIndex(objects={k: v for k, v in index.objects.items() if k in found}, lost=index.lost)
        return compare_with_index(index, found)

    @cached_property
    def _changed(self) -> frozenset[str]:
        return frozenset(self.check.changed)

    def integrity_of(self, source: str) -> Integrity:
        """Returns whether the records of an object are as they were recorded; records of the manifest always are."""
        if source in self._changed:
            return Integrity.CHANGED
        return Integrity.VERIFIED if not source or source in self.check.verified else Integrity.UNVERIFIED

    def entry_of(self, each: Point | Action) -> Entry:
        """Returns the entry of a record, as of the newest log entry."""
        assert self.position is not None
        return self.position.entries.of(each.record, self.integrity_of(each.source))

    def entries_of(self, actions: Iterable[Action]) -> Iterator[ActionEntry]:
        """Yields the entries of actions, as of the newest log entry."""
        for action in actions:
            entry = self.entry_of(action)
            if isinstance(entry, ActionEntry):
                yield entry

    def is_undone(self, point: Point) -> bool:
        """Returns whether a restore has undone a point; False for an aborted checkpoint."""
        if self.position is None or point.is_aborted:
            return False
        return self.position.entries.is_undone(seq_of(point.record))

    def is_retained(self, point: Point) -> bool:
        """Returns whether the job keeps a point, so that it can be restored."""
        return self.position is not None and not point.is_aborted and self.position.entries.is_retained(point.record)


def _facts_of(position: Position) -> tuple[object, ...]:
    """Returns a log entry with what it does not tell: reports of runs, and whether its files could be read."""
    is_damaged = position.manifest is None, len(position.index.lost)
    return position.head.sha256, position.description, position.backlog, is_damaged


def _point_key(record: Record) -> PointKey:
    return PointKey(seq_of(record), *record_identity(record))


class RootReader:
    """Follows one job root. All threads may use it; one at a time looks.

    Args:
        open_storage: opens the storage of the job root.
        clock: measures the time between lists.

    Attributes:
        snapshot: the job root at the last look; None before the first one that succeeded.
    """

    def __init__(self, open_storage: Callable[[], Storage], clock: Clock) -> None:
        self._open_storage = open_storage
        self._clock = clock
        self._lock = threading.Lock()
        self._listed_at: float | None = None
        self._listed: dict[str, BlobInfo] = {}
        self._stamp: int | None = None
        self._reports: list[str] = []
        # Keys of actions that no person did: the journal does not read them again.
        self._others: set[str] = set()
        self.snapshot: Snapshot | None = None

    def look(self, extent: Extent) -> Snapshot:
        """Returns the job root as it is now; of a long history, each look reads a further part, the newest first.

        Args:
            extent: how much of the history is read.

        Raises:
            UnknownJob: the job root does not exist.
            DataError, StorageError: it is damaged, or cannot be read.
        """
        with self._lock:
            return self._look(extent)

    def _look(self, extent: Extent) -> Snapshot:
        known, position = self._find_position()
        if position is None:
            nothing = replace(known, position=None, extent=Extent.WHOLE, truncated=False, savepoints_known=True)
            return self._publish(nothing, {})
        described = position.description
        if position is known.position and (described.run_open or described.restoring is not None):
            position = self._follow_reports(known, position)
        if known.position is not None and position.head.entry.generation != known.position.head.entry.generation:
            # A start trims the history.
            self._listed_at = None
        self._list_history(known.root.storage, position.head)
        return self._read(replace(known, position=position), extent)

    @property
    def memory(self) -> int:
        """Bytes of memory that the snapshot takes, as an estimate."""
        return self.snapshot.memory if self.snapshot else 0

    def shrink(self, extent: Extent) -> int | None:
        """Forgets what an extent does not have; returns the bytes that this frees, or None while a look is taken."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            before = self.snapshot
            if before is None:
                return 0
            newest = _brief({key: each.blob for key, each in before.objects.items()})
            has_actions = extent is Extent.ACTIONS
            kept = {k: each for k, each in before.objects.items() if k in newest or (has_actions and each.is_of_person)}
            if len(kept) == len(before.objects):
                return 0
            history = History().changed([], list(kept.values()))
            self.snapshot = replace(before, objects=kept, history=history, extent=min(before.extent, extent))
            return before.memory - self.snapshot.memory
        finally:
            self._lock.release()

    def _find_position(self) -> tuple[Snapshot, Position | None]:
        """Returns the present snapshot of the job root, and its newest log entry."""
        if self.snapshot is not None:
            try:
                position = self._position(self.snapshot)
            except DataError:
                position = None
            if position is not None:
                return self.snapshot, position
        # The root may belong to another job now: its FORMAT decides. Then its log is read again.
        known = self._open()
        return known, self._position(known)

    def _follow_reports(self, known: Snapshot, position: Position) -> Position:
        """Returns the position with what the newest run has reported without a log entry.

        It reports a batch that takes long, the tables that it has restored, and the input that waits.
        """
        storage = known.root.storage
        folders = progress_folder(position.head.entry.generation), BACKLOG
        reports = [blob.key for folder in folders for blob in storage.list(folder)]
        if reports == self._reports:
            return position
        described = _described_again(replace(known, position=position))
        self._reports = reports
        return described

    def _open(self) -> Snapshot:
        self._listed_at, self._listed, self._stamp, self._others = None, {}, None, set()
        storage = self.snapshot.root.storage if self.snapshot else self._open_storage()
        if storage.size(FORMAT) is None:
            hint = "correct the address, or start the job there: it is shown as soon as its job root exists"
            raise UnknownJob(f"there is no job root at {storage.uri}", hint=hint)
        return Snapshot(open_root_in(storage))

    def _position(self, known: Snapshot) -> Position | None:
        """Returns the newest log entry; the known one if the storage still lists it as the newest."""
        before, root = known.position, known.root
        if before is not None:
            seq = before.head.entry.seq
            listed = root.storage.list(LOG, log_entry(seq - 1))
            if [_identity(each) for each in listed] == [_identity(before.blob)]:
                return before
        if root.log.read_head() is None:
            return None
        return root.read_kept(lambda head: _read_position(root, head, before))

    def _list_history(self, storage: Storage, head: Head) -> None:
        now = self._clock.monotonic()
        is_old = self._listed_at is None or now - self._listed_at >= _WHOLE_LIST.total_seconds()
        if not is_old and self._is_unchanged(storage):
            return
        if is_old or not storage.lists_from_names:
            self._stamp = None
            changed_ns, seconds = _changed_ns(storage), self._clock.now().timestamp()
            self._listed = {blob.key: blob for blob in storage.list(HISTORY)}
            self._listed_at = now
            if changed_ns is not None and seconds - changed_ns / 1e9 > _TIME_STEP.total_seconds():
                self._stamp = changed_ns
            return
        keys = list(self._listed)
        after = keys[-_OVERLAP] if len(keys) > _OVERLAP else ""
        self._listed = {key: blob for key, blob in self._listed.items() if key <= after}
        # The failures of a run that works for long have the number of its CLAIM.
        own = history_key(head.entry.generation, "").removesuffix(".json")
        if own < after:
            kept = {key: blob for key, blob in self._listed.items() if not key.startswith(own)}
            self._listed = dict(sorted({**kept, **{blob.key: blob for blob in storage.list(own)}}.items()))
        self._listed |= {blob.key: blob for blob in storage.list(HISTORY, after)}

    def _is_unchanged(self, storage: Storage) -> bool:
        """Returns whether no file was added to, or removed from, a folder since it was listed."""
        return self._stamp is not None and _changed_ns(storage) == self._stamp

    def _read(self, known: Snapshot, extent: Extent) -> Snapshot:
        """Reads the objects that are not known yet, the newest first."""
        wanted, truncated = _within(self._listed, LARGEST_HISTORY)
        had = {key: each for key, each in known.objects.items() if key in wanted and _is_same(each, wanted[key])}
        extent = max(extent, known.extent) if known.objects else extent
        newest = set(wanted) if extent is Extent.WHOLE else _brief(wanted)
        keys = newest | had.keys()
        if extent is Extent.ACTIONS:
            keys |= {key for key in wanted if _is_action(key)} - self._others
        chosen = {key: blob for key, blob in wanted.items() if key in keys}
        missing = [chosen[key] for key in reversed(chosen) if key not in had]
        read = _read_objects(known.root.storage, missing[:_AT_ONCE])
        if read and self._is_at_known_head(known):
            # The description has the failure of a run, which no log entry has.
            known = replace(known, position=_described_again(known))
        others = {key for key, each in read.items() if _is_action(key) and not each.is_of_person}
        self._others = (self._others & wanted.keys()) | others
        forgotten = others - newest
        objects = {key: each for key, each in {**had, **read}.items() if key not in forgotten}
        if len(missing) > _AT_ONCE:
            extent = Extent.NEWEST
        elif len(chosen) == len(wanted) and not forgotten:
            extent = Extent.WHOLE
        savepoints_known = not truncated and _begins_with_the_job(wanted) and _has_savepoints(wanted, objects)
        found = replace(known, extent=extent, truncated=truncated, savepoints_known=savepoints_known)
        return self._publish(found, objects)

    def _is_at_known_head(self, known: Snapshot) -> bool:
        before = self.snapshot.position if self.snapshot else None
        return before is not None and known.position is not None and known.position.head is before.head

    def _publish(self, known: Snapshot, objects: Mapping[str, HistoryObject]) -> Snapshot:
        before = self.snapshot
        if before is None or before.root is not known.root:
            before = Snapshot(known.root)
        removed = [each for key, each in before.objects.items() if objects.get(key) is not each]
        added = [each for key, each in objects.items() if before.objects.get(key) is not each]
        is_other = (known.position, known.coverage) != (before.position, before.coverage)
        # What was computed of an unchanged snapshot stays.
        if before is not self.snapshot or removed or added or is_other:
            history = before.history.changed(removed, added)
            ordered = dict(sorted(objects.items())) if added else objects
            self.snapshot = replace(known, objects=ordered, history=history)
        assert self.snapshot is not None
        return self.snapshot


def _changed_ns(storage: Storage) -> int | None:
    """Returns when a file was last added to, or removed from, the folder of the history; None if it is not a folder."""
    path = storage.local_path(f"{HISTORY}-")
    try:
        return None if path is None else os.stat(path.parent).st_mtime_ns
    except OSError:
        return None


def _read_position(root: JobRoot, head: Head, before: Position | None) -> Position:
    (blob,) = root.storage.list(log_entry(head.entry.seq)) or [BlobInfo(log_entry(head.entry.seq), 0)]
    is_indexed = before is not None and before.head.entry.history == head.entry.history
    index = before.index if before is not None and is_indexed else read_index_of(root.storage, head)
    manifest = read_newest_manifest(root, head)
    description, backlog = describe_at(root, head, manifest), read_stored_backlog(root.storage, head)
    return Position(head, blob, manifest, description, Entries(root, head), index, backlog)


def _described_again(known: Snapshot) -> Position:
    """Returns the position with the history's facts about the newest run; the known one if its files are gone."""
    position = known.position
    assert position is not None
    try:
        return replace(
            position,
            description=describe_at(known.root, position.head, position.manifest),
            backlog=read_stored_backlog(known.root.storage, position.head),
        )
    except MissingFile:
        return position


def _within(listed: dict[str, BlobInfo], records: int) -> tuple[dict[str, BlobInfo], bool]:
    """Returns the newest objects that together have about so many records, and whether there are older ones."""
    found: list[str] = []
    for key in reversed(listed):
        if records <= 0:
            return {each: listed[each] for each in reversed(found)}, True
        found.append(key)
        records -= history_records(key)
    return dict(listed), False


def _brief(listed: Mapping[str, BlobInfo]) -> set[str]:
    """Returns the keys of the newest objects, and of the newest records of savepoints and of their disposal."""
    keys = list(listed)
    found = set(keys[-_BRIEF:])
    for kind in (SAVEPOINT_RECORD, "dispose"):
        # A savepoint of an old checkpoint has its number.
        own = sorted((key for key in keys if f"-{kind}-" in key), key=lambda key: listed[key].modified_ms)
        found |= set(own[-_BRIEF_SAVEPOINTS:])
    return found


def _is_action(key: str) -> bool:
    return "-checkpoints-" not in key


def _begins_with_the_job(listed: Mapping[str, BlobInfo]) -> bool:
    """Returns whether a history has its oldest records: of the first run's CLAIM, or of the checkpoint after it."""
    oldest = next(iter(listed), "")
    # An object of checkpoints has the number of its newest one.
    return history_seq(oldest) - history_records(oldest) <= 1


def _has_savepoints(listed: Iterable[str], objects: Mapping[str, HistoryObject]) -> bool:
    saved = (objects.get(key) for key in listed if f"-{SAVEPOINT_RECORD}-" in key)
    return all(each is not None and each.records for each in saved)


def _identity(blob: BlobInfo) -> tuple[str, int, int, str]:
    return blob.key, blob.size, blob.modified_ms, blob.version


def _is_same(known: HistoryObject, listed: BlobInfo) -> bool:
    return _identity(known.blob) == _identity(listed)


def _read_objects(storage: Storage, blobs: Sequence[BlobInfo]) -> dict[str, HistoryObject]:
    if len(blobs) <= 1:
        read = [_read_object(storage, blob) for blob in blobs]
    else:
        with DaemonExecutor(_READERS) as pool:
            read = list(pool.map(lambda blob: _read_object(storage, blob), blobs))
    return {each.blob.key: each for each in read if each is not None}


def _read_object(storage: Storage, blob: BlobInfo) -> HistoryObject | None:
    """Returns an object; None if it was trimmed meanwhile."""
    try:
        data = storage.get(blob.key, LIMIT)
    except MissingFile:
        return None
    except DataError:
        # Larger than any that stateflow writes.
        return HistoryObject(blob, "", ())
    return HistoryObject(blob, hashlib.sha256(data).hexdigest(), decode_records(blob.key, data))
