"""Garbage collection of a job root, and the rules that decide which stored objects are garbage.

Any number of collectors may run concurrently.

Reference counts are not stored; they follow from the manifests of the head and of the checkpoints that it keeps. A file
is garbage when none of these refers to it and no later commit can: a commit refers only to its parent's files, or to
files of its own generation with an ordinal above its parent's. So garbage at a verified head stays garbage, however
long the collector is then paused. No lock, clock or age is needed.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from msgspec.structs import replace

from stateflow import failpoints
from stateflow.checkpoint.log.checkpoint_log import Head, is_old_entry
from stateflow.checkpoint.log.documents import LogEntry
from stateflow.checkpoint.log.entry_lists import OutputLists
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import files_of
from stateflow.checkpoint.log.transitions import drop_expired
from stateflow.checkpoint.savepoints.claimed_savepoints import settle_claims
from stateflow.checkpoint.savepoints.cleanup import leftover_keys, sweep_savepoints
from stateflow.requesters import describe_requester
from stateflow.state.handles import FileHandle
from stateflow.storage import BlobInfo
from stateflow.storage.paths import (
    BACKLOG,
    DATA,
    FORMAT,
    HISTORY,
    HISTORY_INDEX,
    LAUNCHES,
    LOG,
    PROBE,
    PROGRESS,
    REQUESTS,
    RUN_FILES,
    SAVEPOINTS,
    SERVERS,
    SPARK,
    DataKey,
    entry_seq,
    find_owned_generation,
    parse_data,
)

COLLECTED_AREAS = (DATA, SPARK, PROBE, HISTORY_INDEX, PROGRESS, LOG)
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
    BACKLOG = "it is a report of the input that waits; the next report replaces it"
    SAVEPOINT = "it belongs to a savepoint; `stateflow savepoint dispose` deletes it"
    UNFINISHED = "it belongs to an unfinished or partly deleted savepoint; a collection deletes it"
    REQUEST = "it is a request to a run, or its answer; a run deletes old ones"
    LAUNCH = "it is the result of a launch in a cluster; later launches delete old ones"
    SERVER = "it is the lease of a state server; servers delete those that have ended"
    OUTSIDE = "it is outside of what a collection searches"
    GARBAGE = "nothing needs it, and no later commit can"
    UNKNOWN = "it does not have a name that stateflow uses"

    @property
    def is_deletable(self) -> bool:
        """Whether the object can be deleted, now and at any later time."""
        return self is Fate.GARBAGE


_OUTSIDE = {
    HISTORY: Fate.HISTORY,
    RUN_FILES: Fate.HISTORY,
    BACKLOG: Fate.BACKLOG,
    SAVEPOINTS: Fate.SAVEPOINT,
    REQUESTS: Fate.REQUEST,
    LAUNCHES: Fate.LAUNCH,
    SERVERS: Fate.SERVER,
}
"""Key prefixes with separate retention rules, which `find_garbage` does not search."""


def find_garbage(head: LogEntry, live: Set[str], blobs: Iterable[BlobInfo]) -> GarbageScan:
    """Returns the garbage among stored objects.

    Args:
        head: a verified newest entry.
        live: keys of all objects that `head` needs: the manifests of its own and of kept checkpoints, the files in
            these manifests, lists of retained checkpoints and of pending output, and the index of the history.
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
    data, seq, generation = parse_data(key), entry_seq(key), find_owned_generation(key)
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


DELETED_AT_ONCE = 200
"""Maximum number of objects in one delete call of the storage."""
_WORKERS = 4
_READERS = 16
_SHARE = 8
"""A collection reads or lists something of every kept checkpoint. So the more are kept, the less often a run collects:
once the log has grown by one entry for each `_SHARE` kept checkpoints."""


