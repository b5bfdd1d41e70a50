"""The history of a job: stored records of checkpoints, commands and failures, and the index of these records.

The index has the hash of each object of the history, and the log contains the hash of the index.

The history serves display and statistics only. No protocol step depends on it, and garbage collection ignores it.

A log entry refers to the newest index, and entries are linked by their hashes, so that the history of a job cannot be
changed without a trace: a changed, exchanged or deleted object does not match its hash. Objects that are newer than the
index are not verified yet. Only runs write indexes, each for its own next log entry.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from stateflow import failpoints
from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.documents import (
    COMPLETED,
    SAVEPOINT_RECORD,
    ActionRecord,
    CheckpointRecord,
    Record,
    is_position,
    seq_of,
    sort_records,
)
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import read_document, write_document
from stateflow.errors import DataError, HistoryChanged, MissingFile, StateflowError, TooLarge
from stateflow.helpers import DaemonExecutor
from stateflow.state.handles import Document, FileHandle
from stateflow.storage import Storage
from stateflow.storage.paths import (
    HISTORY,
    RUN_FILES,
    files_of_run_record,
    history_index_key,
    history_key,
    history_records,
    history_seq,
    run_file_key,
    run_record_key,
)
from stateflow.types.decoders import MEMORY_LIMIT, TooMuchMemory, check_decoded_size, decode_json

log = logging.getLogger(__name__)


_CHECKPOINTS = re.compile(r"history/[0-9]{20}-checkpoints-[0-9]+-[0-9a-f]{8}\.json")
BACKGROUND = "background"
"""Kind of the records of failed background work."""
FAILURE = "failure"
"""Kind of the records of runs that ended with an error."""
FAILED_START = "failed-start"
"""Kind of the records of runs that ended with an error before they had claimed the job."""
_HOUR_DIGITS = 8
_RUN = "run"
"""Part of the name of a run's failure record: a generation has at most one."""
RUN_START = "run"
"""Kind of the records of runs that have restored the job."""
LARGEST_JOB_FILE = 1 << 20
"""Size of the largest job file that the history has, in bytes."""
LONGEST_SENTENCE = 2000
"""How much of an error's sentence a record has."""
MADE = "made"
"""Part of the name of the record of a fork's origin; belongs to the stored format."""


def write_action(storage: Storage, record: ActionRecord, unique: str) -> None:
    """Stores the record of an action. Logs an error instead of raising it, because no protocol step needs the history.

    Args:
        storage: the job root.
        record: the record.
        unique: distinguishes it from other actions of the same kind at the same log entry.
    """
    try:
        key = history_key(record.seq, f"{record.kind}-{unique[:12]}")
        storage.put_new(key, _encoded(record))
    except Exception as e:
        known = isinstance(e, StateflowError | OSError)
        log.warning("could not write the history record of a %s: %s", record.kind, e, exc_info=None if known else e)


def record_run(storage: Storage, record: ActionRecord, job_file: bytes, graph: bytes) -> None:
    """Stores the record of a run's start, and the files that describe the run unless an earlier run had the same ones.

    Args:
        storage: the job root.
        record: the record; it gets the hashes of the files.
        job_file: the text of the job file; it is not stored if it has more than `LARGEST_JOB_FILE` bytes.
        graph: the graph, as JSON.

    Raises StorageError, ConfigError or TooLarge.
    """
    job_hash, graph_hash = (hashlib.sha256(data).hexdigest() for data in (job_file, graph))
    facts = {**record.facts, "job_file_sha256": job_hash, "graph_sha256": graph_hash}
    key = run_record_key(record.seq, job_hash, graph_hash)
    # First: a file without a record could be deleted at once.
    storage.put_new(key, _encoded(msgspec.structs.replace(record, facts=facts)))
    for digest, data, largest in ((job_hash, job_file, LARGEST_JOB_FILE), (graph_hash, graph, LIMIT)):
        if len(data) <= largest and storage.size(run_file_key(digest)) is None:
            storage.put_new(run_file_key(digest), data)


def read_run_file(storage: Storage, digest: str) -> bytes | None:
    """Returns a file that describes runs, by its SHA-256; None if it is not stored, or not as it was."""
    if not _SHA256.fullmatch(digest):
        return None
    try:
        data = storage.get(run_file_key(digest), LIMIT)
    except DataError:
        return None
    return data if hashlib.sha256(data).hexdigest() == digest else None


