"""Garbage collection of a job root. Any number of collectors may run concurrently."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from msgspec.structs import replace

from stateflow import failpoints
from stateflow.checkpoint.gc.reachability import COLLECTED_AREAS, RUN_AREAS, Fate, fate_of, find_garbage
from stateflow.checkpoint.log.checkpoint_log import Head
from stateflow.checkpoint.log.documents import EntryRef, LogEntry
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.log.manifest_files import files_of
from stateflow.checkpoint.log.outputs import OutputLists
from stateflow.checkpoint.log.transitions import unexpired
from stateflow.checkpoint.savepoints.claimed_savepoints import settle_claims
from stateflow.checkpoint.savepoints.cleanup import leftover_keys, sweep_savepoints
from stateflow.requesters import describe_requester
from stateflow.state.handles import FileHandle
from stateflow.storage import BlobInfo
from stateflow.storage.paths import log_entry, parse_data

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
        self._resolved_refs: dict[EntryRef, EntryRef] = {}
        # Not the root's: a collection may run in another thread than the publication.
        self._outputs = OutputLists(root.storage)

    def preview(self, retain: int | None = None) -> Collection:
        """Returns what `collect` would delete after `AdminEntries.end_leases`; changes nothing.

        Args:
            retain: number of checkpoints that `AdminEntries.retain` would leave; None for all that are retained.
        """
        return self.root.read_kept(lambda head: self._previewed(head, retain))

    def _previewed(self, head: Head, retain: int | None) -> Collection:
        pins = unexpired(head.entry.pinned, self.root.clock.now().isoformat())
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
        live = self._entries(self.root.checkpoints.kept(head)) | _index(head)
        return self._collect(head, live, dry_run=False, areas=RUN_AREAS)

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
            tuple(ref.id for ref in self.root.checkpoints.kept(head)),
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
        for ref in {r.id: r for r in self.root.checkpoints.kept(head)}.values():
            if head.checkpoint is None or ref.id != head.checkpoint.id:
                handle = self.root.checkpoints.manifest_handle(self._resolved(ref))
                why = "; ".join(pins.get(ref.id, []))
                found[f"checkpoint {ref.id}" + (f" ({why})" if why else "")] = handle
        return found

    def _resolved(self, ref: EntryRef) -> EntryRef:
        """Resolves a reference; references without a manifest are cached by their hash, so each entry is read once."""
        if ref.manifest is None and ref not in self._resolved_refs:
            self._resolved_refs[ref] = self.root.checkpoints.resolve(ref)
        return self._resolved_refs.get(ref, ref)

    def _needed_by_entry(self, head: Head) -> dict[str, frozenset[str]]:
        """Returns the keys of other objects that `head` needs, by a description of the purpose."""
        entry = head.entry
        return {
            "the list of retained checkpoints": frozenset(
                h.key for h in self.root.checkpoints.retained.segment_handles(entry)
            ),
            "output that is not published": self._needed_by_output(entry),
            "the verification of the history": _index(head),
            "a checkpoint that an older version committed": self._entries(self.root.checkpoints.kept(head)),
        }

    def _needed_by_output(self, entry: LogEntry) -> frozenset[str]:
        """Returns the keys of the lists of pending output, and of its files that are staged in the job root."""
        lists = (handle.key for pending in entry.pending for handle in pending.parts)
        # A name in another place, such as a table's folder, never has the form of a key.
        files = (c.path for pending in entry.pending for c in self._outputs.read(pending) if parse_data(c.path))
        return frozenset([*lists, *files])

    @staticmethod
    def _entries(kept: Iterable[EntryRef]) -> frozenset[str]:
        return frozenset(log_entry(ref.id) for ref in kept if ref.manifest is None)

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