@dataclass(frozen=True)
class FileStatus:
    """Whether a stored object is needed, and by what.

    Attributes:
        key: key of the object in the job root.
        size: size in bytes.
        fate: whether a collection deletes it, and why.
        needed_by: the checkpoints that need it, with the owners of their pins.
    """

    key: str
    size: int
    fate: Fate
    needed_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Collection:
    """The result of a collection, or of its preview.

    Attributes:
        head_seq: sequence number of the newest log entry.
        retained: ids of the kept checkpoints.
        files: number of deleted objects.
        bytes_freed: size of the deleted objects.
        unknown: keys of objects that stateflow has not written.
        dry_run: whether nothing was deleted.
    """

    head_seq: int
    retained: tuple[int, ...]
    files: int
    bytes_freed: int
    unknown: tuple[str, ...]
    dry_run: bool


class Collector:
    """Deletes one job's garbage.

    File lists of manifests are cached between collections, because manifests never change.

    Args:
        root: the job root.
    """

    def __init__(self, root: JobRoot) -> None:
        self.root = root
        self._files: dict[str, frozenset[str]] = {}
        # Not the root's: a collection may run in another thread than the publication.
        self._outputs = OutputLists(root.storage)

    def preview(self, retain: int | None = None) -> Collection:
        """Returns what `collect` would delete after `AdminEntries.end_leases`; changes nothing.

        Args:
            retain: number of checkpoints that `AdminEntries.retain` would leave; None for all that are retained.
        """
        return self.root.read_kept(lambda head: self._previewed(head, retain))

    def _previewed(self, head: Head, retain: int | None) -> Collection:
        pins = drop_expired(head.entry.pinned, self.root.clock.now().isoformat())
        head = Head(replace(head.entry, pinned=pins), head.sha256)
        if retain is not None:
            oldest = self.root.checkpoints.restorable(head)[-retain:][0].id if head.checkpoint else 0
            bound = max(oldest, head.entry.oldest_retained)
            head = Head(replace(head.entry, oldest_retained=bound), head.sha256)
        return self._collect(head, self.live(head), dry_run=True)

    def collect(self) -> Collection:
        """Deletes everything that is garbage at the newest entry.

        Raises DataError when a kept checkpoint is damaged, before anything is deleted.
        """
        head, live = self._live_at_head()
        found = self._collect(head, live, dry_run=False)
        sweep_savepoints(self.root)
        settle_claims(self.root, head)
        self.root.storage.remove_abandoned_files()
        return found

    def is_due(self, head: Head, collected: int) -> bool:
        """Returns whether enough was written since the last collection to justify the next one.

        Args:
            head: the newest entry.
            collected: sequence number of the newest entry at the last collection.
        """
        return (head.entry.seq - collected) * _SHARE >= len(self.root.checkpoints.restorable(head))

    def collect_run_leftovers(self) -> Collection:
        """Deletes garbage of runs in ``log/``, ``spark/`` and ``probe/``, without reading manifests; settles claims."""
        head = self.root.head()
        settle_claims(self.root, head)
        return self._collect(head, _index(head), dry_run=False, areas=RUN_AREAS)

    def _collect(
        self, head: Head, live: frozenset[str], dry_run: bool, areas: tuple[str, ...] = COLLECTED_AREAS
    ) -> Collection:
        # List after reading the head: a file that appears in between has a later ordinal, so it is not garbage.
        blobs = [blob for area in areas for blob in self.root.storage.list(area)]
        findings = find_garbage(head.entry, live, blobs)
        failpoints.hit("gc.listed")
        if not dry_run:
            self._delete(findings.garbage)
        return Collection(
            head.entry.seq,
            tuple(ref.id for ref in self.root.checkpoints.list_kept(head)),
            len(findings.garbage),
            sum(blob.size for blob in findings.garbage),
            findings.unknown,
            dry_run,
        )

    def _live_at_head(self) -> tuple[Head, frozenset[str]]:
        # A newer entry may have released a checkpoint that another collector then deleted, which is not damage.
        return self.root.read_kept(lambda head: (head, self.live(head)))

    def live(self, head: Head) -> frozenset[str]:
        """Returns the keys of every object that `head`, or a checkpoint that it keeps, needs."""
        manifests = {handle.key: handle for handle in self._manifests(head).values()}
        unread = [key for key in manifests if key not in self._files]
        with ThreadPoolExecutor(_READERS) as pool:
            read = dict(zip(unread, pool.map(lambda key: self._files_of(manifests[key]), unread), strict=True))
        self._files = {key: read.get(key) or self._files[key] for key in manifests}
        named = (keys for keys in self._needed_by_entry(head).values())
        self._outputs.keep_only(head.entry.pending)
        return frozenset().union(*self._files.values(), *named)

    def explain(self, blobs: Iterable[BlobInfo]) -> list[FileStatus]:
        """Returns whether each object is needed at the newest entry, and by what. Raises as `collect` does."""
        head, live = self._live_at_head()
        needs: dict[str, list[str]] = {}
        named = {who: self._files_of(handle) for who, handle in self._manifests(head).items()}
        for who, keys in [*named.items(), *self._needed_by_entry(head).items()]:
            for key in keys:
                needs.setdefault(key, []).append(who)
        unfinished = leftover_keys(self.root)

        def fate(key: str) -> Fate:
            return Fate.UNFINISHED if key in unfinished else fate_of(head.entry, live, key)

        return [FileStatus(b.key, b.size, fate(b.key), tuple(needs.get(b.key, ()))) for b in blobs]

    def _manifests(self, head: Head) -> dict[str, FileHandle]:
        """Returns the manifests of the head and of each kept checkpoint, by a description of the checkpoint."""
        pins: dict[int, list[str]] = {}
        for pin in head.entry.pinned:
            pins.setdefault(pin.checkpoint.id, []).append(f"pin of {describe_requester(pin.owner)}: {pin.reason}")
        found = {}
        if head.entry.manifest:
            found[f"checkpoint {head.checkpoint_id} (the current one)"] = head.entry.manifest
        for ref in {r.id: r for r in self.root.checkpoints.list_kept(head)}.values():
            if head.checkpoint is None or ref.id != head.checkpoint.id:
                why = "; ".join(pins.get(ref.id, []))
                found[f"checkpoint {ref.id}" + (f" ({why})" if why else "")] = ref.manifest
        return found

    def _needed_by_entry(self, head: Head) -> dict[str, frozenset[str]]:
        """Returns the keys of other objects that `head` needs, by a description of the purpose."""
        entry = head.entry
        return {
            "the list of retained checkpoints": frozenset(
                h.key for h in self.root.checkpoints.retained.segment_handles(entry)
            ),
            "output that is not published": self._needed_by_output(entry),
            "the verification of the history": _index(head),
        }

    def _needed_by_output(self, entry: LogEntry) -> frozenset[str]:
        """Returns the keys of the lists of pending output, and of its files that are staged in the job root."""
        lists = (handle.key for pending in entry.pending for handle in pending.parts)
        # A name in another place, such as a table's folder, never has the form of a key.
        files = (c.path for pending in entry.pending for c in self._outputs.read(pending) if parse_data(c.path))
        return frozenset([*lists, *files])

    def _files_of(self, handle: FileHandle) -> frozenset[str]:
        known = self._files.get(handle.key)
        if known is not None:
            return known
        manifest = self.root.checkpoints.read_manifest(handle)
        return frozenset([handle.key, *(f.key for f in files_of(manifest))])

    def _delete(self, garbage: tuple[BlobInfo, ...]) -> None:
        """Deletes in concurrent batches; after a failure, no further batch starts.

        The order does not matter, because garbage never becomes needed again.
        """
        keys = [blob.key for blob in garbage]
        batches = [keys[start : start + DELETED_AT_ONCE] for start in range(0, len(keys), DELETED_AT_ONCE)]
        with ThreadPoolExecutor(_WORKERS) as pool:
            for _ in pool.map(self.root.storage.delete, batches):
                failpoints.hit("gc.deleting")


def _index(head: Head) -> frozenset[str]:
    return frozenset([head.entry.history.key] if head.entry.history else [])