def read_newest_job_file(storage: Storage) -> tuple[ActionRecord, bytes] | None:
    """Returns the record of the newest run whose job file is stored, with its text; None if there is none.

    Looks at the newest runs only.
    """
    keys = [blob.key for blob in reversed(storage.list(HISTORY)) if files_of_run_record(blob.key)]
    for key in keys[:_RUNS_TRIED]:
        for record in _read(storage, key):
            text = read_run_file(storage, record.text("job_file_sha256")) if isinstance(record, ActionRecord) else None
            if isinstance(record, ActionRecord) and text is not None:
                return record, text
    return None


_RUNS_TRIED = 8


def write_records(storage: Storage, records: Sequence[CheckpointRecord], unique: str) -> None:
    """Stores records as one object, named after the newest.

    Args:
        storage: the job root.
        records: the records.
        unique: hexadecimal, distinguishes the object from others.

    Raises StorageError or ConfigError.
    """
    if not records:
        return
    newest = max(record.checkpoint_id for record in records)
    try:
        data = _encoded(records)
    except TooLarge as e:
        if len(records) == 1:
            log.warning("skipped the history record of checkpoint %d: %s", newest, e)
            return
        half = len(records) // 2
        for number, part in enumerate((records[:half], records[half:])):
            # Each part needs its own name: aborted checkpoints have the id of the checkpoint before them.
            write_records(storage, part, hashlib.sha256(f"{unique}-{number}".encode()).hexdigest())
        return
    storage.put_new(history_key(newest, f"checkpoints-{len(records)}-{unique[:8]}"), data)


def _encoded(record: ActionRecord | Sequence[CheckpointRecord]) -> bytes:
    data = msgspec.json.encode(record)
    if len(data) > LIMIT:
        raise _too_large(len(data), LIMIT)
    try:
        check_decoded_size(type(record) if isinstance(record, ActionRecord) else list[CheckpointRecord], data)
    except TooMuchMemory as e:
        raise _too_large(len(data), MEMORY_LIMIT) from e
    return data


def _too_large(size: int, limit: int) -> TooLarge:
    return TooLarge(
        "a history record is too large to be read again",
        hint="use shorter names and reasons",
        size_bytes=size,
        limit_bytes=limit,
    )


def trim_history(storage: Storage, keep: int, listed: Set[str] = frozenset()) -> None:
    """Deletes all but the newest objects that together have at least `keep` records.

    Args:
        storage: the job root.
        keep: number of records.
        listed: keys that an index contains: without them, the history would not match it.

    Raises StorageError or ConfigError.
    """
    found = [blob.key for blob in storage.list(HISTORY)]
    gone = {key for key in keys_beyond(found, keep) if key not in listed}
    storage.delete(gone)
    if any(map(files_of_run_record, gone)):
        # A newer run that finds a file just now would miss it afterwards: only its text is then not shown.
        used = tuple(begin for key in found if key not in gone for begin in files_of_run_record(key))
        storage.delete([blob.key for blob in storage.list(RUN_FILES) if not blob.key.startswith(used)])


def background_failures(storage: Storage, generation: int) -> list[ActionRecord]:
    """Returns the last failure record of each kind of background work of a run, ordered by the name of the work."""
    found: dict[str, ActionRecord] = {}
    prefix = history_key(generation, f"{BACKGROUND}-").removesuffix(".json")
    for blob in storage.list(prefix):
        for record in _read(storage, blob.key):
            if isinstance(record, ActionRecord):
                name = record.text("work")
                found[name] = max(record, found.get(name, record), key=_failures)
    return [found[name] for name in sorted(found)]


def _failures(record: ActionRecord) -> int:
    """Returns the number of failures that a record counts; 0 if it is not a number."""
    return record.number("failures") or 0


def run_failure(storage: Storage, generation: int) -> ActionRecord | None:
    """Returns the record of the error that a run ended with; None for a run that works, was killed, or succeeded."""
    found = _read(storage, history_key(generation, f"{FAILURE}-{_RUN}"))
    return next((record for record in found if isinstance(record, ActionRecord)), None)


def restore_record(storage: Storage, seq: int) -> ActionRecord | None:
    """Returns the record of the restore that the log entry `seq` decided; None if it is missing, or of another kind."""
    for kind in ("restore", "rewind"):
        for record in _read(storage, history_key(seq, f"{kind}-intent")):
            if isinstance(record, ActionRecord):
                return record
    return None


def record_run_failure(storage: Storage, record: ActionRecord) -> None:
    """Stores the record of a run's failure, which `run_failure` finds."""
    write_action(storage, record, _RUN)


def find_failed_start(storage: Storage, generation: int) -> ActionRecord | None:
    """Returns the newest record of a run that failed before its claim, while this generation was the newest one."""
    prefix = history_key(generation, f"{FAILED_START}-").removesuffix(".json")
    keys = [blob.key for blob in storage.list(prefix)]
    newest = max(keys, default="")[: len(prefix) + _HOUR_DIGITS]
    found = [record for key in keys if key.startswith(newest) for record in _read(storage, key)]
    return max((r for r in found if isinstance(r, ActionRecord)), key=lambda record: record.ended_at, default=None)


