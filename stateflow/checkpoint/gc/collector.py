"""Garbage collection: reads a verified head, deletes what `garbage` says, any number of collectors at once."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from msgspec.structs import replace

from stateflow import failpoints
from stateflow.checkpoint.documents import EntryRef
from stateflow.checkpoint.files import files_of
from stateflow.checkpoint.garbage import COLLECTED, OF_RUNS, Fate, fate_of, find_garbage
from stateflow.checkpoint.jobroot import JobRoot
from stateflow.checkpoint.log import Head
from stateflow.checkpoint.savepoint_cleanup import left_over, sweep_savepoints
from stateflow.errors import DataError
from stateflow.state.handles import FileHandle
from stateflow.storage import BlobInfo
from stateflow.storage.paths import log_entry

_BATCH, _WORKERS = 200, 4
_READERS = 16
_SHARE = 8
"""A collection reads or lists something of every kept checkpoint. So the more are kept, the rarer a run collects: what
waits for it is then this share of what is kept."""


@dataclass(frozen=True)
class FileFate:
    """What becomes of a stored object.

    Attributes:
        needed_by: checkpoints, with who pins them.
    """

    key: str
    size: int
    fate: Fate
    needed_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Collection:
    """What a collection deleted, or would delete."""

    head_seq: int
    retained: tuple[int, ...]
    files: int
    bytes_freed: int
    unknown: tuple[str, ...]
    dry_run: bool


class Collector:
    """Collects one job's garbage. Keeps the file lists of manifests between collections: they never change."""

    def __init__(self, root: JobRoot) -> None:
        self.root = root
        self._files: dict[str, frozenset[str]] = {}
        self._read: dict[EntryRef, EntryRef] = {}

    def preview(self, retain: int | None = None) -> Collection:
        """What `collect` would delete, after `JobRoot.retain` of so many checkpoints; changes nothing."""
        head = self.root.head()
        if retain is not None:
            oldest = self.root.line(head)[-retain:][0].id if head.checkpoint else 0
            bound = max(oldest, head.entry.oldest_retained)
            head = Head(replace(head.entry, oldest_retained=bound), head.sha256)
        return self._collect(head, self.live(head), dry_run=True)

    def collect(self) -> Collection:
        """Deletes everything that is garbage at the newest entry. Raises DataError when a kept checkpoint is damaged,
        before anything is deleted."""
        head, live = self._live_at_head()
        found = self._collect(head, live, dry_run=False)
        sweep_savepoints(self.root)
        self.root.storage.tidy()
        return found

    def is_due(self, head: Head, collected: int) -> bool:
        """Whether enough was written since the last collection to be worth the next one.

        Args:
            collected: the newest entry at the last one.
        """
        return (head.entry.seq - collected) * _SHARE >= len(self.root.line(head))

    def collect_of_runs(self) -> Collection:
        """Deletes what runs have left in ``log/``, ``spark/`` and ``probe/``; reads no manifest."""
        head = self.root.head()
        return self._collect(head, self._entries(self.root.kept(head)), dry_run=False, areas=OF_RUNS)

    def _collect(
        self, head: Head, live: frozenset[str], dry_run: bool, areas: tuple[str, ...] = COLLECTED
    ) -> Collection:
        # The listing comes after the head: a file that appears in between is of a later ordinal, so never garbage.
        blobs = [blob for area in areas for blob in self.root.storage.list(area)]
        findings = find_garbage(head.entry, live, blobs)
        failpoints.hit("gc.listed")
        if not dry_run:
            self._delete(findings.garbage)
        return Collection(
            head.entry.seq, tuple(ref.id for ref in self.root.kept(head)), len(findings.garbage),
            sum(blob.size for blob in findings.garbage), findings.unknown, dry_run,
        )  # fmt: skip

    def _live_at_head(self) -> tuple[Head, frozenset[str]]:
        head = self.root.head()
        while True:
            try:
                return head, self.live(head)
            except DataError:
                # A newer entry may have let a checkpoint go, and another collector have taken it: no damage then.
                newer = self.root.head()
                if newer == head:
                    raise
                head = newer

    def live(self, head: Head) -> frozenset[str]:
        """Keys of every object that `head` or a checkpoint it keeps needs."""
        manifests = {handle.key: handle for handle in self._manifests(head).values()}
        unread = [key for key in manifests if key not in self._files]
        with ThreadPoolExecutor(_READERS) as pool:
            read = dict(
                zip(unread, pool.map(lambda key: self._files_of(manifests[key]), unread), strict=True)
            )
        self._files = {key: read.get(key) or self._files[key] for key in manifests}
        named = (keys for keys in self._needed_by_entry(head).values())
        return frozenset().union(*self._files.values(), *named)

    def explain(self, blobs: Iterable[BlobInfo]) -> list[FileFate]:
        """What becomes of each object, by the newest entry, and who needs it. Raises as `collect` does."""
        head, live = self._live_at_head()
        needs: dict[str, list[str]] = {}
        named = {who: self._files_of(handle) for who, handle in self._manifests(head).items()}
        for who, keys in [*named.items(), *self._needed_by_entry(head).items()]:
            for key in keys:
                needs.setdefault(key, []).append(who)
        unfinished = left_over(self.root)

        def fate(key: str) -> Fate:
            return Fate.UNFINISHED if key in unfinished else fate_of(head.entry, live, key)

        return [FileFate(b.key, b.size, fate(b.key), tuple(needs.get(b.key, ()))) for b in blobs]

    def _manifests(self, head: Head) -> dict[str, FileHandle]:
        """The manifest of the head and of each checkpoint that it keeps, by who needs it."""
        pins: dict[int, list[str]] = {}
        for pin in head.entry.pinned:
            pins.setdefault(pin.checkpoint.id, []).append(f"pin of {pin.owner}: {pin.reason}")
        found = {}
        if head.entry.manifest:
            found[f"checkpoint {head.checkpoint_id} (the present one)"] = head.entry.manifest
        for ref in {r.id: r for r in self.root.kept(head)}.values():
            if head.checkpoint is None or ref.id != head.checkpoint.id:
                handle = self._resolved(ref).manifest
                assert handle is not None
                why = "; ".join(pins.get(ref.id, []))
                found[f"checkpoint {ref.id}" + (f" ({why})" if why else "")] = handle
        return found

    def _resolved(self, ref: EntryRef) -> EntryRef:
        """Of references without a manifest, what their entries say is remembered: the hash tells them apart."""
        if ref.manifest is None and ref not in self._read:
            self._read[ref] = self.root.resolved(ref)
        return self._read.get(ref, ref)

    def _needed_by_entry(self, head: Head) -> dict[str, frozenset[str]]:
        """Keys of other objects that `head` needs, by what for."""
        entry = head.entry
        return {
            "the list of retained checkpoints": frozenset(h.key for h in self.root.retained.objects(entry)),
            "output that is not published": frozenset(h.key for p in entry.pending for h in p.parts),
            "a checkpoint that an older version committed": self._entries(self.root.kept(head)),
        }

    @staticmethod
    def _entries(kept: Iterable[EntryRef]) -> frozenset[str]:
        return frozenset(log_entry(ref.id) for ref in kept if ref.manifest is None)

    def _files_of(self, handle: FileHandle) -> frozenset[str]:
        known = self._files.get(handle.key)
        if known is not None:
            return known
        manifest = self.root.read_manifest(handle)
        return frozenset([handle.key, *(f.key for f in files_of(manifest))])

    def _delete(self, garbage: tuple[BlobInfo, ...]) -> None:
        """Some deletions are under way at once; behind one that fails none begins. Garbage is garbage for ever, so the
        order does not matter."""
        keys = [blob.key for blob in garbage]
        batches = [keys[start : start + _BATCH] for start in range(0, len(keys), _BATCH)]
        with ThreadPoolExecutor(_WORKERS) as pool:
            for _ in pool.map(self.root.storage.delete, batches):
                failpoints.hit("gc.deleting")