def record_failed_start(root: JobRoot, error: StateflowError) -> None:
    """Stores the record of a run that failed before its claim, which `find_failed_start` finds.

    An error is stored at most once in an hour, so that a schedule that fails for weeks leaves few records.
    """
    now = root.clock.now()
    kind = hashlib.sha256(f"{error.code} {error.sentence}".encode()).hexdigest()[:4]
    record = ActionRecord(
        seq=root.head().entry.generation,
        kind=FAILED_START,
        ended_at=now.isoformat(timespec="milliseconds"),
        by=root.requester,
        reason=error.sentence[:LONGEST_SENTENCE],
        facts={"code": error.code},
    )
    write_action(root.storage, record, f"{int(now.timestamp()) // 3600:0{_HOUR_DIGITS}x}{kind}")


def external_savepoints(storage: Storage, checkpoints: Iterable[int]) -> list[ActionRecord]:
    """Returns the records of savepoints of these checkpoints that were made outside of the job root.

    The savepoints may have been deleted since. Only the records of savepoints are read, not the whole history.
    """
    names = tuple(history_key(checkpoint, f"{SAVEPOINT_RECORD}-").removesuffix(".json") for checkpoint in checkpoints)
    keys = [blob.key for blob in storage.list(HISTORY) if blob.key.startswith(names)]
    records = [record for key in keys for record in _read(storage, key) if isinstance(record, ActionRecord)]
    root = f"{storage.uri.rstrip('/')}/"
    return [record for record in records if not (record.text("path") or root).startswith(root)]


def read_action(storage: Storage, key: str) -> ActionRecord | None:
    """Returns the record of an action in an object of the history; None if it was trimmed, or does not decode."""
    return next((record for record in _read(storage, key) if isinstance(record, ActionRecord)), None)


def read_origin(storage: Storage) -> ActionRecord | None:
    """Returns the record of what a fork, or a job root created from a savepoint, started with.

    Returns None for other jobs, and after the record was trimmed.
    """
    found = _read(storage, history_key(1, f"fork-{MADE}"))
    return next((record for record in found if isinstance(record, ActionRecord)), None)


def read_records(
    storage: Storage, newest: int | None = None, pending: Iterable[CheckpointRecord] = ()
) -> list[CheckpointRecord]:
    """Returns the newest records of checkpoints, oldest first.

    Args:
        storage: the job root.
        newest: maximum number of records; None for all.
        pending: records that only the newest manifest contains.
    """
    points = _read_newest(storage, newest, pending, lambda record: isinstance(record, CheckpointRecord))
    return [record for record in points if isinstance(record, CheckpointRecord)]


def read_points(storage: Storage, newest: int, pending: Iterable[CheckpointRecord] = ()) -> list[Record]:
    """Returns the newest records of checkpoints and restores, oldest first; arguments as `read_records`."""
    return _read_newest(storage, newest, pending, is_position)


def _read_newest(
    storage: Storage, newest: int | None, pending: Iterable[CheckpointRecord], is_wanted: Callable[[Record], bool]
) -> list[Record]:
    found: dict[tuple[int, int, str], Record] = {record_identity(record): record for record in pending}
    enough = None if newest is None else newest + len(found)
    for blob in reversed(storage.list(HISTORY)):
        if enough is not None and len(found) >= enough:
            break
        found |= {record_identity(r): r for r in _read(storage, blob.key) if is_wanted(r)}
    ordered = sorted(found.values(), key=lambda r: (seq_of(r), *record_identity(r)))
    return ordered[-newest:] if newest is not None else ordered


class Integrity(StrEnum):
    """Whether a record of the history is as it was recorded."""

    VERIFIED = "verified"
    """An index of the log contains its hash, or the manifest of the newest checkpoint contains the record."""
    UNVERIFIED = "unverified"
    """It is newer than the index."""
    CHANGED = "changed"
    """Its object was changed after it was recorded."""


def read_history(storage: Storage, pending: Iterable[CheckpointRecord] = ()) -> list[Record]:
    """Returns all records of completed checkpoints and of actions, in the order of `sort_records`.

    Args:
        storage: the job root.
        pending: records that only the newest manifest contains.
    """
    return sort_records(record for record, _ in read_checked_history(storage, pending, HistoryCheck()))


def read_checked_history(
    storage: Storage, pending: Iterable[CheckpointRecord], check: HistoryCheck
) -> list[tuple[Record, Integrity]]:
    """Returns all records of completed checkpoints and of actions, in no order, and whether they are as recorded.

    Args:
        storage: the job root.
        pending: records that only the newest manifest contains.
        check: the comparison of the history with its index.
    """
    found: dict[object, tuple[Record, Integrity]] = {record_identity(r): (r, Integrity.VERIFIED) for r in pending}
    changed = frozenset(check.changed)
    for blob in storage.list(HISTORY):
        integrity = Integrity.CHANGED if blob.key in changed else Integrity.UNVERIFIED
        integrity = Integrity.VERIFIED if blob.key in check.verified else integrity
        for record in _read(storage, blob.key):
            key = record_identity(record) if isinstance(record, CheckpointRecord) else blob.key
            found[key] = (record, integrity)
    return [each for each in found.values() if isinstance(each[0], ActionRecord) or each[0].status == COMPLETED]


def record_identity(record: Record) -> tuple[int, int, str]:
    """Returns what identifies a record of a checkpoint, or of a restore, whose CLAIM begins a generation.

    Records with the same number of a log entry are in this order.
    """
    if isinstance(record, CheckpointRecord):
        return record.generation, record.ordinal, record.status
    return record.seq, 0, record.kind


def _read(storage: Storage, key: str) -> Sequence[Record]:
    """Returns the records of an object; none if it does not decode or was just trimmed."""
    try:
        return decode_records(key, storage.get(key, LIMIT))
    except DataError:
        return []


def decode_records(key: str, data: bytes) -> Sequence[Record]:
    """Returns the records in an object of the history; none if it does not decode."""
    try:
        if _CHECKPOINTS.fullmatch(key):
            return decode_json(list[CheckpointRecord], data)
        return [decode_json(ActionRecord, data)]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, DataError):
        return []


def read_pending_records(root: JobRoot, head: Head) -> list[CheckpointRecord]:
    """Returns the records that only the manifest of `head` contains; none when it cannot be read.

    A damaged manifest is logged only: the steps that need it raise the error. Raises MissingFile if a newer entry has
    released it.
    """
    try:
        manifest = root.checkpoints.manifest_at(head)
    except StateflowError as e:
        if root.is_released(head, e):
            raise
        log.warning("could not read the history of the newest checkpoint: %s", e)
        return []
    return manifest.pending_records(head.checkpoint_id) if manifest else []


def flush_pending_records(root: JobRoot, head: Head) -> None:
    """Stores the pending records of `head` in the history. Storing them again is harmless; an error is only logged."""
    try:
        store_pending_records(root, head, read_pending_records(root, head))
    except StateflowError as e:
        log.warning("could not write the history of the newest checkpoints: %s", e)


def store_pending_records(root: JobRoot, head: Head, records: Sequence[CheckpointRecord]) -> None:
    """Stores records that only the manifest of `head` contains.

    The object's name depends only on the manifest, so that repeated starts store the same records only once.

    Raises StorageError or ConfigError.
    """
    manifest = head.entry.manifest
    write_records(root.storage, records, manifest.sha256 if manifest else root.clock.new_id())


LIMIT = 16 << 20
"""Size of the largest history object that is written or read, in bytes."""
_SHA256 = re.compile("[0-9a-f]{64}")
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
        new = [key for key in found if key not in kept and key not in beyond]
        objects = dict(sorted({**kept, **_digests(self._root.storage, new)}.items()))
        after = HistoryIndex(objects=objects, lost=_still_lost(before.lost, objects, keep))
        if after != before or (self.handle is None and (objects or after.lost)):
            self._write(after, head)

    def list_needed_objects(self, head: Head) -> frozenset[str]:
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
        unverified: keys of objects that no index contains: they are newer.
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
    index = read_index_of(storage, head)
    return compare_with_index(index, _digests(storage, [blob.key for blob in storage.list(HISTORY)]))


def read_index_of(storage: Storage, head: Head | None) -> HistoryIndex:
    """Returns the index of a log entry; one that says so if it is lost."""
    handle = _index_of(head)
    try:
        return read_index(storage, handle)
    except DataError:
        return HistoryIndex(lost=[LostIndex(key=handle.key if handle else "", seq=0)])


def compare_with_index(index: HistoryIndex, found: Mapping[str, str]) -> HistoryCheck:
    """Returns the comparison of an index with the SHA-256 of each object of the history, by key."""
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
    with DaemonExecutor(_READERS) as pool:
        found = zip(keys, pool.map(lambda key: _digest(storage, key), keys), strict=True)
        return {key: digest for key, digest in found if digest is not None}


def _digest(storage: Storage, key: str) -> str | None:
    try:
        return hashlib.sha256(storage.get(key, LIMIT)).hexdigest()
    except MissingFile:
        return None
    except DataError:
        return ""
